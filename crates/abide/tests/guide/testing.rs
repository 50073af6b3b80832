//! docs/guide/testing.md.

use abide::prelude::*;
use abide::testing::{Lab, Test, crash_everywhere, replay};

#[workflow]
async fn subscription(ctx: Ctx, user: String) -> Result<String> {
    let receipt: String = ctx.step("charge", || charge(&user)).await?;
    ctx.sleep(days(30)).await?;
    ctx.run(mail, user.clone()).await?;
    Ok(receipt)
}

async fn charge(user: &str) -> Result<String> {
    Ok(format!("receipt for {user}"))
}

#[task]
async fn mail(_ctx: Ctx, user: String) -> Result<()> {
    assert!(!user.is_empty());
    Ok(())
}

#[workflow]
async fn approval(ctx: Ctx) -> Result<bool> {
    ctx.recv("approval").await
}

#[derive(Clone)]
struct App {
    currency: &'static str,
}

#[workflow]
async fn priced(ctx: Ctx, amount: u64) -> Result<String> {
    Ok(format!("{amount} {}", ctx.state::<App>().currency))
}

#[abide::test]
async fn a_month_passes_at_once(abide: Abide) -> Result<()> {
    let receipt = abide.run(subscription, "ann".to_string()).await?;
    assert_eq!(receipt, "receipt for ann");
    Ok(())
}

#[abide::test(state = App { currency: "EUR" })]
async fn state_is_shared_as_in_production(abide: Abide) -> Result<()> {
    assert_eq!(abide.run(priced, 5).await?, "5 EUR");
    Ok(())
}

#[test]
fn mocks_take_the_place_of_steps_and_tasks() {
    Test::new().mock_step("charge", |_| Ok("mocked receipt")).mock_task("mail", |_user: String| Ok(())).run(
        |abide| async move {
            let receipt = abide.run(subscription, "ann".to_string()).await.unwrap();
            assert_eq!(receipt, "mocked receipt");
        },
    );
}

#[test]
fn a_subscription_survives_every_crash() {
    let survived = crash_everywhere(subscription, "ann".to_string());
    assert_eq!(survived.result.unwrap(), "receipt for ann");
}

#[test]
fn an_approval_survives_every_crash() {
    Test::new().signal("approval", &true).crash_everywhere(approval, ());
}

#[test]
fn new_code_fits_what_is_under_way() {
    replay(include_str!("../histories/subscription.json")).assert_fits();
}

#[test]
fn another_machine_goes_on() {
    Lab::run(1, |lab| async move {
        let (machine, abide) = lab.worker().await.unwrap();
        let handle = abide.start(subscription, "ann".to_string()).id("s-1").await.unwrap();
        lab.sleep(days(1)).await;
        lab.crash(machine);
        let (_, other) = lab.worker().await.unwrap();
        assert_eq!(other.handle::<String>(handle.id()).result().await.unwrap(), "receipt for ann");
    });
}

/// Writes the history that the guide replays, after a change of the format: `UPDATE_EXPECT=1`.
#[test]
fn the_history_of_the_guide_is_what_its_workflow_records() {
    let text = Test::new().run(|abide| async move {
        abide.run(subscription, "ann".to_string()).id("s-1").await.unwrap();
        let id = abide_core::ExecutionId::new("s-1").unwrap();
        let address = abide_core::Address { namespace: abide_core::Namespace::default(), id };
        let store = abide::testing::store(&abide);
        let whole = abide_store::export(&*store, &address).await.unwrap().unwrap();
        abide::testing::History::of(&whole).unwrap().to_string()
    });
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/histories/subscription.json");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), text, "run with UPDATE_EXPECT=1");
}
