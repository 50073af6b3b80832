//! The engine and the store agree about leases: a heartbeat finds the leases that no answer
//! brought, and the seats whose lease is gone.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use abide::Builder;
use abide::prelude::*;
use abide::testing::{Lab, Machine, kept};
use abide_core::{Address, Bounds, ExecutionId, Lease, Namespace, care, codec};
use abide_sqlite::SqliteStore;
use abide_store::faults::{Fault, FaultyStore};
use abide_store::memory::MemoryStore;
use abide_store::{
    Changes, Claim, Clock, Commit, CommitOutcome, Hold, Read, Retire, Snapshot, Store, Target,
};
use tokio::sync::Notify;

/// The time between heartbeats: three of them fit into one life of a session.
const BEAT: Duration = Duration::from_secs(5);

#[workflow]
async fn quick(ctx: Ctx, n: u64) -> Result<u64> {
    ctx.step("one", || async { Ok(n) }).await
}

#[workflow]
async fn waits_for_go(ctx: Ctx) -> Result<u64> {
    ctx.recv("go").await
}

#[derive(Default)]
struct Steps {
    begun_count: AtomicU32,
    dropped_count: AtomicU32,
    may_end: Notify,
}

/// A guard that counts closures dropped halfway.
struct Running<'a>(&'a Steps);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.dropped_count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Runs a step that lasts until it may end.
#[workflow]
async fn long(ctx: Ctx) -> Result<u64> {
    let steps = ctx.state::<Arc<Steps>>();
    ctx.step("long", || async {
        steps.begun_count.fetch_add(1, Ordering::Relaxed);
        let running = Running(steps);
        steps.may_end.notified().await;
        std::mem::forget(running);
        Ok(7)
    })
    .await
}

/// Makes a store whose operations of this name happen, but are never answered while the switch is
/// on.
fn mute(what: &'static str, is_mute: Arc<AtomicBool>) -> impl FnOnce(Arc<dyn Clock>) -> Arc<dyn Store> {
    move |clock| {
        let inner = MemoryStore::new(clock, Bounds::default());
        FaultyStore::deciding(inner, move |asked| {
            if asked == what && is_mute.load(Ordering::Relaxed) { Fault::Indeterminate } else { Fault::None }
        })
    }
}

async fn snapshot(store: &Arc<dyn Store>, id: &str) -> Snapshot {
    let address = Address { namespace: Namespace::default(), id: ExecutionId::new(id).unwrap() };
    let read = Read { target: Target::Address(address), run: None, from: 0, limit: 0, with_inbox: false };
    store.read(read).await.unwrap().unwrap()
}

/// Returns a lease to the store without its holder's knowledge.
async fn give_back(store: &Arc<dyn Store>, id: &str, hold: Hold) {
    let found = snapshot(store, id).await;
    let lease = Lease { session: found.lease.session.unwrap(), epoch: found.lease.epoch };
    let changes = Changes {
        records: Default::default(),
        next: None,
        state: codec::encode(&found.execution),
        summary: found.summary,
        consumed: Vec::new(),
        outgoing: Vec::new(),
    };
    let commit = Commit {
        key: found.key,
        lease,
        expected: found.lease.version,
        changes: Arc::new(changes),
        born_slots: 0,
        hold,
        transaction: None,
        alone: false,
    };
    assert!(matches!(store.commit(commit).await.unwrap(), CommitOutcome::Committed(_)));
}

#[test]
fn a_claim_whose_answer_never_comes_is_run_after_the_third_heartbeat() {
    let is_mute = Arc::new(AtomicBool::new(true));
    Lab::run_on(7, mute("claim", is_mute), |lab| async move {
        let client = lab.client().await.unwrap();
        for id in ["one", "two", "three"] {
            client.start(quick, 1).id(id).await.unwrap();
        }
        let (_, abide) = lab.worker().await.unwrap();
        lab.sleep(BEAT / 2).await;
        let found = snapshot(lab.store(), "one").await;
        assert!(found.lease.session.is_some(), "it is leased, and nobody knows");
        for _ in 0..2 {
            lab.sleep(BEAT).await;
            let status = abide.handle::<u64>("one").status().await.unwrap();
            assert_eq!(status, Status::Running, "it is too young");
        }
        lab.sleep(BEAT).await;
        for id in ["one", "two", "three"] {
            assert_eq!(abide.handle::<u64>(id).status().await.unwrap(), Status::Completed, "{id}");
            assert_eq!(snapshot(lab.store(), id).await.lease.epoch.0, 1, "under the lease that was lost");
        }
    });
}

