//! Rules for the orders of a parent: an execution that follows one is a child of the run that sent
//! the order, and already was its child at that time.

use abide_core::{By, Entry, Event, Parent};

use super::{Books, Past};
use crate::ask::TERMINATE_REASON;
use crate::ending::{GIVEN_UP, INBOX_FULL};

pub(super) fn check(books: &Books) -> Vec<String> {
    let mut found = Vec::new();
    for past in books.pasts.values() {
        for (run, journal) in (1..).zip(&past.runs) {
            let orders = journal.iter().filter(|entry| is_by_parent(&entry.event));
            let unfounded = orders.filter(|entry| !is_founded(books, past, (journal, entry)));
            found.extend(unfounded.map(|entry| {
                let (seq, word) = (entry.seq, entry.event.word());
                format!("{:?} run {run}, entry {seq}: {word} by a parent that gave it no such order", past.id)
            }));
        }
    }
    found
}

fn is_by_parent(event: &Event) -> bool {
    let (Event::Inherited { by, .. } | Event::CancelRequested { by, .. } | Event::Cancelled { by, .. }) =
        event
    else {
        return false;
    };
    is_parent(by)
}

fn is_parent(By(name): &By) -> bool {
    name.starts_with("parent ")
}

/// Whether the parent has an entry behind the start of this child from which the order follows.
fn is_founded(books: &Books, past: &Past, (journal, order): (&[Entry], &Entry)) -> bool {
    let Some(Event::Started(start)) = journal.first().map(|entry| &entry.event) else { return false };
    let Some(parent) = &start.parent else { return false };
    if books.damaged.contains(parent.id.as_str()) {
        return true;
    }
    let of_parent = books.pasts.get(parent.id.as_str());
    let Some(of_parent) = of_parent.and_then(|found| found.runs.get(parent.run as usize - 1)) else {
        return false;
    };
    // The child names the entry that started it; this checks that the entry exists.
    let started = of_parent.iter().find(|entry| {
        matches!(&entry.event, Event::ChildStarted { op, child, .. }
            if op.child_result() == parent.op && child.as_str() == past.id)
    });
    let Some(started) = started else { return false };
    of_parent.iter().filter(|cause| cause.seq > started.seq).any(|cause| leads_to(cause, (order, parent)))
}

fn leads_to(cause: &Entry, (order, parent): (&Entry, &Parent)) -> bool {
    match (&order.event, &cause.event) {
        (Event::Inherited { number, pause, .. }, event) if cause.seq == *number => match event {
            Event::Paused { .. } => pause.is_some(),
            Event::Resumed { .. } => pause.is_none(),
            Event::Inherited { pause: inherited, .. } => inherited.is_some() == pause.is_some(),
            _ => false,
        },
        (Event::Inherited { .. }, _) => false,
        (_, Event::ChildCancelled { op }) if *op != parent.op => false,
        (Event::CancelRequested { reason, .. } | Event::Cancelled { reason, .. }, event) => {
            words_of(event) == Some(reason)
        }
        _ => false,
    }
}

/// Returns the reason that children see because of this entry. A terminate reaches them as a
/// terminate, and every other end as a cancellation.
fn words_of(cause: &Event) -> Option<&'static str> {
    Some(match cause {
        Event::ChildCancelled { .. } => "no longer wanted by its parent",
        Event::CancelRequested { .. } => "its parent is being cancelled",
        Event::DeadlinePassed { .. } => "its parent is past its deadline",
        Event::ContinuedAsNew { .. } => "its parent has continued as new",
        Event::Cancelled { reason, .. } if is_terminate(reason) => TERMINATED,
        event if event.is_terminal() => "its parent has ended",
        _ => return None,
    })
}

/// The reason of a terminate that comes from a parent.
const TERMINATED: &str = "its parent was terminated";

/// Whether this reason belongs to a terminate.
pub(super) fn is_terminate(reason: &str) -> bool {
    [TERMINATED, TERMINATE_REASON, GIVEN_UP, INBOX_FULL].contains(&reason)
}
