//! The tools of an operation inside a transaction.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use abide_core::planted::{Bug, planted};
use abide_core::{SessionId, Timestamp};
use abide_store::Clock;
use rusqlite::Connection;

use tokio::runtime::Handle;

use crate::Options;
use crate::caches::Caches;
use crate::error::{BatchFailure, Stop};
use crate::left_out::LeftOut;
use crate::lockfile::{self, Absences, LockFile};
use crate::named::{Look, NamedFile};
use crate::notices::{Notices, Pending};
use crate::os::Stopwatch;
use crate::poll::Poll;
use crate::rows::SessionState;
use crate::sql;
use crate::statements::{Frequent, Prepared, Statements};
use crate::step_connection::StepConnection;
use crate::tail::OpenTails;
use crate::tallies::Tallies;
use crate::trouble::Troubles;

/// The state that all parts of one store share.
pub(crate) struct Shared {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) options: Options,
    pub(crate) stopwatch: Stopwatch,
    /// `None` for a store in memory.
    pub(crate) path: Option<PathBuf>,
    /// The file under that path when the store was opened.
    pub(crate) file: Option<NamedFile>,
    pub(crate) notices: Notices,
    pub(crate) poll: Poll,
    /// The lock files of the sessions that were registered here.
    pub(crate) locks: Mutex<HashMap<SessionId, LockFile>>,
    /// Sessions of any process whose lock files are missing.
    pub(crate) absences: Mutex<Absences>,
    /// The troubles that keep the writer from writing.
    pub(crate) troubles: Troubles,
    /// The last claims of the sessions that were registered here.
    pub(crate) requests: Mutex<HashMap<SessionId, u64>>,
    /// The executions that keep answers for sessions that were registered here, and perhaps some
    /// that do so no longer.
    pub(crate) keepers: Mutex<HashSet<i64>>,
    /// The runtime on which callers are woken, many at a time.
    pub(crate) tokio: Option<Handle>,
}

/// The reason why a session ended whose process did not say good-bye.
pub(crate) const GONE: &str = "its process is gone";

impl Shared {
    /// Whether the process of a session that has not ended is certainly gone.
    pub(crate) fn is_gone(&self, session: SessionId) -> bool {
        let Some(path) = &self.path else { return false };
        // Its process is this one. Whatever became of its file, this store must not end the session
        // on whose behalf it writes.
        let is_own = self.locks.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&session);
        if is_own && !planted(Bug::OwnLockFileMissed) {
            return false;
        }
        let sign = lockfile::look(path, session);
        let mut absences = self.absences.lock().unwrap_or_else(PoisonError::into_inner);
        absences.is_gone(session, sign, self.stopwatch.now())
    }

    /// Looks for the files of a live store. A store whose database file has lost its name keeps no
    /// locks: the name leads to another database, whose sessions may have the same numbers.
    pub(crate) fn keep_files(&self) {
        let Some(path) = &self.path else { return };
        let Some(file) = &self.file else { return self.keep_locks(path) };
        match file.look() {
            Look::Found => self.keep_locks(path),
            Look::Missed => {}
            Look::Lost => {
                self.troubles.lost(file.failure().complaint, (self.clock.now(), self.stopwatch.now()));
                self.forget_locks();
                // Sessions and followers would wait for news for ever.
                self.notices.changed();
            }
        }
    }

    /// Fails if the database file was lost.
    pub(crate) fn check_file(&self) -> Result<(), BatchFailure> {
        self.file.as_ref().filter(|file| file.is_lost()).map_or(Ok(()), |file| Err(file.failure()))
    }

    /// Fails if a new connection would lead to another file, or create one.
    pub(crate) fn check_name(&self) -> Result<(), BatchFailure> {
        let is_other = |file: &&NamedFile| file.is_lost() || !file.has_name();
        self.file.as_ref().filter(is_other).map_or(Ok(()), |file| Err(file.failure()))
    }

    #[cfg(test)]
    pub(crate) fn is_file_lost(&self) -> bool {
        self.check_file().is_err()
    }

    /// Recreates deleted lock files of this process's sessions.
    fn keep_locks(&self, path: &Path) {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        for (session, lock) in locks.iter_mut().filter(|(_, lock)| !lock.is_found()) {
            match LockFile::acquire(path, *session) {
                Ok(anew) => {
                    tracing::warn!(%session, "the lock file of a session was deleted, and is made anew");
                    *lock = anew;
                }
                Err(error) => tracing::warn!(%session, %error, "cannot make the lock file of a session anew"),
            }
        }
    }

    /// Returns the sessions whose locks this store holds.
    pub(crate) fn own_sessions(&self) -> Vec<SessionId> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }

    pub(crate) fn forget_locks(&self) {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// One transaction.
pub(crate) struct Batch<'a> {
    pub(crate) connection: &'a Connection,
    /// The same connection, as a transaction step sees it.
    pub(crate) writer: &'a StepConnection,
    pub(crate) shared: &'a Shared,
    pub(crate) caches: &'a mut Caches,
    pub(crate) effects: &'a mut Effects,
    pub(crate) tallies: &'a mut Tallies,
    /// The executions whose rows say that their journals may have tails.
    pub(crate) tails: &'a mut OpenTails,
    /// Executions that could not be read.
    pub(crate) left_out: &'a mut LeftOut,
    pub(crate) statements: Statements<'a>,
}

