//! The places in the code that the entries of a run come from.

use std::collections::HashMap;

use abide_core::planted::{Bug, planted};
use abide_core::{Entry, KeyHasher, SiteMark, Sites};

use crate::board::Site;

/// The places of one run: those that its journal names, and their numbers by the call.
///
/// A place counts as named only when its entry is recorded or was passed. So a refused decision,
/// and a transaction that did not happen, leave no number without a text behind; and after a crash
/// the next holder knows exactly the texts that are durable.
#[derive(Default)]
pub(super) struct RunSites {
    named: Sites,
    /// The number of each call that was asked for; `None` for one beyond `site_count_max`.
    numbers: HashMap<u64, Option<u32>, KeyHasher>,
}

impl RunSites {
    /// Takes an entry that was just recorded or passed.
    pub(super) fn learn(&mut self, entry: &Entry) {
        self.named.learn(entry);
    }

    /// Returns the mark for an entry that comes from this place; `None` if the run has `count_max`
    /// places already.
    pub(super) fn mark(&mut self, site: Site, count_max: u32) -> Option<SiteMark> {
        let call = site.number();
        if let Some(number) = self.numbers.get(&call) {
            return number.map(|number| SiteMark { number, text: None });
        }
        let text = site.text();
        let number = self.named.number(&text);
        let first = if number.is_none() { self.named.first_mark(text, count_max) } else { None };
        // One that is named first by this entry is known when the entry is recorded.
        if first.is_none() {
            self.numbers.insert(call, number);
        } else if planted(Bug::PlaceNamedEarly) {
            self.numbers.insert(call, first.as_ref().map(|mark| mark.number));
        }
        first.or_else(|| number.map(|number| SiteMark { number, text: None }))
    }

    /// Returns the place of a recorded entry.
    pub(super) fn of(&self, entry: &Entry) -> Option<String> {
        self.named.of(entry).map(str::to_owned)
    }

    /// Returns the place with this number.
    pub(super) fn text(&self, number: Option<u32>) -> Option<&str> {
        self.named.text(number?)
    }
}
