//! The intake table.

use abide_core::{Enqueued, Timestamp};

use super::state::MemoryState;
use crate::{Notice, RefusedRow, Submit, TakeIn, TakenIn};

impl MemoryState {
    pub(super) fn enqueue(&mut self, rows: &[Enqueued]) {
        self.intake.extend(rows.iter().cloned());
        for (session, found) in &self.sessions {
            if found.retired.is_none() {
                self.notices.push(*session, Notice::Intake);
            }
        }
    }

    pub(super) fn take_in(&mut self, take_in: TakeIn, now: Timestamp) -> TakenIn {
        let mut taken = TakenIn::default();
        while taken.taken_count < take_in.limit
            && let Some(row) = self.intake.pop_front()
        {
            taken.taken_count += 1;
            if let Err(reason) = self.take(&row, now) {
                taken.refused_count += 1;
                let item = RefusedRow::of(&row, &reason).item(row.legible_address(), now);
                let position = self.next_position();
                self.refusals.insert(position, item);
            }
        }
        taken.more = !self.intake.is_empty();
        taken
    }

    fn take(&mut self, row: &Enqueued, now: Timestamp) -> Result<(), String> {
        let message = row.message(now).map_err(|refusal| refusal.to_string())?;
        let submit = Submit { messages: vec![message], born_to: None, alone: false, stretch: None };
        self.submit(submit, now).map(|_| ()).map_err(|error| error.to_string())
    }
}
