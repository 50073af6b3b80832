//! What must hold for the order of claims: of two that wait in one lane, whoever has the higher priority is claimed first, and of two with the same whoever has been
//! ready for longer. What was claimed runs side by side.

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

/// Whether whoever was given the first could have been given the other.
fn could_be(given: &Ready, left: &Ready) -> bool {
    left.lane == given.lane && left.requires.is_subset(&given.requires)
}

/// Why one goes before another, if it does.
fn goes_before(one: &Ready, other: &Ready) -> Option<&'static str> {
    if one.priority != other.priority {
        return (one.priority > other.priority).then_some("the higher priority");
    }
    let is_older = one.since.zip(other.since).is_some_and(|(one, other)| one < other);
    is_older.then_some("been ready for longer")
}
