//! Starts, results, pages of lists and earlier runs, for scripts and on narrow terminals.

use std::process::Output;

use crate::common::{TestStore, command, until_status};
use abide::prelude::*;
use serde_json::{Value, json};

#[workflow]
async fn double(ctx: Ctx, number: u64) -> Result<u64> {
    ctx.step("double", || async { Ok(number * 2) }).await
}

#[workflow]
async fn fails_once(ctx: Ctx, _: ()) -> Result<u32> {
    let run = ctx.run_number();
    ctx.run(double, u64::from(run)).await?;
    ctx.step("try", || async { if run == 1 { Err(Error::new("not yet")) } else { Ok(run) } }).await
}

#[workflow]
async fn waits(ctx: Ctx, _: ()) -> Result<Vec<u32>> {
    let mut all = Vec::new();
    loop {
        match ctx.recv::<u32>("number").await? {
            0 => return Ok(all),
            number => all.push(number),
        }
    }
}

#[workflow]
async fn keyed(ctx: Ctx, _: ()) -> Result<()> {
    for person in ["ann", "bob", "ann"] {
        ctx.step("pay", || async { Ok(()) }).key(&person).await?;
    }
    Ok(())
}

#[task]
async fn shout(_ctx: Ctx, text: String) -> Result<String> {
    Ok(text.to_uppercase())
}

/// Returns a store whose worker has gone.
async fn emptied() -> TestStore {
    let place = TestStore::new();
    place.open().await.shutdown().await;
    place
}

