//! Detects writes of other processes.
//!
//! SQLite does not announce changes of a file; `PRAGMA data_version` is a cheap way to ask. The
//! question goes to the writer's own connection, because its number does not count its own commits.
//! While the writer is busy nobody needs to ask: it asks when its next transaction begins.
//!
//! Where possible, the operating system says when to ask, because every commit of any process
//! writes to the log. But a commit is visible only after the log was synced, and nothing announces
//! that. So after a write the question is repeated, at first soon and then more and more rarely.
//! Where the operating system announces nothing, the question is asked twenty times a second.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use abide_core::planted::{Bug, planted};
use rusqlite::Connection;

use crate::batch::Shared;
use crate::os::{self, Moment};
use crate::watch::Watch;
use crate::writer::WriteQueue;
use crate::{lockfile, schema, sql};

/// The interval between two questions where the operating system announces nothing: 20 a second.
const QUIET: Duration = Duration::from_millis(50);
/// The minimum interval between two questions: a busy log does not cause one for each commit.
const LIVELY: Duration = Duration::from_millis(4);
/// The maximum interval between two questions, and between two checks for a closed store or a
/// recreated log.
const WATCHED: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Poll {
    closed: Mutex<bool>,
    wake: Condvar,
}

impl Poll {
    /// Wakes the thread: a session was registered, or a client follows the feed.
    pub(crate) fn wake(&self) {
        // The lock ensures that a thread that has just found no session is asleep by now.
        let _closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        self.wake.notify_one();
    }

    pub(crate) fn close(&self, shared: &Shared) {
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.wake.notify_one();
        Watch::disturb(shared);
    }

    /// Runs the polling thread of a store that writes, until it is closed.
    pub(crate) fn serve(&self, writes: &WriteQueue, shared: &Shared) {
        self.ask_again_and_again(shared, || {
            let Some(mut writer) = writes.try_lock_writer() else { return };
            if let Err(failure) = writer.look_up() {
                // The writer meets the same error in its next transaction, whose callers get it.
                tracing::debug!(why = failure.complaint, "cannot ask whether the database has changed");
            }
        });
    }

    /// Runs the polling thread of a store that only reads, until it is closed. It has no writer, so
    /// the question goes to a connection of its own.
    pub(crate) fn serve_reader(&self, shared: &Shared) {
        let mut onlooker = Onlooker::default();
        self.ask_again_and_again(shared, || onlooker.ask(shared));
    }

    fn ask_again_and_again(&self, shared: &Shared, mut ask: impl FnMut()) {
        let mut watch = None;
        let mut patience = WATCHED;
        let mut looked_at = Moment::now();
        loop {
            match self.listeners(shared) {
                Listeners::Closed => return,
                Listeners::Nobody => {
                    look_for_files(shared, &mut looked_at);
                    continue;
                }
                Listeners::Some => {}
            }
            watch = watch.or_else(|| Watch::of(shared));
            let is_open = match &watch {
                Some(watch) => {
                    patience = if watch.wait(patience) {
                        os::pause(LIVELY);
                        if planted(Bug::NewsAskedOnce) { WATCHED } else { LIVELY }
                    } else {
                        (patience * 2).min(WATCHED)
                    };
                    watch.renew();
                    !self.is_closed()
                }
                None => self.pause(QUIET),
            };
            if !is_open {
                return;
            }
            look_for_files(shared, &mut looked_at);
            shared.troubles.tell_slow();
            ask();
        }
    }

