//! A minute of `abide torture` in every test of the project.

use std::time::Duration;

use serde_json::Value;

use crate::Result;
use crate::smoke::Smoke;
use crate::workspace::Workspace;

/// The programs and what happens to them; when which process is killed depends on the machine.
const SEED: &str = "1";
const MINUTES: &str = "1";
/// What does not end after the last fault is told after three minutes.
const LIMIT: Duration = Duration::from_secs(420);
/// What must have happened at least, on a busy machine too: a torture that hurts nobody proves nothing.
const LEAST: [(&str, u64); 5] =
    [("kills", 20), ("kills_under_way", 10), ("client_kills", 2), ("stops", 5), ("executions", 200)];

pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let torture = Smoke::new(workspace, "torture")?;
    let arguments = ["torture", "--store", "torture.db", "--minutes", MINUTES, "--seed", SEED, "--json"];
    let report: Value = serde_json::from_str(&torture.output(&arguments, LIMIT)?)?;
    println!("abide torture: {}", figures(&report)?);
    Ok(())
}

/// What happened, if it was enough.
fn figures(report: &Value) -> Result<String> {
    let mut told = Vec::new();
    for (name, least) in LEAST {
        let count = report[name].as_u64().ok_or_else(|| format!("the report has no {name:?}"))?;
        if count < least {
            return Err(format!(
                "{count} {name} are too few to prove anything; at least {least} are expected"
            )
            .into());
        }
        told.push(format!("{count} {name}"));
    }
    Ok(told.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(report: &str, expected: std::result::Result<&str, &str>) {
        let report = serde_json::from_str(report).expect("JSON");
        let told = figures(&report).map_err(|error| error.to_string());
        assert_eq!(told.as_deref().map_err(String::as_str), expected);
    }

    #[test]
    fn a_torture_that_hurts_nobody_is_refused() {
        check(
            r#"{"kills":30,"kills_under_way":12,"client_kills":3,"stops":4,"executions":300}"#,
            Err("4 stops are too few to prove anything; at least 5 are expected"),
        );
        check(r#"{"kills":30}"#, Err("the report has no \"kills_under_way\""));
    }

    #[test]
    fn what_happened_is_told() {
        check(
            r#"{"kills":30,"kills_under_way":12,"client_kills":3,"stops":6,"executions":300}"#,
            Ok("30 kills, 12 kills_under_way, 3 client_kills, 6 stops, 300 executions"),
        );
    }
}
