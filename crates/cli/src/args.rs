//! The grammar of the command line.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

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
  7  result: the execution failed or was cancelled
  8  result: the execution has not ended, or is blocked
130  torture was interrupted, and had found nothing until then";

/// Durable execution for Rust: look into a store, steer its executions, see one survive a crash
#[derive(Debug, Parser)]
#[command(name = "abide", version, after_help = AFTER_HELP, max_term_width = 100)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Args {
    /// Returns the same arguments with `--json` folded into `--output`.
    pub(crate) fn settled(mut self) -> Self {
        if self.global.json {
            self.global.output = Output::Json;
        }
        self
    }
}

/// Options of every command.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Every command")]
pub(crate) struct Global {
    /// The store: sqlite:PATH, postgres://… or a path
    #[arg(long, env = "ABIDE_STORE", value_name = "URL", global = true)]
    pub(crate) store: Option<String>,
    /// The tenant
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = namespace, global = true)]
    pub(crate) namespace: Namespace,
    /// How data is written to stdout
    #[arg(short, long, value_name = "FORMAT", default_value = "table", global = true)]
    pub(crate) output: Output,
    /// The same as `--output json`
    #[arg(long, global = true, conflicts_with = "output")]
    pub(crate) json: bool,
}

/// The format of data: for people, as one JSON document, or as one JSON document per line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Table,
    Json,
    Jsonl,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run an order in a process that is killed on the way, and draw the result
    Demo(demo::Args),
    /// The process that `demo` kills
    #[command(hide = true)]
    DemoWorker(demo::WorkerArgs),
    /// List executions, the newest first
    List(List),
    /// Show one execution: its state, its journal, failed attempts, children
    Show(Show),
    /// Say in one sentence why an execution is in its current state
    Why(Id),
    /// Start a workflow or task, or attach to one that was started the same way
    Start(Start),
    /// Print the result of an execution
    Result(ResultOf),
    /// Write the recorded history of an execution, for a test that replays it
    Export(Export),
    /// Send a signal to an execution
    Signal(Signal),
    /// Ask an execution to wind down: its code sees the cancellation
    Cancel(Because),
    /// End an execution at once, without its code
    Terminate(Because),
    /// Let an execution start nothing new; running steps are finished and recorded
    Pause(Because),
    /// Let a paused execution continue
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
    /// Show enqueued starts and signals that no engine has taken, or that were refused
    Intake(Intake),
    /// Check the integrity of the store
    Verify(Verify),
    /// Bring the schema of the store to the version of this program
    Migrate(Migrate),
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

/// The rows of the intake table to show.
#[derive(Debug, clap::Args)]
pub(crate) struct Intake {
    /// At most so many that wait, and so many that were refused
    #[arg(long, value_name = "COUNT", default_value = "100")]
    pub(crate) limit: NonZeroUsize,
}

/// The executions to list.
#[derive(Debug, clap::Args)]
pub(crate) struct List {
    /// Only executions with this status; may be repeated, and may list several: `failed,blocked`
    #[arg(long, value_name = "STATUS", value_delimiter = ',')]
    pub(crate) status: Vec<StatusArg>,
    /// Only executions of this workflow or task
    #[arg(long, value_name = "NAME", value_parser = workflow_name)]
    pub(crate) workflow: Option<Name>,
    /// Only executions with this tag; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = tag)]
    pub(crate) tag: Vec<Tag>,
    /// Only executions without a parent
    #[arg(long)]
    pub(crate) top_level: bool,
    /// List the oldest first
    #[arg(long)]
    pub(crate) oldest_first: bool,
    /// The most executions to list
    #[arg(long, value_name = "COUNT", default_value = "100")]
    pub(crate) limit: NonZeroUsize,
    /// Only executions after this cursor, which a truncated list prints
    #[arg(long, value_name = "CURSOR")]
    pub(crate) after: Option<u64>,
}

