//! Executions that are under way when their code changes.

use std::sync::{Arc, Mutex};

use abide::prelude::*;
use abide::testing::Lab;
use abide::{Builder, Workflow};
use abide_core::{Address, Body, Bounds, By, Event, ExecutionId, Message, MessageId, Namespace, Phase};
use abide_store::faults::{Fault, FaultyStore};
use abide_store::memory::MemoryStore;
use abide_store::{Clock, Read, Store, Submit, Target};

/// The steps that ran, in order.
#[derive(Clone, Default)]
struct Ran(Arc<Mutex<Vec<String>>>);

impl Ran {
    fn take(&self) -> String {
        std::mem::take(&mut *self.0.lock().unwrap()).join(" ")
    }
}

async fn step(ctx: &Ctx, name: &str) -> Result<String> {
    let ran = ctx.state::<Ran>();
    ctx.step(name, || async {
        ran.0.lock().unwrap().push(name.to_owned());
        Ok(name.to_uppercase())
    })
    .await
}

async fn go(ctx: &Ctx) -> Result<()> {
    ctx.recv("go").await
}

#[workflow(name = "flow")]
async fn original(ctx: Ctx) -> Result<String> {
    let (a, b) = (step(&ctx, "a").await?, step(&ctx, "b").await?);
    go(&ctx).await?;
    Ok(format!("{a}{b}{}", step(&ctx, "c").await?))
}

#[workflow(name = "flow")]
async fn added(ctx: Ctx) -> Result<String> {
    let (a, x, b) = (step(&ctx, "a").await?, step(&ctx, "x").await?, step(&ctx, "b").await?);
    go(&ctx).await?;
    Ok(format!("{a}{x}{b}{}", step(&ctx, "c").await?))
}

#[workflow(name = "flow")]
async fn removed(ctx: Ctx) -> Result<String> {
    let a = step(&ctx, "a").await?;
    go(&ctx).await?;
    Ok(format!("{a}{}", step(&ctx, "c").await?))
}

#[workflow(name = "flow")]
async fn repeated(ctx: Ctx) -> Result<String> {
    for _ in 0..3 {
        step(&ctx, "a").await?;
    }
    go(&ctx).await?;
    Ok(String::new())
}

/// The number of steps that fills more than two pages of a journal.
const LONG: usize = 3_000;

#[workflow(name = "flow")]
async fn long(ctx: Ctx) -> Result<String> {
    step(&ctx, "first").await?;
    for _ in 0..LONG {
        step(&ctx, "middle").await?;
    }
    step(&ctx, "last").await?;
    go(&ctx).await?;
    Ok("done".to_owned())
}

#[workflow(name = "flow")]
async fn long_without_ends(ctx: Ctx) -> Result<String> {
    for _ in 0..LONG {
        step(&ctx, "middle").await?;
    }
    go(&ctx).await?;
    Ok("done".to_owned())
}

#[workflow(name = "flow")]
async fn shortened(ctx: Ctx) -> Result<String> {
    // The last poll belongs to the replay, and this workflow wakes itself in it.
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let send = async { Ok::<_, Error>(sender.send(step(&ctx, "a").await?)) };
    let (sent, received) = futures_util::join!(send, receiver);
    sent?.map_err(Error::new)?;
    Ok(received?)
}

#[workflow(name = "flow")]
async fn reordered(ctx: Ctx) -> Result<String> {
    let (b, a) = (step(&ctx, "b").await?, step(&ctx, "a").await?);
    go(&ctx).await?;
    Ok(format!("{b}{a}{}", step(&ctx, "c").await?))
}

#[workflow(name = "flow")]
async fn renamed(ctx: Ctx) -> Result<String> {
    let (a, b) = (step(&ctx, "a").await?, step(&ctx, "bee").await?);
    go(&ctx).await?;
    Ok(format!("{a}{b}{}", step(&ctx, "c").await?))
}

#[workflow(name = "flow")]
async fn retyped(ctx: Ctx) -> Result<String> {
    let a = step(&ctx, "a").await?;
    let b: u64 = ctx.step("b", || async { Ok(1) }).await?;
    go(&ctx).await?;
    Ok(format!("{a}{b}"))
}

