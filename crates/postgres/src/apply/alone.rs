//! Operations in a transaction of their own, step by step: submits of several messages, retries,
//! first stretches, the user's transactions, and commits whose messages find each other.
//!
//! Each step reads what the steps before it have written. Nothing is visible to others before the
//! end, and whatever goes wrong undoes all of it.

use std::collections::VecDeque;

use abide_core::{Message, Route, SessionId, Sort, Timestamp};
use abide_store::{
    Commit, CommitOutcome, Committed, Error, Hold, Leased, Record, Stretch, Submissions, Submit, Submitted,
    refused_start,
};
use tokio::sync::SemaphorePermit;

use super::commit::{self, Fate};
use super::leased;
use super::letter::{self, Desk, Origin, Put};
use super::step::{Stepped, run_step};
use crate::board::News;
use crate::error::{Kind, Stop};
use crate::facts::{Committer, Facts, Questions};
use crate::pool::Pooled;
use crate::rows;
use crate::shared::Shared;
use crate::sheet::Sheet;
use crate::sql;

/// A transaction, and the news of it, which are told when it is committed.
pub(super) struct Work<'a> {
    pub(super) shared: &'a Shared,
    pub(super) connection: Pooled<'a>,
    news: Vec<News>,
    pub(super) now: Timestamp,
}

/// Puts messages into inboxes, all or none.
pub(crate) async fn submit_alone(shared: &Shared, submit: &Submit) -> Result<Submissions, Stop> {
    let first_commit = submit.stretch.as_ref().and_then(|stretch| stretch.commit.as_ref());
    let _leave = leave(shared, first_commit).await?;
    let outgoing = first_commit.into_iter().flat_map(|commit| &commit.changes.outgoing);
    let routes = letter::routes_of(shared, submit.messages.iter().chain(outgoing));
    let mut work = Work::begin(shared, routes).await?;
    match work.submit(submit).await {
        Ok(submissions) => work.commit(submissions).await,
        Err(stop) => Err(work.undo(stop).await),
    }
}

/// Commits.
pub(crate) async fn commit_alone(shared: &Shared, commit: &Commit) -> Result<CommitOutcome, Stop> {
    let _leave = leave(shared, Some(commit)).await?;
    let routes = letter::routes_of(shared, &commit.changes.outgoing);
    let mut work = Work::begin(shared, routes).await?;
    match work.apply(commit).await {
        Ok(outcome @ CommitOutcome::Committed(_)) => {
            let outcome = work.commit(outcome).await?;
            shared.pool.witness.note(commit);
            Ok(outcome)
        }
        Ok(outcome @ CommitOutcome::Fenced(_)) => {
            work.connection.undo().await;
            Ok(outcome)
        }
        Err(stop) => Err(work.undo(stop).await),
    }
}

/// Waits for leave to run the transaction step of a commit, before anything waits for it.
async fn leave<'a>(shared: &'a Shared, commit: Option<&Commit>) -> Result<Option<SemaphorePermit<'a>>, Stop> {
    if commit.is_none_or(|commit| commit.transaction.is_none()) {
        return Ok(None);
    }
    Ok(Some(shared.steps.acquire().await.map_err(|_| Error::Closed)?))
}

impl<'a> Work<'a> {
    /// Begins a transaction that may start executions of these routes.
    pub(super) async fn begin(shared: &'a Shared, routes: Vec<Route>) -> Result<Self, Stop> {
        Self::begin_with(shared, routes, sql::BEGIN).await
    }

    /// Does the same with a statement that also prepares the transaction.
    pub(super) async fn begin_with(
        shared: &'a Shared,
        routes: Vec<Route>,
        begin: &'static str,
    ) -> Result<Self, Stop> {
        let mut connection = shared.pool.take().await?;
        letter::intern(shared, &connection, routes).await?;
        // The clock is read when the operation begins to be applied.
        connection.begin(begin).await?;
        Ok(Self { shared, connection, news: Vec::new(), now: shared.now() })
    }

    pub(super) async fn commit<T>(mut self, answer: T) -> Result<T, Stop> {
        // Only the answer to this statement can be lost when the outcome matters.
        self.connection.end(sql::COMMIT).await?;
        self.shared.board.tell(self.news);
        Ok(answer)
    }

    /// Notifies others of something when the transaction is committed.
    pub(super) fn tell(&mut self, news: News) {
        self.news.push(news);
    }

    pub(super) async fn undo(mut self, stop: Stop) -> Stop {
        self.connection.undo().await;
        if stop.is_race() { stop } else { Stop::Told(stop.told("transaction", Kind::Reads)) }
    }

