//! Each build of the program tries a blocked execution once, and its waiting clients hear of it
//! when no build is left to try.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use abide::prelude::*;
use abide::testing::{Lab, Machine};
use abide_core::{Ability, Address, Bounds, Event, ExecutionId, Kind, Name, Namespace, codec};
use abide_sqlite::SqliteStore;
use abide_store::faults::{Fault, FaultyStore};
use abide_store::memory::MemoryStore;
use abide_store::{
    Changes, Claim, Clock, Commit, CommitOutcome, Hold, Read, Snapshot, Store, Target, Worker,
};

/// The number of blocks that the code of a build gets past.
#[derive(Clone, Copy)]
struct Gets(u32);

const NOWHERE: Gets = Gets(0);
const PAST_ONE: Gets = Gets(1);
const PAST_ALL: Gets = Gets(2);

/// Runs a step, then blocks unless the build gets past this block.
async fn stage(ctx: &Ctx, number: u32) -> Result<u32> {
    let done = ctx.step("stage", || async { Ok(number) }).await?;
    if ctx.state::<Gets>().0 < number {
        // This is no operation of the context.
        pending::<()>().await;
    }
    Ok(done)
}

#[workflow]
async fn flow(ctx: Ctx) -> Result<u32> {
    stage(&ctx, 1).await
}

#[workflow]
async fn two_stages(ctx: Ctx) -> Result<u32> {
    Ok(stage(&ctx, 1).await? + stage(&ctx, 2).await?)
}

#[workflow]
async fn parent(ctx: Ctx) -> Result<u32> {
    ctx.run(flow, ()).id("one").await
}

async fn worker(lab: &Lab, build: &str, gets: Gets) -> (Machine, Abide) {
    lab.worker_with(|builder| builder.build(build).state(gets).session_ttl(secs(3))).await.unwrap()
}

/// Starts "one" on build "a", which is blocked at it.
async fn blocked(lab: &Lab) -> (Machine, Abide) {
    let (machine, abide) = worker(lab, "a", NOWHERE).await;
    abide.start(flow, ()).id("one").await.unwrap();
    lab.sleep(secs(5)).await;
    (machine, abide)
}

/// Starts build "b", which could go on with "one" but has no room.
async fn full(lab: &Lab) -> Abide {
    let open = |builder: abide::Builder| builder.build("b").state(PAST_ALL).execution_count_max(1);
    let (_, abide) = lab.worker_with(open).await.unwrap();
    abide.start(hangs, ()).id("full").await.unwrap();
    abide
}

/// Returns the error that a waiting caller gets, within a minute.
async fn told<T: std::fmt::Debug>(
    lab: &Lab,
    wait: impl IntoFuture<Output = Result<T, ClientError>>,
) -> ClientError {
    tokio::select! {
        told = wait.into_future() => told.unwrap_err(),
        () = lab.sleep(minutes(1)) => panic!("the caller waits on"),
    }
}

async fn look(lab: &Lab) -> Snapshot {
    let id = ExecutionId::new("one").unwrap();
    let target = Target::Address(Address { namespace: Namespace::default(), id });
    lab.store()
        .read(Read { target, run: None, from: 1, limit: 100, with_inbox: true })
        .await
        .unwrap()
        .unwrap()
}

/// Starts a worker, lets it work for a while and stops it. Returns the number of entries it wrote.
async fn visit(lab: &Lab, build: &str, gets: Gets) -> u64 {
    let before = look(lab).await.execution.entry_count();
    let (_, abide) = worker(lab, build, gets).await;
    lab.sleep(secs(10)).await;
    abide.shutdown().await;
    look(lab).await.execution.entry_count() - before
}

