//! The writes of lease holders.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use abide_core::intake::Intake;
use abide_core::{Address, Fence, Message, Refusal, SessionId, Timestamp};

use super::admission::Ahead;
use super::state::MemoryState;
use super::table::MemoryTable;
use crate::{Commit, CommitOutcome, Committed, Error, ExecutionKey, Record, Result, refused_start};

impl MemoryState {
    pub(super) fn commit(&mut self, commit: Commit, now: Timestamp) -> Result<CommitOutcome> {
        match self.fence(&commit, now) {
            Fence::Open => {
                self.row(commit.key).check_consumed(&commit)?;
                let (commit, transacted) = self.transact(commit)?;
                let committed = self.write_commit(commit, now);
                Ok(CommitOutcome::Committed(Committed { transacted, ..committed }))
            }
            // The first answer alone names the executions that were born: after it is lost, the
            // digest of leases in a heartbeat reveals them.
            Fence::Applied => {
                let last = self.row(commit.key).journal.last().map(|(_, record)| record.clone());
                let transacted = last.filter(|_| commit.transaction.is_some());
                Ok(CommitOutcome::Committed(Committed { transacted, ..Committed::default() }))
            }
            fence => Ok(CommitOutcome::Fenced(fence)),
        }
    }

    /// Runs the transaction step of a commit, if it has one. Returns the commit with the step's
    /// record.
    fn transact(&mut self, mut commit: Commit) -> Result<(Commit, Option<Record>)> {
        let Some(transaction) = commit.transaction.clone() else { return Ok((commit, None)) };
        let run = |table: &MemoryTable| {
            let outcome = catch_unwind(AssertUnwindSafe(|| (transaction.0)(table)));
            outcome.map_err(|_| unsupported("the transaction step panicked outside the user's code"))
        };
        // An extra run, as if a neighbour had failed, to expose a step that relies on running once.
        run(&self.table.clone())?;
        let table = self.table.clone();
        let transacted = run(&table)?;
        if transacted.record.seq != self.row(commit.key).execution.entry_count() + 1 {
            return Err(unsupported("the transaction step gave an entry with a wrong number"));
        }
        if transacted.keep {
            self.table = table;
        }
        let changes = Arc::make_mut(&mut commit.changes);
        changes.records = [transacted.record.clone()].into_iter().collect();
        changes.state = transacted.state;
        Ok((commit, Some(transacted.record)))
    }

    fn fence(&self, commit: &Commit, now: Timestamp) -> Fence {
        let Some(row) = self.rows.get(&commit.key) else {
            // It ended and was pruned, so nobody holds it.
            return Fence::Released;
        };
        let session_is_live = self.live(commit.lease.session, now).is_ok();
        row.lease.fence(commit.lease, commit.expected, session_is_live)
    }

    fn write_commit(&mut self, commit: Commit, now: Timestamp) -> Committed {
        let key = commit.key;
        let execution = self.row(key).checked(&commit);
        let (address, run) = (execution.address().clone(), self.row(key).execution.run());
        let records = self.positioned(key, (&address, run), commit.changes.records.to_vec());
        let next = commit.changes.next.clone();
        let next = next.map(|first| self.positioned(key, (&address, run + 1), vec![first]));
        self.change(key, |row| {
            row.replace(execution, &commit);
            row.journal.extend(records);
            next.into_iter().for_each(|first| row.open_run(first));
        });
        let mut emitter = Emitter {
            address: self.row(key).address().clone(),
            session: commit.lease.session,
            born_slots: commit.born_slots,
            born: Vec::new(),
            dropped_count: 0,
        };
        // An ended execution is released before its messages go out: one of them may retry the
        // execution itself.
        let is_over = self.row(key).execution.is_finished();
        if is_over {
            self.change(key, |row| row.hold(&commit, now));
        }
        // Otherwise the lease is still held while the messages go out: an execution that yields
        // would stand in the queue before its own children, and none of them would be born leased.
        for message in &commit.changes.outgoing {
            self.emit(&mut emitter, message.clone(), now);
        }
        if !is_over {
            self.change(key, |row| row.hold(&commit, now));
        }
        let born =
            emitter.born.into_iter().map(|key| Box::new(self.row(key).leased(&self.page_bounds))).collect();
        Committed { born, dropped_count: emitter.dropped_count, transacted: None }
    }

    fn emit(&mut self, emitter: &mut Emitter, message: Message, now: Timestamp) {
        let intake = Ahead::of(self, now).admit(&message);
        match intake {
            Ok(intake) => {
                let offer = Some(emitter.session).filter(|_| emitter.born.len() < emitter.born_slots);
                let key = self.write(message, intake, offer, now);
                if intake == Intake::Create && self.row(key).lease.session.is_some() {
                    emitter.born.push(key);
                }
            }
            Err(refusal) => match refused_start(&emitter.address, &message, &refusal) {
                Some(answer) => self.emit(emitter, answer, now),
                None => emitter.dropped_count += 1,
            },
        }
    }
}

fn unsupported(what: &str) -> Error {
    Refusal::Unsupported { what: what.to_owned() }.into()
}

/// The emitter of messages, and the results of its outgoing messages.
struct Emitter {
    address: Address,
    session: SessionId,
    born_slots: usize,
    born: Vec<ExecutionKey>,
    dropped_count: usize,
}