    fn is_closed(&self) -> bool {
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while nobody in this process needs the notices, until the next look for the files.
    fn listeners(&self, shared: &Shared) -> Listeners {
        let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        let is_idle = |closed: &mut bool| !*closed && !shared.notices.is_heard();
        let waited = self.wake.wait_timeout_while(closed, lockfile::LOOK_EVERY, is_idle);
        match waited.unwrap_or_else(PoisonError::into_inner) {
            (closed, _) if *closed => Listeners::Closed,
            (_, outcome) if outcome.timed_out() => Listeners::Nobody,
            _ => Listeners::Some,
        }
    }

    fn pause(&self, duration: Duration) -> bool {
        let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        let (closed, _) = self.wake.wait_timeout(closed, duration).unwrap_or_else(PoisonError::into_inner);
        !*closed
    }
}

/// Who in this process needs the notices.
enum Listeners {
    /// The store is closed.
    Closed,
    Nobody,
    Some,
}

/// Looks for the files of the store, once a second.
fn look_for_files(shared: &Shared, looked_at: &mut Moment) {
    if looked_at.elapsed() >= lockfile::LOOK_EVERY {
        shared.keep_files();
        *looked_at = Moment::now();
    }
}

/// A connection that only asks whether others have written.
#[derive(Default)]
struct Onlooker {
    connection: Option<Connection>,
    data_version: Option<i64>,
}

impl Onlooker {
    /// Asks. A connection that does not answer is replaced by the next question.
    fn ask(&mut self, shared: &Shared) {
        if let Err(error) = self.look(shared) {
            tracing::debug!(%error, "cannot ask whether the database has changed");
            if !planted(Bug::BrokenOnlookerKept) {
                *self = Self::default();
            }
        }
    }

    /// Asks, and wakes those who follow the feed if something may have changed since the last time.
    fn look(&mut self, shared: &Shared) -> rusqlite::Result<()> {
        let Some(path) = &shared.path else { return Ok(()) };
        let connection = match &self.connection {
            Some(connection) => connection,
            None => self.connection.insert(schema::open_reader(path, &shared.options)?),
        };
        let version = connection.prepare_cached(sql::DATA_VERSION)?.query_row([], |row| row.get(0))?;
        if self.data_version.replace(version) != Some(version) && !planted(Bug::ReaderDeaf) {
            shared.notices.changed();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::{fs, thread};

    use abide_store::conformance::TestClock;
    use rusqlite::hooks::{AuthContext, Authorization};

    use super::*;
    use crate::Options;
    use crate::fixture::{pair, start};
    use crate::wal::log_path;

    /// A commit is visible only after the log was synced, and nothing announces that. Nine
    /// questions take about a second at growing intervals, and eight seconds at the longest one.
    #[test]
    fn a_question_is_soon_repeated_after_a_write() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        fs::write(log_path(&path), "log").unwrap();
        let shared = crate::store::shared(Some(&path), TestClock::new(), Options::default());
        let _followed = shared.notices.follow();
        let (ask, asked) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| shared.poll.ask_again_and_again(&shared, || _ = ask.send(Moment::now())));
            // The thread is perhaps not watching yet.
            let first = loop {
                fs::write(log_path(&path), "frame").unwrap();
                if let Ok(first) = asked.recv_timeout(LIVELY) {
                    break first;
                }
            };
            (1..9).for_each(|_| _ = asked.recv().unwrap());
            let took = first.elapsed();
            shared.poll.close(&shared);
            assert!(took < 4 * WATCHED, "{took:?}");
        });
    }

    #[test]
    fn a_connection_that_does_not_answer_is_replaced() {
        let (folder, _ours, theirs) = pair();
        // No thread asks on its own behalf.
        let (path, clock) = (folder.path().join("a.db"), TestClock::new());
        let shared = crate::store::shared(Some(&path), clock, Options::default());
        let mut onlooker = Onlooker::default();
        onlooker.ask(&shared);
        let connection = onlooker.connection.as_ref().unwrap();
        connection.flush_prepared_statement_cache();
        connection.authorizer(Some(|_: AuthContext<'_>| Authorization::Deny)).unwrap();
        let followed = shared.notices.follow();
        start(&theirs, "a");
        onlooker.ask(&shared);
        assert!(!followed.has_changed().unwrap(), "it answers");
        onlooker.ask(&shared);
        assert!(followed.has_changed().unwrap());
    }
}
