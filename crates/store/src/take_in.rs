//! Taking rows out of the intake table.

use abide_core::codec::{self, DecodeError};
use abide_core::{Address, Enqueued, Happening, Timestamp, text};

use crate::FeedItem;

/// A request to take rows out of the intake table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakeIn {
    /// The most rows to take.
    pub limit: usize,
}

/// The answer to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakenIn {
    /// How many rows were taken, including those that were refused.
    pub taken_count: usize,
    /// How many of them were refused.
    pub refused_count: usize,
    /// Whether there may be more.
    pub more: bool,
}

/// A row of the intake table that was refused, as it is in the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedRow {
    /// The id of the row.
    pub id: String,
    /// `start` or `signal`, if it is one of them.
    pub verb: String,
    /// The name of the workflow, task or signal.
    pub name: String,
    /// Why.
    pub reason: String,
}

/// What stands in the intake table, and what of it was refused, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IntakeLook {
    /// Rows that no engine has taken, oldest first.
    pub waiting: Vec<Enqueued>,
    /// Rows that were refused, newest first.
    pub refused: Vec<FeedItem>,
}

/// The longest reason that is kept, in characters.
const REASON_CHARS_MAX: usize = 1_000;

impl RefusedRow {
    /// Describes the refusal of a row.
    pub fn of(row: &Enqueued, reason: &str) -> Self {
        Self {
            id: text::excerpt(&row.id, 80),
            verb: text::excerpt(&row.verb, 80),
            name: row.legible_name(),
            reason: text::excerpt(reason, REASON_CHARS_MAX),
        }
    }

    /// Returns its bytes, with the address that the row named.
    pub fn encode(&self, address: &Address) -> Vec<u8> {
        let Self { id, verb, name, reason } = self;
        codec::encode(&(address, id, verb, name, reason))
    }

    /// Reads it again.
    pub fn decode(bytes: &[u8]) -> Result<(Address, Self), DecodeError> {
        let (address, id, verb, name, reason) = codec::decode(bytes)?;
        Ok((address, Self { id, verb, name, reason }))
    }

    /// Returns its item of the feed.
    pub fn item(self, address: Address, at: Timestamp) -> FeedItem {
        FeedItem { address, run: 0, at, happening: Happening::Refused, refused: Some(Box::new(self)) }
    }
}
