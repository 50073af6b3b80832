//! `abide torture`: its refusals, and that it leaves no process behind.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use abide::prelude::*;
use abide::rusqlite::Connection;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::{TestStore, abide, command, until};

#[workflow]
async fn somebody(_ctx: Ctx, n: u64) -> Result<u64> {
    Ok(n)
}

#[test]
fn bad_input_is_told() {
    let place = TestStore::new();
    let nowhere = place.folder().join("nowhere").join("report.json");
    let nowhere = nowhere.to_str().expect("text");
    let rows: [(&[&str], i32, &str); 10] = [
        (&["--minutes", "0"], 2, "it must be at least 0.05"),
        (&["--minutes", "-1"], 2, "it must be at least 0.05"),
        (&["--minutes", "0.0001"], 2, "it must be at least 0.05"),
        (&["--minutes", "NaN"], 2, "it must be at least 0.05"),
        (&["--minutes", "1e9"], 2, "four weeks"),
        (&["--minutes", "soon"], 2, "it is not a number"),
        (&["--minutes", "1", "--seed", "x"], 2, "invalid digit"),
        (&[], 2, "--minutes <N>"),
        (&["--minutes", "1", "--namespace", "a"], 2, "torture needs a store of its own, and no namespace"),
        (&["--minutes", "1", "--report", nowhere], 1, "cannot be written: No such file or directory"),
    ];
    for (args, code, message) in rows {
        let ran = place.abide(&[&["torture"], args].concat());
        assert_eq!((ran.code, ran.stdout.as_str()), (code, ""), "{args:?}: {ran:?}");
        assert!(ran.stderr.contains(message), "{args:?}: {ran:?}");
    }
    let left = std::fs::read_dir(place.folder()).expect("a folder").count();
    assert_eq!(left, 0, "a refusal leaves no trace");
}

#[test]
fn it_needs_a_store_that_others_can_open() {
    let minute = ["torture", "--minutes", "1"];
    abide(&minute).refused(2, "no store is given: write --store URL or set ABIDE_STORE");
    abide(&[&minute[..], &["--store", "sqlite::memory:"]].concat()).refused(
        2,
        "the store \"sqlite::memory:\": a store in memory belongs to its process; nobody else can look into it",
    );
    let missing = abide(&[&minute[..], &["--store", "/nowhere/a.db"]].concat());
    assert_eq!(missing.code, 5, "{missing:?}");
}

#[tokio::test]
async fn the_store_of_others_is_refused() {
    let place = TestStore::new();
    let report = place.folder().join("report.json");
    let torture = ["torture", "--minutes", "1", "--report", report.to_str().expect("text")];
    let path = place.folder().join("app.db");
    let worker = place.open().await;
    let used = place.abide(&torture);
    assert_eq!(used.code, 4, "{used:?}");
    assert!(used.stderr.contains("another process uses the store: worker \"tester\""), "{used:?}");
    worker.run(somebody, 1).id("mine").await.expect("a result");
    worker.shutdown().await;
    place.abide(&torture).refused(
        4,
        &format!(
            "the store {path:?}: the store holds executions that are not of a torture, for example \"mine\"; give it a store of its own"
        ),
    );
    assert!(!report.exists(), "a refusal leaves no trace");
}

#[test]
fn it_is_sound_and_leaves_a_store_that_can_be_tortured_again() {
    let place = TestStore::new();
    let report = place.folder().join("report.json");
    let torture = ["torture", "--minutes", "0.1", "--seed", "3", "--json"];
    let first = place.abide(&torture).ok().json();
    assert_eq!(
        (&first["sound"], &first["seed"], &first["interrupted"]),
        (&true.into(), &3.into(), &false.into())
    );
    for figure in ["executions", "operations", "kills", "processes", "entries"] {
        assert!(first[figure].as_u64().is_some_and(|count| count > 0), "{figure}: {first}");
    }
    let again = [&torture[..5], &["--report", report.to_str().expect("text")]].concat();
    let again = place.abide(&again).ok();
    assert!(again.stdout.starts_with("sound: seed 3, "), "{again:?}");
    let written: Value = serde_json::from_slice(&std::fs::read(&report).expect("a report")).expect("JSON");
    assert_eq!(written["violations"], serde_json::json!([]));
    assert!(!place.folder().join("app.db-torture").exists(), "what nobody needs is gone");
}

/// The test spoils a row that a transaction step wrote, and the auditor must notice.
#[test]
fn what_must_not_be_is_told_with_its_story() {
    let place = TestStore::new();
    let mut running = start(&place, &["--minutes", "0.15", "--seed", "4", "--json"]);
    let file = place.folder().join("app.db");
    until("a transaction step has written", || {
        let connection = Connection::open(&file).ok()?;
        connection.execute("UPDATE counted SET count = count + 1", []).ok().filter(|count| *count > 0)
    });
    let report = outcome(&place, &mut running, 6);
    let violation = &report["violations"][0];
    assert!(
        violation["what"].as_str().is_some_and(|what| what.starts_with("transactions wrote")),
        "{violation}"
    );
    let story = violation["story"].as_str().expect("a story");
    for part in ["transact", "Asked", "what is recorded:"] {
        assert!(story.contains(part), "the story has no {part:?}: {story}");
    }
    let kept = std::fs::read_dir(place.folder().join("app.db-torture")).expect("a folder").flatten();
    assert!(
        kept.into_iter().any(|file| file.file_name().to_string_lossy().ends_with("-0")),
        "the evidence is kept"
    );
}

