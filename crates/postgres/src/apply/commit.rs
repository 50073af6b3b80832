//! Commits: the checks before they are written, and the fate of their leases.

use std::collections::{HashMap, HashSet};

use abide_core::parking::{self, Seen};
use abide_core::{Body, Fence, Message, Refusal, Timestamp};
use abide_store::{
    Commit, CommitOutcome, Committed, Error, Hold, Submit, Submitted, not_unread, refused_start,
};

use super::letter::{self, Asked, Desk, Origin, Put};
use crate::board::News;
use crate::connection::Connection;
use crate::error::Stop;
use crate::facts::{Committer, Haste, Questions};
use crate::rows;
use crate::seal::sealed;
use crate::shared::Shared;
use crate::sheet::{ConsumedRow, SeenRow, Update, Written};

/// An operation that can share a statement with others.
pub(crate) enum Item<'a> {
    /// One message.
    Submit(&'a Submit),
    Commit(&'a Commit),
}

/// How an operation is decided, if it is written.
pub(crate) enum Decided {
    Put(Put),
    Committed(i64, Committed),
    /// Nothing has to be written.
    Outcome(CommitOutcome),
}

/// Whether an operation takes several statements that depend on each other.
pub(crate) fn needs_own_transaction(item: &Item<'_>) -> bool {
    let is_retry = |message: &Message| matches!(message.body, Body::Retry);
    match item {
        Item::Submit(submit) => {
            submit.messages.len() != 1 || submit.stretch.is_some() || is_retry(&submit.messages[0])
        }
        Item::Commit(commit) => {
            let outgoing = &commit.changes.outgoing;
            commit.transaction.is_some()
                || outgoing.iter().any(is_retry)
                || letter::independent(outgoing) < outgoing.len()
        }
    }
}

impl Item<'_> {
    pub(crate) fn messages(&self) -> &[Message] {
        match self {
            Self::Submit(submit) => &submit.messages,
            Self::Commit(commit) => &commit.changes.outgoing,
        }
    }

    /// Asks for what the decision depends on. A commit that only appends and reads asks nothing:
    /// its update checks the lease, and that each message was unread.
    pub(crate) fn ask(&self, shared: &Shared, questions: &mut Questions) -> Vec<Asked> {
        let is_careful = questions.haste == Haste::Careful;
        match self {
            Self::Submit(submit) => submit
                .messages
                .iter()
                .map(|message| letter::ask(shared, questions, message, submit.born_to))
                .collect(),
            Self::Commit(commit) => {
                let leaves = commit.hold != Hold::Keep && !is_over(commit);
                if leaves || is_careful || !commit.changes.outgoing.is_empty() {
                    let key = rows::integer(commit.key.0);
                    questions.committers.push((key, commit.lease.session, leaves || is_careful));
                }
                let offer = (commit.born_slots > 0).then_some(commit.lease.session);
                let outgoing = commit.changes.outgoing.iter();
                outgoing.map(|message| letter::ask(shared, questions, message, offer)).collect()
            }
        }
    }

    pub(crate) fn decide(&self, desk: &mut Desk<'_>, asked: &[Asked], haste: Haste) -> Result<Decided, Stop> {
        match self {
            Self::Submit(submit) => {
                let origin = Origin { offer: submit.born_to, ..Origin::default() };
                desk.put(&submit.messages[0], &asked[0], origin).map(Decided::Put)
            }
            Self::Commit(commit) => desk.commit(commit, asked, haste == Haste::Careful),
        }
    }
}

impl Decided {
    /// Whether everything that it hangs on was written.
    pub(crate) fn is_written(&self, written: &Written) -> bool {
        match self {
            Self::Put(put) => put.is_written(written),
            Self::Committed(key, _) => written.keys.contains(key),
            Self::Outcome(_) => true,
        }
    }
}

impl Put {
    pub(super) fn is_written(&self, written: &Written) -> bool {
        match self {
            Self::Created(key, _) | Self::Retried(key) => written.keys.contains(key),
            Self::Delivered(key, id) => written.messages.contains(&(*key, id.clone())),
            Self::Attached(_) | Self::Duplicate(_) => true,
        }
    }

    pub(crate) fn into_submitted(self) -> Submitted {
        let key = self.key();
        match self {
            Self::Created(_, leased) => Submitted::Started(key, leased),
            Self::Attached(_) => Submitted::Attached(key),
            Self::Delivered(..) | Self::Retried(_) => Submitted::Delivered(key),
            Self::Duplicate(_) => Submitted::Duplicate(key),
        }
    }
}

/// Whether a commit ends the execution.
pub(super) fn is_over(commit: &Commit) -> bool {
    commit.changes.summary.status.is_terminal()
}

