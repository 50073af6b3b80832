//! The command line of the simulator; `cargo xtask sim` builds and calls it.

mod coverage;
mod plant;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::ops::{ControlFlow, Range};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use abide_sim::scenario::Scenario;
use abide_sim::{
    FAULT_COUNT_MIN, OPERATION_COUNT_MIN, Report, Totals, each, live, on_memory, on_sqlite, run, shrink,
    story,
};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, ValueEnum};

use crate::coverage::Coverage;

/// Worlds consist of small objects that come and go: with the system's allocator they take a tenth
/// longer.
#[global_allocator]
static ALLOCATOR: abide_counting::Mimalloc = abide_counting::Mimalloc;

/// Lives through simulated worlds and reports violations.
// An option that goes with one way to choose worlds is refused with the others rather than ignored.
// `requires` alone does not achieve this: it is not checked for an option that conflicts with
// another given option.
#[derive(Parser)]
#[command(name = "abide-sim", version)]
struct Arguments {
    /// One seed: its story and all its violations
    #[arg(long, value_name = "N", conflicts_with_all = ["seeds", "scenario"])]
    seed: Option<u64>,
    /// Many seeds, for example 0..10000; stops at the first that fails
    #[arg(long, value_name = "A..B", value_parser = range, conflicts_with = "scenario")]
    seeds: Option<Range<u64>>,
    /// A scenario from a file, as `--save` writes it
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// The store to live on, instead of the choice of the seed or the file: every eighth seed has
    /// SQLite
    #[arg(long, value_name = "STORE")]
    store: Option<StoreKind>,
    /// Cut a failing scenario down to the parts that it needs to fail
    #[arg(long, conflicts_with = "seeds")]
    shrink: bool,
    /// With --shrink: begin no further world after N seconds, and print the smallest scenario so
    /// far
    #[arg(long, value_name = "N", default_value_t = 120, requires = "shrink")]
    shrink_seconds: u64,
    /// Write the scenario that was run or cut down to this file
    #[arg(long, value_name = "FILE", conflicts_with = "seeds")]
    save: Option<PathBuf>,
    /// With --seeds: add a line about the range to this file
    #[arg(long, value_name = "FILE", requires = "seeds", conflicts_with_all = ["seed", "scenario"])]
    record: Option<PathBuf>,
    /// With --seeds: fail if a line of this file never happened; UPDATE_EXPECT=1 adds new lines,
    /// and looks for further seeds in which rare ones happen
    #[arg(long, value_name = "FILE", requires = "seeds", conflicts_with_all = ["seed", "scenario"])]
    coverage: Option<PathBuf>,
    /// With --seeds: go on after a seed that fails
    #[arg(long, requires = "seeds", conflicts_with_all = ["seed", "scenario"])]
    keep_going: bool,
    /// Plant a bug first, to check that it is caught
    #[arg(long, value_name = "NAME")]
    plant: Option<String>,
    /// List the bugs that can be planted
    #[arg(long)]
    bugs: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum StoreKind {
    Memory,
    Sqlite,
}

impl StoreKind {
    fn word(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite => "sqlite",
        }
    }
}

impl Arguments {
    /// Moves a scenario to the requested store.
    fn placed(&self, scenario: Scenario) -> Scenario {
        match self.store {
            None => scenario,
            Some(StoreKind::Memory) => on_memory(scenario),
            Some(StoreKind::Sqlite) => on_sqlite(scenario),
        }
    }
}

