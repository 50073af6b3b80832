//! The one connection that writes, and the queue before it.
//!
//! The holder of the mutex of [`Writer`] is the writer: either the writer's thread, which takes all
//! waiting jobs into one transaction, or a caller that is alone, which saves two thread switches. A
//! caller may only go ahead when the queue is empty and the mutex is free, so operations are
//! applied in the order of their calls.

mod mend;
mod notes;
mod queue;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, MutexGuard};
use std::task::Waker;
use std::time::Duration;

use crate::batch::{Batch, Effects, Shared};
use crate::caches::Caches;
use crate::error::{BatchFailure, Meaning, OpenError};
use crate::job::{Failed, Ticket};
use crate::left_out::LeftOut;
use crate::os::{self, Moment};
use crate::statements::Statements;
use crate::step_connection::StepConnection;
use crate::stepped::Fate;
use crate::tail::OpenTails;
use crate::tallies::Tallies;
use crate::wal::Wal;
use crate::{apply, inherited, schema, sql};
use abide_core::planted::{Bug, planted};

pub(crate) use queue::{Drive, Scheduling, WriteQueue};

/// How long a writer sleeps between two attempts while another process writes. Short at first,
/// because most transactions are.
const BUSY_PAUSES_US: [u64; 8] = [100, 200, 500, 1_000, 2_000, 5_000, 5_000, 10_000];

pub(crate) type Jobs = Vec<Ticket>;

/// The connection that writes, and its memory.
pub(crate) struct Writer {
    connection: Option<StepConnection>,
    /// The connection that was given up, until the next one is open: if nobody were attached to the
    /// index of the log in between, it would be made anew, with frames whose sync has failed.
    former: Option<StepConnection>,
    /// The last result of `PRAGMA data_version`; `None` before the first look of a connection.
    data_version: Option<i64>,
    caches: Caches,
    effects: Effects,
    tallies: Tallies,
    tails: OpenTails,
    left_out: LeftOut,
    /// Callers with answers, to be woken when the writer's mutex is free again: they may want it.
    answered: Vec<Waker>,
    shared: Arc<Shared>,
    wal: Option<Arc<Wal>>,
    /// When the indexes were last rebuilt.
    mended_at: Option<Moment>,
    /// The fate of transactions, as decided by the code that steps the writer.
    pub(crate) fate: Fate,
}

/// The end of a transaction.
enum Attempt {
    Done,
    /// Nothing was changed, and the job with this number is to blame.
    Blame(usize, BatchFailure),
    /// Nothing was changed, and it is unknown which job is to blame.
    Unclear(BatchFailure),
    /// It cannot be known whether something was changed, or no job is to blame.
    All(BatchFailure),
}

impl Writer {
    pub(crate) fn new(connection: StepConnection, shared: Arc<Shared>, wal: Option<Arc<Wal>>) -> Self {
        if let Some(wal) = &wal {
            wal.watch(&connection.connection);
        }
        Self {
            connection: Some(connection),
            former: None,
            data_version: None,
            caches: Caches::default(),
            effects: Effects::default(),
            tallies: Tallies::default(),
            tails: OpenTails::default(),
            left_out: LeftOut::new(shared.options.left_out_count_max),
            answered: Vec::new(),
            shared,
            wal,
            mended_at: None,
            fate: Fate::Committed,
        }
    }

    /// Runs jobs in one transaction, and answers them. A failing job costs the others only time.
    pub(crate) fn run(&mut self, mut jobs: Jobs) {
        for round in 0.. {
            jobs = self.advance(jobs);
            if jobs.is_empty() {
                return;
            }
            let pause = BUSY_PAUSES_US[round.min(BUSY_PAUSES_US.len() - 1)];
            os::pause(Duration::from_micros(pause));
        }
    }

