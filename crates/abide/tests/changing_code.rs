//! The table of `docs/guide/changing-code.md`: each change of the code is deployed while an
//! execution is under way.

use std::sync::{Arc, Mutex};

use abide::prelude::*;
use abide::testing::Lab;
use abide::{Builder, Workflow};
use abide_core::{Address, Event, ExecutionId, Namespace, Phase};
use abide_store::{Read, Target};

/// The steps that ran, in order.
#[derive(Clone, Default)]
struct Ran(Arc<Mutex<Vec<String>>>);

impl Ran {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

fn note(ctx: &Ctx, what: &str) {
    ctx.state::<Ran>().0.lock().unwrap().push(format!("{what:?}"));
}

async fn step(ctx: &Ctx, name: &str) -> Result<u64> {
    ctx.step(name, || async {
        note(ctx, name);
        Ok(7)
    })
    .await
}

async fn go(ctx: &Ctx) -> Result<String> {
    ctx.recv::<()>("go").await?;
    Ok("done".to_owned())
}

#[task]
async fn pay(ctx: Ctx, person: String) -> Result<u64> {
    note(&ctx, &format!("pay {person}"));
    Ok(1)
}

/// A version of the workflow, plain and strict.
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

version!(two_steps, |ctx| {
    step(&ctx, "a").await?;
    step(&ctx, "b").await?;
    go(&ctx).await
});
version!(first_added, |ctx| {
    step(&ctx, "x").await?;
    step(&ctx, "a").await?;
    step(&ctx, "b").await?;
    go(&ctx).await
});
version!(middle_added, |ctx| {
    step(&ctx, "a").await?;
    step(&ctx, "x").await?;
    step(&ctx, "b").await?;
    go(&ctx).await
});
version!(last_added, |ctx| {
    step(&ctx, "a").await?;
    step(&ctx, "b").await?;
    go(&ctx).await?;
    step(&ctx, "x").await?;
    Ok("done".to_owned())
});
version!(removed, |ctx| {
    step(&ctx, "a").await?;
    go(&ctx).await
});
version!(swapped, |ctx| {
    step(&ctx, "b").await?;
    step(&ctx, "a").await?;
    go(&ctx).await
});
version!(renamed, |ctx| {
    step(&ctx, "a").await?;
    step(&ctx, "c").await?;
    go(&ctx).await
});
version!(renamed_from, |ctx| {
    step(&ctx, "a").await?;
    let _: u64 = ctx.step("c", || async { Ok(1) }).renamed_from("b").await?;
    go(&ctx).await
});
version!(joined, |ctx| {
    let (a, b) = futures_util::join!(step(&ctx, "a"), step(&ctx, "b"));
    a?;
    b?;
    go(&ctx).await
});
version!(retyped, |ctx| {
    step(&ctx, "a").await?;
    let _: String = ctx.step("b", || async { Ok(String::new()) }).await?;
    go(&ctx).await
});
version!(upgraded, |ctx| {
    step(&ctx, "a").await?;
    let new = ctx.step("b", || async { Ok(String::new()) });
    let _: String = new.upgrade(|old: u64| Ok(old.to_string())).await?;
    go(&ctx).await
});
version!(transacted, |ctx| {
    step(&ctx, "a").await?;
    let _: u64 = ctx.sqlite("b", |_| Ok(7)).await?;
    go(&ctx).await
});
version!(blocking, |ctx| {
    step(&ctx, "a").await?;
    let _: u64 = ctx.blocking("b", || Ok(7)).await?;
    go(&ctx).await
});
version!(slept, |ctx| {
    step(&ctx, "a").await?;
    ctx.sleep(secs(1)).named("b").await?;
    go(&ctx).await
});
version!(retried, |ctx| {
    step(&ctx, "a").await?;
    let retry = Retry::fixed(secs(1)).max_attempts(9);
    let _: u64 = ctx.step("b", || async { Ok(7) }).retry(retry).await?;
    go(&ctx).await
});
version!(patched, |ctx| {
    step(&ctx, "a").await?;
    if ctx.patched("check") {
        step(&ctx, "x").await?;
    }
    step(&ctx, "b").await?;
    go(&ctx).await
});

version!(with_input, |ctx| {
    let _: u64 = ctx.step("a", || async { Ok(7) }).input(&"one").await?;
    go(&ctx).await
});
version!(with_other_input, |ctx| {
    let _: u64 = ctx.step("a", || async { Ok(7) }).input(&"two").await?;
    go(&ctx).await
});
version!(without_input, |ctx| {
    step(&ctx, "a").await?;
    go(&ctx).await
});

version!(child, |ctx| {
    ctx.run(pay, "ann".to_owned()).await?;
    go(&ctx).await
});
version!(other_child, |ctx| {
    ctx.run(pay, "bob".to_owned()).await?;
    go(&ctx).await
});
version!(two_children, |ctx| {
    ctx.run(pay, "bob".to_owned()).await?;
    ctx.run(pay, "ann".to_owned()).await?;
    go(&ctx).await
});
version!(keyed_child, |ctx| {
    ctx.run(pay, "ann".to_owned()).key("ann").await?;
    go(&ctx).await
});
version!(two_keyed_children, |ctx| {
    ctx.run(pay, "bob".to_owned()).key("bob").await?;
    ctx.run(pay, "ann".to_owned()).key("ann").await?;
    go(&ctx).await
});
version!(inline, |ctx| {
    step(&ctx, "pay").await?;
    go(&ctx).await
});

version!(one_sleep, |ctx| {
    ctx.sleep(secs(1)).await?;
    go(&ctx).await
});
version!(two_sleeps, |ctx| {
    ctx.sleep(hours(1)).await?;
    ctx.sleep(secs(1)).await?;
    go(&ctx).await
});
version!(named_sleep, |ctx| {
    ctx.sleep(secs(1)).named("rest").await?;
    go(&ctx).await
});
version!(longer_sleep, |ctx| {
    ctx.sleep(hours(1)).named("rest").await?;
    go(&ctx).await
});
version!(no_sleep, |ctx| { go(&ctx).await });

version!(told, |ctx| {
    let _: u64 = ctx.recv("told").await?;
    go(&ctx).await
});
version!(told_renamed, |ctx| {
    let _: u64 = ctx.recv("said").await?;
    go(&ctx).await
});
version!(told_renamed_from, |ctx| {
    let _: u64 = ctx.recv("said").renamed_from("told").await?;
    go(&ctx).await
});
version!(told_retyped, |ctx| {
    let _: String = ctx.recv("told").await?;
    go(&ctx).await
});

version!(hurried, |ctx| {
    ctx.recv::<()>("never").timeout(hours(1)).await.ok();
    go(&ctx).await
});
version!(patient, |ctx| {
    ctx.recv::<()>("never").await?;
    go(&ctx).await
});
version!(drawn, |ctx| {
    let kept: u64 = ctx.step("keep", || async { Ok(7) }).await?;
    let drawn = ctx.random();
    go(&ctx).await?;
    note(&ctx, &format!("{kept} {drawn}"));
    Ok("done".to_owned())
});
version!(drawn_before, |ctx| {
    let kept: u64 = ctx.step("keep", || async { Ok(8) }).await?;
    let (_trace, drawn) = (ctx.random(), ctx.random());
    go(&ctx).await?;
    note(&ctx, &format!("{kept} {drawn}"));
    Ok("done".to_owned())
});

version!(selected, |ctx| {
    let _: u64 = select! {
        a = ctx.step("a", || async { Ok(7) }) => a,
        _ = ctx.sleep(hours(9)) => Ok(0),
    }?;
    go(&ctx).await
});
version!(selected_otherwise, |ctx| {
    let _: u64 = select! {
        _ = ctx.sleep(hours(9)) => Ok(0),
        a = ctx.step("a", || async { Ok(7) }) => a,
    }?;
    go(&ctx).await
});

version!(next_as_number, |ctx| {
    match ctx.run_number() {
        1 => ctx.continue_as_new(()).await,
        _ => go(&ctx).await,
    }
});

mod next_as_text {
    use super::*;
    #[workflow(name = "flow")]
    pub(super) async fn plain(ctx: Ctx, _text: String) -> Result<String> {
        go(&ctx).await
    }
    #[workflow(name = "flow", strict)]
    pub(super) async fn strict(ctx: Ctx, _text: String) -> Result<String> {
        go(&ctx).await
    }
}

/// A workflow that only a worker which registers it has: no other code knows the old name of a
/// renamed workflow.
macro_rules! unlisted {
    ($name:ident, $registered:literal, $olds:expr) => {
        mod $name {
            use super::*;
            unlisted!(plain, $registered, $olds, false);
            unlisted!(strict, $registered, $olds, true);
        }
    };
    ($name:ident, $registered:literal, $olds:expr, $strict:literal) => {
        #[derive(Clone, Copy)]
        #[expect(non_camel_case_types, reason = "it is written as a function everywhere else")]
        pub(super) struct $name;
        impl abide::Code for $name {
            type Input = ();
            type Output = String;
            const NAME: &'static str = $registered;
            const RENAMED_FROM: &'static [&'static str] = $olds;
            const KIND: abide::Kind = abide::Kind::Workflow;
            const STRICT: bool = $strict;
            async fn call(ctx: Ctx, (): ()) -> Result<String> {
                go(&ctx).await
            }
        }
        impl Workflow for $name {}
    };
}

