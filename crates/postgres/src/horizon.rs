//! How far the feed may be read.
//!
//! Places in the feed come from a sequence, and a lower one may be committed later than a higher
//! one. A writer locks the table, then draws its places, then commits, then releases the lock. So
//! when the last place that was drawn is read first, and those who hold the lock are read then,
//! every place up to that one belongs to a writer that has ended or is among them. When they too
//! have ended, all of these places are there, or will never be. Transactions that do not write the
//! feed stall nothing.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use crate::connection::Connection;
use crate::error::Stop;
use crate::{gate, sql};

/// How often the writers of the feed are looked at, before a page ends in front of them.
const LOOK_COUNT_MAX: u32 = 50;

/// How long a writer is left alone between two looks.
const LOOK_MS: u64 = 2;

/// The last place up to which everything is settled.
#[derive(Default)]
pub(crate) struct Horizon(Mutex<i64>);

impl Horizon {
    /// Returns a place up to which the feed can be read for good, and whether it was the last one.
    pub(crate) async fn look(&self, connection: &Connection) -> Result<(i64, bool), Stop> {
        let end: i64 = connection.row(sql::FEED_END, &[]).await?.try_get(0)?;
        if end <= self.settled() {
            return Ok((end, true));
        }
        let mut open = writers(connection).await?;
        for _ in 0..LOOK_COUNT_MAX {
            if open.is_empty() {
                self.settle(end);
                return Ok((end, true));
            }
            gate::pause(LOOK_MS).await;
            let still = writers(connection).await?;
            open.retain(|writer| still.contains(writer));
        }
        Ok((self.settled(), false))
    }

    fn settled(&self) -> i64 {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self, end: i64) {
        let mut settled = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *settled = end.max(*settled);
    }
}

async fn writers(connection: &Connection) -> Result<HashSet<String>, Stop> {
    let rows = connection.rows(sql::FEED_WRITERS, &[]).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}
