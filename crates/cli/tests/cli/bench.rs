//! The benchmark's command line, and the processes that it starts.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use serde_json::Value;

use crate::common::{TestStore, abide, command};

#[test]
fn a_benchmark_without_sense_is_exit_code_2() {
    let no_counts = "only W1, W1-latency, W2, W3 and W4 have counts";
    abide(&["bench", "--counts", "--work", "processes"]).refused(2, no_counts);
    for args in [
        vec!["bench", "--work", "W9"],
        vec!["bench", "--quick", "--full"],
        vec!["bench", "--counts", "--quick"],
        vec!["bench", "--child", "driving"],
        vec!["bench", "--size", "3"],
        vec!["bench", "--child", "driving", "--store", "x", "--size", "-1"],
    ] {
        let ran = abide(&args);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{ran:?}");
        assert!(!ran.stderr.contains("panicked"), "{ran:?}");
    }
}

#[test]
fn a_benchmark_without_a_folder_measures_nothing() {
    let ran = abide(&["bench", "--quick", "--dir", "/nowhere/at/all"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{ran:?}");
    assert!(ran.stderr.starts_with("abide: no folder for the files: "), "{ran:?}");
}

#[test]
fn a_benchmark_on_a_server_leaves_no_schema() {
    let server = std::env::var("ABIDE_TEST_POSTGRES").expect("cargo xtask postgres -- cargo test …");
    abide(&["bench", "--store", &server, "--work", "idle-rss"])
        .refused(2, "idle-rss is not measured on a server");
    let works = ["--work", "W1-latency", "--work", "W2"];
    let arguments = [&["bench", "--store", &server, "--counts", "-o", "json"][..], &works].concat();
    let process = command(&arguments).stdout(Stdio::piped()).spawn().expect("it starts");
    let store = format!("{server}?schema=abide_bench_{}_w2_counts", process.id());
    let done = process.wait_with_output().expect("it ends");
    assert!(done.status.success(), "{done:?}");
    let counted: Value = serde_json::from_slice(&done.stdout).expect("JSON");
    // One statement starts a workflow, one ends it, one records a step. Notices, heartbeats and
    // claims follow the clock, and every 32nd start draws keys.
    for (nth, written, most) in [(0, 2.0, 4.0), (1, 1.0, 1.5)] {
        let of = |field: &str| counted[nth][field].as_f64().expect("a number");
        assert!((written..most).contains(&of("statements")), "{counted}");
        assert!(of("bytes") > 100.0, "the log of the server has it: {counted}");
    }
    let listed = abide(&["list", "--store", &store]);
    assert_eq!(listed.code, 5, "{listed:?}");
    assert!(listed.stderr.contains("there is no schema"), "{listed:?}");
}

#[test]
fn a_process_of_the_benchmark_waits_until_all_are_ready() {
    let place = TestStore::new();
    let file = place.folder().join("driven.db");
    let file = file.to_str().expect("text");
    let mut process = command(&["bench", "--child", "driving", "--store", file, "--size", "0"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut printed = BufReader::new(process.stdout.take().expect("a pipe"));
    let mut line = String::new();
    printed.read_line(&mut line).expect("text");
    assert_eq!(line, "ready\n");
    drop(process.stdin.take());
    let mut rest = String::new();
    printed.read_to_string(&mut rest).expect("text");
    assert_eq!(process.wait().expect("it ends").code(), Some(0));
    let report: Value = serde_json::from_str(&rest).expect("JSON");
    assert_eq!(report["workflow_count"], 0, "no time, no workflow: {report}");
    assert!(report["seconds"].is_number(), "{report}");
}