unlisted!(shop, "shop", &[]);
unlisted!(market, "market", &[]);
unlisted!(market_from_shop, "market", &["shop"]);

/// A row of the table, with its old and its new code.
struct Row {
    change: &'static str,
    run: fn() -> (String, String),
}

macro_rules! rows {
    ($($change:literal: $old:ident => $new:ident,)*) => {
        [$(Row {
            change: $change,
            run: || (deployed($old::plain, $new::plain), deployed($old::strict, $new::strict)),
        },)*]
    };
}

fn rows() -> Vec<Row> {
    rows! {
        "a step is added before all others": two_steps => first_added,
        "a step is added between others": two_steps => middle_added,
        "a step is added behind everything that is recorded": two_steps => last_added,
        "a step is removed": two_steps => removed,
        "two steps change places": two_steps => swapped,
        "a step is renamed": two_steps => renamed,
        "a step is renamed, with `.renamed_from(\"b\")`": two_steps => renamed_from,
        "steps in a row become a `join!`": two_steps => joined,
        "the steps of a `join!` are put in a row": joined => two_steps,
        "the arms of a `select!` change places": selected => selected_otherwise,
        "a step returns another type": two_steps => retyped,
        "a step returns another type, with `.upgrade(..)`": two_steps => upgraded,
        "a step becomes a transaction": two_steps => transacted,
        "a step becomes a blocking step": two_steps => blocking,
        "a step becomes a sleep of its name": two_steps => slept,
        "a step becomes a child": two_steps_pay => child,
        "a step has another retry policy": two_steps => retried,
        "a step has another `.input(..)`": with_input => with_other_input,
        "a step declares an input that it did not declare before": without_input => with_input,
        "a step no longer declares its input": with_input => without_input,
        "a step is added in `if ctx.patched(..)`": two_steps => patched,
        "a child has another input": child => other_child,
        "a child is added before another of its name": child => two_children,
        "a child is added before another of its name, each with a `.key(..)`": keyed_child => two_keyed_children,
        "a child becomes a step": child => inline,
        "a sleep is added before another one without a name": one_sleep => two_sleeps,
        "a sleep is removed": one_sleep => no_sleep,
        "a sleep that is over becomes longer": named_sleep => longer_sleep,
        "a `recv` is renamed": told => told_renamed,
        "a `recv` is renamed, with `.renamed_from(\"told\")`": told => told_renamed_from,
        "a signal that was received has another type": told => told_retyped,
        "a `recv` that waits loses its timeout": hurried => patient,
        "the workflow is renamed": shop => market,
        "the workflow is renamed, with `renamed_from = \"shop\"`": shop => market_from_shop,
        "the input of the next run has another type": next_as_number => next_as_text,
    }
    .into()
}