/// Returns a worker that misses no start before its heartbeats do.
async fn patient(lab: &Lab) -> (Machine, Abide) {
    lab.worker_with(|builder| builder.host_patience(hours(1))).await.unwrap()
}

/// The missing first lease makes the engine look at its leases. The answer that brings the second
/// lease may still come.
#[test]
fn a_lease_that_is_young_is_not_looked_for() {
    let is_mute = Arc::new(AtomicBool::new(true));
    Lab::run_on(7, mute("submit", is_mute), |lab| async move {
        let (_, abide) = patient(&lab).await;
        let status = async |id: &str| abide.handle::<u64>(id).status().await.unwrap();
        assert!(abide.start(quick, 1).id("old").await.is_err());
        lab.sleep(BEAT + BEAT / 2).await;
        assert!(abide.start(quick, 1).id("young").await.is_err());
        lab.sleep(BEAT).await;
        assert_eq!((status("old").await, status("young").await), (Status::Running, Status::Running));
        lab.sleep(BEAT).await;
        assert_eq!((status("old").await, status("young").await), (Status::Completed, Status::Running));
        lab.sleep(BEAT).await;
        assert_eq!(status("young").await, Status::Completed);
    });
}

#[test]
fn a_start_whose_answer_never_comes_is_run_after_the_third_heartbeat() {
    let is_mute = Arc::new(AtomicBool::new(true));
    Lab::run_on(7, mute("submit", is_mute), |lab| async move {
        let (_, abide) = patient(&lab).await;
        assert!(abide.start(quick, 1).id("one").await.is_err(), "nobody knows what became of it");
        let found = snapshot(lab.store(), "one").await;
        assert!(found.lease.session.is_some(), "it is born leased, and nobody knows");
        lab.sleep(BEAT * 3 + BEAT / 2).await;
        assert_eq!(abide.handle::<u64>("one").status().await.unwrap(), Status::Completed);
        assert_eq!(snapshot(lab.store(), "one").await.lease.epoch.0, 1);
    });
}

/// The first answer is lost, and the second says only that the execution exists: the engine need
/// not wait for a heartbeat to miss the lease.
#[test]
fn a_start_whose_answer_is_lost_once_is_run_before_the_next_heartbeat() {
    let mut submit_count = 0;
    let make = move |clock| -> Arc<dyn Store> {
        FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), move |what| {
            submit_count += u32::from(what == "submit");
            if what == "submit" && submit_count == 1 { Fault::Indeterminate } else { Fault::None }
        })
    };
    Lab::run_on(7, make, |lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        let handle = abide.start(quick, 1).id("one").await.unwrap();
        lab.sleep(BEAT / 2).await;
        assert_eq!(handle.status().await.unwrap(), Status::Completed);
        assert_eq!(snapshot(lab.store(), "one").await.lease.epoch.0, 1, "under the lease that was lost");
    });
}

/// An execution that was leased to be looked after is looked after, although its code is not served
/// here.
#[test]
fn a_lease_of_what_cannot_be_run_here_goes_to_the_caretaker() {
    let is_mute = Arc::new(AtomicBool::new(false));
    Lab::run_on(7, mute("claim", is_mute.clone()), |lab| async move {
        let (_, other) = lab.worker_with(|builder| builder.lanes(["other"])).await.unwrap();
        let (_, abide) = lab.worker().await.unwrap();
        abide.start(waits_for_go, ()).id("one").await.unwrap();
        lab.sleep(Duration::from_secs(2)).await;
        abide.shutdown().await;
        // Nobody serves this execution any longer, and after a while any engine may apply its
        // terminate: the answer that brings the lease is lost.
        other.handle::<u64>("one").terminate("enough").await.unwrap();
        lab.sleep(care::ORDER_GRACE / 2).await;
        is_mute.store(true, Ordering::Relaxed);
        lab.sleep(care::ORDER_GRACE).await;
        assert!(snapshot(lab.store(), "one").await.lease.session.is_some(), "it is leased, and nobody knows");
        lab.sleep(BEAT * 3).await;
        let found = snapshot(lab.store(), "one").await;
        assert_eq!((found.summary.status, found.lease.session), (Status::Cancelled, None));
    });
}

