//! The message that a child sends to its parent when it ends.

use std::collections::BTreeMap;

use crate::{
    Body, By, Entry, Event, Execution, ExecutionId, Failure, FailureKind, Message, MessageId, Op, Outcome,
    Phase, text,
};

/// The beginning of an answer's id.
const DONE: &str = "done";

impl MessageId {
    /// Returns the child whose answer has this id, and its run, if it has the form of one.
    pub fn answered_by(&self) -> Option<(&str, u32)> {
        let (child, run) = self.as_str().strip_prefix(DONE)?.strip_prefix(':')?.rsplit_once(':')?;
        Some((child, run.parse().ok()?))
    }
}

impl Execution {
    /// Returns the message to the parent that waits for the outcome of a run that ends with `end`.
    /// Every call returns the same message with the same id. So a lost answer can be sent again
    /// from the record, and an answer that was not lost arrives once.
    pub fn answer(&self, end: &Event) -> Option<Message> {
        let parent = self.parent()?;
        let outcome = match end {
            Event::Completed { result, .. } => Outcome::Success(result.clone()),
            Event::Failed(failure) => Outcome::Failure(failure.clone()),
            Event::Cancelled { by, reason } => {
                let message = format!("{} was cancelled {}", self.address(), text::by_whom(by, reason));
                Outcome::Failure(Failure::new(FailureKind::Cancelled, message))
            }
            _ => return None,
        };
        let body = Body::ChildDone { run: parent.run, op: parent.op.clone(), outcome };
        let by = By(text::titled("child", &self.address().id));
        Some(self.message_to(parent.id.clone(), DONE, (by, body)))
    }

    /// Whether its code winds down, or would if it could run.
    pub fn winds_down(&self) -> bool {
        match self.phase() {
            Phase::Cancelling { .. } | Phase::Expiring { .. } => true,
            Phase::Blocked { cancelling, .. } => cancelling.is_some(),
            _ => false,
        }
    }
}

/// Returns the children whose answers a run still waits for, each with the operation that started
/// it. A child that has answered, or that the code has given up, is not among them.
pub fn awaited_children<'a>(journal: impl IntoIterator<Item = &'a Entry>) -> Vec<(Op, ExecutionId)> {
    let mut open = BTreeMap::new();
    for entry in journal {
        match &entry.event {
            Event::ChildStarted { op, child, .. } => {
                open.insert(op.child_result().index(), (entry.seq, op.clone(), child.clone()));
            }
            Event::ChildFinished { op, .. } | Event::ChildCancelled { op } => {
                open.remove(&op.index());
            }
            _ => {}
        }
    }
    let mut open: Vec<_> = open.into_values().collect();
    open.sort_unstable_by_key(|(seq, ..)| *seq);
    open.into_iter().map(|(_, op, child)| (op, child)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Address, Name, Namespace, OpKind, Parent, Payload, Start, Timestamp};

    fn op(nth: u32) -> Op {
        Op { kind: OpKind::Child, name: Name::new("kid").expect("a name"), key: None, nth }
    }

    #[test]
    fn the_id_of_an_answer_names_the_child_and_its_run() {
        let answered =
            |id: &str| MessageId::new(id).answered_by().map(|(child, run)| (child.to_owned(), run));
        assert_eq!(answered("done:a:1"), Some(("a".to_owned(), 1)));
        assert_eq!(answered("done:a:b:27"), Some(("a:b".to_owned(), 27)));
        assert_eq!(["done", "done:a", "done:a:x", "doner:a:1"].map(answered), [None, None, None, None]);
        let id = |text: &str| ExecutionId::new(text).expect("an id");
        let parent = Parent::new(id("p"), 1, op(1), 2);
        let start = Start { parent: Some(parent), ..crate::fixture::flow() };
        let address = Address { namespace: Namespace::default(), id: id("a:b") };
        let (child, _) = Execution::start(address, start, Timestamp::default());
        let end = Event::Completed { result: Payload::from("1"), unused: Vec::new() };
        let answer = child.answer(&end).expect("it has a parent");
        assert_eq!(answer.id.answered_by(), Some(("a:b", 1)));
    }

    #[test]
    fn a_run_waits_for_children_that_have_neither_answered_nor_been_given_up() {
        let started = |nth: u32| {
            let child = ExecutionId::new(format!("kid-{nth}")).expect("an id");
            Event::ChildStarted {
                op: op(nth),
                child,
                input: crate::Fingerprint::of(&Payload::from("1")).into(),
            }
        };
        let outcome = Outcome::Success(Payload::from("1"));
        let events = [
            started(3),
            started(1),
            started(2),
            Event::ChildFinished { op: op(1).child_result(), outcome },
            started(4),
            Event::ChildCancelled { op: op(4).child_result() },
        ];
        let entry = |(event, seq)| Entry::new(seq, Timestamp::default(), event);
        let journal: Vec<Entry> = events.into_iter().zip(2..).map(entry).collect();
        let awaited: Vec<u32> = awaited_children(&journal).iter().map(|(op, _)| op.nth).collect();
        assert_eq!(awaited, [3, 2]);
    }
}