version!(two_steps_pay, |ctx| {
    step(&ctx, "pay").await?;
    go(&ctx).await
});

/// Runs `old` until it waits, crashes the machine and continues with `new`. Returns the outcome in
/// the words of the table.
fn deployed<O, N>(old: O, new: N) -> String
where
    O: Workflow<Input = (), Output = String> + Copy,
    N: Workflow<Output = String> + Copy,
{
    Lab::run(7, |lab| async move {
        let ran = Ran::default();
        let with = |builder: Builder, name: &str| {
            let builder = builder.state(ran.clone()).session_ttl(secs(3)).task(pay);
            // Several workflows have this name, so the builder has to choose one.
            if name == "flow" { builder } else { builder.workflow(no_sleep::plain) }
        };
        let (machine, abide) = lab.worker_with(|builder| with(builder, O::NAME).workflow(old)).await.unwrap();
        let handle = abide.start(old, ()).id("one").await.unwrap();
        handle.signal("told", &7).await.unwrap();
        lab.sleep(secs(3)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Waiting, "{}", handle.why().await.unwrap());
        lab.crash(machine);
        ran.take();
        let (_, abide) = lab.worker_with(|builder| with(builder, N::NAME).workflow(new)).await.unwrap();
        abide.handle::<String>("one").signal("go", &()).await.unwrap();
        lab.sleep(secs(10)).await;
        let end = end(&lab, &abide).await;
        let ran = ran.take();
        let ran = (!ran.is_empty()).then(|| format!("runs {}", ran.join(", ")));
        let told: Vec<_> = ran.into_iter().chain(end).collect();
        if told.is_empty() { "goes on".to_owned() } else { told.join("; ") }
    })
}

