//! Operations and the inputs that they were recorded with: which inputs are compared, how, and who
//! may waive the comparison.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use abide::prelude::*;
use abide::testing::Lab;
use abide::{ClientError, Status, Workflow};
use serde::{Deserialize, Serialize};

/// The people who were paid, in order.
#[derive(Clone, Default)]
struct Paid(Arc<Mutex<Vec<String>>>);

impl Paid {
    fn all(&self) -> String {
        self.0.lock().unwrap().join(" ")
    }
}

#[task]
async fn pay(ctx: Ctx, to: String) -> Result<String> {
    ctx.state::<Paid>().0.lock().unwrap().push(to.clone());
    Ok(format!("paid {to}"))
}

async fn go(ctx: &Ctx) -> Result<()> {
    ctx.recv("go").await
}

async fn pay_each(ctx: &Ctx, people: &[&str]) -> Result<String> {
    let mut receipts = Vec::new();
    for person in people {
        receipts.push(ctx.run(pay, (*person).to_owned()).await?);
    }
    Ok(receipts.join(", "))
}

async fn pay_each_by_key(ctx: &Ctx, people: &[&str]) -> Result<String> {
    let mut receipts = Vec::new();
    for person in people {
        receipts.push(ctx.run(pay, (*person).to_owned()).key(person).await?);
    }
    Ok(receipts.join(", "))
}

#[workflow(name = "payroll")]
async fn two(ctx: Ctx) -> Result<String> {
    let receipts = pay_each(&ctx, &["bob", "cyd"]).await?;
    go(&ctx).await?;
    Ok(receipts)
}

/// Pays one more person, before the others, as the next deploy does.
#[workflow(name = "payroll")]
async fn three(ctx: Ctx) -> Result<String> {
    let receipts = pay_each(&ctx, &["ann", "bob", "cyd"]).await?;
    go(&ctx).await?;
    Ok(receipts)
}

#[workflow(name = "payroll", strict)]
async fn three_strictly(ctx: Ctx) -> Result<String> {
    let receipts = pay_each(&ctx, &["ann", "bob", "cyd"]).await?;
    go(&ctx).await?;
    Ok(receipts)
}

#[workflow(name = "payroll")]
async fn two_by_key(ctx: Ctx) -> Result<String> {
    let receipts = pay_each_by_key(&ctx, &["bob", "cyd"]).await?;
    go(&ctx).await?;
    Ok(receipts)
}

#[workflow(name = "payroll")]
async fn three_by_key(ctx: Ctx) -> Result<String> {
    let receipts = pay_each_by_key(&ctx, &["ann", "bob", "cyd"]).await?;
    go(&ctx).await?;
    Ok(receipts)
}

#[workflow(name = "payroll")]
async fn one_renamed(ctx: Ctx) -> Result<String> {
    let receipts = [ctx.run(pay, "Bob".to_owned()).any_input().await?, ctx.run(pay, "cyd".to_owned()).await?];
    go(&ctx).await?;
    Ok(receipts.join(", "))
}

/// Runs `before` until it waits, takes its machine away, and goes on with `after`.
async fn change<B, A>(lab: &Lab, before: B, after: A) -> (Paid, Handle<String>)
where
    B: Workflow<Input = (), Output = String>,
    A: Workflow<Input = (), Output = String>,
{
    let (paid, abide) = change_from(lab, (before, after), async |abide| {
        abide.start_named::<_, String>("march", "payroll", &()).await.unwrap();
    })
    .await;
    (paid, abide.handle("march"))
}

/// Does the same for an execution that `start` starts.
async fn change_from<B, A>(lab: &Lab, (before, after): (B, A), start: impl AsyncFn(&Abide)) -> (Paid, Abide)
where
    B: Workflow<Input = (), Output = String>,
    A: Workflow<Input = (), Output = String>,
{
    let paid = Paid::default();
    let state = paid.clone();
    let (machine, abide) =
        lab.worker_with(|builder| builder.workflow(before).task(pay).state(state)).await.unwrap();
    start(&abide).await;
    // A child is not there at once.
    while abide.handle::<String>("march").status().await.ok() != Some(Status::Waiting)
        || paid.0.lock().unwrap().len() < 2
    {
        lab.sleep(ms(10)).await;
    }
    lab.sleep(secs(1)).await;
    lab.crash(machine);
    lab.sleep(minutes(1)).await;
    let state = paid.clone();
    let (_, abide) = lab.worker_with(|builder| builder.workflow(after).task(pay).state(state)).await.unwrap();
    abide.handle::<String>("march").signal("go", &()).await.unwrap();
    lab.sleep(secs(5)).await;
    (paid, abide)
}

