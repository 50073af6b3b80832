//! A check that the release binary does what the README shows first: the demo runs, and the
//! benchmark prints its figures.
//!
//! The figures are not compared with the goals: the machines that run this are shared and noisy,
//! and people soon ignore a test that fails on a busy machine.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::workspace::Workspace;
use crate::{Result, process};

/// The time limit of the demo: many times its usual duration, so that a busy machine passes and a
/// hanging demo does not.
const DEMO_LIMIT: Duration = Duration::from_secs(120);
/// The time limit of the quick benchmark, chosen the same way.
const BENCH_LIMIT: Duration = Duration::from_secs(600);
const FIGURE_KEYS: [&str; 8] = ["work", "figure", "unit", "raw", "ratio", "goal", "must", "ok"];

pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let smoke = Smoke::new(workspace, "smoke")?;
    smoke.output(&["demo"], DEMO_LIMIT)?;
    let printed = smoke.output(&["bench", "--quick", "-o", "jsonl"], BENCH_LIMIT)?;
    println!("abide bench printed {} figures", figure_count(&printed)?);
    Ok(())
}

/// The release binary, and an empty directory to run it in.
pub(crate) struct Smoke {
    binary: PathBuf,
    directory: PathBuf,
}

impl Smoke {
    pub(crate) fn new(workspace: &Workspace, stage: &str) -> Result<Self> {
        let binary = workspace.release_binary();
        if !binary.is_file() {
            let again = format!("cargo xtask test --only release --only {stage}");
            return Err(format!("the release binary is missing: {again}").into());
        }
        Ok(Self { binary, directory: workspace.target().join(stage) })
    }

    /// Runs the binary in an empty directory and returns its output. The output goes through a
    /// file: a pipe that nobody reads while we wait would block the binary.
    pub(crate) fn output(&self, arguments: &[&str], limit: Duration) -> Result<String> {
        let name = format!("abide {}", arguments.join(" "));
        println!("{name}");
        if self.directory.exists() {
            fs::remove_dir_all(&self.directory)?;
        }
        let working_directory = self.directory.join("run");
        fs::create_dir_all(&working_directory)?;
        let output = self.directory.join("stdout");
        let mut child = Command::new(&self.binary)
            .args(arguments)
            .current_dir(working_directory)
            .stdout(File::create(&output)?)
            .spawn()?;
        let waited = process::wait_within(&mut child, limit);
        let printed = String::from_utf8_lossy(&fs::read(&output)?).into_owned();
        match waited {
            Ok(status) if status.success() => Ok(printed),
            Ok(status) => Err(format!("{printed}\n`{name}`: {status}").into()),
            Err(error) => Err(format!("{printed}\n`{name}`: {error}").into()),
        }
    }
}

/// Returns the number of figures that the benchmark printed: one JSON object per line, each with
/// all of [`FIGURE_KEYS`].
fn figure_count(printed: &str) -> Result<usize> {
    for line in printed.lines() {
        let figure: Map<String, Value> =
            serde_json::from_str(line).map_err(|error| format!("`{line}` is not a JSON object: {error}"))?;
        if let Some(key) = FIGURE_KEYS.iter().find(|key| !figure.contains_key(**key)) {
            return Err(format!("`{line}` has no key {key:?}").into());
        }
    }
    match printed.lines().count() {
        0 => Err("the benchmark printed no figure".into()),
        count => Ok(count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIGURE: &str = r#"{"work":"W1","figure":99000,"unit":"wf/s","raw":null,"ratio":null,"goal":null,"must":null,"ok":null}"#;

    fn check(printed: &str, expected: std::result::Result<usize, &str>) {
        let counted = figure_count(printed).map_err(|error| error.to_string());
        match expected {
            Ok(count) => assert_eq!(counted, Ok(count)),
            Err(part) => assert!(counted.as_ref().is_err_and(|error| error.contains(part)), "{counted:?}"),
        }
    }

    #[test]
    fn one_object_a_line_is_one_figure_each() {
        check(&format!("{FIGURE}\n{FIGURE}\n"), Ok(2));
    }

    #[test]
    fn a_silent_benchmark_is_refused() {
        check("", Err("no figure"));
    }

    #[test]
    fn a_figure_without_its_raw_limit_is_refused() {
        check(r#"{"work":"W1","figure":1,"unit":"ms","ratio":1}"#, Err("no key \"raw\""));
    }

    #[test]
    fn text_between_the_figures_is_refused() {
        check(&format!("{FIGURE}\nwarming up\n"), Err("`warming up` is not a JSON object"));
    }
}
