//! `cargo xtask sim`: the simulator in an optimised build.

use crate::workspace::Workspace;
use crate::{Result, process};

/// The seeds that every test of the project runs.
pub(crate) const SEEDS: &str = "0..10000";

/// What must happen to them.
pub(crate) const COVERAGE: &str = "crates/sim/coverage.txt";

/// Builds the simulator and calls it.
pub(crate) fn run<'a>(workspace: &Workspace, arguments: impl IntoIterator<Item = &'a str>) -> Result<()> {
    let build = ["run", "--quiet", "--release", "--package", "abide-sim", "--"];
    process::run(&mut workspace.cargo(build.into_iter().chain(arguments)))
}