/// The execution to show, and the part of its journal.
#[derive(Debug, clap::Args)]
pub(crate) struct Show {
    /// The execution
    #[arg(value_parser = execution_id)]
    pub(crate) id: ExecutionId,
    /// The first journal entry to show
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) from: u64,
    /// The most journal entries and unread messages to show; 0 shows the execution without them
    #[arg(long, value_name = "COUNT", default_value_t = 200)]
    pub(crate) limit: usize,
    /// The run whose journal to show; by default the current one
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) run: Option<u32>,
}

/// The execution to start.
#[derive(Debug, clap::Args)]
pub(crate) struct Start {
    /// The name of the workflow or task
    #[arg(value_name = "WORKFLOW", value_parser = workflow_name)]
    pub(crate) workflow: Name,
    /// Its input, as JSON; `-` reads it from stdin
    #[arg(value_name = "JSON", default_value = "null", allow_hyphen_values = true)]
    pub(crate) input: String,
    /// The id of the execution; by default a new one
    #[arg(long, value_name = "ID", value_parser = execution_id)]
    pub(crate) id: Option<ExecutionId>,
    /// Start a task, even if no worker has registered the name yet
    #[arg(long)]
    pub(crate) task: bool,
    /// The lane that the execution waits in; by default `default`
    #[arg(long, value_name = "NAME", value_parser = lane)]
    pub(crate) lane: Option<Name>,
    /// Higher goes first within a lane; by default 0
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub(crate) priority: Option<i16>,
    /// Begin after this time, such as `500ms`, `30s`, `5m`, `2h` or `3d`; by default at once
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) delay: Option<Duration>,
    /// Fail if the execution has not ended after this time, which includes the delay
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) deadline: Option<Duration>,
    /// A tag to find the execution by; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = tag)]
    pub(crate) tag: Vec<Tag>,
}

/// The execution whose result to print.
#[derive(Debug, clap::Args)]
pub(crate) struct ResultOf {
    /// The execution
    #[arg(value_parser = execution_id)]
    pub(crate) id: ExecutionId,
    /// Wait until the execution has ended
    #[arg(long)]
    pub(crate) wait: bool,
    /// Wait for at most this long, such as `500ms`, `30s`, `5m`, `2h` or `3d`
    #[arg(long, value_name = "DURATION", requires = "wait", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
}

/// One execution.
#[derive(Debug, clap::Args)]
pub(crate) struct Id {
    /// The execution
    #[arg(value_parser = execution_id)]
    pub(crate) id: ExecutionId,
}

/// The execution to export, and the file.
#[derive(Debug, clap::Args)]
pub(crate) struct Export {
    /// The execution
    #[arg(value_parser = execution_id)]
    pub(crate) id: ExecutionId,
    /// The new file, which must not exist yet; by default stdout
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

/// A signal to one execution.
#[derive(Debug, clap::Args)]
pub(crate) struct Signal {
    /// The execution
    #[arg(value_parser = execution_id)]
    pub(crate) id: ExecutionId,
    /// The name that `ctx.recv` waits for
    #[arg(value_parser = signal_name)]
    pub(crate) name: Name,
    /// The value, as JSON; `-` reads it from stdin
    #[arg(value_name = "JSON", default_value = "null", allow_hyphen_values = true)]
    pub(crate) value: String,
    /// A key that makes the signal repeatable: however often it is sent, the execution gets one
    /// signal of this name and key
    #[arg(long, value_name = "KEY", value_parser = key)]
    pub(crate) key: Option<Name>,
}

/// An order to one execution, with an optional reason.
#[derive(Debug, clap::Args)]
pub(crate) struct Because {
    #[command(flatten)]
    pub(crate) plain: Plain,
    /// The reason; it is recorded
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, value_parser = reason)]
    pub(crate) reason: String,
}

/// An order to one execution.
#[derive(Debug, clap::Args)]
pub(crate) struct Plain {
    /// The execution
    #[arg(value_parser = execution_id)]
    pub(crate) id: ExecutionId,
    /// The name of the sender; it is recorded
    #[arg(long, value_name = "NAME", env = "USER", default_value = "cli", hide_env_values = true, value_parser = reason)]
    pub(crate) by: String,
}

