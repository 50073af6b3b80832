//! Places where code asks for operations.

use std::fmt;
use std::panic::Location;

use abide_core::{Op, Origin};

/// The place in the program that asks for an operation. It is shown to people and compared with
/// nothing: a deploy moves lines.
#[derive(Clone, Copy, Debug)]
pub struct Site(&'static Location<'static>);

impl Site {
    /// Returns the place that calls the caller of this function.
    #[track_caller]
    pub fn caller() -> Self {
        Self(Location::caller())
    }

    /// Returns the place of a failed attempt of an operation in this workflow.
    pub(crate) fn place(self, workflow: &str, op: &Op, attempt: Option<u32>) -> Origin {
        let code = format!("workflow {workflow:?}");
        Origin { code, op: Some(op.to_string()), attempt, site: Some(self.to_string()) }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.0.file(), self.0.line())
    }
}
