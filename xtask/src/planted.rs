//! `cargo xtask planted`: plants one bug after the other, and sees that a test catches each.
//!
//! Which test is to catch which bug stands in `docs/planted.md`, and nowhere else: the table that people read is the one that is run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;

use crate::process::{self, Group};
use crate::workspace::Workspace;
use crate::{Result, sim};

/// The table.
const TABLE: &str = "docs/planted.md";

/// What the table says of a bug that the simulator is to catch.
const SIMULATOR: &str = "cargo xtask sim";

/// What the table says behind a test that a bug turns in circles: to run into the limit is its way to fail.
const HANGS: &str = ", hangs";

/// A test that takes longer hangs. The slowest one of the table gives an answer 50 s to come, and fails then.
const TEST_LIMIT: Duration = Duration::from_secs(120);

/// The same for the simulator. It has ten thousand seeds when nothing is to be found, and such a build lives through ten a second.
const SIMULATOR_LIMIT: Duration = Duration::from_secs(1800);

/// What cargo prints of a test that failed or died, and not of one that does not compile.
const TEST_FAILED: &str = "error: test failed";

/// What the simulator lives through without a bug. The test command does so with all seeds.
const SOUND_SEEDS: &str = "0..300";

/// Which bugs to plant.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only these bugs, by name
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Print one JSON object a bug instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let text = workspace.read(TABLE)?.ok_or_else(|| format!("{TABLE} is no text"))?;
    let all = rows(&text)?;
    let hunt = Hunt { workspace, output: workspace.target().join("planted.txt") };
    let chosen = chosen(all.clone(), &arguments.names)?;
    hunt.build(&chosen)?;
    hunt.compare(&all)?;
    hunt.check_sound(&chosen)?;
    let mut caught = Vec::new();
    for row in chosen {
        let (outcome, duration) = process::timed(|| hunt.catch(&row));
        let found = Found { row, outcome: outcome?, duration };
        println!("{}", if arguments.json { found.json() } else { found.line() });
        caught.push(found);
    }
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        workspace.write(TABLE, &updated(&text, &caught))?;
    }
    let left: Vec<_> =
        caught.iter().filter(|found| !found.is_caught()).map(|found| found.row.bug.as_str()).collect();
    if left.is_empty() { Ok(()) } else { Err(format!("not caught: {}", left.join(", ")).into()) }
}

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    bug: String,
    breaks: String,
    guard: Guard,
    /// Whether the table says that it hangs.
    hangs: bool,
}

/// Who is to catch a bug.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Guard {
    Simulator,
    Test { package: String, target: String, name: String },
}

impl Guard {
    fn parse(text: &str) -> Result<Self> {
        let words: Vec<&str> = text.trim_matches('`').split(' ').collect();
        match words[..] {
            _ if text.trim_matches('`') == SIMULATOR => Ok(Self::Simulator),
            [package, target, name] => {
                let [package, target, name] = [package, target, name].map(str::to_owned);
                Ok(Self::Test { package, target, name })
            }
            _ => Err(format!("{TABLE}: {text} is neither `{SIMULATOR}` nor `PACKAGE TARGET TEST`").into()),
        }
    }

    fn limit(&self) -> Duration {
        match self {
            Self::Simulator => SIMULATOR_LIMIT,
            Self::Test { .. } => TEST_LIMIT,
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Simulator => SIMULATOR.to_owned(),
            Self::Test { package, target, name } => format!("{package} {target} {name}"),
        }
    }
}

/// The lines of the table.
fn rows(text: &str) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [bug, breaks, guard, ..] = cells[..] else {
            return Err(format!("{TABLE}: `{line}` has no bug, what it breaks and who catches it").into());
        };
        let (bug, breaks) = (bug.trim_matches('`').to_owned(), breaks.to_owned());
        let (guard, hangs) = guard.strip_suffix(HANGS).map_or((guard, false), |guard| (guard, true));
        rows.push(Row { bug, breaks, guard: Guard::parse(guard)?, hangs });
    }
    Ok(rows)
}

