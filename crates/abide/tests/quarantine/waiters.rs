//! Executions that only wait: they were in memory when workers died, and run nothing that could
//! kill one.

use super::*;

use abide_core::{Address, Body, By, ExecutionId, Message, MessageId, Name, Namespace, Payload};
use abide_store::Submit;

const WAITER_COUNT: u32 = 150;

/// Waits for a signal, and then runs a step.
#[workflow]
async fn waiter(ctx: Ctx) -> Result<u64> {
    let world = ctx.state::<Shared>();
    let got: u64 = ctx.recv("go").await?;
    ctx.step("note", || async {
        let _mark = world.enter(&ctx).await;
        Ok(())
    })
    .await?;
    Ok(got)
}

/// Waits for a signal or a timer, whichever comes first.
#[workflow]
async fn patient(ctx: Ctx) -> Result<Option<u64>> {
    Ok(ctx.recv("go").timeout(secs(30)).await.ok())
}

/// Waits for many signals, and for the next attempt of a step, which is far away.
#[workflow]
async fn torn(ctx: Ctx) -> Result<()> {
    let signals = (0..100).map(|nth| ctx.recv::<u64>(&format!("signal-{nth}")));
    let step = ctx
        .step("try", || async { Err::<(), _>(Error::new("not yet")) })
        .retry(Retry::fixed(hours(1)).max_attempts(2));
    let (_, tried) = futures_util::join!(futures_util::future::join_all(signals), step);
    tried
}

/// Starts workers, the last of which finds that two others have died with waiters in memory.
async fn with_suspected_waiters(world: &Shared) -> Vec<Abide> {
    let mut workers = vec![worker(world).await];
    for id in ids("waiter", WAITER_COUNT) {
        workers[0].start(waiter, ()).id(&id).await.unwrap();
    }
    workers[0].start(patient, ()).id("patient").await.unwrap();
    for nth in 1..3u32 {
        world.lab.sleep(ms(500)).await;
        let machine = world.machine.lock().unwrap().unwrap();
        world.lab.crash(machine);
        for id in ids("waiter", WAITER_COUNT) {
            let found = world.snapshot(&id).await;
            let session = SessionId(nth.into());
            assert_eq!((found.lease.session, found.takeover_count), (Some(session), nth - 1), "{id}");
        }
        // By then the next worker can claim all of them at once.
        world.lab.sleep(secs(10)).await;
        workers.push(worker(world).await);
    }
    workers
}

#[test]
fn waiters_whose_workers_died_hold_up_nobody() {
    on(1, memory, waiters_hold_up_nobody);
    on(2, sqlite, waiters_hold_up_nobody);
}

async fn waiters_hold_up_nobody(world: Shared) {
    let workers = with_suspected_waiters(&world).await;
    let abide = workers.last().unwrap();
    let suspect_count = async || {
        let mut count = 0;
        for id in ids("waiter", WAITER_COUNT) {
            count += u32::from(world.snapshot(&id).await.takeover_count > 1);
        }
        count
    };
    let others = ids("other", 3);
    start_all(abide, &others, (3, 10)).await;
    within(&world, secs(1), finish(&world, abide.clone(), &others)).await;
    within(&world, secs(1), async {
        while suspect_count().await > 0 {
            world.lab.sleep(ms(10)).await;
        }
    })
    .await;
    assert_eq!(world.snapshot("patient").await.takeover_count, 0);
    let handle = abide.handle::<u64>("waiter-7");
    handle.signal("go", &7u64).await.unwrap();
    assert_eq!(within(&world, secs(1), handle.result()).await.unwrap(), 7);
    let handle = abide.handle::<Option<u64>>("patient");
    assert_eq!(within(&world, secs(31), handle.result()).await.unwrap(), None);
}

/// An execution that waits for its next attempt is still a suspect, however many other things it
/// waits for.
#[test]
fn an_attempt_among_many_waits_clears_nobody() {
    on_both(async |world| {
        let mut workers = vec![worker(&world).await];
        workers[0].start(torn, ()).id("torn").await.unwrap();
        for _ in 0..2 {
            world.lab.sleep(ms(500)).await;
            let machine = world.machine.lock().unwrap().unwrap();
            world.lab.crash(machine);
            world.lab.sleep(secs(10)).await;
            workers.push(worker(&world).await);
        }
        world.lab.sleep(secs(200)).await;
        let found = world.snapshot("torn").await;
        assert_eq!(found.lease.session, None, "it is parked");
        assert_eq!(found.takeover_count, 2);
    });
}