#[test]
fn each_build_tries_once() {
    Lab::run(1, |lab| async move {
        let (machine, _abide) = blocked(&lab).await;
        lab.crash(machine);
        lab.sleep(secs(5)).await;
        assert_eq!(visit(&lab, "a", NOWHERE).await, 0, "it has tried");
        assert_eq!(visit(&lab, "b", NOWHERE).await, 2, "it is asked to try, and is blocked");
        for build in ["a", "b", "a", "b"] {
            assert_eq!(visit(&lab, build, NOWHERE).await, 0, "builds of a rolling deploy do not alternate");
        }
        let names = look(&lab).await.execution.tried().to_vec();
        assert_eq!(names, ["a", "b"].map(|name| Name::new(name).unwrap()));
        let (_, abide) = worker(&lab, "c", PAST_ALL).await;
        let handle = abide.handle::<u32>("one");
        let why = handle.why().await.unwrap();
        assert!(why.contains(r#"builds "a", "b" have tried"#), "{why}");
        assert_eq!(handle.result().await.unwrap(), 1);
    });
}

/// A worker that shuts down takes nothing: nobody waits for it.
#[test]
fn nothing_is_left_to_a_build_that_shuts_down() {
    Lab::run(1, |lab| async move {
        let (_machine, abide) = blocked(&lab).await;
        let open = |builder: abide::Builder| {
            let builder = builder.build("b").state(PAST_ALL).execution_count_max(1);
            builder.shutdown_grace(secs(600))
        };
        let (_, other) = lab.worker_with(open).await.unwrap();
        other.start(hangs, ()).id("full").await.unwrap();
        lab.sleep(secs(5)).await;
        let look_on = async {
            lab.sleep(secs(5)).await;
            // Build b had asked for it when it began.
            let handle = abide.handle::<u32>("one");
            lab.sleep(secs(30)).await;
            let why = handle.why().await.unwrap();
            assert_eq!(handle.status().await.unwrap(), Status::Blocked, "build a tries again: {why}");
            let result = tokio::select! {
                result = handle.result() => result,
                () = lab.sleep(secs(60)) => panic!("the caller waits for a build that shuts down: {why}"),
            };
            assert!(matches!(result, Err(ClientError::Blocked { .. })), "{result:?}");
        };
        tokio::select! {
            () = look_on => {}
            () = other.shutdown() => panic!("its step runs"),
        }
    });
}

/// The execution now stands at another obstacle than the one that stopped this build before.
#[test]
fn a_build_tries_again_where_another_one_got_to() {
    Lab::run(1, |lab| async move {
        let (machine, abide) = worker(&lab, "a", NOWHERE).await;
        abide.start(two_stages, ()).id("one").await.unwrap();
        lab.sleep(secs(5)).await;
        lab.crash(machine);
        lab.sleep(secs(5)).await;
        assert_eq!(visit(&lab, "b", NOWHERE).await, 2, "it is asked to try, and is blocked");
        assert_eq!(visit(&lab, "c", PAST_ONE).await, 3, "it gets a step further");
        assert_eq!(look(&lab).await.execution.tried(), [Name::new("c").unwrap()]);
        // Build "b" lacked something other than code: under the same name, it gets past everything
        // now.
        let (_, abide) = worker(&lab, "b", PAST_ALL).await;
        lab.sleep(minutes(1)).await;
        let handle = abide.handle::<u32>("one");
        assert_eq!(handle.status().await.unwrap(), Status::Completed, "{}", handle.why().await.unwrap());
        assert_eq!(handle.result().await.unwrap(), 3);
    });
}

/// The older build has as many chances to take the execution as the newer one.
#[test]
fn a_build_that_has_tried_leaves_it_to_the_one_that_has_not() {
    for seed in 0..10 {
        Lab::run(seed, |lab| async move {
            let (_, _first) = blocked(&lab).await;
            let before = look(&lab).await.execution.entry_count();
            let (_, _second) = worker(&lab, "b", NOWHERE).await;
            lab.sleep(secs(60)).await;
            let found = look(&lab).await.execution;
            assert_eq!(found.tried(), ["a", "b"].map(|name| Name::new(name).unwrap()));
            assert_eq!(found.entry_count() - before, 2, "it is asked to try once, and is blocked");
            lab.sleep(secs(900)).await;
            assert_eq!(look(&lab).await.execution.entry_count(), found.entry_count(), "there is no loop");
        });
    }
}

/// The newer build is gone before it could try, so the older one reports the block again.
#[test]
fn what_is_left_to_a_build_that_is_gone_does_not_rest_for_ever() {
    Lab::run(1, |lab| async move {
        let (_, first) = blocked(&lab).await;
        let handle = first.handle::<u32>("one");
        handle.unblock().await.unwrap();
        lab.sleep(secs(5)).await;
        let error = handle.result().await.unwrap_err();
        assert!(matches!(error, ClientError::Blocked { .. }), "{error:?}");
    });
}

#[workflow]
async fn hangs(ctx: Ctx) -> Result<()> {
    ctx.step("hangs", || async {
        pending::<()>().await;
        Ok(())
    })
    .await
}

/// The build that could go on has no room. The other one applies the orders, and pauses between its
/// attempts to hand the execution over.
#[test]
fn what_is_left_to_a_build_that_is_full_can_be_paused_and_resumed() {
    Lab::run(1, |lab| async move {
        let (_, first) = blocked(&lab).await;
        let handle = first.handle::<u32>("one");
        let _second = full(&lab).await;
        handle.pause().await.unwrap();
        let _ = handle.unblock().await;
        lab.sleep(secs(5)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Paused, "{}", handle.why().await.unwrap());
        let before = look(&lab).await.lease.version;
        handle.resume().await.unwrap();
        lab.sleep(secs(20)).await;
        assert_ne!(handle.status().await.unwrap(), Status::Paused, "{}", handle.why().await.unwrap());
        let commit_count = look(&lab).await.lease.version.0 - before.0;
        assert!(commit_count < 30, "{commit_count} commits in twenty seconds");
    });
}

#[test]
fn what_is_left_to_another_build_says_so() {
    Lab::run(1, |lab| async move {
        let (_, first) = blocked(&lab).await;
        let handle = first.handle::<u32>("one");
        let _second = full(&lab).await;
        handle.unblock().await.unwrap();
        lab.sleep(secs(5)).await;
        let why = handle.why().await.unwrap();
        assert!(why.contains("is left to another build until"), "{why}");
    });
}

/// The build has the code but does not serve the lane.
#[test]
fn a_build_that_serves_another_lane_unblocks_nothing() {
    Lab::run(1, |lab| async move {
        let (_, first) = blocked(&lab).await;
        first.shutdown().await;
        let other = |builder: abide::Builder| builder.build("b").state(PAST_ALL).lanes(["other"]);
        let (_, second) = lab.worker_with(other).await.unwrap();
        lab.sleep(secs(120)).await;
        assert_eq!(second.handle::<u32>("one").status().await.unwrap(), Status::Blocked);
    });
}

/// A bad build that is live for a while takes an execution that a good build could go on with.
#[test]
fn a_good_build_goes_on_with_what_a_bad_one_has_blocked() {
    for is_crash in [true, false] {
        Lab::run(1, |lab| async move {
            let (_, good) = worker(&lab, "good", PAST_ALL).await;
            lab.sleep(secs(100)).await;
            let (canary, bad) = worker(&lab, "bad", NOWHERE).await;
            let handle = bad.start(flow, ()).id("one").await.unwrap();
            lab.sleep(secs(5)).await;
            assert_eq!(handle.status().await.unwrap(), Status::Blocked);
            if is_crash {
                lab.crash(canary);
            }
            lab.sleep(secs(120)).await;
            let handle = good.handle::<u32>("one");
            assert_eq!(handle.status().await.unwrap(), Status::Completed, "{}", handle.why().await.unwrap());
        });
    }
}

#[test]
fn many_that_are_blocked_are_tried() {
    const COUNT: usize = 250;
    Lab::run(1, |lab| async move {
        let (machine, abide) = worker(&lab, "a", NOWHERE).await;
        for n in 0..COUNT {
            abide.start(flow, ()).id(format!("n-{n}")).await.unwrap();
        }
        lab.sleep(secs(5)).await;
        assert_eq!(abide.list(Filter::all().status(Status::Blocked).take(1_000)).await.unwrap().len(), COUNT);
        lab.crash(machine);
        let (_, abide) = worker(&lab, "b", PAST_ALL).await;
        lab.sleep(secs(10)).await;
        assert_eq!(abide.list(Filter::completed().take(1_000)).await.unwrap().len(), COUNT);
    });
}

#[test]
fn whoever_waits_is_told_when_every_live_build_has_tried() {
    Lab::run(1, |lab| async move {
        let (_, abide) = worker(&lab, "a", NOWHERE).await;
        let error = told(&lab, abide.run(flow, ()).id("one")).await;
        let ClientError::Blocked { id, reason } = &error else { panic!("{error:?}") };
        assert_eq!(id, "one");
        assert!(reason.contains("not a ctx operation"), "{reason}");
        // One client runs nothing, the other one comes late.
        let client = lab.client().await.unwrap();
        for abide in [&abide, &client] {
            let error = told(&lab, abide.handle::<u32>("one").result()).await;
            assert!(matches!(error, ClientError::Blocked { .. }), "{error:?}");
        }
        // A build that has not tried may be the fixed one.
        let (_, _fixed) = worker(&lab, "b", PAST_ALL).await;
        assert_eq!(client.handle::<u32>("one").result().await.unwrap(), 1);
    });
}

#[test]
fn whoever_waits_through_blocks_gets_the_result_of_the_fixed_build() {
    Lab::run_on_each(1, |lab| async move {
        let (_, abide) = worker(&lab, "a", NOWHERE).await;
        let handle = abide.start(flow, ()).id("one").await.unwrap();
        let client = lab.client().await.unwrap();
        let far = client.handle::<u32>("one");
        assert!(matches!(handle.result().await, Err(ClientError::Blocked { .. })));
        let wait = async {
            let (near, far) = (handle.result().through_blocks(), far.result().through_blocks());
            tokio::join!(near, far)
        };
        let fix = async {
            lab.sleep(minutes(10)).await;
            assert_eq!(handle.status().await.unwrap(), Status::Blocked);
            worker(&lab, "b", PAST_ALL).await
        };
        let ((near, far), _fixed) = tokio::join!(wait, fix);
        assert_eq!((near.unwrap(), far.unwrap()), (1, 1));
    });
}

/// Callers that have given up harm nobody, wherever the execution stands when they do.
#[test]
fn a_wait_through_blocks_may_be_dropped_at_any_time() {
    for dropped_after in [ms(0), ms(1), secs(5), minutes(10)] {
        Lab::run_on_each(1, |lab| async move {
            let (_, abide) = worker(&lab, "a", NOWHERE).await;
            let handle = abide.start(flow, ()).id("one").await.unwrap();
            let client = lab.client().await.unwrap();
            let far = client.handle::<u32>("one");
            tokio::select! {
                biased;
                () = lab.sleep(dropped_after) => {}
                told = handle.result().through_blocks() => panic!("{told:?}"),
                told = far.result().through_blocks() => panic!("{told:?}"),
            }
            let wait =
                async { tokio::join!(handle.result().through_blocks(), far.result().through_blocks()) };
            let fix = async {
                lab.sleep(secs(10)).await;
                worker(&lab, "b", PAST_ALL).await
            };
            let ((near, far), _fixed) = tokio::join!(wait, fix);
            assert_eq!((near.unwrap(), far.unwrap()), (1, 1), "{dropped_after:?}");
        });
    }
}

#[test]
fn whoever_waits_through_blocks_is_told_of_an_end_without_the_code() {
    Lab::run_on_each(1, |lab| async move {
        let (_, abide) = blocked(&lab).await;
        let handle = abide.handle::<u32>("one");
        let (told, _) = tokio::join!(handle.result().through_blocks(), async {
            lab.sleep(secs(60)).await;
            handle.terminate("enough").await.unwrap();
        });
        assert!(matches!(told, Err(ClientError::Cancelled { .. })), "{told:?}");
    });
}

/// A parent waits on, and says for what.
#[test]
fn the_parent_of_what_is_blocked_waits_on_and_names_it() {
    Lab::run_on_each(1, |lab| async move {
        let (_, abide) = worker(&lab, "a", NOWHERE).await;
        let handle = abide.start(parent, ()).id("parent").await.unwrap();
        lab.sleep(minutes(10)).await;
        let why = handle.why().await.unwrap();
        assert!(
            why.contains(r#"waiting for child "one" (at "#) && why.contains("), which is blocked since"),
            "{why}"
        );
        assert!(why.contains("not a ctx operation"), "{why}");
        let (_, _fixed) = worker(&lab, "b", PAST_ALL).await;
        assert_eq!(handle.result().await.unwrap(), 1);
    });
}

/// Somebody has asked it to go on, and its worker has not read that yet.
#[test]
fn whoever_waits_is_told_nothing_while_it_is_about_to_go_on() {
    Lab::run(1, |lab| async move {
        let (_, _abide) = blocked(&lab).await;
        let client = lab.client().await.unwrap();
        let handle = client.handle::<u32>("one");
        let before = look(&lab).await;
        handle.unblock().await.unwrap();
        let error = handle.result().await.unwrap_err();
        assert!(matches!(error, ClientError::Blocked { .. }), "{error:?}");
        let after = look(&lab).await;
        assert!(after.execution.entry_count() > before.execution.entry_count(), "told before it was tried");
    });
}

#[test]
fn whoever_waits_is_told_when_no_build_is_live() {
    Lab::run(1, |lab| async move {
        let (machine, _abide) = blocked(&lab).await;
        lab.crash(machine);
        lab.sleep(secs(5)).await;
        let error = lab.client().await.unwrap().handle::<u32>("one").result().await.unwrap_err();
        assert!(matches!(error, ClientError::Blocked { .. }), "{error:?}");
    });
}

#[test]
fn a_parent_goes_on_waiting() {
    Lab::run(1, |lab| async move {
        let (machine, abide) = worker(&lab, "a", NOWHERE).await;
        abide.start(parent, ()).id("parent").await.unwrap();
        lab.sleep(secs(30)).await;
        assert_eq!(abide.handle::<u32>("parent").status().await.unwrap(), Status::Waiting);
        lab.crash(machine);
        let (_, abide) = worker(&lab, "b", PAST_ALL).await;
        assert_eq!(abide.handle::<u32>("parent").result().await.unwrap(), 1);
    });
}

#[test]
fn a_block_names_its_build() {
    Lab::run(1, |lab| async move {
        let (_, abide) = worker(&lab, "2026-11-16", NOWHERE).await;
        abide.start(flow, ()).id("one").await.unwrap();
        lab.sleep(secs(5)).await;
        let is_named = |event: &Event| matches!(event, Event::Blocked { build: Some(build), .. } if build.as_str() == "2026-11-16");
        let journal = look(&lab).await.journal;
        assert!(journal.iter().any(|record| is_named(&record.entry().unwrap().event)));
    });
}

/// Leases "newer" without its code, and writes its state as a program of the next format would.
async fn write_as_newer(lab: &Lab) {
    let name = |text: &str| Name::new(text).unwrap();
    let ability = Ability {
        namespace: Namespace::default(),
        lanes: [name("default")].into(),
        runs: [(Kind::Workflow, name("flow"))].into(),
        capabilities: [].into(),
        build: None,
    };
    let worker = Worker { name: name("newer"), ability, ttl: secs(100) };
    let session = lab.store().register(worker).await.unwrap().session;
    let claim = Claim { session, request: 1, slots: 8, care_slots: 8, with_mail: false, sweep: false };
    let claimed = lab.store().claim(claim).await.unwrap();
    let leased = claimed.leased.into_iter().chain(claimed.care).next().expect("a pause is to be applied");
    let mut state = codec::encode(&leased.execution);
    state[0] += 1;
    let changes = Changes {
        records: Default::default(),
        next: None,
        state,
        summary: leased.execution.summary(&[]),
        consumed: leased.inbox.messages.iter().map(|message| message.id.clone()).collect(),
        outgoing: Vec::new(),
    };
    let commit = Commit {
        key: leased.key,
        lease: leased.lease,
        expected: leased.version,
        changes: Arc::new(changes),
        born_slots: 0,
        hold: Hold::Park { seen: Vec::new() },
        transaction: None,
        alone: false,
    };
    assert!(matches!(lab.store().commit(commit).await.unwrap(), CommitOutcome::Committed(_)));
}

/// This program cannot read an execution that a newer program has blocked.
#[test]
fn what_a_newer_program_wrote_does_not_keep_others_from_being_tried() {
    let sqlite = |clock: Arc<dyn Clock>| -> Arc<dyn Store> {
        SqliteStore::in_memory(clock, abide_sqlite::Options::default()).unwrap()
    };
    Lab::run_on(1, sqlite, |lab| async move {
        let (_, first) = worker(&lab, "a", NOWHERE).await;
        for id in ["newer", "good"] {
            first.start(flow, ()).id(id).await.unwrap();
        }
        lab.sleep(secs(5)).await;
        first.shutdown().await;
        lab.client().await.unwrap().handle::<u32>("newer").pause().await.unwrap();
        lab.sleep(secs(1)).await;
        write_as_newer(&lab).await;
        let (_, second) = worker(&lab, "b", PAST_ALL).await;
        lab.sleep(secs(300)).await;
        assert_eq!(second.handle::<u32>("good").status().await.unwrap(), Status::Completed);
        let why = second.handle::<u32>("newer").why().await.unwrap();
        assert_eq!(why, r#""newer" was written by a newer version of abide, and can be read by that only."#);
    });
}

/// A worker that cannot list blocked executions goes on with all others, and need not ask often.
#[test]
fn p7_what_is_blocked_and_cannot_be_listed_is_asked_for_less_and_less_often() {
    let (fails, list_count) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU32::new(0)));
    let (failing, counted) = (fails.clone(), list_count.clone());
    let store = move |clock| -> Arc<dyn Store> {
        FaultyStore::deciding(MemoryStore::new(clock, Bounds::default()), move |what| match what {
            "list" => {
                counted.fetch_add(1, Ordering::Relaxed);
                if failing.load(Ordering::Relaxed) { Fault::Unread } else { Fault::None }
            }
            _ => Fault::None,
        })
    };
    Lab::run_on(1, store, |lab| async move {
        let (machine, abide) = blocked(&lab).await;
        lab.crash(machine);
        drop(abide);
        let (_machine, abide) = worker(&lab, "b", PAST_ALL).await;
        list_count.store(0, Ordering::Relaxed);
        lab.sleep(hours(1)).await;
        let count = list_count.load(Ordering::Relaxed);
        assert!((60..100).contains(&count), "{count} lists in an hour");
        fails.store(false, Ordering::Relaxed);
        list_count.store(0, Ordering::Relaxed);
        lab.sleep(minutes(2)).await;
        assert_eq!(abide.handle::<u32>("one").status().await.unwrap(), Status::Completed);
        assert_eq!(list_count.load(Ordering::Relaxed), 1, "the failures were dear");
    });
}