/// Effects that happen when the transaction is durable, and are undone when it is not.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub(crate) notices: Pending,
    pub(crate) registered: Vec<(SessionId, Arc<abide_core::Ability>, Option<LockFile>)>,
    pub(crate) ended: Vec<SessionId>,
    pub(crate) requests: Vec<(SessionId, u64)>,
    /// Executions that keep answers no longer.
    pub(crate) settled: Vec<i64>,
}

impl<'a> Batch<'a> {
    /// Returns a statement that most operations use.
    pub(crate) fn frequent(&mut self, which: Frequent) -> rusqlite::Result<&mut Prepared<'a>> {
        self.statements.get(self.connection, which)
    }
}

impl Batch<'_> {
    /// Returns the time at which the operation is applied.
    pub(crate) fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    /// Moves the row that was just inserted to its number. SQLite takes the one after the greatest
    /// in the table. That is mostly the right one; after the last rows were pruned it is too small.
    pub(crate) fn number(&self, number: i64, renumber: &str) -> rusqlite::Result<()> {
        let given = self.connection.last_insert_rowid();
        if given != number {
            self.connection.prepare_cached(renumber)?.execute([given, number])?;
        }
        Ok(())
    }

    /// Returns the session, if it may write at `now`.
    pub(crate) fn live_session(
        &mut self,
        session: SessionId,
        now: Timestamp,
    ) -> rusqlite::Result<Option<&mut SessionState>> {
        let found = self.caches.session(self.connection, session)?;
        Ok(found.filter(|session| session.is_live(now)))
    }

    /// Does work that may meet a page that SQLite cannot read. After such a page SQLite commits
    /// nothing of the same transaction, even if the error went unreported. All of it is rolled
    /// back, and the caller learns that it was not done, and why, and may ask for less.
    pub(crate) fn readable<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, Stop>) -> Result<T, Stop> {
        let done = work(self).and_then(|done| self.check_writable().map(|()| done));
        done.map_err(|stop| if stop.is_unread() { Stop::corrupt(stop.complaint()) } else { stop })
    }

    /// Fails where SQLite would commit nothing more of the transaction.
    pub(crate) fn check_writable(&self) -> Result<(), Stop> {
        self.connection.prepare_cached(sql::WRITE_NOTHING)?.execute([])?;
        Ok(())
    }

    /// Returns the last claim of a session, in this transaction or before.
    pub(crate) fn last_request(&self, session: SessionId) -> u64 {
        let here =
            self.effects.requests.iter().filter(|(of, _)| *of == session).map(|(_, request)| *request).max();
        let known =
            self.shared.requests.lock().unwrap_or_else(PoisonError::into_inner).get(&session).copied();
        here.max(known).unwrap_or(0)
    }

    /// Returns the routes that a session serves, in the order of their numbers.
    pub(crate) fn served(&mut self, session: SessionId) -> rusqlite::Result<Arc<[i64]>> {
        let route_count = self.caches.interned(self.connection)?.route_count();
        if let Some((seen, routes)) = self.caches.served.get(&session)
            && *seen == route_count
        {
            return Ok(Arc::clone(routes));
        }
        let ability = match self.caches.session(self.connection, session)? {
            Some(state) => Arc::clone(&state.ability),
            None => return Ok(Arc::default()),
        };
        let interned = self.caches.interned(self.connection)?;
        let routes: Arc<[i64]> =
            interned.routes().filter(|(_, route)| ability.serves(route)).map(|(id, _)| id).collect();
        self.caches.served.insert(session, (route_count, Arc::clone(&routes)));
        Ok(routes)
    }

    /// Returns how long a terminate is left to the holder of the execution.
    pub(crate) fn terminate_grace(&self) -> Duration {
        self.shared.options.bounds.terminate_grace()
    }

    /// Remembers to notify the sessions of a route's namespace that an execution of that route is
    /// due for care.
    pub(crate) fn announce_care(&mut self, route: i64) -> rusqlite::Result<()> {
        if self.shared.notices.is_empty() || self.effects.notices.care.contains_key(&route) {
            return Ok(());
        }
        if let Some(found) = self.caches.interned(self.connection)?.route(route) {
            self.effects.notices.care.insert(route, Arc::clone(found));
        }
        Ok(())
    }

    /// Remembers to notify the sessions that serve `route` that an execution is ready, or will be.
    pub(crate) fn announce(&mut self, route: i64) -> rusqlite::Result<()> {
        self.caches.idle_routes.remove(&route);
        if self.shared.notices.is_empty() || self.effects.notices.ready.contains_key(&route) {
            return Ok(());
        }
        if let Some(found) = self.caches.interned(self.connection)?.route(route) {
            self.effects.notices.ready.insert(route, Arc::clone(found));
        }
        Ok(())
    }
}

