//! `cargo xtask sim`: the simulator in an optimised build.

use std::process::Command;

use crate::workspace::Workspace;
use crate::{Result, process};

/// The seeds that every run of the project's tests covers.
pub(crate) const SEEDS: &str = "0..10000";

/// The list of events that these seeds must cause.
pub(crate) const COVERAGE: &str = "crates/sim/coverage.txt";

/// Builds the simulator and runs it.
pub(crate) fn run<'a>(workspace: &Workspace, arguments: impl IntoIterator<Item = &'a str>) -> Result<()> {
    let arguments: Vec<&str> = arguments.into_iter().collect();
    check(&arguments)?;
    // Not quietly: an optimised build takes minutes.
    process::run(&mut workspace.cargo(["build", "--release", "--package", "abide-sim"]))?;
    let call = ["run", "--quiet", "--release", "--package", "abide-sim", "--"];
    let mut call = workspace.cargo(call.into_iter().chain(arguments));
    // For `--record`: many commits share a version.
    process::run(call.env("ABIDE_COMMIT", commit()))
}

/// Returns the commit that is built, with `-dirty` if files differ from it. Empty outside of git.
fn commit() -> String {
    let mut git = Command::new("git");
    let described = git
        .args(["-C", env!("CARGO_MANIFEST_DIR"), "describe"])
        .args(["--always", "--dirty", "--abbrev=12", "--exclude=*"])
        .output();
    let described = described.ok().filter(|output| output.status.success());
    described.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

/// Refuses, before the build, arguments that are visibly wrong without the simulator. The simulator
/// checks the rest.
fn check(arguments: &[&str]) -> Result<()> {
    if arguments.is_empty() {
        return Err("say which: --seed N, --seeds A..B or --scenario FILE".into());
    }
    for (index, argument) in arguments.iter().enumerate() {
        let (name, value) = match argument.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (*argument, arguments.get(index + 1).copied()),
        };
        let is_number = |text: &str| text.parse::<u64>().is_ok();
        let is_range = |text: &str| text.split_once("..").is_some_and(|(a, b)| is_number(a) && is_number(b));
        let (is_sound, what) = match name {
            "--seed" | "--shrink-seconds" => (value.is_some_and(is_number), "a number"),
            "--seeds" => (value.is_some_and(is_range), "a range of two numbers, for example 0..1000"),
            _ => continue,
        };
        if !is_sound {
            let found = value.map_or_else(|| "nothing".to_owned(), |value| format!("{value:?}"));
            return Err(format!("{name} wants {what}, and is given {found}").into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_numbers_are_refused_before_the_build() {
        let rows: [(&[&str], Option<&str>); 9] = [
            (&["--seed", "7", "--shrink", "--shrink-seconds=9"], None),
            (&["--seeds", "0..10", "--record", "file"], None),
            (&["--", "--help"], None),
            (&[], Some("say which: --seed N, --seeds A..B or --scenario FILE")),
            (&["--seed", "x"], Some(r#"--seed wants a number, and is given "x""#)),
            (&["--seed=x"], Some(r#"--seed wants a number, and is given "x""#)),
            (&["--seed"], Some("--seed wants a number, and is given nothing")),
            (
                &["--seeds", "7"],
                Some(r#"--seeds wants a range of two numbers, for example 0..1000, and is given "7""#),
            ),
            (
                &["--seed", "1", "--shrink", "--shrink-seconds", "soon"],
                Some(r#"--shrink-seconds wants a number, and is given "soon""#),
            ),
        ];
        for (arguments, expected) in rows {
            let told = check(arguments).err().map(|error| error.to_string());
            assert_eq!(told.as_deref(), expected, "{arguments:?}");
        }
    }
}