    async fn submit(&mut self, submit: &Submit) -> Result<Submissions, Stop> {
        let stretch = submit.stretch.as_deref().filter(|_| submit.messages.len() == 1);
        let begins_at = stretch.map(|stretch| stretch.begins_at(self.now));
        let origin = Origin { gate: None, is_strict: true, offer: submit.born_to, begins_at };
        let (mut submitted, mut rest) = (Submissions::new(), submit.messages.as_slice());
        while !rest.is_empty() {
            let (some, others) = rest.split_at(letter::independent(rest).max(1));
            for put in self.put(some, origin).await? {
                submitted.push(put?.into_submitted());
            }
            rest = others;
        }
        self.complete(&mut submitted).await?;
        if let (Some(stretch), [started]) = (stretch, submitted.as_mut_slice()) {
            self.follow(stretch, started).await?;
        }
        Ok(submitted)
    }

    /// Puts messages that find nothing of each other. Refusals are answers of their own.
    pub(super) async fn put(
        &mut self,
        messages: &[Message],
        origin: Origin,
    ) -> Result<Vec<Result<Put, Stop>>, Stop> {
        let mut questions = Questions::default();
        let asked: Vec<_> = messages
            .iter()
            .map(|message| letter::ask(self.shared, &mut questions, message, origin.offer))
            .collect();
        let mut facts = questions.answer(self.shared, &self.connection, self.now).await?;
        let mut sheet = Sheet::default();
        let mut desk = self.desk(&mut facts, &mut sheet);
        let mut puts = Vec::new();
        for (message, asked) in messages.iter().zip(&asked) {
            puts.push(desk.put(message, asked, origin));
            if puts.last().is_some_and(|put| matches!(put, Err(stop) if !matches!(stop, Stop::Told(_)))) {
                return Err(puts.pop().and_then(Result::err).unwrap_or(Stop::Raced));
            }
        }
        let written = sheet.write(&self.connection, self.now.as_micros()).await?;
        if !puts.iter().flatten().all(|put| put.is_written(&written)) {
            return Err(Stop::Raced);
        }
        for put in puts.iter().flatten() {
            if let Put::Retried(key) = put {
                self.clear(*key).await?;
            }
        }
        Ok(puts)
    }

    /// Forgets what the last run of an execution has left, and the next one does not read.
    async fn clear(&self, key: i64) -> Result<(), Stop> {
        let all = [Sort::Signal, Sort::Order, Sort::Answer, Sort::Passing];
        let gone = all.into_iter().filter(|sort| !sort.outlives_failure());
        let gone: Vec<i16> = gone.map(rows::sort_number).collect();
        self.connection.change(sql::RETRY_CLEAR, &[&key, &gone]).await?;
        Ok(())
    }

