//! Faults that engines of this kind have had, one test each: here, or in the file that
//! [`ELSEWHERE`] names where the fault is easier to see there.
//!
//! Behaviour of every store is a conformance case and is only called here: each fault has a test of
//! its name. Time is virtual; where a real file is shared, the tests wait for events and never for
//! a while.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use abide::prelude::*;
use abide::rusqlite::Connection;
use abide::testing::{Lab, Machine};
use abide::{Builder, Timestamp};
use abide_core::{Ability, Address, Bounds, Event, ExecutionId, Kind, Name, Namespace};
use abide_sqlite::{Options, SqliteStore};
use abide_store::conformance::{self, TestClock, check_one};
use abide_store::faults::{Fault, FaultyStore};
use abide_store::memory::MemoryStore;
use abide_store::{Claim, Clock, Feed, FeedFrom, Read, Snapshot, Store, Target, View, Worker};
use tokio::sync::Semaphore;

/// Faults whose test is in another file: the fault, the file, the test.
const ELSEWHERE: [(&str, &str, &str); 7] = [
    (
        "a failed operation in a batch still committed its first half",
        "sqlite/tests/sqlite/batches.rs",
        "a_failed_operation_in_a_batch_leaves_no_trace_and_costs_the_others_nothing",
    ),
    (
        "one failed BEGIN ended the database thread",
        "sqlite/tests/sqlite/batches.rs",
        "a_writer_that_is_kept_waiting_says_busy_and_goes_on_afterwards",
    ),
    (
        "an acknowledged effect was lost on power failure (synchronous=NORMAL)",
        "sqlite/src/schema.rs",
        "p2_every_commit_is_synced",
    ),
    ("busy polling: operations of an idle worker", "abide/tests/promises.rs", "p7_idle_is_free"),
    (
        "busy polling: processor time of an idle worker",
        "abide/tests/processes/idle.rs",
        "an_idle_worker_costs_next_to_nothing_and_writes_nothing_but_heartbeats",
    ),
    (
        "SQL built by string interpolation: in the sources",
        "../xtask/src/style/sql.rs",
        "sql_is_formatted_nowhere",
    ),
    (
        "a stale handle completed an execution while the next attempt ran: with real processes",
        "abide/tests/processes/stops.rs",
        "what_a_stopped_worker_writes_late_is_refused",
    ),
];

#[test]
fn tests_elsewhere_are_where_they_are_said_to_be() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (fault, file, test) in ELSEWHERE {
        let source = std::fs::read_to_string(crates.join(file)).unwrap();
        assert!(source.contains(&format!("fn {test}()")), "{fault}: there is no {test} in {file}");
    }
}

/// A database file in a folder of its own.
struct StoreFolder(tempfile::TempDir);

impl StoreFolder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("app.db")
    }

    /// Returns a builder for one process; two calls make two processes.
    fn builder(&self) -> Builder {
        Abide::builder(format!("sqlite:{}", self.path().display()))
    }

    /// Opens the file as any other program would.
    fn raw(&self) -> Connection {
        Connection::open(self.path()).unwrap()
    }

    /// Keeps every other writer waiting for as long as the guard lives.
    fn lock(&self) -> Connection {
        let other = self.raw();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        other
    }

    /// Returns the ids of the ended executions, in order.
    async fn ended(&self) -> Vec<String> {
        let options = Options { read_only: true, ..Options::default() };
        let store = SqliteStore::open(&self.path(), TestClock::new(), options).unwrap();
        let page = store.feed(Feed { from: FeedFrom::Beginning, limit: 1_000 }).await.unwrap();
        let ends = page.items.iter().filter(|item| item.happening.is_end());
        ends.map(|item| item.address.id.to_string()).collect()
    }
}

