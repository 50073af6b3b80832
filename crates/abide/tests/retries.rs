//! The cases in which a failed step or task is tried again, and those in which it is not.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use abide::prelude::*;
use abide::testing::Lab;
use abide::{Builder, FailureKind};

/// The beginning of each attempt, in milliseconds since the first.
#[derive(Clone, Default)]
struct Begun(Arc<Mutex<Vec<Timestamp>>>);

impl Begun {
    fn millis(&self) -> Vec<u128> {
        let begun = self.0.lock().unwrap();
        begun.iter().map(|at| at.since(begun[0]).as_millis()).collect()
    }
}

/// An attempt that takes a second and fails.
async fn fail(ctx: &Ctx) -> Result<u32> {
    let (lab, Begun(begun)) = (ctx.state::<Lab>(), ctx.state::<Begun>());
    let nth = {
        let mut begun = begun.lock().unwrap();
        begun.push(lab.now());
        begun.len()
    };
    lab.sleep(secs(1)).await;
    Err(Error::new(format!("attempt {nth}")))
}

#[workflow]
async fn flow(ctx: Ctx, retry: String) -> Result<u32> {
    ctx.step("fail", || fail(&ctx)).retry(policy(&retry)).await
}

#[task]
async fn job(ctx: Ctx) -> Result<u32> {
    fail(&ctx).await
}

fn policy(name: &str) -> Retry {
    match name {
        "forever" => Retry::forever(),
        "elapsed" => Retry::fixed(secs(10)).max_elapsed(secs(33)),
        "soon" => Retry::fixed(ms(10)).max_elapsed(ms(2_500)),
        "zero" => Retry::fixed(ms(0)).max_elapsed(ms(0)),
        "jitter" => Retry::fixed(secs(10)).jitter(0.5).max_attempts(4),
        other => panic!("no policy {other}"),
    }
}

/// Returns the times at which the attempts of a task, and of a step, begin under this policy.
fn begun_under(name: &'static str, id: &'static str) -> [Vec<u128>; 2] {
    [true, false].map(|is_task| {
        let found = Arc::new(Mutex::new(Vec::new()));
        let out = found.clone();
        Lab::run(1, move |lab| async move {
            let begun = Begun::default();
            let open =
                |builder: Builder| builder.state(begun.clone()).state(lab.clone()).session_ttl(hours(30));
            let (_, abide) = lab.worker_with(open).await.unwrap();
            if is_task {
                abide.start(job, ()).id(id).retry(policy(name)).await.unwrap();
            } else {
                abide.start(flow, name.to_owned()).id(id).await.unwrap();
            }
            // Longer than the tested attempts take.
            lab.sleep(if name == "forever" { secs(12_000) } else { secs(100) }).await;
            *out.lock().unwrap() = begun.millis();
        });
        std::mem::take(&mut *found.lock().unwrap())
    })
}

/// Between two of these attempts the execution leaves memory, so its knowledge comes from its
/// journal.
#[test]
fn no_attempt_begins_when_the_longest_time_is_over() {
    let rows: [(_, &[u128]); 3] =
        [("elapsed", &[0, 11_000, 22_000]), ("soon", &[0, 1_010, 2_020]), ("zero", &[0])];
    for (name, expected) in rows {
        assert_eq!(begun_under(name, "a"), [expected, expected], "{name}");
    }
}

#[test]
fn forever_goes_on_with_pauses_of_at_most_an_hour() {
    for begun in begun_under("forever", "a") {
        let pauses: Vec<_> = begun.windows(2).map(|pair| (pair[1] - pair[0]) / 1_000 - 1).collect();
        let grown = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 3_600, 3_600];
        assert_eq!(pauses, grown);
    }
}

#[test]
fn jitter_spreads_what_failed_together_and_is_the_same_in_every_life() {
    let [task, step] = begun_under("jitter", "a");
    for begun in [&task, &step] {
        assert_eq!(begun.len(), 4);
        for pair in begun.windows(2) {
            let pause = pair[1] - pair[0] - 1_000;
            assert!((5_000..=10_000).contains(&pause), "{pause}");
        }
    }
    assert_eq!(begun_under("jitter", "a"), [task.clone(), step]);
    assert_ne!(begun_under("jitter", "b")[0], task, "another execution");
}

