//! The transition from one run of an execution to the next.
//!
//! A run never changes after its end. Continue-as-new and a retry open another run under the same
//! id. The new run has its own journal, numbered from 1, and the inbox of the execution, which
//! belongs to all its runs.

use std::sync::Arc;

use crate::{By, Entry, Event, Execution, Parent, Payload, Phase, Refusal, Start, Timestamp};

/// The beginning of a run, according to its first entry.
#[derive(Clone, Copy, Debug)]
pub struct Began<'a> {
    /// The time.
    pub at: Timestamp,
    /// The start.
    pub start: &'a Start,
}

impl Entry {
    /// Returns the beginning of a run from its first entry; `None` for every other entry.
    pub fn began(&self) -> Option<Began<'_>> {
        match &self.event {
            Event::Started(start) => Some(Began { at: self.at, start }),
            _ => None,
        }
    }
}

impl Execution {
    /// Returns the run after this one, which [continued as new](Event::ContinuedAsNew), and its
    /// first entry.
    ///
    /// Everything is as in `start` but the input. The parent stays: it waits for the last run's
    /// outcome, and a run that continues answers nobody. The deadline stays, because it is for the
    /// whole execution. A delay is over.
    pub fn continued(&self, start: &Start, input: Payload, now: Timestamp) -> (Self, Entry) {
        debug_assert_eq!(self.phase(), &Phase::Continued, "{} did not ask for it", self.address());
        // An order of the parent that was overtaken must stay overtaken.
        let heard = self.inherited.as_ref().map(|inherited| inherited.number);
        let parent = start.parent.clone().map(|parent| Parent { heard, ..parent });
        // A repeated start is compared with the first run.
        let start = Start { start_at: None, parent, ..start.clone().with_input(input) };
        Self::begin(self.address().clone(), self.run() + 1, Arc::new(start), now)
    }

    /// Returns the run that tries this failed or cancelled one again, and its first entries.
    ///
    /// Everything is as this run `began`, with three exceptions. Nobody waits for the outcome: the
    /// parent knows how this run ended, and may have acted on it, so it gets no second answer. The
    /// new run has as long until its deadline as this one had when it began. A delay is over.
    pub fn retried(&self, began: Began<'_>, by: By, now: Timestamp) -> Result<(Self, Vec<Entry>), Refusal> {
        self.may_be_retried()?;
        began.start.may_be_repeated()?;
        let deadline_at = began.start.deadline_at.map(|deadline_at| now.after(deadline_at.since(began.at)));
        let start = Start { start_at: None, deadline_at, parent: None, ..began.start.clone() };
        let (mut execution, first) =
            Self::begin(self.address().clone(), self.run() + 1, Arc::new(start), now);
        let second = Entry::new(first.seq + 1, now, Event::Retried { by });
        execution.apply(&second);
        Ok((execution, vec![first, second]))
    }

    /// Whether its unread messages will stay unread for ever: it has ended, and no retry opens
    /// another run of the execution that began with `first`.
    pub fn is_final(&self, first: &Start) -> bool {
        self.is_finished() && (self.may_be_retried().is_err() || first.may_be_repeated().is_err())
    }

    /// Whether a retry opens another run now, if its start may be repeated.
    pub(crate) fn may_be_retried(&self) -> Result<(), Refusal> {
        match self.phase() {
            Phase::Failed | Phase::Cancelled => Ok(()),
            Phase::Completed | Phase::Continued => Err(Refusal::Finished { status: self.status() }),
            Phase::Running
            | Phase::Paused { .. }
            | Phase::Cancelling { .. }
            | Phase::Expiring { .. }
            | Phase::Blocked { .. } => Err(Refusal::NotEnded),
        }
    }
}