#[test]
fn a_seat_whose_lease_is_gone_ends_with_the_next_heartbeat() {
    Lab::run(7, |lab| async move {
        let state = Arc::new(Steps::default());
        let (_, abide) = lab.worker_with(|builder| builder.state(state.clone())).await.unwrap();
        let handle = abide.start(long, ()).id("one").await.unwrap();
        lab.sleep(BEAT * 2 + BEAT / 2).await;
        // No notice goes out, and nobody claims an execution that only waits for a message.
        give_back(lab.store(), "one", Hold::Park { seen: Vec::new() }).await;
        lab.sleep(BEAT / 4).await;
        assert_eq!(state.dropped_count.load(Ordering::Relaxed), 0, "nobody has looked yet");
        lab.sleep(BEAT).await;
        assert_eq!(state.dropped_count.load(Ordering::Relaxed), 1, "what nobody may write is not run");
        handle.signal("wake", &()).await.unwrap();
        lab.sleep(Duration::from_secs(1)).await;
        state.may_end.notify_one();
        assert_eq!(handle.result().await.unwrap(), 7);
        assert_eq!(state.begun_count.load(Ordering::Relaxed), 2);
    });
}

/// The commit that returns the lease has happened. Heartbeats find that the store no longer has the
/// lease, but the seat that sent the commit asks until it is answered.
#[test]
fn a_seat_that_gives_its_lease_back_waits_for_the_answer() {
    let (is_mute, commit_count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let (muted, counted) = (is_mute.clone(), commit_count.clone());
    let store = move |clock| {
        FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), move |asked| {
            counted.fetch_add(u32::from(asked == "commit"), Ordering::Relaxed);
            let is_unanswered = asked == "commit" && muted.load(Ordering::Relaxed);
            if is_unanswered { Fault::Indeterminate } else { Fault::None }
        }) as Arc<dyn Store>
    };
    Lab::run_on(7, store, |lab| async move {
        let (_, abide) = lab.worker_with(|builder| builder.park_after(BEAT * 3)).await.unwrap();
        let handle = abide.start(waits_for_go, ()).id("one").await.unwrap();
        lab.sleep(BEAT * 2 + BEAT / 2).await;
        is_mute.store(true, Ordering::Relaxed);
        lab.sleep(BEAT).await;
        assert_eq!(snapshot(lab.store(), "one").await.lease.session, None, "it was given back");
        lab.sleep(BEAT * 2).await;
        let before = commit_count.load(Ordering::Relaxed);
        lab.sleep(BEAT).await;
        assert!(commit_count.load(Ordering::Relaxed) > before, "nobody asks any longer");
        is_mute.store(false, Ordering::Relaxed);
        handle.signal("go", &7u64).await.unwrap();
        assert_eq!(handle.result().await.unwrap(), 7);
    });
}

/// Fails once on each machine, and waits in memory for its next attempt.
#[workflow]
async fn tries_twice(ctx: Ctx) -> Result<u32> {
    let steps = ctx.state::<Arc<Attempts>>();
    ctx.step("try", || async {
        match steps.count.fetch_add(1, Ordering::Relaxed) {
            0 => Err("not yet".into()),
            count => Ok(count),
        }
    })
    .retry(Retry::fixed(ms(400)).max_attempts(9))
    .await
}

#[derive(Default)]
struct Attempts {
    count: AtomicU32,
}

