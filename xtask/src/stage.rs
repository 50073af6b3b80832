//! The stages of `cargo xtask test`, in the order in which they run: cheap ones first.

use std::fmt;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::workspace::Workspace;
use crate::{Result, postgres, process, sim, smoke, style, torture};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Stage {
    Fmt,
    Style,
    Clippy,
    Test,
    Sim,
    Doc,
    BesideSqlx,
    Release,
    Smoke,
    Torture,
}

/// The stages to run: by default all of them.
#[derive(Args)]
pub(crate) struct Selection {
    /// Run only this stage (may be repeated)
    #[arg(long, value_name = "STAGE")]
    only: Vec<Stage>,
    /// Leave this stage out (may be repeated)
    #[arg(long, value_name = "STAGE")]
    skip: Vec<Stage>,
}

/// Runs the selected stages up to the first that fails.
pub(crate) fn run(workspace: &Workspace, selection: &Selection) -> Result<()> {
    let mut finished = Vec::new();
    let mut failure = None;
    for stage in selection.stages() {
        println!("\n== {stage}: {}", stage.purpose());
        let (outcome, duration) = process::timed(|| stage.run(workspace));
        let verdict = if outcome.is_ok() { "passed" } else { "FAILED" };
        println!("== {stage} {verdict} in {}", seconds(duration));
        finished.push(Finished { stage, verdict, duration });
        failure = outcome.err().map(|error| (stage, error));
        if failure.is_some() {
            break;
        }
    }
    print_summary(&finished);
    match failure {
        None => Ok(()),
        Some((stage, error)) => {
            let again = format!("cargo xtask test --only {stage}");
            Err(format!("stage {stage}: {error}\nto repeat only this stage: {again}").into())
        }
    }
}

/// A stage that has run, for the summary.
struct Finished {
    stage: Stage,
    verdict: &'static str,
    duration: Duration,
}

impl Stage {
    fn purpose(self) -> &'static str {
        match self {
            Stage::Fmt => "the sources are formatted",
            Stage::Style => "the sources look as CONTRIBUTING.md says",
            Stage::Clippy => "clippy has nothing to say",
            Stage::Test => "the tests of all crates pass",
            Stage::Sim => "random programs under faults end as the oracle says",
            Stage::Doc => "the documentation builds without a warning",
            Stage::BesideSqlx => "abide and sqlx work in one binary",
            Stage::Release => "the release binary builds",
            Stage::Smoke => "the release binary runs its demo and its benchmark",
            Stage::Torture => {
                "random programs in processes that are killed and stopped end as the oracle says"
            }
        }
    }

    fn run(self, workspace: &Workspace) -> Result<()> {
        let cargo = |line: &str| workspace.cargo(line.split(' '));
        match self {
            Stage::Fmt => process::run(&mut cargo("fmt --all --check")),
            Stage::Style => style::run(workspace),
            Stage::Clippy => clippy(workspace),
            Stage::Test => postgres::with_server(&mut cargo("test --workspace")),
            Stage::Sim => sim::run(workspace, ["--seeds", sim::SEEDS, "--coverage", sim::COVERAGE]),
            Stage::Doc => process::run(cargo("doc --workspace --no-deps").env("RUSTDOCFLAGS", "-D warnings")),
            Stage::BesideSqlx => beside_sqlx(workspace),
            Stage::Release => process::run(&mut cargo("build --release")),
            Stage::Smoke => smoke::run(workspace),
            Stage::Torture => torture::run(workspace),
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value().expect("no stage is hidden from the command line");
        formatter.write_str(value.get_name())
    }
}

impl Selection {
    fn stages(&self) -> Vec<Stage> {
        let chosen = |stage: &Stage| self.only.is_empty() || self.only.contains(stage);
        Stage::value_variants()
            .iter()
            .copied()
            .filter(|stage| chosen(stage) && !self.skip.contains(stage))
            .collect()
    }
}

/// Checks everything with all features, and the crate that users import also with fewer.
fn clippy(workspace: &Workspace) -> Result<()> {
    let lines = [
        "clippy --workspace --all-targets -- -D warnings",
        "clippy -p abide --no-default-features --features postgres -- -D warnings",
    ];
    lines.iter().try_for_each(|line| process::run(&mut workspace.cargo(line.split(' '))))
}

/// Runs the tests of the crate that uses abide beside sqlx. It has a dependency graph of its own
/// and therefore its own target directory: in ours, the two builds would keep rebuilding each
/// other's dependencies with different features.
fn beside_sqlx(workspace: &Workspace) -> Result<()> {
    let mut command = workspace.cargo(["test", "--manifest-path", "tests/beside-sqlx/Cargo.toml"]);
    process::run(command.env("CARGO_TARGET_DIR", workspace.target().join("beside-sqlx")))
}

fn print_summary(finished: &[Finished]) {
    println!();
    for Finished { stage, verdict, duration } in finished {
        println!("{:<12} {verdict} {:>9}", stage.to_string(), seconds(*duration));
    }
    let total = finished.iter().map(|finished| finished.duration).sum();
    println!("{:<12} {:>16}", "total", seconds(total));
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(only: &[Stage], skip: &[Stage], expected: &[Stage]) {
        let selection = Selection { only: only.to_vec(), skip: skip.to_vec() };
        assert_eq!(selection.stages(), expected);
    }

    #[test]
    fn every_stage_runs_unless_told_otherwise() {
        check(&[], &[], Stage::value_variants());
    }

    #[test]
    fn only_selects_and_keeps_the_order() {
        check(&[Stage::Smoke, Stage::Release], &[], &[Stage::Release, Stage::Smoke]);
    }

    #[test]
    fn skip_wins_over_only() {
        check(&[Stage::Fmt, Stage::Doc], &[Stage::Doc], &[Stage::Fmt]);
    }

    #[test]
    fn stages_are_named_as_on_the_command_line() {
        assert_eq!(Stage::BesideSqlx.to_string(), "beside-sqlx");
    }
}