#[tokio::test(flavor = "multi_thread")]
async fn show_tells_steps_of_one_name_apart_by_their_keys() {
    let place = TestStore::new();
    let abide = place.open().await;
    abide.run(keyed, ()).id("k").await.unwrap();
    let page = place.abide(&["show", "k"]).ok().stdout;
    for expected in ["pay[ann] ", "pay[bob] ", "pay[ann] #2"] {
        assert!(page.contains(expected), "{expected}: {page}");
    }
    let shown = place.abide(&["show", "k", "--json"]).ok().json();
    assert!(shown.to_string().contains(r#""key":"bob","kind":"step""#), "{shown}");
    abide.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_without_a_worker_leaves_what_is_scheduled_scheduled() {
    let place = emptied().await;
    place.abide(&["start", "double", "4", "--id", "d", "--delay", "1h"]).ok();
    place.abide(&["pause", "d", "--by", "bob"]).ok();
    let page = place.abide(&["show", "d"]).ok().stdout;
    assert!(page.starts_with("d  scheduled\n"), "{page}");
    assert!(page.contains("workflow \"d\" is scheduled to start at "), "{page}");
    assert!(page.contains("; unread: pause by bob, which waits for a worker to apply it.\n"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_is_counted_in_the_singular() {
    let place = emptied().await;
    place.abide(&["start", "double", "4", "--id", "d"]).ok();
    let page = place.abide(&["show", "d"]).ok().stdout;
    assert!(page.contains("  run       1, 1 journal entry\n"), "{page}");
    assert_eq!(place.abide(&["verify"]).ok().stdout, "sound: 1 execution, 1 journal entry\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_prints_its_id_and_result_waits_for_the_end() {
    let place = TestStore::new();
    let abide = place.open().await;
    let started =
        place.abide(&["start", "double", "21", "--id", "d-1", "--tag", "k=v", "--priority", "-3"]).ok();
    assert_eq!(started.stdout, "d-1\n");
    assert_eq!(started.stderr, "abide: workflow \"double\" was started as \"d-1\"\n");
    assert_eq!(place.abide(&["result", "d-1", "--wait"]).ok().stdout, "42\n");
    let told = place.abide(&["result", "d-1", "--json"]).ok().json();
    assert_eq!(told, json!({ "id": "d-1", "status": "completed", "result": 42 }));
    // It cannot have ended when the second command begins.
    place.abide(&["start", "double", "4", "--id", "d-2", "--delay", "1s"]).ok();
    assert_eq!(place.abide(&["result", "d-2", "--wait"]).ok().stdout, "8\n");
    // The worker's code decides the kind; the input comes from stdin.
    let task = place.abide_with(&["start", "shout", "-"], r#""hey""#).ok();
    let id = task.stdout.trim();
    assert_eq!(place.abide(&["result", id, "--wait"]).ok().stdout, "\"HEY\"\n");
    let again = place.abide(&["start", "double", "21", "--id", "d-1", "--json"]).ok().json();
    assert_eq!((&again["attached"], &again["differences"]), (&json!(true), &json!(["priority", "tags"])));
    // People are told of the options that they wrote.
    let again = place.abide(&["start", "double", "21", "--id", "d-1"]).ok();
    assert_eq!(again.stderr, "abide: workflow \"double\" was there as \"d-1\"\n");
    let again = place.abide(&["start", "double", "21", "--id", "d-1", "--priority", "0"]).ok();
    assert!(again.stderr.contains("started with another priority\n"), "{again:?}");
    let again = place.abide(&["start", "double", "21", "--id", "d-1", "--tag", "k=w"]).ok();
    assert!(again.stderr.contains("started with other tags\n"), "{again:?}");
    let again = ["start", "double", "21", "--id", "d-1", "--tag", "k=w", "--priority", "0"];
    let again = place.abide(&again).ok();
    assert!(again.stderr.contains("started with another priority and other tags\n"), "{again:?}");
    let conflict = place.abide(&["start", "double", "22", "--id", "d-1"]);
    assert_eq!((conflict.code, conflict.stdout.as_str()), (4, ""), "{conflict:?}");
    abide.shutdown().await;
}

/// It would wait for ever for a worker that runs a task of this name.
#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_of_live_workers_is_not_started_as_a_task() {
    let place = TestStore::new();
    let abide = place.open().await;
    place
        .abide(&["start", "double", "21", "--id", "d-1", "--task"])
        .refused(4, r#""double" is a workflow of the live workers, not a task: leave out --task"#);
    place.abide(&["show", "d-1"]).refused(3, r#"there is no execution "d-1""#);
    place.abide(&["start", "shout", r#""hey""#, "--id", "s-1", "--task"]).ok();
    assert_eq!(place.abide(&["result", "s-1", "--wait"]).ok().stdout, "\"HEY\"\n");
    place.abide(&["start", "nobody-knows", "--id", "n-1", "--task"]).ok();
    abide.shutdown().await;
    // Nobody is there to say what the next worker has.
    place.abide(&["start", "double", "21", "--id", "d-1", "--task"]).ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_codes_tell_how_an_execution_ended() {
    let place = TestStore::new();
    let abide = place.open().await;
    abide.run(fails_once, ()).id("f-1").await.expect_err("it fails");
    abide.start(waits, ()).id("w-1").await.expect("it waits");
    until_status(&place, "w-1", "waiting");
    let refused = place.abide(&["result", "f-1"]);
    let told =
        r#"abide: execution "f-1" failed: not yet (step "try" of workflow "fails_once", attempt 1, at "#;
    assert!(refused.code == 7 && refused.stderr.starts_with(told), "{refused:?}");
    let failed = place.abide(&["result", "f-1", "--json"]);
    assert_eq!((failed.code, &failed.json()["error"]["message"]), (7, &json!("not yet")));
    let unfinished = place.abide(&["result", "w-1"]);
    assert_eq!((unfinished.code, unfinished.stdout.as_str()), (8, ""));
    assert!(unfinished.stderr.starts_with("abide: workflow \"w-1\" is "), "{unfinished:?}");
    // A program that reads JSON gets a document, whatever the state.
    let unfinished = place.abide(&["result", "w-1", "--json"]);
    let told = unfinished.json();
    assert_eq!((unfinished.code, &told["id"], &told["status"]), (8, &json!("w-1"), &json!("waiting")));
    assert!(told["why"].as_str().is_some_and(|why| why.contains("waiting for signal")), "{told}");
    let unfinished = place.abide(&["result", "w-1", "--wait", "--timeout", "10ms"]);
    assert_eq!((unfinished.code, unfinished.stdout.as_str()), (8, ""), "{unfinished:?}");
    assert!(unfinished.stderr.starts_with("abide: workflow \"w-1\" is "), "{unfinished:?}");
    for timeout in ["", "1", "s", "-1s", "1x", "99999999999999999999s"] {
        let refused = place.abide(&["result", "w-1", "--wait", "--timeout", timeout]);
        assert_eq!(refused.code, 2, "{refused:?}");
    }
    assert_eq!(place.abide(&["result", "w-1", "--timeout", "1s"]).code, 2, "it waits for nothing");
    place.abide(&["result", "nobody"]).refused(3, r#"there is no execution "nobody""#);
    place.abide(&["result", "nobody", "--wait"]).refused(3, r#"there is no execution "nobody""#);
    abide.handle::<()>("w-1").terminate("enough").await.expect("it ends");
    place
        .abide(&["result", "w-1", "--wait"])
        .refused(7, r#"execution "w-1" was cancelled by client: enough"#);
    abide.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_sense_is_refused_by_its_field() {
    let place = emptied().await;
    let deep = "[".repeat(128) + &"]".repeat(128);
    let edit = format!("big={deep}");
    let rows: [(&[&str], &str); 12] = [
        (&["start", "", "1"], r#"workflow name "" is empty"#),
        (&["start", "x", "1", "--id", " "], r#"execution id " " shows nothing"#),
        (
            &["start", "x", "1", "--lane", "a\u{200b}"],
            r#"lane "a\u{200b}" contains the invisible character U+200B"#,
        ),
        (&["start", "x", "1", "--tag", "=v"], r#"tag key "" is empty"#),
        (&["signal", "x", "a\nb"], r#"signal name "a\nb" contains the control character U+000A"#),
        (&["signal", "x", "y", "--key", ""], r#"idempotency key "" is empty"#),
        (&["start", "x", "{"], "the input of \"x\" is no JSON"),
        (&["start", "x", &deep], "the input of \"x\" cannot be read: recursion limit exceeded"),
        (&["signal", "x", "y", "1e400"], "the value of signal \"y\" cannot be read: number out of range"),
        (&["signal", "x", "y", r#"{"a":1,"a":2}"#], r#"cannot be read: member "a" is given twice"#),
        (&["unblock", "x", "--edit", &edit], "the result of step \"big\" cannot be read: recursion"),
        (&["start", "x", "--tag", "a=1", "--tag", "a=2"], r#"tag key "a" is given twice"#),
    ];
    for (args, expected) in rows {
        let ran = place.abide(args);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{args:?}: {ran:?}");
        assert!(ran.stderr.contains(expected), "{args:?}: {ran:?}");
        assert!(!ran.stderr.contains(['\u{200b}', '\u{1b}']), "{ran:?}");
    }
    let waiting = place.abide(&["start", "nobody-knows", "--id", "n"]).ok();
    let note = "abide: no worker of this store has registered workflow \"nobody-knows\": it waits for one\n";
    assert!(waiting.stderr.starts_with(note), "{waiting:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_that_is_repeated_under_its_key_arrives_once() {
    let place = TestStore::new();
    let abide = place.open().await;
    abide.start(waits, ()).id("w-1").await.expect("it waits");
    for (value, told) in
        [("7", "was sent to"), ("7", "nothing was sent"), ("8", "another value needs another key")]
    {
        let sent = place.abide(&["signal", "w-1", "number", value, "--key", "k"]).ok();
        assert!(sent.stderr.contains(told), "{sent:?}");
    }
    let again = place.abide(&["signal", "w-1", "number", "7", "--key", "k", "--json"]).ok().json();
    assert_eq!(again["known"], json!(true));
    let other = place.abide(&["signal", "w-1", "other", "7", "--key", "k"]).ok();
    assert!(other.stderr.contains("was sent to"), "a key belongs to a name: {other:?}");
    place.abide(&["signal", "w-1", "number", "0"]).ok();
    assert_eq!(place.abide(&["result", "w-1", "--wait"]).ok().stdout, "[7]\n");
    abide.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_was_cut_says_how_to_go_on() {
    let place = emptied().await;
    for id in ["a", "b", "c"] {
        place.abide(&["start", "double", "1", "--id", id, "--tag", "customer=c7"]).ok();
    }
    let several = place.abide(&["list", "--status", "failed,running", "--json"]).ok().json();
    assert_eq!(several.as_array().map(Vec::len), Some(3), "{several}");
    let page = |args: &[&str]| {
        let ran =
            place.abide(&[&["list", "-o", "jsonl", "--oldest-first", "--limit", "2"], args].concat()).ok();
        let line = |line: &str| serde_json::from_str::<Value>(line).expect("JSON");
        (ran.stdout.lines().map(line).collect::<Vec<_>>(), ran.stderr)
    };
    let (first, talk) = page(&[]);
    assert_eq!((&first[0]["id"], &first[1]["id"], first.len()), (&json!("a"), &json!("b"), 2));
    assert_eq!(first[0]["tags"], json!({ "customer": "c7" }));
    let cursor = first[1]["cursor"].to_string();
    let said = format!(
        "abide: the list was cut after 2: go on with --after {cursor}, or ask for more with --limit\n"
    );
    assert_eq!(talk, said);
    let (rest, talk) = page(&["--after", &cursor]);
    assert_eq!((&rest[0]["id"], rest.len(), talk.as_str()), (&json!("c"), 1, ""));
    let whole = place.abide(&["list", "--limit", "3"]).ok();
    assert_eq!(whole.stderr, "", "three of three are all");
    assert!(whole.stdout.contains("customer=c7"), "{whole:?}");
    assert_eq!(
        place.abide(&["list", "--limit", &usize::MAX.to_string(), "--json"]).ok().json()[2]["id"],
        "a"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_fits_a_narrow_terminal() {
    let place = emptied().await;
    for number in 0..3 {
        let id = format!("order-{number}");
        place.abide(&["start", "double", "1", "--id", &id, "--tag", "customer=a-very-long-name-of-one"]).ok();
    }
    let width = |columns: &str| -> usize {
        let output: Output = command(&["list"])
            .env("ABIDE_STORE", place.url())
            .env("COLUMNS", columns)
            .output()
            .expect("the binary runs");
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(text.lines().count() == 4 && text.contains("order-2"), "{text}");
        text.lines().map(|line| line.chars().count()).max().unwrap_or_default()
    };
    assert!(width("40") <= 40);
    assert!(width("70") <= 70);
    assert!(width("200") > 70);
    assert_eq!(width("0"), width("200"), "no width is none");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_run_can_be_shown() {
    let place = TestStore::new();
    let abide = place.open().await;
    let handle = abide.start(fails_once, ()).id("f-1").await.expect("it runs");
    handle.result().await.expect_err("it fails");
    handle.retry().await.expect("it is retried");
    assert_eq!(handle.result().await.expect("it ends"), 2);
    let show = |args: &[&str]| place.abide(&[&["show", "f-1", "--json"], args].concat()).ok().json();
    let (first, second, now) = (show(&["--run", "1"]), show(&["--run", "2"]), show(&[]));
    let last = |shown: &Value| {
        shown["journal"].as_array().expect("entries").last().expect("an end")["event"].clone()
    };
    assert_eq!(
        (last(&first), last(&second), last(&now)),
        (json!("failed"), json!("completed"), json!("completed"))
    );
    assert_eq!((&first["shown_run"], &first["run"]), (&json!(1), &json!(2)));
    assert_eq!(first["children"][0]["id"], "f-1/1/double/1");
    let page = place.abide(&["show", "f-1", "--run", "1", "--limit", "2"]).ok();
    assert!(page.stdout.contains("  shown     run 1 of 2\n"), "{page:?}");
    assert_eq!(page.stderr, "abide: run 1 of \"f-1\" has more entries: go on with --from 3\n");
    place.abide(&["show", "f-1", "--run", "3"]).refused(3, r#"execution "f-1" has no run 3: it is in run 2"#);
    assert_eq!(place.abide(&["show", "f-1", "--run", "0"]).code, 2);
    abide.shutdown().await;
}

/// With a store in the environment, `clap` would list every command.
#[test]
fn no_command_is_no_reason_to_tell_hidden_ones() {
    let place = TestStore::new();
    for args in [vec![], vec!["--namespace", "x"], vec!["demo-worke"], vec!["--json"]] {
        let ran = place.abide(&args);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{ran:?}");
        assert!(!ran.stderr.contains("demo-worker") && !ran.stderr.contains("torture-process"), "{ran:?}");
    }
    assert!(!place.abide(&["completions", "bash"]).ok().stdout.contains("demo-worker"));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_is_shown_turns_or_hides_text() {
    let place = emptied().await;
    let input = "\"a\u{202e}b\u{200b}\"";
    place.abide(&["start", "double", input, "--id", "x"]).ok();
    place.abide(&["signal", "x", "note", input]).ok();
    place.abide(&["pause", "x", "--reason", "tea\u{202e}time"]).ok();
    for args in
        [&["show", "x"][..], &["show", "x", "--json"], &["why", "x"], &["why", "x", "--json"], &["list"]]
    {
        let ran = place.abide(args).ok();
        assert!(!ran.stdout.contains(['\u{202e}', '\u{200b}']), "{args:?}: {ran:?}");
    }
    let shown = place.abide(&["show", "x", "--json"]).ok().json();
    assert_eq!(shown["journal"][0]["input"], "a\u{202e}b\u{200b}", "it says the same");
    assert!(place.abide(&["why", "x"]).ok().stdout.contains(r"tea\u{202e}time"));
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Parcel {
    weight: u32,
    to: String,
    note: Option<String>,
}

#[workflow]
async fn ship(_ctx: Ctx, parcel: Parcel) -> Result<u32> {
    Ok(parcel.weight)
}

/// Inputs are compared by value: neither white space nor the order of members makes a difference.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_from_a_shell_attaches_to_the_same_start_of_a_program() {
    let place = TestStore::new();
    let abide = place.open().await;
    place.abide(&["start", "ship", r#"{"to": "ann", "weight": 3}"#, "--id", "p-1"]).ok();
    let parcel = Parcel { weight: 3, to: "ann".to_owned(), note: None };
    let attached = abide.start(ship, parcel).id("p-1").await;
    assert!(attached.is_ok(), "{}", attached.err().unwrap());
    let again = place.abide(&["start", "ship", r#"{"weight":3,"to":"ann"}"#, "--id", "p-1"]);
    assert_eq!(again.code, 0, "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_over_a_limit_is_refused_and_cut_in_the_complaint() {
    let place = TestStore::new();
    let abide = place.open().await;
    abide.start(waits, ()).id("w-1").await.expect("it waits");
    let large = format!("\"{}\"", "x".repeat(5 << 20));
    let refused = place.abide_with(&["signal", "w-1", "number", "-"], &large);
    assert!(refused.code == 4 && refused.stderr.contains("payload_bytes_max"), "{refused:?}");
    let reason = "for a good reason ".repeat(1_000);
    for args in [["pause", "w-1", "--reason"], ["show", "w-1", "--run"]] {
        let refused = place.abide(&[&args[..], &[&reason]].concat());
        let said = &refused.stderr;
        assert!(refused.code == 2 && said.len() < 600 && said.contains("'for a good"), "{refused:?}");
    }
    abide.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deadline_of_an_ended_execution_has_no_distance() {
    let place = TestStore::new();
    let abide = place.open().await;
    let deadline = |id: &str| {
        let page = place.abide(&["show", id]).ok().stdout;
        page.lines().find(|line| line.starts_with("  deadline")).expect("it has one").to_owned()
    };
    place.abide(&["start", "waits", "--id", "w-1", "--deadline", "1h"]).ok();
    assert!(deadline("w-1").contains("Z (in 59 min "), "{}", deadline("w-1"));
    place.abide(&["signal", "w-1", "number", "0"]).ok();
    place.abide(&["result", "w-1", "--wait"]).ok();
    assert!(deadline("w-1").ends_with('Z'), "{}", deadline("w-1"));
    abide.shutdown().await;
}

/// The times count from the start, as those of a program do.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_from_a_shell_has_a_delay_and_a_deadline() {
    let place = TestStore::new();
    let abide = place.open().await;
    let parcel = r#"{"to": "ann", "weight": 3}"#;
    place.abide(&["start", "ship", parcel, "--id", "late", "--delay", "3d"]).ok();
    let why = place.abide(&["why", "late"]).ok().stdout;
    assert!(why.contains("is scheduled to start at") && why.contains("(in 2 d 23 h)"), "{why}");
    let again = place.abide(&["start", "ship", parcel, "--id", "late", "--delay", "1h"]);
    assert!(again.stderr.contains("another delay"), "{again:?}");
    place.abide(&["start", "ship", parcel, "--id", "short", "--delay", "1h", "--deadline", "1ms"]).ok();
    let failed = place.abide(&["result", "short", "--wait", "--timeout", "30s"]);
    assert!(failed.code == 7 && failed.stderr.contains("deadline"), "{failed:?}");
    let bad = place.abide(&["start", "ship", parcel, "--deadline", "soon"]);
    assert!(bad.code == 2 && bad.stderr.contains("a duration is written 500ms"), "{bad:?}");
    abide.shutdown().await;
}