    /// Does the same without waiting for other processes. Returns the jobs that have to wait for
    /// one.
    pub(crate) fn advance(&mut self, mut jobs: Jobs) -> Jobs {
        while !jobs.is_empty() {
            match self.begin() {
                Ok(()) => {}
                Err(failure) if failure.meaning == Meaning::Busy => return self.fail_late(jobs, &failure),
                Err(failure) => {
                    self.note(Err(&failure));
                    return self.fail_all(jobs, &failure);
                }
            }
            match self.attempt(&mut jobs) {
                Attempt::Done => return self.answer_all(jobs),
                Attempt::All(failure) => return self.fail_all(jobs, &failure),
                Attempt::Unclear(failure) if failure.meaning == Meaning::Malformed && self.mend() => {}
                Attempt::Unclear(_) if jobs.iter_mut().any(|job| job.can_do_without()) => {}
                Attempt::Blame(index, failure) => {
                    self.fail_all(vec![jobs.remove(index)], &failure);
                }
                Attempt::Unclear(failure) if jobs.len() == 1 || planted(Bug::NeighbourFails) => {
                    return self.fail_all(jobs, &failure);
                }
                Attempt::Unclear(_) => return self.advance_singly(jobs),
            }
        }
        jobs
    }

    /// Runs one job at a time: an error then reaches only its own caller.
    fn advance_singly(&mut self, jobs: Jobs) -> Jobs {
        let mut jobs = jobs.into_iter();
        while let Some(job) = jobs.next() {
            let mut waiting = self.advance(vec![job]);
            if !waiting.is_empty() {
                // Later jobs wait with it: operations are applied in the order of their calls.
                waiting.extend(jobs);
                return waiting;
            }
        }
        Jobs::new()
    }

    /// Fails the jobs that have waited for other processes for the longest allowed time. Returns
    /// the others, which came later.
    fn fail_late(&mut self, jobs: Jobs, failure: &BatchFailure) -> Jobs {
        let limit = Duration::from_millis(self.shared.options.busy_ms_max);
        let now = self.shared.stopwatch.now();
        self.shared.troubles.busy(failure, (self.shared.clock.now(), now));
        let (late, rest) = jobs.into_iter().partition(|job| now.since(job.queued_at()) >= limit);
        self.fail_all(late, failure);
        self.wake_answered();
        rest
    }

    /// Runs one job without waiting for other processes. Returns it when one of them writes.
    pub(crate) fn run_at_once(&mut self, job: Ticket) -> Option<Ticket> {
        match self.begin() {
            Err(failure) if failure.meaning == Meaning::Busy => return Some(job),
            Err(failure) => {
                self.note(Err(&failure));
                self.fail_all(vec![job], &failure)
            }
            Ok(()) => {
                let mut jobs = vec![job];
                match self.attempt(&mut jobs) {
                    Attempt::Done => self.answer_all(jobs),
                    // The writer's thread has the time to repair the file.
                    Attempt::Unclear(failure) if failure.meaning == Meaning::Malformed => return jobs.pop(),
                    Attempt::Blame(_, failure) | Attempt::Unclear(failure) | Attempt::All(failure) => {
                        self.fail_all(jobs, &failure)
                    }
                }
            }
        };
        None
    }