#[workflow(name = "flow")]
async fn rekinded(ctx: Ctx) -> Result<String> {
    let a = step(&ctx, "a").await?;
    let b: String = ctx.sqlite("b", |_| Ok("B".to_owned())).await?;
    go(&ctx).await?;
    Ok(format!("{a}{b}"))
}

#[workflow(name = "flow", strict)]
async fn strictly_reordered(ctx: Ctx) -> Result<String> {
    let (b, a) = (step(&ctx, "b").await?, step(&ctx, "a").await?);
    go(&ctx).await?;
    Ok(format!("{b}{a}"))
}

#[workflow(name = "flow", strict)]
async fn strictly_the_same(ctx: Ctx) -> Result<String> {
    let (a, b) = (step(&ctx, "a").await?, step(&ctx, "b").await?);
    go(&ctx).await?;
    Ok(format!("{a}{b}"))
}

/// Two timers are due together, and the first one decides.
#[workflow(name = "flow", strict)]
async fn strictly_the_first_timer(ctx: Ctx) -> Result<String> {
    let first = select! {
        slept = ctx.sleep(ms(500)).named("x") => slept.map(|()| "X"),
        slept = ctx.sleep(ms(500)).named("y") => slept.map(|()| "Y"),
    };
    go(&ctx).await?;
    first.map(str::to_owned)
}

/// Two steps end together, and the first one decides.
#[workflow(name = "flow", strict)]
async fn strictly_the_first_step(ctx: Ctx) -> Result<String> {
    let first = select! {
        a = step(&ctx, "a") => a,
        b = step(&ctx, "b") => b,
    };
    go(&ctx).await?;
    first
}

#[workflow(name = "flow", strict)]
async fn strictly_patient(ctx: Ctx) -> Result<String> {
    let a = step(&ctx, "a").await?;
    select! {
        went = go(&ctx) => went?,
        slept = ctx.sleep(days(300)) => slept?,
    }
    Ok(a)
}

#[workflow(name = "flow", strict)]
async fn strictly_without_its_timer(ctx: Ctx) -> Result<String> {
    let a = step(&ctx, "a").await?;
    go(&ctx).await?;
    Ok(a)
}

#[workflow(name = "flow")]
async fn with_other_input(ctx: Ctx) -> Result<String> {
    let a: String = ctx.step("a", || async { Ok("A".to_owned()) }).input(&"other").await?;
    go(&ctx).await?;
    Ok(a)
}

#[workflow(name = "flow")]
async fn with_input(ctx: Ctx) -> Result<String> {
    let a: String = ctx.step("a", || async { Ok("A".to_owned()) }).input(&"one").await?;
    go(&ctx).await?;
    Ok(a)
}

#[workflow(name = "flow")]
async fn with_another_input_type(_ctx: Ctx, n: u64) -> Result<String> {
    Ok(n.to_string())
}

#[workflow]
async fn helper(ctx: Ctx) -> Result<String> {
    ctx.recv("never").await
}

#[workflow(name = "flow")]
async fn giving_up_a_child(ctx: Ctx) -> Result<String> {
    select! { _ = ctx.run(helper, ()) => (), _ = ctx.sleep(ms(100)) => () }
    go(&ctx).await?;
    Ok(String::new())
}

#[workflow(name = "flow")]
async fn waiting_for_that_child(ctx: Ctx) -> Result<String> {
    let told = ctx.run(helper, ()).await;
    go(&ctx).await?;
    Ok(told.unwrap_or_else(|error| error.to_string()))
}

/// Runs `old` until it waits, takes its machine away and goes on with `new`. Returns the steps that
/// ran then, and the result or the reason for the block.
fn changed<O, N>(old: O, new: N) -> String
where
    O: Workflow<Input = (), Output = String> + Copy,
    N: Workflow<Output = String> + Copy,
{
    changed_on(|clock| MemoryStore::new(clock, Bounds::default()), old, new)
}

fn changed_on<O, N>(make: impl FnOnce(Arc<dyn Clock>) -> Arc<dyn Store>, old: O, new: N) -> String
where
    O: Workflow<Input = (), Output = String> + Copy,
    N: Workflow<Output = String> + Copy,
{
    Lab::run_on(7, make, |lab| async move {
        let ran = Ran::default();
        let with = |builder: Builder| builder.state(ran.clone()).session_ttl(secs(3));
        let (machine, abide) = lab.worker_with(|builder| with(builder).workflow(old)).await.unwrap();
        let handle = abide.start(old, ()).id("one").await.unwrap();
        lab.sleep(secs(2)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Waiting);
        lab.crash(machine);
        ran.take();
        let (_, abide) = lab.worker_with(|builder| with(builder).workflow(new)).await.unwrap();
        let handle = abide.handle::<String>("one");
        handle.signal("go", &()).await.unwrap();
        lab.sleep(secs(10)).await;
        let status = handle.status().await.unwrap();
        format!("ran [{}], {status}: {}", ran.take(), end(&lab).await)
    })
}

