//! The troubles that keep the writer from writing, for people who ask why nothing happens.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use abide_core::Timestamp;
use abide_core::planted::{Bug, planted};
use abide_store::{ExecutionKey, Trouble};

use crate::error::{BatchFailure, Meaning};
use crate::os::Moment;

/// How long a failed write is reported. A worker with something to write tries again sooner; a
/// client that has given up does not know whether the trouble is over.
const TOLD_AFTER_FAILURE: Duration = Duration::from_secs(30);
/// How long a failed write is reported after another one has succeeded: a large transaction can
/// fail for want of room beside small ones that fit.
const TOLD_AFTER_SUCCESS: Duration = Duration::from_secs(5);
/// Another process that keeps the writer waiting for longer is reported.
pub(crate) const BUSY_AFTER: Duration = Duration::from_secs(1);
/// A closure that runs for longer is reported.
pub(crate) const SLOW_AFTER: Duration = Duration::from_secs(1);
/// With less room than this on its disk a store is in trouble: one transaction of one small step
/// needs about as much.
const ROOM_BYTES_MIN: u64 = 64 << 10;

/// The latest troubles of the writer.
#[derive(Debug, Default)]
pub(crate) struct Troubles {
    /// Whether the last write failed, or waits for another process: a check without a lock after
    /// each write.
    is_noted: AtomicBool,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    failing: Option<Failing>,
    closure: Option<Closure>,
    busy: Option<Busy>,
}

/// The time during which other processes have kept the writer waiting.
#[derive(Clone, Copy, Debug)]
struct Busy {
    since: Moment,
    last: Moment,
}

#[derive(Debug)]
struct Failing {
    since: Timestamp,
    complaint: String,
    last: Moment,
    outlook: Outlook,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outlook {
    /// Nothing will be written any more.
    Lost,
    /// Nothing has been written since.
    Failing,
    /// Something has been written since.
    Mended,
}

/// The running closure.
#[derive(Clone, Copy, Debug)]
struct Closure {
    key: ExecutionKey,
    began_at: Timestamp,
    began: Moment,
    is_told: bool,
}

impl Troubles {
    /// Records that another process writes. That is trouble only if it goes on for long.
    pub(crate) fn busy(&self, failure: &BatchFailure, (now, moment): (Timestamp, Moment)) {
        let mut known = self.lock();
        // Nobody has tried for a while: other processes have written and gone since.
        let is_other = |busy: &Busy| moment.since(busy.last) >= BUSY_AFTER;
        let since = known.busy.filter(|busy| !is_other(busy)).map_or(moment, |busy| busy.since);
        known.busy = Some(Busy { since, last: moment });
        drop(known);
        self.is_noted.store(true, Ordering::Relaxed);
        if moment.since(since) >= BUSY_AFTER && !planted(Bug::BusyUntold) {
            self.failed(failure, (now, moment));
        }
    }

    /// Records a failed transaction.
    pub(crate) fn failed(&self, failure: &BatchFailure, (now, moment): (Timestamp, Moment)) {
        use Meaning as M;
        let is_trouble =
            matches!(failure.meaning, M::Busy | M::Unavailable | M::Indeterminate | M::Malformed | M::Unread);
        if !is_trouble || planted(Bug::TroubleUntold) {
            return;
        }
        let complaint = failure.complaint.clone();
        let mut known = self.lock();
        let since = match &known.failing {
            // Nothing is worse, and every later write fails for the same reason.
            Some(Failing { outlook: Outlook::Lost, .. }) => return,
            Some(failing) if failing.is_told(moment) => failing.since,
            _ if planted(Bug::TroubleUnlogged) => now,
            _ => {
                tracing::error!(complaint, "writes to the store fail, and are tried again");
                now
            }
        };
        known.failing = Some(Failing { since, complaint, last: moment, outlook: Outlook::Failing });
        self.is_noted.store(true, Ordering::Relaxed);
    }

    /// Records that the file is lost: nothing will be written any more.
    pub(crate) fn lost(&self, complaint: String, (since, last): (Timestamp, Moment)) {
        tracing::error!("{complaint}");
        self.lock().failing = Some(Failing { since, complaint, last, outlook: Outlook::Lost });
    }