/// The machine goes on after others have taken over and recorded the step. Its own clock says that
/// its session is over, and it begins nothing before the store has answered.
#[test]
fn p1_a_worker_that_was_stopped_begins_no_recorded_step() {
    for seed in 0..20 {
        Lab::run(seed, |lab| async move {
            let (first, second) = (Arc::new(Attempts::default()), Arc::new(Attempts::default()));
            let (machine, abide) =
                lab.worker_with(|builder| builder.state(first.clone()).park_after(secs(1))).await.unwrap();
            abide.start(tries_twice, ()).id("one").await.unwrap();
            lab.sleep(ms(100)).await;
            lab.freeze(machine);
            let (_, other) = lab.worker_with(|builder| builder.state(second.clone())).await.unwrap();
            assert!(other.handle::<u32>("one").result().await.unwrap() > 0);
            lab.sleep(secs(1)).await;
            lab.thaw(machine);
            lab.sleep(minutes(1)).await;
            assert_eq!(first.count.load(Ordering::Relaxed), 1, "seed {seed}");
        });
    }
}

#[test]
fn what_a_worker_lost_goes_on_elsewhere() {
    Lab::run(7, |lab| async move {
        let (first, second) = (Arc::new(Steps::default()), Arc::new(Steps::default()));
        let (_, abide) =
            lab.worker_with(|builder| builder.state(first.clone()).execution_count_max(1)).await.unwrap();
        let handle = abide.start(long, ()).id("one").await.unwrap();
        lab.sleep(BEAT * 2 + BEAT / 2).await;
        give_back(lab.store(), "one", Hold::Yield).await;
        let (_, other) = lab.worker_with(|builder| builder.state(second.clone())).await.unwrap();
        lab.sleep(BEAT).await;
        let counts = |steps: &Steps| {
            (steps.begun_count.load(Ordering::Relaxed), steps.dropped_count.load(Ordering::Relaxed))
        };
        assert_eq!((counts(&first), counts(&second)), ((1, 1), (1, 0)));
        second.may_end.notify_one();
        assert_eq!(handle.result().await.unwrap(), 7);
        other.shutdown().await;
    });
}

/// A machine stops for longer than its session lives, and another one goes on with its executions.
/// The first machine gets a new session, or cannot get one for a while: either way nothing goes on
/// under the old session.
#[test]
fn what_was_held_under_a_session_that_is_gone_ends_with_it() {
    for is_mute in [false, true] {
        let is_mute = Arc::new(AtomicBool::new(is_mute));
        let muted = is_mute.clone();
        let make = move |clock| -> Arc<dyn Store> {
            let mut register_count = 0;
            FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), move |what| {
                register_count += u32::from(what == "register");
                let is_third = what == "register" && register_count > 2;
                if is_third && muted.load(Ordering::Relaxed) { Fault::Unavailable } else { Fault::None }
            })
        };
        Lab::run_on(7, make, |lab| async move {
            let (first, second) = (Arc::new(Steps::default()), Arc::new(Steps::default()));
            let (machine, abide) = lab.worker_with(|builder| builder.state(first.clone())).await.unwrap();
            let (_, other) = lab.worker_with(|builder| builder.state(second.clone())).await.unwrap();
            abide.start(long, ()).id("one").await.unwrap();
            lab.sleep(Duration::from_secs(1)).await;
            lab.freeze(machine);
            lab.sleep(BEAT * 12).await;
            assert_eq!(second.begun_count.load(Ordering::Relaxed), 1, "it was taken over");
            lab.thaw(machine);
            lab.sleep(BEAT * 2).await;
            assert_eq!(
                first.dropped_count.load(Ordering::Relaxed),
                1,
                "it goes on under a lease that is over"
            );
            is_mute.store(false, Ordering::Relaxed);
            second.may_end.notify_one();
            assert_eq!(other.handle::<u64>("one").result().await.unwrap(), 7);
            assert_eq!(first.begun_count.load(Ordering::Relaxed), 1);
        });
    }
}

