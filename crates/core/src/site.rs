//! The places in the code that the entries of a journal come from.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::Entry;

/// The place where the code asked for the operation of an entry: file and line of the call.
///
/// The texts of a run are interned. The first entry that comes from a place carries the text and a
/// number for it, all later ones only the number. Nothing compares places: a deploy moves lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteMark {
    /// The number of the place in its run, from 1.
    pub number: u32,
    /// The place itself, if no entry before this one has it.
    pub text: Option<Arc<str>>,
}

/// The texts of the places of one run, as far as its entries have been read. The first takes no
/// memory of its own: many runs have one place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sites(SmallVec<[(u32, Arc<str>); 1]>);

impl Sites {
    /// Takes the text that an entry carries, if it carries one.
    pub fn learn(&mut self, entry: &Entry) {
        if let Some(SiteMark { number, text: Some(text) }) = &entry.site {
            match self.0.binary_search_by_key(number, |(known, _)| *known) {
                Ok(at) => self.0[at].1 = text.clone(),
                Err(at) => self.0.insert(at, (*number, text.clone())),
            }
        }
    }

    /// Returns the place of an entry: its own text, or the one that an earlier entry has for its
    /// number.
    pub fn of<'a>(&'a self, entry: &'a Entry) -> Option<&'a str> {
        let mark = entry.site.as_ref()?;
        mark.text.as_deref().or_else(|| self.text(mark.number))
    }

    /// Returns the text for a number.
    pub fn text(&self, number: u32) -> Option<&str> {
        let at = self.0.binary_search_by_key(&number, |(known, _)| *known).ok()?;
        Some(&self.0[at].1)
    }

    /// Returns the number of a text that an entry has recorded.
    pub fn number(&self, text: &str) -> Option<u32> {
        self.0.iter().find_map(|(number, known)| (**known == *text).then_some(*number))
    }

    /// Returns the mark for a place that no entry has recorded; `None` if the run has `count_max`
    /// places already.
    pub fn first_mark(&self, text: Arc<str>, count_max: u32) -> Option<SiteMark> {
        let last = self.0.last().map_or(0, |(number, _)| *number);
        (last < count_max).then(|| SiteMark { number: last + 1, text: Some(text) })
    }
}
