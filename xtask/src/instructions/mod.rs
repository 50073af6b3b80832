//! The instructions that the works of the benchmark cost, by cause.
//!
//! The number of instructions does not depend on the load of the machine, so it shows a change of a
//! few per cent where wall time shows nothing. Each work runs twice under callgrind: once with a
//! first round alone, once with more rounds after it. The difference, divided by the items of those
//! rounds, is the cost of one item; the costs that occur once in a process drop out.
//! `docs/guide/bench.md` explains how to read the table.

mod baseline;
mod profile;

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use clap::ValueEnum;

use self::baseline::Baseline;
use self::profile::{Cause, Profile};
use crate::workspace::Workspace;
use crate::{Result, packages, process};

/// Callers that wait for this long look into the store, in case they missed the end. In W1 that
/// adds up to 6 % to a run that takes longer.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// The works to measure.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only this work; may be repeated
    #[arg(long, value_name = "NAME", ignore_case = true)]
    work: Vec<Work>,
    /// Write the measured costs into the baseline, as UPDATE_EXPECT=1 does
    #[arg(long)]
    update: bool,
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

    /// Returns the instructions of an item that are wanted, and those that are still accepted.
    fn goal_and_must(self) -> [f64; 2] {
        match self {
            Self::W1 => [50_000.0, 62_000.0],
            Self::W3 => [20_000.0, 27_000.0],
            Self::W4 => [65_000.0, 88_000.0],
        }
    }

    /// Returns which of the two a total reaches, in the words of `abide bench`.
    fn reached(self, total: f64) -> &'static str {
        let [goal, must] = self.goal_and_must();
        match () {
            () if total <= goal => "goal",
            () if total <= must => "must",
            () => "MISSED",
        }
    }
}

pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    // Read before the minutes of measuring, so that a broken line is told at once.
    let mut baseline = Baseline::read(workspace)?;
    packages::ensure("valgrind", || packages::runs("valgrind"))?;
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
    print!("{}", table(&baseline, &columns));
    if arguments.update || env::var_os("UPDATE_EXPECT").is_some() {
        columns.iter().for_each(|(work, profile)| baseline.set(*work, profile));
        baseline.write(workspace)?;
    }
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

/// Returns the measured costs beside the baseline, and the totals beside the goals.
fn table(baseline: &Baseline, columns: &[(Work, Profile)]) -> String {
    let line = |name: &str, cells: &dyn Fn(&(Work, Profile)) -> [String; 2]| {
        let cells = columns.iter().flat_map(cells).map(|cell| format!("{cell:>10}"));
        format!("{name:<24}{}\n", cells.collect::<String>())
    };
    let counts = |before: f64, now: f64| [format!("{before:.0}"), format!("{now:.0}")];
    let beside = |text: String| [String::new(), text];
    let mut text =
        line("instructions an item", &|(work, _)| [format!("{} before", work.name()), "now".to_owned()]);
    for cause in Cause::ALL {
        text +=
            &line(cause.name(), &|(work, profile)| counts(baseline.of(*work).of(cause), profile.of(cause)));
    }
    text += &line("all", &|(work, profile)| counts(baseline.of(*work).total(), profile.total()));
    text += &line("of the baseline", &|(work, profile)| {
        beside(format!("{:.1} %", profile.total() / baseline.of(*work).total() * 100.0))
    });
    text += &line("goal", &|(work, _)| beside(format!("{:.0}", work.goal_and_must()[0])));
    text += &line("must", &|(work, _)| beside(format!("{:.0}", work.goal_and_must()[1])));
    text + &line("reached", &|(work, profile)| beside(work.reached(profile.total()).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_total_is_beside_its_baseline_and_its_goals() {
        let mut baseline = Baseline::default();
        let all =
            |count| Cause::ALL.into_iter().fold(Profile::default(), |all, cause| all.with(cause, count));
        let (old, new) = (all(7_000.0), all(6_000.0));
        baseline.set(Work::W1, &old);
        let table = table(&baseline, &[(Work::W1, new)]);
        let rows = [
            "instructions an item     W1 before       now",
            "SQLite                        7000      6000",
            "all                          70000     60000",
            "of the baseline                       85.7 %",
            "goal                                   50000",
            "must                                   62000",
            "reached                                 must",
        ];
        for row in rows {
            assert!(table.lines().any(|line| line == row), "{row}\n{table}");
        }
    }

    #[test]
    fn a_total_reaches_the_goal_the_must_or_neither() {
        let rows = [(20_000.0, "goal"), (20_001.0, "must"), (27_000.0, "must"), (27_001.0, "MISSED")];
        for (total, expected) in rows {
            assert_eq!(Work::W3.reached(total), expected, "{total}");
        }
    }
}