/// The answer that brings a lease comes when its session is gone: before, while or after the next
/// one is registered.
#[test]
fn a_lease_that_is_told_of_after_its_session_is_gone_is_not_run() {
    for poll_count in 0..8 {
        let make = move |clock| -> Arc<dyn Store> {
            FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), move |what| match what {
                "submit" => Fault::Delay { poll_count: 1 + poll_count * 4 },
                "register" => Fault::Delay { poll_count: 16 },
                _ => Fault::None,
            })
        };
        Lab::run_on(7, make, |lab| async move {
            let (first, second) = (Arc::new(Steps::default()), Arc::new(Steps::default()));
            let (machine, abide) = lab.worker_with(|builder| builder.state(first.clone())).await.unwrap();
            let (_, other) = lab.worker_with(|builder| builder.state(second.clone())).await.unwrap();
            let mut start = abide.start(long, ()).id("one").into_future();
            assert!(futures_util::poll!(&mut start).is_pending(), "it has happened, and is not answered");
            // The engine goes on asking in place of the dropped future.
            drop(start);
            lab.freeze(machine);
            lab.sleep(BEAT * 12).await;
            lab.thaw(machine);
            lab.sleep(BEAT * 2).await;
            assert_eq!(
                first.begun_count.load(Ordering::Relaxed),
                0,
                "under a lease that is over: {poll_count}"
            );
            second.may_end.notify_one();
            assert_eq!(other.handle::<u64>("one").result().await.unwrap(), 7);
        });
    }
}

/// The store grants a new lease to the same session, and nobody hears of it. The heartbeat finds
/// that the seat has another one.
#[test]
fn a_newer_lease_that_no_answer_told_of_ends_the_seat_of_an_older_one() {
    Lab::run(7, |lab| async move {
        let state = Arc::new(Steps::default());
        let (_, abide) = lab.worker_with(|builder| builder.state(state.clone())).await.unwrap();
        let handle = abide.start(long, ()).id("one").await.unwrap();
        lab.sleep(BEAT * 2 + BEAT / 2).await;
        let session = snapshot(lab.store(), "one").await.lease.session.unwrap();
        give_back(lab.store(), "one", Hold::Yield).await;
        let claim =
            Claim { session, request: 1_000, slots: 1, care_slots: 0, with_mail: false, sweep: false };
        assert_eq!(lab.store().claim(claim).await.unwrap().leased.len(), 1);
        lab.sleep(BEAT / 4).await;
        assert_eq!(state.dropped_count.load(Ordering::Relaxed), 0, "nobody has looked yet");
        lab.sleep(BEAT).await;
        assert_eq!(state.dropped_count.load(Ordering::Relaxed), 1, "what nobody may write is not run");
        lab.sleep(BEAT * 3).await;
        assert_eq!(state.begun_count.load(Ordering::Relaxed), 2);
        state.may_end.notify_one();
        assert_eq!(handle.result().await.unwrap(), 7);
    });
}

#[task]
async fn counts_calls(ctx: Ctx) -> Result<u64> {
    ctx.state::<Arc<Attempts>>().count.fetch_add(1, Ordering::Relaxed);
    Ok(7)
}

/// The same for a task, which others have completed meanwhile.
#[test]
fn p1_a_worker_that_was_stopped_begins_no_task() {
    for poll_count in 0..8 {
        let make = move |clock| -> Arc<dyn Store> {
            FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), move |what| match what {
                "submit" => Fault::Delay { poll_count: 1 + poll_count * 4 },
                "register" => Fault::Delay { poll_count: 16 },
                _ => Fault::None,
            })
        };
        Lab::run_on(7, make, |lab| async move {
            let (first, second) = (Arc::new(Attempts::default()), Arc::new(Attempts::default()));
            let (machine, abide) = lab.worker_with(|builder| builder.state(first.clone())).await.unwrap();
            let (_, other) = lab.worker_with(|builder| builder.state(second.clone())).await.unwrap();
            let mut start = abide.start(counts_calls, ()).id("one").into_future();
            assert!(futures_util::poll!(&mut start).is_pending(), "it has happened, and is not answered");
            drop(start);
            lab.freeze(machine);
            lab.sleep(BEAT * 12).await;
            assert_eq!(other.handle::<u64>("one").result().await.unwrap(), 7);
            lab.thaw(machine);
            lab.sleep(BEAT * 2).await;
            assert_eq!(first.count.load(Ordering::Relaxed), 0, "{poll_count}");
        });
    }
}

