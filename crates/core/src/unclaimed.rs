//! Operations that may have been renamed.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Op, OpKind};

/// An operation that newer code began, while the journal has one of the same kind that the code has
/// not asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unclaimed {
    /// The operation that began.
    pub begun: Op,
    /// The recorded operation, unused so far.
    pub recorded: Op,
}

impl Unclaimed {
    /// Returns the first two of a kind. `is_used` says whether the code has used the name of a
    /// recorded operation: then it was not renamed.
    pub fn first(begun: &[Op], recorded: &[Op], is_used: impl Fn(&Op) -> bool) -> Option<Self> {
        let left: Vec<&Op> = recorded.iter().filter(|op| !is_used(op)).collect();
        begun.iter().find_map(|begun| {
            let recorded =
                left.iter().find(|recorded| recorded.kind == begun.kind && recorded.key == begun.key)?;
            Some(Self { begun: begun.clone(), recorded: (*recorded).clone() })
        })
    }
}

impl fmt::Display for Unclaimed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { begun, recorded } = self;
        let word = match begun.kind {
            OpKind::Step | OpKind::Transaction | OpKind::Child => "ran",
            _ => "began",
        };
        let old = recorded.name.as_str();
        write!(
            f,
            "{begun} {word} although an entry of {recorded} went unused: renamed? use .renamed_from({old:?})"
        )
    }
}
