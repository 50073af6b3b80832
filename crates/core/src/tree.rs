//! Orders from a parent to its children.
//!
//! A pause, a resume, a cancellation and the end of a run concern the whole tree. The execution
//! itself only returns the order ([`TreeOrder`]): its open children are known to the driver that
//! replayed it, and to the store.
//!
//! Pauses and resumes may reach a child in any order. So each has the number of the parent's entry
//! that it comes from, and one that is older than the last changes nothing. Only the parent that
//! paused a child, or an order to that very child, lets it go on.

use serde::{Deserialize, Serialize};

use crate::pause::paused;
use crate::planted::{Bug, planted};
use crate::{
    Address, Body, By, Command, Decision, Event, Execution, ExecutionId, Message, MessageId, Op, Parent,
    Phase, Refusal,
};

/// An order for all open children of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeOrder {
    /// The parent.
    pub parent: ExecutionId,
    /// The parent's run.
    pub run: u32,
    /// The number of the parent's entry that the order follows from.
    pub number: u64,
    /// The content of the order.
    pub change: TreeChange,
}

/// The parent that an execution must have so that a message is for it. An id says too little: it
/// may belong to another execution, which the parent's start found there, and an order may reach
/// the store long after the parent sent it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descent {
    /// The parent.
    pub parent: ExecutionId,
    /// The parent's run.
    pub run: u32,
    /// The parent's entry before which it started the child.
    pub before: u64,
    /// The parent's wait for the child, if the message is for that child only.
    pub op: Option<Op>,
}

/// An order's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TreeChange {
    /// Start nothing new.
    Pause {
        /// The reason.
        reason: String,
    },
    /// Go on, if the parent paused them.
    Resume,
    /// Wind down.
    Cancel {
        /// The reason: the parent has ended, or is ending.
        reason: String,
    },
    /// End at once.
    Terminate,
}

impl TreeOrder {
    /// Returns the order for the children of a run that ended with entry `number`. A terminate has
    /// already gone down as terminate; the record does not distinguish it from any other end.
    pub fn at_end((parent, run): (ExecutionId, u32), number: u64) -> Self {
        Self { parent, run, number, change: cancel("its parent has ended") }
    }

    /// Returns the message for `child`. Its id makes a repetition harmless.
    pub fn message(&self, child: Address) -> Message {
        let Self { parent, run, number, change } = self;
        let body = match change {
            TreeChange::Pause { reason } => Body::Inherit { number: *number, pause: Some(reason.clone()) },
            TreeChange::Resume => Body::Inherit { number: *number, pause: None },
            TreeChange::Cancel { reason } => Body::Cancel { reason: reason.clone() },
            TreeChange::Terminate => Body::Terminate { reason: "its parent was terminated".to_owned() },
        };
        let [id, _] = self.heard_by();
        let descent = Descent { parent: parent.clone(), run: *run, before: *number, op: None };
        Message { descent: Some(descent.into()), ..Message::new(id, child, self.by(), body) }
    }

    /// Returns the ids of the messages by which a child may have heard, at the end of the run, that
    /// it is no longer wanted: from this order, or because its parent had given it up before.
    pub fn heard_by(&self) -> [MessageId; 2] {
        let Self { parent, run, number, .. } = self;
        [format!("tree:{parent}:{run}:{number}"), format!("cancel:{parent}:{run}")].map(MessageId::new)
    }

    /// Returns the sender of the order.
    pub fn by(&self) -> By {
        By(crate::text::titled("parent", &self.parent))
    }

    /// Returns the id of the execution that sends the order to the children.
    pub fn delegate(&self) -> ExecutionId {
        let Self { parent, run, number, .. } = self;
        ExecutionId::composed(&format!("{}tree/{parent}/{run}/{number}", ExecutionId::OWN_PREFIX))
    }
}

/// The last order of its parent that reached an execution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Inherited {
    pub(crate) number: u64,
    /// Who paused the parent, and why, while the pause lasts.
    pub(crate) pause: Option<(By, String)>,
}

impl Inherited {
    /// Returns the last order that earlier runs have heard. A run that continues is not paused.
    pub(crate) fn heard_by(parent: &Parent) -> Option<Self> {
        parent.heard.map(|number| Self { number, pause: None })
    }
}