/// Checks conformance cases on a file and on the reference store.
fn holds(cases: &[&str]) {
    for case in cases {
        let place = StoreFolder::new();
        let options = || Options { bounds: conformance::bounds(), ..Options::default() };
        check_one(case, |clock| SqliteStore::open(&place.path(), clock, options()).unwrap());
        check_one(case, |clock| MemoryStore::new(clock, conformance::bounds()));
    }
}

fn sqlite(clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    SqliteStore::in_memory(clock, Options::default()).unwrap()
}

/// Runs a test in virtual time, on SQLite and on the reference store.
fn in_virtual_time<Fut: Future<Output = ()>>(test: impl Fn(Lab, Shared) -> Fut) {
    Lab::run_on(1, sqlite, |lab| test(lab, Shared::default()));
    Lab::run_on(1, |clock| MemoryStore::new(clock, Bounds::default()), |lab| test(lab, Shared::default()));
}

async fn worker(lab: &Lab, world: &Shared) -> (Machine, Abide) {
    lab.worker_with(|builder| builder.state(world.clone()).session_ttl(secs(3))).await.unwrap()
}

/// Returns everything that is recorded, execution by execution.
async fn recorded(lab: &Lab) -> Vec<(String, Timestamp, Event)> {
    let all = conformance::recorded(&**lab.store(), &Namespace::default()).await.unwrap();
    let told = all.iter().map(|item| {
        let entry = item.record.entry().unwrap();
        (item.address.id.to_string(), entry.at, entry.event)
    });
    told.collect()
}

/// The gates of the steps, and the record of what they did.
struct World {
    begun: Semaphore,
    may_end: Semaphore,
    attempts: Mutex<Vec<String>>,
}

type Shared = Arc<World>;

impl Default for World {
    fn default() -> Self {
        Self { begun: Semaphore::new(0), may_end: Semaphore::new(0), attempts: Mutex::default() }
    }
}

#[workflow]
async fn echo(_ctx: Ctx, n: u64) -> Result<u64> {
    Ok(n)
}

#[workflow]
async fn omega(_ctx: Ctx, n: u64) -> Result<u64> {
    Ok(n)
}

/// Runs a step that reports when it begins, and ends when it may.
#[workflow]
async fn slow(ctx: Ctx, n: u64) -> Result<u64> {
    let world = ctx.state::<Shared>();
    ctx.step("slow", || async {
        world.begun.add_permits(1);
        world.may_end.acquire().await?.forget();
        Ok(n)
    })
    .await
}

/// A schema check could not fail.
#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_this_program_does_not_know_is_refused() {
    let place = StoreFolder::new();
    create(&place.path());
    let known: i64 = {
        let sql = "SELECT value FROM abide_meta WHERE name = 'schema_version'";
        place.raw().query_row(sql, [], |row| row.get(0)).unwrap()
    };
    let pretend = |version: i64| {
        place
            .raw()
            .execute("UPDATE abide_meta SET value = ?1 WHERE name = 'schema_version'", [version])
            .unwrap();
    };
    for version in [known + 1, i64::MAX] {
        pretend(version);
        let error = place.builder().open().await.unwrap_err();
        assert!(matches!(error, ClientError::Open { .. }), "{error:?}");
        let reason =
            format!("written by a newer abide: schema version {version}, this program knows {known}");
        assert!(error.to_string().ends_with(&reason), "{error}");
    }
    // This version is older than the tables: migrating from it would repeat steps.
    pretend(known - 1);
    assert!(matches!(place.builder().open().await, Err(ClientError::Open { .. })));
    pretend(known);
    place.builder().open().await.unwrap().shutdown().await;
}

