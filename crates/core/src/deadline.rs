//! The consequences of a passed deadline.
//!
//! Live code sees the deadline as it sees a cancellation, and has a grace period to wind down. The
//! run then fails with its deadline in any case: the caller that set the deadline acts on it, and a
//! result that comes too late does not count.

use std::time::Duration;

use crate::planted::{Bug, planted};
use crate::{
    Command, Decision, Event, Execution, Failure, FailureKind, Kind, OpKind, Phase, Refusal, Timestamp, care,
};

/// The code that can see that a deadline has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Witness {
    /// Whether the code was called and has not ended.
    pub has_begun: bool,
    /// Whether no worker has ever called the code.
    pub is_first: bool,
}

impl Execution {
    /// Returns the command that the deadline demands at `now`, if any. The code sees the deadline
    /// and has `grace` to wind down. The execution fails when that time is over, or at once if no
    /// code can see the deadline.
    pub fn overdue(&self, witness: Witness, now: Timestamp, grace: Duration) -> Option<Command> {
        let expires_at = self.expires_at()?;
        let is_expiring = matches!(self.phase(), Phase::Expiring { .. });
        let is_task = self.kind() == Kind::Task;
        if is_expiring && is_task && !witness.has_begun {
            // The worker that ran it is gone, and a task does not begin again only to see its
            // deadline. No code is left to wait for.
            return Some(Command::Fail(Failure::new(FailureKind::Deadline, "its worker is gone")));
        }
        if expires_at > now || (is_task && planted(Bug::TaskDeadlineIgnored)) {
            return None;
        }
        // A workflow is called again and replays to the same place. A task that does not run has no
        // place to return to.
        let sees = witness.has_begun || !(is_task || witness.is_first);
        Some(if sees && !is_expiring {
            Command::ShowDeadline { until: now.after(grace) }
        } else {
            Command::ExpireDeadline
        })
    }

    /// Returns the time at which the deadline needs attention: when it passes, and again when the
    /// grace period of the code that saw it is over.
    pub fn expires_at(&self) -> Option<Timestamp> {
        match self.phase() {
            Phase::Expiring { until } => Some(*until),
            _ => self.deadline_at().filter(|at| !self.is_finished() && !self.is_ignored(*at)),
        }
    }

    /// Whether a planted bug ignores this deadline: it comes before a delayed start.
    fn is_ignored(&self, deadline_at: Timestamp) -> bool {
        planted(Bug::DeadlineAwaitsStart) && self.is_delayed(deadline_at)
    }

    /// Returns the time at which a caretaker, which has no code, must apply the deadline.
    pub fn care_at(&self) -> Option<Timestamp> {
        self.expires_at().map(|at| at.after(care::DEADLINE_PATIENCE))
    }

    /// Shows the deadline to live code. Code that was not called yet sees nothing.
    pub(crate) fn show_deadline(&self, until: Timestamp, now: Timestamp) -> Result<Decision, Refusal> {
        let is_due = self.deadline_at().is_some_and(|deadline_at| deadline_at <= now);
        if is_due && !self.is_delayed(now) {
            return Ok(Event::DeadlinePassed { until }.into());
        }
        self.expire(now)
    }

    /// Ends the run with its deadline.
    pub(crate) fn expire(&self, now: Timestamp) -> Result<Decision, Refusal> {
        match self.expires_at() {
            Some(at) if at <= now => Ok(self.failed(self.too_late())),
            _ => Err(Refusal::NotDue),
        }
    }

    /// Decides while the code winds down. The code may record its work, but the run ends with the
    /// deadline, whatever the code returns.
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
            // No further attempt of the task follows.
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

    /// Returns the failure of the deadline, with the place of the error that the code returned. Its
    /// causes include that error, unless it is the deadline itself.
    fn too_late_after(&self, failure: Failure) -> Failure {
        let mut late = self.too_late();
        if failure.kind != FailureKind::Deadline {
            late.chain.push(failure.message.clone());
            late.chain.extend(failure.chain.iter().cloned());
        }
        late.at = failure.at.clone();
        late
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Address, ExecutionId, Name, Namespace, Payload, Start};

