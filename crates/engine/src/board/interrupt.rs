//! Why code winds down.

use abide_core::Event;

/// Why the code is to wind down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// The execution is being cancelled.
    Cancel,
    /// Its deadline has passed.
    Deadline,
    /// It has ended or left memory, and only an operation of its was kept, by a task of the user's for example.
    Gone,
}

impl Interrupt {
    /// What an event means to the code that sees it, if it is to wind down.
    pub(crate) fn of(event: &Event) -> Option<Self> {
        match event {
            Event::CancelRequested { .. } => Some(Self::Cancel),
            Event::DeadlinePassed { .. } => Some(Self::Deadline),
            _ => None,
        }
    }
}