    /// Applies the jobs in the transaction that has begun, and ends it.
    fn apply(&mut self, jobs: &mut Jobs) -> Attempt {
        let Some(writer) = &self.connection else {
            return Attempt::All(BatchFailure::unavailable("there is no connection"));
        };
        let mut batch = Batch {
            connection: &writer.connection,
            writer,
            shared: &self.shared,
            caches: &mut self.caches,
            effects: &mut self.effects,
            tallies: &mut self.tallies,
            tails: &mut self.tails,
            left_out: &mut self.left_out,
            statements: Statements::default(),
        };
        for (index, job) in jobs.iter_mut().enumerate() {
            let attempt = match job.apply(&mut batch) {
                Ok(()) if !writer.connection.is_autocommit() => continue,
                Ok(()) => Attempt::Unclear(BatchFailure::unavailable("SQLite has ended the transaction")),
                Err(Failed::Broken(failure)) => Attempt::Blame(index, failure),
                Err(Failed::Sql(failure)) => Attempt::Unclear(failure),
            };
            drop(batch);
            self.roll_back();
            return attempt;
        }
        if let Err(error) = batch.bind_sheaf() {
            drop(batch);
            self.roll_back();
            return Attempt::Unclear(BatchFailure::of(&error));
        }
        drop(batch);
        if self.fate == Fate::Killed {
            self.die();
            jobs.clear();
            return Attempt::Done;
        }
        match self.commit() {
            Ok(()) => Attempt::Done,
            Err(failure) if failure.meaning == Meaning::Indeterminate => {
                self.roll_back();
                // The connection's view of the log may no longer be true.
                self.give_up();
                if !planted(Bug::TalliesAfterUnknownCommit) {
                    self.tallies.forget();
                }
                match self.fate {
                    Fate::Unheard => Attempt::Done,
                    _ => Attempt::All(failure),
                }
            }
            Err(failure) => {
                self.roll_back();
                // Only closures of the user write to a table with a foreign key, and a batch has at
                // most one closure.
                let is_broken_key = failure.meaning == Meaning::Misuse;
                match jobs.iter().position(|job| is_broken_key && job.runs_user_code()) {
                    Some(index) => Attempt::Blame(index, failure),
                    None => Attempt::Unclear(failure),
                }
            }
        }
    }

    fn begin(&mut self) -> Result<(), BatchFailure> {
        self.shared.check_file()?;
        self.reopen()?;
        let writer = self.connection.as_ref().expect("it was just opened");
        writer.begin().map_err(|error| BatchFailure::of(&error))?;
        if let Err(error) = self.look_around() {
            self.roll_back();
            return Err(BatchFailure::of(&error));
        }
        Ok(())
    }

    /// Opens the connection again after it was abandoned.
    fn reopen(&mut self) -> Result<(), BatchFailure> {
        if self.connection.is_some() {
            return Ok(());
        }
        let Some(path) = &self.shared.path else {
            return Err(BatchFailure::unavailable("the database in memory is gone"));
        };
        self.shared.check_name()?;
        let writer = self.open_again(path).map_err(|error| BatchFailure::unavailable(error.to_string()))?;
        if let Some(wal) = &self.wal {
            wal.watch(&writer.connection);
        }
        self.connection = Some(writer);
        self.former = None;
        Ok(())
    }

    fn open_again(&self, path: &Path) -> Result<StepConnection, OpenError> {
        let writer = schema::open_writer(path, &self.shared.options)?;
        if self.former.is_none() {
            inherited::settle(&writer.connection, path, &self.shared.own_sessions())?;
        }
        let patience = writer.connection.busy_timeout(Duration::ZERO);
        patience.map_err(|error| schema::explain(path, error))?;
        Ok(writer)
    }

    /// Checks whether other connections have written. If so, it drops memory that may be outdated
    /// and notifies the sessions. To a new connection everything is news: nobody has counted
    /// earlier writes of others or of the abandoned connection, whose last commit may have happened
    /// unheard.
    fn look_around(&mut self) -> rusqlite::Result<()> {
        let Some(writer) = &self.connection else { return Ok(()) };
        let version: i64 =
            writer.connection.prepare_cached(sql::DATA_VERSION)?.query_row([], |row| row.get(0))?;
        let is_known = self.data_version.is_none() && planted(Bug::NewsLostAfterReopen);
        // Before the version is known: if this fails, the next look asks again.
        let has_intake = self.data_version != Some(version) && apply::is_waiting(&writer.connection)?;
        if has_intake {
            self.shared.notices.intake();
        }
        if self.data_version.replace(version) != Some(version) && !is_known {
            self.caches = Caches::default();
            writer.forget_own_names();
            self.shared.notices.changed();
        }
        Ok(())
    }

    /// Looks around between transactions, with a new connection if the last one was abandoned: a
    /// store that writes nothing must still hear of others.
    pub(crate) fn look_up(&mut self) -> Result<(), BatchFailure> {
        self.reopen()?;
        self.look_around().map_err(|error| BatchFailure::of(&error))
    }

