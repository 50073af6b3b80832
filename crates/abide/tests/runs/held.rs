//! Operations that are still alive when the code wants its next run: nothing more happens to them.

use std::pin::pin;

use super::*;

/// Receives one signal per run, and keeps the wait for the other name alive while it asks for the
/// next run.
#[workflow]
async fn holds(ctx: Ctx, mut got: Vec<u64>) -> Result<Vec<u64>> {
    let (mut a, mut b) = (ctx.recv::<u64>("a"), ctx.recv::<u64>("b"));
    got.push(select! { n = &mut a => n?, n = &mut b => n? });
    match got.len() {
        6 => Ok(got),
        _ => ctx.continue_as_new(got).await,
    }
}

#[test]
fn a_signal_is_not_lost_to_a_wait_of_the_run_before() {
    on_both(async |lab, abide, _| {
        let handle = abide.start(holds, vec![]).id("one").await.unwrap();
        handle.pause().await.unwrap();
        for n in 0..6u64 {
            handle.signal(if n % 2 == 0 { "a" } else { "b" }, &n).await.unwrap();
        }
        handle.resume().await.unwrap();
        lab.sleep(secs(60)).await;
        let runs = told(&lab, "one").await;
        assert_eq!(handle.status().await.unwrap(), Status::Completed, "{runs:?}");
        let mut got = handle.result().await.unwrap();
        got.sort_unstable();
        assert_eq!(got, [0, 1, 2, 3, 4, 5]);
        for run in &runs[..5] {
            let received = words(run).into_iter().filter(|word| *word == "signal-received").count();
            assert_eq!(received, 1, "{run:?}");
        }
    });
}

/// Holds a wait for a child that has answered, and a running closure.
#[workflow]
async fn holds_more(ctx: Ctx, run: u64) -> Result<u64> {
    if run == 2 {
        return ctx.recv("late").await;
    }
    let (one, two) = (ctx.start(listens, ()).id("c1").await?, ctx.start(listens, ()).id("c2").await?);
    ctx.recv::<()>("go").await?;
    let (mut one, mut two) = (pin!(one.result()), pin!(two.result()));
    let mut busy = pin!(ctx.step("busy", || async {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        Ok(())
    }));
    let mut idle = pin!(ctx.step("idle", std::future::pending::<Result<()>>));
    select! {
        n = &mut one => { n?; }
        n = &mut two => { n?; }
        _ = &mut idle => {}
    }
    let mut next = pin!(ctx.continue_as_new(2));
    let mut late = pin!(ctx.recv::<u64>("late"));
    select! {
        n = &mut next => n,
        _ = &mut busy => ctx.step("went-on", || async { Ok(0) }).await,
        n = &mut two => n,
        n = &mut late => n,
    }
}

#[test]
fn nothing_begins_and_nothing_is_received_once_the_next_run_is_wanted() {
    on_both(async |lab, abide, _| {
        let handle = abide.start(holds_more, 1).id("one").await.unwrap();
        lab.sleep(secs(1)).await;
        for child in ["c1", "c2"] {
            abide.handle::<u64>(child).signal("n", &1u64).await.unwrap();
        }
        lab.sleep(secs(1)).await;
        handle.signal("late", &7u64).await.unwrap();
        handle.signal("go", &()).await.unwrap();
        lab.sleep(secs(60)).await;
        let runs = told(&lab, "one").await;
        assert_eq!(handle.status().await.unwrap(), Status::Completed, "{runs:?}");
        assert_eq!(handle.result().await.unwrap(), 7);
        let words = words(&runs[0]);
        let from = words.iter().position(|word| *word == "child-finished").unwrap();
        assert_eq!(words[from..], ["child-finished", "continued-as-new"]);
    });
}

/// Needs, for its clean-up, the signal that came while it waited for its next run.
#[workflow]
async fn holds_in_vain(ctx: Ctx, run: u64) -> Result<u64> {
    let mut kept = pin!(ctx.recv::<u64>("a"));
    select! { _ = &mut kept => {}, slept = ctx.sleep(ms(1)) => slept? }
    match ctx.continue_as_new::<u64>(run + 1).await {
        Err(error) if error.is_cancelled() => ctx.shield(async { ctx.recv("a").await }).await,
        other => other,
    }
}

/// The cancellation and the signal come between the request for the next run and the end of this
/// one.
#[test]
fn a_signal_is_there_for_the_clean_up_when_a_cancellation_refuses_the_next_run() {
    for make in [memory, sqlite] {
        let is_down = Arc::new(std::sync::atomic::AtomicBool::new(true));
        let down = is_down.clone();
        let faulty = |clock| -> Arc<dyn Store> {
            FaultyStore::deciding(make(clock), move |name| match name {
                "commit" if down.load(Ordering::Relaxed) => Fault::Unavailable,
                _ => Fault::None,
            })
        };
        Lab::run_on(1, faulty, |lab| async move {
            let (_, abide) = lab.worker().await.unwrap();
            let handle = abide.start(holds_in_vain, 1).id("one").await.unwrap();
            lab.sleep(secs(1)).await;
            handle.signal("a", &5u64).await.unwrap();
            lab.sleep(secs(1)).await;
            handle.cancel("enough").await.unwrap();
            lab.sleep(secs(1)).await;
            is_down.store(false, Ordering::Relaxed);
            lab.sleep(secs(60)).await;
            let runs = told(&lab, "one").await;
            assert_eq!(handle.status().await.unwrap(), Status::Completed, "{runs:?}");
            assert_eq!(handle.result().await.unwrap(), 5, "{runs:?}");
        });
    }
}
