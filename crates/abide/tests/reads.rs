//! Journals that cannot be read at once.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use abide::prelude::*;
use abide::testing::Lab;
use abide_core::{Address, Bounds, Event, ExecutionId, Namespace};
use abide_store::faults::{Fault, FaultyStore};
use abide_store::memory::MemoryStore;
use abide_store::{Read, Store, Target};

/// The state that code, test and store share.
#[derive(Clone, Default)]
struct Shared {
    is_new: Arc<AtomicU32>,
    /// How often the step "a" ran.
    ran: Arc<AtomicU32>,
    /// One of the constants below.
    stage: Arc<AtomicU32>,
}

const COMMIT_IS_LATE: u32 = 1;
const COMMIT_WAS_LATE: u32 = 2;
const READ_FAILS: u32 = 3;
const READ_FAILED: u32 = 4;

/// More entries than two pages have.
async fn many(ctx: &Ctx) -> Result<()> {
    for _ in 0..2_200 {
        ctx.step("s", || async { Ok(()) }).await?;
    }
    ctx.recv::<()>("go").await
}

/// Newer code asks for "early" late: its entry is more than a page back, and has to be read again.
#[workflow]
async fn long(ctx: Ctx) -> Result<u32> {
    let (shared, lab) = (ctx.state::<Shared>(), ctx.state::<Lab>());
    let early = || ctx.step("early", || async { Ok(7u32) });
    if shared.is_new.load(Ordering::SeqCst) == 0 {
        early().await?;
        many(&ctx).await?;
        return Ok(0);
    }
    many(&ctx).await?;
    let a = ctx.step("a", || async {
        let ran = shared.ran.fetch_add(1, Ordering::SeqCst) + 1;
        if shared.stage.load(Ordering::SeqCst) == READ_FAILS || ran > 1 {
            lab.sleep(secs(60)).await;
        } else {
            shared.stage.store(COMMIT_IS_LATE, Ordering::SeqCst);
        }
        Ok(ran)
    });
    let b = async {
        let b = || async {
            lab.sleep(secs(1)).await;
            let (from, to) = (COMMIT_WAS_LATE, READ_FAILS);
            let _ = shared.stage.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
            Ok(())
        };
        ctx.step("b", b).await?;
        early().await
    };
    let (a, b) = futures_util::join!(a, b);
    b?;
    a
}

/// Makes a store whose next commit is late, and whose reads then fail with `fault`, once or always.
fn store(
    shared: &Shared,
    (fault, is_once): (Fault, bool),
    keep: Arc<OnceLock<Arc<FaultyStore>>>,
) -> impl FnOnce(Arc<dyn abide_store::Clock>) -> Arc<dyn Store> + use<> {
    let stage = shared.stage.clone();
    move |clock| {
        let decide = move |what| match (what, stage.load(Ordering::SeqCst)) {
            ("commit", COMMIT_IS_LATE) => {
                stage.store(COMMIT_WAS_LATE, Ordering::SeqCst);
                Fault::Late
            }
            ("read", READ_FAILS) => {
                stage.store(if is_once { READ_FAILED } else { READ_FAILS }, Ordering::SeqCst);
                fault
            }
            _ => Fault::None,
        };
        let store = FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), decide);
        keep.get_or_init(|| store).clone()
    }
}

/// Runs the old code to its end, and the new code to where it asks for the signal.
async fn deployed(lab: &Lab, shared: &Shared) -> Handle<u32> {
    let with = |builder: abide::Builder| builder.state(shared.clone()).state(lab.clone());
    let (machine, abide) = lab.worker_with(with).await.unwrap();
    abide.start(long, ()).id("one").await.unwrap();
    lab.sleep(secs(20)).await;
    lab.crash(machine);
    shared.is_new.store(1, Ordering::SeqCst);
    let (_, abide) = lab.worker_with(with).await.unwrap();
    lab.sleep(minutes(2)).await;
    abide.handle::<u32>("one")
}