const ANOTHER: &str = r#"the code no longer matches its journal: child "pay" was recorded with input "bob", the code has "ann""#;

#[test]
fn a_child_with_another_input_is_not_given_the_result_of_the_first() {
    Lab::run_on_each(1, async |lab| {
        let (paid, handle) = change(&lab, two, three).await;
        assert_eq!((handle.status().await.unwrap(), paid.all().as_str()), (Status::Blocked, "bob cyd"));
        let why = handle.why().await.unwrap();
        assert!(why.contains(ANOTHER), "{why}");
        let ways_on = "to go on: abide unblock march --accept pay (this use only: a later one without a record runs), \
                       or code that has the recorded input";
        assert!(why.contains(ways_on), "{why}");
        let Err(ClientError::Blocked { reason, .. }) = handle.result().await else { panic!("it is blocked") };
        assert!(reason.contains(ANOTHER) && reason.ends_with(ways_on), "{reason}");
    });
}

#[test]
fn a_strict_workflow_is_blocked_by_another_input_too() {
    Lab::run(2, async |lab| {
        let (paid, handle) = change(&lab, two, three_strictly).await;
        assert_eq!((handle.status().await.unwrap(), paid.all().as_str()), (Status::Blocked, "bob cyd"));
        assert!(handle.why().await.unwrap().contains(ANOTHER));
    });
}

#[test]
fn operations_with_keys_are_not_shifted_by_one_that_is_inserted() {
    Lab::run_on_each(3, async |lab| {
        let (paid, handle) = change(&lab, two_by_key, three_by_key).await;
        assert_eq!(paid.all(), "bob cyd ann");
        assert_eq!(handle.result().await.unwrap(), "paid ann, paid bob, paid cyd");
    });
}

#[test]
fn code_can_do_with_any_input() {
    Lab::run(4, async |lab| {
        let (paid, handle) = change(&lab, two, one_renamed).await;
        assert_eq!(handle.result().await.unwrap(), "paid bob, paid cyd");
        assert_eq!(paid.all(), "bob cyd");
    });
}