impl Execution {
    /// Whether the current run of `parent` started it by the operation `start`. The id may belong
    /// to another execution, which that start found there.
    pub fn was_started_by(&self, parent: &Self, start: &Op) -> bool {
        self.parent().is_some_and(|found| {
            found.id == parent.address().id && found.run == parent.run() && found.op == start.child_result()
        })
    }

    /// Whether a message is for this execution, and not only for its id. Intake asks, and the
    /// reader of a message asks again: an execution that could not be read when the message arrived
    /// had to take it.
    pub fn is_meant_by(&self, message: &Message) -> bool {
        self.objection_to(message).is_none()
    }

    /// Returns why a message is not for this execution.
    pub(crate) fn objection_to(&self, message: &Message) -> Option<Refusal> {
        let descent = message.descent.as_deref()?;
        if !self.descends(descent) {
            return Some(Refusal::NotAChild { of: descent.parent.clone() });
        }
        self.has_heard(&message.body).then_some(Refusal::Cancelling)
    }

    /// Whether its parent only repeats that it is cancelled. A parent sends that when it is
    /// cancelled and when it ends: to a child that is blocked in its clean-up, that is no second
    /// cancellation, which would end it.
    fn has_heard(&self, order: &Body) -> bool {
        matches!((order, &self.phase), (Body::Cancel { .. }, Phase::Blocked { cancelling: Some(_), .. }))
            && !planted(Bug::CleanUpGivenUp)
    }

    /// Whether a message for children like this is for this execution. The next run of a failed
    /// child has no parent: nobody waits for it.
    fn descends(&self, descent: &Descent) -> bool {
        self.parent().is_some_and(|found| {
            (&found.id, found.run) == (&descent.parent, descent.run)
                && (found.entry < descent.before || planted(Bug::OrderReachesYounger))
                && descent.op.as_ref().is_none_or(|op| *op == found.op)
        })
    }

    /// Takes a pause or a resume of the parent. An order that a later one overtook changes nothing.
    /// A cancelled execution takes no pause, even while it is blocked: it would pass the pause on
    /// to the children of its clean-up, but no resume once it goes on.
    pub(crate) fn inherit(&self, command: Command) -> Result<Decision, Refusal> {
        let Command::Inherit { by, number, pause } = command else { return Ok(Decision::default()) };
        let is_overtaken = self.inherited.as_ref().is_some_and(|last| number <= last.number);
        let is_cancelled = self.cancellation().is_some() && !planted(Bug::CleanUpStaysPaused);
        if is_overtaken || (is_cancelled && pause.is_some()) {
            return Ok(Decision::default());
        }
        Ok(Event::Inherited { by, number, pause }.into())
    }

    pub(crate) fn apply_inherited(&mut self, by: &By, number: u64, pause: Option<&String>) {
        let pause = pause.map(|reason| (by.clone(), reason.clone()));
        self.phase = match (std::mem::replace(&mut self.phase, Phase::Running), &pause) {
            (Phase::Running | Phase::Paused { is_own: false, .. }, _) => paused(&pause),
            (Phase::Paused { .. }, _) if planted(Bug::ResumeLiftsOwnPause) => paused(&pause),
            (other, _) => other,
        };
        self.inherited = Some(Inherited { number, pause });
    }

    /// Whether it has open children, which a pause of it concerns too.
    pub(crate) fn has_tree(&self) -> bool {
        self.open_child_count > 0
    }

    /// Returns the order for the children when `decision` is recorded. A terminate goes down as
    /// terminate, every other end as cancel.
    pub(crate) fn tree_order(&self, decision: &Decision, is_terminate: bool) -> Option<TreeOrder> {
        let event = decision.event.as_ref().filter(|_| self.has_tree())?;
        let change = match event {
            event if event.is_terminal() && planted(Bug::ChildrenOutliveRun) => return None,
            Event::Paused { .. } | Event::Inherited { .. } if planted(Bug::PauseSkipsTree) => return None,
            event if event.is_terminal() && is_terminate && !planted(Bug::TerminateGoesDownAsCancel) => {
                TreeChange::Terminate
            }
            Event::CancelRequested { .. } => cancel("its parent is being cancelled"),
            Event::DeadlinePassed { .. } => cancel("its parent is past its deadline"),
            Event::ContinuedAsNew { .. } if planted(Bug::ContinuedKeepsChildren) => return None,
            Event::ContinuedAsNew { .. } => cancel("its parent has continued as new"),
            event if event.is_terminal() => cancel("its parent has ended"),
            // Also if it is paused already: somebody may have resumed one of the children.
            Event::Paused { reason, .. } | Event::Inherited { pause: Some(reason), .. }
                if !self.is_paused() || !planted(Bug::SecondPauseStops) =>
            {
                TreeChange::Pause { reason: reason.clone() }
            }
            Event::Resumed { .. } => TreeChange::Resume,
            Event::Inherited { pause: None, .. } if self.is_paused() && self.own_pause().is_none() => {
                TreeChange::Resume
            }
            _ => return None,
        };
        let (parent, run) = (self.address().id.clone(), self.run());
        let number = self.entry_count() + u64::from(decision.event.is_some());
        Some(TreeOrder { parent, run, number, change })
    }
}