fn chosen(rows: Vec<Row>, names: &[String]) -> Result<Vec<Row>> {
    if let Some(name) = names.iter().find(|name| !rows.iter().any(|row| row.bug == **name)) {
        return Err(format!("there is no bug {name:?}; {TABLE} lists them").into());
    }
    Ok(rows.into_iter().filter(|row| names.is_empty() || names.contains(&row.bug)).collect())
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Passed,
    Failed,
    /// It ran into its limit, and was killed.
    Hung,
}

/// What became of a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// A test failed, or the simulator after so many seeds.
    Caught(Option<u64>),
    Survived,
    Hung,
    /// Something failed, and neither a test nor a seed says that it did.
    Unclear,
}

impl Outcome {
    fn of(guard: &Guard, end: End, printed: &str) -> Self {
        let seed = || printed.lines().find_map(seed_of);
        match (end, guard) {
            (End::Passed, _) => Self::Survived,
            (End::Hung, _) => Self::Hung,
            (End::Failed, Guard::Simulator) => {
                seed().map_or(Self::Unclear, |seed| Self::Caught(Some(seed + 1)))
            }
            (End::Failed, Guard::Test { .. }) if printed.contains(TEST_FAILED) => Self::Caught(None),
            (End::Failed, Guard::Test { .. }) => Self::Unclear,
        }
    }
}

struct Hunt<'a> {
    workspace: &'a Workspace,
    /// What the last run printed.
    output: std::path::PathBuf,
}

impl Hunt<'_> {
    /// Builds everything once, for as long as that takes: what is run later is there, and has a limit.
    fn build(&self, rows: &[Row]) -> Result<()> {
        // Not quietly: it takes minutes.
        let build = "build --package abide-sim --features planted";
        process::run(&mut self.workspace.cargo(build.split(' ')))?;
        let mut targets: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for row in rows {
            if let Guard::Test { package, target, .. } = &row.guard {
                targets.entry(package).or_default().insert(target);
            }
        }
        for (package, targets) in targets {
            let test = ["test", "--no-run", "--features", "planted", "--package", package];
            let targets = targets.into_iter().flat_map(target_arguments);
            process::run(&mut self.workspace.cargo(test.into_iter().chain(targets)))?;
        }
        Ok(())
    }

    /// The table has the bugs of the program and no others.
    fn compare(&self, rows: &[Row]) -> Result<()> {
        let (end, printed) = self.execute(&mut self.simulator(&["--bugs"]), SIMULATOR_LIMIT)?;
        if end != End::Passed {
            return Err(format!("{printed}\nthe simulator does not build").into());
        }
        let known: BTreeSet<&str> = printed.lines().collect();
        let listed: BTreeSet<&str> = rows.iter().map(|row| row.bug.as_str()).collect();
        match known.symmetric_difference(&listed).next() {
            None => Ok(()),
            Some(bug) => Err(format!("{TABLE} and the program disagree about {bug:?}").into()),
        }
    }

    /// Without a bug the same build passes.
    fn check_sound(&self, rows: &[Row]) -> Result<()> {
        let guards: BTreeSet<&Guard> = rows.iter().map(|row| &row.guard).collect();
        for guard in guards {
            let (end, printed) = self.execute(&mut self.command(guard, None), guard.limit())?;
            let has_run = *guard == Guard::Simulator || printed.contains("1 passed");
            if end != End::Passed || !has_run {
                return Err(format!("{printed}\nwithout a bug, `{}` does not pass", guard.text()).into());
            }
        }
        Ok(())
    }

    fn catch(&self, row: &Row) -> Result<Outcome> {
        let mut command = self.command(&row.guard, Some(&row.bug));
        let (end, printed) = self.execute(&mut command, row.guard.limit())?;
        Ok(Outcome::of(&row.guard, end, &printed))
    }

    fn command(&self, guard: &Guard, bug: Option<&str>) -> Command {
        let mut command = match guard {
            Guard::Simulator => self.simulator(&["--seeds", bug.map_or(SOUND_SEEDS, |_| sim::SEEDS)]),
            Guard::Test { package, target, name } => {
                let mut command =
                    self.workspace.cargo(["test", "--quiet", "--features", "planted", "--package", package]);
                command.args(target_arguments(target)).args(["--", "--exact", name]);
                command
            }
        };
        command.env("ABIDE_PLANTED", bug.unwrap_or_default());
        command
    }

    /// The simulator of builds that bugs are planted in, as tests are built: to optimise it would take longer than its seeds take without. Its artifacts stand
    /// beside those of ordinary builds: cargo tells them apart by their features.
    fn simulator(&self, arguments: &[&str]) -> Command {
        let run = ["run", "--quiet", "--package", "abide-sim", "--features", "planted", "--"];
        self.workspace.cargo(run.iter().chain(arguments).copied())
    }

    /// How a command ended, and what it printed.
    fn execute(&self, command: &mut Command, limit: Duration) -> Result<(End, String)> {
        let output = File::create(&self.output)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let end = match Group::spawn(command)?.wait_within(limit)? {
            Some(status) if status.success() => End::Passed,
            Some(_) => End::Failed,
            None => End::Hung,
        };
        Ok((end, String::from_utf8_lossy(&fs::read(&self.output)?).into_owned()))
    }
}

