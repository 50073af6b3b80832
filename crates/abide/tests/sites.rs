//! Journals, `why` and the reports about code that no longer matches say where the code asked for
//! an operation: file and line of the call.

use std::sync::Arc;
use std::time::Duration;

use abide::prelude::*;
use abide::testing::Lab;
use abide::{Builder, Workflow};
use abide_core::{Address, Bounds, Entry, ExecutionId, Namespace, SiteMark, Sites};
use abide_sqlite::SqliteStore;
use abide_store::memory::MemoryStore;
use abide_store::{Clock, Read, Record, Store, Target};

/// Waits for each sort of thing in turn; the lines below are those of its calls.
const WAITS_LINE: u32 = line!() + 3;
#[workflow]
async fn waits(ctx: Ctx) -> Result<()> {
    ctx.recv::<()>("go").await?;
    ctx.sleep(hours(1)).await?;
    let again = Retry::fixed(hours(1)).max_attempts(2);
    let tried = ctx.step("try", || async { Err(Error::new("busy")) }).retry(again).await;
    tried.or(Ok(()))
}

#[workflow(name = "flow")]
async fn in_order(ctx: Ctx) -> Result<()> {
    ctx.step("a", || async { Ok(()) }).await?;
    ctx.step("b", || async { Ok(()) }).input(&1).await?;
    ctx.recv("go").await
}

const OTHER_KIND_LINE: u32 = line!() + 3;
#[workflow(name = "flow")]
async fn of_another_kind(ctx: Ctx) -> Result<()> {
    ctx.sqlite("a", |_| Ok(())).await?;
    ctx.recv("go").await
}

const REORDERED_LINE: u32 = line!() + 3;
#[workflow(name = "flow", strict)]
async fn strictly_reordered(ctx: Ctx) -> Result<()> {
    ctx.step("b", || async { Ok(()) }).input(&1).await?;
    ctx.recv("go").await
}

const OTHER_INPUT_LINE: u32 = line!() + 3;
#[workflow(name = "flow")]
async fn with_another_input(ctx: Ctx) -> Result<()> {
    ctx.step("b", || async { Ok(()) }).input(&2).await?;
    ctx.recv("go").await
}

/// The lines of the calls in `in_order`.
const A_LINE: u32 = WAITS_LINE + 9;
const B_LINE: u32 = A_LINE + 1;

/// The same operations on other lines.
#[workflow(name = "flow", strict)]
async fn moved(ctx: Ctx) -> Result<()> {
    ctx.step("a", || async { Ok(()) }).await?;

    ctx.step("b", || async { Ok(()) }).input(&1).await?;
    ctx.recv("go").await
}

/// The line of the first step of `everything`.
const FIRST_LINE: u32 = line!() + 6;

/// Uses every sort of operation, some of them several times from one line.
#[workflow]
async fn everything(ctx: Ctx, is_last: bool) -> Result<()> {
    for nth in 0..2 {
        ctx.step("step", || async { Ok(nth) }).await?;
    }
    ctx.blocking("blocking", || Ok(())).await?;
    abide::testing::transact(&ctx, "transaction", |_| Ok(())).await?;
    ctx.patched("change");
    let given = ctx.recv::<()>("go").timeout(hours(1)).await;
    assert!(given.is_err_and(|error| error.is_timeout()));
    let child = ctx.start(nothing, ()).await?;
    child.result().await?;
    ctx.step("after", || async { Ok(()) }).await?;
    if is_last { Ok(()) } else { ctx.continue_as_new(true).await }
}

#[workflow]
async fn nothing(_ctx: Ctx) -> Result<()> {
    Ok(())
}

fn sqlite(clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    SqliteStore::in_memory(clock, abide_sqlite::Options::default()).unwrap()
}

fn at(line: u32) -> String {
    format!("(at {}:{line})", file!())
}

