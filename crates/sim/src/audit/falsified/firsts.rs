//! A falsified sequence of timers and messages.

use abide_core::{Entry, Event, MessageId, Op, Timestamp};

use super::{Evidence, Happened, nth_entry, nth_item};
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

fn receipt(entry: &Entry) -> Option<(&Op, &MessageId)> {
    match &entry.event {
        Event::SignalReceived { op, message, .. } => Some((op, message)),
        _ => None,
    }
}

/// Returns the index of the next receipt of the same signal by a later wait.
fn next_receipt(journal: &[Entry], entry: &Entry) -> Option<usize> {
    let (op, _) = receipt(entry)?;
    let is_next = |other: &Entry| {
        receipt(other)
            .is_some_and(|(next, _)| (&next.name, &next.key, next.nth) == (&op.name, &op.key, op.nth + 1))
    };
    journal.iter().position(is_next).filter(|next| *next as u64 >= entry.seq)
}

/// Makes two signals come the other way round, and the later wait receive its own first.
pub(super) fn wait_overtaken(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let (journal, one) =
        nth_entry(evidence, nth, |_, journal, entry| next_receipt(journal, entry).is_some())?;
    let two = next_receipt(journal, &journal[one])?;
    let (first, second) = (journal[one].event.clone(), journal[two].event.clone());
    let ids = [receipt(&journal[one])?.1.clone(), receipt(&journal[two])?.1.clone()];
    (journal[one].event, journal[two].event) = (second, first);
    let is_accepted =
        |item: &Happened, id: &MessageId| matches!(item, Happened::Accepted { message } if message.id == *id);
    let is_arrived =
        |item: &Happened, id: &MessageId| matches!(item, Happened::Arrived(arrival) if arrival.id == *id);
    swap(&mut evidence.items, &ids, is_accepted)?;
    swap(&mut evidence.items, &ids, is_arrived)
}

/// Swaps the first items about these two messages.
fn swap(
    items: &mut [Happened],
    ids: &[MessageId; 2],
    is_about: impl Fn(&Happened, &MessageId) -> bool,
) -> Option<()> {
    let place = |id: &MessageId| items.iter().position(|item| is_about(item, id));
    let (one, two) = (place(&ids[0])?, place(&ids[1])?);
    items.swap(one, two);
    Some(())
}
