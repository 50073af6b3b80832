//! Noticing what other processes write.
//!
//! SQLite tells nobody that a file has changed; it can be asked, cheaply, by `PRAGMA data_version`. The writer's own
//! connection is asked, because its number does not count its own commits. While it is in use nobody needs to ask: it asks
//! itself when its next transaction begins.
//!
//! When to ask is told by the operating system where it can: every commit of any process writes to the log. But the commit
//! is seen only when the log was synced, and nothing tells of that; so after a write the question is asked again, at first
//! soon and then more and more rarely. Where the operating system tells nothing it is asked twenty times a second.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::batch::Shared;
use crate::home::{self, Moment};
use crate::lockfile;
use crate::watch::Watch;
use crate::writer::Desk;

/// Between two questions where the operating system tells nothing: 20 a second.
const QUIET: Duration = Duration::from_millis(50);
/// Between two questions at least: a busy log is not asked after at each of its commits.
const LIVELY: Duration = Duration::from_millis(4);
/// Between two questions at most, and between two looks whether the store was closed, or the log was made anew.
const WATCHED: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Poll {
    closed: Mutex<bool>,
    wake: Condvar,
}

impl Poll {
    /// A session was registered, or somebody follows the feed: from now on somebody wants to know.
    pub(crate) fn wake(&self) {
        // Under the lock: whoever has just found that there is no session is asleep before it is woken.
        let _closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        self.wake.notify_one();
    }

    pub(crate) fn close(&self, shared: &Shared) {
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.wake.notify_one();
        Watch::disturb(shared);
    }

    /// The work of the thread that asks, until the store is closed.
    pub(crate) fn serve(&self, desk: &Desk, shared: &Shared) {
        let mut watch = None;
        let mut patience = WATCHED;
        let mut locks_looked_at = Moment::now();
        while self.is_heard(shared) {
            watch = watch.or_else(|| Watch::of(shared));
            let is_open = match &watch {
                Some(watch) => {
                    patience = if watch.wait(patience) {
                        home::pause(LIVELY);
                        LIVELY
                    } else {
                        (patience * 2).min(WATCHED)
                    };
                    !self.is_closed()
                }
                None => self.pause(QUIET),
            };
            if !is_open {
                return;
            }
            if locks_looked_at.elapsed() >= lockfile::LOOK_EVERY {
                shared.keep_locks();
                locks_looked_at = Moment::now();
            }
            let Some(mut writer) = desk.try_lock_writer() else { continue };
            if let Err(failure) = writer.look_up() {
                // The writer meets the same error when it next begins, and there somebody hears of it.
                tracing::debug!(why = failure.complaint, "cannot ask whether the database has changed");
            }
        }
    }

    fn is_closed(&self) -> bool {
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for as long as nobody in this process wants to know. `false` when the store is closed.
    fn is_heard(&self, shared: &Shared) -> bool {
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        while !*closed && !shared.notices.is_heard() {
            closed = self.wake.wait(closed).unwrap_or_else(PoisonError::into_inner);
        }
        !*closed
    }

    fn pause(&self, duration: Duration) -> bool {
        let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        let (closed, _) = self.wake.wait_timeout(closed, duration).unwrap_or_else(PoisonError::into_inner);
        !*closed
    }
}
