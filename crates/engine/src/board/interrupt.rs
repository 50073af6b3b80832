//! Reasons for code to wind down.

use abide_core::Event;

/// The reason why the code is to wind down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// The execution is being cancelled.
    Cancel,
    /// Its deadline has passed.
    Deadline,
    /// The execution has ended or left memory, and only one of its operations was kept, for example
    /// by a task of the user's.
    Gone,
}

impl Interrupt {
    /// Returns why code that sees this event is to wind down, if it is.
    pub(crate) fn of(event: &Event) -> Option<Self> {
        match event {
            Event::CancelRequested { .. } => Some(Self::Cancel),
            Event::DeadlinePassed { .. } => Some(Self::Deadline),
            _ => None,
        }
    }
}
