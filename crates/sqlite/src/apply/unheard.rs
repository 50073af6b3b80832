//! `repair`: answers and orders that were lost on the way are sent again.

use rusqlite::params;

use super::repair::Repaired;
use crate::batch::Batch;
use crate::error::Stop;
use crate::job::Operation;
use crate::sql;
use crate::unheard::unheard_by;
use crate::wreck::Wreck;

/// Sends the execution with this number what it should have heard. Each message is the one that was lost, under its own id, so that one which was
/// sent meanwhile is there once.
pub(crate) struct UnheardWork(pub(crate) i64);

impl Operation for UnheardWork {
    type Output = Repaired;
    const WHAT: &'static str = "repair";

    fn apply(&mut self, batch: &mut Batch<'_>) -> Result<Repaired, Stop> {
        let Self(key) = *self;
        let mut repaired = Repaired::default();
        let Some(wreck) = Wreck::find(batch.connection, key)? else { return Ok(repaired) };
        let title = wreck.title();
        let interned = batch.caches.interned(batch.connection)?;
        for unheard in unheard_by(batch.connection, interned, key)? {
            let Some(message) = &unheard.message else {
                repaired.left.push(format!("{title}: {}", unheard.problem));
                continue;
            };
            // One that was read and left no trace in the journal was not heard either.
            batch
                .connection
                .prepare_cached(sql::MESSAGE_FORGET)?
                .execute(params![key, message.id.as_str()])?;
            match batch.put(message) {
                Ok(_) => repaired.rebuilt.push(format!("{title}: {}", unheard.remedy)),
                Err(Stop::Refused(error)) => {
                    repaired.left.push(format!("{title}: {}: {error}", unheard.problem));
                }
                Err(stop) => return Err(stop),
            }
        }
        Ok(repaired)
    }
}