#[workflow]
async fn asks(ctx: Ctx, way: String) -> Result<u32> {
    let count = AtomicU32::new(0);
    let attempt = || async {
        let nth = count.fetch_add(1, Ordering::SeqCst);
        match way.as_str() {
            "panic" => panic!("attempt {nth}"),
            "fatal" => Err(Error::fatal("final")),
            "slow" => std::future::pending().await,
            _ if nth == 0 => Err(Error::new("passing")),
            _ => Err(Error::new("lasting")),
        }
    };
    let asked = Arc::new(AtomicU32::new(0));
    let (asked_here, is_broken) = (asked.clone(), way == "broken");
    let outcome = ctx
        .step("ask", attempt)
        .retry(Retry::fixed(ms(1)).max_attempts(3))
        .timeout(secs(1))
        .retry_if(move |error| {
            asked_here.fetch_add(1, Ordering::SeqCst);
            assert!(!is_broken, "the question is broken");
            error.message() == "passing"
        })
        .await;
    outcome.map_err(|error: Error| {
        let told = (error.kind(), error.message().to_owned(), asked.load(Ordering::SeqCst));
        Error::typed(format!("{told:?}"))
    })
}

#[abide::test]
async fn the_code_is_asked_before_another_attempt(abide: Abide) {
    let rows = [
        ("error", FailureKind::Error, "lasting", 2),
        ("panic", FailureKind::Panic, "attempt 0", 1),
        ("fatal", FailureKind::Fatal, "final", 0),
        ("slow", FailureKind::Timeout, "the attempt took longer than 1s", 1),
        ("broken", FailureKind::Panic, "the question is broken", 1),
    ];
    for (way, kind, message, asked_count) in rows {
        let error = abide.run(asks, way.to_owned()).await.unwrap_err();
        let expected = format!("{:?}", (kind, message, asked_count));
        let found: String = error.get().unwrap();
        // The message of a panic includes its place.
        assert!(found.starts_with(&expected[..expected.len() - 5]), "{way}: {found} and not {expected}");
        assert!(found.ends_with(&format!(", {asked_count})")), "{way}: {found}");
    }
}

#[test]
fn what_was_the_last_attempt_is_not_asked_about() {
    #[workflow]
    async fn once(ctx: Ctx) -> Result<u32> {
        let fails = || async { Err(Error::new("no")) };
        ctx.step("once", fails).retry_if(|_| panic!("nobody wants to know")).await
    }
    abide::testing::Test::new().run(|abide| async move {
        let error = abide.run(once, ()).await.unwrap_err();
        assert!(error.to_string().contains("failed: no (step "), "{error}");
    });
}

#[test]
fn an_error_that_the_code_cannot_judge_is_kept() {
    #[workflow]
    async fn judged(ctx: Ctx) -> Result<u32> {
        let fails = || async { Err(Error::from(std::io::Error::other("declined"))) };
        let policy = Retry::fixed(secs(1));
        ctx.step("pay", fails).retry(policy).retry_if(|_| panic!("no idea")).await
    }
    abide::testing::Test::new().run(|abide| async move {
        let error = abide.run(judged, ()).await.unwrap_err().to_string();
        assert!(error.contains("no idea: declined"), "{error}");
    });
}

/// Opens a worker whose attempts are recorded.
async fn worker(lab: &Lab, begun: &Begun) -> Abide {
    let open = |builder: Builder| builder.state(begun.clone()).state(lab.clone());
    lab.worker_with(open).await.unwrap().1
}

/// Starts the task or the workflow whose attempts fail, under the policy "elapsed".
async fn failing(abide: &Abide, is_task: bool, deadline: Duration) -> Handle<u32> {
    match is_task {
        true => abide.start(job, ()).id("a").retry(policy("elapsed")).deadline(deadline).await.unwrap(),
        false => abide.start(flow, "elapsed".to_owned()).id("a").deadline(deadline).await.unwrap(),
    }
}

/// The second attempt was planned for a time within the pause, and is made after it. There is no
/// third one: the time went on.
#[test]
fn the_longest_time_goes_on_in_a_pause() {
    for is_task in [true, false] {
        Lab::run(1, |lab| async move {
            let begun = Begun::default();
            let abide = worker(&lab, &begun).await;
            let handle = failing(&abide, is_task, hours(1)).await;
            lab.sleep(secs(5)).await;
            handle.pause().await.unwrap();
            lab.sleep(secs(60)).await;
            assert_eq!(begun.millis(), [0], "task: {is_task}");
            handle.resume().await.unwrap();
            lab.sleep(secs(100)).await;
            assert_eq!(begun.millis(), [0, 65_000], "task: {is_task}");
            let error = handle.result().await.unwrap_err().to_string();
            assert!(error.contains("attempt 2"), "{error}");
        });
    }
}

