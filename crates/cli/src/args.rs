//! What can be written on the command line.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use abide_core::{ExecutionId, Name, Namespace, Status, Tag};
use clap::builder::PossibleValue;
use clap::{Parser, Subcommand, ValueEnum};

#[cfg(unix)]
use crate::torture;
use crate::{bench, demo};

const AFTER_HELP: &str = "\
Data goes to stdout, talk and errors to stderr.

Exit codes:
  0  done
  1  the operation failed, the store is damaged, or the demo did not hold its promise
  2  the command line makes no sense
  3  there is no such execution
  4  refused: it has finished already, is not paused, has not failed, the file exists …
  5  the store cannot be opened, is busy or out of reach
  6  torture found what must not be
130  torture was interrupted, and had found nothing until then";

/// Durable execution for Rust: look into a store, steer what is in it, see it survive a crash
#[derive(Debug, Parser)]
#[command(name = "abide", version, after_help = AFTER_HELP, max_term_width = 100)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What can be said to every command.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Every command")]
pub(crate) struct Global {
    /// The store: sqlite:PATH or a path
    #[arg(long, env = "ABIDE_STORE", value_name = "URL", global = true)]
    pub(crate) store: Option<String>,
    /// The tenant
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = namespace, global = true)]
    pub(crate) namespace: Namespace,
    /// How data is written to stdout
    #[arg(short, long, value_name = "FORMAT", default_value = "table", global = true)]
    pub(crate) output: Output,
}

/// How data is written: for people, as one JSON document, or as one JSON document a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Table,
    Json,
    Jsonl,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run an order in a process that is killed on the way, and draw what happened
    Demo(demo::Args),
    /// The process that `demo` kills
    #[command(hide = true)]
    DemoWorker(demo::WorkerArgs),
    /// List executions, the newest first
    List(List),
    /// Show one execution: where it stands, its journal, failed attempts, children
    Show(Show),
    /// Say in one sentence why an execution is where it is
    Why(Id),
    /// Send a signal to an execution
    Signal(Signal),
    /// Ask an execution to wind down: its code sees the cancellation
    Cancel(Because),
    /// End an execution at once, without its code
    Terminate(Because),
    /// Let an execution start nothing new; steps that run are finished and recorded
    Pause(Because),
    /// Let a paused execution go on
    Resume(Plain),
    /// Try a blocked execution again, or decide about the step that blocks it
    Unblock(Unblock),
    /// Open the next run of an execution that failed or was cancelled
    Retry(Plain),
    /// Measure this machine
    Bench(bench::Args),
    /// Run random programs in processes that are killed and stopped, and check every promise
    #[cfg(unix)]
    Torture(torture::Args),
    /// A process that `torture` kills
    #[cfg(unix)]
    #[command(hide = true)]
    TortureProcess,
    /// Check the integrity of the store
    Verify(Verify),
    /// Copy the store into a new file while it is in use
    Backup(Backup),
    /// Make the store, which must not exist yet, from a backup
    Restore(Restore),
    /// Print a completion script
    Completions {
        /// For this shell
        shell: clap_complete::Shell,
    },
}

/// Which executions to list.
#[derive(Debug, clap::Args)]
pub(crate) struct List {
    /// Only with this status; may be repeated
    #[arg(long, value_name = "STATUS")]
    pub(crate) status: Vec<StatusArg>,
    /// Only of this workflow or task
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub(crate) workflow: Option<Name>,
    /// Only with this tag; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = tag)]
    pub(crate) tag: Vec<Tag>,
    /// Only those without a parent
    #[arg(long)]
    pub(crate) top_level: bool,
    /// The oldest first
    #[arg(long)]
    pub(crate) oldest_first: bool,
    /// At most so many
    #[arg(long, value_name = "COUNT", default_value = "100")]
    pub(crate) limit: NonZeroUsize,
}

/// Which execution to show, and which part of its journal.
#[derive(Debug, clap::Args)]
pub(crate) struct Show {
    /// The execution
    #[arg(value_parser = execution_id)]
    pub(crate) id: ExecutionId,
    /// The first journal entry to show
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) from: u64,
    /// The most journal entries to show; 0 shows the execution without its journal
    #[arg(long, value_name = "COUNT", default_value_t = 200)]
    pub(crate) limit: usize,
}

/// Which execution.
#[derive(Debug, clap::Args)]
pub(crate) struct Id {
    /// The execution
    #[arg(value_parser = execution_id)]
    pub(crate) id: ExecutionId,
}

/// A signal.
#[derive(Debug, clap::Args)]
pub(crate) struct Signal {
    /// The execution
    #[arg(value_parser = execution_id)]
    pub(crate) id: ExecutionId,
    /// The name that `ctx.recv` waits for
    #[arg(value_parser = name)]
    pub(crate) name: Name,
    /// The value, as JSON; `-` reads it from stdin
    #[arg(value_name = "JSON", default_value = "null", allow_hyphen_values = true)]
    pub(crate) value: String,
}