/// An order to a blocked execution. If a step ran and its result could not be recorded, only a
/// decision about that step lets the execution continue.
#[derive(Debug, clap::Args)]
pub(crate) struct Unblock {
    #[command(flatten)]
    pub(crate) plain: Plain,
    /// Run this step again, whose result could not be recorded
    #[arg(long, value_name = "STEP", conflicts_with = "edit", allow_hyphen_values = true)]
    pub(crate) rerun: Option<String>,
    /// Set the result of this step, which could not be recorded; `STEP=-` reads the JSON from stdin
    #[arg(long, value_name = "STEP=JSON", allow_hyphen_values = true)]
    pub(crate) edit: Option<String>,
    /// Accept the record of this operation, though the code now passes another input
    #[arg(long, value_name = "OP", conflicts_with_all = ["rerun", "edit"], allow_hyphen_values = true)]
    pub(crate) accept: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Verify {
    /// First restore everything that can be derived: states and columns from journals, names from
    /// their copies
    #[arg(long)]
    pub(crate) repair: bool,
    /// Drop the damaged unread messages of this execution, so that it continues without them: they
    /// were acknowledged, and are lost
    #[arg(long, value_name = "ID", requires = "repair", value_parser = execution_id)]
    pub(crate) drop_messages: Option<ExecutionId>,
    /// End this execution if it is damaged and could not be rebuilt: waiting clients get an error,
    /// and its journal is deleted
    #[arg(long, value_name = "ID", requires = "repair", value_parser = execution_id)]
    pub(crate) discard: Option<ExecutionId>,
    /// The name of the sender; it is recorded
    #[arg(long, value_name = "NAME", env = "USER", default_value = "cli", hide_env_values = true, value_parser = reason)]
    pub(crate) by: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Migrate {
    /// Only say what would be done
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// The target of a backup.
#[derive(Debug, clap::Args)]
pub(crate) struct Backup {
    /// The new file, which must not exist yet
    #[arg(value_name = "FILE")]
    pub(crate) to: PathBuf,
}

/// The source of a store.
#[derive(Debug, clap::Args)]
pub(crate) struct Restore {
    /// The backup file
    #[arg(value_name = "FILE")]
    pub(crate) from: PathBuf,
}

/// A status, written as everywhere else.
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

fn workflow_name(text: &str) -> Result<Name, String> {
    field("workflow name", text)
}

fn signal_name(text: &str) -> Result<Name, String> {
    field("signal name", text)
}

/// Reads a whole number with its unit.
fn duration(text: &str) -> Result<Duration, String> {
    let at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err("a duration is written 500ms, 30s, 5m, 2h or 3d".to_owned()),
    };
    let ms = number.parse().ok().and_then(|number: u64| number.checked_mul(unit_ms));
    ms.map(Duration::from_millis).ok_or_else(|| format!("{number:?} is no number of {unit}"))
}

fn lane(text: &str) -> Result<Name, String> {
    field("lane", text)
}

fn key(text: &str) -> Result<Name, String> {
    field("idempotency key", text)
}

fn field(what: &'static str, text: &str) -> Result<Name, String> {
    Name::of_field(what, text).map_err(|invalid| invalid.to_string())
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
    Ok(Tag { key: field("tag key", key)?, value: field("tag value", value)? })
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
    fn a_duration_is_a_number_and_a_unit() {
        let rows = [("0ms", 0), ("30s", 30_000), ("5m", 300_000), ("2h", 7_200_000), ("3d", 259_200_000)];
        let rows = rows.map(|(text, ms)| (text, Some(ms)));
        let faults =
            ["", "1", "s", "-1s", "1.5s", "1w", "1 s", "18446744073709551616s", "18446744073709551615s"];
        for (text, ms) in rows.into_iter().chain(faults.map(|text| (text, None))) {
            assert_eq!(duration(text).ok(), ms.map(Duration::from_millis), "{text}");
        }
    }

    #[test]
    fn a_tag_needs_an_equals_sign_and_two_names() {
        assert_eq!(tag("a=b=c").unwrap().value.as_str(), "b=c");
        assert_eq!(tag("a"), Err("a tag is written KEY=VALUE".to_owned()));
        assert_eq!(tag("=b"), Err(r#"tag key "" is empty"#.to_owned()));
    }
}
