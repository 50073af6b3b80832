//! `repair`: resends answers and orders that were lost on the way.

use rusqlite::params;

use super::Repairs;
use super::lost_messages::lost_to;
use crate::batch::Batch;
use crate::error::Stop;
use crate::job::Operation;
use crate::legible::LegibleRow;
use crate::sql;

/// Sends the execution with this number the messages that it should have received. Each has the id
/// of the lost message, so a message that was sent meanwhile is there only once.
pub(crate) struct ResendWork(pub(crate) i64);

impl Operation for ResendWork {
    type Output = Repairs;
    const WHAT: &'static str = "repair";

    fn apply(&mut self, batch: &mut Batch<'_>) -> Result<Repairs, Stop> {
        let Self(key) = *self;
        let mut repaired = Repairs::default();
        let Some(legible) = LegibleRow::find(batch.connection, key)? else { return Ok(repaired) };
        let title = legible.title();
        let interned = batch.caches.interned(batch.connection)?;
        for lost in lost_to(batch.connection, interned, key)? {
            let Some(message) = &lost.message else {
                repaired.left.push(format!("{title}: {}", lost.problem));
                continue;
            };
            // A message that was read and left no trace in the journal was not received either.
            batch
                .connection
                .prepare_cached(sql::MESSAGE_FORGET)?
                .execute(params![key, message.id.as_str()])?;
            match batch.put_again(message) {
                Ok(_) => repaired.rebuilt.push(format!("{title}: {}", lost.remedy)),
                Err(Stop::Refused(error)) => {
                    repaired.left.push(format!("{title}: {}: {error}", lost.problem));
                }
                Err(stop) => return Err(stop),
            }
        }
        Ok(repaired)
    }
}
