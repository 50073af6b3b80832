//! Some minutes of `abide torture` in every run of the project's tests, on both kinds of store.

use std::time::Duration;

use serde_json::Value;

use crate::Result;
use crate::postgres::Server;
use crate::smoke::Smoke;
use crate::workspace::Workspace;

/// The seeds, which decide the programs and their faults. The moment at which a process is killed
/// depends on the machine.
const SEEDS: [&str; 3] = ["1", "2", "3"];
const MINUTES: &str = "1";
/// The same processes and faults on PostgreSQL, which takes no other time.
const SERVER_MINUTES: &str = "0.75";
/// The time limit of one torture. An execution that does not end after the last fault of a round is
/// reported after three minutes, and a minute has two or three rounds.
const LIMIT: Duration = Duration::from_secs(720);
/// The least that must have happened: a torture that hurts nobody proves nothing. On a busy machine
/// less happens in a minute, and another minute is added.
const LEAST: Least =
    [("kills", 20), ("kills_under_way", 10), ("client_kills", 2), ("stops", 5), ("executions", 200)];
const SERVER_LEAST: Least =
    [("kills", 15), ("kills_under_way", 8), ("client_kills", 2), ("stops", 5), ("executions", 200)];

/// The names of counts, and the least values of them.
type Least = [(&'static str, u64); 5];

pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let torture = Smoke::new(workspace, "torture")?;
    on(&torture, "torture.db", (MINUTES, &LEAST))?;
    let server = Server::named_or_own()?;
    let separator = if server.url.contains('?') { "&" } else { "?" };
    let name = std::process::id().to_string();
    let store = [&server.url, separator, "schema=abide_torture_", &name].concat();
    on(&torture, &store, (SERVER_MINUTES, &SERVER_LEAST))
}

/// Tortures one store until enough has happened.
fn on(torture: &Smoke, store: &str, (minutes, least): (&str, &Least)) -> Result<()> {
    let mut counts = [0; LEAST.len()];
    let mut lacking = None;
    for seed in SEEDS {
        let arguments =
            ["torture", "--store", store, "--dir", "seen", "--minutes", minutes, "--seed", seed, "--json"];
        let report: Value = serde_json::from_str(&torture.output(&arguments, LIMIT)?)?;
        add(&mut counts, &report)?;
        lacking = lack(&counts, least);
        match &lacking {
            None => break,
            Some(lacking) => println!("{lacking}"),
        }
    }
    println!("abide torture: {}", told(&counts));
    lacking.map_or(Ok(()), |lacking| Err(lacking.into()))
}

/// Adds the counts of one torture.
fn add(counts: &mut [u64; LEAST.len()], report: &Value) -> Result<()> {
    for (count, (name, _)) in counts.iter_mut().zip(LEAST) {
        *count += report[name].as_u64().ok_or_else(|| format!("the report has no {name:?}"))?;
    }
    Ok(())
}

/// Reports the first count that is too low, if any.
fn lack(counts: &[u64; LEAST.len()], least: &Least) -> Option<String> {
    let (count, (name, least)) = counts.iter().zip(least).find(|(count, (_, least))| *count < least)?;
    Some(format!("{count} {name} are too few to prove anything; at least {least} are expected"))
}

fn told(counts: &[u64; LEAST.len()]) -> String {
    let told: Vec<String> =
        counts.iter().zip(LEAST).map(|(count, (name, _))| format!("{count} {name}")).collect();
    told.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(reports: &[&str]) -> std::result::Result<[u64; LEAST.len()], String> {
        let mut counts = [0; LEAST.len()];
        for report in reports {
            let report = serde_json::from_str(report).expect("JSON");
            add(&mut counts, &report).map_err(|error| error.to_string())?;
        }
        Ok(counts)
    }

    const FEW_STOPS: &str =
        r#"{"kills":30,"kills_under_way":12,"client_kills":3,"stops":4,"executions":300}"#;
    const ENOUGH: &str = r#"{"kills":30,"kills_under_way":12,"client_kills":3,"stops":6,"executions":300}"#;

    #[test]
    fn a_torture_that_hurts_nobody_is_refused() {
        let lacking = "4 stops are too few to prove anything; at least 5 are expected";
        assert_eq!(lack(&counts(&[FEW_STOPS]).unwrap(), &LEAST), Some(lacking.to_owned()));
        assert_eq!(counts(&[r#"{"kills":30}"#]), Err("the report has no \"kills_under_way\"".to_owned()));
    }

    #[test]
    fn what_one_minute_lacks_the_next_may_have() {
        assert_eq!(lack(&counts(&[FEW_STOPS, FEW_STOPS]).unwrap(), &LEAST), None);
    }

    #[test]
    fn what_happened_is_told() {
        let counts = counts(&[ENOUGH]).unwrap();
        assert_eq!(lack(&counts, &LEAST), None);
        assert_eq!(told(&counts), "30 kills, 12 kills_under_way, 3 client_kills, 6 stops, 300 executions");
    }
}
