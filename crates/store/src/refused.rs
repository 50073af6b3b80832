//! What stores say when they refuse.

use std::fmt;

use abide_core::{Address, Body, By, Failure, FailureKind, Message, MessageId, Outcome};

use crate::ExecutionKey;

/// The message that brings a refused child start back to `emitter`: its child is done, with a failure.
///
/// `None` when nobody waits for the child, or when `message` is no start: then the emit is dropped and counted.
pub fn refused_start(emitter: &Address, message: &Message, refusal: &impl fmt::Display) -> Option<Message> {
    let Body::Start(start) = &message.body else { return None };
    let parent = start.parent.as_ref()?;
    // The operation is part of the id: one run may fail to start the same child more than once, and each of
    // its waits needs an answer.
    let (child, op) = (&message.to.id, &parent.op);
    let id = MessageId::new(format!("refused:{child}:{}:{}:{}", parent.run, op.name, op.nth));
    let failure = Failure::new(FailureKind::Fatal, format!("child {child:?} was not started: {refusal}"));
    let body = Body::ChildDone { run: parent.run, op: op.clone(), outcome: Outcome::Failure(failure) };
    let by = By(format!("child {child:?}"));
    Some(Message::new(id, emitter.clone(), by, body))
}

/// What is wrong with a commit that reads a message which is not unread.
pub fn not_unread(key: ExecutionKey, id: &MessageId) -> String {
    format!("execution {} has read message {:?} before, or never got it", key.0, id.as_str())
}
