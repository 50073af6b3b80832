//! Decides whether a run takes a change of its code.

use std::sync::atomic::{AtomicBool, Ordering};

use abide_core::planted::{Bug, planted};
use abide_core::{Block, Execution, Name, Patch};

use super::{Board, BoardState, Shared, Site};

/// The changes that the code has asked about.
pub(super) struct Patches {
    known: Vec<Patch>,
    /// Answers that are not recorded yet.
    new: Vec<(Patch, Site)>,
}

/// Whether the journal goes further than the code has come so far. The runner says it before every
/// poll of the code, on the thread of that poll, so it is not behind the lock.
#[derive(Default)]
pub(super) struct Behind(AtomicBool);

impl Patches {
    /// Whether there are answers that are not recorded yet.
    pub(super) fn has_new(&self) -> bool {
        !self.new.is_empty()
    }

    pub(super) fn of(execution: &Execution) -> Self {
        Self { known: execution.patches().to_vec(), new: Vec::new() }
    }
}

impl Board {
    /// Whether this run takes a change of its code. The first answer of a run stays: it is recorded
    /// before anything that begins after it.
    ///
    /// A run that was past this place before the change does not take it. The journal shows that:
    /// it goes further than the code has come so far.
    pub fn patched(&self, change: &Name, site: Site) -> bool {
        let mut state = self.0.lock();
        if let Some(place) = self.misplaced() {
            self.misplace(&mut state, format!("patched {change:?} (at {site})"), place);
            return false;
        }
        let BoardState { patches, block, .. } = &mut *state;
        if let Some(known) = patches.known.iter().find(|known| known.change == *change) {
            return known.is_taken;
        }
        if patches.known.len() >= Patch::COUNT_MAX {
            let max = Patch::COUNT_MAX;
            let limit = format!("the run has reached the limit patch_count_max: at most {max} changes");
            let reason = format!("{limit} (at {site})");
            block.get_or_insert(Block::Limit { reason });
            return false;
        }
        let is_taken = !self.0.behind.0.load(Ordering::Relaxed) || planted(Bug::PatchedFlips);
        let patch = Patch { change: change.clone(), is_taken };
        patches.known.push(patch.clone());
        patches.new.push((patch, site));
        self.0.hints.note_unrecorded();
        is_taken
    }
}

/// The runner's side.
impl Shared {
    /// Sets, before the code is polled, whether the journal goes further than the code has come.
    pub(crate) fn set_behind(&self, is_behind: bool) {
        self.behind.0.store(is_behind, Ordering::Relaxed);
    }

    /// Takes the answers that are to be recorded, each with the place of its question.
    pub(crate) fn take_patches(&self) -> Vec<(Patch, Site)> {
        std::mem::take(&mut self.lock().patches.new)
    }
}
