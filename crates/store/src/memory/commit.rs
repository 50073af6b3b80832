//! The writes of those who hold a lease.

use abide_core::{Address, Fence, Message, Refusal, SessionId, Timestamp};

use super::admission::{Admission, Ahead};
use super::state::State;
use crate::{Commit, CommitOutcome, Committed, ExecutionKey, Result, refused_start};

impl State {
    pub(super) fn commit(&mut self, commit: Commit, now: Timestamp) -> Result<CommitOutcome> {
        if commit.transaction.is_some() {
            let what = "ctx.sqlite needs a SQLite store; this store keeps its data in memory".to_owned();
            return Err(Refusal::Unsupported { what }.into());
        }
        match self.fence(&commit, now) {
            Fence::Open => {
                self.row(commit.key).check_consumed(&commit)?;
                Ok(CommitOutcome::Committed(self.write_commit(commit, now)))
            }
            // What was born then is told once: the number of leases in a heartbeat gives it away.
            Fence::Applied => Ok(CommitOutcome::Committed(Committed::default())),
            fence => Ok(CommitOutcome::Fenced(fence)),
        }
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
        let records = self.positioned(key, commit.changes.records.clone());
        let next = commit.changes.next.clone().map(|first| self.positioned(key, vec![first]));
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
        // The lease is still held while the messages go out: an execution that yields would otherwise stand in the
        // queue before its own children, and none of them would be born leased.
        for message in &commit.changes.emits {
            self.emit(&mut emitter, message.clone(), now);
        }
        self.change(key, |row| row.hold(commit.hold, now));
        let born = emitter.born.into_iter().map(|key| self.row(key).leased(&self.bounds)).collect();
        Committed { born, dropped_count: emitter.dropped_count, transacted: None }
    }

    fn emit(&mut self, emitter: &mut Emitter, message: Message, now: Timestamp) {
        let admission = Ahead::of(self, now).admit(&message);
        match admission {
            Ok(admission) => {
                let offer = Some(emitter.session).filter(|_| emitter.born.len() < emitter.born_slots);
                let key = self.write(message, admission, offer, now);
                if admission == Admission::Create && self.row(key).lease.session.is_some() {
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

/// Who emits, and what became of it.
struct Emitter {
    address: Address,
    session: SessionId,
    born_slots: usize,
    born: Vec<ExecutionKey>,
    dropped_count: usize,
}