    /// Abandons the connection, which can no longer be trusted. The next transaction opens another.
    fn give_up(&mut self) {
        if let Some(connection) = self.connection.take() {
            // One whose transaction cannot be ended is closed at once: it may have the write lock.
            let is_harmless = connection.connection.is_autocommit() && !planted(Bug::IndexLetGo);
            self.former = Some(connection).filter(|_| is_harmless);
        }
        self.data_version = None;
        self.caches = Caches::default();
    }

    /// Drops what makes a busy writer fast: nobody has had work for a while.
    pub(crate) fn shrink(&mut self) {
        self.caches = Caches::default();
        self.tails.shrink();
        self.answered.shrink_to_fit();
        if let Some(writer) = &self.connection
            && let Err(error) = writer.connection.execute_batch(sql::SHRINK)
        {
            tracing::debug!(%error, "the connection keeps its pages");
        }
    }

    fn commit(&mut self) -> Result<(), BatchFailure> {
        if planted(Bug::EffectiveBeforeCommit) {
            self.effects.happen(&self.shared);
        }
        let writer = self.connection.as_ref().expect("a transaction has a connection");
        if self.fate == Fate::Unwritten {
            return Err(Fate::unknown());
        }
        writer.commit().map_err(|error| BatchFailure::of_commit(&error))?;
        if self.fate == Fate::Unheard {
            return Err(Fate::unknown());
        }
        self.effects.happen(&self.shared);
        self.tallies.keep();
        self.tails.keep();
        self.caches.trim();
        if let Some(wal) = &self.wal {
            wal.committed(&writer.connection);
        }
        Ok(())
    }

    /// Ends the transaction without a trace, in the database and in memory.
    fn roll_back(&mut self) {
        self.effects.forget();
        self.tallies.undo();
        self.tails.undo_to(0);
        self.caches = Caches::default();
        let Some(writer) = &self.connection else { return };
        if let Err(error) = writer.roll_back() {
            tracing::warn!(%error, "cannot roll back; the connection is given up");
            self.give_up();
        }
    }

    /// Answers all jobs, and returns an empty list.
    fn answer_all(&mut self, jobs: Jobs) -> Jobs {
        self.answered.extend(jobs.iter().filter_map(|job| job.answer()));
        Jobs::new()
    }

    /// Fails all jobs, and returns an empty list.
    fn fail_all(&mut self, jobs: Jobs, failure: &BatchFailure) -> Jobs {
        self.answered.extend(jobs.iter().filter_map(|job| job.fail(failure)));
        Jobs::new()
    }

    fn wake_answered(&mut self) {
        std::mem::take(&mut self.answered).into_iter().for_each(Waker::wake);
    }

    /// Restores order after a panic during or just after a transaction: nobody may have heard of
    /// its changes.
    fn recover(&mut self) {
        if let Some(writer) = &self.connection {
            writer.lift_rules();
        }
        self.roll_back();
        self.tallies.forget();
        self.data_version = None;
    }

    /// Returns the connection, for reading in a store that has only one.
    pub(crate) fn connection(&self) -> Option<&rusqlite::Connection> {
        self.connection.as_ref().map(|writer| &writer.connection)
    }

    pub(crate) fn shut(&mut self) {
        self.give_up();
        self.former = None;
    }

    /// Ends as the death of the process does: it notifies nobody, tidies nothing and leaves lock
    /// files.
    pub(crate) fn die(&mut self) {
        self.effects = Effects::default();
        self.shut();
    }
}

/// Lets the writer work, and then wakes the callers whose answers have arrived. A panic inside
/// costs the jobs at hand, not the writer.
pub(crate) fn run<T>(mut writer: MutexGuard<'_, Writer>, work: impl FnOnce(&mut Writer) -> T) -> Option<T> {
    let outcome = catch_unwind(AssertUnwindSafe(|| work(&mut writer)));
    if outcome.is_err() {
        tracing::error!("the writer panicked; its transaction is rolled back");
        writer.recover();
    }
    let answered = std::mem::take(&mut writer.answered);
    let tokio = writer.shared.tokio.clone();
    // Released before waking: the first woken caller may want to write at once.
    drop(writer);
    os::wake_all(tokio, answered);
    outcome.ok()
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
