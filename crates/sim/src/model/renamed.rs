//! The name under which an operation is known, and the changes that a run takes.

use abide_core::{Entry, Event, OpKind, Remedied, Remedy, StepRecord};

use super::{Id, Life, Model, ModelState, id_of, interrupt_of, is_delivery, unused};
use crate::program::{keyed, old_names};

/// A mention of an operation in the journal.
pub(super) struct Told {
    id: Id,
    seq: u64,
    is_delivery: bool,
    is_own: bool,
}

/// Returns every mention of an operation in a journal.
pub(super) fn told(life: &Life<'_>) -> Vec<Told> {
    let told = |entry: &Entry| {
        let op = entry.event.op()?;
        let is_gone = is_made_anew(entry, life.journal);
        let (id, is_own) = (id_of(op), life.is_own(entry));
        Some(Told { id, seq: entry.seq, is_delivery: is_delivery(&entry.event) && !is_gone, is_own })
    };
    life.journal.iter().filter_map(told).collect()
}

/// Whether a result that could not be recorded is made anew, by a decision of an operator. It is no
/// outcome any longer, and its input binds nobody.
pub(crate) fn is_made_anew(entry: &Entry, journal: &[Entry]) -> bool {
    let is_rerun = |later: &Entry| {
        let Event::Unblocked { remedied: Some(remedied), .. } = &later.event else { return false };
        let is_same = entry.event.op() == Some(&remedied.op);
        later.seq > entry.seq && is_same && remedied.remedy == Remedy::Rerun
    };
    unused::is_lost(&entry.event) && journal.iter().any(is_rerun)
}

/// Returns a name with its key, as the journal has it.
pub(super) fn with_key(name: &str, key: Option<&str>) -> String {
    key.map_or_else(|| name.to_owned(), |key| format!("{name}[{key}]"))
}

impl ModelState {
    /// Returns the name under which the journal knows an operation. Its own name goes first if that
    /// has an outcome, then the newest name with an outcome, then the newest of all names. A
    /// closure must not run under a new name if it has an outcome under an old one.
    pub(super) fn known_as(&mut self, kind: &'static str, written: &str, nth: u32) -> Id {
        let (name, key) = keyed(written);
        let own = (kind, with_key(name, key), nth);
        let olds: Vec<Id> =
            old_names(written).into_iter().map(|old| (kind, with_key(old, key), nth)).collect();
        if olds.is_empty() {
            return own;
        }
        let newest = |ids: &[&Id]| {
            let told = self.told.iter().filter(|told| ids.contains(&&told.id));
            told.max_by_key(|told| (told.is_delivery, told.seq))
        };
        let old = newest(&olds.iter().collect::<Vec<_>>()).filter(|told| told.is_delivery);
        let taken = newest(&[&own]).filter(|told| told.is_delivery);
        if let (Some(old), Some(again)) = (old, taken)
            && old.seq < again.seq
            && again.is_own
        {
            self.wrong = Some(format!("{own:?} ran again, though entry {} has it as {:?}", old.seq, old.id));
        }
        let all: Vec<&Id> = olds.iter().chain([&own]).collect();
        let id = match taken {
            Some(_) => own.clone(),
            None => newest(&all).map_or(own.clone(), |told| told.id.clone()),
        };
        let all = all.into_iter().cloned().collect();
        self.names.insert(id.clone(), all);
        id
    }

    /// Returns the first entry with an outcome of the operation of this entry, under any of its
    /// names. Code that knew the outcome under an old name went on from there, though a build that
    /// does not know the old name recorded it once more, later, under the new one.
    pub(super) fn known_since(&self, entry: &Entry) -> u64 {
        let names = entry.event.op().and_then(|op| self.names.get(&id_of(op)));
        let is_outcome =
            |told: &&Told| told.is_delivery && names.is_some_and(|names| names.contains(&told.id));
        self.told.iter().filter(is_outcome).map(|told| told.seq).fold(entry.seq, u64::min)
    }

    /// Checks that no other operation uses a name that was given up.
    pub(super) fn check_old_names(&mut self, kind: &'static str, written: &str) {
        let (name, _) = keyed(written);
        let is_old = |(of, old, new): &(&str, String, String)| *of == kind && old == name && new != name;
        let mut is_clash = self.olds.iter().any(is_old);
        for old in old_names(written).into_iter().filter(|old| *old != name) {
            is_clash |= self.uses.keys().any(|(of, used)| *of == kind && keyed(used).0 == old);
            is_clash |= self.olds.iter().any(|(of, other, new)| *of == kind && other == old && new != name);
            self.olds.push((kind, old.to_owned(), name.to_owned()));
        }
        if is_clash {
            self.clash = Some(name.to_owned());
        }
    }
}

impl Model<'_> {
    /// Whether the run takes a change: as recorded, or else as it follows from how far the run
    /// came.
    pub(super) fn takes(&self, change: &str) -> bool {
        let mut state = self.lock();
        let marker = self.life.journal.iter().find_map(|entry| match &entry.event {
            Event::StepRecorded(StepRecord { op, outcome, .. })
                if op.kind == OpKind::Patch && op.name.as_str() == change =>
            {
                Some((entry, outcome.to_string() == "true"))
            }
            _ => None,
        });
        let end = marker.map_or(u64::MAX, |(entry, _)| entry.seq);
        // A result that could not be recorded reaches no code.
        let is_left = |entry: &&Entry| state.left.contains(&entry.seq) && !unused::is_lost(&entry.event);
        let left: Vec<&Entry> = self.life.journal.iter().filter(is_left).collect();
        let is_left = left.iter().any(|entry| entry.seq < end);
        let is_foreign_left = left.iter().any(|entry| entry.seq < end && !self.life.is_own(entry));
        let is_ahead = |entry: &&Entry| entry.seq > state.passed && entry.seq < end && is_seen(&entry.event);
        let is_behind = is_left || self.life.journal.iter().any(|entry| is_ahead(&entry));
        let Some((entry, is_taken)) = marker else { return !is_behind };
        if self.life.is_own(entry) && ((is_taken && is_foreign_left) || (!is_taken && !is_behind)) {
            state.wrong =
                Some(format!("entry {} answers {is_taken} for {change:?}, which is not so", entry.seq));
        }
        is_taken
    }
}

/// Whether an entry shows how far the code came.
fn is_seen(event: &Event) -> bool {
    let is_note = matches!(
        event,
        Event::AttemptFailed { .. }
            | Event::TimerSet { .. }
            | Event::ChildCancelled { .. }
            | Event::SignalRejected(_)
            | Event::Unblocked { remedied: Some(Remedied { .. }), .. }
    );
    is_note || is_delivery(event) || interrupt_of(event).is_some()
}