    /// Records a written transaction.
    pub(crate) fn written(&self) {
        if self.is_noted.load(Ordering::Relaxed) {
            self.is_noted.store(false, Ordering::Relaxed);
            let mut known = self.lock();
            known.busy = None;
            if let Some(failing) = known.failing.as_mut().filter(|known| known.outlook == Outlook::Failing) {
                failing.outlook = Outlook::Mended;
                tracing::info!("writes to the store succeed again");
            }
        }
    }

    /// Runs the closure of a transaction step.
    pub(crate) fn during<T>(&self, key: ExecutionKey, began_at: Timestamp, closure: impl FnOnce() -> T) -> T {
        self.lock().closure = Some(Closure { key, began_at, began: Moment::now(), is_told: false });
        let outcome = closure();
        self.lock().closure = None;
        outcome
    }

    /// Logs a closure that runs for long, once: it may never return.
    pub(crate) fn tell_slow(&self) {
        let mut known = self.lock();
        let Some(closure) = known.closure.as_mut().filter(|closure| !closure.is_told && closure.is_slow())
        else {
            return;
        };
        if planted(Bug::SlowClosureUnlogged) {
            return;
        }
        closure.is_told = true;
        let ms = u64::try_from(closure.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::warn!(
            key = closure.key.0,
            ms,
            "a transaction step keeps the writer: nothing else is written until it returns"
        );
    }

    /// Returns the trouble to report at this moment.
    pub(crate) fn told(&self, moment: Moment) -> Option<Trouble> {
        let known = self.lock();
        if let Some(Closure { key, began_at, .. }) =
            known.closure.filter(|one| one.is_slow() && !planted(Bug::SlowClosureUntold))
        {
            return Some(Trouble::Occupied { by: key, since: began_at });
        }
        let failing = known.failing.as_ref().filter(|failing| failing.is_told(moment))?;
        Some(Trouble::Failing { since: failing.since, complaint: failing.complaint.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Failing {
    fn is_told(&self, moment: Moment) -> bool {
        let told_for = match self.outlook {
            Outlook::Lost => return true,
            Outlook::Failing => TOLD_AFTER_FAILURE,
            Outlook::Mended => TOLD_AFTER_SUCCESS,
        };
        moment.since(self.last) < told_for
    }
}

impl Closure {
    fn is_slow(&self) -> bool {
        self.began.elapsed() >= SLOW_AFTER
    }
}

/// Returns the trouble that the disk shows: a process that only reads meets no failing write.
pub(crate) fn of_disk(path: &Path) -> Option<Trouble> {
    let free_bytes = free_bytes(path)?;
    (free_bytes < ROOM_BYTES_MIN).then_some(Trouble::Full { free_bytes })
}

/// Returns the free room on the disk of a file; `None` where the system does not say.
pub(crate) fn free_bytes(path: &Path) -> Option<u64> {
    disk(path).map(|(free, _)| free)
}

/// Returns the size of the disk of a file; `None` where the system does not say.
pub(crate) fn disk_bytes(path: &Path) -> Option<u64> {
    disk(path).map(|(_, whole)| whole)
}

/// Returns the bytes of a disk that are free to this user, and all of them.
#[cfg(unix)]
fn disk(path: &Path) -> Option<(u64, u64)> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let found = rustix::fs::statvfs(folder).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    // A file system that counts nothing reports zero for both.
    Some((bytes(found.f_bavail), bytes(found.f_blocks))).filter(|(_, whole)| *whole > 0)
}

#[cfg(not(unix))]
fn disk(_: &Path) -> Option<(u64, u64)> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> BatchFailure {
        BatchFailure::unavailable("database or disk is full")
    }

    #[test]
    fn a_failed_write_is_told_for_a_while_and_shorter_once_another_one_is_written() {
        let (troubles, began) = (Troubles::default(), Moment::now());
        let after = |secs| began.after(Duration::from_secs(secs));
        let at = |secs: i64| Timestamp::from_millis(secs * 1_000);
        let told = |secs| troubles.told(after(secs));
        let failing = |secs| {
            Some(Trouble::Failing { since: at(secs), complaint: "database or disk is full".to_owned() })
        };
        assert_eq!(told(0), None);
        troubles.failed(&full(), (at(1), after(1)));
        assert_eq!(told(10), failing(1), "nothing has been written since");
        troubles.failed(&full(), (at(10), after(10)));
        troubles.written();
        assert_eq!(told(14), failing(1), "small ones fit");
        troubles.failed(&full(), (at(14), after(14)));
        assert_eq!(told(14), failing(1));
        troubles.written();
        assert_eq!(told(20), None);
        troubles.failed(&full(), (at(120), after(120)));
        assert_eq!(told(120), failing(120));
        assert_eq!(told(149), failing(120), "nothing has been written since");
        assert_eq!(told(150), None, "nobody has tried since");
        troubles.lost("the file is lost".to_owned(), (at(151), after(151)));
        troubles.written();
        troubles.failed(&full(), (at(152), after(152)));
        let lost = Trouble::Failing { since: at(151), complaint: "the file is lost".to_owned() };
        assert_eq!(told(1_000_000), Some(lost), "nothing will be written any more");
    }

    /// A log that keeps the level of each event.
    #[derive(Clone, Default)]
    struct Log(std::sync::Arc<Mutex<Vec<tracing::Level>>>);

    impl tracing::Subscriber for Log {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            self.0.lock().expect("nobody panics with it").push(*event.metadata().level());
        }
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }

    #[test]
    fn the_log_tells_of_each_trouble_once() {
        use tracing::Level;
        let (troubles, log, now) = (Troubles::default(), Log::default(), Moment::now());
        tracing::subscriber::with_default(log.clone(), || {
            for _ in 0..3 {
                troubles.failed(&full(), (Timestamp::default(), now));
            }
            troubles.written();
            troubles.written();
            let began_at = Timestamp::default();
            troubles.during(ExecutionKey(1), began_at, || {
                troubles.tell_slow();
                let (_sender, silence) = std::sync::mpsc::channel::<()>();
                assert!(silence.recv_timeout(SLOW_AFTER).is_err());
                troubles.tell_slow();
                troubles.tell_slow();
            });
            troubles.tell_slow();
        });
        let levels = log.0.lock().expect("nobody panics with it");
        assert_eq!(*levels, [Level::ERROR, Level::INFO, Level::WARN]);
    }

    #[test]
    fn other_processes_are_told_when_they_keep_the_writer_waiting_for_a_second() {
        let (troubles, began) = (Troubles::default(), Moment::now());
        let failure = BatchFailure { meaning: Meaning::Busy, complaint: "database is locked".to_owned() };
        let at = |millis: u64| {
            (Timestamp::from_millis(millis.cast_signed()), began.after(Duration::from_millis(millis)))
        };
        let told = |millis| {
            troubles.busy(&failure, at(millis));
            troubles.told(at(millis).1).is_some()
        };
        // Each lets the writer write again.
        for millis in (0..60_000).step_by(300) {
            assert!(!told(millis), "{millis}");
            troubles.written();
        }
        let (troubles, began) = (Troubles::default(), began.after(Duration::from_secs(60)));
        let at = |millis: u64| {
            (Timestamp::from_millis(millis.cast_signed()), began.after(Duration::from_millis(millis)))
        };
        let told = |millis| {
            troubles.busy(&failure, at(millis));
            troubles.told(at(millis).1).is_some()
        };
        // They come and go: nobody waited in between.
        assert!(!told(0) && !told(900) && !told(2_000) && !told(2_900));
        assert!(told(3_000) && told(3_500));
        troubles.written();
        assert!(troubles.told(at(20_000).1).is_none(), "it was long ago");
        assert!(!told(20_000));
    }

    #[test]
    fn what_is_refused_is_no_trouble() {
        for meaning in [Meaning::Misuse, Meaning::Corrupt, Meaning::Newer] {
            let troubles = Troubles::default();
            let failure = BatchFailure { meaning, complaint: String::new() };
            troubles.failed(&failure, (Timestamp::default(), Moment::now()));
            assert_eq!(troubles.told(Moment::now()), None, "{meaning:?}");
        }
    }
}
