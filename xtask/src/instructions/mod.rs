//! The instructions that the works of the benchmark cost, by cause.
//!
//! The number of instructions does not depend on the load of the machine, so it shows a change of a
//! few per cent where wall time shows nothing. Each work runs twice under callgrind: once with a
//! first round alone, once with more rounds after it. The difference, divided by the items of those
//! rounds, is the cost of one item; the costs that occur once in a process drop out.
//! `docs/guide/bench.md` explains how to read the table.

mod profile;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::ValueEnum;

use self::profile::{Cause, Profile};
use crate::workspace::Workspace;
use crate::{Result, process};

/// Callers that wait for this long look into the store, in case they missed the end. In W1 that
/// adds up to 6 % to a run that takes longer.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// The works to measure.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only this work; may be repeated
    #[arg(long, value_name = "NAME", ignore_case = true)]
    work: Vec<Work>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "UPPER")]
enum Work {
    W1,
    W3,
    W4,
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Self::W1 => "W1",
            Self::W3 => "W3",
            Self::W4 => "W4",
        }
    }

    /// Returns the number of measured rounds, and of items per round.
    fn rounds(self) -> (u64, u64) {
        match self {
            Self::W1 => (2, 5_000),
            Self::W3 => (2, 10_000),
            Self::W4 => (8, 1_000),
        }
    }

    /// Returns the cost of an item at b16da42, before rows had checksums and trees had an index:
    /// the mean of two measurements by this method, in the order of the causes.
    fn before(self) -> Profile {
        Profile::new(match self {
            Self::W1 => {
                [42_900.0, 3_710.0, 4_050.0, 6_270.0, 11_760.0, 1_660.0, 8_990.0, 4_550.0, 4_710.0, 13_560.0]
            }
            Self::W3 => [13_690.0, 1_340.0, 1_820.0, 3_080.0, 7_200.0, 760.0, 2_230.0, 890.0, 980.0, 4_770.0],
            Self::W4 => {
                [73_590.0, 5_560.0, 5_100.0, 9_540.0, 17_520.0, 1_580.0, 8_730.0, 10_850.0, 2_360.0, 21_560.0]
            }
        })
    }
}

pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let found = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    if !found.is_ok_and(|status| status.success()) {
        return Err("valgrind is missing; on Debian and Ubuntu: apt-get install valgrind".into());
    }
    process::run(&mut workspace.cargo([
        "build",
        "--release",
        "--package",
        "abide-cli",
        "--example",
        "works",
    ]))?;
    let folder = workspace.target().join("instructions");
    let works: Vec<Work> = Work::value_variants()
        .iter()
        .copied()
        .filter(|work| arguments.work.is_empty() || arguments.work.contains(work))
        .collect();
    let mut columns = Vec::new();
    for work in works {
        columns.push((work, cost_of_item(workspace, &folder, work)?));
    }
    print!("{}", table(&columns));
    Ok(())
}

/// Measures the cost of one item of a work.
fn cost_of_item(workspace: &Workspace, folder: &Path, work: Work) -> Result<Profile> {
    let (round_count, item_count) = work.rounds();
    let mut profiles = Vec::new();
    for round_count in [0, round_count] {
        eprintln!("{}: {round_count} rounds of {item_count} items after a first one", work.name());
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
        fs::create_dir_all(folder)?;
        let command = &mut Command::new("valgrind");
        command.args(["--quiet", "--tool=callgrind", "--fair-sched=yes", "--separate-threads=yes"]);
        command.arg(format!("--callgrind-out-file={}", folder.join("callgrind").display()));
        command.arg(workspace.target().join("release/examples/works"));
        command.args([work.name(), &round_count.to_string()]).arg(folder.join("works.db"));
        let (outcome, duration) = process::timed(|| process::run(command));
        outcome?;
        if duration > LOOK_AGAIN {
            eprintln!("that took {} s: callers looked again, which counts; repeat it", duration.as_secs());
        }
        profiles.push(Profile::read(folder)?);
    }
    Ok(profiles[1].less(&profiles[0]).divided_by((round_count * item_count) as f64))
}

fn table(columns: &[(Work, Profile)]) -> String {
    let line = |name: &str, cells: &dyn Fn(&(Work, Profile)) -> [String; 2]| {
        let cells = columns.iter().flat_map(cells).map(|cell| format!("{cell:>10}"));
        format!("{name:<24}{}\n", cells.collect::<String>())
    };
    let counts = |before: f64, now: f64| [format!("{before:.0}"), format!("{now:.0}")];
    let mut text =
        line("instructions an item", &|(work, _)| [format!("{} then", work.name()), "now".to_owned()]);
    for cause in Cause::ALL {
        text += &line(cause.name(), &|(work, profile)| counts(work.before().of(cause), profile.of(cause)));
    }
    text += &line("all", &|(work, profile)| counts(work.before().total(), profile.total()));
    text + &line("", &|(work, profile)| {
        [String::new(), format!("{:.1} %", profile.total() / work.before().total() * 100.0)]
    })
}
