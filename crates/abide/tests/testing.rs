//! The tools with which users test their workflows: state, mocks, crashes at every position, and
//! replays of recorded histories.

use std::collections::HashMap;
use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use abide::Workflow;
use abide::prelude::*;
use abide::testing::{History, Lab, MockCall, Replay, Test, crash_everywhere, replay, run};
use abide_core::{Address, ExecutionId, Namespace};
use futures_util::join;

/// Returns the message that `test` panics with.
fn panic_of<T>(test: impl FnOnce() -> T) -> String {
    let panic = catch_unwind(AssertUnwindSafe(test)).err().expect("it panics");
    panic
        .downcast_ref::<String>()
        .cloned()
        .unwrap_or_else(|| panic.downcast_ref::<&str>().unwrap().to_string())
}

#[derive(Clone, Default)]
struct Effects(Arc<Mutex<Vec<String>>>);

impl Effects {
    fn add(&self, effect: &str) {
        self.0.lock().unwrap().push(effect.to_owned());
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

struct Price(u64);

#[task(name = "testing-mail")]
async fn mail(ctx: Ctx, to: String) -> Result<String> {
    ctx.state::<Effects>().add("mail");
    Ok(format!("a real mail to {to}"))
}

#[workflow(name = "testing-order")]
async fn order(ctx: Ctx, count: u64) -> Result<String> {
    let effects = ctx.state::<Effects>().clone();
    let price = ctx.state::<Price>().0;
    let paid: u64 = ctx
        .step("charge", || async {
            effects.add("charge");
            Ok(count * price)
        })
        .await?;
    ctx.sleep(days(1)).await?;
    let mailed = ctx.run(mail, "ann".to_owned()).await?;
    Ok(format!("{paid}, {mailed}"))
}

#[abide::test(state = Effects::default(), state = Price(5))]
async fn a_test_has_the_state_that_its_attribute_gives(abide: Abide) -> Result<()> {
    assert_eq!(abide.run(order, 3).await?, "15, a real mail to ann");
    Ok(())
}

#[test]
fn a_mocked_step_and_task_do_not_run_and_what_the_mock_gives_is_recorded() {
    let effects = Effects::default();
    let calls = Arc::new(Mutex::new(Vec::new()));
    let seen = calls.clone();
    let test = Test::new().state(effects.clone()).state(Price(5)).mock_step("charge", move |call| {
        seen.lock().unwrap().push(call);
        Ok(7)
    });
    let test = test.mock_task("testing-mail", |to: String| Ok(format!("a mock for {to}")));
    let given = test.run(async |abide: Abide| abide.run(order, 3).id("o-1").await);
    assert_eq!(given.unwrap(), "7, a mock for ann");
    assert_eq!(effects.all(), [""; 0]);
    let call = MockCall { id: "o-1".to_owned(), name: "charge".to_owned(), key: None, attempt: 1 };
    assert_eq!(*calls.lock().unwrap(), [call]);
}

#[workflow(name = "testing-keyed")]
async fn keyed(ctx: Ctx) -> Result<Vec<String>> {
    let mut given = Vec::new();
    for (name, number) in [("ann", 7), ("bob", 8)] {
        given.push(ctx.step("pay", || async { Ok(String::new()) }).key(name).await?);
        given.push(ctx.step("pack", || async { Ok(String::new()) }).key(&(name, number)).await?);
        given.push(abide::testing::transact(&ctx, "book", |_| Ok(String::new())).key(&number).await?);
    }
    Ok(given)
}

#[test]
fn a_mock_is_told_the_key_of_its_step() {
    let given = ["pay", "pack", "book"]
        .into_iter()
        .fold(Test::new(), |test, name| test.mock_step(name, |call| Ok(call.key.unwrap_or_default())))
        .run(async |abide: Abide| abide.run(keyed, ()).await);
    let keys = ["ann", r#"["ann",7]"#, "7", "bob", r#"["bob",8]"#, "8"];
    assert_eq!(given.unwrap(), keys);
}

#[workflow(name = "testing-retried")]
async fn retried(ctx: Ctx) -> Result<u64> {
    ctx.step("flaky", || async { Ok(0) }).retry(Retry::fixed(hours(1)).max_attempts(3)).await
}

#[test]
fn a_mock_may_fail_and_is_tried_again_as_a_step_is() {
    let flaky = |call: MockCall| match call.attempt {
        3 => Ok(33),
        _ => Err(Error::new("not yet")),
    };
    let given = Test::new().mock_step("flaky", flaky).run(async |abide: Abide| abide.run(retried, ()).await);
    assert_eq!(given.unwrap(), 33);
}

#[workflow(name = "testing-stock")]
async fn stock(ctx: Ctx) -> Result<i64> {
    ctx.sqlite("reserve", |tx| Ok(tx.query_row("SELECT count FROM nowhere", [], |row| row.get(0))?)).await
}

#[test]
fn a_transaction_is_mocked_like_a_step() {
    let given =
        Test::new().mock_step("reserve", |_| Ok(9)).run(async |abide: Abide| abide.run(stock, ()).await);
    assert_eq!(given.unwrap(), 9);
}

#[test]
fn a_mock_of_an_unknown_task_is_told() {
    let test = Test::new().mock_task("testing-mial", |_: String| Ok(0));
    let said = panic_of(|| test.run(async |_| ()));
    assert!(said.contains("there is no task \"testing-mial\" to mock; there are "), "{said}");
    assert!(said.contains("\"testing-mail\""), "{said}");
}

#[test]
fn a_mock_of_an_unknown_step_is_told() {
    let test = Test::new().mock_step("flakey", |_| Ok(0));
    let said = panic_of(|| test.run(async |abide: Abide| abide.run(retried, ()).await));
    assert_eq!(said, "the mock of step \"flakey\" was never used: the code came to \"flaky\"");
}

#[workflow(name = "testing-pair")]
async fn pair(ctx: Ctx, amount: u64) -> Result<u64> {
    let one: u64 = ctx.step("one", || async { Ok(amount + 1) }).await?;
    let one = i64::try_from(one)?;
    let reserved: i64 =
        ctx.sqlite("reserve", move |tx| Ok(tx.query_row("SELECT ?1 + 1", [one], |row| row.get(0))?)).await?;
    ctx.sleep(days(30)).await?;
    let (left, right) = tokio::join!(ctx.run(double, u64::try_from(reserved)?), ctx.recv::<u64>("bonus"));
    let flaky = ctx.step("two", || async { Ok(1) }).await?;
    Ok(left? + right? + flaky)
}

#[workflow(name = "testing-double")]
async fn double(ctx: Ctx, number: u64) -> Result<u64> {
    ctx.step("double", || async { Ok(number * 2) }).await
}

#[test]
fn a_deterministic_workflow_survives_a_crash_at_every_position() {
    let survived = Test::new().signal("bonus", &100).crash_everywhere(pair, 5);
    assert_eq!(survived.result.unwrap(), 7 * 2 + 100 + 1);
    // Started; one; reserve; sleep set and over; child started and finished; signal; two;
    // completed.
    assert_eq!(survived.position_count, 10);
}

#[workflow(name = "testing-chain")]
async fn chain(ctx: Ctx, left: u64) -> Result<u64> {
    ctx.step("link", || async { Ok(left) }).await?;
    match left {
        0 => Ok(0),
        left => ctx.continue_as_new(left - 1).await,
    }
}

#[test]
fn positions_are_counted_over_all_runs() {
    let survived = crash_everywhere(chain, 2);
    assert_eq!(survived.result.unwrap(), 0);
    assert_eq!(survived.position_count, 9);
}

#[workflow(name = "testing-stubborn")]
async fn stubborn(ctx: Ctx) -> Result<u64> {
    let policy = Retry::fixed(ms(100)).max_attempts(3);
    Ok(ctx.step("boom", || async { Err::<u64, _>(Error::from("x")) }).retry(policy).await.unwrap_or(7))
}

#[test]
fn a_retried_step_may_fail_at_another_time_after_a_crash() {
    let survived = crash_everywhere(stubborn, ());
    assert_eq!((survived.result.unwrap(), survived.position_count), (7, 5));
}

/// Returns how many seconds a sleep of one second takes, beside a child with a longer timer.
#[workflow(name = "testing-beside")]
async fn beside(ctx: Ctx, delay: u64) -> Result<u64> {
    let began_at = ctx.now();
    let _child = ctx.start(napper, 500).delay(secs(delay)).await?;
    ctx.sleep(secs(1)).await?;
    Ok(ctx.now().since(began_at).as_secs())
}

/// Returns who is first: a sleep of one second, or an older child that sleeps for longer.
#[workflow(name = "testing-race")]
async fn race(ctx: Ctx) -> Result<String> {
    let child = ctx.start(napper, 500).await?;
    ctx.sleep(secs(1)).await?;
    abide::select! {
        slept = ctx.sleep(secs(1)) => slept.map(|()| "sleep".to_owned()),
        ended = child.result() => ended.map(|()| "child".to_owned()),
    }
}

#[workflow(name = "testing-napper")]
async fn napper(ctx: Ctx, seconds: u64) -> Result<()> {
    ctx.sleep(secs(seconds)).await
}

#[test]
fn a_crash_beside_a_delayed_child_costs_no_time() {
    assert_eq!(crash_everywhere(beside, 100).result.unwrap(), 1);
}

#[test]
fn a_crash_beside_a_sleeping_child_costs_no_time() {
    assert_eq!(crash_everywhere(beside, 0).result.unwrap(), 1);
}

#[test]
fn a_crash_does_not_decide_a_race() {
    assert_eq!(crash_everywhere(race, ()).result.unwrap(), "sleep");
}

#[workflow(name = "testing-failing")]
async fn failing(ctx: Ctx) -> Result<()> {
    ctx.step("fail", || async { Err(Error::fatal("no money")) }).await
}

#[test]
fn a_workflow_that_fails_fails_the_same_way_each_time() {
    let error = crash_everywhere(failing, ()).result.unwrap_err();
    assert!(error.to_string().contains("no money"), "{error}");
}

static CALL_COUNT: AtomicU64 = AtomicU64::new(0);

#[workflow(name = "testing-fickle")]
async fn fickle(ctx: Ctx) -> Result<u64> {
    ctx.step("first", || async { Ok(1) }).await?;
    // Each call of this code takes another path.
    let way = CALL_COUNT.fetch_add(1, Ordering::Relaxed);
    ctx.step(&format!("way-{way}"), || async { Ok(1) }).await
}

#[test]
fn a_crash_that_changes_what_is_recorded_is_told_with_its_position_and_both_sides() {
    let said = panic_of(|| crash_everywhere(fickle, ()));
    assert!(
        said.starts_with(
            "a crash before position 2 (step-recorded step \"first\": 1) changes what is recorded:"
        ),
        "{said}"
    );
    assert!(said.contains("\n  without the crash: entry 3, step-recorded step \"way-0\": 1"), "{said}");
    assert!(said.contains("\n  with the crash:    entry 3, step-recorded step \"way-"), "{said}");
}

#[workflow(name = "testing-draw")]
async fn draw(ctx: Ctx) -> Result<usize> {
    static DRAW_COUNT: AtomicU64 = AtomicU64::new(100);
    let drawn = || async { Ok(format!("{}{}", "x".repeat(90), DRAW_COUNT.fetch_add(1, Ordering::Relaxed))) };
    Ok(ctx.step("draw", drawn).await?.len())
}

#[test]
fn a_crash_that_changes_the_end_of_a_long_value_is_told() {
    let said = panic_of(|| crash_everywhere(draw, ()));
    assert!(said.contains("changes what is recorded:"), "{said}");
    assert!(said.ends_with("\n  entry 2: it differs from character 94 on: `0\"` and `2\"`"), "{said}");
}

#[workflow(name = "testing-payer")]
async fn payer(ctx: Ctx, name: String) -> Result<()> {
    static CALL_COUNT: AtomicU64 = AtomicU64::new(1);
    let input = format!("{name}{}", CALL_COUNT.fetch_add(1, Ordering::Relaxed));
    ctx.step("pay", || async { Ok(()) }).input(&input).await
}

#[test]
fn a_crash_that_changes_the_input_of_a_step_is_told() {
    let said = panic_of(|| crash_everywhere(payer, "ann".to_owned()));
    assert!(said.ends_with("\n  entry 2: its input is `\"ann1\"` and `\"ann3\"`"), "{said}");
    let said = panic_of(|| crash_everywhere(payer, "x".repeat(90)));
    assert!(said.contains("\n  entry 2: its input differs beyond the recorded beginning `\"xxx"), "{said}");
}

/// Returns the milliseconds that have passed after each of its operations.
#[workflow(name = "testing-times")]
async fn times(ctx: Ctx) -> Result<Vec<u128>> {
    let began_at = ctx.now();
    let passed = || ctx.now().since(began_at).as_millis();
    let mut all = vec![];
    ctx.step("one", || async { Ok(()) }).await?;
    all.push(ctx.step("note", || async { Ok(passed()) }).input(&passed()).await?);
    ctx.sleep(secs(5)).await?;
    all.push(passed());
    let step = ctx.step("fail", || async { Err::<(), _>(Error::new("no")) });
    step.retry(Retry::fixed(secs(2)).max_attempts(3).jitter(0.5)).await.unwrap_err();
    all.push(passed());
    let (_, both) = join!(ctx.run(napper, 7), ctx.recv::<u32>("never").timeout(secs(9)));
    all.push(passed());
    both.unwrap_err();
    ctx.run(double_task, 4).await?;
    all.push(passed());
    Ok(all)
}

#[task(name = "testing-double-task")]
async fn double_task(number: u32) -> Result<u32> {
    Ok(number * 2)
}

#[test]
fn a_crash_costs_no_time() {
    let passed = crash_everywhere(times, ()).result.unwrap();
    assert_eq!((passed[0], passed[1], passed[4] - passed[2]), (0, 5_000, 9_000));
}

/// Returns the same map each time, in another order.
fn counts() -> HashMap<String, u32> {
    (0..20).map(|count| (count.to_string(), count)).collect()
}

#[task(name = "testing-sum")]
async fn sum(counts: HashMap<String, u32>) -> Result<u32> {
    Ok(counts.into_values().sum())
}

/// Has a map wherever a value can be.
#[workflow(name = "testing-shuffled")]
async fn shuffled(
    ctx: Ctx,
    (is_failing, given): (bool, Option<HashMap<String, u32>>),
) -> Result<HashMap<String, u32>> {
    let Some(given) = given else { return ctx.continue_as_new((is_failing, Some(counts()))).await };
    ctx.step("count", || async { Ok(counts()) }).input(&given).await?;
    ctx.run(sum, given).await?;
    match is_failing {
        true => ctx.step("fail", || async { Err(Error::typed(counts()).into_fatal()) }).await,
        false => Ok(counts()),
    }
}

#[test]
fn the_order_of_a_map_is_not_compared() {
    assert_eq!(crash_everywhere(shuffled, (false, None)).result.unwrap(), counts());
    crash_everywhere(shuffled, (true, None)).result.unwrap_err();
    for is_failing in [false, true] {
        let history = run(async |abide: Abide| {
            let _ = abide.run(shuffled, (is_failing, None)).id("v-1").await;
            exported(&abide).await
        });
        replay(history).assert_fits();
    }
}

/// Returns the end of a workflow.
type End = fn() -> Result<String>;

/// The end that a build has.
struct Ends(End);

#[workflow(name = "testing-ends")]
async fn ends(ctx: Ctx) -> Result<String> {
    ctx.step("one", || async { Ok(()) }).await?;
    (ctx.state::<Ends>().0)()
}

#[workflow]
async fn naps(ctx: Ctx, _: ()) -> Result<u32> {
    ctx.sleep(secs(100)).named("nap").await?;
    ctx.recv::<u32>("go").timeout(hours(1)).await
}

#[workflow]
async fn sleeps(ctx: Ctx, pause: std::time::Duration) -> Result<()> {
    ctx.sleep(pause).await
}

/// The code did not make that end, and its open timers may fire in the replay.
#[test]
fn the_end_of_what_was_terminated_is_not_compared() {
    for pause in [secs(1), secs(200)] {
        let history = run(async move |abide: Abide| {
            let handle = abide.start(naps, ()).id("v-1").await.unwrap();
            abide.run(sleeps, pause).await.unwrap();
            handle.terminate("enough").await.unwrap();
            handle.result().await.unwrap_err();
            exported(&abide).await
        });
        replay(history).assert_fits();
    }
}

#[workflow]
async fn tidies_up(ctx: Ctx, _: ()) -> Result<u32> {
    let _: Result<u32> = ctx.recv("go").await;
    ctx.shield(async { ctx.sleep(hours(1)).named("tidy up").await }).await?;
    Ok(7)
}

/// Its code saw the cancellation, and was still busy when somebody lost patience.
#[test]
fn the_end_of_what_was_cancelled_and_then_terminated_is_not_compared() {
    for reason in ["enough", ""] {
        let history = run(async move |abide: Abide| {
            let handle = abide.start(tidies_up, ()).id("v-1").await.unwrap();
            abide.run(sleeps, secs(1)).await.unwrap();
            handle.cancel("").await.unwrap();
            abide.run(sleeps, secs(1)).await.unwrap();
            handle.terminate(reason).await.unwrap();
            handle.result().await.unwrap_err();
            exported(&abide).await
        });
        replay(history).assert_fits();
    }
}

#[derive(Clone, Copy)]
enum Reaction {
    LetThrough,
    Complete,
    PatchAndComplete,
}

#[workflow]
async fn reacts(ctx: Ctx, _: ()) -> Result<u32> {
    let received: Result<u32> = ctx.recv("go").await;
    match ctx.state::<Reaction>() {
        Reaction::LetThrough => received,
        Reaction::Complete => Ok(7),
        Reaction::PatchAndComplete => Ok(if ctx.patched("new") { 8 } else { 7 }),
    }
}

/// The words of the end say whether the code let its cancellation through.
#[test]
fn an_end_by_cancellation_is_compared_unless_it_was_a_terminate() {
    let history = |reaction: Reaction, is_terminated: bool| {
        Test::new().state(reaction).run(async move |abide: Abide| {
            let handle = abide.start(reacts, ()).id("v-1").await.unwrap();
            abide.run(sleeps, secs(1)).await.unwrap();
            let terminate = async {
                if is_terminated {
                    handle.terminate("second").await.unwrap();
                }
            };
            let (cancelled, ()) = join!(handle.cancel("first").into_future(), terminate);
            cancelled.unwrap();
            handle.result().await.unwrap_err();
            exported(&abide).await
        })
    };
    let replayed = |history: &str, reaction| Test::new().state(reaction).replay(history).differs;
    let through = history(Reaction::LetThrough, false);
    assert_eq!(replayed(&through, Reaction::LetThrough), None);
    for reaction in [Reaction::Complete, Reaction::PatchAndComplete] {
        let differs = replayed(&through, reaction).expect("it completes");
        assert!(differs.starts_with("it was recorded as cancelled, and is completed: "), "{differs}");
    }
    assert_eq!(replayed(&history(Reaction::Complete, true), Reaction::Complete), None);
}

#[derive(Clone, Copy)]
struct Breaks(Option<End>);

#[workflow]
async fn breaks(ctx: Ctx, _: ()) -> Result<String> {
    ctx.step("a", || async { Ok(()) }).await?;
    match ctx.state::<Breaks>().0 {
        Some(end) => end(),
        None => ctx.recv("go").await,
    }
}

#[test]
fn a_replay_tells_of_code_that_ends_where_it_went_on() {
    let history = Test::new().state(Breaks(None)).run(async |abide: Abide| {
        abide.start(breaks, ()).id("v-1").await.unwrap();
        abide.run(sleeps, secs(1)).await.unwrap();
        exported(&abide).await
    });
    let replayed = |end: Option<End>| Test::new().state(Breaks(end)).replay(&history);
    let unchanged = replayed(None);
    assert_eq!((unchanged.fits(), unchanged.goes_on.as_deref()), (true, Some("signal \"go\"")));
    let early = replayed(Some(|| Ok("early".to_owned())));
    assert_eq!((early.fits(), early.goes_on.as_deref()), (true, Some("its end, completed: \"early\"")));
    for end in [|| Err(Error::new("no")), || panic!("no")] as [End; 2] {
        let differs = replayed(Some(end)).differs.expect("it fails");
        assert!(differs.starts_with("it was recorded as not ended, and is failed: "), "{differs}");
    }
}

#[workflow]
async fn fails_at_once(_ctx: Ctx, _: ()) -> Result<()> {
    Err(Error::new("no"))
}

/// Nothing shows that its code had something else to do.
#[test]
fn code_that_fails_where_no_outcome_was_recorded_fits() {
    let history = run(async |abide: Abide| {
        abide.start(fails_at_once, ()).id("v-1").delay(hours(1)).await.unwrap();
        exported(&abide).await
    });
    let found = replay(history);
    assert!(found.fits(), "{found}");
    let next = found.goes_on.unwrap();
    assert!(next.starts_with("its end, failed: no"), "{next}");
}

struct IsMended(bool);

#[workflow]
async fn mended(ctx: Ctx, _: ()) -> Result<f64> {
    Ok(if ctx.state::<IsMended>().0 { 7.0 } else { f64::NAN })
}

/// Nobody could show the deadline to its code.
#[test]
fn a_deadline_that_passed_during_a_block_is_not_compared() {
    let history = Test::new().state(IsMended(false)).run(async |abide: Abide| {
        let handle = abide.start(mended, ()).id("v-1").deadline(secs(60)).await.unwrap();
        abide.run(sleeps, hours(1)).await.unwrap();
        let error = handle.result().await.unwrap_err();
        assert!(error.to_string().contains("the deadline"), "{error}");
        exported(&abide).await
    });
    Test::new().state(IsMended(true)).replay(history).assert_fits();
}

#[test]
fn a_replay_compares_the_whole_end() {
    let replayed = |before: End, after: End| {
        let history = Test::new().state(Ends(before)).run(async |abide: Abide| {
            let _ = abide.run(ends, ()).id("v-1").await;
            exported(&abide).await
        });
        Test::new().state(Ends(after)).replay(history).differs
    };
    let long: [End; 2] = [|| Ok("x".repeat(90) + "1"), || Ok("x".repeat(90) + "2")];
    assert_eq!(replayed(long[0], long[0]), None);
    let differs = replayed(long[0], long[1]).unwrap();
    assert!(differs.ends_with("; it differs from character 92 on: `1\"` and `2\"`"), "{differs}");
    let same: End = || Err(Error::new("no"));
    // Its line is another one.
    assert_eq!(replayed(same, || Err(Error::new("no"))), None);
    let rows: [(End, End, &str); 5] = [
        (
            || Err(anyhow::anyhow!("reset").context("no answer").into()),
            || Err(anyhow::anyhow!("refused").context("no answer").into()),
            "it was recorded as failed: no answer: reset, and is failed: no answer: refused",
        ),
        (same, || Err(Error::new("yes")), "it was recorded as failed: no, and is failed: yes"),
        (same, || Err(Error::fatal("no")), "; its kind is error and fatal"),
        (
            same,
            || Err(std::io::Error::other("no").into()),
            "; its type is abide::Error and std::io::error::Error",
        ),
        (
            || Err(Error::typed("x".repeat(90) + "1")),
            || Err(Error::typed("x".repeat(90) + "2")),
            "; its value differs from character 92 on: `1\"` and `2\"`",
        ),
    ];
    for (before, after, expected) in rows {
        let differs = replayed(before, after).unwrap();
        assert!(differs.ends_with(expected), "{differs}");
    }
}

#[test]
fn a_workflow_that_waits_for_what_never_comes_is_told() {
    let said = panic_of(|| crash_everywhere(pair, 5));
    assert!(said.contains("is waiting for signal \"bonus\""), "{said}");
}

/// The code as it was, and as it is after several changes. Its tests register each version under
/// the same name.
mod versions {
    use super::*;

    #[workflow(name = "testing-versioned")]
    pub(crate) async fn first(ctx: Ctx, amount: u64) -> Result<u64> {
        let charged: u64 = ctx.step("charge", || async { Ok(amount) }).await?;
        ctx.sleep(days(1)).await?;
        let shipped: u64 = ctx.step("ship", || async { Ok(charged + 1) }).await?;
        ctx.recv::<u64>("approval").await?;
        Ok(shipped)
    }

    macro_rules! version {
        ($module:ident, $ctx:ident, $body:block) => {
            pub(crate) mod $module {
                use super::*;

                #[derive(Clone, Copy)]
                pub(crate) struct Version;

                impl abide::Code for Version {
                    type Input = u64;
                    type Output = u64;
                    const NAME: &'static str = "testing-versioned";
                    const KIND: abide::Kind = abide::Kind::Workflow;
                    const STRICT: bool = false;

                    async fn call($ctx: Ctx, _amount: u64) -> Result<u64> $body
                }

                impl abide::Workflow for Version {}
            }
        };
    }

    version!(renamed, ctx, { ctx.step("pay", || async { panic!("a replay runs no closure") }).await });

    version!(retyped, ctx, {
        let _: String = ctx.step("charge", || async { panic!("a replay runs no closure") }).await?;
        Ok(0)
    });

    // Leaves a step whose attempt has failed.
    version!(impatient, ctx, {
        let charge = ctx.step("charge", || async { Err::<u64, _>(Error::new("declined")) });
        tokio::select! {
            charged = charge.retry(Retry::fixed(days(9)).max_attempts(2)) => charged,
            slept = ctx.sleep(days(1)) => {
                slept?;
                ctx.recv("approval").await
            }
        }
    });

    version!(longer, ctx, {
        let charged: u64 = ctx.step("charge", || async { panic!("a replay runs no closure") }).await?;
        ctx.sleep(days(1)).await?;
        let shipped: u64 = ctx.step("ship", || async { panic!("a replay runs no closure") }).await?;
        ctx.recv::<u64>("approval").await?;
        let extra: u64 = ctx.step("extra", || async { panic!("a replay runs no closure") }).await?;
        Ok(charged + shipped + extra)
    });
}

/// Returns the history of the first version, recorded after `approval` or before it.
fn history(is_approved: bool) -> String {
    Test::new().run(async |abide: Abide| {
        let handle = abide.start(versions::first, 20).id("v-1").await.unwrap();
        if is_approved {
            handle.signal("approval", &1).await.unwrap();
            assert_eq!(handle.result().await.unwrap(), 21);
        } else {
            // This run sleeps longer, so "v-1" is past its own sleep when it ends.
            let longer = abide.run(sleeper, 2).await;
            longer.unwrap();
        }
        exported(&abide).await
    })
}

/// Returns the history of a version two days after its start.
fn history_of<W: Workflow<Input = u64, Output = u64> + Copy>(version: W) -> String {
    Test::new().workflow(version).run(async |abide: Abide| {
        abide.start(version, 20).id("v-1").await.unwrap();
        abide.run(sleeper, 2).await.unwrap();
        exported(&abide).await
    })
}

async fn exported(abide: &Abide) -> String {
    let address = Address { namespace: Namespace::default(), id: ExecutionId::new("v-1").unwrap() };
    let store = abide::testing::store(abide);
    History::of(&abide_store::export(&*store, &address).await.unwrap().unwrap()).unwrap().to_string()
}

#[workflow(name = "testing-sleeper")]
async fn sleeper(ctx: Ctx, count: u64) -> Result<()> {
    ctx.sleep(days(count)).await
}

#[test]
fn unchanged_code_fits_what_it_recorded() {
    let ended = replay(history(true));
    assert_eq!(ended, Replay::default());
    assert_eq!(ended.to_string(), "it fits");
    let under_way = replay(history(false));
    under_way.assert_fits();
    assert_eq!(under_way.to_string(), "it fits; it goes on with signal \"approval\"");
}

#[test]
fn a_history_may_be_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("v-1.json");
    std::fs::write(&file, history(true)).unwrap();
    replay(file.to_str().unwrap()).assert_fits();
}

#[test]
fn a_renamed_step_leaves_its_entry_unused() {
    let found = Test::new().workflow(versions::renamed::Version).replay(history(false));
    assert!(!found.fits());
    assert_eq!(found.unused.first().unwrap(), "step-recorded step \"charge\": 20");
    assert_eq!(found.goes_on.as_deref(), Some("step \"pay\""));
}

/// The first attempt has failed, and the second has not been made.
#[test]
fn an_operation_that_failed_before_and_is_left_out_is_unused() {
    let history = history_of(versions::impatient::Version);
    let found = Test::new().workflow(versions::renamed::Version).replay(&history);
    assert_eq!(found.unused.first().unwrap(), "attempt-failed step \"charge\", attempt 1: declined");
    // Code that asks for it and leaves it has used it.
    Test::new().workflow(versions::impatient::Version).replay(&history).assert_fits();
}

#[test]
fn a_result_of_another_type_is_told_as_what_blocks() {
    let found = Test::new().workflow(versions::retyped::Version).replay(history(false));
    assert!(found.blocked.as_ref().unwrap().contains("the recorded result of step \"charge\""), "{found}");
    let said = panic_of(|| found.assert_fits());
    assert!(said.starts_with("the code does not fit what was recorded: it is blocked: "), "{said}");
}

#[test]
fn new_code_at_the_end_fits_what_is_under_way_and_not_what_has_ended() {
    let found = Test::new().workflow(versions::longer::Version).replay(history(false));
    found.assert_fits();
    let found = Test::new().workflow(versions::longer::Version).replay(history(true));
    assert_eq!(found.goes_on.as_deref(), Some("step \"extra\""));
    assert_eq!(found.differs.as_deref(), Some("it was recorded as completed: 21, and does not end"));
    let mocked = Test::new().workflow(versions::longer::Version).mock_step("extra", |_| Ok(1));
    let found = mocked.replay(history(true));
    assert_eq!(found.differs.as_deref(), Some("it was recorded as completed: 21, and is completed: 42"));
}

#[test]
fn a_history_that_is_none_is_told() {
    let said = panic_of(|| replay("{}"));
    assert!(said.starts_with("this is no history of abide: "), "{said}");
    let said = panic_of(|| replay("/nowhere/at/all.json"));
    assert!(said.starts_with("/nowhere/at/all.json: "), "{said}");
}

/// The test that asks is named, not the code of abide.
#[test]
fn a_history_that_cannot_be_replayed_names_the_line_of_the_test() {
    abide_engine::panics::watch();
    let here = |history: &str| {
        let panic = catch_unwind(AssertUnwindSafe(|| Test::new().replay(history))).unwrap_err();
        let failure = abide_engine::panics::failure(panic);
        (failure.message.clone(), failure.at.clone().unwrap().site.unwrap())
    };
    let line = line!() - 4;
    let gone = history(false).replace("testing-versioned", "x");
    let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    let gone = gone.replace(&hex("testing-versioned"), &hex("testing-unversion"));
    for history in ["", " ", "{}", "/nowhere/at/all.json", &gone] {
        let (message, site) = here(history);
        assert_eq!(site, format!("{}:{line}", file!()), "{message}");
    }
    assert!(here("").0.starts_with("the history is empty: "), "{}", here("").0);
}

#[test]
fn a_history_of_a_workflow_that_is_not_registered_is_told() {
    let gone = history(false).replace("testing-versioned", "x");
    let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    let gone = gone.replace(&hex("testing-versioned"), &hex("testing-unversione"[..17].trim()));
    let said = panic_of(|| replay(gone));
    assert!(said.contains("no workflow \"testing-unversion\" is registered"), "{said}");
}

#[test]
fn a_mock_that_no_step_uses_fails_a_crash_test_too() {
    let told = panic_of(|| Test::new().mock_step("chrage", |_| Ok(7u64)).crash_everywhere(double, 1));
    assert!(told.contains("chrage"), "{told}");
}

#[workflow(name = "testing-restless")]
async fn restless(ctx: Ctx) -> Result<u64> {
    static CALL_COUNT: AtomicU64 = AtomicU64::new(0);
    ctx.step("first", || async { Ok(CALL_COUNT.fetch_add(1, Ordering::Relaxed)) }).await
}

/// The line of the attribute that follows.
const WAITING_FOR_NOTHING: u32 = line!() + 2;

#[abide::test]
#[should_panic]
async fn waiting_for_nothing(_abide: Abide) {
    pending::<()>().await;
}

/// Each failure with its line. The code of abide has other ones.
#[test]
fn a_test_that_fails_names_its_own_line() {
    abide_engine::panics::watch();
    let task = || Test::new().mock_task("testing-mial", |_: String| Ok(0));
    let step = || Test::new().mock_step("flakey", |_| Ok(0));
    let tests: [(u32, &dyn Fn()); 12] = [
        (line!(), &|| run(async |_| pending().await)),
        (line!(), &|| Test::new().run(async |_| pending().await)),
        (line!(), &|| task().run(async |_| ())),
        (line!(), &|| step().run(async |_| ())),
        (line!(), &|| drop(crash_everywhere(pair, 5))),
        (line!(), &|| drop(crash_everywhere(restless, ()))),
        (line!(), &|| drop(task().crash_everywhere(double, 1))),
        (line!(), &|| drop(step().crash_everywhere(double, 1))),
        (line!(), &|| drop(Test::new().signal("", &1))),
        (line!(), &|| drop(task().replay(history(false)))),
        (line!(), &|| Lab::run(7, async |_| pending().await)),
        (WAITING_FOR_NOTHING, &waiting_for_nothing),
    ];
    for (line, test) in tests {
        let panic = catch_unwind(AssertUnwindSafe(test)).unwrap_err();
        let failure = abide_engine::panics::failure(panic);
        let site = failure.at.clone().and_then(|at| at.site).unwrap_or_default();
        assert_eq!(site, format!("{}:{line}", file!()), "{failure}");
    }
}
