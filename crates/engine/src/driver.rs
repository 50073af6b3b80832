//! The part that computes an execution's next commands.

use abide_core::Event;
use abide_store::{Error, Opening, Unreadable};

use crate::runtime::BoxFuture;
use crate::seat::Seat;

/// Runs executions of one kind: Rust workflows, tasks, or code that lives elsewhere and speaks
/// another protocol.
///
/// A driver gets a [`Seat`] and computes commands; everything that an execution is to the store is
/// the seat's business. Nothing here assumes that there is a Rust future behind an execution.
///
/// Each time it is polled, a driver [enters](Seat::enter), [takes in](Seat::poll) the news,
/// [obeys](Seat::obey) orders and sees to the [deadline](Seat::expire), [decides](Seat::decide)
/// commands, [sends](Seat::send) the entries as one commit at a time, and [leaves](Seat::leave).
/// When it [may not run](Seat::may_run), or the engine [wants](Seat::order) it to leave, it returns
/// the lease, once it [has all mail](Seat::has_all_mail).
///
/// A driver sends a commit whenever its seat [has news](Seat::has_news) and is not
/// [busy](Seat::is_busy), also without entries of its own: a suspect that runs alone keeps all
/// other executions out until it is recorded that they come in. The engine does not wait for
/// ever for a driver that sends none. But if others come in without that record, a death that they
/// cause may be counted as the suspect's own.
pub trait Driver: Send + Sync + 'static {
    /// Runs an execution until it has ended, or its lease is returned or lost.
    fn begin(&self, seat: Seat, opening: Opening) -> BoxFuture<End>;

    /// Whether an execution may be polled once before it exists. Its driver then begins nothing
    /// outside of the store while its seat is not [durable](Seat::is_durable), and may be dropped
    /// at any time, as if it had never been there.
    fn begins_with_plain_code(&self) -> bool {
        false
    }
}

/// How an execution left memory.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// It has ended, and this was its last entry.
    Finished(Event),
    /// The lease was returned.
    Released,
    /// The store will never take the commit.
    Failed(String),
    /// The driver panicked; usually the destructor of a value of the user's code did.
    Panicked(String),
    /// Its records could not be read, for no fault that is known of them: it begins anew with the
    /// journal.
    NotRead(String),
    /// The lease is lost; its present holder goes on.
    Lost(String),
    /// A record cannot be read: the execution is given up, by its lease, so that this worker does
    /// not meet the same record forever.
    Unreadable(Unreadable),
}

impl End {
    /// Makes the end of an execution with a record that is not as it was written.
    pub fn damaged(what: String) -> Self {
        Self::Unreadable(Unreadable::Damaged(what))
    }
}

impl From<Error> for End {
    /// Returns the end that follows from a store's failure to return a record.
    fn from(error: Error) -> Self {
        match Unreadable::of(error) {
            Ok(unreadable) => Self::Unreadable(unreadable),
            Err(error) if error.is_of_one() => Self::NotRead(error.to_string()),
            Err(other) => Self::Lost(other.to_string()),
        }
    }
}