    const GRACE: Duration = Duration::from_millis(5);

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    /// Returns the decision at `now` about a deadline at 10, which was shown until 15 if
    /// `is_shown`.
    fn check(kind: Kind, is_shown: bool, [has_begun, is_first]: [bool; 2], now: i64) -> &'static str {
        let start = Start {
            deadline_at: Some(at(10)),
            ..Start::of(kind, Name::new("flow").unwrap(), Payload::from("1"))
        };
        let address = Address { namespace: Namespace::default(), id: ExecutionId::new("a").unwrap() };
        let mut execution = Execution::start(address, start, at(1)).0;
        if is_shown {
            let shown = execution.decide(Command::ShowDeadline { until: at(15) }, at(10)).unwrap();
            shown.record(&mut execution, at(10));
        }
        match execution.overdue(Witness { has_begun, is_first }, at(now), GRACE) {
            None => "nothing",
            Some(command @ Command::ShowDeadline { .. }) => {
                assert_eq!(command, Command::ShowDeadline { until: at(now).after(GRACE) });
                "show"
            }
            Some(command) => {
                let decision = execution.decide(command, at(now)).unwrap();
                decision.record(&mut execution, at(now));
                assert_eq!(*execution.phase(), Phase::Failed);
                "fail"
            }
        }
    }

    #[test]
    fn the_error_of_late_code_says_where_it_arose() {
        let start = Start {
            deadline_at: Some(at(10)),
            ..Start::of(Kind::Workflow, Name::new("flow").unwrap(), Payload::from("1"))
        };
        let address = Address { namespace: Namespace::default(), id: ExecutionId::new("a").unwrap() };
        let mut execution = Execution::start(address, start, at(1)).0;
        let shown = execution.decide(Command::ShowDeadline { until: at(15) }, at(10)).unwrap();
        shown.record(&mut execution, at(10));
        let mut failure = Failure::new(FailureKind::Error, "no");
        let site = Some("src/main.rs:7".to_owned());
        failure.at = Some(crate::Origin { code: String::new(), op: None, attempt: None, site });
        let ended = execution.decide(Command::Fail(failure.clone()), at(11)).unwrap();
        let Some(Event::Failed(late)) = &ended.event else { panic!("it ends: {ended:?}") };
        assert_eq!((late.kind, &late.at), (FailureKind::Deadline, &failure.at));
        assert_eq!(late.chain, ["no"]);
    }

    const RUNS: [bool; 2] = [true, false];
    const RUNS_FIRST: [bool; 2] = [true, true];
    const RAN: [bool; 2] = [false, false];
    const NEVER: [bool; 2] = [false, true];

    #[test]
    fn code_that_can_see_a_deadline_is_shown_it() {
        for kind in [Kind::Workflow, Kind::Task] {
            for code in [RUNS, RUNS_FIRST, RAN, NEVER] {
                assert_eq!(check(kind, false, code, 9), "nothing");
            }
            assert_eq!(check(kind, false, RUNS, 10), "show");
            assert_eq!(check(kind, false, RUNS_FIRST, 10), "show");
            assert_eq!(check(kind, false, NEVER, 10), "fail");
        }
        assert_eq!(check(Kind::Workflow, false, RAN, 10), "show", "it is called again and sees it");
        assert_eq!(check(Kind::Task, false, RAN, 10), "fail", "it does not run");
    }

    #[test]
    fn who_has_seen_a_deadline_has_its_grace_unless_it_is_a_task_that_is_gone() {
        for code in [RUNS, RAN] {
            assert_eq!(check(Kind::Workflow, true, code, 14), "nothing");
            assert_eq!(check(Kind::Workflow, true, code, 15), "fail");
        }
        assert_eq!(check(Kind::Task, true, RUNS, 14), "nothing");
        assert_eq!(check(Kind::Task, true, RUNS, 15), "fail");
        assert_eq!(check(Kind::Task, true, RAN, 11), "fail");
    }
}
