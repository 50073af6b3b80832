//! The builds that have tried to go on with a blocked execution.
//!
//! The next deploy may mend code that does not match a journal, or data that the code cannot read.
//! So each build tries once. The block keeps the builds that it has stopped. Any recorded progress
//! of the execution empties the list.

use crate::planted::{Bug, planted};
use crate::{Block, Command, Execution, Name, Phase};

/// The most builds that are kept with a block. Beyond that the oldest is forgotten, and may try
/// again.
const BUILD_COUNT_MAX: usize = 16;

impl Command {
    /// Creates a block by an obstacle in the code or the data, found by an unnamed build.
    pub fn block(reason: Block) -> Self {
        Self::Block { reason, build: None }
    }

    /// Returns the same command with this build as the finder of the obstacle.
    #[inline]
    pub fn found_by(self, build: &Name) -> Self {
        match self {
            Self::Block { reason, build: None } => Self::Block { reason, build: Some(build.clone()) },
            other => other,
        }
    }
}

impl Execution {
    /// Returns the builds that were blocked where the execution stands, the newest last.
    pub fn tried(&self) -> &[Name] {
        self.tried.as_deref().unwrap_or_default()
    }

    /// Whether this build was blocked where the execution stands. A build without a name cannot be
    /// recognized.
    pub(crate) fn has_tried(&self, build: Option<&Name>) -> bool {
        build.is_none_or(|build| self.tried().contains(build))
    }

    /// Whether a build that has not tried yet may mend the obstacle. No build can where somebody
    /// has to decide about a step.
    pub fn is_worth_trying(&self, build: &Name) -> bool {
        match self.phase() {
            Phase::Blocked { reason, .. } => {
                let is_new = !self.tried().contains(build) || planted(Bug::EachStartTries);
                reason.lost().is_none() && is_new
            }
            _ => false,
        }
    }

    pub(crate) fn try_by(&mut self, build: Option<&Name>) {
        let Some(build) = build.filter(|build| !self.tried().contains(build)) else { return };
        let tried = self.tried.get_or_insert_default();
        if tried.len() == BUILD_COUNT_MAX {
            tried.remove(0);
        }
        tried.push(build.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Address, ExecutionId, Failure, FailureKind, Namespace, Op, OpKind, Outcome, Payload, Remedy,
        StepRecord, StepRemedy, Timestamp, Unrecordable,
    };

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn execution() -> Execution {
        let start = crate::fixture::flow();
        let address = Address { namespace: Namespace::default(), id: ExecutionId::new("a").unwrap() };
        Execution::start(address, start, Timestamp::from_millis(1)).0
    }

    fn decide(execution: &mut Execution, command: Command) -> usize {
        let now = Timestamp::from_millis(2);
        let decision = execution.decide(command, now).unwrap();
        decision.record(execution, now).0.iter().count()
    }

    fn block(build: &str) -> Command {
        Command::Block { reason: Block::Limit { reason: "full".to_owned() }, build: Some(name(build)) }
    }

    fn unblock() -> Command {
        Command::Unblock { by: crate::By("test".into()), step: None }
    }

    #[test]
    fn each_build_tries_once() {
        let mut execution = execution();
        assert!(!execution.is_worth_trying(&name("a")), "it is not blocked");
        for build in ["a", "b"] {
            decide(&mut execution, block(build));
            assert!(!execution.is_worth_trying(&name(build)));
            assert!(execution.is_worth_trying(&name("c")));
            decide(&mut execution, unblock());
        }
        decide(&mut execution, block("b"));
        assert_eq!(execution.tried(), [name("a"), name("b")]);
        assert_eq!(decide(&mut execution, block("a")), 0, "nothing new");
    }

    /// A closure that ends during a block does not show that the build would get any further.
    #[test]
    fn what_is_recorded_while_it_is_blocked_makes_nobody_try_again() {
        let mut execution = execution();
        let op = Op { kind: OpKind::Step, name: name("charge"), key: None, nth: 1 };
        let (failure, retry_at) = (Failure::new(FailureKind::Error, "no"), Timestamp::from_millis(3));
        let attempt = Command::FailAttempt { op, attempt: 1, failure, retry_at, first_at: retry_at };
        decide(&mut execution, block("a"));
        decide(&mut execution, attempt.clone());
        assert_eq!(execution.tried(), [name("a")]);
        decide(&mut execution, unblock());
        decide(&mut execution, attempt);
        assert!(execution.tried().is_empty());
    }

    /// A build that was stopped by an unrecordable result may go on after a decision about that
    /// result.
    #[test]
    fn a_decision_about_a_step_lets_each_build_try_again() {
        let mut execution = execution();
        let op = Op { kind: OpKind::Step, name: name("charge"), key: None, nth: 1 };
        let lost = Outcome::Unrecordable(Unrecordable { reason: "too large".to_owned() });
        let record = StepRecord { op: op.clone(), outcome: lost, attempt: 1, input: None };
        decide(&mut execution, Command::RecordStep(record));
        let reason = Block::Unrecordable { op, reason: "too large".to_owned() };
        decide(&mut execution, Command::Block { reason, build: Some(name("a")) });
        let (by, remedy) = (crate::By("test".into()), Remedy::Edit(Payload::from("1")));
        let step = Some(StepRemedy { step: "charge".to_owned(), remedy });
        decide(&mut execution, Command::Unblock { by, step });
        decide(&mut execution, block("b"));
        assert_eq!(execution.tried(), [name("b")]);
        assert!(execution.is_worth_trying(&name("a")));
    }

    #[test]
    fn the_list_is_bounded() {
        let mut execution = execution();
        for n in 0..100 {
            decide(&mut execution, block(&n.to_string()));
        }
        let newest: Vec<_> = (84..100).map(|n| name(&n.to_string())).collect();
        assert_eq!(execution.tried(), newest);
        assert!(newest.iter().all(|build| !execution.is_worth_trying(build)));
    }
}