/// An order to one execution that may have a reason.
#[derive(Debug, clap::Args)]
pub(crate) struct Because {
    #[command(flatten)]
    pub(crate) plain: Plain,
    /// Why; it is recorded
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, value_parser = reason)]
    pub(crate) reason: String,
}

/// An order to one execution.
#[derive(Debug, clap::Args)]
pub(crate) struct Plain {
    /// The execution
    #[arg(value_parser = execution_id)]
    pub(crate) id: ExecutionId,
    /// Who asks; it is recorded
    #[arg(long, value_name = "NAME", env = "USER", default_value = "cli", hide_env_values = true, value_parser = reason)]
    pub(crate) by: String,
}

/// An order to a blocked execution. Where a step has run and its result could not be recorded, only a decision about it goes on.
#[derive(Debug, clap::Args)]
pub(crate) struct Unblock {
    #[command(flatten)]
    pub(crate) plain: Plain,
    /// Run this step again, whose result could not be recorded
    #[arg(long, value_name = "STEP", conflicts_with = "edit", allow_hyphen_values = true)]
    pub(crate) rerun: Option<String>,
    /// Give the result of this step, which could not be recorded; `STEP=-` reads the JSON from stdin
    #[arg(long, value_name = "STEP=JSON", allow_hyphen_values = true)]
    pub(crate) edit: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Verify {
    /// Put back first what can be derived: states and columns from journals, names from what repeats them
    #[arg(long)]
    pub(crate) repair: bool,
    /// Drop the unread messages of this execution that are damaged, so that it goes on without them: they were acknowledged, and are lost
    #[arg(long, value_name = "ID", requires = "repair", value_parser = execution_id)]
    pub(crate) drop_messages: Option<ExecutionId>,
    /// End this execution if it is damaged and could not be rebuilt: whoever waits for it is told, and its journal is deleted
    #[arg(long, value_name = "ID", requires = "repair", value_parser = execution_id)]
    pub(crate) discard: Option<ExecutionId>,
    /// Who asks; it is recorded
    #[arg(long, value_name = "NAME", env = "USER", default_value = "cli", hide_env_values = true, value_parser = reason)]
    pub(crate) by: String,
}

/// Where a backup goes.
#[derive(Debug, clap::Args)]
pub(crate) struct Backup {
    /// The new file, which must not exist yet
    #[arg(value_name = "FILE")]
    pub(crate) to: PathBuf,
}

/// Where a store comes from.
#[derive(Debug, clap::Args)]
pub(crate) struct Restore {
    /// The backup
    #[arg(value_name = "FILE")]
    pub(crate) from: PathBuf,
}

/// A status, as it is written everywhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatusArg(pub(crate) Status);

impl ValueEnum for StatusArg {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [StatusArg; Status::ALL.len()] = {
            let mut all = [StatusArg(Status::Scheduled); Status::ALL.len()];
            let mut index = 0;
            while index < all.len() {
                all[index] = StatusArg(Status::ALL[index]);
                index += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.word()))
    }
}

fn execution_id(text: &str) -> Result<ExecutionId, String> {
    ExecutionId::new(text).map_err(|invalid| invalid.to_string())
}

fn name(text: &str) -> Result<Name, String> {
    Name::new(text).map_err(|invalid| invalid.to_string())
}

fn namespace(text: &str) -> Result<Namespace, String> {
    Namespace::new(text).map_err(|invalid| invalid.to_string())
}

fn reason(text: &str) -> Result<String, String> {
    abide_core::check_reason("the text", text).map_err(|invalid| invalid.to_string())?;
    Ok(text.to_owned())
}

fn tag(text: &str) -> Result<Tag, String> {
    let (key, value) = text.split_once('=').ok_or("a tag is written KEY=VALUE")?;
    Ok(Tag { key: name(key)?, value: name(value)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        <Args as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn every_status_can_be_written() {
        let words: Vec<_> = StatusArg::value_variants().iter().map(|status| status.0.word()).collect();
        assert_eq!(words.len(), 10);
        assert_eq!(words.first(), Some(&"scheduled"));
        assert_eq!(words.last(), Some(&"damaged"));
    }

    #[test]
    fn a_tag_needs_an_equals_sign_and_two_names() {
        assert_eq!(tag("a=b=c").unwrap().value.as_str(), "b=c");
        assert_eq!(tag("a"), Err("a tag is written KEY=VALUE".to_owned()));
        assert_eq!(tag("=b"), Err(r#"name "" is empty"#.to_owned()));
    }
}