/// Sleeps for longer than the session lives, and then begins a step.
#[workflow]
async fn steps_late(ctx: Ctx) -> Result<u64> {
    ctx.sleep(BEAT * 4).await?;
    ctx.step("late", || async { Ok(7) }).await
}

/// The answers of the heartbeats are on their way for longer than the session lives. The step
/// begins when one comes, not before, and not much later.
#[test]
fn a_late_sign_of_life_lets_closures_begin() {
    let faulty = Arc::new(OnceLock::<Arc<FaultyStore>>::new());
    let made = faulty.clone();
    let make = move |clock| -> Arc<dyn Store> {
        let hold = |what| if what == "heartbeat" { Fault::Hold } else { Fault::None };
        made.get_or_init(|| FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), hold)).clone()
    };
    Lab::run_on(1, make, |lab| async move {
        let (_, abide) = lab.worker_with(|builder| builder.park_after(hours(10))).await.unwrap();
        let handle = abide.start(steps_late, ()).id("one").await.unwrap();
        lab.sleep(BEAT * 5).await;
        assert!(!handle.status().await.unwrap().is_terminal(), "nobody knows whether the session is alive");
        faulty.get().unwrap().heal();
        lab.sleep(ms(500)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Completed, "{}", handle.why().await.unwrap());
    });
}

/// The store grants a new lease while the old seat is still in memory: the old seat is over,
/// whatever it does.
#[test]
fn a_newer_lease_ends_the_seat_of_an_older_one() {
    Lab::run(7, |lab| async move {
        let state = Arc::new(Steps::default());
        let (_, abide) = lab.worker_with(|builder| builder.state(state.clone())).await.unwrap();
        let handle = abide.start(long, ()).id("one").await.unwrap();
        lab.sleep(Duration::from_millis(500)).await;
        give_back(lab.store(), "one", Hold::Yield).await;
        lab.sleep(Duration::from_secs(1)).await;
        assert_eq!(state.dropped_count.load(Ordering::Relaxed), 1);
        assert_eq!(state.begun_count.load(Ordering::Relaxed), 2);
        state.may_end.notify_one();
        assert_eq!(handle.result().await.unwrap(), 7);
    });
}

/// Checks that both sides count the same: a healthy worker never has to look.
fn agree_when_healthy(make: impl FnOnce(Arc<dyn Clock>) -> Arc<dyn Store>) {
    let look_count = Arc::new(AtomicU32::new(0));
    let counted = look_count.clone();
    let store = move |clock| {
        FaultyStore::deciding(make(clock), move |what| {
            counted.fetch_add(u32::from(what == "leases"), Ordering::Relaxed);
            Fault::None
        }) as Arc<dyn Store>
    };
    Lab::run_on(7, store, |lab| async move {
        let state = Arc::new(Steps::default());
        let (_, abide) = lab.worker_with(|builder| builder.state(state.clone())).await.unwrap();
        let client = lab.client().await.unwrap();
        for round in 0..8u64 {
            for nth in 0..3 {
                abide.start(long, ()).id(format!("born-{round}-{nth}")).await.unwrap();
                client.start(long, ()).id(format!("claimed-{round}-{nth}")).await.unwrap();
                abide.run(quick, 1).id(format!("quick-{round}-{nth}")).await.unwrap();
            }
            lab.sleep(Duration::from_millis(1_700)).await;
            state.may_end.notify_one();
            state.may_end.notify_one();
        }
        lab.sleep(BEAT * 3).await;
        assert_eq!(state.begun_count.load(Ordering::Relaxed), 48);
        assert_eq!(look_count.load(Ordering::Relaxed), 0);
        abide.handle::<u64>("born-7-0").cancel("done").await.unwrap();
    });
}

#[test]
fn heartbeats_of_a_healthy_worker_agree() {
    agree_when_healthy(|clock| MemoryStore::new(clock, Bounds::default()));
}

