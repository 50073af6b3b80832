//! Rows that keep their size from commit to commit, so that SQLite writes them in place.
//!
//! A number takes as many bytes as it needs. What the numbers of a row gain or lose with a commit,
//! the sheet gives or takes. A wrong guess costs time, and nothing else.

use crate::place::Columns;
use crate::rows::{LeaseState, integer, micros};
use crate::sheet::Anchor;

/// The bytes that a newborn gains with its end: those of a time, of a seal, and of its state.
const RESERVED_BYTES: usize = 8 + 3 + 5;
/// The most bytes that are kept for later.
const PADDING_BYTES_MAX: usize = 64;
/// The lengths of sheets that outgrow their rows are multiples of this.
const STEP_BYTES: usize = 8;

/// Returns the length of the first sheet of an execution, whose own length is `length`. An execution
/// that is born leased often ends with its first commit.
pub(crate) fn at_birth(length: usize, state: &LeaseState) -> usize {
    if state.is_newborn { length + RESERVED_BYTES } else { length }
}

/// Returns the length of a sheet, whose own length is `length`, in a row with this room for it.
pub(crate) fn filled(length: usize, room: usize) -> usize {
    match room.checked_sub(length) {
        Some(0..=PADDING_BYTES_MAX) => room,
        Some(_) | None => length.next_multiple_of(STEP_BYTES),
    }
}

/// The bytes of a row that change from commit to commit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Room {
    /// Those of the columns that say where it stands, and of the seal.
    place: usize,
    /// Those of all numbers and of the sheet.
    all: usize,
}

impl LeaseState {
    /// Notes that the row has this place, or the same as before, and returns the length that is left
    /// for a sheet if the row is to keep its size.
    pub(crate) fn sheet_room(&mut self, to: Option<Columns>) -> usize {
        if let Some(to) = to {
            self.room.place = self.place_bytes(to);
        }
        self.room.all.saturating_sub(self.number_bytes())
    }

    /// Notes that the row has a sheet of this length.
    pub(crate) fn fill(&mut self, length: usize) {
        self.room.all = self.number_bytes() + length;
    }

    fn number_bytes(&self) -> usize {
        let Anchor { head, version, .. } = self.anchor;
        self.room.place + stored_bytes(head) + stored_bytes(integer(version.0))
    }

    fn place_bytes(&self, columns: Columns) -> usize {
        let Columns { place, rank, place_at } = columns;
        let times = micros(self.care_at).unwrap_or(-1).wrapping_sub(place_at) % 1_000_000_007;
        let small = integer(self.lease.epoch.0).saturating_add(place).saturating_add(rank);
        let seal = times.saturating_add(small).saturating_add(self.takeover_count.into());
        [place, rank, place_at, seal].map(stored_bytes).iter().sum()
    }
}

/// Returns the bytes that SQLite stores for a number.
fn stored_bytes(number: i64) -> usize {
    // Without the sign.
    let bits = 64 - (number ^ (number >> 63)).leading_zeros();
    match bits {
        0 | 1 if number >= 0 => 0,
        0..=7 => 1,
        8..=15 => 2,
        16..=23 => 3,
        24..=31 => 4,
        32..=47 => 6,
        _ => 8,
    }
}