/// Returns the answer to a commit that may not be written; `None` for one that may.
pub(super) fn fenced(commit: &Commit, found: Option<&Committer>) -> Option<CommitOutcome> {
    // An execution that is gone has ended and was pruned, so nobody holds it.
    let Some(found) = found else { return Some(CommitOutcome::Fenced(Fence::Released)) };
    match found.lease.fence(commit.lease, commit.expected, found.session_is_live) {
        Fence::Open => None,
        Fence::Applied => Some(CommitOutcome::Committed(Committed::default())),
        fence => Some(CommitOutcome::Fenced(fence)),
    }
}

/// Checks that everything that a commit has read was unread.
pub(super) fn check_consumed(commit: &Commit, found: &Committer) -> Result<(), Stop> {
    let mut unread: HashSet<&str> = found.unread.iter().map(|(id, _)| id.as_str()).collect();
    match commit.changes.consumed.iter().find(|id| !unread.remove(id.as_str())) {
        Some(id) => Err(Error::Corrupt { what: not_unread(commit.key, id) }.into()),
        None => Ok(()),
    }
}

/// What becomes of the lease.
pub(super) enum Fate<'a> {
    /// It is kept, for now or for longer.
    Kept,
    /// The execution has ended.
    Over,
    /// Its holder leaves it, as it was found.
    Left(&'a Committer),
}

impl Desk<'_> {
    fn commit(&mut self, commit: &Commit, asked: &[Asked], is_careful: bool) -> Result<Decided, Stop> {
        let key = rows::integer(commit.key.0);
        let leaves = commit.hold != Hold::Keep && !is_over(commit);
        let is_asked = leaves || is_careful || !commit.changes.outgoing.is_empty();
        let found = self.facts.committers.remove(&key);
        if is_asked {
            if let Some(outcome) = fenced(commit, found.as_ref()) {
                return Ok(Decided::Outcome(outcome));
            }
            if let Some(found) = found.as_ref().filter(|_| leaves || is_careful) {
                check_consumed(commit, found)?;
            }
        } else if has_repetition_of_consumed(commit) {
            return Err(Stop::Raced);
        }
        let fate = match &found {
            _ if is_over(commit) => Fate::Over,
            Some(found) if leaves => Fate::Left(found),
            _ => Fate::Kept,
        };
        self.change(commit, &fate);
        let mut committed = Committed::default();
        if let Some(found) = &found {
            for (message, asked) in commit.changes.outgoing.iter().zip(asked) {
                self.emit(commit, found, (message, asked), &mut committed)?;
            }
        }
        Ok(Decided::Committed(key, committed))
    }

    fn emit(
        &mut self,
        commit: &Commit,
        emitter: &Committer,
        (message, asked): (&Message, &Asked),
        committed: &mut Committed,
    ) -> Result<(), Stop> {
        if message.to == emitter.address {
            // It finds what this commit has done.
            return Err(Stop::Alone);
        }
        let offer = Some(commit.lease.session).filter(|_| committed.born.len() < commit.born_slots);
        let origin = Origin { gate: Some(emitter.key), is_strict: true, offer, begins_at: None };
        match self.put(message, asked, origin) {
            Ok(Put::Created(_, Some(leased))) => committed.born.push(leased),
            Ok(_) => {}
            Err(stop) => match refusal(stop)? {
                // The answer is a message to the emitter.
                refusal if refused_start(&emitter.address, message, &refusal).is_some() => {
                    return Err(Stop::Alone);
                }
                _ => committed.dropped_count += 1,
            },
        }
        Ok(())
    }

    /// Writes down the change of the row, the records and the messages that were read.
    pub(super) fn change(&mut self, commit: &Commit, fate: &Fate<'_>) {
        let (changes, key) = (&commit.changes, rows::integer(commit.key.0));
        let mut update = update_of(commit);
        update.run_step = i32::from(changes.next.is_some());
        update.summary = Some(sealed(key, &abide_core::codec::encode(&changes.summary)));
        update.state = Some(sealed(key, &changes.state));
        match fate {
            Fate::Kept => {
                for id in &changes.consumed {
                    let message = id.as_str().to_owned();
                    self.sheet.wakes_seen.push(SeenRow { execution: key, message });
                }
            }
            Fate::Over => {
                (update.keeps_care, update.keeps_lease, update.clears) = (false, false, true);
                update.wake_at = None;
                update.finished_at = Some(self.now.as_micros());
            }
            Fate::Left(found) => self.leave(commit, found, &mut update),
        }
        self.sheet.updates.push(update);
        self.append(key, (None, 0), &changes.records);
        if let Some(next) = &changes.next {
            self.append(key, (None, 1), std::slice::from_ref(next));
        }
        for id in &changes.consumed {
            let id = id.as_str().to_owned();
            self.sheet.consumed.push(ConsumedRow { execution: key, strict: true, id });
        }
    }

    /// Parks an execution, or lets it line up again. The wakes that were found go by name: each is
    /// of a message that the holder has seen, or that is judged here. If one of them calls for a
    /// look, they become one wake of this moment.
    fn leave(&mut self, commit: &Commit, found: &Committer, update: &mut Update) {
        let (seen, is_yielded) = match &commit.hold {
            Hold::Park { seen } => (seen.as_slice(), false),
            Hold::Keep | Hold::Yield => (&[][..], true),
        };
        let (seen, consumed) = (Seen::of(seen), Seen::of(&commit.changes.consumed));
        let unseen = found.unread.iter().filter(|(id, _)| !seen.has(id) && !consumed.has(id));
        let parked = parking::park(&commit.changes.summary, unseen.map(|(_, sort)| *sort), self.now);
        update.keeps_lease = false;
        update.keeps_care = false;
        update.care_at = rows::micros(parked.care_at);
        update.clears = is_yielded;
        let name = |message: &String| SeenRow { execution: found.key, message: message.clone() };
        found.wakes.iter().for_each(|message| self.sheet.wakes_seen.push(name(message)));
        found.cares.iter().for_each(|message| self.sheet.cares_seen.push(name(message)));
        let route = self.shared.routes.get(found.route);
        self.time((found.route, found.rank), rows::timestamp(update.wake_at));
        if is_yielded || parked.is_ready {
            self.wake((found.key, Some(found.key)), (found.route, found.rank), "", rows::NEEDS_NOTHING);
            self.news.extend(route.map(News::Ready));
        } else if update.wake_at.is_some() {
            self.news.extend(route.map(News::Timer));
        }
        if parked.care_at.is_some() {
            self.news.push(News::Care(found.address.namespace.clone()));
        }
    }

    /// Writes down that the lease is left behind a commit that is written already.
    pub(super) fn leave_later(&mut self, commit: &Commit, found: &Committer) {
        let mut update = update_of(commit);
        update.version += 1;
        update.version_step = 0;
        self.leave(commit, found, &mut update);
        self.sheet.updates.push(update);
    }
}

