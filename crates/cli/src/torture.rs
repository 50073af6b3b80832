//! `abide torture`: the simulator's programs in real processes, which it kills, stops and
//! continues.

use std::cell::Cell;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use abide::StoreUrl;
use abide_core::{Namespace, text};
use abide_engine::{Runtime, TokioRuntime};
use abide_sim::torture::{Interrupt, Progress, Report, Torture, Trouble, play};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::args::{Global, Output};
use crate::command_error::{Code, CommandError};
use crate::connect;
use crate::output;

/// The shortest torture: three seconds. Nothing happens in less.
const MINUTES_MIN: f64 = 0.05;

/// The longest torture: four weeks.
const MINUTES_MAX: f64 = 28.0 * 24.0 * 60.0;

/// The interval between two lines of progress, if stderr is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// The length of the bar.
const BAR_LENGTH: usize = 20;

/// The end of the range of random seeds: small enough to read out loud.
const SEED_END: u64 = 1_000_000;

const AFTER_HELP: &str = "\
The store is made if there is none. It must be used by nobody else, and hold nothing but what earlier tortures left.
The exit code is 0 if every promise held, 6 if one was broken, 130 if Ctrl-C ended it before anything was found.";

/// Options of `abide torture`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// The approximate duration in minutes, for example 10 or 0.5
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = minutes)]
    minutes: Duration,
    /// The seed of the programs and the faults; by default it is chosen and printed
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Write the report to this file, as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// The folder for what the processes see; by default beside the file of the store, or in the
    /// system's folder for temporary files
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Write the report to stdout as JSON; the same as --output json
    #[arg(long)]
    json: bool,
}

fn minutes(text: &str) -> Result<Duration, String> {
    let minutes: f64 = text.parse().map_err(|_| "it is not a number")?;
    if minutes.is_nan() || minutes < MINUTES_MIN {
        return Err(format!("it must be at least {MINUTES_MIN}, which is three seconds"));
    }
    if minutes > MINUTES_MAX {
        return Err(format!("it must be at most {MINUTES_MAX}, which is four weeks"));
    }
    Ok(Duration::from_secs_f64(minutes * 60.0))
}

/// Tortures the store.
pub(crate) fn run(global: &Global, args: &Args) -> Result<(), CommandError> {
    let store = connect::named(global)?;
    if global.namespace != Namespace::default() {
        return Err(CommandError::usage("torture needs a store of its own, and no namespace"));
    }
    let mut file = args.report.as_deref().map(ReportFile::open).transpose()?;
    // This very thread starts the processes, because they die with the thread that started them.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(torture(store, args))?;
    // A teardown of the runtime once panicked: it met the heartbeat's thread asleep on its timer.
    std::mem::forget(runtime);
    let document = report.document();
    // A failure of the file must not lose the report on stdout, nor the other way around: each may
    // fail after hours of work.
    let printed = match (args.json, global.output) {
        (false, Output::Table) => output::write(page(&report).as_bytes()),
        (true, Output::Table) => output::document(&document, Output::Json),
        (_, format) => output::document(&document, format),
    };
    let kept = file.as_mut().map_or(Ok(()), |file| file.write(&format!("{document:#}\n")));
    match verdict(&report) {
        Ok(()) => kept.and(printed),
        Err(found) => {
            if let Err(unwritten) = kept {
                unwritten.report();
            }
            Err(found)
        }
    }
}

fn verdict(report: &Report) -> Result<(), CommandError> {
    match (report.violations.len(), report.is_interrupted) {
        (0, false) => Ok(()),
        (0, true) => Err(CommandError::new(Code::Interrupted, "interrupted; nothing was found until then")),
        (1, _) => Err(CommandError::new(Code::Violated, "found 1 thing that must not be")),
        (count, _) => {
            Err(CommandError::new(Code::Violated, format!("found {count} things that must not be")))
        }
    }
}

/// Runs one process of a torture.
pub(crate) fn process() -> Result<(), CommandError> {
    play().map_err(CommandError::failed)
}

async fn torture(store: StoreUrl, args: &Args) -> Result<Report, CommandError> {
    let runtime = TokioRuntime::current().ok_or_else(|| CommandError::failed("there is no runtime"))?;
    let seed = args.seed.unwrap_or_else(|| runtime.random() % SEED_END);
    let command = vec![std::env::current_exe()?.into_os_string(), "torture-process".into()];
    let mut signals = Signals::new()?;
    let folder = args.dir.clone().unwrap_or_else(|| folder_of(&store));
    let torture = Torture { store: store.clone(), folder, duration: args.minutes, seed, command };
    let prepared = torture.prepare().await.map_err(|trouble| failure(&store, trouble))?;
    output::say(format_args!("torturing {:?} with seed {seed}", name_of(&store)));
    let (interrupt, teller) = (Interrupt::default(), Teller::new());
    let tell = |progress: &Progress<'_>| teller.tell(progress);
    let mut running = std::pin::pin!(prepared.run(interrupt.clone(), &tell));
    let mut count = 0;
    let ran = loop {
        tokio::select! {
            ran = &mut running => break ran,
            () = signals.next() => {
                count += 1;
                interrupt.set();
                if count > 1 {
                    return Err(CommandError::new(Code::Interrupted, "interrupted"));
                }
            }
        }
    };
    teller.end();
    ran.map_err(|trouble| failure(&store, trouble))
}

/// Returns the folder beside the file of a store, or one for a server.
fn folder_of(store: &StoreUrl) -> PathBuf {
    match store {
        StoreUrl::File(path) => {
            let mut folder = path.clone().into_os_string();
            folder.push("-torture");
            folder.into()
        }
        _ => std::env::temp_dir().join("abide-torture"),
    }
}