/// Returns the result and the unused operations, or the reason for the block.
async fn end(lab: &Lab) -> String {
    let id = ExecutionId::new("one").unwrap();
    let target = Target::Address(Address { namespace: Namespace::default(), id });
    let read = |from| {
        lab.store().read(Read { target: target.clone(), run: None, from, limit: 1, with_inbox: false })
    };
    let found = read(1).await.unwrap().unwrap();
    if let Phase::Blocked { reason, .. } = found.execution.phase() {
        return reason.to_string();
    }
    let last = read(found.execution.entry_count()).await.unwrap().unwrap().journal.remove(0);
    let Event::Completed { result, unused } = last.entry().unwrap().event else { return format!("{last:?}") };
    let result: String = serde_json::from_slice(result.as_bytes()).unwrap();
    unused.iter().fold(result, |text, op| format!("{text}, unused {op}"))
}

#[test]
fn a_step_that_was_added_runs_and_the_rest_is_replayed() {
    assert_eq!(changed(original, added), "ran [x c], completed: AXBC");
}

#[test]
fn a_step_that_was_removed_is_listed_as_unused() {
    assert_eq!(changed(original, removed), r#"ran [c], completed: AC, unused step "b""#);
}

#[test]
fn uses_of_a_name_that_are_no_longer_made_are_listed_by_number() {
    assert_eq!(
        changed(repeated, original),
        r#"ran [b c], completed: ABC, unused step "a" #2, unused step "a" #3"#
    );
}

#[test]
fn what_is_unused_is_listed_however_far_back_it_lies() {
    // The engine reads passed pages again, and not every store answers at once.
    let slow = |clock| -> Arc<dyn Store> {
        let decide = |name| if name == "read" { Fault::Delay { poll_count: 3 } } else { Fault::None };
        FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), decide)
    };
    assert_eq!(
        changed_on(slow, long, long_without_ends),
        r#"ran [], completed: done, unused step "first", unused step "last""#
    );
}

