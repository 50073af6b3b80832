//! Who computes what an execution does next.

use abide_core::{Entry, Event};
use abide_store::{Error, Record, Unreadable};

use crate::runtime::BoxFuture;
use crate::seat::Seat;

/// Runs executions of one kind: Rust workflows, tasks, or code that lives elsewhere and speaks another protocol.
///
/// A driver is given a [`Seat`] and computes commands; everything that an execution is to the store is the seat's business. Nothing here assumes
/// that there is a Rust future behind an execution.
///
/// Each time it is polled, a driver [enters](Seat::enter), [takes in](Seat::poll) what is new, [obeys](Seat::obey) orders and sees to the
/// [deadline](Seat::expire), [decides](Seat::decide) what follows, [sends](Seat::send) that as one commit at a time, and [leaves](Seat::leave).
/// When it [may not run](Seat::may_run), or the engine [wants](Seat::order) it to, it gives the lease back, once it [has all mail](Seat::has_all_mail).
pub trait Driver: Send + Sync + 'static {
    /// Runs an execution until it has ended, or its lease is given back or lost.
    fn begin(&self, seat: Seat, opening: Opening) -> BoxFuture<End>;
}

/// Where the journal of a leased execution begins.
#[derive(Debug)]
pub struct Opening {
    /// The first page; further ones are [read](abide_store::View::read) from the store.
    pub journal: Vec<Record>,
    /// The first entry, if the store had it at hand.
    pub first: Option<Box<Entry>>,
}

impl Opening {
    /// The first entry of the run.
    pub fn first_entry(&mut self) -> Result<Entry, Error> {
        match (self.first.take(), self.journal.first()) {
            (Some(entry), _) => Ok(*entry),
            (None, Some(record)) => record.entry(),
            (None, None) => Err(Error::Corrupt { what: "its journal is empty".to_owned() }),
        }
    }
}

/// How an execution left memory.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// It has ended, and this was its last entry.
    Finished(Event),
    /// The lease was given back.
    Released,
    /// The store will never take what was to be committed.
    Failed(String),
    /// The lease is lost; whoever has it now goes on.
    Lost(String),
    /// Something that is recorded cannot be read: it is given up, by its lease, so that nobody here meets the same for ever.
    Unreadable(Unreadable),
}

impl End {
    /// Something that is recorded is not what was written.
    pub fn damaged(what: String) -> Self {
        Self::Unreadable(Unreadable::Damaged(what))
    }
}

impl From<Error> for End {
    /// What it means when a store does not give what is recorded.
    fn from(error: Error) -> Self {
        match Unreadable::of(error) {
            Ok(unreadable) => Self::Unreadable(unreadable),
            Err(other) => Self::Lost(other.to_string()),
        }
    }
}