/// Returns the name of a store for messages: its path, or its URL without a password.
fn name_of(store: &StoreUrl) -> String {
    match store {
        StoreUrl::File(path) => path.display().to_string(),
        other => other.to_string(),
    }
}

fn failure(store: &StoreUrl, trouble: Trouble) -> CommandError {
    let name = name_of(store);
    match trouble {
        Trouble::Store(problem) => CommandError::new(Code::Unavailable, problem),
        Trouble::Refused(problem) => {
            CommandError::new(Code::Refused, format!("the store {name:?}: {problem}"))
        }
        Trouble::Failed(error) => CommandError::failed(format!("the torture of {name:?} failed: {error}")),
    }
}

/// The signals that ask this process to end.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> Result<Self, CommandError> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

/// The file for the report. Its old content stays until there is a report.
struct ReportFile {
    path: PathBuf,
    file: File,
    is_new: bool,
    is_written: bool,
}

impl ReportFile {
    /// Opens the file before hours of work, not after them.
    fn open(path: &Path) -> Result<Self, CommandError> {
        let is_new = !path.exists();
        let file = OpenOptions::new().create(true).write(true).truncate(false).open(path);
        let file = file.map_err(|error| unwritable(path, &error))?;
        Ok(Self { path: path.to_owned(), file, is_new, is_written: false })
    }

    fn write(&mut self, text: &str) -> Result<(), CommandError> {
        self.is_written = true;
        self.replace(text).map_err(|error| unwritable(&self.path, &error))
    }

    fn replace(&mut self, text: &str) -> io::Result<()> {
        if !self.is_in_place() {
            self.file = File::create(&self.path)?;
        }
        self.file.set_len(0)?;
        self.file.write_all(text.as_bytes())
    }

    /// Whether the path still leads to the open file. If it was removed or moved meanwhile, nobody
    /// would find the report.
    fn is_in_place(&self) -> bool {
        let place = |found: std::fs::Metadata| (found.dev(), found.ino());
        let (open, there) = (self.file.metadata().map(place), std::fs::metadata(&self.path).map(place));
        open.is_ok_and(|open| there.is_ok_and(|there| there == open))
    }
}

impl Drop for ReportFile {
    fn drop(&mut self) {
        if self.is_new && !self.is_written {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn unwritable(path: &Path, error: &io::Error) -> CommandError {
    CommandError::failed(format!("the report {path:?} cannot be written: {error}"))
}

/// Reports progress on stderr: a bar on a terminal, a line now and then elsewhere.
struct Teller {
    is_terminal: bool,
    told: Cell<Option<Duration>>,
}

impl Teller {
    fn new() -> Self {
        Self { is_terminal: io::stderr().is_terminal(), told: Cell::new(None) }
    }

    fn tell(&self, progress: &Progress<'_>) {
        let is_due = self.told.get().is_none_or(|told| progress.elapsed.saturating_sub(told) >= LINE_EVERY);
        if self.is_terminal {
            // If nobody reads stderr, the message is lost.
            let _ = write!(io::stderr().lock(), "\r\x1b[K{} {}", bar(progress), line(progress));
        } else if is_due {
            self.told.set(Some(progress.elapsed));
            output::say(format_args!("{}", line(progress)));
        }
    }

    fn end(&self) {
        if self.is_terminal {
            let _ = write!(io::stderr().lock(), "\r\x1b[K");
        }
    }
}

fn bar(progress: &Progress<'_>) -> String {
    let share = progress.elapsed.as_secs_f64() / progress.duration.as_secs_f64();
    let full = ((share * BAR_LENGTH as f64) as usize).min(BAR_LENGTH);
    format!("[{}{}]", "#".repeat(full), "-".repeat(BAR_LENGTH - full))
}

fn line(progress: &Progress<'_>) -> String {
    let Progress { what, elapsed, duration, report } = progress;
    format!(
        "{what}: {} of {} s, {} kills, {} stops, {} scenarios, {} audited executions, {} violations",
        elapsed.as_secs(),
        duration.as_secs(),
        report.kills,
        report.stops,
        report.scenarios,
        report.executions,
        report.violations.len()
    )
}

/// Renders the report for people.
fn page(report: &Report) -> String {
    let mut page = String::new();
    let verdict = if report.violations.is_empty() { "sound" } else { "NOT SOUND" };
    let until = if report.is_interrupted { ", interrupted" } else { "" };
    let seconds = report.duration.as_secs_f64();
    let _ =
        writeln!(page, "{verdict}: seed {}, {seconds:.0} s in {} rounds{until}", report.seed, report.rounds);
    let _ = writeln!(
        page,
        "{} scenarios, {} executions, {} operations, {} journal entries",
        report.scenarios, report.executions, report.operations, report.entries
    );
    let _ = writeln!(
        page,
        "{} processes, {} kills ({} with a closure under way, {} of clients), {} stops",
        report.processes, report.kills, report.kills_under_way, report.client_kills, report.stops
    );
    for violation in &report.violations {
        let place = match violation.scenario {
            Some(seed) => format!("round {}, scenario {seed}", violation.round),
            None => format!("round {}", violation.round),
        };
        let _ = writeln!(page, "WRONG ({place}): {}", text::clean(&violation.what));
    }
    if let Some(kept) = &report.kept {
        let _ = writeln!(
            page,
            "what was seen is kept in {kept:?}; the stories are in the report (--report FILE or --json)"
        );
    }
    page
}
