//! The answers of stores that refuse a message.

use std::fmt;

use abide_core::planted::{Bug, planted};
use abide_core::{
    Address, Body, By, ExecutionId, Failure, FailureKind, Message, MessageId, Op, Outcome, escaped,
};

use crate::ExecutionKey;

/// Returns the message that reports a refused child start to `emitter`: its child is done, with a
/// failure.
///
/// Returns `None` when nobody waits for the child, or when `message` is no start. Then the emit is
/// dropped and counted.
pub fn refused_start(emitter: &Address, message: &Message, refusal: &impl fmt::Display) -> Option<Message> {
    let Body::Start(start) = &message.body else { return None };
    let parent = start.parent.as_ref()?;
    Some(not_started(emitter, &message.to.id, (parent.run, &parent.op), refusal))
}

/// Returns the answer to a wait (`op` of a run of `emitter`) for a child that was not started.
pub fn not_started(
    emitter: &Address,
    child: &ExecutionId,
    (run, op): (u32, &Op),
    refusal: &impl fmt::Display,
) -> Message {
    // The operation is part of the id, with its key: one run may fail to start the same child more
    // than once, and each of its waits needs an answer. Names and keys may contain the separators.
    let key = op.key.as_ref().filter(|_| !planted(Bug::RefusalIgnoresKey));
    let key = key.map(|key| format!("={}", escaped(key.as_str()))).unwrap_or_default();
    let (child_part, name) = (escaped(child.as_str()), escaped(op.name.as_str()));
    let id = MessageId::new(format!("refused/{child_part}/{run}/{name}{key}/{}", op.nth));
    let failure = Failure::new(FailureKind::Fatal, format!("child {child:?} was not started: {refusal}"));
    let body = Body::ChildDone { run, op: op.clone(), outcome: Outcome::Failure(failure) };
    let by = By(format!("child {child:?}").into());
    Message::new(id, emitter.clone(), by, body)
}

/// Describes the fault of a commit that consumes a message which is not unread.
pub fn not_unread(key: ExecutionKey, id: &MessageId) -> String {
    format!("execution {} has read message {:?} before, or never got it", key.0, id.as_str())
}