#[test]
fn an_operator_can_accept_what_was_recorded_with_another_input() {
    Lab::run_on_each(5, async |lab| {
        let (paid, handle) = change(&lab, two, three).await;
        for wrong in ["pay#2", "pay[ann]", "ship"] {
            let refused = handle.unblock().accept(wrong).await.unwrap_err().to_string();
            assert!(refused.contains(r#"it is blocked at child "pay""#), "{refused}");
        }
        let refused = handle.unblock().rerun("pay").await.unwrap_err().to_string();
        assert!(refused.contains("it cannot go on to run again"), "{refused}");
        // The second child has another input as well, which needs a decision of its own.
        handle.unblock().accept("pay").await.unwrap();
        lab.sleep(secs(5)).await;
        let why = handle.why().await.unwrap();
        assert!(why.contains(r#"child "pay" #2 was recorded with input "cyd", the code has "bob""#), "{why}");
        handle.unblock().accept("pay#2").await.unwrap();
        lab.sleep(secs(5)).await;
        assert_eq!(handle.result().await.unwrap(), "paid bob, paid cyd, paid cyd");
        assert_eq!(paid.all(), "bob cyd cyd");
    });
}

/// An input with a map in a different order each time, which has gained a field.
#[derive(Serialize, Deserialize)]
struct Order {
    items: HashMap<String, u32>,
    note: Option<String>,
}

fn order(seed: u32) -> Order {
    let items = (0..50).map(|n| (n + seed) % 50).map(|n| (format!("item-{n}"), n));
    Order { items: items.collect(), note: None }
}

#[workflow]
async fn checkout(ctx: Ctx, order: Order) -> Result<usize> {
    let sum = ctx.step("sum", || async { Ok(order.items.len()) }).input(&order).await?;
    let again = ctx.run(count, self::order(7)).await?;
    go(&ctx).await?;
    Ok(sum + again)
}

#[workflow]
async fn count(_ctx: Ctx, order: Order) -> Result<usize> {
    Ok(order.items.len())
}

#[test]
fn neither_the_order_of_a_map_nor_an_optional_field_makes_another_input() {
    Lab::run_on_each(6, async |lab| {
        let codes = |builder: abide::Builder| builder.workflow(two);
        let (machine, abide) = lab.worker_with(codes).await.unwrap();
        let handle = abide.start(checkout, order(0)).id("o").await.unwrap();
        // The same start attaches.
        abide.start(checkout, order(31)).id("o").await.unwrap();
        let items: HashMap<_, _> = order(3).items;
        let older = HashMap::from([("items", items)]);
        abide.start_named::<_, usize>("o", "checkout", &older).await.unwrap();
        lab.sleep(secs(5)).await;
        lab.crash(machine);
        let (_, abide) = lab.worker_with(codes).await.unwrap();
        lab.sleep(minutes(1)).await;
        // A replay with its maps in another order does not contradict the journal.
        let handle = abide.handle::<usize>(handle.id());
        handle.signal("go", &()).await.unwrap();
        assert_eq!(handle.result().await.unwrap(), 100);
        let other = abide.start(checkout, Order { note: Some("now".to_owned()), ..order(0) }).id("o").await;
        assert!(matches!(other, Err(ClientError::Conflict { .. })), "another note is another order");
    });
}

#[workflow]
async fn keys(ctx: Ctx, step: String) -> Result<String> {
    ctx.step(&step, || async { Ok(ctx.idempotency_key()) }).await
}

#[test]
fn ids_and_names_with_slashes_give_keys_of_their_own() {
    Lab::run(7, async |lab| {
        let (_, abide) = lab.worker_with(|builder| builder.workflow(two)).await.unwrap();
        let one = abide.run(keys, "charge/1/pay".to_owned()).id("o1").await.unwrap();
        let other = abide.run(keys, "pay".to_owned()).id("o1/1/charge").await.unwrap();
        assert_eq!(
            (one.as_str(), other.as_str()),
            ("default/o1/1/charge%2F1%2Fpay/1", "default/o1%2F1%2Fcharge/1/pay/1")
        );
    });
}

#[workflow]
async fn everything_keyed(ctx: Ctx) -> Result<Vec<String>> {
    let mut seen = Vec::new();
    for key in ["x", "y"] {
        let idempotency_key = || ctx.idempotency_key();
        seen.push(ctx.step("s", || async { Ok(idempotency_key()) }).key(key).await?);
        seen.push(ctx.run(pay, key.to_owned()).key(&(key, 1)).await?);
        ctx.sleep(ms(10)).key(key).await?;
        seen.push(ctx.recv::<String>("word").key(key).await?);
    }
    Ok(seen)
}

#[test]
fn every_operation_takes_a_key() {
    Lab::run_on_each(8, async |lab| {
        let paid = Paid::default();
        let (_, abide) = lab.worker_with(|builder| builder.workflow(two).state(paid)).await.unwrap();
        let handle = abide.start(everything_keyed, ()).id("k").await.unwrap();
        for word in ["one", "two"] {
            handle.signal("word", &word).await.unwrap();
        }
        let seen = handle.result().await.unwrap();
        let expected = ["default/k/1/s=x/1", "paid x", "one", "default/k/1/s=y/1", "paid y", "two"];
        assert_eq!(seen, expected);
        let children = abide.list(Filter::all()).await.unwrap();
        let ids: Vec<_> = children.iter().map(|listed| listed.id.as_str()).collect();
        assert!(ids.contains(&r#"k/1/pay=["x",1]/1"#), "{ids:?}");
    });
}

async fn expect(lab: &Lab, handle: &Handle<String>, expected: Status) {
    lab.sleep(secs(20)).await;
    assert_eq!(handle.status().await.unwrap(), expected, "{}", handle.why().await.unwrap());
}

/// A blocked execution stays so in a pause, and a decision leaves it paused.
#[test]
fn a_pause_and_a_resume_accept_no_other_input() {
    Lab::run_on_each(9, async |lab| {
        let (paid, handle) = change(&lab, two, three).await;
        for _ in 0..2 {
            handle.pause().await.unwrap();
            expect(&lab, &handle, Status::Blocked).await;
            handle.resume().await.unwrap();
            expect(&lab, &handle, Status::Blocked).await;
            assert!(handle.why().await.unwrap().contains(ANOTHER));
        }
        handle.pause().await.unwrap();
        handle.unblock().accept("pay").await.unwrap();
        expect(&lab, &handle, Status::Paused).await;
        handle.resume().await.unwrap();
        expect(&lab, &handle, Status::Blocked).await;
        let why = handle.why().await.unwrap();
        assert!(why.contains(r#"child "pay" #2 was recorded with input "cyd", the code has "bob""#), "{why}");
        assert_eq!(paid.all(), "bob cyd");
    });
}

#[test]
fn what_is_blocked_by_another_input_is_cancelled_and_terminated() {
    for is_terminate in [false, true] {
        Lab::run_on_each(10, async |lab| {
            let (paid, handle) = change(&lab, two, three).await;
            match is_terminate {
                true => handle.terminate("enough").await.unwrap(),
                false => handle.cancel("enough").await.unwrap(),
            }
            expect(&lab, &handle, Status::Cancelled).await;
            assert_eq!(paid.all(), "bob cyd");
        });
    }
}

#[test]
fn the_deadline_of_what_is_blocked_by_another_input_passes() {
    Lab::run_on_each(11, async |lab| {
        let (paid, abide) = change_from(&lab, (two, three), async |abide| {
            abide.start(two, ()).id("march").deadline(minutes(2)).await.unwrap();
        })
        .await;
        let handle = abide.handle::<String>("march");
        expect(&lab, &handle, Status::Blocked).await;
        lab.sleep(minutes(2)).await;
        expect(&lab, &handle, Status::Failed).await;
        assert_eq!(paid.all(), "bob cyd");
    });
}

/// The next run has a journal of its own, and its children are new.
#[test]
fn a_retry_of_what_was_blocked_by_another_input_begins_anew() {
    Lab::run_on_each(12, async |lab| {
        let (paid, handle) = change(&lab, two, three).await;
        handle.terminate("enough").await.unwrap();
        expect(&lab, &handle, Status::Cancelled).await;
        handle.retry().await.unwrap();
        expect(&lab, &handle, Status::Completed).await;
        assert_eq!(handle.result().await.unwrap(), "paid ann, paid bob, paid cyd");
        assert_eq!(paid.all(), "bob cyd ann bob cyd");
    });
}

#[workflow]
async fn office(ctx: Ctx) -> Result<String> {
    ctx.run(two, ()).id("march").await
}

#[test]
fn a_parent_is_paused_and_resumed_around_a_child_that_another_input_blocks() {
    Lab::run_on_each(13, async |lab| {
        let (paid, abide) = change_from(&lab, (two, three), async |abide| {
            abide.start(office, ()).id("office").await.unwrap();
        })
        .await;
        let (parent, march) = (abide.handle::<String>("office"), abide.handle::<String>("march"));
        expect(&lab, &march, Status::Blocked).await;
        parent.pause().await.unwrap();
        expect(&lab, &parent, Status::Paused).await;
        march.unblock().accept("pay").await.unwrap();
        expect(&lab, &march, Status::Paused).await;
        parent.resume().await.unwrap();
        expect(&lab, &march, Status::Blocked).await;
        march.unblock().accept("pay#2").await.unwrap();
        expect(&lab, &parent, Status::Completed).await;
        assert_eq!(parent.result().await.unwrap(), "paid bob, paid cyd, paid cyd");
        assert_eq!(paid.all(), "bob cyd cyd");
    });
}

/// Pays another person in each run.
#[workflow]
async fn monthly(ctx: Ctx, months: Vec<String>) -> Result<String> {
    let receipt = ctx.run(pay, months[0].clone()).await?;
    go(&ctx).await?;
    if months.len() > 1 { ctx.continue_as_new(months[1..].to_vec()).await } else { Ok(receipt) }
}

/// Inputs are compared within a run.
#[test]
fn the_next_run_may_have_another_input() {
    Lab::run_on_each(14, async |lab| {
        let paid = Paid::default();
        let worker = async || {
            let options = |builder: abide::Builder| builder.workflow(two).state(paid.clone());
            lab.worker_with(|builder| options(builder).session_ttl(secs(3))).await.unwrap()
        };
        let (machine, abide) = worker().await;
        let months = ["may".to_owned(), "june".to_owned()].to_vec();
        let handle = abide.start(monthly, months).id("m").await.unwrap();
        handle.signal("go", &()).await.unwrap();
        lab.sleep(secs(5)).await;
        lab.crash(machine);
        let (_, abide) = worker().await;
        let handle = abide.handle::<String>("m");
        handle.signal("go", &()).await.unwrap();
        expect(&lab, &handle, Status::Completed).await;
        assert_eq!(handle.result().await.unwrap(), "paid june");
        assert_eq!(paid.all(), "may june");
    });
}

/// A deploy wakes nobody: an execution that waits meets the new code when something comes for it.
#[test]
fn an_execution_that_waits_is_not_blocked_by_a_deploy_alone() {
    Lab::run_on_each(15, async |lab| {
        let paid = Paid::default();
        let codes = |builder: abide::Builder| builder.task(pay).state(paid.clone()).session_ttl(secs(3));
        let (machine, abide) =
            lab.worker_with(|builder| codes(builder).workflow(two).build("1")).await.unwrap();
        abide.start(two, ()).id("march").await.unwrap();
        lab.sleep(secs(10)).await;
        lab.crash(machine);
        let (_, abide) = lab.worker_with(|builder| codes(builder).workflow(three).build("2")).await.unwrap();
        let handle = abide.handle::<String>("march");
        lab.sleep(hours(1)).await;
        expect(&lab, &handle, Status::Waiting).await;
        handle.signal("look", &()).await.unwrap();
        expect(&lab, &handle, Status::Blocked).await;
    });
}
