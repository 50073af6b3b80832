//! What a shutdown does to running code: the table in docs/guarantees.md, row by row.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, mpsc};

use abide::prelude::*;
use abide::testing::Lab;
use abide::{Builder, ClientError};
use abide_core::{Bounds, Namespace};
use abide_store::faults::{Fault, FaultyStore, NoticeFault};
use abide_store::memory::MemoryStore;
use abide_store::{Clock, Notice, Store, Workers};
use tokio::sync::Notify;

/// What the closures of these tests share.
#[derive(Default)]
struct Closures {
    begin_count: AtomicU32,
    has_begun: Notify,
    may_end: Notify,
}

impl Closures {
    /// A closure that ends when it may. It returns how often one of them began.
    async fn run(&self) -> Result<u32> {
        let count = self.begin_count.fetch_add(1, Ordering::Relaxed) + 1;
        self.has_begun.notify_one();
        self.may_end.notified().await;
        Ok(count)
    }

    fn begin_count(&self) -> u32 {
        self.begin_count.load(Ordering::Relaxed)
    }
}

#[workflow]
async fn one_step(ctx: Ctx) -> Result<u32> {
    let closures = ctx.state::<Arc<Closures>>();
    ctx.step("step", || closures.run()).retry(Retry::exponential(ms(1)).max_attempts(1)).await
}

#[task]
async fn one_task(ctx: Ctx) -> Result<u32> {
    ctx.state::<Arc<Closures>>().run().await
}

#[workflow]
async fn waiting(ctx: Ctx) -> Result<u32> {
    ctx.recv("go").await
}

fn sharing(closures: &Arc<Closures>) -> impl Fn(Builder) -> Builder + use<'_> {
    |builder| builder.state(closures.clone()).shutdown_grace(secs(10))
}

/// Shuts a worker down while `id` runs on it, and has its closure end after `seconds`. Returns the
/// result that another worker reports.
async fn shut_down_beside(lab: &Lab, start: impl AsyncFn(&Abide), seconds: u64) -> (u32, u32) {
    let closures = Arc::new(Closures::default());
    let (_, abide) = lab.worker_with(sharing(&closures)).await.unwrap();
    start(&abide).await;
    closures.has_begun.notified().await;
    let end = async {
        lab.sleep(secs(seconds)).await;
        closures.may_end.notify_waiters();
    };
    futures_util::join!(abide.shutdown(), end);
    let (_, other) = lab.worker_with(sharing(&closures)).await.unwrap();
    let handle = other.handle::<u32>("one");
    if closures.begin_count() == 1 && handle.status().await.unwrap() != Status::Completed {
        closures.has_begun.notified().await;
        closures.may_end.notify_one();
    }
    (handle.result().await.unwrap(), closures.begin_count())
}

async fn start_step(abide: &Abide) {
    abide.start(one_step, ()).id("one").await.unwrap();
}

async fn start_task(abide: &Abide) {
    abide.start(one_task, ()).id("one").retry(Retry::exponential(ms(1)).max_attempts(1)).await.unwrap();
}

#[test]
fn closures_and_tasks_that_end_within_the_grace_are_recorded() {
    Lab::run(1, |lab| async move {
        assert_eq!(shut_down_beside(&lab, start_step, 9).await, (1, 1));
    });
    Lab::run(2, |lab| async move {
        assert_eq!(shut_down_beside(&lab, start_task, 9).await, (1, 1));
    });
}

/// Both have a single attempt: were the interrupted one counted, they would fail.
#[test]
fn closures_and_tasks_that_outlast_the_grace_run_again_elsewhere_as_the_same_attempt() {
    Lab::run(1, |lab| async move {
        assert_eq!(shut_down_beside(&lab, start_step, 11).await, (2, 2));
    });
    Lab::run(2, |lab| async move {
        assert_eq!(shut_down_beside(&lab, start_task, 11).await, (2, 2));
    });
}

/// An order from another process.
#[derive(Clone, Copy, Debug)]
enum Ordered {
    Cancel,
    Terminate,
    Pause,
}

