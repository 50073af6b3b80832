//! Tests of the simulator itself: a seed repeats exactly, also in another process; most kills hit
//! work under way; bad input is reported.

use std::path::Path;
use std::process::{Command, Output};

use abide_sim::scenario::Scenario;
use abide_sim::{FAULT_COUNT_MIN, OPERATION_COUNT_MIN, Totals, live, quiet_panics, run, scenario, story};

/// A share of the seeds; `cargo xtask test` runs many more in an optimised build.
const SEEDS: std::ops::Range<u64> = 0..60;

#[test]
fn seeds_end_well_and_most_kills_hit_work_under_way() {
    quiet_panics();
    let mut totals = Totals::default();
    for seed in SEEDS {
        let (scenario, report) = live(seed, |scenario| scenario);
        assert!(report.violations.is_empty(), "{}\n{report}", story(&scenario, &report.targets));
        assert!(report.is_enough(), "{}\n{report}", story(&scenario, &report.targets));
        totals.add(&report);
    }
    let kills = totals.kills();
    assert!(kills.count >= 50 && kills.is_mostly_under_way(), "{kills:?}");
    assert!(totals.operation_count_least >= Some(OPERATION_COUNT_MIN), "{totals}");
    assert!(totals.fault_count_least >= Some(FAULT_COUNT_MIN), "{totals}");
    assert_eq!(totals.sqlite_count, 8, "{totals}");
}

/// A machine that was stopped for longer than its session lives claims its executions anew, and the
/// answer to that claim is late. The executions that it found by looking meanwhile have ended by
/// then, and their steps do not run again.
#[test]
fn what_was_recovered_before_the_answer_to_its_claim_runs_once() {
    quiet_panics();
    let scenario: Scenario = serde_json::from_str(include_str!("../scenarios/late-claim.json")).unwrap();
    let report = run(&scenario);
    assert!(report.violations.is_empty(), "{report}");
}

/// The commit that continues as new is sent twice, and counts once: the auditor does not take it
/// for two.
#[test]
fn a_run_continues_once_when_its_last_commit_is_repeated() {
    quiet_panics();
    let scenario: Scenario =
        serde_json::from_str(include_str!("../scenarios/repeated-continue.json")).unwrap();
    let report = run(&scenario);
    assert!(report.violations.is_empty(), "{report}");
}

/// A cancellation meets a sleep, and the wait for a child that the code opened after it. Both end
/// in that order, and the model does not take them for simultaneous.
#[test]
fn operations_are_interrupted_in_the_order_in_which_they_were_opened() {
    quiet_panics();
    let scenario: Scenario =
        serde_json::from_str(include_str!("../scenarios/order-of-interrupts.json")).unwrap();
    let report = run(&scenario);
    assert!(report.violations.is_empty(), "{report}");
}

#[test]
fn a_scenario_is_the_same_after_it_was_written_down() {
    for seed in SEEDS {
        let scenario = scenario(seed);
        let text = serde_json::to_string(&scenario).unwrap();
        assert_eq!(serde_json::from_str::<Scenario>(&text).unwrap(), scenario);
        assert_eq!(scenario.check(), Ok(()));
    }
}

/// Nothing private to a process, such as the keys of its hash tables, may reach a simulated world.
#[test]
fn a_seed_is_the_same_in_two_processes() {
    let lines = |store: &[&str]| {
        let output = abide_sim(&[&["--seeds", "0..40"], store].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    // Each store is tried, and the mixture that the seeds decide.
    for store in [&["--store", "memory"][..], &["--store", "sqlite"], &[]] {
        let (one, two) = (lines(store), lines(store));
        assert!(one.contains("40 scenarios"), "{one}");
        assert_eq!(one, two);
    }
}

#[test]
fn bad_input_is_told() {
    let folder = std::env::temp_dir();
    let broken = folder.join(format!("abide-sim-{}.json", std::process::id()));
    std::fs::write(&broken, "{\"seed\": 1}").unwrap();
    let broken = broken.to_str().unwrap();
    let rows: [(&[&str], &str); 15] = [
        (&[], "say which"),
        (&["--seed", "many"], "invalid value 'many'"),
        (&["--seed", "1", "--store", "paper"], "invalid value 'paper'"),
        (&["--seeds", "7"], "a range is two numbers"),
        (&["--seeds", "9..9"], "the range is empty"),
        (&["--scenario", "/nowhere/at/all.json"], "/nowhere/at/all.json"),
        (&["--scenario", broken], "is no scenario"),
        (&["--seeds", "0..1", "--coverage", "/nowhere/at/all"], "/nowhere/at/all"),
        (&["--seeds", "0..1", "--record", "/nowhere/at/all"], "/nowhere/at/all"),
        (&["--seed", "1", "--record", broken], "cannot be used with"),
        (&["--seed", "1", "--coverage", broken], "cannot be used with"),
        (&["--seed", "1", "--keep-going"], "cannot be used with"),
        (&["--scenario", broken, "--record", broken], "cannot be used with"),
        (&["--seeds", "0..1", "--shrink"], "cannot be used with"),
        (&["--seeds", "0..1", "--save", broken], "cannot be used with"),
    ];
    for (arguments, expected) in rows {
        let output = abide_sim(arguments);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && told.contains(expected), "{arguments:?}: {told}");
    }
    std::fs::remove_file(Path::new(broken)).unwrap();
}

#[test]
fn what_makes_no_sense_has_the_exit_code_of_a_usage_error() {
    for arguments in [&[][..], &["--seed", "many"], &["--shrink"]] {
        assert_eq!(abide_sim(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

/// Living through a world takes time, so a bad path is reported before.
#[test]
fn paths_are_checked_before_a_world_is_lived_through() {
    let rows: [&[&str]; 3] = [
        &["--seed", "1", "--save", "/nowhere/at/all"],
        &["--seeds", "0..1", "--coverage", "/nowhere/at/all"],
        &["--seeds", "0..1", "--record", "/nowhere/at/all"],
    ];
    for arguments in rows {
        let output = abide_sim(arguments);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && told.contains("/nowhere/at/all"), "{arguments:?}: {told}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{arguments:?}");
    }
}

/// A reader of a story need not know the types of the simulator.
#[test]
fn a_story_names_what_it_tells_of() {
    let output = abide_sim(&["--seed", "2"]);
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(told.starts_with("seed 2 on "), "{told}");
    for word in
        ["Target(", "Some(", "None", "StartWith", "WorkerSpec", "Pauses", "Operation(", " { ms", "Memory"]
    {
        assert!(!told.contains(word), "{word}: {told}");
    }
    // A request names its execution, and the answer names the request.
    let answers =
        told.lines().filter_map(|line| line.strip_prefix("asked (action ")?.split_once("): pause of "));
    let answers: Vec<_> = answers.collect();
    assert!(!answers.is_empty(), "nothing is paused: {told}");
    for (number, rest) in answers {
        let id = rest.split(": ").next().unwrap_or_default();
        assert!(told.contains(&format!(": pause {id} (action {number})")), "{number}: {told}");
    }
}

fn abide_sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_abide-sim")).args(arguments).output().unwrap()
}