/// How cargo is told of a target.
fn target_arguments(target: &str) -> Vec<&str> {
    if target == "lib" { vec!["--lib"] } else { vec!["--test", target] }
}

/// The seed that a line of the simulator says to have failed.
fn seed_of(line: &str) -> Option<u64> {
    line.strip_prefix("seed ")?.split_once(':')?.0.parse().ok()
}

/// A bug, and what became of it.
struct Found {
    row: Row,
    outcome: Outcome,
    duration: Duration,
}

impl Found {
    fn is_caught(&self) -> bool {
        matches!(self.outcome, Outcome::Caught(_)) || self.has_hung_as_told()
    }

    /// To hang is to be caught only where the table says so: elsewhere nobody knows what would have come next.
    fn has_hung_as_told(&self) -> bool {
        self.outcome == Outcome::Hung && self.row.hangs
    }

    fn word(&self) -> &'static str {
        match self.outcome {
            Outcome::Caught(_) => "caught",
            Outcome::Hung if self.row.hangs => "caught",
            Outcome::Survived => "SURVIVED",
            Outcome::Hung => "HUNG",
            Outcome::Unclear => "UNCLEAR",
        }
    }

    fn seeds(&self) -> String {
        match self.outcome {
            Outcome::Caught(Some(count)) => count.to_string(),
            _ => "–".to_owned(),
        }
    }

    fn line(&self) -> String {
        let Row { bug, breaks, guard, .. } = &self.row;
        let (word, seeds, seconds) = (self.word(), self.seeds(), self.duration.as_secs_f64());
        format!("{word:<8} {bug:<32} {seeds:>5} seeds {seconds:>6.1} s  {}: {breaks}", guard.text())
    }

    fn json(&self) -> String {
        let Row { bug, breaks, guard, .. } = &self.row;
        let seeds = if let Outcome::Caught(seeds) = self.outcome { seeds } else { None };
        let seconds = self.duration.as_secs_f64();
        json!({
            "bug": bug, "breaks": breaks, "caught_by": guard.text(), "outcome": self.word().to_lowercase(),
            "seeds": seeds, "seconds": (seconds * 10.0).round() / 10.0,
        })
        .to_string()
    }

    /// Its line of the table.
    fn row(&self) -> String {
        let Row { bug, breaks, guard, .. } = &self.row;
        let (guard, seeds, seconds) = (guard.text(), self.seeds(), self.duration.as_secs_f64());
        let hangs = if self.has_hung_as_told() { HANGS } else { "" };
        format!("| `{bug}` | {breaks} | `{guard}`{hangs} | {seeds} | {seconds:.0} |")
    }
}

