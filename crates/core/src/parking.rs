//! Decides how an execution stands that its holder parks until something comes for it.

use std::collections::HashSet;

use crate::{Body, By, Message, MessageId, Sort, Summary, Timestamp, Waiting, care, text};

/// The state in which a park leaves an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parked {
    /// Whether a worker has to look at it at once. Otherwise it waits for `wake_at` or a message.
    pub is_ready: bool,
    /// When a caretaker has to look at it.
    pub care_at: Option<Timestamp>,
}

/// Parks an execution with this `summary`. `unseen` are the sorts of the messages that its holder
/// had not seen when it decided to park; `None` stands for a message that cannot be read, and the
/// next holder finds out what the matter is.
///
/// A message that the holder has seen and left unread does not wake the execution: it would be
/// looked at, put back and looked at again forever.
pub fn park(summary: &Summary, unseen: impl IntoIterator<Item = Option<Sort>>, now: Timestamp) -> Parked {
    let mut has_unseen = false;
    let is_ready = unseen.into_iter().any(|sort| {
        has_unseen = true;
        sort.is_none_or(|sort| summary.listens.to(sort))
    });
    Parked { is_ready, care_at: care::after_release(summary.care_at, has_unseen, now) }
}

/// Whether the summary names this message as one that the execution waits for. No holder that has
/// seen such a message parks: if it is found unread beside a sleeping execution, it would wake
/// nobody.
///
/// The waits in a summary are an excerpt, and most unread messages are for later: no other message
/// proves anything.
pub fn waits_for(summary: &Summary, message: &Message) -> bool {
    summary.waiting.iter().any(|waiting| match (waiting, &message.body) {
        (Waiting::Signal { name, .. }, Body::Signal { name: found, .. }) => name == found,
        (Waiting::Child { id }, Body::ChildDone { .. }) => message.by == By(text::titled("child", id)),
        _ => false,
    })
}

/// The messages that a holder has seen and leaves unread, by id.
///
/// Each is named; their number or the newest of them would not do. One message may have been read
/// and another have come, and a database may let an older one appear after a newer one. So an id
/// too many or too few costs a look, and loses no message.
pub struct Seen<'a>(HashSet<&'a str>);

impl<'a> Seen<'a> {
    /// Collects these ids.
    pub fn of(ids: &'a [MessageId]) -> Self {
        Self(ids.iter().map(MessageId::as_str).collect())
    }

    /// Whether this id is one of them.
    pub fn has(&self, id: &str) -> bool {
        self.0.contains(id)
    }
}
