//! What a passed deadline does.
//!
//! Code that is live sees it, as it sees a cancellation, and has a grace to wind down. However that goes, the run then fails with its
//! deadline: whoever set one acts on it, and a result that came too late is none.

use crate::{
    Command, Decision, Event, Execution, Failure, FailureKind, OpKind, Phase, Refusal, Timestamp, care,
};

impl Execution {
    /// When its deadline is to be seen to: when it passes, and again when those who saw it have had their time.
    pub fn expires_at(&self) -> Option<Timestamp> {
        match self.phase() {
            Phase::Expiring { until } => Some(*until),
            _ => self.deadline_at().filter(|_| !self.is_finished()),
        }
    }

    /// When somebody without its code has to see to its deadline.
    pub fn care_at(&self) -> Option<Timestamp> {
        self.expires_at().map(|at| at.after(care::DEADLINE_PATIENCE))
    }

    /// What code that is live is shown. Code that was not called yet sees nothing.
    pub(crate) fn show_deadline(&self, until: Timestamp, now: Timestamp) -> Result<Decision, Refusal> {
        let is_due = self.deadline_at().is_some_and(|deadline_at| deadline_at <= now);
        if is_due && !self.is_delayed(now) {
            return Ok(Event::DeadlinePassed { until }.into());
        }
        self.expire(now)
    }

    /// The deadline ends the run.
    pub(crate) fn expire(&self, now: Timestamp) -> Result<Decision, Refusal> {
        match self.expires_at() {
            Some(at) if at <= now => Ok(self.failed(self.too_late())),
            _ => Err(Refusal::NotDue),
        }
    }

    /// Its code winds down: it may record what it does, and its end is the deadline's, whatever it returns.
    pub(crate) fn decide_expiring(&self, command: Command, now: Timestamp) -> Result<Decision, Refusal> {
        match command {
            Command::Pause { .. } | Command::ContinueAsNew { .. } => Err(Refusal::Expiring),
            Command::Resume { .. } => Err(Refusal::NotPaused),
            Command::Unblock { .. } => Err(Refusal::NotBlocked),
            Command::Cancel { .. } | Command::Inherit { .. } | Command::ShowDeadline { .. } => {
                Ok(Decision::default())
            }
            Command::Block { reason, build } => Ok(Event::Blocked { reason, build }.into()),
            Command::Complete { .. } => Ok(self.failed(self.too_late())),
            Command::Fail(failure) => Ok(self.failed(self.too_late_after(failure))),
            // No other attempt of a task follows.
            Command::FailAttempt { op, failure, .. } if op.kind == OpKind::Task => {
                Ok(self.failed(self.too_late_after(failure)))
            }
            other => self.decide_work(other, now),
        }
    }

    fn too_late(&self) -> Failure {
        let deadline_at = self.deadline_at().unwrap_or_default();
        Failure::new(FailureKind::Deadline, format!("the deadline {deadline_at} has passed"))
    }

    /// What its code returned is told, unless it is the deadline that it saw.
    fn too_late_after(&self, failure: Failure) -> Failure {
        let mut late = self.too_late();
        if failure.kind != FailureKind::Deadline {
            late.chain.push(failure.message.clone());
            late.chain.extend(failure.chain.iter().cloned());
        }
        late
    }
}
