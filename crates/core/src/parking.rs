//! What becomes of an execution that its holder gives back until something comes for it.

use std::collections::HashSet;

use crate::{Body, By, Message, MessageId, Sort, Summary, Timestamp, Waiting, care, text};

/// How a park leaves an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parked {
    /// Whether somebody has to look at it at once. Otherwise it waits for `wake_at` or a message.
    pub is_ready: bool,
    /// When a caretaker is to look at it.
    pub care_at: Option<Timestamp>,
}

/// What a park leaves that is to look like `summary`, with messages of these sorts that its holder had not seen when it decided to park; nothing
/// stands for one that cannot be read: whoever looks finds out what is wrong with it.
///
/// What the holder has seen and left unread does not wake it: it would be looked at, put back and looked at again for ever.
pub fn park(summary: &Summary, unseen: impl IntoIterator<Item = Option<Sort>>, now: Timestamp) -> Parked {
    let mut has_unseen = false;
    let is_ready = unseen.into_iter().any(|sort| {
        has_unseen = true;
        sort.is_none_or(|sort| summary.listens.to(sort))
    });
    Parked { is_ready, care_at: care::after_release(summary.care_at, has_unseen, now) }
}

/// Whether a message is one that an execution is told to wait for. No holder that has seen it parks: found unread beside an execution that sleeps,
/// it would wake nobody.
///
/// What is waited for is an excerpt, and most of what lies unread is for later: no other message proves anything.
pub fn waits_for(summary: &Summary, message: &Message) -> bool {
    summary.waiting.iter().any(|waiting| match (waiting, &message.body) {
        (Waiting::Signal { name, .. }, Body::Signal { name: found, .. }) => name == found,
        (Waiting::Child { id }, Body::ChildDone { .. }) => message.by == By(text::titled("child", id)),
        _ => false,
    })
}

/// The messages that a holder has seen and leaves unread, by id.
///
/// Each is named, and neither how many there are nor the newest of them: one message may have been read and another have come, and a database
/// may let an older one appear after a newer one. An id too many or too few therefore costs a look, and loses no message.
pub struct Seen<'a>(HashSet<&'a str>);

impl<'a> Seen<'a> {
    /// These.
    pub fn of(ids: &'a [MessageId]) -> Self {
        Self(ids.iter().map(MessageId::as_str).collect())
    }

    /// Whether this is one of them.
    pub fn has(&self, id: &str) -> bool {
        self.0.contains(id)
    }
}
