//! The home of real time in these tests.
#![expect(clippy::disallowed_methods, reason = "processes that are stopped and killed live in real time")]

use std::future::Future;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The wall clock, which all processes share.
pub(crate) fn wall_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970");
    i64::try_from(since.as_micros()).expect("it is not that late")
}

/// How long something takes.
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

/// Waits for an event that can only be seen by looking. Panics when it does not come.
pub(crate) async fn until<T>(what: &str, patience: Duration, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let watch = Stopwatch::start();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(watch.elapsed() < patience, "{what}: not within {patience:?}");
        pause(Duration::from_millis(2)).await;
    }
}

/// The result of `future`. Panics when it takes longer than `patience`.
pub(crate) async fn within<T>(what: &str, patience: Duration, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(patience, future).await {
        Ok(done) => done,
        Err(_) => panic!("{what}: not within {patience:?}"),
    }
}

/// Runs `work` on a thread of its own for as long as the process lives.
pub(crate) fn beside(work: impl FnOnce() + Send + 'static) {
    std::thread::spawn(work);
}

/// Random numbers that follow from a seed (splitmix64).
pub(crate) struct Chance(u64);

impl Chance {
    /// From `ABIDE_SEED`, or fixed. The seed is printed.
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
