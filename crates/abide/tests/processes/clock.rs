//! The home of real time in these tests.
#![expect(clippy::disallowed_methods, reason = "processes that are stopped and killed live in real time")]

use std::future::Future;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Returns the wall clock, which all processes share.
pub(crate) fn wall_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970");
    i64::try_from(since.as_micros()).expect("it is not that late")
}

/// A measurement of elapsed time.
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

pub(crate) async fn pause(duration: Duration) {
    tokio::time::sleep(duration).await;
}

pub(crate) fn pause_thread(duration: Duration) {
    std::thread::sleep(duration);
}

/// The time that a test waits for anything. A shorter time would fail on a machine that stands
/// still for seconds. It is below the minute after which a waiting client looks without a hint, so
/// a lost hint still fails the test.
const PATIENCE: Duration = Duration::from_secs(50);
/// The time that a test waits for ten thousand things.
const PATIENCE_FOR_MUCH: Duration = Duration::from_secs(300);
/// The number of measurements, most of which must be late before the product is to blame.
const TRY_COUNT: u32 = 5;

/// Waits for an event that can only be seen by polling. Panics if it does not come.
pub(crate) async fn until<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    until_for(PATIENCE, what, look).await
}

/// Waits for many events that can only be seen by polling. Panics if they do not come.
pub(crate) async fn until_much<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    until_for(PATIENCE_FOR_MUCH, what, look).await
}

async fn until_for<T>(patience: Duration, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let watch = Stopwatch::start();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(watch.elapsed() < patience, "{what}: not within {patience:?}");
        pause(Duration::from_millis(2)).await;
    }
}

/// Returns the result of `future`. Panics if it does not come.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(done) => done,
        Err(_) => panic!("{what}: not within {PATIENCE:?}"),
    }
}

/// Measures once. If that was late, the machine may have been the reason, and the majority of
/// [`TRY_COUNT`] measurements decides. `attempt` returns an error for a late measurement. Faults
/// that do not depend on time panic at once.
pub(crate) async fn in_time(mut attempt: impl AsyncFnMut(u32) -> Result<(), String>) {
    let mut late_count = 0;
    for nth in 1..=TRY_COUNT {
        match attempt(nth).await {
            Ok(()) if late_count == 0 => return,
            Ok(()) => println!("try {nth}: in time"),
            Err(late) => {
                late_count += 1;
                assert!(late_count <= TRY_COUNT / 2, "{late}, and most of {nth} times it was late");
                println!("try {nth}: {late}");
            }
        }
        if nth - late_count > TRY_COUNT / 2 {
            return;
        }
    }
}

/// Runs `work` on a thread of its own for as long as the process lives.
pub(crate) fn beside(work: impl FnOnce() + Send + 'static) {
    std::thread::spawn(work);
}

/// A generator of random numbers that follow from a seed (splitmix64).
pub(crate) struct Chance(u64);

impl Chance {
    /// Takes the seed from `ABIDE_SEED`, or the default, and prints it.
    pub(crate) fn seeded(default: u64) -> Self {
        let seed = std::env::var("ABIDE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(default);
        println!("ABIDE_SEED={seed}");
        Self(seed)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}