/// Reads queued behind the writer.
#[tokio::test(flavor = "multi_thread")]
async fn reads_do_not_queue_behind_the_writer() {
    let place = StoreFolder::new();
    create(&place.path());
    let client = place.builder().client().await.unwrap();
    let first = client.start(echo, 1).id("first").await.unwrap();
    let lock = place.lock();
    let mut second = std::pin::pin!(client.start(echo, 2).id("second").into_future());
    assert!(futures_util::poll!(&mut second).is_pending());
    assert_eq!(first.status().await.unwrap(), Status::Running);
    assert!(first.why().await.unwrap().contains("no live worker"));
    assert_eq!(client.list(Filter::all()).await.unwrap().len(), 1);
    assert!(futures_util::poll!(&mut second).is_pending(), "the writer still waits");
    drop(lock);
    second.await.unwrap();
    assert_eq!(client.list(Filter::all()).await.unwrap().len(), 2);
}

#[workflow]
async fn long(ctx: Ctx, step_count: u64) -> Result<()> {
    for n in 0..step_count {
        ctx.step(&format!("step-{n}"), || async { Ok(n) }).await?;
    }
    ctx.recv("end").await
}

/// Every lock reloaded the whole history.
#[test]
fn a_lease_does_not_reload_the_whole_history() {
    const STEP_COUNT: u64 = 500;
    let load_count = Arc::new(AtomicU32::new(0));
    let counter = load_count.clone();
    let counting = move |clock: Arc<dyn Clock>| -> Arc<dyn Store> {
        FaultyStore::deciding(sqlite(clock), move |name| {
            // Only these two operations return entries.
            counter.fetch_add(u32::from(matches!(name, "claim" | "read")), Ordering::Relaxed);
            Fault::None
        })
    };
    Lab::run_on(1, counting, |lab| async move {
        let (machine, abide) = worker(&lab, &Shared::default()).await;
        load_count.store(0, Ordering::Relaxed);
        abide.start(long, STEP_COUNT).id("long").await.unwrap();
        lab.sleep(ms(500)).await;
        let loads = load_count.load(Ordering::Relaxed);
        assert!(loads <= 2, "{STEP_COUNT} steps asked {loads} times for what they had recorded themselves");
        // The next holder receives the beginning, and reads on in pages.
        lab.crash(machine);
        lab.sleep(secs(10)).await;
        let session = lab.store().register(other_worker("long")).await.unwrap().session;
        let claim = Claim { session, request: 1, slots: 1, care_slots: 0, with_mail: false, sweep: true };
        let leased = lab.store().claim(claim).await.unwrap().leased.remove(0);
        assert_eq!(leased.execution.entry_count(), 1 + STEP_COUNT);
        let page = leased.opening.into_records();
        assert!(page.len() as u64 <= STEP_COUNT / 2, "{} entries at once", page.len());
    });
}

/// Returns a worker for one workflow.
fn other_worker(workflow: &str) -> Worker {
    let name = |text: &str| Name::new(text).unwrap();
    let ability = Ability {
        namespace: Namespace::default(),
        lanes: [name("default")].into(),
        runs: [(Kind::Workflow, name(workflow))].into(),
        capabilities: [].into(),
        build: None,
    };
    Worker { name: name("other"), ability, ttl: secs(10) }
}

/// A function later in the list starved.
#[test]
fn a_workflow_later_in_the_list_does_not_starve() {
    in_virtual_time(async |lab, _| {
        let (_, starter) = lab.worker_with(|builder| builder.lanes(["elsewhere"])).await.unwrap();
        for n in 0..20 {
            starter.start(echo, n).id(format!("before-{n}")).await.unwrap();
        }
        starter.start(omega, 0).id("omega").await.unwrap();
        for n in 0..20 {
            starter.start(echo, n).id(format!("after-{n}")).await.unwrap();
        }
        let _worker = lab.worker_with(|builder| builder.execution_count_max(1)).await.unwrap();
        lab.sleep(minutes(5)).await;
        let ends = recorded(&lab).await.into_iter().filter(|(_, _, event)| event.is_terminal());
        let ended: Vec<_> = ends.map(|(id, ..)| id).collect();
        assert_eq!((ended.len(), ended.iter().position(|id| id == "omega")), (41, Some(20)), "{ended:?}");
    });
}

