//! The order between a timer and a message.
//!
//! The code of an execution receives the outcomes of its open operations one at a time. Two
//! sequences are merged. Timers are in the order of their due times. Messages (signals, and the
//! answers of children) are in the store's order, whatever the clocks of their senders said. Only
//! the heads of both sequences are compared, so a clock that was set back reorders no messages.

use crate::Timestamp;

/// A message that an open operation waits for, at the head of its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// When the store took it, by the store's clock.
    pub at: Timestamp,
    /// Whether it was there when the timer was set; the timer counts from that moment.
    pub was_there: bool,
}

impl Arrived {
    /// Whether the message goes before a timer that is due.
    ///
    /// At the same moment the timer goes first. A message that arrives at that moment may still be
    /// on its way when the timer fires, so only this answer is the same live and after downtime: a
    /// worker that asks the store at the due time or later knows every message that goes before.
    ///
    /// A message that was there when the timer was set goes before it even if the clock of the
    /// store is ahead of the worker's. A timeout of zero therefore receives a message that is
    /// there.
    pub fn goes_before(self, due_at: Timestamp) -> bool {
        self.was_there || self.at < due_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrival_and_due_time_decide() {
        let due_at = Timestamp::from_micros(10);
        let rows =
            [(9, false, true), (10, false, false), (11, false, false), (10, true, true), (11, true, true)];
        for (at, was_there, expected) in rows {
            let arrived = Arrived { at: Timestamp::from_micros(at), was_there };
            assert_eq!(arrived.goes_before(due_at), expected, "{arrived:?}");
        }
    }
}
