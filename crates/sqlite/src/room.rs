//! Rows that keep their size from commit to commit, so that SQLite writes them in place.
//!
//! A number takes as many bytes as it needs. The sheet makes up for what the numbers of its row
//! gain or lose with a commit. A wrong guess costs time, and nothing else.

use crate::place::Columns;
use crate::rows::{LeaseState, integer, micros};
use crate::sheet::Anchor;

/// The bytes that a newborn gains with its end: those of a time, of a seal, and of its state.
const RESERVED_BYTES: usize = 8 + 3 + 5;
/// The most bytes that are kept for later.
const PADDING_BYTES_MAX: usize = 64;
/// The lengths of sheets that outgrow their rows are multiples of this.
const STEP_BYTES: usize = 8;

/// Returns the length of the first sheet of an execution, whose own length is `length`. An
/// execution that is born leased often ends with its first commit.
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
    /// Notes that the row has this place, or the same as before. Returns the length that is left
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
        stored_bytes(place) + stored_bytes(rank) + stored_bytes(place_at) + stored_bytes(seal)
    }
}

/// Returns the bytes that SQLite stores for a number: none for 0 and 1.
fn stored_bytes(number: i64) -> usize {
    const BY_WIDTH: [u8; 9] = [1, 1, 2, 3, 4, 6, 6, 8, 8];
    if matches!(number, 0 | 1) {
        return 0;
    }
    // The bits beside the sign, and the sign.
    let width = 65 - (number ^ (number >> 63)).leading_zeros() as usize;
    BY_WIDTH[width.div_ceil(8)].into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_take_as_many_bytes_as_sqlite_stores() {
        let rows = [
            (0, 0),
            (1, 0),
            (2, 1),
            (-1, 1),
            (127, 1),
            (-128, 1),
            (128, 2),
            (-129, 2),
            (0x7fff, 2),
            (0x8000, 3),
            (-0x8001, 3),
            (0x7f_ffff, 3),
            (0x80_0000, 4),
            (0x7fff_ffff, 4),
            (0x8000_0000, 6),
            (0x7fff_ffff_ffff, 6),
            (0x8000_0000_0000, 8),
            (i64::MAX, 8),
            (i64::MIN, 8),
        ];
        for (number, expected) in rows {
            assert_eq!(stored_bytes(number), expected, "{number}");
        }
    }

    #[test]
    fn a_sheet_fills_its_room_unless_that_is_too_small_or_much_too_large() {
        for (length, room, expected) in
            [(61, 70, 70), (70, 70, 70), (71, 70, 72), (61, 125, 125), (61, 126, 64)]
        {
            assert_eq!(filled(length, room), expected, "{length} in {room}");
        }
    }
}
