//! The meaning of entries for the life of an execution.

use serde::Deserialize;

use crate::{Entry, Event, Timestamp, codec};

/// A turn in the life of an execution, which others follow. The numbers are written to disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Happening {
    /// A run began.
    Began = 1,
    /// The run ended with a result.
    Completed = 2,
    /// The run ended with an error.
    Failed = 3,
    /// The run was cancelled.
    Cancelled = 4,
    /// The run ended, and the next one began.
    Continued = 5,
    /// It cannot go on.
    Blocked = 6,
    /// The obstacle is believed gone.
    Unblocked = 7,
    /// Somebody paused it.
    Paused = 8,
    /// Somebody let it go on.
    Resumed = 9,
    /// Somebody asked for its cancellation.
    CancelRequested = 10,
    /// Somebody wrote down a start or a signal in the intake table, and it was refused.
    Refused = 11,
}

impl Happening {
    const ALL: [Self; 11] = [
        Self::Began,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::Continued,
        Self::Blocked,
        Self::Unblocked,
        Self::Paused,
        Self::Resumed,
        Self::CancelRequested,
        Self::Refused,
    ];

    /// Returns the meaning of `event`; `None` if only its own execution needs to know it.
    pub fn of(event: &Event) -> Option<Self> {
        Some(match event {
            Event::Started(_) => Self::Began,
            Event::Completed { .. } => Self::Completed,
            Event::Failed(_) => Self::Failed,
            Event::Cancelled { .. } => Self::Cancelled,
            Event::ContinuedAsNew { .. } => Self::Continued,
            Event::Blocked { .. } => Self::Blocked,
            Event::Unblocked { .. } => Self::Unblocked,
            Event::Paused { .. } | Event::Inherited { pause: Some(_), .. } => Self::Paused,
            Event::Resumed { .. } | Event::Inherited { pause: None, .. } => Self::Resumed,
            Event::CancelRequested { .. } => Self::CancelRequested,
            Event::StepRecorded(_)
            | Event::AttemptFailed { .. }
            | Event::TimerSet { .. }
            | Event::TimerFired { .. }
            | Event::SignalReceived { .. }
            | Event::SignalRejected(_)
            | Event::ChildStarted { .. }
            | Event::ChildFinished { .. }
            | Event::ChildCancelled { .. }
            | Event::Retried { .. }
            | Event::DeadlinePassed { .. }
            | Event::Foreign(_) => return None,
        })
    }

    /// Returns the happening with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|one| *one as u8 == number)
    }

    /// Returns the word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Began => "began",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Continued => "continued",
            Self::Blocked => "blocked",
            Self::Unblocked => "unblocked",
            Self::Paused => "paused",
            Self::Resumed => "resumed",
            Self::CancelRequested => "cancel-requested",
            Self::Refused => "refused",
        }
    }

    /// Whether it ends the execution, until somebody retries it.
    pub fn is_end(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

/// The beginning of an encoded entry.
#[derive(Deserialize)]
struct Header {
    #[expect(dead_code, reason = "it stands before the wanted fields")]
    seq: u64,
    at: Timestamp,
    /// The event, by its place among the variants.
    variant: u32,
}

impl Happening {
    /// Returns the meaning of an encoded event: its place among the variants, and the bytes behind.
    fn of_variant(variant: u32, rest: &[u8]) -> Option<Self> {
        Some(match variant {
            0 => Self::Began,
            9 => Self::Paused,
            10 => Self::Resumed,
            11 => Self::CancelRequested,
            12 => Self::Blocked,
            13 => Self::Unblocked,
            14 => Self::Completed,
            15 => Self::Failed,
            16 => Self::Cancelled,
            17 => Self::Continued,
            // The flag for a pause comes first.
            20 if rest.first() == Some(&0) => Self::Resumed,
            20 => Self::Paused,
            _ => return None,
        })
    }
}

impl Entry {
    /// Returns the meaning of an encoded entry and the time of its decision. A store may call it:
    /// it does not read the rest of the entry, which may be large.
    pub fn happening_of(bytes: &[u8]) -> Option<(Timestamp, Happening)> {
        let (header, rest) = postcard::take_from_bytes::<Header>(codec::body(bytes)?).ok()?;
        Happening::of_variant(header.variant, rest).map(|happening| (header.at, happening))
    }

    /// Returns the meaning of an encoded entry that was just written. It passes over the number and
    /// the time without reading them, which is four times as fast.
    pub fn meaning_of(bytes: &[u8]) -> Option<Happening> {
        let body = codec::body(bytes)?;
        let mut at = 0;
        for _number in 0..2 {
            // The last byte of a number is the first without the highest bit.
            while *body.get(at)? >= 0x80 {
                at += 1;
            }
            at += 1;
        }
        // Every variant that has a meaning takes one byte.
        let (variant, rest) = body.get(at..)?.split_first()?;
        Happening::of_variant((*variant).into(), rest)
    }
}
