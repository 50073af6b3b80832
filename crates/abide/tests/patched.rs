//! `ctx.patched`: the executions that take a change of their code.

use std::future::Future;
use std::sync::{Arc, Mutex};

use abide::prelude::*;
use abide::testing::{Lab, Machine, Test};
use abide::{Builder, Workflow};
use abide_core::{Address, Entry, Event, ExecutionId, Namespace, OpKind, Phase};
use abide_store::{Read, Target};

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

async fn wait(ctx: &Ctx, name: &str) -> Result<()> {
    ctx.recv(name).await
}

macro_rules! version {
    ($name:ident, |$ctx:ident| $body:block) => {
        mod $name {
            use super::*;
            #[workflow(name = "flow")]
            pub(super) async fn plain($ctx: Ctx) -> Result<String> $body
            #[workflow(name = "flow", strict)]
            pub(super) async fn strict($ctx: Ctx) -> Result<String> $body
        }
    };
}

version!(old, |ctx| {
    let a = step(&ctx, "a").await?;
    wait(&ctx, "first").await?;
    let b = step(&ctx, "b").await?;
    wait(&ctx, "second").await?;
    Ok(format!("{a}{b}"))
});

// Asks after the first wait.
version!(new, |ctx| {
    let a = step(&ctx, "a").await?;
    wait(&ctx, "first").await?;
    let x = if ctx.patched("check") { step(&ctx, "x").await? } else { "-".to_owned() };
    let b = step(&ctx, "b").await?;
    wait(&ctx, "second").await?;
    let again = ctx.patched("check");
    Ok(format!("{a}{x}{b} {again}"))
});

// The same, with a new step before the question: when the code asks, nothing is left to replay.
version!(newer, |ctx| {
    let n = step(&ctx, "n").await?;
    let a = step(&ctx, "a").await?;
    wait(&ctx, "first").await?;
    let x = if ctx.patched("check") { step(&ctx, "x").await? } else { "-".to_owned() };
    let b = step(&ctx, "b").await?;
    wait(&ctx, "second").await?;
    Ok(format!("{n}{a}{x}{b}"))
});

version!(before_all, |ctx| {
    let n = if ctx.patched("early") { step(&ctx, "n").await? } else { "-".to_owned() };
    let a = step(&ctx, "a").await?;
    wait(&ctx, "first").await?;
    Ok(format!("{n}{a}"))
});

version!(joined, |ctx| {
    let one = async {
        let a = step(&ctx, "a").await?;
        wait(&ctx, "first").await?;
        Ok::<_, Error>(a)
    };
    let other = async {
        let x = if ctx.patched("check") { step(&ctx, "x").await? } else { "-".to_owned() };
        Ok::<_, Error>(x)
    };
    let (one, other) = futures_util::join!(one, other);
    Ok(format!("{}{}", one?, other?))
});

version!(in_a_step, |ctx| { ctx.step("s", || async { Ok(ctx.patched("check").to_string()) }).await });

#[task]
async fn in_a_task(ctx: Ctx) -> Result<bool> {
    Ok(ctx.patched("check"))
}

struct World {
    lab: Lab,
    ran: Ran,
}

impl World {
    async fn worker<W: Workflow + Copy>(&self, code: W) -> (Machine, Abide) {
        let with = |builder: Builder| builder.state(self.ran.clone()).session_ttl(secs(3)).workflow(code);
        self.lab.worker_with(with).await.unwrap()
    }

    async fn signal(&self, abide: &Abide, name: &str) {
        abide.handle::<String>("one").signal(name, &()).await.unwrap();
        self.lab.sleep(secs(10)).await;
    }

    async fn journal(&self) -> Vec<Entry> {
        let id = ExecutionId::new("one").unwrap();
        let target = Target::Address(Address { namespace: Namespace::default(), id });
        let read = Read { target, run: None, from: 1, limit: 100, with_inbox: false };
        let found = self.lab.store().read(read).await.unwrap().unwrap();
        if let Phase::Blocked { reason, .. } = found.execution.phase() {
            println!("blocked: {reason}");
        }
        found.journal.iter().map(|record| record.entry().unwrap()).collect()
    }

    /// Returns the recorded answers.
    async fn answers(&self) -> String {
        let answer = |entry: &Entry| match &entry.event {
            Event::StepRecorded(record) if record.op.kind == OpKind::Patch => {
                Some(format!("{}={}", record.op.name, record.outcome))
            }
            _ => None,
        };
        self.journal().await.iter().filter_map(answer).collect::<Vec<_>>().join(" ")
    }
}

fn world<F: Future>(body: impl FnOnce(World) -> F) -> F::Output {
    Lab::run(7, |lab| body(World { lab, ran: Ran::default() }))
}

