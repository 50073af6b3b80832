//! Rules for delays: nothing begins before its time. A clock that differs changes that time for its
//! machine, so the rules apply only where all clocks agree.

use abide_core::Event;

use super::{Books, Closure, Happened};
use crate::scenario::{Scenario, Wrong};

pub(super) fn check(books: &Books, scenario: &Scenario) -> Vec<String> {
    if !has_true_clocks(scenario) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for item in &books.items {
        let Happened::Began { closure: Closure { spot, key, .. }, at: Some(at), .. } = item else { continue };
        let journal = books.pasts.get(&spot.id).and_then(|past| past.runs.get(spot.run as usize - 1));
        let Some(Event::Started(start)) =
            journal.and_then(|journal| journal.first()).map(|entry| &entry.event)
        else {
            continue;
        };
        if start.start_at.is_some_and(|start_at| *at < start_at) {
            found.push(format!("{key} began at {at}, before its execution was to start"));
        }
    }
    found
}

pub(super) fn has_true_clocks(scenario: &Scenario) -> bool {
    let is_untrue = |wrong: Wrong| matches!(wrong, Wrong::Skew { .. } | Wrong::ClockStep { .. });
    scenario.workers.iter().all(|worker| worker.skew_ms == 0)
        && !scenario.faults.iter().any(|fault| is_untrue(fault.what))
}