/// Sends an order while a worker shuts down around a running closure, which ends nine seconds
/// later. Returns the status at the end of the shutdown.
async fn ordered_beside(lab: &Lab, start: impl AsyncFn(&Abide), order: Ordered) -> Status {
    let closures = Arc::new(Closures::default());
    let (_, abide) = lab.worker_with(sharing(&closures)).await.unwrap();
    let client = lab.client().await.unwrap();
    start(&abide).await;
    closures.has_begun.notified().await;
    let others = async {
        lab.sleep(secs(1)).await;
        let handle = client.handle::<u32>("one");
        match order {
            Ordered::Cancel => handle.cancel("enough").await.unwrap(),
            Ordered::Terminate => handle.terminate("enough").await.unwrap(),
            Ordered::Pause => handle.pause().await.unwrap(),
        }
        lab.sleep(secs(8)).await;
        closures.may_end.notify_waiters();
    };
    futures_util::join!(abide.shutdown(), others);
    client.handle::<u32>("one").status().await.unwrap()
}

/// Returns a store that loses every notice, or none. The next look makes up for a lost one.
fn telling(is_lossy: bool) -> impl FnOnce(Arc<dyn Clock>) -> Arc<dyn Store> {
    move |clock| {
        let store = MemoryStore::new(clock, Bounds::default());
        FaultyStore::disturbing(store, move |_| if is_lossy { NoticeFault::Lose } else { NoticeFault::None })
    }
}

/// A closure may run for as long as the grace, and its execution may be cancelled meanwhile.
#[test]
fn orders_count_while_a_worker_shuts_down() {
    for is_lossy in [false, true] {
        let check = |order: Ordered, expected: (Status, Status)| {
            Lab::run_on(1, telling(is_lossy), |lab| async move {
                let found = ordered_beside(&lab, start_step, order).await;
                assert_eq!(found, expected.0, "{order:?} of a workflow");
            });
            Lab::run_on(1, telling(is_lossy), |lab| async move {
                let found = ordered_beside(&lab, start_task, order).await;
                assert_eq!(found, expected.1, "{order:?} of a task");
            });
        };
        check(Ordered::Cancel, (Status::Cancelled, Status::Cancelled));
        check(Ordered::Terminate, (Status::Cancelled, Status::Cancelled));
        // A task as a whole is one closure, which may finish.
        check(Ordered::Pause, (Status::Paused, Status::Completed));
    }
}

/// A store that cannot describe messages says only that something has changed.
#[test]
fn an_order_that_a_store_only_hints_at_counts_at_once_while_a_worker_shuts_down() {
    let vague = |clock| -> Arc<dyn Store> {
        FaultyStore::disturbing(MemoryStore::new(clock, Bounds::default()), |notice| match notice {
            Notice::Message { .. } => NoticeFault::Lose,
            Notice::Ready | Notice::Changed | Notice::Intake => NoticeFault::None,
        })
    };
    Lab::run_on(1, vague, |lab| async move {
        let closures = Arc::new(Closures::default());
        let (_, abide) = lab.worker_with(sharing(&closures)).await.unwrap();
        let client = lab.client().await.unwrap();
        start_step(&abide).await;
        closures.has_begun.notified().await;
        let others = async {
            lab.sleep(secs(1)).await;
            client.handle::<u32>("one").terminate("enough").await.unwrap();
            // Its timer is a change that the store hints at.
            client.start(waiting, ()).id("timer").delay(hours(1)).await.unwrap();
            lab.sleep(ms(100)).await;
            client.handle::<u32>("one").status().await.unwrap()
        };
        let ((), status) = futures_util::join!(abide.shutdown(), others);
        assert_eq!(status, Status::Cancelled);
    });
}

/// Shuts a worker down around a running closure, and ends that when `meanwhile` is over.
async fn shut_down_around<T>(lab: &Lab, meanwhile: impl Future<Output = T>) -> T {
    let closures = Arc::new(Closures::default());
    let (_, abide) = lab.worker_with(sharing(&closures)).await.unwrap();
    start_step(&abide).await;
    closures.has_begun.notified().await;
    let others = async {
        let found = meanwhile.await;
        assert_eq!(abide.handle::<u32>("one").status().await.unwrap(), Status::Running, "the grace lasts");
        closures.may_end.notify_one();
        found
    };
    futures_util::join!(abide.shutdown(), others).1
}

/// Returns why the session of the first worker has ended.
async fn first_end(lab: &Lab) -> Option<String> {
    let workers = Workers { namespace: Namespace::default(), after: None, limit: 1 };
    lab.store().workers(workers).await.unwrap().remove(0).retired
}

#[test]
fn a_worker_that_shuts_down_does_not_look_for_dead_ones() {
    Lab::run(1, |lab| async move {
        let short = |builder: Builder| builder.lanes(["other"]).session_ttl(secs(3));
        let (machine, _dead) = lab.worker_with(short).await.unwrap();
        let meanwhile = async {
            lab.crash(machine);
            lab.sleep(secs(9)).await;
            first_end(&lab).await
        };
        assert_eq!(shut_down_around(&lab, meanwhile).await, None);
        let _next = lab.worker().await.unwrap();
        lab.sleep(secs(1)).await;
        assert_eq!(first_end(&lab).await.as_deref(), Some("expired"));
    });
}