#[test]
fn heartbeats_of_a_healthy_worker_agree_on_sqlite() {
    agree_when_healthy(|clock| SqliteStore::in_memory(clock, abide_sqlite::Options::default()).unwrap());
}

#[test]
fn why_never_says_running_of_what_nobody_runs() {
    let is_mute = Arc::new(AtomicBool::new(false));
    Lab::run_on(7, mute("submit", is_mute.clone()), |lab| async move {
        let state = Arc::new(Steps::default());
        let (_, abide) = lab.worker_with(|builder| builder.state(state.clone())).await.unwrap();
        let client = lab.client().await.unwrap();
        let seated = abide.start(long, ()).id("seated").await.unwrap();
        is_mute.store(true, Ordering::Relaxed);
        assert!(abide.start(long, ()).id("lost").await.is_err());
        lab.sleep(Duration::from_secs(1)).await;
        let running =
            |id: &str| format!(r#"workflow "{id}" is running on worker "worker" (session 1) since entry 1"#);
        let why = seated.why().await.unwrap();
        assert!(why.starts_with(&running("seated")), "{why}");
        assert_eq!(
            abide.handle::<u64>("lost").why().await.unwrap(),
            r#"workflow "lost" is held by worker "worker" (session 1), where nobody runs it; it is taken up or given back within 20 s."#
        );
        // An outside client cannot see whether code runs.
        let outside = client.handle::<u64>("lost").why().await.unwrap();
        assert!(!outside.contains("running"), "{outside}");
        lab.sleep(BEAT * 3).await;
        let why = abide.handle::<u64>("lost").why().await.unwrap();
        assert!(why.starts_with(&running("lost")), "{why}");
    });
}

#[derive(Default)]
struct Cleaner {
    begun_count: AtomicU32,
    cleaned_count: AtomicU32,
}

/// Undoes its first step when it is cancelled or past its deadline.
#[workflow]
async fn careful(ctx: Ctx) -> Result<()> {
    let cleaner = ctx.state::<Arc<Cleaner>>();
    let count = |counter: &AtomicU32| {
        counter.fetch_add(1, Ordering::Relaxed);
    };
    ctx.step("reserve", || async {
        count(&cleaner.begun_count);
        Ok(())
    })
    .await?;
    let waited: Result<()> = async {
        ctx.step("second", || async { Ok(()) }).await?;
        ctx.recv("go").await
    }
    .await;
    if waited.is_err() {
        let undo = ctx.step("undo", || async {
            count(&cleaner.cleaned_count);
            Ok(())
        });
        ctx.shield(undo).await?;
    }
    waited
}

/// A commit fails for good, and the execution is recovered under its first lease: its code has run,
/// so it sees the cancel and the deadline.
#[test]
fn code_that_has_run_under_its_first_lease_sees_a_cancel_and_a_deadline() {
    for is_deadline in [false, true] {
        let mut commit_count = 0;
        let make = move |clock| -> Arc<dyn Store> {
            FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), move |what| {
                commit_count += u32::from(what == "commit");
                // The first commit has recorded the first step.
                if what == "commit" && commit_count == 2 { Fault::Corrupt } else { Fault::None }
            })
        };
        Lab::run_on(1, make, |lab| async move {
            let cleaner = Arc::new(Cleaner::default());
            let (_, abide) = lab.worker_with(|builder| builder.state(cleaner.clone())).await.unwrap();
            let start = abide.start(careful, ()).id("one");
            let start = if is_deadline { start.deadline(ms(50)) } else { start };
            let handle = start.await.unwrap();
            lab.sleep(ms(10)).await;
            if !is_deadline {
                handle.cancel("enough").await.unwrap();
            }
            lab.sleep(minutes(1)).await;
            let why = handle.why().await.unwrap();
            assert_eq!(cleaner.cleaned_count.load(Ordering::Relaxed), 1, "{why}");
            assert_eq!(cleaner.begun_count.load(Ordering::Relaxed), 1, "{why}");
        });
    }
}

