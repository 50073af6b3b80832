//! `repair`: messages that are stored under the wrong execution.
//!
//! The checksum of a message covers the number of its execution, so a message under another number
//! is never read there. Its body names the addressee. If the checksum is right with the addressee's
//! number, only the number was damaged.

use std::sync::Arc;

use abide_core::Message;
use rusqlite::{Row, params};

use crate::batch::Batch;
use crate::error::Stop;
use crate::mail::written_for;
use crate::place::Place;
use crate::rows::{Raw, Target};
use crate::sql;

/// The execution that a message belongs to.
struct Addressee {
    key: i64,
    message: Message,
}

/// Whether a message, in a row of [`sql::VERIFY_INBOX`], was sent to another existing execution.
pub(super) fn is_astray(batch: &mut Batch<'_>, row: &Row<'_>) -> Result<bool, Stop> {
    Ok(addressee(batch, row)?.is_some())
}

/// Moves messages under `key` that were sent to others back to them. Returns a sentence about each.
pub(super) fn bring_home(batch: &mut Batch<'_>, key: i64) -> Result<Vec<String>, Stop> {
    let connection = batch.connection;
    let mut statement = connection.prepare_cached(sql::VERIFY_INBOX)?;
    let mut rows = statement.query([key])?;
    let mut astray = Vec::new();
    while let Some(row) = rows.next()? {
        if let Some(addressee) = addressee(batch, row)? {
            astray.push((Raw::read(row, 1)?, addressee));
        }
    }
    drop(rows);
    let mut done = Vec::new();
    for (id, addressee) in astray {
        if connection.prepare_cached(sql::MESSAGE_MOVE)?.execute(params![key, id, addressee.key])? == 0 {
            // The message has been sent again since.
            connection.prepare_cached(sql::MESSAGE_DROP)?.execute(params![key, id])?;
        }
        let (id, to) = (&addressee.message.id, &addressee.message.to);
        done.push(format!("message {id:?}, which was sent to execution {to}, was put back there"));
        wake(batch, &addressee)?;
    }
    batch.caches.inboxes.remove(&key);
    Ok(done)
}

/// Returns the execution that a message belongs to, if it is stored under another.
fn addressee(batch: &mut Batch<'_>, row: &Row<'_>) -> Result<Option<Addressee>, Stop> {
    let stands: i64 = row.get(0)?;
    let interned = batch.caches.interned(batch.connection)?;
    let mut by_id = batch.connection.prepare_cached(sql::EXECUTION_KEY)?;
    let mut key = None;
    let mut whose = |message: &Message| {
        let namespace = interned.known(&message.to.namespace)?;
        key = by_id.query_row(params![namespace, message.to.id.as_str()], |row| row.get(0)).ok();
        key.filter(|key| *key != stands)
    };
    let message = written_for(row, &mut whose);
    Ok(message.zip(key).map(|(message, key)| Addressee { key, message }))
}

/// Wakes an execution that gets a message late.
fn wake(batch: &mut Batch<'_>, addressee: &Addressee) -> Result<(), Stop> {
    let Addressee { key, message } = addressee;
    batch.caches.inboxes.remove(key);
    batch.caches.targets.remove(key);
    let interned = batch.caches.interned(batch.connection)?;
    let Some(namespace) = interned.known(&message.to.namespace) else { return Ok(()) };
    // An unreadable execution is woken by its own repair.
    let Ok(Some(target)) = Target::read(batch.connection, namespace, &message.to) else { return Ok(()) };
    let target = Arc::new(target);
    batch.care_for(&target, message)?;
    let now = batch.now();
    if matches!(target.place, Place::Waiting | Place::Timer(..))
        && target.standing.listens.to(message.body.sort())
    {
        batch.relocate((target.key, target.epoch), (target.place, Place::Ready(target.queue, now)))?;
        batch.announce(target.queue.route)?;
    }
    Ok(())
}
