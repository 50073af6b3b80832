//! `abide demo`: an order survives `SIGKILL`.
//!
//! The order's workflow runs in a child process, which is killed on the way and started again. The
//! picture is computed from evidence: the journal in the store, and a file to which every closure
//! appends a line when it runs.

mod checks;
mod draw;
mod effects;
mod order;
mod stage;
mod timeline;
mod worker;

use std::path::PathBuf;

use serde_json::json;

use crate::args::Output;
use crate::command_error::CommandError;
use crate::output;

pub(crate) use worker::{WorkerArgs, run as run_worker};

/// Options of `abide demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Keep the store, and say where it is
    #[arg(long)]
    keep: bool,
}

/// Runs the demo, draws it, and checks that the promise was kept.
pub(crate) fn run(args: &Args, output: Output) -> Result<(), CommandError> {
    let folder = tempfile::Builder::new().prefix("abide-demo-").tempdir();
    let folder =
        folder.map_err(|error| CommandError::failed(format!("there is no folder for the demo: {error}")))?;
    let place = if args.keep { DemoFolder::Kept(folder.keep()) } else { DemoFolder::Passing(folder) };
    let played = stage::play(place.path());
    if args.keep {
        let (folder, id) = (place.path().display(), order::ID);
        output::say(format_args!("kept: abide --store sqlite:{folder}/demo.db show {id}"));
    }
    let evidence = played?;
    let report = checks::of(&evidence);
    let timeline = timeline::of(&evidence);
    match output {
        Output::Table => output::write(draw::page(&timeline, &report, output::is_colourful()).as_bytes())?,
        format => {
            let document = json!({ "checks": report.document(), "timeline": timeline.document() });
            output::document(&document, format)?;
        }
    }
    match report.broken() {
        None => Ok(()),
        Some(broken) => Err(CommandError::failed(format!("the demo did not hold its promise: {broken}"))),
    }
}

/// The folder of the demo.
enum DemoFolder {
    Kept(PathBuf),
    Passing(tempfile::TempDir),
}

impl DemoFolder {
    fn path(&self) -> &std::path::Path {
        match self {
            Self::Kept(path) => path,
            Self::Passing(folder) => folder.path(),
        }
    }
}
