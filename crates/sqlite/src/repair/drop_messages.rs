//! `drop_messages`: an execution continues without its unreadable messages.

use abide_core::{Address, By};
use abide_store::Error;

use super::meant::{Meant, meant};
use super::rebuild::{drop_damaged, is_held};
use crate::batch::Batch;
use crate::error::Stop;
use crate::job::Operation;
use crate::store::SqliteStore;
use crate::writer::Scheduling;

impl SqliteStore {
    /// Drops the damaged unread messages of an execution. [`repair`](Self::repair) then moves the
    /// execution to its proper place. The messages were acknowledged, and are lost. A sender that
    /// still has one can send it again, even under the same id.
    pub async fn drop_messages(&self, address: &Address, by: By) -> abide_store::Result<MessagesDropped> {
        self.check_tables("drop messages").await?;
        let work = || DropMessagesWork { address: address.clone(), by: by.clone() };
        let done = self.write(work(), Scheduling::Queued).await;
        let Err(Error::Corrupt { .. }) = done else { return done };
        // A row out of order is not where an index says.
        let mut repairs = self.repair_indexes().await?;
        self.repair_order(&mut repairs).await?;
        self.write(work(), Scheduling::Queued).await
    }
}

/// Drops the damaged unread messages of an execution. They were acknowledged, and are lost; their
/// ids are free again.
pub(crate) struct DropMessagesWork {
    pub(crate) address: Address,
    pub(crate) by: By,
}

/// The outcome of dropping damaged messages.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessagesDropped {
    /// The lost messages, one sentence each; empty if none was damaged.
    Dropped(Vec<String>),
    /// The execution does not exist.
    Unknown,
    /// A worker holds the execution, and sets it aside when it meets the damage.
    Held,
}

impl Operation for DropMessagesWork {
    type Output = MessagesDropped;
    const WHAT: &'static str = "drop messages";

    fn apply(&mut self, batch: &mut Batch<'_>) -> Result<MessagesDropped, Stop> {
        batch.readable(|batch| self.drop_messages(batch))
    }
}

impl DropMessagesWork {
    fn drop_messages(&self, batch: &mut Batch<'_>) -> Result<MessagesDropped, Stop> {
        let Some(Meant { legible, address, .. }) = meant(batch, &self.address)? else {
            return Ok(MessagesDropped::Unknown);
        };
        if is_held(batch, legible.place)? {
            return Ok(MessagesDropped::Held);
        }
        let (dropped, id) = (drop_damaged(batch, legible.key)?, address.id.as_str());
        for message in &dropped {
            let (message, damage) = (&message.id, &message.damage);
            tracing::error!(execution = id, message, damage, by = %self.by.0, "an acknowledged message was dropped");
        }
        let sentence = |dropped: &super::rebuild::Dropped| {
            let (message, damage) = (&dropped.id, &dropped.damage);
            format!("execution {id:?}: message {message:?} was dropped, and is lost: {damage}")
        };
        Ok(MessagesDropped::Dropped(dropped.iter().map(sentence).collect()))
    }
}
