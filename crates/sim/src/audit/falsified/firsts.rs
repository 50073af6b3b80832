//! A falsified sequence of timers and messages.

use abide_core::Timestamp;

use super::{Evidence, Happened, nth_item};
use crate::history::Arrival;
use crate::scenario::Scenario;

fn nth_arrival(evidence: &mut Evidence, nth: usize) -> Option<&mut Arrival> {
    let index = nth_item(evidence, nth, |item| matches!(item, Happened::Arrived(_)))?;
    match &mut evidence.items[index] {
        Happened::Arrived(arrival) => Some(arrival),
        _ => None,
    }
}

/// Makes a message arrive before anything was due.
pub(super) fn message_was_earlier(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    nth_arrival(evidence, nth)?.at = Timestamp::default();
    Some(())
}

/// Makes a message arrive after everything that was due.
pub(super) fn message_was_later(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    nth_arrival(evidence, nth)?.asked_at = Timestamp::MAX;
    Some(())
}

/// Makes a message arrive after a later one.
pub(super) fn messages_swapped(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let to = nth_arrival(evidence, nth)?.to.clone();
    let one = nth_item(evidence, nth, |item| matches!(item, Happened::Arrived(_)))?;
    let is_to = |item: &Happened| matches!(item, Happened::Arrived(other) if other.to == to);
    let two = (one + 1..evidence.items.len()).find(|index| is_to(&evidence.items[*index])).unwrap_or(one);
    evidence.items.swap(one, two);
    Some(())
}