#[test]
fn why_says_where_the_code_waits() {
    Lab::run_on_each(1, |lab| async move {
        let (_machine, abide) = lab.worker_with(|builder| builder.workflow(in_order)).await.unwrap();
        let handle = abide.start(waits, ()).id("one").await.unwrap();
        lab.sleep(minutes(1)).await;
        let why = handle.why().await.unwrap();
        assert!(why.contains(&format!(r#"waiting for signal "go" {}"#, at(WAITS_LINE))), "{why}");
        handle.signal("go", &()).await.unwrap();
        lab.sleep(minutes(1)).await;
        let why = handle.why().await.unwrap();
        let place = format!(" at {}:{}", file!(), WAITS_LINE + 1);
        assert!(why.contains("sleeping until") && why.contains(&place), "{why}");
        lab.sleep(hours(1)).await;
        let why = handle.why().await.unwrap();
        assert!(why.contains("for attempt 2") && why.contains(&at(WAITS_LINE + 3)), "{why}");
    });
}

/// Runs `old` until it waits, and goes on with `new` on another machine. Returns its status and
/// `why`.
fn changed<O, N>(old: O, new: N) -> String
where
    O: Workflow<Input = (), Output = ()> + Copy,
    N: Workflow<Output = ()> + Copy,
{
    Lab::run(7, |lab| async move {
        let with = |builder: Builder| builder.session_ttl(secs(3));
        let (machine, abide) = lab.worker_with(|builder| with(builder).workflow(old)).await.unwrap();
        let handle = abide.start(old, ()).id("one").await.unwrap();
        lab.sleep(secs(2)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Waiting);
        lab.crash(machine);
        let (_, abide) = lab.worker_with(|builder| with(builder).workflow(new)).await.unwrap();
        let handle = abide.handle::<()>("one");
        handle.signal("go", &()).await.unwrap();
        lab.sleep(secs(10)).await;
        format!("{}: {}", handle.status().await.unwrap(), handle.why().await.unwrap())
    })
}

#[test]
fn a_mismatch_names_the_recorded_line_beside_the_line_of_the_code() {
    let told = changed(in_order, of_another_kind);
    let expected =
        format!(r#"expected step "a" {}, found transaction "a" {}"#, at(A_LINE), at(OTHER_KIND_LINE));
    assert!(told.starts_with("blocked: ") && told.contains(&expected), "{told}");
    let told = changed(in_order, strictly_reordered);
    let expected = format!(r#"expected step "a" {}, found step "b" {}"#, at(A_LINE), at(REORDERED_LINE));
    assert!(told.starts_with("blocked: ") && told.contains(&expected), "{told}");
    let told = changed(in_order, with_another_input);
    let expected = format!(
        r#"step "b" was recorded with input 1, the code has 2 (recorded at {0}:{B_LINE}, now at {0}:{OTHER_INPUT_LINE})"#,
        file!()
    );
    assert!(told.starts_with("blocked: ") && told.contains(&expected), "{told}");
}

#[test]
fn a_moved_line_replays_also_in_a_strict_workflow() {
    assert!(changed(in_order, moved).starts_with("completed: "));
    assert!(changed(moved, in_order).starts_with("completed: "));
}

/// Returns the entries of a run.
async fn journal(lab: &Lab, run: u32) -> Vec<Entry> {
    let id = ExecutionId::new("one").unwrap();
    let target = Target::Address(Address { namespace: Namespace::default(), id });
    let read = Read { target, run: Some(run), from: 1, limit: 1_000, with_inbox: false };
    let found = lab.store().read(read).await.unwrap().unwrap();
    found.journal.iter().map(Record::entry).collect::<Result<_, _>>().unwrap()
}

/// Returns each entry with its place as a test reads it, and checks that each text stands once, at
/// its first use.
fn told(journal: &[Entry]) -> Vec<String> {
    let mut sites = Sites::default();
    let mut told = Vec::new();
    for entry in journal {
        if let Some(SiteMark { number, text: Some(text) }) = &entry.site {
            assert_eq!((sites.text(*number), sites.number(text)), (None, None), "{entry:?}");
        }
        sites.learn(entry);
        let op = entry.event.op().map(|op| format!(" {op}")).unwrap_or_default();
        let site = sites.of(entry).map(|site| site.replace(concat!(file!(), ":"), " line "));
        told.push(format!("{}{op}{}", entry.event.word(), site.unwrap_or_default()));
    }
    told
}

fn expected(is_last: bool) -> Vec<String> {
    let rows = [
        ("step-recorded step \"step\"", 0),
        ("step-recorded step \"step\" #2", 0),
        ("step-recorded step \"blocking\"", 2),
        ("step-recorded transaction \"transaction\"", 3),
        ("step-recorded patch \"change\"", 4),
        ("timer-set signal \"go\"", 5),
        ("timer-fired signal \"go\"", 5),
        ("child-started child \"nothing\"", 7),
        ("child-finished result of child \"nothing\"", 8),
        ("step-recorded step \"after\"", 9),
    ];
    let row = |(entry, line): (&str, u32)| format!("{entry} line {}", FIRST_LINE + line);
    let mut told: Vec<_> = ["started".to_owned()].into_iter().chain(rows.map(row)).collect();
    let end = format!("continued-as-new line {}", FIRST_LINE + 10);
    told.push(if is_last { "completed".to_owned() } else { end });
    told
}

#[test]
fn every_recorded_operation_names_its_line_in_every_run() {
    Lab::run_on_each(3, |lab| async move {
        let with = |builder: Builder| builder.workflow(in_order).state(());
        let (_machine, abide) = lab.worker_with(with).await.unwrap();
        abide.run(everything, false).id("one").await.unwrap();
        assert_eq!(told(&journal(&lab, 1).await), expected(false));
        assert_eq!(told(&journal(&lab, 2).await), expected(true));
    });
}

/// The run leaves memory during its hour of waiting, and its machine dies at these milliseconds.
#[test]
fn the_lines_are_the_same_after_an_eviction_and_a_crash() {
    for died_after in [0, 1, 5, 20, 60_000] {
        Lab::run_on_each(died_after, |lab| async move {
            let with = |builder: Builder| builder.workflow(in_order).session_ttl(secs(3));
            let (machine, abide) = lab.worker_with(with).await.unwrap();
            abide.start(everything, true).id("one").await.unwrap();
            lab.sleep(ms(died_after)).await;
            lab.crash(machine);
            let (_second, abide) = lab.worker_with(with).await.unwrap();
            abide.handle::<()>("one").result().await.unwrap();
            assert_eq!(told(&journal(&lab, 1).await), expected(true), "{died_after}");
        });
    }
}

#[test]
fn places_beyond_the_bound_are_left_out() {
    Lab::run(4, |lab| async move {
        let with = |builder: Builder| builder.workflow(in_order).site_count_max(2);
        let (_machine, abide) = lab.worker_with(with).await.unwrap();
        abide.run(everything, true).id("one").await.unwrap();
        let named = expected(true).into_iter().enumerate().map(|(index, row)| match index {
            0..=3 => row,
            _ => row.split(" line ").next().unwrap_or_default().to_owned(),
        });
        assert_eq!(told(&journal(&lab, 1).await), named.collect::<Vec<_>>());
    });
}

fn memory(clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    MemoryStore::new(clock, Bounds::default())
}

/// The run moves to another store during its hour of waiting.
#[test]
fn the_lines_are_the_same_after_a_move_to_another_store() {
    let with = |builder: Builder| builder.workflow(in_order).session_ttl(secs(3));
    for (from, to) in [(memory as fn(_) -> _, sqlite as fn(_) -> _), (sqlite, memory)] {
        let whole = Lab::run_on(5, from, |lab| async move {
            let (machine, abide) = lab.worker_with(with).await.unwrap();
            abide.start(everything, true).id("one").await.unwrap();
            // The blocking step takes real time.
            while journal(&lab, 1).await.len() < 7 {
                lab.sleep(ms(10)).await;
            }
            lab.crash(machine);
            let id = ExecutionId::new("one").unwrap();
            let address = Address { namespace: Namespace::default(), id };
            abide_store::export(&**lab.store(), &address).await.unwrap().unwrap()
        });
        Lab::run_on(6, to, |lab| async move {
            lab.store().import(whole).await.unwrap();
            let (_machine, abide) = lab.worker_with(with).await.unwrap();
            let mut why = abide.handle::<()>("one").why().await.unwrap();
            while why.contains("next in its queue") {
                lab.sleep(Duration::from_micros(10)).await;
                why = abide.handle::<()>("one").why().await.unwrap();
            }
            assert!(why.contains(&format!("{}:{}", file!(), FIRST_LINE + 5)), "{why}");
            abide.handle::<()>("one").result().await.unwrap();
            assert_eq!(told(&journal(&lab, 1).await), expected(true));
        });
    }
}

/// The line of the step whose result cannot be recorded.
const LARGE_LINE: u32 = line!() + 4;
#[workflow]
async fn large(ctx: Ctx) -> Result<String> {
    ctx.step("small", || async { Ok(()) }).await?;
    let large = ctx.step("large", || async { Ok("x".repeat(1_000)) }).await?;
    ctx.step("after", || async { Ok(large.clone()) }).await
}

/// A decision about a step comes from nowhere in the code, and moves no line of the entries around
/// it.
#[test]
fn the_lines_are_the_same_around_an_edit() {
    let small = |clock| -> Arc<dyn Store> {
        MemoryStore::new(clock, Bounds { payload_bytes_max: 100, ..Bounds::default() })
    };
    for is_crashed in [false, true] {
        Lab::run_on(7, small, |lab| async move {
            let with =
                |builder: Builder| builder.workflow(in_order).session_ttl(secs(3)).payload_bytes_max(100);
            let (machine, abide) = lab.worker_with(with).await.unwrap();
            let handle = abide.start(large, ()).id("one").await.unwrap();
            lab.sleep(secs(5)).await;
            assert_eq!(handle.status().await.unwrap(), Status::Blocked);
            let mut abide = abide;
            if is_crashed {
                lab.crash(machine);
                abide = lab.worker_with(with).await.unwrap().1;
            }
            let handle = abide.handle::<String>("one");
            handle.unblock().edit("large", "ok").await.unwrap();
            assert_eq!(handle.result().await.unwrap(), "ok");
            let told = told(&journal(&lab, 1).await);
            let line = |nth: u32| format!("line {}", LARGE_LINE + nth - 1);
            assert!(told[1].ends_with(&line(0)), "{told:#?}");
            let after = told.iter().find(|row| row.contains("\"after\"")).unwrap();
            assert!(after.ends_with(&line(2)), "{told:#?}");
        });
    }
}

/// A store refuses this after the closure has returned.
const NOT_ALLOWED: &str = "CREATE VIEW mine AS SELECT body FROM abide_journal";

const REFUSED_LINE: u32 = line!() + 3;
#[workflow]
async fn refused(ctx: Ctx) -> Result<()> {
    let transacted = ctx.sqlite("transaction", |tx| Ok(tx.execute_batch(NOT_ALLOWED)?)).await;
    transacted.or(Ok(()))
}

/// The transaction is undone, and the entry that it would have recorded with it. The entry that
/// says so names the place.
#[test]
fn a_place_is_named_by_the_entry_that_is_recorded() {
    Lab::run_on(1, sqlite, |lab| async move {
        let (_machine, abide) = lab.worker_with(|builder| builder.workflow(in_order)).await.unwrap();
        abide.run(refused, ()).id("one").await.unwrap();
        let recorded = format!("step-recorded transaction \"transaction\" line {REFUSED_LINE}");
        assert_eq!(told(&journal(&lab, 1).await), ["started", &recorded, "completed"]);
    });
}

const BESIDE_LINE: u32 = line!() + 4;
#[workflow]
async fn waits_beside_a_transaction(ctx: Ctx) -> Result<()> {
    let transacted = abide::testing::transact(&ctx, "transaction", |_| Ok(()));
    let (transacted, heard) = tokio::join!(transacted, ctx.recv::<()>("go"));
    transacted.and(heard)
}

/// The worker dies before it records anything else.
#[test]
fn why_says_where_the_code_waits_after_a_transaction() {
    Lab::run_on_each(1, |lab| async move {
        let with = |builder: Builder| builder.workflow(in_order).session_ttl(secs(3));
        let (machine, abide) = lab.worker_with(with).await.unwrap();
        abide.start(waits_beside_a_transaction, ()).id("one").await.unwrap();
        while journal(&lab, 1).await.len() < 2 {
            lab.sleep(Duration::from_micros(10)).await;
        }
        lab.crash(machine);
        let (_, other) = lab.worker_with(|builder| with(builder).lanes(["other"])).await.unwrap();
        let why = other.handle::<()>("one").why().await.unwrap();
        assert!(why.contains(&format!(r#"signal "go" {}"#, at(BESIDE_LINE))), "{why}");
    });
}