impl Arguments {
    /// Returns the command that repeats one of many seeds. Only a special build has bugs to plant.
    fn repeat(&self, seed: u64) -> String {
        let build = match self.plant {
            None => "cargo xtask sim",
            Some(_) => "cargo run --package abide-sim --features planted --",
        };
        let store = self.store.map(|store| format!(" --store {}", store.word())).unwrap_or_default();
        let plant = self.plant.as_ref().map(|bug| format!(" --plant {bug}")).unwrap_or_default();
        format!("{build} --seed {seed} --shrink{store}{plant}")
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    abide_sim::quiet_panics();
    if arguments.bugs {
        println!("{}", plant::names());
        return ExitCode::SUCCESS;
    }
    let planted = arguments.plant.as_deref().map_or(Ok(()), plant::plant);
    match planted.and_then(|()| chosen(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Lives through the chosen worlds.
fn chosen(arguments: &Arguments) -> Result<(), String> {
    match (&arguments.seeds, &arguments.scenario, arguments.seed) {
        (Some(seeds), _, _) => many(arguments, seeds.clone()),
        (None, Some(path), _) => {
            let scenario = arguments.placed(read(path)?);
            one(arguments, || (scenario.clone(), run(&scenario)))
        }
        (None, None, Some(seed)) => one(arguments, || live(seed, |scenario| arguments.placed(scenario))),
        (None, None, None) => {
            let what = "say which: --seed N, --seeds A..B or --scenario FILE";
            Arguments::command().error(ErrorKind::MissingRequiredArgument, what).exit()
        }
    }
}

fn range(text: &str) -> Result<Range<u64>, String> {
    let parts = text.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    match parts {
        Some((from, to)) if from < to => Ok(from..to),
        Some(_) => Err("the range is empty".to_owned()),
        None => Err("a range is two numbers, for example 0..1000".to_owned()),
    }
}

fn read(path: &PathBuf) -> Result<Scenario, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let scenario: Scenario =
        serde_json::from_str(&text).map_err(|error| format!("{} is no scenario: {error}", path.display()))?;
    scenario.check().map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(scenario)
}

fn one(arguments: &Arguments, live: impl FnOnce() -> (Scenario, Report)) -> Result<(), String> {
    // Fail before minutes of work, not after them.
    arguments.save.as_ref().map(open).transpose()?;
    let lived = live();
    let (scenario, report) = if arguments.shrink { cut_down(&lived.0, arguments) } else { lived };
    println!("{}", story(&scenario, &report.targets));
    println!("{report}");
    if let Some(path) = &arguments.save {
        let text = serde_json::to_string_pretty(&scenario).map_err(|error| error.to_string())?;
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if report.violations.is_empty() { Ok(()) } else { Err(format!("{} violations", report.violations.len())) }
}

/// Cuts a scenario down within the requested time, and reports how far that went.
#[expect(clippy::disallowed_methods, reason = "a person waits for the answer, in real time")]
fn cut_down(scenario: &Scenario, arguments: &Arguments) -> (Scenario, Report) {
    let (began_at, seconds) = (Instant::now(), arguments.shrink_seconds);
    let shrunk = shrink(scenario, || began_at.elapsed() < Duration::from_secs(seconds));
    let count = shrunk.attempt_count;
    match shrunk.is_smallest {
        _ if shrunk.report.violations.is_empty() => {
            println!("it does not fail: there is nothing to cut down");
        }
        true => println!("{count} smaller ones were tried: nothing can be taken away"),
        false => println!(
            "{count} smaller ones were tried in {:.0} seconds; there may be smaller ones yet, \
             which --shrink-seconds N gives time to find",
            began_at.elapsed().as_secs_f64()
        ),
    }
    (shrunk.scenario, shrunk.report)
}

fn many(arguments: &Arguments, seeds: Range<u64>) -> Result<(), String> {
    // Fail before hours of work, not after them.
    let mut record = arguments.record.as_ref().map(open).transpose()?;
    let coverage = arguments.coverage.as_ref().map(Coverage::open).transpose()?;
    let mut totals = Totals::default();
    let mut failed = Vec::new();
    let lived = |seed| live(seed, |scenario| arguments.placed(scenario)).1;
    each(seeds.clone(), lived, |seed, report| {
        totals.add(&report);
        let wrong = match report.violations.is_empty() {
            true if report.is_enough() => return ControlFlow::Continue(()),
            true => {
                format!("less than {OPERATION_COUNT_MIN} operations or {FAULT_COUNT_MIN} faults: {report}")
            }
            false => report.violations.join("\n    "),
        };
        println!("seed {seed}: {wrong}");
        failed.push(seed);
        if arguments.keep_going { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    println!("{totals}");
    if let Some(record) = &mut record {
        let (from, to, trace) = (seeds.start, seeds.end, totals.trace_hash);
        let version = env!("CARGO_PKG_VERSION");
        let line = serde_json::json!({
            "seeds": format!("{from}..{to}"), "store": arguments.store.map(StoreKind::word),
            "sqlite": totals.sqlite_count, "version": version, "build": build(), "trace": format!("{trace:016x}"),
            "operations": totals.operation_count, "faults": totals.fault_count(), "failed": failed,
        });
        writeln!(record, "{line}").map_err(|error| format!("the record cannot be written: {error}"))?;
    }
    match failed.first() {
        None => coverage.map_or(Ok(()), |coverage| coverage.check(&totals, &seeds, lived)),
        Some(seed) => {
            Err(format!("{} of the seeds fail; to repeat: {}", failed.len(), arguments.repeat(*seed)))
        }
    }
}

/// Opens a file for a later write. Its content stays until then.
fn open(path: &PathBuf) -> Result<File, String> {
    let opened = OpenOptions::new().create(true).append(true).open(path);
    opened.map_err(|error| format!("{}: {error}", path.display()))
}

/// Returns a name for this build: the commit, if `cargo xtask sim` built it, or else the length and
/// the modification time of the executable, by which abide itself distinguishes builds.
fn build() -> Option<String> {
    let commit = std::env::var("ABIDE_COMMIT").ok().filter(|commit| !commit.is_empty());
    let executable = || {
        let file = std::fs::metadata(std::env::current_exe().ok()?).ok()?;
        let changed = file.modified().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
        Some(format!("executable of {} bytes, {} s", file.len(), changed.as_secs()))
    };
    commit.or_else(executable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeat_plants_the_same_bug_on_the_same_store() {
        let rows: [(&[&str], &str); 3] = [
            (&[], "cargo xtask sim --seed 7 --shrink"),
            (&["--store", "sqlite"], "cargo xtask sim --seed 7 --shrink --store sqlite"),
            (
                &["--plant", "timer-set-again"],
                "cargo run --package abide-sim --features planted -- --seed 7 --shrink --plant timer-set-again",
            ),
        ];
        for (given, expected) in rows {
            let all = ["abide-sim", "--seeds", "0..9"].iter().chain(given);
            assert_eq!(Arguments::parse_from(all).repeat(7), expected);
        }
    }
}