/// A stale handle completed an execution while the next attempt ran.
#[test]
fn a_stale_handle_cannot_complete_what_the_next_attempt_runs() {
    holds(&["p3_stale_holder_cannot_complete_while_the_next_runs"]);
}

/// A double complete emitted two events.
#[test]
fn a_double_completion_is_one_event() {
    holds(&["p4_second_completion_is_fenced", "p4_feed_has_one_end_for_each_run"]);
}

/// A compatible job was hidden behind 16 incompatible ones.
#[test]
fn a_compatible_job_is_not_hidden_behind_incompatible_ones() {
    holds(&["compatible_execution_is_not_hidden_behind_incompatible_ones"]);
}

/// Nobody promoted delayed work.
#[test]
fn delayed_work_is_promoted_when_it_is_due() {
    in_virtual_time(async |lab, world| {
        let (machine, abide) = worker(&lab, &world).await;
        let handle = abide.start(echo, 1).id("one").delay(minutes(10)).await.unwrap();
        lab.sleep(minutes(10) - secs(1)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Scheduled);
        lab.sleep(secs(2)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Completed);
        // No worker is running when this becomes due: the next worker finds it.
        let handle = abide.start(echo, 2).id("two").delay(minutes(10)).await.unwrap();
        lab.crash(machine);
        lab.sleep(minutes(20)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Scheduled);
        let _next = worker(&lab, &world).await;
        lab.sleep(secs(1)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Completed);
    });
}

#[workflow]
async fn fails(ctx: Ctx) -> Result<()> {
    let world = ctx.state::<Shared>();
    let call = ctx.step("call", || async { refuse(world, "step") });
    call.retry(Retry::exponential(secs(1)).max_attempts(5)).await
}

#[task]
async fn fails_whole(ctx: Ctx) -> Result<()> {
    refuse(ctx.state::<Shared>(), "task")
}

fn refuse(world: &World, what: &str) -> Result<()> {
    world.attempts.lock().unwrap().push(what.to_owned());
    Err(Error::new("503"))
}

/// Retries had neither back-off nor bound.
#[test]
fn retries_back_off_and_end() {
    in_virtual_time(async |lab, world| {
        let (machine, abide) = worker(&lab, &world).await;
        abide.start(fails, ()).id("step").await.unwrap();
        let policy = Retry::exponential(secs(1)).max_attempts(5);
        abide.start(fails_whole, ()).id("task").retry(policy).await.unwrap();
        // The attempts fail after 0, 1 and 3 seconds; the worker is lost before the fourth.
        lab.sleep(secs(5)).await;
        lab.crash(machine);
        let (_, abide) = worker(&lab, &world).await;
        lab.sleep(hours(1)).await;
        for id in ["step", "task"] {
            assert_eq!(abide.handle::<()>(id).status().await.unwrap(), Status::Failed);
            let attempt_count = world.attempts.lock().unwrap().iter().filter(|what| *what == id).count();
            assert_eq!(attempt_count, 5, "{id}");
            assert_eq!(pauses(&lab, id).await, [1, 2, 4, 8].map(secs), "{id}");
        }
    });
}

/// Returns the pauses after failed attempts, each of which was recorded.
async fn pauses(lab: &Lab, id: &str) -> Vec<std::time::Duration> {
    let mut pauses = Vec::new();
    let mut not_before = None;
    for (_, at, event) in recorded(lab).await.into_iter().filter(|(of, ..)| of == id) {
        assert!(not_before.is_none_or(|not_before| at >= not_before), "{event:?} came too early");
        if let Event::AttemptFailed { retry_at, .. } = event {
            pauses.push(retry_at.since(at));
            not_before = Some(retry_at);
        }
    }
    pauses
}

#[workflow]
async fn quotes(ctx: Ctx, text: String) -> Result<String> {
    let said: String = ctx.recv(&text).await?;
    ctx.step(&format!("{text} 1"), || async { Ok(()) }).await?;
    let name = format!("{text} 2");
    ctx.sqlite(&name, move |tx| Ok(tx.query_row("SELECT ?1", [&said], |row| row.get(0))?)).await
}