#[test]
fn a_worker_that_shuts_down_looks_after_nothing_that_others_left() {
    Lab::run(1, |lab| async move {
        let client = lab.client().await.unwrap();
        let handle = client.handle::<u32>("other");
        let meanwhile = async {
            client.start(waiting, ()).id("other").lane("nobody").await.unwrap();
            handle.terminate("enough").await.unwrap();
            lab.sleep(secs(9)).await;
            handle.status().await.unwrap()
        };
        assert_ne!(shut_down_around(&lab, meanwhile).await, Status::Cancelled);
        let _next = lab.worker().await.unwrap();
        lab.sleep(secs(1)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Cancelled);
    });
}

#[test]
fn after_a_shutdown_nothing_is_kept_and_the_store_is_left_alone() {
    let faulty = Arc::new(OnceLock::<Arc<FaultyStore>>::new());
    let made = faulty.clone();
    let make = move |clock| -> Arc<dyn Store> {
        let store = MemoryStore::new(clock, Bounds::default());
        made.get_or_init(|| FaultyStore::scripted(store, Vec::new())).clone()
    };
    Lab::run_on(1, make, |lab| async move {
        let closures = Arc::new(Closures::default());
        let (_, abide) = lab.worker_with(sharing(&closures)).await.unwrap();
        start_step(&abide).await;
        closures.has_begun.notified().await;
        futures_util::join!(abide.shutdown(), async { closures.may_end.notify_one() });
        drop(abide);
        // Pauses of recurring work end within a minute.
        lab.sleep(minutes(2)).await;
        assert_eq!(Arc::strong_count(&closures), 1, "the engine is gone, and the state with it");
        let before = faulty.get().unwrap().counts();
        lab.sleep(hours(1)).await;
        assert_eq!(faulty.get().unwrap().counts(), before);
    });
}

#[test]
fn a_shutdown_with_nothing_but_waiting_workflows_takes_no_time() {
    Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker_with(|builder| builder.shutdown_grace(hours(1))).await.unwrap();
        let handle = abide.start(waiting, ()).id("one").await.unwrap();
        let late = lab.sleep(secs(1));
        tokio::select! {
            biased;
            () = abide.shutdown() => {}
            () = late => panic!("the shutdown waits for a workflow that only waits"),
        }
        assert_eq!(handle.id(), "one");
    });
}

/// Its journal has more than one page.
#[workflow]
async fn many_steps(ctx: Ctx) -> Result<u32> {
    for n in 0..1_500 {
        ctx.step("step", || async { Ok(n) }).await?;
    }
    ctx.recv("go").await
}

#[test]
fn a_shutdown_does_not_wait_for_a_journal_that_is_being_read() {
    let is_slow = Arc::new(AtomicBool::new(false));
    let slow = is_slow.clone();
    let make = move |clock| -> Arc<dyn Store> {
        FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), move |operation| {
            if operation == "read" && slow.load(Ordering::Relaxed) { Fault::Hold } else { Fault::None }
        })
    };
    Lab::run_on(1, make, |lab| async move {
        let (machine, first) = lab.worker_with(|builder| builder.session_ttl(secs(3))).await.unwrap();
        let handle = first.start(many_steps, ()).id("one").await.unwrap();
        lab.sleep(secs(1)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Waiting);
        lab.crash(machine);
        is_slow.store(true, Ordering::Relaxed);
        let (_, next) = lab.worker_with(|builder| builder.shutdown_grace(hours(1))).await.unwrap();
        let client = lab.client().await.unwrap();
        client.handle::<u32>("one").signal("go", &1u32).await.unwrap();
        lab.sleep(secs(10)).await;
        let late = lab.sleep(secs(1));
        tokio::select! {
            biased;
            () = next.shutdown() => {}
            () = late => panic!("the shutdown waits for a page of the journal"),
        }
    });
}

#[test]
fn callers_that_wait_in_a_process_that_shuts_down_are_told_so() {
    Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker().await.unwrap();
        let handle = abide.start(waiting, ()).id("one").await.unwrap();
        let (result, ()) = futures_util::join!(handle.result(), async {
            lab.sleep(secs(1)).await;
            abide.shutdown().await;
        });
        assert!(matches!(result, Err(ClientError::Closed)), "{result:?}");
        let (_, other) = lab.worker().await.unwrap();
        other.handle::<u32>("one").signal("go", &7).await.unwrap();
        assert_eq!(other.handle::<u32>("one").result().await.unwrap(), 7);
    });
}