/// The table with what was found. The line of a bug that nobody caught stays, for somebody to look at.
fn updated(text: &str, found: &[Found]) -> String {
    let line = |line: &str| {
        let of_line =
            |found: &&Found| found.is_caught() && line.starts_with(&format!("| `{}` |", found.row.bug));
        found.iter().find(of_line).map_or_else(|| line.to_owned(), Found::row) + "\n"
    };
    text.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Bugs\n\n| bug | breaks | caught by | seeds | s |\n|---|---|---|---|---|\n\
        | `one` | A thing. | `cargo xtask sim` | 7 | 1 |\n| `two` | Another. | `abide care a_fact` | – | 2 |\n\
        | `round` | A third. | `abide care a_circle`, hangs | – | 120 |\n";

    #[test]
    fn a_table_is_read() {
        let read = rows(TEXT).unwrap();
        assert_eq!(read.len(), 3);
        assert_eq!((read[0].bug.as_str(), &read[0].guard), ("one", &Guard::Simulator));
        assert_eq!((read[1].guard.text().as_str(), read[1].hangs), ("abide care a_fact", false));
        assert_eq!((read[2].guard.text().as_str(), read[2].hangs), ("abide care a_circle", true));
        assert!(rows("| `one` | A thing. |").is_err());
        assert!(rows("| `one` | A thing. | somebody | 1 | 1 |").is_err());
    }

    #[test]
    fn an_unknown_name_is_told() {
        let told = chosen(rows(TEXT).unwrap(), &["three".to_owned()]).unwrap_err();
        assert!(told.to_string().contains("no bug \"three\""), "{told}");
        assert_eq!(chosen(rows(TEXT).unwrap(), &["two".to_owned()]).unwrap().len(), 1);
    }

    fn found(line: usize, outcome: Outcome) -> Found {
        Found { row: rows(TEXT).unwrap().remove(line), outcome, duration: Duration::from_secs(3) }
    }

    #[test]
    fn what_was_found_goes_into_the_table() {
        let check = |found, expected: &str| assert_eq!(updated(TEXT, &[found]), expected);
        check(found(0, Outcome::Caught(Some(12))), &TEXT.replace("| 7 | 1 |", "| 12 | 3 |"));
        check(found(2, Outcome::Hung), &TEXT.replace("| 120 |", "| 3 |"));
        check(found(2, Outcome::Caught(None)), &TEXT.replace(", hangs | – | 120 |", " | – | 3 |"));
        for outcome in [Outcome::Hung, Outcome::Survived, Outcome::Unclear] {
            check(found(0, outcome), TEXT);
        }
    }

    #[test]
    fn to_hang_is_to_be_caught_only_where_the_table_says_so() {
        let check = |line, outcome, expected| {
            let found = found(line, outcome);
            assert_eq!((found.word(), found.is_caught()), expected);
        };
        check(1, Outcome::Hung, ("HUNG", false));
        check(2, Outcome::Hung, ("caught", true));
        check(2, Outcome::Caught(None), ("caught", true));
        check(2, Outcome::Survived, ("SURVIVED", false));
        check(2, Outcome::Unclear, ("UNCLEAR", false));
    }

    #[test]
    fn a_failure_counts_when_a_test_or_a_seed_tells_of_it() {
        let check = |line: usize, end, printed, expected| {
            assert_eq!(Outcome::of(&rows(TEXT).unwrap()[line].guard, end, printed), expected);
        };
        check(0, End::Failed, "seed 41: it hangs", Outcome::Caught(Some(42)));
        check(0, End::Failed, "error: could not compile", Outcome::Unclear);
        check(0, End::Hung, "seed 41: it hangs", Outcome::Hung);
        check(1, End::Failed, "error: test failed, to rerun pass `--lib`", Outcome::Caught(None));
        check(1, End::Failed, "error: could not compile", Outcome::Unclear);
        check(1, End::Passed, "1 passed", Outcome::Survived);
    }

    #[test]
    fn a_failed_seed_is_found() {
        assert_eq!(seed_of("seed 41: it hangs"), Some(41));
        assert_eq!(seed_of("faults (where): struck"), None);
    }
}