    pub(super) fn desk<'b>(&'b mut self, facts: &'b mut Facts, sheet: &'b mut Sheet) -> Desk<'b> {
        Desk { shared: self.shared, facts, sheet, news: &mut self.news, now: self.now }
    }

    /// Reads the leases of newborns anew: other messages may have reached them meanwhile.
    async fn complete(&self, submitted: &mut Submissions) -> Result<(), Stop> {
        if submitted.len() < 2 {
            return Ok(());
        }
        for one in submitted {
            if let Submitted::Started(_, Some(leased)) = one {
                **leased = self.leased(leased).await?;
            }
        }
        Ok(())
    }

    async fn leased(&self, known: &Leased) -> Result<Leased, Stop> {
        let key = rows::integer(known.key.0);
        let found = leased::read(self.shared, &self.connection, known.lease.session, &[key]).await?;
        found.into_iter().next().map_or(Err(Stop::Raced), |(_, leased)| leased)
    }

    /// Carries out the first stretch of an execution that was just created. If it cannot happen,
    /// the start still does.
    async fn follow(&mut self, stretch: &Stretch, started: &mut Submitted) -> Result<(), Stop> {
        let Some(key) = stretch.of(started) else { return Ok(()) };
        let Some(commit) = stretch.commit_of(key) else {
            *started = Submitted::Begun(key, Ok(Box::default()));
            return Ok(());
        };
        let told_before = self.news.len();
        self.connection.run(sql::SAVEPOINT).await?;
        let begun = match self.apply(&commit).await {
            Ok(CommitOutcome::Committed(committed)) => Some(Ok(Box::new(committed))),
            Err(Stop::Told(Error::Refused(refusal))) => Some(Err(refusal)),
            Ok(CommitOutcome::Fenced(_)) | Err(Stop::Told(_)) => None,
            Err(stop) => return Err(stop),
        };
        if !matches!(begun, Some(Ok(_))) {
            self.connection.run(sql::SAVEPOINT_ROLLBACK).await?;
            self.news.truncate(told_before);
        }
        self.connection.run(sql::SAVEPOINT_RELEASE).await?;
        if let Some(begun) = begun {
            *started = Submitted::Begun(key, begun);
        }
        Ok(())
    }

    /// Carries out a commit: first the commit itself, then its messages, then the fate of its
    /// lease. An execution that yields would otherwise stand in the queue before its own children.
    async fn apply(&mut self, commit: &Commit) -> Result<CommitOutcome, Stop> {
        let key = rows::integer(commit.key.0);
        self.connection.rows(sql::COMMITTER_LOCK, &[&key]).await?;
        let found = self.committer(commit).await?;
        if let Some(outcome) = commit::fenced(commit, found.as_ref()) {
            return self.answered(commit, outcome).await;
        }
        let found = found.ok_or(Stop::Raced)?;
        commit::check_consumed(commit, &found)?;
        let (commit, transacted) = match run_step(self, commit, &found).await? {
            Stepped::None => (commit.clone(), None),
            Stepped::Ran(commit, record) => (commit, Some(record)),
        };
        self.write(|desk| {
            let fate = if commit::is_over(&commit) { Fate::Over } else { Fate::Kept };
            desk.change(&commit, &fate);
        })
        .await?;
        let mut committed = self.emit(&commit, &found).await?;
        if !commit::is_over(&commit) && commit.hold != Hold::Keep {
            let found = self.committer(&commit).await?.ok_or(Stop::Raced)?;
            self.write(|desk| desk.leave_later(&commit, &found)).await?;
        }
        for leased in &mut committed.born {
            **leased = self.leased(leased).await?;
        }
        Ok(CommitOutcome::Committed(Committed { transacted, ..committed }))
    }

    async fn committer(&self, commit: &Commit) -> Result<Option<Committer>, Stop> {
        let key = rows::integer(commit.key.0);
        let mut questions = Questions::default();
        questions.committers.push((key, commit.lease.session, true));
        let mut facts = questions.answer(self.shared, &self.connection, self.now).await?;
        Ok(facts.committers.remove(&key))
    }

    /// Adds to the answer of a repeated commit the record that its transaction step returned.
    async fn answered(&self, commit: &Commit, outcome: CommitOutcome) -> Result<CommitOutcome, Stop> {
        if commit.transaction.is_none() || !matches!(outcome, CommitOutcome::Committed(_)) {
            return Ok(outcome);
        }
        let transacted = last_record(&self.connection, rows::integer(commit.key.0)).await?;
        Ok(CommitOutcome::Committed(Committed { transacted, ..Committed::default() }))
    }

    /// Writes what `decide` writes down about the committer, whose row is locked.
    async fn write(&mut self, decide: impl FnOnce(&mut Desk<'_>)) -> Result<(), Stop> {
        let (mut facts, mut sheet) = (Facts::default(), Sheet::default());
        decide(&mut self.desk(&mut facts, &mut sheet));
        let written = sheet.write(&self.connection, self.now.as_micros()).await?;
        if written.keys.is_empty() { Err(Stop::Raced) } else { Ok(()) }
    }

    /// Sends the messages of a commit. The answer to a refused start goes out in its place.
    async fn emit(&mut self, commit: &Commit, emitter: &Committer) -> Result<Committed, Stop> {
        let mut rest: VecDeque<Message> = commit.changes.outgoing.iter().cloned().collect();
        let mut committed = Committed::default();
        while !rest.is_empty() {
            let messages = rest.make_contiguous();
            // A message to the emitter comes after the answers to the starts before it.
            let others = messages.iter().take_while(|message| message.to != emitter.address).count();
            let count = letter::independent(messages).min(others).max(1);
            // A newborn takes a slot, and nobody knows beforehand which starts are born.
            let slots = commit.born_slots.saturating_sub(committed.born.len());
            let count = if slots > 0 { count.min(slots) } else { count };
            let some: Vec<Message> = rest.drain(..count).collect();
            let offer: Option<SessionId> = (slots > 0).then_some(commit.lease.session);
            let origin = Origin { gate: None, is_strict: true, offer, begins_at: None };
            let puts = self.put(&some, origin).await?;
            let mut answers = Vec::new();
            for (message, put) in some.iter().zip(puts) {
                match put {
                    Ok(Put::Created(_, Some(leased))) => committed.born.push(leased),
                    Ok(_) => {}
                    Err(stop) => {
                        let refusal = commit::refusal(stop)?;
                        match refused_start(&emitter.address, message, &refusal) {
                            Some(answer) => answers.push(answer),
                            None => committed.dropped_count += 1,
                        }
                    }
                }
            }
            answers.into_iter().rev().for_each(|answer| rest.push_front(answer));
        }
        Ok(committed)
    }
}

/// Returns the last record of an execution.
pub(super) async fn last_record(
    connection: &crate::connection::Connection,
    key: i64,
) -> Result<Option<Record>, Stop> {
    let Some(row) = connection.maybe_row(sql::LAST_RECORD, &[&key]).await? else { return Ok(None) };
    Ok(rows::unpacked(key, row.try_get(0)?, row.try_get(1)?)?.pop())
}