/// Waits for a signal, and notes when the two attempts of its step begin.
#[workflow]
async fn notes(ctx: Ctx) -> Result<()> {
    ctx.recv::<()>("go").await?;
    let (lab, begun) = (ctx.state::<Lab>(), ctx.state::<Arc<Mutex<Vec<Timestamp>>>>());
    ctx.step("note", || async {
        let mut begun = begun.lock().unwrap();
        begun.push(lab.now());
        if begun.len() == 1 { Err("not yet".into()) } else { Ok(()) }
    })
    .retry(Retry::fixed(ms(3_500)).max_attempts(2))
    .await
}

/// The first heartbeat happens at 5 s and is answered at 17 s, when the life that was known has
/// been over for two seconds. The answer prolongs it to 20 s only, because the store counts from
/// the question; the next heartbeat is at 22 s.
#[test]
fn p1_a_late_answer_to_a_heartbeat_promises_the_time_from_its_question_on() {
    let faulty = Arc::new(OnceLock::<Arc<FaultyStore>>::new());
    let made = faulty.clone();
    let make = move |clock| -> Arc<dyn Store> {
        let held = |what| if what == "heartbeat" { Fault::Hold } else { Fault::None };
        made.get_or_init(|| FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), held)).clone()
    };
    Lab::run_on(7, make, |lab| async move {
        let began_at = lab.now();
        let begun = Arc::new(Mutex::new(Vec::<Timestamp>::new()));
        let with = |builder: Builder| builder.state(begun.clone()).state(lab.clone()).park_after(hours(1));
        let (_, abide) = lab.worker_with(with).await.unwrap();
        let handle = abide.start(notes, ()).id("one").await.unwrap();
        lab.sleep(secs(16)).await;
        handle.signal("go", &()).await.unwrap();
        lab.sleep(secs(1)).await;
        assert_eq!(*begun.lock().unwrap(), [], "a session that may be over begins nothing");
        faulty.get().unwrap().heal();
        handle.result().await.unwrap();
        let begun: Vec<_> = begun.lock().unwrap().iter().map(|at| at.since(began_at)).collect();
        assert_eq!((begun.len(), begun[0]), (2, secs(17)), "the answer wakes what waits for it");
        assert!(begun[1] >= secs(22), "the second attempt waits for the next answer: {begun:?}");
    });
}

/// Failures are counted by the holder of the lease: the next one begins anew.
#[test]
fn p8_failures_under_a_lease_that_is_gone_are_forgotten() {
    let make = |clock| -> Arc<dyn Store> {
        let mute = mute("claim", Arc::new(AtomicBool::new(true)))(clock);
        FaultyStore::reading(mute, |read| match read.target {
            Target::Key(_) => Fault::UnreadRows,
            Target::Address(_) => Fault::None,
        })
    };
    Lab::run_on(7, make, |lab| async move {
        lab.client().await.unwrap().start(waits_for_go, ()).id("one").await.unwrap();
        let (_, abide) = lab.worker().await.unwrap();
        lab.sleep(BEAT * 4).await;
        let counts = || (kept(&abide).wanted_count, kept(&abide).failure_count);
        assert_eq!(counts(), (1, 1), "its lease is found, and its records cannot be read");
        give_back(lab.store(), "one", Hold::Park { seen: Vec::new() }).await;
        lab.sleep(BEAT * 2).await;
        assert_eq!(counts(), (0, 0));
    });
}

/// Only who begins anew under the same lease has to know what became of the commit before.
#[test]
fn an_execution_whose_session_is_gone_does_not_wait_for_its_commit() {
    let make = |clock| -> Arc<dyn Store> {
        let is_late = AtomicBool::new(true);
        FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), move |what| match what {
            "commit" if is_late.swap(false, Ordering::Relaxed) => Fault::Late,
            _ => Fault::None,
        })
    };
    Lab::run_on(7, make, |lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        let handle = abide.start(quick, 1).id("one").await.unwrap();
        lab.sleep(Duration::from_secs(1)).await;
        let session = snapshot(lab.store(), "one").await.lease.session.unwrap();
        lab.store().retire(Retire { session, reason: "gone".to_owned() }).await.unwrap();
        lab.sleep(BEAT * 4).await;
        assert_eq!(handle.status().await.unwrap(), Status::Completed, "under the next session");
    });
}