#[test]
fn a_cancel_and_a_deadline_end_the_pause_before_the_next_attempt() {
    for (is_task, is_cancel) in [(true, true), (true, false), (false, true), (false, false)] {
        Lab::run(1, |lab| async move {
            let begun = Begun::default();
            let abide = worker(&lab, &begun).await;
            let deadline = if is_cancel { hours(1) } else { secs(5) };
            let handle = failing(&abide, is_task, deadline).await;
            lab.sleep(secs(5)).await;
            if is_cancel {
                handle.cancel("enough").await.unwrap();
            }
            lab.sleep(secs(3)).await;
            let expected = if is_cancel { Status::Cancelled } else { Status::Failed };
            assert_eq!(handle.status().await.unwrap(), expected, "{}", handle.why().await.unwrap());
            lab.sleep(secs(100)).await;
            assert_eq!(begun.millis(), [0], "task: {is_task}, cancel: {is_cancel}");
        });
    }
}

/// Is tried again after its first error alone.
#[workflow]
async fn forgiving(ctx: Ctx) -> Result<u32> {
    let retry = Retry::fixed(secs(10)).max_attempts(9);
    ctx.step("fail", || fail(&ctx)).retry(retry).retry_if(|error| error.message() == "attempt 1").await
}

/// The code is asked about an attempt that fails during a pause, and its answer counts after it.
#[test]
fn an_attempt_that_fails_in_a_pause_is_asked_about() {
    Lab::run(1, |lab| async move {
        let begun = Begun::default();
        let abide = worker(&lab, &begun).await;
        let handle = abide.start(forgiving, ()).id("a").await.unwrap();
        for (pause_at, length) in [(ms(500), secs(60)), (ms(500), secs(60))] {
            lab.sleep(pause_at).await;
            handle.pause().await.unwrap();
            lab.sleep(length).await;
            handle.resume().await.unwrap();
        }
        lab.sleep(secs(60)).await;
        assert_eq!(begun.millis(), [0, 60_500]);
        let error = handle.result().await.unwrap_err().to_string();
        assert!(error.contains("attempt 2"), "{error}");
    });
}

/// An attempt that a cancellation or a deadline interrupts has not failed: nobody is asked.
#[test]
fn an_attempt_that_is_interrupted_is_not_asked_about() {
    for is_cancel in [true, false] {
        Lab::run(1, |lab| async move {
            let begun = Begun::default();
            let abide = worker(&lab, &begun).await;
            let deadline = if is_cancel { hours(1) } else { ms(500) };
            let handle = abide.start(forgiving, ()).id("a").deadline(deadline).await.unwrap();
            lab.sleep(ms(500)).await;
            if is_cancel {
                handle.cancel("enough").await.unwrap();
            }
            lab.sleep(secs(60)).await;
            let expected = if is_cancel { Status::Cancelled } else { Status::Failed };
            assert_eq!(handle.status().await.unwrap(), expected);
            assert_eq!(begun.millis(), [0]);
        });
    }
}

/// Its attempts take nine seconds each, of which the first one fails, or only the first one ends.
#[workflow]
async fn times_out(ctx: Ctx, second_ends: bool) -> Result<u32> {
    let (lab, Begun(begun)) = (ctx.state::<Lab>(), ctx.state::<Begun>());
    ctx.step("slow", || async {
        let nth = {
            let mut begun = begun.lock().unwrap();
            begun.push(lab.now());
            begun.len()
        };
        lab.sleep(secs(9)).await;
        match nth {
            1 => Err("once".into()),
            _ if second_ends => Ok(2),
            _ => std::future::pending().await,
        }
    })
    .timeout(secs(10))
    .retry(Retry::fixed(ms(1)).max_attempts(2))
    .await
}

/// Of two attempts, the first of which fails before its timeout.
#[test]
fn each_attempt_has_a_timeout_of_its_own() {
    Lab::run(1, |lab| async move {
        let abide = worker(&lab, &Begun::default()).await;
        let began_at = lab.now();
        assert_eq!(abide.run(times_out, true).id("ends").await.unwrap(), 2, "the first timeout ends it");
        assert_eq!(lab.now().since(began_at).as_millis(), 18_001);
    });
    Lab::run(1, |lab| async move {
        let abide = worker(&lab, &Begun::default()).await;
        let handle = abide.start(times_out, false).id("hangs").await.unwrap();
        lab.sleep(secs(20)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Failed, "{}", handle.why().await.unwrap());
    });
}
