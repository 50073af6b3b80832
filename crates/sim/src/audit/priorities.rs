//! Rules for the order of claims. Of two executions that wait in one lane, the one with the higher
//! priority is claimed first. With equal priorities, the one that has been ready for longer is
//! claimed first. Executions run side by side once they are claimed.

use super::{Books, Happened};
use crate::history::Ready;

pub(super) fn check(books: &Books) -> Vec<String> {
    let mut found = Vec::new();
    for item in &books.items {
        let Happened::Claimed { given, left } = item else { continue };
        let pairs = given.iter().flat_map(|one| left.iter().map(move |other| (one, other)));
        found.extend(pairs.filter(|(one, other)| could_be(one, other)).filter_map(|(one, other)| {
            let why = goes_before(other, one)?;
            Some(format!("{:?} was claimed, and {:?} left behind, although it has {why}", one.id, other.id))
        }));
    }
    found
}

/// Whether the worker that claimed the first execution could have claimed the other.
fn could_be(given: &Ready, left: &Ready) -> bool {
    left.lane == given.lane && left.requires.is_subset(&given.requires)
}

/// Returns why one execution goes before another, or `None` if it does not.
fn goes_before(one: &Ready, other: &Ready) -> Option<&'static str> {
    if one.priority != other.priority {
        return (one.priority > other.priority).then_some("the higher priority");
    }
    let is_older = one.since.zip(other.since).is_some_and(|(one, other)| one < other);
    is_older.then_some("been ready for longer")
}