/// A failed read must not begin the execution anew beside its own commit: the commit of the new
/// life would be taken for a repetition, acknowledged and never written.
#[test]
fn p1_a_failed_read_beside_a_commit_under_way_records_nothing_twice() {
    for (fault, is_once) in [(Fault::Unread, true), (Fault::Unavailable, true), (Fault::UnreadRows, false)] {
        let (shared, faulty) = (Shared::default(), Arc::new(OnceLock::new()));
        let store = store(&shared, (fault, is_once), faulty.clone());
        Lab::run_on(1, store, |lab| async move {
            let handle = deployed(&lab, &shared).await;
            handle.signal("go", &()).await.unwrap();
            lab.sleep(if is_once { ms(1_700) } else { secs(15) }).await;
            let found = shared.stage.swap(READ_FAILED, Ordering::SeqCst);
            assert_eq!(found, if is_once { READ_FAILED } else { READ_FAILS });
            faulty.get().unwrap().heal();
            assert_eq!(handle.result().await.unwrap(), 1);
            let id = ExecutionId::new("one").unwrap();
            let target = Target::Address(Address { namespace: Namespace::default(), id });
            let read = Read { target, run: None, from: 2_204, limit: 100, with_inbox: false };
            let journal = lab.store().read(read).await.unwrap().unwrap().journal;
            let recorded = journal.iter().filter_map(|record| match record.entry().unwrap().event {
                Event::StepRecorded(step) => Some(step.op.name.to_string()),
                _ => None,
            });
            assert_eq!(recorded.collect::<Vec<_>>(), ["a", "b"]);
            assert_eq!(shared.ran.load(Ordering::SeqCst), 1);
        });
    }
}

/// A store that cannot answer for a while ends no closure.
#[test]
fn a_failed_read_interrupts_no_step() {
    let shared = Shared::default();
    shared.stage.store(COMMIT_WAS_LATE, Ordering::SeqCst);
    let store = store(&shared, (Fault::Unavailable, true), Arc::default());
    Lab::run_on(1, store, |lab| async move {
        let handle = deployed(&lab, &shared).await;
        shared.ran.store(1, Ordering::SeqCst);
        handle.signal("go", &()).await.unwrap();
        assert_eq!(handle.result().await.unwrap(), 2);
        assert_eq!(shared.stage.load(Ordering::SeqCst), READ_FAILED);
        assert_eq!(shared.ran.load(Ordering::SeqCst), 2, "it ran once");
    });
}

/// Rows that stay unreadable while the store works: each try may run unrecorded steps again, so
/// there is a bound, and then somebody is told.
#[test]
fn p8_an_execution_whose_journal_stays_unreadable_is_blocked() {
    let shared = Shared::default();
    shared.stage.store(COMMIT_WAS_LATE, Ordering::SeqCst);
    let store = store(&shared, (Fault::UnreadRows, false), Arc::default());
    Lab::run_on(1, store, |lab| async move {
        let handle = deployed(&lab, &shared).await;
        shared.ran.store(1, Ordering::SeqCst);
        handle.signal("go", &()).await.unwrap();
        lab.sleep(minutes(10)).await;
        shared.stage.store(READ_FAILED, Ordering::SeqCst);
        let why = handle.why().await.unwrap();
        assert_eq!(handle.status().await.unwrap(), Status::Blocked, "{why}");
        assert!(
            why.contains("its records could not be read 5 times, at most failure_count_max = 5"),
            "{why}"
        );
    });
}

#[workflow]
async fn misplaced(ctx: Ctx) -> Result<u32> {
    let inner = ctx.clone();
    ctx.step("outer", || async { inner.step("inner", || async { Ok(1u32) }).await }).await
}

/// Whether another build has blocked an execution is looked for, but not at any price.
#[test]
fn p7_blocked_executions_cost_an_idle_worker_next_to_nothing() {
    let reads = Arc::new(AtomicU32::new(0));
    let counted = reads.clone();
    let store = move |clock| -> Arc<dyn Store> {
        let decide = move |what| {
            counted.fetch_add(u32::from(what == "read"), Ordering::SeqCst);
            Fault::None
        };
        FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), decide)
    };
    Lab::run_on(1, store, |lab| async move {
        let (_machine, abide) = lab.worker().await.unwrap();
        for nth in 0..300 {
            abide.start(misplaced, ()).id(format!("b{nth}")).await.unwrap();
        }
        lab.sleep(minutes(30)).await;
        assert_eq!(abide.handle::<u32>("b7").status().await.unwrap(), Status::Blocked);
        reads.store(0, Ordering::SeqCst);
        lab.sleep(hours(1)).await;
        let count = reads.load(Ordering::SeqCst);
        assert!(count <= 3_600, "{count} reads in an hour");
    });
}
