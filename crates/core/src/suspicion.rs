//! Decides how long an execution is suspected of killing its workers.
//!
//! Suspicion begins with the first session that dies while holding the execution, and a store
//! counts the deaths that follow. Each holder carries the suspicion on in the
//! [summary](crate::Summary) of every commit, until the execution has [proven](Proof) harmless; a
//! store that finds a commit without it sets its count to zero. Orders from outside are no proof:
//! an operator who pauses poison and resumes it has changed nothing. Nor is work beside a closure
//! that ran when the last holder died: that closure may be the one that kills, and it has begun
//! again.

use serde::{Deserialize, Serialize};

use crate::planted::{Bug, planted};
use crate::{Event, Status, Summary, Timestamp, Waiting};

/// The record of an execution with which sessions died.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspicion {
    /// The times at which its worker was found dead after it ran alone, oldest first.
    pub died_at: Vec<Timestamp>,
    /// The restriction on it.
    pub stand: Stand,
}

/// The restriction on a suspected execution. The order of the variants is written to disk: new ones
/// go last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stand {
    /// None yet.
    #[default]
    Aside,
    /// It runs alone. A holder that finds this mark, and more deaths than it was written with,
    /// knows that this execution caused the last one.
    Alone {
        /// The number of sessions in a row that had died when it began.
        takeover_count: u32,
    },
    /// It does not run before this time.
    Resting(Timestamp),
    /// It ran alone for long, and others run beside it now. A death says nothing about it.
    Beside,
}

/// The evidence in a commit of a suspected execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// Whether its run has ended: nothing of it is left that could kill a worker.
    pub is_over: bool,
    /// Whether it records something that the code got [done](Event::is_work).
    pub has_work: bool,
    /// Whether it parks code that [stands still](Summary::stands_still).
    pub is_still: bool,
    /// Whether a closure that was open when the last holder died has begun again, and is neither
    /// recorded nor given up.
    pub has_open: bool,
}

impl Proof {
    /// Whether the execution is no longer suspected.
    pub fn suffices(self) -> bool {
        let is_clear = !self.has_open || planted(Bug::ProgressClearsPoison);
        self.is_over || (is_clear && (self.has_work || self.is_still))
    }
}

impl Event {
    /// Whether this is something that the execution's code got done. An order is not, nor is a
    /// block.
    pub fn is_work(&self) -> bool {
        let is_foreign = matches!(self, Self::Foreign(_));
        is_foreign || self.op().is_some() || self.is_terminal() || planted(Bug::OrdersClearSuspicion)
    }
}

impl Suspicion {
    /// Adds the suspicion to the summary of a commit that does not end it.
    pub fn told_in(self, summary: Summary) -> Summary {
        let is_active = !matches!(summary.status, Status::Paused | Status::Blocked);
        let summary = match self.stand {
            Stand::Alone { .. } if is_active => {
                let mark = Waiting::Suspect { died_at: self.died_at.clone(), until: None };
                let waiting = std::iter::once(mark).chain(summary.waiting);
                let waiting = waiting.take(Summary::WAITING_COUNT_MAX).collect();
                Summary { status: Status::Running, waiting, ..summary }
            }
            _ => summary,
        };
        Summary { suspicion: Some(self), ..summary }
    }

    /// Returns the suspicion after its holder has left in good order: that the execution ran alone
    /// no longer matters.
    pub fn left(self) -> Self {
        match self.stand {
            Stand::Alone { .. } if planted(Bug::LeftStaysAlone) => self,
            Stand::Alone { .. } | Stand::Beside => Self { stand: Stand::Aside, ..self },
            Stand::Aside | Stand::Resting(_) => self,
        }
    }

    /// Returns the suspicion from the moment on at which others may run beside the execution.
    pub fn joined(self) -> Self {
        match self.stand {
            Stand::Alone { .. } if !planted(Bug::JoinedDeathsCount) => Self { stand: Stand::Beside, ..self },
            Stand::Alone { .. } | Stand::Aside | Stand::Resting(_) | Stand::Beside => self,
        }
    }

    /// Whether the execution runs alone.
    pub fn is_alone(&self) -> bool {
        matches!(self.stand, Stand::Alone { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Block, By, Failure, FailureKind, Name, Op, OpKind, Outcome, Payload, Remedied, Remedy, StepRecord,
    };

    const NOTHING: Proof = Proof { is_over: false, has_work: false, is_still: false, has_open: false };

    #[test]
    fn progress_beside_an_open_closure_proves_nothing() {
        for (proof, expected) in [
            (NOTHING, false),
            (Proof { has_work: true, ..NOTHING }, true),
            (Proof { is_still: true, ..NOTHING }, true),
            (Proof { has_work: true, has_open: true, ..NOTHING }, false),
            (Proof { is_still: true, has_open: true, ..NOTHING }, false),
            (Proof { is_over: true, has_open: true, ..NOTHING }, true),
        ] {
            assert_eq!(proof.suffices(), expected, "{proof:?}");
        }
    }

    #[test]
    fn orders_are_no_work() {
        let by = || By("ops".into());
        let reason = || "lunch".to_owned();
        let op = || Op { kind: OpKind::Step, name: Name::new("s").unwrap(), key: None, nth: 1 };
        let at = Timestamp::from_millis(1);
        let record =
            StepRecord { op: op(), outcome: Outcome::Success(Payload::from("1")), attempt: 1, input: None };
        let failure = Failure::new(FailureKind::Fatal, "no");
        let remedied = Remedied { op: op(), remedy: Remedy::Edit(Payload::from("1")), declared: None };
        for (event, expected) in [
            (Event::Paused { by: by(), reason: reason() }, false),
            (Event::Resumed { by: by() }, false),
            (Event::Inherited { pause: Some(reason()), by: by(), number: 1 }, false),
            (Event::Inherited { pause: None, by: by(), number: 2 }, false),
            (Event::CancelRequested { by: by(), reason: reason() }, false),
            (Event::DeadlinePassed { until: at }, false),
            (Event::Blocked { reason: Block::Poison { reason: reason() }, build: None }, false),
            (Event::Unblocked { by: by(), remedied: None }, false),
            (Event::Retried { by: by() }, false),
            (Event::Unblocked { by: by(), remedied: Some(remedied) }, true),
            (Event::StepRecorded(record), true),
            (
                Event::AttemptFailed {
                    op: op(),
                    attempt: 1,
                    failure: failure.clone(),
                    retry_at: at,
                    first_at: at,
                },
                true,
            ),
            (Event::TimerFired { op: op() }, true),
            (Event::Failed(failure), true),
        ] {
            assert_eq!(event.is_work(), expected, "{}", event.word());
        }
    }
}
