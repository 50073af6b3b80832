//! Pauses: an execution's own, and the one that its parent's pause puts on it.
//!
//! An own pause lasts until somebody resumes this very execution. It outlives a block: an execution
//! that is paused while it is blocked stays paused when it is unblocked.

use crate::{By, Command, Decision, Event, Execution, Phase, Refusal};

impl Execution {
    /// Decides about a pause or a resume of a blocked execution.
    pub(crate) fn decide_pause_of_blocked(&self, command: Command) -> Result<Decision, Refusal> {
        match command {
            Command::Pause { .. } if matches!(self.phase, Phase::Blocked { cancelling: Some(_), .. }) => {
                Err(Refusal::Cancelling)
            }
            Command::Pause { by, reason } if self.own_pause().is_none() || self.has_tree() => {
                Ok(Event::Paused { by, reason }.into())
            }
            Command::Resume { by } if self.is_paused() => Ok(Event::Resumed { by }.into()),
            Command::Resume { .. } => Err(Refusal::NotPaused),
            _ => Ok(Decision::default()),
        }
    }

    pub(crate) fn apply_paused(&mut self, by: &By, reason: &str) {
        let own = (by.clone(), reason.to_owned());
        match &mut self.phase {
            Phase::Blocked { paused, .. } => *paused = Some(own),
            phase => *phase = Phase::Paused { by: own.0, reason: own.1, is_own: true },
        }
    }

    /// Lets the execution go on, because somebody resumed this very execution. It does not matter
    /// who paused it.
    pub(crate) fn apply_resumed(&mut self) {
        match &mut self.phase {
            Phase::Blocked { paused, .. } => *paused = None,
            phase => *phase = Phase::Running,
        }
        if let Some(inherited) = &mut self.inherited {
            inherited.pause = None;
        }
    }

    /// Returns who paused this very execution, and why.
    pub(crate) fn own_pause(&self) -> Option<(By, String)> {
        match &self.phase {
            Phase::Paused { by, reason, is_own: true } => Some((by.clone(), reason.clone())),
            Phase::Blocked { paused, .. } => paused.clone(),
            _ => None,
        }
    }

    /// Returns who paused its parent, and why, while that pause lasts.
    pub fn inherited_pause(&self) -> Option<&(By, String)> {
        self.inherited.as_ref().and_then(|inherited| inherited.pause.as_ref())
    }

    /// Returns its phase without its own pauses and blocks: its parent may be paused.
    pub(crate) fn unhindered(&self) -> Phase {
        paused(&self.inherited_pause().cloned())
    }

    /// Whether it starts nothing new because somebody paused it or its parent.
    pub(crate) fn is_paused(&self) -> bool {
        self.inherited_pause().is_some() || self.own_pause().is_some()
    }
}

pub(crate) fn paused(by_parent: &Option<(By, String)>) -> Phase {
    match by_parent {
        Some((by, reason)) => Phase::Paused { by: by.clone(), reason: reason.clone(), is_own: false },
        None => Phase::Running,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Address, Block, ExecutionId, Namespace, Timestamp};

    fn by() -> By {
        By("ann".into())
    }

    fn pause() -> Command {
        Command::Pause { by: by(), reason: "lunch".to_owned() }
    }

    fn resume() -> Command {
        Command::Resume { by: by() }
    }

    fn block() -> Command {
        Command::block(Block::Limit { reason: "too long".to_owned() })
    }

    fn unblock() -> Command {
        Command::Unblock { by: by(), step: None }
    }

    fn inherit(number: u64, is_pause: bool) -> Command {
        Command::Inherit { by: by(), number, pause: is_pause.then(|| "lunch".to_owned()) }
    }

    /// Returns whether an execution after these `commands` is paused, and whether it is blocked.
    fn after(commands: Vec<Command>) -> (bool, bool) {
        let execution = executed(commands);
        let is_blocked = matches!(execution.phase(), Phase::Blocked { .. });
        (matches!(execution.phase(), Phase::Paused { .. }), is_blocked)
    }

    fn executed(commands: Vec<Command>) -> Execution {
        let id = ExecutionId::new("a").expect("an id");
        let start = crate::fixture::flow();
        let address = Address { namespace: Namespace::default(), id };
        let (mut execution, _) = Execution::start(address, start, Timestamp::default());
        for command in commands {
            let decision = execution.decide(command, Timestamp::default()).expect("it is decided");
            decision.record(&mut execution, Timestamp::default());
        }
        execution
    }

    #[test]
    fn a_pause_outlives_a_block() {
        assert_eq!(after(vec![block(), pause()]), (false, true));
        assert_eq!(after(vec![block(), pause(), unblock()]), (true, false));
        assert_eq!(after(vec![block(), pause(), pause(), unblock(), resume()]), (false, false));
        assert_eq!(after(vec![block(), pause(), resume()]), (false, true));
        assert_eq!(after(vec![block(), pause(), resume(), unblock()]), (false, false));
        assert_eq!(after(vec![block(), pause(), block(), unblock()]), (true, false));
    }

    #[test]
    fn a_pause_of_the_parent_passes_by_a_blocked_clean_up_and_a_resume_does_not() {
        let cancel = || Command::Cancel { by: by(), reason: "enough".to_owned() };
        let execution = executed(vec![cancel(), block()]);
        let decision = execution.decide(inherit(7, true), Timestamp::default()).expect("it is decided");
        assert_eq!(decision.event, None);
        let paused_before = || vec![inherit(7, true), cancel(), block()];
        assert!(executed(paused_before()).inherited_pause().is_some());
        let resumed = [paused_before(), vec![inherit(8, false)]].concat();
        assert!(executed(resumed).inherited_pause().is_none());
    }

    #[test]
    fn a_resume_of_the_parent_does_not_lift_the_pause_of_what_is_blocked() {
        let both = vec![inherit(7, true), resume(), block(), pause(), inherit(8, true), inherit(9, false)];
        assert_eq!(after([both, vec![unblock()]].concat()), (true, false));
        assert_eq!(after(vec![block(), inherit(7, true), resume(), unblock()]), (false, false));
    }
}