impl Effects {
    /// Makes the effects happen, after COMMIT.
    pub(crate) fn happen(&mut self, shared: &Shared) {
        for (session, ability, lock) in self.registered.drain(..) {
            shared.notices.open(session, ability);
            shared.poll.wake();
            if let Some(lock) = lock {
                shared.locks.lock().unwrap_or_else(PoisonError::into_inner).insert(session, lock);
            }
        }
        if !self.settled.is_empty() {
            let mut keepers = shared.keepers.lock().unwrap_or_else(PoisonError::into_inner);
            self.settled.drain(..).for_each(|key| _ = keepers.remove(&key));
        }
        if !self.requests.is_empty() {
            shared.requests.lock().unwrap_or_else(PoisonError::into_inner).extend(self.requests.drain(..));
        }
        for session in self.ended.drain(..) {
            shared.requests.lock().unwrap_or_else(PoisonError::into_inner).remove(&session);
            shared.absences.lock().unwrap_or_else(PoisonError::into_inner).forget(session);
            shared.notices.end(session);
            let lock = shared.locks.lock().unwrap_or_else(PoisonError::into_inner).remove(&session);
            match (lock, &shared.path) {
                (Some(lock), _) => lock.remove(),
                (None, Some(path)) => lockfile::remove_of(path, session),
                (None, None) => {}
            }
        }
        shared.notices.tell_followers();
        shared.notices.publish(&mut self.notices, shared.options.notice_count_max);
    }

    /// Drops the effects, after ROLLBACK.
    pub(crate) fn forget(&mut self) {
        for (_, _, lock) in self.registered.drain(..) {
            if let Some(lock) = lock {
                lock.remove();
            }
        }
        self.ended.clear();
        self.requests.clear();
        self.settled.clear();
        self.notices.clear();
    }
}