/// Runs `old` until it has received `told` signals, crashes it, continues with `new` and sends the
/// rest, with a crash before each.
fn deployed<O, N>(old: O, told: usize, new: N) -> String
where
    O: Workflow<Input = (), Output = String> + Copy,
    N: Workflow<Input = (), Output = String> + Copy,
{
    world(|world| async move {
        let (mut machine, mut abide) = world.worker(old).await;
        abide.start(old, ()).id("one").await.unwrap();
        world.lab.sleep(secs(2)).await;
        for (index, name) in ["first", "second"].into_iter().enumerate() {
            if index >= told {
                world.lab.crash(machine);
                (machine, abide) = world.worker(new).await;
            }
            if world.journal().await.last().is_none_or(|entry| !entry.event.is_terminal()) {
                world.signal(&abide, name).await;
            }
        }
        let answers = world.answers().await;
        let result = abide.handle::<String>("one").result().await;
        let result = result.unwrap_or_else(|error| error.to_string());
        format!("{result}, ran [{}], {answers}", world.ran.take())
    })
}

#[test]
fn a_run_that_comes_to_the_place_takes_the_change() {
    let taken = "AXB true, ran [a x b], check=true";
    assert_eq!(deployed(new::plain, 2, new::plain), taken);
    assert_eq!(deployed(old::plain, 0, new::plain), taken);
    assert_eq!(deployed(old::strict, 0, new::strict), taken);
    assert_eq!(deployed(new::plain, 1, new::plain), taken);
    assert_eq!(deployed(new::strict, 1, new::strict), taken);
}

#[test]
fn a_run_that_was_past_the_place_does_not_take_the_change() {
    assert_eq!(deployed(old::plain, 1, new::plain), "A-B false, ran [a b], check=false");
    assert_eq!(deployed(old::strict, 1, new::strict), "A-B false, ran [a b], check=false");
    assert_eq!(deployed(old::plain, 0, before_all::plain), "-A, ran [a], early=false");
    // A new step before the question: every recorded operation is behind that step.
    assert_eq!(deployed(old::plain, 1, newer::plain), "NA-B, ran [a b n], check=false");
}

/// The answer is recorded: newer code that reaches the place in another way has the same answer.
#[test]
fn an_answer_stays_when_the_code_before_it_changes() {
    assert_eq!(deployed(new::plain, 1, newer::plain), "NAXB, ran [a x b n], check=true");
}

#[test]
fn what_goes_on_beside_it_decides_nothing_for_a_first_run() {
    assert_eq!(deployed(joined::plain, 0, joined::plain), "AX, ran [a x], check=true");
    assert_eq!(deployed(old::plain, 0, joined::plain), "A-, ran [a], check=false");
}

#[test]
fn a_pause_tells_nothing_of_how_far_the_code_came() {
    let result = world(|world| async move {
        let (machine, abide) = world.worker(old::plain).await;
        abide.start(old::plain, ()).id("one").await.unwrap();
        world.lab.sleep(secs(2)).await;
        let handle = abide.handle::<String>("one");
        handle.pause().await.unwrap();
        handle.resume().await.unwrap();
        world.lab.sleep(secs(2)).await;
        world.lab.crash(machine);
        let (_, abide) = world.worker(before_wait::plain).await;
        world.signal(&abide, "first").await;
        abide.handle::<String>("one").result().await.unwrap()
    });
    assert_eq!(result, "AX");
}

// Asks right after the last recorded operation.
version!(before_wait, |ctx| {
    let a = step(&ctx, "a").await?;
    let x = if ctx.patched("check") { step(&ctx, "x").await? } else { "-".to_owned() };
    wait(&ctx, "first").await?;
    Ok(format!("{a}{x}"))
});

/// A sleep and a timeout record that they have begun. A `recv` without a timeout records nothing
/// before its signal comes.
#[test]
fn a_recv_without_a_timeout_tells_nothing_of_how_far_the_code_came() {
    assert_eq!(deployed(old::plain, 0, before_wait::plain), "AX, ran [a x], check=true");
    assert_eq!(deployed(old_with_timeout::plain, 0, before_timeout::plain), "A-, ran [a], check=false");
    assert_eq!(deployed(old_with_sleep::plain, 0, before_sleep::plain), "A-, ran [a], check=false");
}

version!(old_with_timeout, |ctx| {
    let a = step(&ctx, "a").await?;
    ctx.recv::<()>("first").timeout(days(1)).await?;
    Ok(a)
});

version!(before_timeout, |ctx| {
    let a = step(&ctx, "a").await?;
    let x = if ctx.patched("check") { step(&ctx, "x").await? } else { "-".to_owned() };
    ctx.recv::<()>("first").timeout(days(1)).await?;
    Ok(format!("{a}{x}"))
});

version!(old_with_sleep, |ctx| {
    let a = step(&ctx, "a").await?;
    ctx.sleep(days(1)).await?;
    Ok(a)
});

version!(before_sleep, |ctx| {
    let a = step(&ctx, "a").await?;
    let x = if ctx.patched("check") { step(&ctx, "x").await? } else { "-".to_owned() };
    ctx.sleep(days(1)).await?;
    Ok(format!("{a}{x}"))
});

