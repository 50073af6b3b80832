//! The binary on its own: files that are not stores, the command line, pipes, the demo.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use crate::common::{TestStore, abide, command};
use serde_json::Value;

#[test]
fn a_store_that_is_none_is_not_made_one() {
    let place = TestStore::new();
    let path = |name: &str| place.folder().join(name).display().to_string();
    std::fs::write(path("text.db"), "not a database, but long enough to have a header of its own").unwrap();
    std::fs::write(path("empty.db"), "").unwrap();
    let rows = [
        ("app.db", "there is no such file"),
        ("none/app.db", "the folder does not exist"),
        (".", "this is a folder, not a database file"),
        ("text.db", "this is not an SQLite database"),
        ("empty.db", "this SQLite database has no tables of abide"),
    ];
    let commands: [&[&str]; 6] =
        [&["list"], &["show", "x"], &["why", "x"], &["signal", "x", "y"], &["cancel", "x"], &["verify"]];
    for (name, problem) in rows {
        for args in commands {
            let message = format!("{:?}: {problem}", path(name));
            abide(&[&["--store", &path(name)], args].concat()).refused(5, &message);
        }
    }
    let mut left: Vec<_> =
        std::fs::read_dir(place.folder()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["empty.db", "text.db"]);
    assert_eq!(std::fs::metadata(path("empty.db")).unwrap().len(), 0);
}

#[test]
fn a_command_line_without_sense_is_exit_code_2() {
    abide(&["list"]).refused(2, "no store is given: write --store URL or set ABIDE_STORE");
    let scheme = r#"the store "mysql://x": the scheme "mysql" is unknown: write sqlite:PATH, sqlite::memory:, postgres://… or a path"#;
    abide(&["--store", "mysql://x", "list"]).refused(2, scheme);
    let memory = r#"the store "sqlite::memory:": a store in memory belongs to its process; nobody else can look into it"#;
    abide(&["--store", "sqlite::memory:", "list"]).refused(2, memory);
    for args in [
        vec!["frobnicate"],
        vec!["show"],
        vec!["show", ""],
        vec!["list", "--status", "happy"],
        vec!["list", "--tag", "x"],
        vec!["--store", "x", "list", "--limit", "0"],
        vec!["list", "-o", "xml"],
        vec!["--namespace", "", "list"],
        vec!["cancel", "x", "--reason", "a\nb"],
        vec![],
    ] {
        let ran = abide(&args);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{ran:?}");
        assert!(!ran.stderr.contains("panicked"), "{ran:?}");
    }
}

#[test]
fn help_tells_commands_and_exit_codes() {
    let help = abide(&["--help"]).ok().stdout;
    for part in [
        "demo",
        "list",
        "show",
        "why",
        "signal",
        "bench",
        "verify",
        "migrate",
        "backup",
        "restore",
        "ABIDE_STORE",
        "Exit codes:",
    ] {
        assert!(help.contains(part), "{part}: {help}");
    }
    assert!(!help.contains("demo-worker"), "{help}");
    assert!(abide(&["--version"]).ok().stdout.starts_with("abide "));
}

#[test]
fn completions_are_scripts() {
    for (shell, part) in [("bash", "complete -F"), ("zsh", "#compdef abide"), ("fish", "complete -c abide")] {
        assert!(abide(&["completions", shell]).ok().stdout.contains(part), "{shell}");
    }
    assert_eq!(abide(&["completions", "cobol"]).code, 2);
}

#[test]
fn a_reader_that_leaves_is_no_fault() {
    let mut child =
        command(&["completions", "zsh"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Close the pipe before anything can be written.
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn the_demo_survives_its_crash() {
    let mut child = command(&["demo"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut page = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_to_string(&mut page).unwrap();
    let talk: Vec<_> = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap).collect();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{page}\n{talk:?}");
    assert!(!page.contains('\u{1b}'), "no colours in a pipe: {page}");
    for part in [
        "1 check-order",
        "10 close-order",
        "timer 2 s",
        "child pack",
        "signal \"delivered\"",
        "✓ none of them ran again",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert_eq!(talk.len(), 4, "{talk:?}");
}

#[test]
fn the_demo_tells_its_evidence_as_json_and_keeps_its_store() {
    let ran = abide(&["demo", "--keep", "-o", "json"]).ok();
    let document = ran.json();
    assert!(document["checks"].as_array().unwrap().iter().all(|check| check["holds"] == true), "{document}");
    let rows = document["timeline"]["rows"].as_array().unwrap();
    let (first, second) = (&document["timeline"]["processes"][0], &document["timeline"]["processes"][1]);
    let ran_in = |name: &str| -> &Value {
        let row = rows.iter().find(|row| row["name"] == name);
        &row.unwrap_or_else(|| panic!("{name}: {document}"))["processes"]
    };
    assert_eq!(ran_in("1 check-order"), &serde_json::json!([[first]]));
    assert_eq!(ran_in("10 close-order"), &serde_json::json!([[second]]));
    let kept = ran.stderr.lines().find(|line| line.starts_with("abide: kept: abide --store ")).unwrap();
    let url = kept.split_whitespace().nth(4).unwrap();
    let shown = abide(&["--store", url, "show", "order-1001", "-o", "json"]).ok().json();
    assert_eq!(shown["status"], "completed");
    abide(&["--store", url, "verify"]).ok();
    let folder = std::path::Path::new(url.strip_prefix("sqlite:").unwrap()).parent().unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    let total = |key: &str| document["timeline"][key].as_str().unwrap().to_owned();
    assert!(total("began_at") < total("killed_at") && total("restarted_at") < total("ended_at"));
}
