//! The start that the tests and readers of all crates begin with.

use crate::{Kind, Name, Payload, Start};

/// Returns the start of a workflow `flow` with the input `1` and default options.
pub fn flow() -> Start {
    let name = Name::new("flow").expect("a literal name");
    Start::of(Kind::Workflow, name, Payload::from("1"))
}