/// Returns the unused entries, the reason of the block, or the waits of the execution.
async fn end(lab: &Lab, abide: &Abide) -> Option<String> {
    let id = ExecutionId::new("one").unwrap();
    let target = Target::Address(Address { namespace: Namespace::default(), id });
    let read = |from| {
        lab.store().read(Read { target: target.clone(), run: None, from, limit: 1, with_inbox: false })
    };
    let found = read(1).await.unwrap().unwrap();
    if let Phase::Blocked { reason, .. } = found.execution.phase() {
        let reason = reason.to_string();
        // The table has only the gist.
        let reason = reason.strip_prefix("the code no longer matches its journal: ").unwrap_or(&reason);
        let cut = |reason, at| str::split_once(reason, at).map_or(reason, |(gist, _)| gist);
        let reason = cut(cut(reason, " (invalid type"), " (recorded at ");
        return Some(format!("Blocked: {}", without_places(reason)));
    }
    let last = read(found.execution.entry_count()).await.unwrap().unwrap().journal.remove(0);
    let Event::Completed { unused, .. } = last.entry().unwrap().event else {
        let why = abide.handle::<String>("one").why().await.unwrap();
        return Some(if why.contains("no live worker can run it") {
            "waits: no live worker can run it".to_owned()
        } else {
            found.summary.waiting.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        });
    };
    let unused: Vec<_> = unused.iter().map(ToString::to_string).collect();
    (!unused.is_empty()).then(|| format!("{} unused", unused.join(", ")))
}

/// Returns the words without the places of operations.
fn without_places(words: &str) -> String {
    let mut parts = words.split(" (at ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |told, part| told + part.split_once(')').map_or("", |(_, rest)| rest))
}

/// Returns the rows of the table in the guide: the change, and its effect on a plain workflow and a
/// strict one.
fn table() -> Vec<[String; 3]> {
    let guide = include_str!("../../../docs/guide/changing-code.md");
    let rows = guide.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let cells = |row: &str| row.split(" | ").map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let rows = rows.map(cells).filter_map(|cells| <[String; 3]>::try_from(cells).ok());
    rows.filter(|[change, ..]| change != "change").collect()
}

#[test]
fn the_guide_says_what_becomes_of_each_change() {
    let (table, rows) = (table(), rows());
    let mut wrong = Vec::new();
    for Row { change, run } in &rows {
        let (plain, strict) = run();
        let expected = [(*change).to_owned(), plain, strict];
        if !table.contains(&expected) {
            wrong.push(format!("| {} |", expected.join(" | ")));
        }
    }
    assert!(wrong.is_empty(), "the guide lacks these rows:\n{}", wrong.join("\n"));
    let untested: Vec<_> =
        table.iter().filter(|[change, ..]| !rows.iter().any(|row| row.change == change)).collect();
    assert!(untested.is_empty(), "no code runs these rows of the guide: {untested:?}");
}

/// Draws are counted: after one more, those behind it have other values. A recorded value stays.
#[test]
fn a_draw_that_is_added_changes_the_draws_behind_it() {
    let (before, after) = (deployed(drawn::plain, drawn::plain), deployed(drawn::plain, drawn_before::plain));
    let is_kept = |told: &str| told.starts_with("runs \"7 ");
    assert!(is_kept(&before) && is_kept(&after), "{before} {after}");
    assert_ne!(before, after);
}

/// Two steps of one name, which are begun in the order in which they are created, or in the other.
mod one_name {
    use super::*;

    fn pay(ctx: &Ctx, person: &'static str) -> impl Future<Output = Result<String>> {
        ctx.step("pay", async || Ok(person.to_owned()))
    }

    #[workflow(name = "flow")]
    pub(super) async fn ann_first(ctx: Ctx) -> Result<String> {
        let (ann, bob) = (pay(&ctx, "ann"), pay(&ctx, "bob"));
        let (ann, bob) = futures_util::join!(ann, bob);
        go(&ctx).await?;
        Ok(format!("ann's is for {}, bob's is for {}", ann?, bob?))
    }

    #[workflow(name = "flow")]
    pub(super) async fn bob_first(ctx: Ctx) -> Result<String> {
        let (ann, bob) = (pay(&ctx, "ann"), pay(&ctx, "bob"));
        let (bob, ann) = futures_util::join!(bob, ann);
        go(&ctx).await?;
        Ok(format!("ann's is for {}, bob's is for {}", ann?, bob?))
    }
}

/// The number counts first polls, so the order of the arguments of a `join!` matters and the order
/// of creation does not.
#[test]
fn operations_of_one_name_are_numbered_when_they_are_first_polled() {
    let told = Lab::run(7, |lab| async move {
        let with = |builder: Builder| builder.session_ttl(secs(3));
        let old = |builder| with(builder).workflow(one_name::ann_first);
        let (machine, abide) = lab.worker_with(old).await.unwrap();
        abide.start(one_name::ann_first, ()).id("one").await.unwrap();
        lab.sleep(secs(3)).await;
        lab.crash(machine);
        let new = |builder| with(builder).workflow(one_name::bob_first);
        let (_, abide) = lab.worker_with(new).await.unwrap();
        let handle = abide.handle::<String>("one");
        handle.signal("go", &()).await.unwrap();
        handle.result().await.unwrap()
    });
    assert_eq!(told, "ann's is for bob, bob's is for ann");
}
