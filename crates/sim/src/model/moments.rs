//! The operations that were open when an outcome was recorded.

use std::collections::BTreeSet;

use abide_core::Entry;

use super::{Expected, Id, Knowledge, Life, Model, ModelState, play};

/// A recorded outcome, and the operations that were open at that moment.
pub(crate) struct Moment {
    pub(crate) seq: u64,
    pub(crate) open: BTreeSet<Id>,
    /// The open operations that also end at a time. A wait in older code may have had a timeout
    /// that this wait lacks.
    pub(crate) timed: BTreeSet<Id>,
    /// The open waits for signals that read texts. The others read numbers.
    pub(crate) texts: BTreeSet<Id>,
}

/// Returns the moments of a run, as far as this edition recorded them.
pub(crate) fn moments(life: &Life<'_>, knowledge: &dyn Knowledge) -> Vec<Moment> {
    let model = Model::new(life, knowledge);
    model.lock().moments = Some(Vec::new());
    // The replay of the run reports everything that is not possible.
    let _ = play(&model);
    let moments = model.lock().moments.take();
    moments.unwrap_or_default()
}

impl Model<'_> {
    /// Keeps the moment at which an entry is delivered, if the caller asked for moments.
    pub(super) fn tell_moment(&self, entry: &Entry) {
        let mut state = self.lock();
        let ModelState { moments: Some(moments), open, .. } = &mut *state else { return };
        if self.life.is_own(entry) {
            let open = open.iter().filter(|(_, slot)| slot.outcome.is_none());
            let is_timed = |expected: &Expected| {
                matches!(expected, Expected::Timer(_) | Expected::Signal { timeout_ms: Some(_), .. })
            };
            let is_text = |expected: &Expected| matches!(expected, Expected::Signal { is_text: true, .. });
            let ids = |is_wanted: &dyn Fn(&Expected) -> bool| {
                let wanted = open.clone().filter(|(_, slot)| is_wanted(&slot.expected));
                wanted.map(|(id, _)| id.clone()).collect()
            };
            let (timed, texts, open) = (ids(&is_timed), ids(&is_text), ids(&|_| true));
            moments.push(Moment { seq: entry.seq, open, timed, texts });
        }
    }
}