/// SQL was built by string interpolation.
#[tokio::test(flavor = "multi_thread")]
async fn what_users_write_is_never_part_of_sql() {
    for text in ["'; DROP TABLE abide_journal; --", "\" OR 1 = 1 --", "?1 :a $b @c", "%_\\'\\\"", "a'||'b"] {
        let place = StoreFolder::new();
        let builder = place.builder().namespace(text).worker_name(text).lanes([text]).capabilities([text]);
        let abide = builder.open().await.unwrap();
        let start = abide.start(quotes, text.to_owned()).id(text).lane(text).requires([text]);
        let handle = start.tag(text, text).await.unwrap();
        handle.signal(text, text).await.unwrap();
        assert_eq!(handle.result().await.unwrap(), text);
        let found = abide.list(Filter::completed().workflow("quotes").tag(text, text)).await.unwrap();
        assert_eq!(found.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), [text]);
        assert_eq!(abide.list(Filter::all().workflow(text)).await.unwrap(), []);
        assert_eq!(abide.list(Filter::all().tag(text, "other")).await.unwrap(), []);
        assert!(abide.handle::<()>("other").cancel(text).await.is_err());
        abide.shutdown().await;
        let store = SqliteStore::open(&place.path(), TestClock::new(), Options::default()).unwrap();
        assert!(store.verify().unwrap().is_sound(), "{text}");
    }
}

/// A connection and a row lock were held during a step.
#[tokio::test(flavor = "multi_thread")]
async fn no_connection_and_no_lock_is_held_while_a_step_runs() {
    // A count far above the number of connections.
    const COUNT: u32 = 50;
    let (place, world) = (StoreFolder::new(), Shared::default());
    let abide = place.builder().state(world.clone()).open().await.unwrap();
    for n in 0..COUNT {
        abide.start(slow, n.into()).id(format!("slow-{n}")).await.unwrap();
    }
    world.begun.acquire_many(COUNT).await.unwrap().forget();
    drop(place.lock());
    let other = place.builder().open().await.unwrap();
    assert_eq!(other.run(echo, 1).await.unwrap(), 1, "another process works meanwhile");
    assert_eq!(abide.run(echo, 2).await.unwrap(), 2, "and so does this one");
    world.may_end.add_permits(COUNT as usize);
    for n in 0..COUNT {
        assert_eq!(abide.handle::<u64>(&format!("slow-{n}")).result().await.unwrap(), u64::from(n));
    }
}

#[workflow]
async fn patient(ctx: Ctx) -> Result<u64> {
    ctx.step("begin", || async { Ok(()) }).await?;
    ctx.recv("end").await
}

#[workflow]
async fn adopts(ctx: Ctx, child: String) -> Result<u64> {
    ctx.run(patient, ()).id(child).await
}

/// A cancelled or completed execution was revived by start, child or complete.
#[test]
fn what_has_ended_is_not_revived_by_a_start_a_child_or_a_completion() {
    in_virtual_time(async |lab, world| {
        let (_, abide) = worker(&lab, &world).await;
        let late = abide.start(slow, 1).id("late").await.unwrap();
        let mut ended = Vec::new();
        for id in ["completed", "cancelled", "terminated"] {
            ended.push(abide.start(patient, ()).id(id).await.unwrap());
        }
        lab.sleep(secs(1)).await;
        ended[0].signal("end", &7u64).await.unwrap();
        ended[1].cancel("enough").await.unwrap();
        ended[2].terminate("enough").await.unwrap();
        late.terminate("enough").await.unwrap();
        lab.sleep(secs(1)).await;
        let all = [&late, &ended[0], &ended[1], &ended[2]].map(|handle| handle.id().to_owned());
        let before = snapshots(&lab, &all).await;
        assert!(before.iter().all(|found| found.summary.status.is_terminal()));
        for handle in &ended {
            abide.start(patient, ()).id(handle.id()).await.unwrap();
            abide.start(echo, 1).id(handle.id()).await.unwrap_err();
            handle.signal("end", &8u64).await.unwrap_err();
            abide.start(adopts, handle.id().to_owned()).id(format!("of-{}", handle.id())).await.unwrap();
        }
        // The step ends long after its execution was terminated.
        world.may_end.add_permits(1);
        lab.sleep(minutes(1)).await;
        assert_eq!(snapshots(&lab, &all).await, before);
        let parents = abide.list(Filter::failed().workflow("adopts")).await.unwrap();
        assert_eq!(parents.len(), 3, "they are told that the id is taken");
    });
    holds(&["p4_terminal_execution_takes_no_commit", "p4_failed_and_cancelled_are_final_too"]);
}