/// A device that accepts nothing stands for a disk that is full after hours of work.
#[test]
fn a_report_file_that_fails_at_the_end_loses_no_report() {
    let place = TestStore::new();
    let ran =
        place.abide(&["torture", "--minutes", "0.05", "--seed", "3", "--json", "--report", "/dev/full"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("the report \"/dev/full\" cannot be written: "), "{ran:?}");
    assert_eq!(ran.json()["sound"], true);
}

#[test]
fn a_folder_that_is_removed_meanwhile_is_told() {
    let place = TestStore::new();
    let folder = place.folder().join("reports");
    std::fs::create_dir(&folder).expect("a folder");
    let report = folder.join("report.json");
    let args = ["--minutes", "0.05", "--seed", "3", "--json", "--report", report.to_str().expect("text")];
    let mut running = start(&place, &args);
    until("the report is opened", || report.exists().then_some(()));
    std::fs::remove_dir_all(&folder).expect("it is there");
    assert_eq!(outcome(&place, &mut running, 1)["sound"], true);
    let talk = std::fs::read_to_string(talk(&place)).expect("text");
    assert!(talk.contains("report.json\" cannot be written: No such file or directory"), "{talk}");
}

/// A log that is rotated: the name is free, and gets the report.
#[test]
fn a_report_file_that_is_moved_meanwhile_is_made_anew() {
    let place = TestStore::new();
    let (report, moved) = (place.folder().join("report.json"), place.folder().join("moved.json"));
    let args = ["--minutes", "0.05", "--seed", "3", "--json", "--report", report.to_str().expect("text")];
    let mut running = start(&place, &args);
    until("the report is opened", || std::fs::rename(&report, &moved).ok());
    let printed = outcome(&place, &mut running, 0);
    let written: Value = serde_json::from_slice(&std::fs::read(&report).expect("a report")).expect("JSON");
    assert_eq!(written, printed);
}

#[test]
fn an_interrupt_ends_its_processes_and_reports_what_was_done() {
    let place = TestStore::new();
    let mut running = start(&place, &["--minutes", "5", "--json"]);
    let children = children_of(&running);
    kill_process(pid(running.id()), Signal::INT).expect("the process is there");
    let report = outcome(&place, &mut running, 130);
    assert_eq!((&report["interrupted"], &report["sound"]), (&true.into(), &true.into()), "{report}");
    assert!(report["processes"].as_u64().is_some_and(|count| count >= 5), "{report}");
    assert!(!children.iter().any(|pid| is_there(*pid)), "a process was left behind");
}

/// This includes a stopped process, which cannot see that its parent is gone.
#[test]
fn nobody_outlives_a_torture_that_is_killed() {
    let place = TestStore::new();
    let mut running = start(&place, &["--minutes", "5"]);
    let mut children = Vec::new();
    // The torture kills some of them itself, perhaps the very one that was chosen.
    until("one of its processes is stopped", || {
        children = children_of(&running);
        kill_process(pid(children[0]), Signal::STOP).ok()
    });
    running.kill().expect("it is there");
    running.wait().expect("it is gone");
    until("every process has ended", || (!children.iter().any(|pid| is_there(*pid))).then_some(()));
    // The sessions of the dead processes are not mistaken for another user of the store.
    place.abide(&["torture", "--minutes", "0.05", "--seed", "5"]).ok();
}

fn start(place: &TestStore, args: &[&str]) -> Child {
    let mut command = command(&[&["torture"], args].concat());
    let stderr = std::fs::File::create(talk(place)).expect("a file");
    command.env("ABIDE_STORE", place.url()).stdout(Stdio::piped()).stderr(stderr);
    command.spawn().expect("the binary runs")
}

/// Returns the file with the stderr of a started torture: progress and errors.
fn talk(place: &TestStore) -> PathBuf {
    place.folder().join("stderr")
}

/// Waits for the end of a torture, checks its exit code, and returns the document that it printed.
fn outcome(place: &TestStore, running: &mut Child, code: i32) -> Value {
    let mut printed = String::new();
    running.stdout.take().expect("it is piped").read_to_string(&mut printed).expect("text");
    let status = running.wait().expect("it ends");
    let talk = std::fs::read_to_string(talk(place)).expect("text");
    assert_eq!(status.code(), Some(code), "{status}\n{printed}\n{talk}");
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}\n{talk}"))
}

fn pid(of: u32) -> Pid {
    Pid::from_raw(i32::try_from(of).expect("a pid")).expect("a pid")
}

/// Returns the processes of a torture, once all of them have started.
fn children_of(torture: &Child) -> Vec<u32> {
    let file = format!("/proc/{0}/task/{0}/children", torture.id());
    until("its processes have started", || {
        let pids = std::fs::read_to_string(&file).ok()?;
        let pids: Vec<u32> = pids.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
        (pids.len() >= 5).then_some(pids)
    })
}

fn is_there(pid: u32) -> bool {
    // A process that has ended and has not been waited for yet is still listed.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}
