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

use abide::StoreUrl;
use abide_core::Namespace;
use serde_json::json;

use crate::args::{Global, Output};
use crate::command_error::CommandError;
use crate::{clock, connect, output};

use stage::Stage;
pub(crate) use worker::{WorkerArgs, run as run_worker};

/// Options of `abide demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Keep the store, and say where it is. A store that --store names is always kept
    #[arg(long)]
    keep: bool,
}

/// Runs the demo, draws it, and checks that the promise was kept.
pub(crate) fn run(global: &Global, args: &Args) -> Result<(), CommandError> {
    let folder = tempfile::Builder::new().prefix("abide-demo-").tempdir();
    let folder =
        folder.map_err(|error| CommandError::failed(format!("there is no folder for the demo: {error}")))?;
    let place = if args.keep { DemoFolder::Kept(folder.keep()) } else { DemoFolder::Passing(folder) };
    let stage = stage_of(global, &place)?;
    let played = stage::play(&stage);
    if args.keep || global.store.is_some() {
        let (store, id) = (&stage.store, order::ID);
        let of = match stage.namespace == Namespace::default() {
            true => String::new(),
            false => format!(" --namespace {}", stage.namespace),
        };
        output::say(format_args!("kept: abide --store {store}{of} show {id}"));
    }
    let evidence = played?;
    let report = checks::of(&evidence);
    let timeline = timeline::of(&evidence);
    match global.output {
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

/// Returns the store of the demo: the one that the command line names, with a namespace of its own
/// in it, or else a file in the demo's folder.
fn stage_of(global: &Global, place: &DemoFolder) -> Result<Stage, CommandError> {
    let effects = place.path().join("effects.jsonl");
    if global.store.is_none() {
        let store = StoreUrl::File(place.path().join("demo.db"));
        return Ok(Stage { store, namespace: Namespace::default(), effects });
    }
    let store = connect::named(global)?;
    let name = format!("demo-{:x}", clock::now().as_micros());
    let namespace = Namespace::new(&name).map_err(CommandError::failed)?;
    Ok(Stage { store, namespace, effects })
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
