//! The messages that an execution has read lately.
//!
//! A page that was on its way, or a late notice, may bring a message again that was read since. So
//! its id is kept until no page can have it, and after that until no notice that waits has it. The
//! rest is forgotten: a chain of runs may go on for years.

use std::collections::VecDeque;

use abide_core::MessageId;
use abide_core::planted::{Bug, planted};

/// The most ids that are kept for notices: more than wait for one execution, and one commit and one
/// page have, together.
pub(crate) const READ_COUNT_MAX: usize = 10_000;

/// The ids of read messages, in the order in which they were read. All counts include the forgotten
/// ones.
#[derive(Debug, Default)]
pub(crate) struct ReadMail {
    kept: VecDeque<MessageId>,
    forgotten_count: usize,
    /// How many were read when the last commit was sent.
    sent_count: usize,
    /// How many the store knows to be read.
    durable_count: usize,
    /// How many the store knew to be read when the last page was requested.
    page_count: usize,
}

impl ReadMail {
    pub(crate) fn add(&mut self, id: MessageId) {
        self.kept.push_back(id);
    }

    /// Notes that a commit with all messages that were read so far is on its way.
    pub(crate) fn sent(&mut self) {
        self.sent_count = self.forgotten_count + self.kept.len();
    }

    /// Notes that a page is requested. It may have each message that the store takes for unread.
    pub(crate) fn page_requested(&mut self) {
        self.page_count = self.durable_count;
    }

    /// Notes that the last commit is durable. Returns the ids that nobody can bring again.
    pub(crate) fn committed(&mut self, is_page_under_way: bool) -> impl Iterator<Item = MessageId> {
        self.durable_count = self.sent_count;
        let kept_count_max = if planted(Bug::ReadForgotten) { 0 } else { READ_COUNT_MAX };
        let known_count = if is_page_under_way { self.page_count } else { self.durable_count };
        let known_count = known_count.saturating_sub(self.forgotten_count);
        let count = self.kept.len().saturating_sub(kept_count_max).min(known_count);
        self.forgotten_count += count;
        self.kept.drain(..count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads so many messages, and sends them with a commit.
    fn read(mail: &mut ReadMail, count: usize) {
        (0..count).for_each(|nth| mail.add(MessageId::new(nth.to_string())));
        mail.sent();
    }

    #[test]
    fn a_page_on_its_way_keeps_only_the_messages_that_it_can_have() {
        let mut mail = ReadMail::default();
        read(&mut mail, READ_COUNT_MAX);
        assert_eq!(mail.committed(false).count(), 0);
        read(&mut mail, 5);
        mail.page_requested();
        assert_eq!(mail.committed(true).count(), 5, "the store knew the oldest ones to be read");
        read(&mut mail, READ_COUNT_MAX);
        assert_eq!(mail.committed(true).count(), READ_COUNT_MAX - 5, "the page may have the last five");
        // One page after the other is on its way.
        for _ in 0..3 {
            mail.page_requested();
            read(&mut mail, READ_COUNT_MAX);
            let _ = mail.committed(true).count();
            assert_eq!(mail.kept.len(), READ_COUNT_MAX);
        }
        // The last page comes late, and may have everything that was read since it was requested.
        for _ in 0..3 {
            read(&mut mail, 5);
            assert_eq!(mail.committed(true).count(), 0);
        }
        assert_eq!(mail.committed(false).count(), 15);
    }
}