fn cancel(reason: &str) -> TreeChange {
    TreeChange::Cancel { reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Entry, Name, Namespace, OpKind, Payload, Start, Timestamp};

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    fn execution() -> Execution {
        let id = ExecutionId::new("a").expect("an id");
        let start = crate::fixture::flow();
        let start = Start { deadline_at: Some(Timestamp::default()), ..start };
        Execution::start(Address { namespace: Namespace::default(), id }, start, Timestamp::default()).0
    }

    fn with_child() -> Execution {
        let mut execution = execution();
        let op = Op { kind: OpKind::Child, name: name("kid"), key: None, nth: 1 };
        let child = ExecutionId::new("kid").expect("an id");
        let event =
            Event::ChildStarted { op, child, input: crate::Fingerprint::of(&Payload::from("1")).into() };
        execution.apply(&Entry::new(2, Timestamp::default(), event));
        execution
    }

    fn by() -> By {
        By("ann".into())
    }

    fn pause() -> Command {
        Command::Pause { by: by(), reason: "lunch".to_owned() }
    }

    fn resume() -> Command {
        Command::Resume { by: by() }
    }

    fn inherit(number: u64, is_pause: bool) -> Command {
        Command::Inherit { by: by(), number, pause: is_pause.then(|| "lunch".to_owned()) }
    }

    /// Decides and records one command after the other. Checks the order for the children after
    /// each, and whether the execution is paused in the end.
    fn check(commands: Vec<Command>, told: &[Option<(&str, u64)>], is_paused: bool) {
        let mut execution = with_child();
        let mut found = Vec::new();
        for command in commands {
            let mut decision = execution.decide(command, Timestamp::default()).expect("it is decided");
            found.push(decision.tree.take().map(|order| {
                let word = match order.change {
                    TreeChange::Pause { .. } => "pause",
                    TreeChange::Resume => "resume",
                    TreeChange::Cancel { .. } => "cancel",
                    TreeChange::Terminate => "terminate",
                };
                (word, order.number)
            }));
            decision.record(&mut execution, Timestamp::default());
        }
        assert_eq!(found, told);
        assert_eq!(matches!(execution.phase(), Phase::Paused { .. }), is_paused);
    }

    #[test]
    fn children_are_told_when_the_parent_stops_and_goes_on() {
        check(vec![pause(), resume()], &[Some(("pause", 3)), Some(("resume", 4))], false);
        check(vec![inherit(7, true), inherit(8, false)], &[Some(("pause", 3)), Some(("resume", 4))], false);
    }

    #[test]
    fn a_resume_of_the_parent_lifts_only_its_own_pause() {
        let told = &[Some(("pause", 3)), Some(("pause", 4)), None];
        check(vec![pause(), inherit(7, true), inherit(8, false)], told, true);
        check(vec![inherit(7, true), pause(), inherit(8, false)], told, true);
        let lifted = &[Some(("pause", 3)), Some(("pause", 4)), None, Some(("resume", 6))];
        check(vec![inherit(7, true), pause(), inherit(8, false), resume()], lifted, false);
        // An order to this very execution lets it go on, even when its parent is paused.
        check(vec![inherit(7, true), resume()], &[Some(("pause", 3)), Some(("resume", 4))], false);
    }

    #[test]
    fn children_hear_of_every_pause() {
        check(vec![pause(), pause()], &[Some(("pause", 3)), Some(("pause", 4))], true);
        let block = Command::block(crate::Block::Limit { reason: "too long".to_owned() });
        let told = &[None, Some(("pause", 4)), Some(("pause", 5))];
        check(vec![block, pause(), pause()], told, false);
    }

    #[test]
    fn an_order_that_was_overtaken_changes_nothing() {
        check(vec![inherit(8, false), inherit(7, true)], &[None, None], false);
        check(
            vec![inherit(7, true), inherit(9, false), inherit(8, true)],
            &[Some(("pause", 3)), Some(("resume", 4)), None],
            false,
        );
    }

    #[test]
    fn an_order_that_was_overtaken_changes_nothing_in_the_next_run_either() {
        let op = Op { kind: OpKind::Child, name: name("kid"), key: None, nth: 1 };
        let parent = Parent::new(ExecutionId::new("parent").expect("an id"), 1, op, 2);
        let flow = crate::fixture::flow();
        let start = Start { parent: Some(parent), ..flow };
        let now = Timestamp::default();
        let (mut child, _) = Execution::start(execution().address().clone(), start.clone(), now);
        let input = Payload::from("2");
        for command in [inherit(8, false), Command::ContinueAsNew { input: input.clone() }] {
            child.decide(command, now).expect("it is decided").record(&mut child, now);
        }
        let (mut next, first) = child.continued(&start, input, now);
        assert_eq!(Execution::fold(next.address().clone(), 2, [&first]).as_ref(), Some(&next));
        next.decide(inherit(7, true), now).expect("it is decided").record(&mut next, now);
        assert_eq!(next.phase(), &Phase::Running, "its parent has gone on");
        next.decide(inherit(9, true), now).expect("it is decided").record(&mut next, now);
        assert!(matches!(next.phase(), Phase::Paused { .. }));
    }

    #[test]
    fn a_message_for_children_is_for_nobody_else() {
        let id = |text: &str| ExecutionId::new(text).expect("an id");
        let op = |nth| Op { kind: OpKind::ChildResult, name: name("kid"), key: None, nth };
        let flow = crate::fixture::flow();
        let start = Start { parent: Some(Parent::new(id("parent"), 2, op(1), 7)), ..flow };
        let child = Execution::start(execution().address().clone(), start, Timestamp::default()).0;
        let meant = Descent { parent: id("parent"), run: 2, before: 8, op: Some(op(1)) };
        assert!(child.descends(&meant));
        assert!(child.descends(&Descent { op: None, ..meant.clone() }));
        for other in [
            Descent { parent: id("other"), ..meant.clone() },
            Descent { run: 1, ..meant.clone() },
            Descent { before: 7, ..meant.clone() },
            Descent { op: Some(op(2)), ..meant.clone() },
        ] {
            assert!(!child.descends(&other), "{other:?}");
        }
        assert!(!execution().descends(&meant), "it is nobody's child");
    }

    #[test]
    fn every_end_goes_down_and_a_terminate_as_terminate() {
        let reason = || "enough".to_owned();
        let complete = Command::Complete { result: Payload::from("1"), unused: Vec::new() };
        check(vec![complete], &[Some(("cancel", 3))], false);
        check(vec![Command::Terminate { by: by(), reason: reason() }], &[Some(("terminate", 3))], false);
        check(vec![Command::Cancel { by: by(), reason: reason() }], &[Some(("cancel", 3))], false);
        check(vec![Command::ShowDeadline { until: Timestamp::MAX }], &[Some(("cancel", 3))], false);
        check(vec![Command::ExpireDeadline], &[Some(("cancel", 3))], false);
        check(vec![Command::ContinueAsNew { input: Payload::from("2") }], &[Some(("cancel", 3))], false);
    }

    #[test]
    fn children_are_told_what_has_become_of_the_parent() {
        let reason = || "enough".to_owned();
        let complete = Command::Complete { result: Payload::from("1"), unused: Vec::new() };
        let rows = [
            (complete, "its parent has ended"),
            (Command::Cancel { by: by(), reason: reason() }, "its parent is being cancelled"),
            (Command::ShowDeadline { until: Timestamp::MAX }, "its parent is past its deadline"),
            (Command::ExpireDeadline, "its parent has ended"),
            (Command::ContinueAsNew { input: Payload::from("2") }, "its parent has continued as new"),
        ];
        for (command, expected) in rows {
            let decision = with_child().decide(command, Timestamp::default()).expect("it is decided");
            let told = decision.tree.expect("it has a child").message(execution().address().clone());
            assert_eq!(told.body, Body::Cancel { reason: expected.to_owned() });
        }
    }

    #[test]
    fn who_has_no_children_tells_nobody() {
        let decision = execution().decide(pause(), Timestamp::default()).expect("it is decided");
        assert_eq!(decision.tree, None);
    }
}
