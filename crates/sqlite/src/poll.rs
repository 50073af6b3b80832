//! Noticing what other processes write.
//!
//! SQLite tells nobody that a file has changed; it can be asked, cheaply, by `PRAGMA data_version`. The writer's own
//! connection is asked, because its number does not count its own commits. While it is in use nobody needs to ask: it asks
//! itself when its next transaction begins.

use std::path::PathBuf;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::batch::Shared;
use crate::wal::log_path;
use crate::writer::Desk;

/// Between two questions when all is quiet: 20 a second.
const QUIET: Duration = Duration::from_millis(50);
/// Between two questions after another process has written: it is likely to write again.
const LIVELY: Duration = Duration::from_millis(5);
/// How many lively questions follow a change: for one second.
const LIVELY_COUNT: u32 = 200;

/// What the file system tells of the log: it was written to, or not. Much cheaper to ask than SQLite, and never wrongly quiet: a
/// time stamp is only trusted once it is older than the clock that makes it is coarse.
struct Log {
    path: Option<PathBuf>,
    modified_at: Option<SystemTime>,
    /// So many questions in a row found the same time stamp.
    same_count: u32,
}

impl Log {
    fn of(shared: &Shared) -> Self {
        Self { path: shared.path.as_deref().map(log_path), modified_at: None, same_count: 0 }
    }

    fn may_have_changed(&mut self) -> bool {
        /// Two questions are at least 5 ms apart, file systems stamp every 10 ms or more often.
        const TRUSTED_COUNT: u32 = 3;
        let modified_at = self.path.as_ref().and_then(|path| path.metadata().ok()?.modified().ok());
        self.same_count = if modified_at == self.modified_at { self.same_count + 1 } else { 0 };
        self.modified_at = modified_at;
        modified_at.is_none() || self.same_count < TRUSTED_COUNT
    }
}

#[derive(Debug, Default)]
pub(crate) struct Poll {
    closed: Mutex<bool>,
    wake: Condvar,
}

impl Poll {
    /// A session was registered: from now on somebody wants to know.
    pub(crate) fn wake(&self) {
        // Under the lock: whoever has just found that there is no session is asleep before it is woken.
        let _closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        self.wake.notify_one();
    }

    pub(crate) fn close(&self) {
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.wake.notify_one();
    }

    /// The work of the thread that asks, until the store is closed.
    pub(crate) fn serve(&self, desk: &Desk, shared: &Shared) {
        let mut lively = 0u32;
        let mut log = Log::of(shared);
        while self.pause(if lively > 0 { LIVELY } else { QUIET }, shared) {
            lively = lively.saturating_sub(1);
            if !log.may_have_changed() {
                continue;
            }
            let Some(mut writer) = desk.try_lock_writer() else { continue };
            match writer.look_around() {
                Ok(true) => lively = LIVELY_COUNT,
                Ok(false) => {}
                // The writer meets the same error when it next begins, and there somebody hears of it.
                Err(error) => tracing::debug!(%error, "cannot ask whether the database has changed"),
            }
        }
    }

    /// Waits; without a session of this process for as long as there is none. `false` when the store is closed.
    fn pause(&self, duration: Duration, shared: &Shared) -> bool {
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        while !*closed && shared.notices.is_empty() {
            closed = self.wake.wait(closed).unwrap_or_else(PoisonError::into_inner);
        }
        if *closed {
            return false;
        }
        let (closed, _) = self.wake.wait_timeout(closed, duration).unwrap_or_else(PoisonError::into_inner);
        !*closed
    }
}