fn update_of(commit: &Commit) -> Update {
    let summary = &commit.changes.summary;
    Update {
        key: rows::integer(commit.key.0),
        epoch: rows::integer(commit.lease.epoch.0),
        version: rows::integer(commit.expected.0),
        session: rows::integer(commit.lease.session.0),
        version_step: 1,
        run_step: 0,
        status: summary.status as i16,
        listens: rows::listens_number(summary.listens),
        wake_at: rows::micros(summary.wake_at),
        care_at: None,
        keeps_care: true,
        keeps_lease: true,
        ends_suspicion: commit.ends_suspicion(),
        finished_at: None,
        clears: false,
        summary: None,
        state: None,
    }
}

fn has_repetition_of_consumed(commit: &Commit) -> bool {
    let mut seen = HashSet::new();
    !commit.changes.consumed.iter().all(|id| seen.insert(id.as_str()))
}

/// Returns the refusal of a message that an execution emits, or what its target cannot be read for.
/// Any other error is one of the whole commit.
pub(super) fn refusal(stop: Stop) -> Result<Error, Stop> {
    match stop {
        Stop::Told(error @ (Error::Refused(_) | Error::Corrupt { .. } | Error::Newer { .. })) => Ok(error),
        other => Err(other),
    }
}

pub(super) fn unsupported(what: impl Into<String>) -> Stop {
    Refusal::Unsupported { what: what.into() }.into()
}

/// Returns why commits were not written, by key. One that could be written now is left out.
pub(crate) async fn fenced_of(
    shared: &Shared,
    connection: &Connection,
    items: &[Item<'_>],
    now: Timestamp,
) -> Result<HashMap<u64, CommitOutcome>, Stop> {
    let mut questions = Questions::default();
    let commits = items.iter().filter_map(|item| match item {
        Item::Commit(commit) => Some(*commit),
        Item::Submit(_) => None,
    });
    let commits: Vec<&Commit> = commits.collect();
    for commit in &commits {
        questions.committers.push((rows::integer(commit.key.0), commit.lease.session, false));
    }
    let facts = questions.answer(shared, connection, now).await?;
    let outcome = |commit: &&Commit| {
        let found = facts.committers.get(&rows::integer(commit.key.0));
        Some((commit.key.0, fenced(commit, found)?))
    };
    Ok(commits.iter().filter_map(outcome).collect())
}