#[test]
fn a_change_is_taken_or_not_however_a_run_crashes() {
    let survived = Test::new().workflow(old::plain).crash_everywhere(patched_twice, ());
    assert_eq!(survived.result.unwrap(), "1 2");
}

#[workflow]
async fn patched_twice(ctx: Ctx) -> Result<String> {
    let one: u32 = match ctx.patched("one") {
        true => ctx.step("a", || async { Ok(1) }).await?,
        false => 0,
    };
    let two: u32 = match ctx.patched("two") {
        true => ctx.step("b", || async { Ok(2) }).await?,
        false => 0,
    };
    Ok(format!("{one} {two}"))
}

#[test]
fn no_change_is_asked_about_inside_of_a_step_or_task() {
    world(|world| async move {
        let (_, abide) = world.worker(in_a_step::plain).await;
        let error = abide.run(in_a_step::plain, ()).await.unwrap_err().to_string();
        let is_named = error.contains(r#"patched "check" (at "#) && error.contains(file!());
        assert!(is_named && error.contains(r#") is used inside step "s""#), "{error}");
        let error = abide.run(in_a_task, ()).await.unwrap_err().to_string();
        assert!(error.contains(r#"patched "check" needs a workflow: a task has no journal"#), "{error}");
    });
}

#[workflow(name = "flow")]
async fn patched_often(ctx: Ctx, count: u32) -> Result<u32> {
    Ok((0..count).map(|nth| u32::from(ctx.patched(&format!("change-{nth}")))).sum())
}

#[test]
fn a_run_has_at_most_patch_count_max_answers() {
    world(|world| async move {
        let (_, abide) = world.worker(patched_often).await;
        assert_eq!(abide.run(patched_often, 128).await.unwrap(), 128);
        let error = abide.run(patched_often, 129).await.unwrap_err();
        assert!(matches!(error, ClientError::Blocked { .. }), "{error:?}");
        let said = "the run has reached the limit patch_count_max: at most 128 changes";
        assert!(error.to_string().contains(said), "{error}");
    });
}

/// Asks in each of its runs, and continues as new after the first.
mod continued {
    use super::*;

    #[workflow(name = "flow")]
    pub(super) async fn old(ctx: Ctx, before: String) -> Result<String> {
        step(&ctx, "a").await?;
        wait(&ctx, "first").await?;
        if before.is_empty() {
            return ctx.continue_as_new("old ").await;
        }
        Ok(before)
    }

    #[workflow(name = "flow")]
    pub(super) async fn new(ctx: Ctx, before: String) -> Result<String> {
        let is_taken = ctx.patched("check");
        step(&ctx, "a").await?;
        wait(&ctx, "first").await?;
        if before.is_empty() {
            return ctx.continue_as_new(format!("{is_taken} ")).await;
        }
        Ok(format!("{before}{is_taken}"))
    }
}

#[test]
fn the_next_run_answers_anew() {
    world(|world| async move {
        let (machine, abide) = world.worker(continued::old).await;
        abide.start(continued::old, String::new()).id("one").await.unwrap();
        world.lab.sleep(secs(2)).await;
        world.lab.crash(machine);
        let (_, abide) = world.worker(continued::new).await;
        world.signal(&abide, "first").await;
        assert_eq!(world.answers().await, "check=true", "of the second run");
        world.signal(&abide, "first").await;
        assert_eq!(abide.handle::<String>("one").result().await.unwrap(), "false true");
    });
}

/// Fails after a signal, before the change.
mod failing {
    use super::*;

    #[workflow(name = "flow")]
    pub(super) async fn old(ctx: Ctx) -> Result<String> {
        step(&ctx, "a").await?;
        wait(&ctx, "first").await?;
        Err(Error::new("not yet"))
    }

    #[workflow(name = "flow")]
    pub(super) async fn new(ctx: Ctx) -> Result<String> {
        let is_early = ctx.patched("early");
        step(&ctx, "a").await?;
        wait(&ctx, "first").await?;
        let is_late = ctx.patched("late");
        step(&ctx, "b").await?;
        Ok(format!("{is_early} {is_late}"))
    }
}

/// A retry begins with an empty journal: the run is past no place.
#[test]
fn a_retry_answers_anew() {
    world(|world| async move {
        let (machine, abide) = world.worker(failing::old).await;
        abide.start(failing::old, ()).id("one").await.unwrap();
        world.signal(&abide, "first").await;
        assert_eq!(abide.handle::<String>("one").status().await.unwrap(), Status::Failed);
        world.lab.crash(machine);
        let (_, abide) = world.worker(failing::new).await;
        let handle = abide.handle::<String>("one");
        handle.retry().await.unwrap();
        world.signal(&abide, "first").await;
        assert_eq!(handle.result().await.unwrap(), "true true");
        assert_eq!(world.answers().await, "early=true late=true");
    });
}
