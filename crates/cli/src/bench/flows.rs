//! The workflows that the benchmark runs.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use abide::prelude::*;

use super::stopwatch::Stopwatch;

/// The number of bytes that a step records, as stored.
pub(super) const PAYLOAD_BYTES: usize = 120;
/// The same number without the quotes of a JSON string.
pub(super) const TEXT_BYTES: usize = PAYLOAD_BYTES - 2;

/// The number of steps of a long journal that are recorded together.
const BUILD_WIDTH: u64 = 200;

/// The number of digits of a number in a payload or name.
const DIGIT_COUNT: usize = TEXT_BYTES - FILLING.len();

/// The filler of a payload. It is copied, not formatted: the benchmark's own work should be small.
const FILLING: &str =
    "..................................................................................................";

/// Returns the result of step number `nth`. All results have the same length, and no two are equal.
pub(super) fn payload(nth: u64) -> String {
    let mut text = String::with_capacity(TEXT_BYTES);
    text.push_str(FILLING);
    text.push_str(written(nth, &mut [b'0'; DIGIT_COUNT]).0);
    text
}

/// Returns the name of step number `nth` of a long journal.
fn step_name(nth: u64) -> String {
    const WORD: &str = "step-";
    let mut name = String::with_capacity(WORD.len() + DIGIT_COUNT);
    name.push_str(WORD);
    name.push_str(written(nth, &mut [b'0'; DIGIT_COUNT]).1);
    name
}

/// Writes a number over zeros. Returns it with and without those.
fn written(nth: u64, digits: &mut [u8; DIGIT_COUNT]) -> (&str, &str) {
    let (mut rest, mut zero_count) = (nth, DIGIT_COUNT);
    while rest > 0 {
        zero_count -= 1;
        digits[zero_count] += (rest % 10) as u8;
        rest /= 10;
    }
    let padded = str::from_utf8(digits).expect("digits are text");
    (padded, &padded[zero_count..])
}

/// Runs one step and returns its result.
#[workflow(name = "abide-bench-one")]
pub(super) async fn one(ctx: Ctx, nth: u64) -> Result<String> {
    ctx.step("work", || async move { Ok(payload(nth)) }).await
}

/// Runs steps one after the other and returns the total length of their results in bytes.
#[workflow(name = "abide-bench-chain")]
pub(super) async fn chain(ctx: Ctx, count: u64) -> Result<usize> {
    let mut bytes = 0;
    for nth in 0..count {
        bytes += ctx.step("work", || async move { Ok(payload(nth)) }).await?.len();
    }
    Ok(bytes)
}

/// Starts children, waits for all of them, and returns the total length of their results in bytes.
#[workflow(name = "abide-bench-parent")]
pub(super) async fn parent(ctx: Ctx, count: u64) -> Result<usize> {
    let mut children = Vec::new();
    for nth in 0..count {
        children.push(ctx.start(one, nth).await?);
    }
    let mut bytes = 0;
    for child in children {
        bytes += child.result().await?.len();
    }
    Ok(bytes)
}

/// Sleeps longer than any benchmark takes.
#[workflow(name = "abide-bench-sleeper")]
pub(super) async fn sleeper(ctx: Ctx, nth: u64) -> Result<u64> {
    ctx.sleep(days(30)).await?;
    Ok(nth)
}

pub(super) const WAKER: &str = "abide-bench-waker";

/// Sleeps until a time, and counts that it woke.
#[workflow(name = "abide-bench-waker")]
pub(super) async fn waker(ctx: Ctx, at: Timestamp) -> Result<()> {
    ctx.sleep_until(at).await?;
    ctx.state::<Arc<AtomicU64>>().fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Records steps, each under its own name, and then one more for each signal.
#[workflow(name = "abide-bench-long")]
pub(super) async fn long(ctx: Ctx, count: u64) -> Result<usize> {
    let probe = ctx.state::<Arc<Probe>>().clone();
    let step = |nth| ctx.step(&step_name(nth), move || async move { Ok(payload(nth)) });
    let mut bytes = 0;
    if probe.builds {
        // Steps that wait for each other need a commit each. Side by side they are recorded in the
        // same order, in fewer commits. They are known by name, so code that runs them one by one
        // can resume the journal.
        for first in (0..count).step_by(BUILD_WIDTH as usize) {
            bytes += side_by_side((first..count.min(first + BUILD_WIDTH)).map(step).collect()).await?;
        }
    } else {
        for nth in 0..count {
            bytes += step(nth).await?.len();
        }
    }
    loop {
        let goes_on: bool = ctx.recv("go").await?;
        if !goes_on {
            return Ok(bytes);
        }
        let reach = || async {
            probe.reach();
            Ok(())
        };
        ctx.step("more", reach).await?;
    }
}

/// Waits for all steps. It polls them in their order, so each replay sees the same.
async fn side_by_side<S>(mut steps: Vec<S>) -> Result<usize>
where
    S: Future<Output = Result<String>> + Unpin,
{
    let mut bytes = 0;
    poll_fn(|cx| {
        let mut failed = None;
        steps.retain_mut(|step| match Pin::new(step).poll(cx) {
            Poll::Pending => true,
            Poll::Ready(Ok(text)) => {
                bytes += text.len();
                false
            }
            Poll::Ready(Err(error)) => {
                failed = Some(error);
                false
            }
        });
        match failed {
            Some(error) => Poll::Ready(Err(error)),
            None if steps.is_empty() => Poll::Ready(Ok(())),
            None => Poll::Pending,
        }
    })
    .await?;
    Ok(bytes)
}

/// A probe that reports when the first step after a replay runs.
#[derive(Debug)]
pub(super) struct Probe {
    builds: bool,
    begun: Stopwatch,
    reached: Mutex<Option<tokio::sync::oneshot::Sender<f64>>>,
}

impl Probe {
    /// Returns the probe for the run that records the journal.
    pub(super) fn building() -> Arc<Self> {
        Arc::new(Self { builds: true, begun: Stopwatch::start(), reached: Mutex::default() })
    }

    /// Returns the probe for a run that resumes the journal. The receiver gets the seconds from now
    /// to the first new step.
    pub(super) fn resuming() -> (Arc<Self>, tokio::sync::oneshot::Receiver<f64>) {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let reached = Mutex::new(Some(sender));
        (Arc::new(Self { builds: false, begun: Stopwatch::start(), reached }), receiver)
    }

    fn reach(&self) {
        let took = self.begun.elapsed().as_secs_f64();
        if let Some(sender) = self.reached.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // Nobody listens if the work was abandoned.
            let _ = sender.send(took);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_as_long_as_the_raw_ones() {
        for nth in [0, 7, u64::MAX] {
            assert_eq!(serde_json::to_vec(&payload(nth)).unwrap().len(), PAYLOAD_BYTES);
            assert!(payload(nth).ends_with(&format!("{nth:020}")));
        }
    }
}
