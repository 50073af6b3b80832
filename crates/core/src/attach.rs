//! The options of a start that differ from those of the execution it attaches to.
//!
//! Only the code, the input and the parent decide whether a start attaches
//! ([`start_matches`](crate::start_matches)): callers that retry compute delays and deadlines anew.
//! The other options do not change the execution, so the caller learns which of them differ.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::{Start, Timestamp};

/// Each caller computes delays with its own clock.
const DELAY_TOLERANCE: Duration = Duration::from_secs(1);

/// Returns the names of the options that differ between the start that an execution began with and
/// a start that attached to it. Each start comes with its time.
pub fn start_differences(
    (existing, existing_at): (&Start, Timestamp),
    (requested, requested_at): (&Start, Timestamp),
) -> Vec<&'static str> {
    let is_other_delay = |existing: Option<Timestamp>, requested: Option<Timestamp>| {
        let existing = existing.map(|at| at.since(existing_at));
        let requested = requested.map(|at| at.since(requested_at));
        match (existing, requested) {
            (Some(existing), Some(requested)) => existing.abs_diff(requested) > DELAY_TOLERANCE,
            (existing, requested) => existing.is_some() != requested.is_some(),
        }
    };
    let rows = [
        ("lane", existing.lane != requested.lane),
        ("requires", set(&existing.requires) != set(&requested.requires)),
        ("priority", existing.priority != requested.priority),
        ("delay", is_other_delay(existing.start_at, requested.start_at)),
        ("deadline", is_other_delay(existing.deadline_at, requested.deadline_at)),
        ("retry", existing.retry != requested.retry),
        ("tags", tags(existing) != tags(requested)),
    ];
    rows.into_iter().filter_map(|(name, differs)| differs.then_some(name)).collect()
}

fn set<T: Ord>(items: &[T]) -> BTreeSet<&T> {
    items.iter().collect()
}

fn tags(start: &Start) -> BTreeSet<(&str, &str)> {
    start.tags.iter().map(|tag| (tag.key.as_str(), tag.value.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Name, Retry, Tag};

    #[test]
    fn every_option_that_differs_is_named() {
        let name = |text: &str| Name::new(text).expect("a name");
        let at = |secs: i64| Timestamp::from_millis(secs * 1_000);
        let tag = |key: &str, value: &str| Tag { key: name(key), value: name(value) };
        let plain = || crate::fixture::flow();
        let tagged = || Start { tags: vec![tag("a", "1"), tag("b", "2")], ..plain() };
        let rows: [(Start, Start, &[&str]); 9] = [
            (plain(), plain(), &[]),
            (plain(), Start { lane: name("other"), priority: 3, ..plain() }, &["lane", "priority"]),
            (plain(), Start { requires: vec![name("gpu")], ..plain() }, &["requires"]),
            (tagged(), plain(), &["tags"]),
            (tagged(), Start { tags: vec![tag("b", "2"), tag("a", "1")], ..plain() }, &[]),
            (plain(), Start { retry: Some(Retry::never()), ..plain() }, &["retry"]),
            // The first was made at second 0, the other one at second 100.
            (Start { start_at: Some(at(60)), ..plain() }, Start { start_at: Some(at(160)), ..plain() }, &[]),
            (
                Start { start_at: Some(at(60)), ..plain() },
                Start { start_at: Some(at(170)), ..plain() },
                &["delay"],
            ),
            (plain(), Start { deadline_at: Some(at(160)), ..plain() }, &["deadline"]),
        ];
        for (existing, requested, expected) in rows {
            let found = start_differences((&existing, at(0)), (&requested, at(100)));
            assert_eq!(found, expected, "{existing:?} {requested:?}");
        }
    }
}