/// Returns everything that the store has of these executions.
async fn snapshots(lab: &Lab, ids: &[String]) -> Vec<Snapshot> {
    let mut found = Vec::new();
    for id in ids {
        let address = Address { namespace: Namespace::default(), id: ExecutionId::new(id).unwrap() };
        let read =
            Read { target: Target::Address(address), run: None, from: 1, limit: 100, with_inbox: true };
        found.push(lab.store().read(read).await.unwrap().unwrap());
    }
    found
}

/// Two processes created the same root.
#[tokio::test(flavor = "multi_thread")]
async fn two_processes_create_the_same_root_once() {
    let place = StoreFolder::new();
    create(&place.path());
    let (one, two) = (place.builder().client().await.unwrap(), place.builder().client().await.unwrap());
    // Both have asked before either has an answer.
    let lock = place.lock();
    let mut same = std::pin::pin!(futures_util::future::join(
        one.start(echo, 1).id("same").into_future(),
        two.start(echo, 1).id("same").into_future(),
    ));
    let mut other = std::pin::pin!(futures_util::future::join(
        one.start(echo, 1).id("other").into_future(),
        two.start(echo, 2).id("other").into_future(),
    ));
    assert!(futures_util::poll!(&mut same).is_pending() && futures_util::poll!(&mut other).is_pending());
    drop(lock);
    let (first, second) = same.await;
    first.unwrap();
    second.unwrap();
    let (first, second) = other.await;
    assert!(
        matches!(
            (&first, &second),
            (Ok(_), Err(ClientError::Conflict { .. })) | (Err(ClientError::Conflict { .. }), Ok(_))
        ),
        "{first:?} {second:?}"
    );
    let worker = place.builder().open().await.unwrap();
    worker.handle::<u64>("same").result().await.unwrap();
    worker.handle::<u64>("other").result().await.unwrap();
    let mut ended = place.ended().await;
    ended.sort();
    assert_eq!(ended, ["other", "same"]);
}

/// Worker names containing a comma split a list.
#[test]
fn a_name_with_a_comma_is_one_name() {
    holds(&["registered_worker_is_listed", "names_with_commas_are_one_name"]);
}

/// A late acknowledgement overwrote its successor.
#[test]
fn a_late_acknowledgement_does_not_overwrite_its_successor() {
    holds(&["p3_late_commit_does_not_overwrite_its_successor"]);
}

/// Completion and renewal were accepted after the lease had expired.
#[test]
fn neither_completion_nor_renewal_is_accepted_after_a_lease_has_expired() {
    holds(&[
        "p3_expired_session_is_fenced_before_anyone_took_over",
        "p3_heartbeat_does_not_revive_an_expired_session",
        "p3_dead_session_claims_nothing",
    ]);
}

/// Makes an empty store: a client creates none, and a worker would take the started executions.
fn create(path: &Path) {
    let store = SqliteStore::open(path, Arc::new(abide_engine::SystemClock), Options::default());
    store.expect("the store can be made").close();
}
