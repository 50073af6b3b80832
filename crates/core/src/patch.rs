//! Changes of the code that a run takes, or does not.

use serde::{Deserialize, Serialize};

use crate::{Command, Entry, Event, Execution, Name, Op, OpKind, Outcome, Payload, StepRecord};

/// Whether a run takes a change of the code.
///
/// The answers of a run are part of its state, so a replay knows all of them before it calls the
/// code. The code asks without waiting, and newer code may ask earlier than the code that asked
/// first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Patch {
    /// The code's name for the change.
    pub change: Name,
    /// Whether the run takes it.
    pub is_taken: bool,
}

impl Patch {
    /// The most answers that a run has (`patch_count_max`): they are written with every commit.
    pub const COUNT_MAX: usize = 128;

    /// Returns the command that records this answer.
    pub fn record(self) -> Command {
        let op = Op { kind: OpKind::Patch, name: self.change, key: None, nth: 1 };
        let outcome = Outcome::Success(Payload::from(if self.is_taken { "true" } else { "false" }));
        Command::RecordStep(StepRecord { op, outcome, attempt: 1, input: None })
    }

    /// Returns the answer that an event records.
    pub fn of(event: &Event) -> Option<Self> {
        match event {
            Event::StepRecorded(StepRecord { op, outcome: Outcome::Success(payload), .. })
                if op.kind == OpKind::Patch =>
            {
                Some(Self { change: op.name.clone(), is_taken: payload.as_bytes() == b"true" })
            }
            _ => None,
        }
    }
}

impl Execution {
    /// Returns the answers that were recorded in this run.
    pub fn patches(&self) -> &[Patch] {
        self.patches.as_deref().unwrap_or_default()
    }

    /// Returns the number of the last entry that shows how far the code came. The entries after it,
    /// such as pauses and blocks, are invisible to the code.
    pub fn seen_count(&self) -> u64 {
        self.entry_count() - u64::from(self.unseen_count)
    }

    /// Folds an entry's answer about a change of the code.
    pub(crate) fn apply_patch(&mut self, entry: &Entry) {
        let patch = Patch::of(&entry.event);
        let is_unseen = patch.is_some()
            || matches!(
                entry.event,
                Event::Paused { .. }
                    | Event::Resumed { .. }
                    | Event::Inherited { .. }
                    | Event::Blocked { .. }
                    | Event::Unblocked { remedied: None, .. }
                    | Event::Retried { .. }
            );
        self.unseen_count = if is_unseen { self.unseen_count.saturating_add(1) } else { 0 };
        if let Some(patch) = patch {
            self.patches.get_or_insert_default().push(patch);
        }
    }
}