#[test]
fn a_workflow_may_end_in_the_middle_of_its_replay() {
    assert_eq!(changed(original, shortened), r#"ran [], completed: A, unused step "b""#);
}

/// The child has ended, and earlier code that no longer wanted its answer has read it.
#[test]
fn a_child_that_was_given_up_gives_an_error_to_code_that_waits_for_it() {
    assert_eq!(
        changed(giving_up_a_child, waiting_for_that_child),
        r#"ran [], completed: child "one/1/helper/1" was given up before this code waited for it, unused timer "(sleep)""#
    );
}

#[test]
fn steps_that_were_reordered_are_replayed_by_name() {
    assert_eq!(changed(original, reordered), "ran [c], completed: BAC");
}

#[test]
fn a_step_that_was_renamed_runs_under_its_new_name() {
    assert_eq!(changed(original, renamed), r#"ran [bee c], completed: ABEEC, unused step "b""#);
}

#[test]
fn a_result_of_another_type_blocks_with_expected_and_found() {
    assert_eq!(
        changed(original, retyped),
        r#"ran [], blocked: the recorded result of step "b" cannot be read: expected u64, found "B" (invalid type: string "B", expected u64 at line 1 column 3)"#
    );
}

#[test]
fn a_step_that_became_a_transaction_blocks() {
    let told = r#"ran [], blocked: the code no longer matches its journal: expected step "b" (at "#;
    let found = changed(original, rekinded);
    assert!(found.starts_with(told) && found.contains(r#"), found transaction "b" (at "#), "{found}");
}

#[test]
fn a_strict_workflow_blocks_on_another_order() {
    let told = r#"ran [], blocked: the code no longer matches its journal: expected step "a" (at "#;
    let found = changed(strictly_the_same, strictly_reordered);
    assert!(found.starts_with(told) && found.contains(r#"), found step "b" (at "#), "{found}");
}

#[test]
fn a_strict_workflow_continues_unchanged() {
    assert_eq!(changed(strictly_the_same, strictly_the_same), "ran [], completed: AB");
}

#[test]
fn a_strict_workflow_may_give_up_what_came_second() {
    assert_eq!(changed(strictly_the_first_timer, strictly_the_first_timer), "ran [], completed: X");
    assert_eq!(
        changed(strictly_the_first_step, strictly_the_first_step),
        r#"ran [], completed: A, unused step "b""#
    );
}

#[test]
fn a_strict_workflow_blocks_when_nobody_asks_for_its_timer() {
    let told = r#"ran [], blocked: the code no longer matches its journal: expected timer "(sleep)" (at "#;
    let found = changed(strictly_patient, strictly_without_its_timer);
    assert!(found.starts_with(told) && found.contains(r#"), found signal "go" (at "#), "{found}");
    assert_eq!(changed(strictly_patient, strictly_patient), "ran [], completed: A");
}

#[test]
fn a_step_with_another_declared_input_blocks() {
    let told = r#"ran [], blocked: the code no longer matches its journal: step "a" was recorded with input "one", the code has "other" (recorded at "#;
    let found = changed(with_input, with_other_input);
    assert!(found.starts_with(told), "{found}");
    assert_eq!(changed(with_input, with_input), "ran [], completed: A");
}

#[test]
fn an_input_of_another_type_blocks() {
    assert_eq!(
        changed(original, with_another_input_type),
        r#"ran [], blocked: the input of workflow "flow" cannot be read: expected u64, found null (invalid type: null, expected u64 at line 1 column 4)"#
    );
}

fn with(builder: Builder, ran: &Ran) -> Builder {
    builder.state(ran.clone()).session_ttl(secs(3))
}

/// Leaves an execution blocked by code that does not match its journal, and no worker.
async fn block(lab: &Lab, ran: &Ran) {
    let (first, abide) = lab.worker_with(|builder| with(builder, ran).workflow(original)).await.unwrap();
    abide.start(original, ()).id("one").await.unwrap();
    lab.sleep(secs(2)).await;
    lab.crash(first);
    let (second, abide) = lab.worker_with(|builder| with(builder, ran).workflow(retyped)).await.unwrap();
    abide.handle::<String>("one").signal("go", &()).await.unwrap();
    lab.sleep(secs(10)).await;
    assert_eq!(abide.handle::<String>("one").status().await.unwrap(), Status::Blocked);
    lab.crash(second);
    ran.take();
}

#[test]
fn what_was_blocked_continues_after_a_fixed_deploy() {
    Lab::run(3, |lab| async move {
        let ran = Ran::default();
        block(&lab, &ran).await;
        let with = |builder: Builder| with(builder, &ran);
        let (_, abide) = lab.worker_with(|builder| with(builder).workflow(original)).await.unwrap();
        assert_eq!(abide.handle::<String>("one").result().await.unwrap(), "ABC");
        assert_eq!(ran.take(), "c");
    });
}

/// Two unblocks wait in the inbox while no worker runs, and the starting worker adds its own.
#[test]
fn several_unblocks_at_once_run_no_step_again() {
    Lab::run(3, |lab| async move {
        let ran = Ran::default();
        block(&lab, &ran).await;
        let with = |builder: Builder| with(builder, &ran);
        for id in ["u-1", "u-2"] {
            let to = Address { namespace: Namespace::default(), id: ExecutionId::new("one").unwrap() };
            let (id, by) = (MessageId::new(id), By("ann".into()));
            let messages = vec![Message::new(id, to, by, Body::Unblock { step: None })];
            lab.store().submit(Submit { messages, born_to: None, alone: true, stretch: None }).await.unwrap();
        }
        let (third, abide) = lab.worker_with(|builder| with(builder).workflow(retyped)).await.unwrap();
        lab.sleep(secs(10)).await;
        assert_eq!(abide.handle::<String>("one").status().await.unwrap(), Status::Blocked);
        assert_eq!(ran.take(), "");
        lab.crash(third);
        let (_, abide) = lab.worker_with(|builder| with(builder).workflow(original)).await.unwrap();
        assert_eq!(abide.handle::<String>("one").result().await.unwrap(), "ABC");
        assert_eq!(ran.take(), "c");
    });
}
