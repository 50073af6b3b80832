//! `cargo xtask planted`: plants one bug after the other, and checks that a test catches each.
//!
//! Only `docs/planted.md` says which test is to catch which bug: the table that people read is the
//! one that this command uses.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;

use crate::postgres::{self, Server};
use crate::process::{self, Group};
use crate::workspace::Workspace;
use crate::{Result, sim};

/// The file with the table.
const TABLE: &str = "docs/planted.md";

/// The entry in the table for a bug that the simulator is to catch.
const SIMULATOR: &str = "cargo xtask sim";

/// The mark in the table behind a test that a bug sends into an endless loop: the test fails by
/// reaching the time limit.
const HANGS: &str = ", hangs";

/// The time after which a test counts as hung. The slowest test of the table waits 50 s for an
/// answer, and then fails.
const TEST_LIMIT: Duration = Duration::from_secs(120);

/// The same for the simulator. It runs ten thousand seeds when it finds nothing, and such a build
/// runs ten per second.
const SIMULATOR_LIMIT: Duration = Duration::from_secs(1800);

/// The line that cargo prints for a test that failed or died, but not for one that does not
/// compile.
const TEST_FAILED: &str = "error: test failed";

/// The seeds that the simulator runs without a bug. The test command runs all seeds without one.
const SOUND_SEEDS: &str = "0..300";

/// The bugs to plant.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only these bugs, by name
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Print one JSON object per bug instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let text = workspace.read(TABLE)?.ok_or_else(|| format!("{TABLE} is no text"))?;
    let all = rows(&text)?;
    let chosen = chosen(all.clone(), &arguments.names)?;
    let needs_server = chosen.iter().any(|row| row.guard.needs_server());
    let server = if needs_server { Some(Server::named_or_own()?) } else { None };
    let hunt = Hunt { workspace, output: workspace.target().join("planted.txt"), server };
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
    /// Whether the table says that the test hangs.
    hangs: bool,
}

/// The test that is to catch a bug.
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

    /// Whether it is a test of the store on PostgreSQL.
    fn needs_server(&self) -> bool {
        matches!(self, Self::Test { package, .. } if package == "abide-postgres")
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

/// Parses the lines of the table.
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

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Passed,
    Failed,
    /// It reached its time limit and was killed.
    Hung,
}

/// The result of planting a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// A test failed, or the simulator failed after this many seeds.
    Caught(Option<u64>),
    Survived,
    Hung,
    /// Something failed, but neither a test nor a seed was reported.
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
    /// The output of the last run.
    output: std::path::PathBuf,
    server: Option<Server>,
}

impl Hunt<'_> {
    /// Builds everything once, without a time limit. The later runs, which have one, then find
    /// everything built.
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

    /// Checks that the table has the bugs of the program and no others.
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

    /// Checks that the same build passes without a bug.
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
        if let Some(server) = &self.server {
            command.env(postgres::VARIABLE, &server.url);
        }
        command
    }

    /// Returns a command that runs the simulator of the builds that bugs are planted in. It is
    /// built as tests are: optimising it would take longer than running its seeds unoptimised. Its
    /// artifacts lie beside those of ordinary builds: cargo distinguishes them by their features.
    fn simulator(&self, arguments: &[&str]) -> Command {
        let run = ["run", "--quiet", "--package", "abide-sim", "--features", "planted", "--"];
        self.workspace.cargo(run.iter().chain(arguments).copied())
    }

    /// Runs a command. Returns its end and its output.
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

/// Returns the arguments that name a target to cargo.
fn target_arguments(target: &str) -> Vec<&str> {
    if target == "lib" { vec!["--lib"] } else { vec!["--test", target] }
}

/// Returns the seed that failed according to a line of the simulator.
fn seed_of(line: &str) -> Option<u64> {
    line.strip_prefix("seed ")?.split_once(':')?.0.parse().ok()
}

/// A bug and the result of planting it.
struct Found {
    row: Row,
    outcome: Outcome,
    duration: Duration,
}

impl Found {
    fn is_caught(&self) -> bool {
        matches!(self.outcome, Outcome::Caught(_)) || self.has_hung_as_told()
    }

    /// Whether it hung where the table says so. Elsewhere a hang does not count as caught: nobody
    /// knows what would have come next.
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

    /// Returns its line of the table.
    fn row(&self) -> String {
        let Row { bug, breaks, guard, .. } = &self.row;
        let (guard, seeds, seconds) = (guard.text(), self.seeds(), self.duration.as_secs_f64());
        let hangs = if self.has_hung_as_told() { HANGS } else { "" };
        format!("| `{bug}` | {breaks} | `{guard}`{hangs} | {seeds} | {seconds:.0} |")
    }
}

/// Returns the table with the new results. The line of a bug that nothing caught stays as it was,
/// for a person to look at.
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