#[test]
fn who_waits_for_a_suspect_says_so() {
    on_both(async |world| {
        let abide = worker(&world).await;
        abide.start(poison, 2).id("poison").await.unwrap();
        let abide = outlive(&world, 2).await;
        wait_for_lease(&world, "poison", 3).await;
        world.lab.sleep(ms(1)).await;
        start_all(&abide, &["other".to_owned()], (1, 10)).await;
        world.lab.sleep(ms(100)).await;
        let why = abide.handle::<u32>("other").why().await.unwrap();
        let expected = "and waits for \"poison\", which runs alone on worker \"worker\" (session 3), because 2 workers \
                        in a row died while holding it.";
        assert!(why.ends_with(expected), "{why}");
        finish(&world, abide, &["other".to_owned()]).await;
    });
}

#[test]
fn who_waits_for_a_memory_to_be_cleared_says_so() {
    on_both(async |world| {
        let abide = with_waiting_suspect(&world).await;
        let client = world.lab.client().await.unwrap();
        // In these seconds the suspect makes others leave now and then, except the step, and lets
        // them in again.
        let mut said_count = 0;
        for nth in 0..70 {
            let id = format!("other-{nth}");
            start_all(&client, std::slice::from_ref(&id), (1, 1)).await;
            world.lab.sleep(ms(20)).await;
            let found = world.snapshot(&id).await;
            if found.ready_at.is_some() {
                let why = client.handle::<u32>(&id).why().await.unwrap();
                assert!(why.contains("and waits for \"poison\", which "), "{why}");
                said_count += usize::from(why.contains("which is to run alone on worker"));
            }
            world.lab.sleep(ms(80)).await;
        }
        assert!(said_count > 0, "nobody had to wait");
        finish(&world, abide, &["long".to_owned()]).await;
    });
}

/// Waits for a signal, which another process sends when the code is called for the third time.
#[workflow]
async fn beckons(ctx: Ctx) -> Result<u64> {
    let world = ctx.state::<Shared>();
    let call_count = {
        let mut begun = world.begun.lock().unwrap();
        let count = begun.entry("beckons".to_owned()).or_default();
        *count += 1;
        *count
    };
    if call_count == 3 {
        let to = Address { namespace: Namespace::default(), id: ExecutionId::new(ctx.id()).unwrap() };
        let body = Body::Signal { name: Name::new("go").unwrap(), payload: Payload::from("7") };
        let message = Message::new(MessageId::new("from elsewhere"), to, By::client(), body);
        // The store takes the message when it is asked, even though nobody waits for the answer.
        drop(world.lab.store().submit(Submit {
            messages: vec![message],
            born_to: None,
            alone: true,
            stretch: None,
        }));
    }
    ctx.recv("go").await
}

/// No notice of another process's message reaches this one. A suspect that leaves memory at that
/// moment still finds the message.
#[test]
fn mail_from_elsewhere_reaches_a_suspect_that_parks() {
    for make in [memory, sqlite] {
        let silent = |clock| -> Arc<dyn Store> {
            let chances = Chances { notice_lose_permille: 1_000, ..Chances::default() };
            FaultyStore::seeded(make(clock), 1, chances)
        };
        on(1, silent, async |world| {
            let mut workers = vec![worker(&world).await];
            workers[0].start(beckons, ()).id("one").await.unwrap();
            for _ in 0..2 {
                world.lab.sleep(ms(500)).await;
                let machine = world.machine.lock().unwrap().unwrap();
                world.lab.crash(machine);
                world.lab.sleep(secs(10)).await;
                workers.push(worker(&world).await);
            }
            let handle = workers[2].handle::<u64>("one");
            assert_eq!(within(&world, secs(60), handle.result()).await.unwrap(), 7);
            assert_eq!(world.begun.lock().unwrap()["beckons"], 4, "it had left memory");
        });
    }
}