/// The two ends of a blocking closure that outlasts its worker.
#[derive(Clone)]
struct Blocked {
    has_begun: mpsc::SyncSender<()>,
    may_end: Arc<std::sync::Mutex<mpsc::Receiver<()>>>,
}

#[workflow]
async fn one_blocking(ctx: Ctx) -> Result<u32> {
    let blocked = ctx.state::<Blocked>().clone();
    ctx.blocking("blocking", move || {
        blocked.has_begun.send(())?;
        // The second run finds nobody at the other end, and goes on.
        let _ = blocked.may_end.lock().expect("nobody panics").recv();
        Ok(1)
    })
    .await
}

/// On real threads: only they show that one cannot be stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocking_closure_that_outlasts_the_grace_holds_up_no_shutdown() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("a.db").display());
    let (has_begun, begun) = mpsc::sync_channel(9);
    let (let_go, may_end) = mpsc::channel();
    let blocked = Blocked { has_begun, may_end: Arc::new(std::sync::Mutex::new(may_end)) };
    let builder = || Abide::builder(&url).state(blocked.clone()).shutdown_grace(ms(50));
    let abide = builder().open().await.unwrap();
    abide.start(one_blocking, ()).id("one").await.unwrap();
    begun.recv().unwrap();
    abide.shutdown().await;
    let abide = builder().open().await.unwrap();
    assert_ne!(abide.handle::<u32>("one").status().await.unwrap(), Status::Completed);
    drop(let_go);
    assert_eq!(abide.handle::<u32>("one").result().await.unwrap(), 1);
    assert!(begun.try_recv().is_ok(), "it ran again, because its late result was discarded");
    abide.shutdown().await;
}

/// The answer to a claim comes during the grace period, in which another closure still runs.
#[test]
fn what_was_leased_while_a_shutdown_began_is_given_back_unrun() {
    let (is_slow, faulty) = (Arc::new(AtomicBool::new(false)), Arc::new(OnceLock::<Arc<FaultyStore>>::new()));
    let (slow, made) = (is_slow.clone(), faulty.clone());
    let make = move |clock| -> Arc<dyn Store> {
        let held = move |operation| {
            if operation == "claim" && slow.load(Ordering::Relaxed) { Fault::Hold } else { Fault::None }
        };
        made.get_or_init(|| FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), held)).clone()
    };
    Lab::run_on(1, make, |lab| async move {
        let (first, second) = (Arc::new(Closures::default()), Arc::new(Closures::default()));
        let (_, abide) = lab.worker_with(sharing(&first)).await.unwrap();
        start_step(&abide).await;
        first.has_begun.notified().await;
        is_slow.store(true, Ordering::Relaxed);
        let client = lab.client().await.unwrap();
        client.start(one_step, ()).id("late").await.unwrap();
        lab.sleep(ms(100)).await;
        let elsewhere = async {
            lab.sleep(secs(1)).await;
            faulty.get().unwrap().heal();
            let (_, other) = lab.worker_with(sharing(&second)).await.unwrap();
            second.may_end.notify_one();
            lab.sleep(secs(5)).await;
            assert_eq!(client.handle::<u32>("late").status().await.unwrap(), Status::Completed);
            first.may_end.notify_one();
            other
        };
        let ((), _abide) = futures_util::join!(abide.shutdown(), elsewhere);
        assert_eq!((first.begin_count(), second.begin_count()), (1, 1));
    });
}

/// Each lease is given back by itself: nobody has to wait until the session expires.
#[test]
fn what_outlasts_the_grace_goes_on_elsewhere_although_the_session_cannot_be_ended() {
    let make = |clock| -> Arc<dyn Store> {
        FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), |operation| {
            if operation == "retire" { Fault::Unavailable } else { Fault::None }
        })
    };
    Lab::run_on(1, make, |lab| async move {
        let closures = Arc::new(Closures::default());
        let (_, abide) = lab.worker_with(sharing(&closures)).await.unwrap();
        start_step(&abide).await;
        closures.has_begun.notified().await;
        abide.shutdown().await;
        let (_, _other) = lab.worker_with(sharing(&closures)).await.unwrap();
        lab.sleep(secs(1)).await;
        assert_eq!(closures.begin_count(), 2);
    });
}
