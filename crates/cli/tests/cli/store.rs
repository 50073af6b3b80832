//! Every command on stores that were made through the SDK, with and without a live worker.

use std::process::Stdio;

use crate::common::{TestStore, command, until, until_status};
use abide::prelude::*;
use serde_json::{Value, json};

#[workflow]
async fn greet(ctx: Ctx, name: String) -> Result<String> {
    ctx.step("format", || async { Ok(format!("Hello, {name}!")) }).await
}

#[workflow]
async fn broke(ctx: Ctx, _: ()) -> Result<()> {
    ctx.step("charge", || async { Err(Error::new("no money\nat all")) }).await
}

#[workflow]
async fn flaky(ctx: Ctx, _: ()) -> Result<()> {
    let again = Retry::exponential(hours(1)).max_attempts(5);
    ctx.step("call", || async { Err(Error::new("503")) }).retry(again).await
}

#[workflow]
async fn decide(ctx: Ctx, _: ()) -> Result<bool> {
    ctx.recv("approval").await
}

/// Goes on with an input that it cannot read.
#[workflow]
async fn misleads(ctx: Ctx, _: u32) -> Result<bool> {
    ctx.continue_as_new("maybe").await
}

#[workflow]
async fn nap(ctx: Ctx, days_to_wait: u64) -> Result<()> {
    ctx.sleep(days(days_to_wait)).await
}

#[workflow]
async fn family(ctx: Ctx, _: ()) -> Result<bool> {
    ctx.run(decide, ()).id("child").await
}

/// The edition of a workflow's code.
struct Edition(u32);

#[workflow]
async fn audited(ctx: Ctx, _: ()) -> Result<()> {
    if ctx.state::<Edition>().0 == 1 {
        for _ in 0..2 {
            ctx.step("audit", || async { Ok(()) }).await?;
        }
    }
    ctx.recv("end").await
}

/// A workflow whose first edition returns more than can be recorded.
#[workflow]
async fn wordy(ctx: Ctx, _: ()) -> Result<usize> {
    let length = if ctx.state::<Edition>().0 == 1 { 1_000 } else { 3 };
    let mut total = 0;
    for length in [1, length] {
        total += ctx.step("report", || async { Ok("x".repeat(length)) }).await?.len();
    }
    Ok(total)
}

/// Returns a store with one execution of each sort, whose worker has gone.
/// Runs SQL on a file.
fn damage_by(path: String, damage: &str) {
    let database = abide::rusqlite::Connection::open(path).unwrap();
    abide_sqlite::flaw::unbind(&database);
    database.execute_batch(damage).unwrap();
}

async fn left_behind() -> TestStore {
    let place = TestStore::new();
    let abide = place.open().await;
    abide.run(greet, "World".to_owned()).id("greet-1").tag("customer", "c7").await.expect("it runs");
    abide.run(broke, ()).id("broke-1").await.expect_err("it has no money");
    abide.start(flaky, ()).id("flaky-1").await.expect("it runs");
    abide.start(nap, 30).id("nap-1").await.expect("it runs");
    abide.start(family, ()).id("family-1").await.expect("it runs");
    for (id, wanted) in
        [("flaky-1", "sleeping"), ("nap-1", "sleeping"), ("family-1", "waiting"), ("child", "waiting")]
    {
        until_status(&place, id, wanted);
    }
    abide.shutdown().await;
    place
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn an_exported_file_is_private_and_whole_or_not_there() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = TestStore::new();
    let abide = place.open().await;
    abide.run(greet, "x".repeat(300_000)).id("large").await.unwrap();
    abide.shutdown().await;
    let file = place.folder().join("large.json");
    let out = file.display().to_string();
    // The shell sets the size that a file may have, in blocks of at most 1,024 bytes.
    let script = r#"trap "" XFSZ; ulimit -f 128; exec "$0" export large --out "$1""#;
    let failed = std::process::Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_abide"), &out])
        .env("ABIDE_STORE", place.url())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(said.contains("cannot be written"), "{said}");
    assert!(!file.exists(), "a part of it would look like a history");
    place.abide(&["export", "large", "--out", &out]).ok();
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test(flavor = "multi_thread")]
async fn export_writes_what_a_test_can_replay() {
    let place = left_behind().await;
    let text = place.abide(&["export", "greet-1"]).ok().stdout;
    let history: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(history["id"], "greet-1");
    let entries: Vec<_> = history["runs"][0].as_array().unwrap().iter().map(|line| &line["entry"]).collect();
    let expected = [
        r#"1 started workflow "greet""#,
        r#"2 step-recorded step "format": "Hello, World!""#,
        r#"3 completed: "Hello, World!""#,
    ];
    assert_eq!(entries, expected);

    let file = place.folder().join("nap.json").display().to_string();
    place.abide(&["export", "nap-1", "--out", &file]).ok();
    assert_eq!(place.abide(&["export", "nap-1", "--out", &file]).code, 4, "it is not written over");
    assert_eq!(place.abide(&["export", "nobody"]).code, 3);
    // A replay has its own runtime, which must not end inside another one.
    tokio::task::block_in_place(|| {
        abide::testing::replay(text).assert_fits();
        abide::testing::replay(file).assert_fits();
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn list_shows_and_filters() {
    let place = left_behind().await;
    let ids = |args: &[&str]| -> Vec<String> {
        let list = place.abide(&[&["list", "-o", "jsonl"], args].concat()).ok();
        let id = |line: &str| serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().to_owned();
        list.stdout.lines().map(id).collect()
    };
    assert_eq!(ids(&[]), ["child", "family-1", "nap-1", "flaky-1", "broke-1", "greet-1"]);
    assert_eq!(ids(&["--oldest-first", "--limit", "2"]), ["greet-1", "broke-1"]);
    assert_eq!(ids(&["--status", "failed", "--status", "completed"]), ["broke-1", "greet-1"]);
    assert_eq!(ids(&["--workflow", "decide"]), ["child"]);
    assert_eq!(ids(&["--status", "waiting", "--top-level"]), ["family-1"]);
    assert_eq!(ids(&["--tag", "customer=c7"]), ["greet-1"]);
    assert_eq!(ids(&["--namespace", "other"]), Vec::<String>::new());

    let table = place.abide(&["list"]).ok();
    let lines: Vec<_> = table.stdout.lines().collect();
    assert_eq!(lines.len(), 7);
    assert!(lines[0].starts_with("ID        WORKFLOW  STATUS     RUN  CREATED"), "{table:?}");
    assert!(lines[2].contains(r#"waiting for child "child""#), "{table:?}");
    let none = place.abide(&["list", "--status", "blocked"]).ok();
    assert_eq!((none.stdout.as_str(), none.stderr.as_str()), ("", "abide: no executions\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn show_tells_journal_attempts_children_and_tags() {
    let place = left_behind().await;
    let of_greet = place.abide(&["show", "greet-1", "-o", "json"]).ok().json();
    assert_eq!(of_greet["status"], "completed");
    assert_eq!(of_greet["tags"], json!({ "customer": "c7" }));
    assert_eq!(of_greet["journal"][0]["input"], "World");
    assert_eq!(of_greet["journal"][1]["outcome"], json!({ "ok": "Hello, World!" }));
    assert_eq!(of_greet["journal"][2]["result"], "Hello, World!");
    assert_eq!((&of_greet["entry_count"], &of_greet["holder"]), (&json!(3), &Value::Null));

    let of_flaky = place.abide(&["show", "flaky-1", "-o", "json"]).ok().json();
    assert_eq!(of_flaky["failed_attempts"][0]["error"]["message"], "503");
    assert_eq!(of_flaky["waiting"][0]["for"], "retry");
    let of_family = place.abide(&["show", "family-1", "-o", "json"]).ok().json();
    assert_eq!(of_family["children"], json!([{ "id": "child", "name": "decide", "status": "waiting" }]));

    let page = place.abide(&["show", "flaky-1"]).ok().stdout;
    for part in [
        "flaky-1  sleeping",
        "workflow  flaky",
        "held by   nobody",
        "FAILED ATTEMPTS",
        "step \"call\"  1        503",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let cut = place.abide(&["show", "greet-1", "--from", "2", "--limit", "1"]).ok();
    assert!(cut.stdout.contains("step-recorded") && !cut.stdout.contains("started"), "{cut:?}");
    assert_eq!(cut.stderr, "abide: \"greet-1\" has 3 entries: go on with --from 3\n");
    let of_broke = place.abide(&["show", "broke-1"]).ok().stdout;
    assert!(of_broke.contains(r"no money\nat all"), "control characters are escaped: {of_broke}");
}

/// A second parent asks for the id of the first one's child.
#[tokio::test(flavor = "multi_thread")]
async fn show_tells_of_no_child_that_was_refused() {
    let place = left_behind().await;
    let abide = place.open().await;
    abide.run(family, ()).id("family-2").await.expect_err("its child is refused");
    let of_second = place.abide(&["show", "family-2", "-o", "json"]).ok().json();
    assert_eq!(of_second["journal"][1]["child"], "child");
    assert_eq!(of_second["children"], json!([]));
    abide.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn show_tells_what_new_code_did_not_use() {
    let place = TestStore::new();
    for edition in [1, 2] {
        let abide =
            Abide::builder(place.url()).state(Edition(edition)).park_after(ms(20)).open().await.unwrap();
        let handle = abide.start(audited, ()).id("a").await.unwrap();
        until_status(&place, "a", "waiting");
        if edition == 2 {
            handle.signal("end", &()).await.unwrap();
            handle.result().await.unwrap();
        }
        let page = place.abide(&["show", "a"]).ok().stdout;
        assert_eq!(page.contains("unused"), edition == 2, "{page}");
        abide.shutdown().await;
    }
    let first = place.abide(&["show", "a", "--limit", "1"]).ok().stdout;
    assert!(first.contains("\n  unused    step \"audit\", step \"audit\" #2\n"), "{first}");
    let unused = |nth: u32| json!({ "kind": "step", "name": "audit", "key": null, "nth": nth });
    let document = place.abide(&["show", "a", "-o", "json"]).ok().json();
    assert_eq!(document["unused"], json!([unused(1), unused(2)]));
    assert_eq!(document["journal"][4]["unused"], document["unused"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn why_is_one_sentence_for_everything() {
    let place = left_behind().await;
    let rows = [
        ("greet-1", r#"workflow "greet-1" completed at "#, r#" with the result "Hello, World!"."#),
        (
            "broke-1",
            r#"workflow "broke-1" failed at "#,
            r#": no money\nat all (step "charge" of workflow "broke", attempt 1, at crates/cli/tests/cli/store.rs:16)."#,
        ),
        (
            "flaky-1",
            r#"workflow "flaky-1" is waiting until "#,
            "store.rs:22), and no live worker can run it then: there is none.",
        ),
        (
            "nap-1",
            r#"workflow "nap-1" is sleeping until "#,
            "(in 29 d 23 h) at crates/cli/tests/cli/store.rs:38, and no live worker can run it then: there is none.",
        ),
        (
            "family-1",
            r#"workflow "family-1" is waiting for child "child" (at crates/cli/tests/cli/store.rs:43), which is waiting for signal "approval" (at crates/cli/tests/cli/store.rs:27) since "#,
            "ago).",
        ),
    ];
    for (id, begin, end) in rows {
        let said = place.abide(&["why", id]).ok().stdout;
        assert!(said.starts_with(begin) && said.trim_end().ends_with(end), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let document = place.abide(&["why", "greet-1", "-o", "json"]).ok().json();
    assert_eq!((&document["id"], &document["status"]), (&json!("greet-1"), &json!("completed")));
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_messages_are_shown_up_to_the_limit() {
    let place = left_behind().await;
    for n in ["1", "2", "3"] {
        place.abide(&["signal", "child", "approval", n]).ok();
    }
    for (limit, shown, said) in [
        ("0", 0, r#""child" has unread messages, none of which is shown"#),
        ("2", 2, r#""child" has more unread messages than the first 2, which are shown"#),
        ("3", 3, ""),
    ] {
        let page = place.abide(&["show", "child", "--limit", limit, "-o", "json"]).ok();
        assert!(page.stderr.contains(said), "{}", page.stderr);
        assert_eq!(page.stderr.contains("unread"), shown < 3, "{}", page.stderr);
        assert_eq!(page.json()["inbox"].as_array().map(Vec::len), Some(shown));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_wait_for_a_worker() {
    let place = left_behind().await;
    place.abide(&["signal", "child", "approval", "true"]).ok();
    let said = place.abide(&["why", "child"]).ok().stdout;
    assert!(said.contains("no live worker can run it: there is none"), "{said}");
    assert!(said.ends_with("; unread: signal \"approval\".\n"), "{said}");
    let shown = place.abide(&["show", "child", "-o", "json"]).ok().json();
    assert_eq!(shown["inbox"][0]["payload"], true);
    let said = place.abide(&["pause", "nap-1", "--reason", "audit"]).ok();
    assert_eq!((said.stdout.as_str(), said.stderr.as_str()), ("", "abide: pause was sent to \"nap-1\"\n"));

    let abide = place.open().await;
    assert!(abide.handle::<bool>("family-1").result().await.unwrap());
    until_status(&place, "nap-1", "paused");
    let said = place.abide(&["why", "nap-1"]).ok().stdout;
    assert!(said.contains("is paused since") && said.ends_with("by ann: audit.\n"), "{said}");
    abide.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_worker_obeys() {
    let place = TestStore::new();
    let abide = place.open().await;
    let nap_handle = abide.start(nap, 30).id("nap").await.unwrap();
    abide.start(decide, ()).id("d-1").await.unwrap();
    abide.start(decide, ()).id("d-2").await.unwrap();
    for (id, wanted) in [("nap", "sleeping"), ("d-1", "waiting"), ("d-2", "waiting")] {
        until_status(&place, id, wanted);
    }
    place.abide(&["pause", "nap"]).ok();
    until_status(&place, "nap", "paused");
    place.abide(&["resume", "nap", "--by", "bob"]).ok();
    until_status(&place, "nap", "sleeping");
    let sent = place.abide(&["cancel", "nap", "--reason", "changed my mind", "-o", "jsonl"]).ok();
    assert_eq!(sent.json(), json!({ "id": "nap", "sent": "cancel" }));
    nap_handle.result().await.unwrap_err();
    let said = place.abide(&["why", "nap"]).ok().stdout;
    assert!(said.contains("was cancelled at") && said.ends_with("by ann: changed my mind.\n"), "{said}");
    let ended = place.abide(&["result", "nap", "-o", "json"]);
    let expected = json!({ "id": "nap", "status": "cancelled", "by": "ann", "reason": "changed my mind" });
    assert_eq!((ended.code, ended.json()), (7, expected));
    place.abide(&["terminate", "d-2"]).ok();
    until_status(&place, "d-2", "cancelled");
    place.abide_with(&["signal", "d-1", "approval", "-"], " false\n").ok();
    assert!(!abide.handle::<bool>("d-1").result().await.unwrap());
    abide.shutdown().await;
}

/// A workflow that fails in its first run.
#[workflow]
async fn lucky(ctx: Ctx, _: ()) -> Result<u32> {
    let run = ctx.run_number();
    if run == 1 { Err(Error::new("no luck")) } else { ctx.recv("go").await }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_failed_is_retried_in_a_next_run() {
    let place = TestStore::new();
    let abide = place.open().await;
    abide.run(lucky, ()).id("lucky").await.expect_err("it has no luck");
    let sent = place.abide(&["retry", "lucky", "--by", "bob", "-o", "json"]).ok();
    assert_eq!(sent.json(), json!({ "id": "lucky", "sent": "retry" }));
    until_status(&place, "lucky", "waiting");
    let shown = place.abide(&["show", "lucky"]).ok().stdout;
    assert!(shown.contains("  run       2, 2 journal entries\n"), "{shown}");
    assert!(shown.contains("retried") && shown.contains("by bob"), "{shown}");
    let shown = place.abide(&["show", "lucky", "-o", "json"]).ok().json();
    assert_eq!((&shown["run"], &shown["journal"][1]["by"]), (&json!(2), &json!("bob")));
    let listed = place.abide(&["list", "-o", "json"]).ok().json();
    assert_eq!(listed[0]["run"], json!(2));
    let refusal =
        r#"execution "lucky": it has not ended; only what has failed or was cancelled can be retried"#;
    place.abide(&["retry", "lucky"]).refused(4, refusal);
    place.abide(&["signal", "lucky", "go", "5"]).ok();
    until_status(&place, "lucky", "completed");
    place.abide(&["retry", "lucky"]).refused(4, r#"execution "lucky": it is completed already"#);
    place.abide(&["verify"]).ok();
    abide.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_blocked_says_what_was_expected_and_found() {
    let place = TestStore::new();
    let abide = place.open().await;
    abide.start(misleads, 1).id("d").await.unwrap();
    until_status(&place, "d", "blocked");
    let said = place.abide(&["why", "d"]).ok().stdout;
    assert!(
        said.contains(r#"is blocked since"#) && said.contains(r#"expected u32, found "maybe""#),
        "{said}"
    );
    assert_eq!(place.abide(&["list", "--status", "blocked", "-o", "json"]).ok().json()[0]["id"], "d");
    place.abide(&["unblock", "d"]).ok();
    let entry_count = || place.abide(&["show", "d", "-o", "json"]).ok().json()["entry_count"].as_u64();
    // The execution was unblocked, tried once more, and blocked again for the same reason.
    until("it is tried again", || entry_count().filter(|count| *count >= 4));
    until_status(&place, "d", "blocked");
    place.abide(&["cancel", "d"]).ok();
    until_status(&place, "d", "cancelled");
    abide.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_of_another_type_is_shown_as_set_aside() {
    let place = TestStore::new();
    let abide = place.open().await;
    abide.start(decide, ()).id("d").await.unwrap();
    place.abide(&["signal", "d", "approval", r#""maybe""#]).ok();
    let journal = || place.abide(&["show", "d", "-o", "json"]).ok().json()["journal"].clone();
    let rejected = until("it is set aside", || {
        journal().as_array()?.iter().find(|entry| entry["event"] == "signal-rejected").cloned()
    });
    assert_eq!((&rejected["payload"], &rejected["expected"]), (&json!("maybe"), &json!("bool")));
    assert_eq!(rejected["op"]["name"], "approval");
    let shown = place.abide(&["show", "d"]).ok().stdout;
    assert!(shown.contains(r#": expected bool, found "maybe" (invalid type: "#), "{shown}");
    let said = place.abide(&["why", "d"]).ok().stdout;
    assert!(said.contains(r#"was set aside: expected bool, found "maybe""#), "{said}");
    place.abide(&["signal", "d", "approval", "true"]).ok();
    until_status(&place, "d", "completed");
    abide.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_blocks_is_run_again_or_edited() {
    let place = TestStore::new();
    let open = |edition| {
        Abide::builder(place.url())
            .state(Edition(edition))
            .worker_name("tester")
            .payload_bytes_max(100)
            .open()
    };
    let abide = open(1).await.unwrap();
    for id in ["r", "e"] {
        abide.start(wordy, ()).id(id).await.unwrap();
        until_status(&place, id, "blocked");
    }
    let ways_on = "abide unblock r --rerun report#2, or abide unblock r --edit report#2=JSON";
    let said = place.abide(&["why", "r"]).ok().stdout;
    assert!(said.trim_end().ends_with(&format!("to go on: {ways_on}.")), "{said}");
    let refused = format!(
        r#"execution "r": step "report" #2 has run, but its result could not be recorded; to go on: {ways_on}"#
    );
    place.abide(&["unblock", "r"]).refused(4, &refused);
    let refused = r#"execution "r": it is not blocked at a step "report", and a recorded result never changes; it is blocked at step "report" #2"#;
    place.abide(&["unblock", "r", "--rerun", "report"]).refused(4, refused);
    abide.shutdown().await;

    place.abide(&["unblock", "r", "--rerun", "report#2"]).ok();
    let sent = place
        .abide_with(&["unblock", "e", "--edit", r#"step "report" #2=-"#, "-o", "json"], " \"four\"\n")
        .ok();
    assert_eq!(sent.json(), json!({ "id": "e", "sent": "unblock" }));
    let unread = place.abide(&["show", "e"]).ok().stdout;
    assert!(unread.contains(r#"step "report" #2  by ann with the result "four""#), "{unread}");
    let unread = place.abide(&["show", "r", "-o", "json"]).ok().json()["inbox"][0].clone();
    assert_eq!((&unread["step"], &unread["remedy"]), (&json!("report#2"), &json!("rerun")));

    let abide = open(2).await.unwrap();
    for (id, total, remedy) in [("r", 1 + 3, json!("rerun")), ("e", 1 + 4, json!({ "edit": "four" }))] {
        assert_eq!(abide.handle::<usize>(id).result().await.unwrap(), total);
        let journal = place.abide(&["show", id, "-o", "json"]).ok().json()["journal"].clone();
        let decided = journal.as_array().unwrap().iter().find(|entry| entry["event"] == "unblocked").unwrap();
        assert_eq!(
            (&decided["op"]["nth"], &decided["by"], &decided["remedy"]),
            (&json!(2), &json!("ann"), &remedy)
        );
    }
    let page = place.abide(&["show", "r"]).ok().stdout;
    assert!(page.contains("report #2  by ann to run again"), "{page}");
    abide.shutdown().await;
    place.abide(&["verify"]).ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_can_run_says_why() {
    let place = TestStore::new();
    let abide = place.open().await;
    abide.start(nap, 1).id("gpu").lane("gpu").priority(3).requires(["cuda"]).await.unwrap();
    let said = place.abide(&["why", "gpu"]).ok().stdout;
    let reason = r#"but no live worker can run it: worker "tester" (session 1) does not serve lane "gpu" and lacks the capability "cuda"."#;
    assert!(said.trim_end().ends_with(reason), "{said}");
    let page = place.abide(&["show", "gpu"]).ok().stdout;
    assert!(page.contains("lane      gpu, priority 3, requires \"cuda\""), "{page}");
    abide.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_have_their_exit_codes() {
    let place = left_behind().await;
    for args in [
        vec!["show", "nobody"],
        vec!["why", "nobody"],
        vec!["signal", "nobody", "x"],
        vec!["cancel", "nobody"],
        vec!["terminate", "nobody"],
        vec!["pause", "nobody"],
        vec!["resume", "nobody"],
        vec!["unblock", "nobody"],
    ] {
        place.abide(&args).refused(3, r#"there is no execution "nobody""#);
    }
    place.abide(&["cancel", "greet-1"]).refused(4, r#"execution "greet-1": it is completed already"#);
    place.abide(&["signal", "broke-1", "x"]).refused(4, r#"execution "broke-1": it is failed already"#);
    place.abide(&["resume", "nap-1"]).refused(4, r#"execution "nap-1": it is not paused"#);
    place.abide(&["unblock", "nap-1"]).refused(4, r#"execution "nap-1": it is not blocked"#);
    let rows = [
        ("report", r#""report" gives no result: an edit is written STEP=JSON"#),
        ("=1", r#""=1" names no step: an edit is written STEP=JSON"#),
        (
            "report=",
            r#"the result of step "report" is no JSON: EOF while parsing a value at line 1 column 0"#,
        ),
        ("report=nope", r#"the result of step "report" is no JSON: expected ident at line 1 column 2"#),
    ];
    for (edit, message) in rows {
        place.abide(&["unblock", "nap-1", "--edit", edit]).refused(2, message);
    }
    place.abide(&["unblock", "nap-1", "--rerun", "x"]).refused(4, r#"execution "nap-1": it is not blocked"#);
    let both = place.abide(&["unblock", "nap-1", "--rerun", "x", "--edit", "x=1"]);
    assert!(both.code == 2 && both.stderr.contains("cannot be used with"), "{both:?}");
    let bad = "the value of signal \"approval\" is no JSON: expected ident at line 1 column 2";
    place.abide(&["signal", "child", "approval", "nope"]).refused(2, bad);
    let bad = "what is on stdin is no JSON: it is not UTF-8";
    place.abide_with(&["signal", "child", "approval", "-"], b"\"\xff\"").refused(2, bad);
    let shown = place.abide(&["show", "child", "-o", "json"]).ok().json();
    assert_eq!(shown["inbox"], json!([]), "a refusal leaves no trace");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_can_be_verified_copied_and_restored() {
    let place = left_behind().await;
    let sound = place.abide(&["verify", "-o", "json"]).ok().json();
    assert_eq!((&sound["sound"], &sound["execution_count"]), (&json!(true), &json!(6)));
    assert!(place.abide(&["verify"]).ok().stdout.starts_with("sound: 6 executions, "));

    let path = |name: &str| place.folder().join(name).display().to_string();
    place.abide(&["backup", &path("copy.db")]).ok();
    let exists = format!("{:?}: the file exists and is not overwritten", path("copy.db"));
    place.abide(&["backup", &path("copy.db")]).refused(4, &exists);
    place.abide(&["--store", &path("new.db"), "restore", &path("copy.db")]).ok();
    let list = |args: &[&str]| place.abide(&[args, &["list", "-o", "json"]].concat()).ok().json();
    assert_eq!(list(&["--store", &path("new.db")]), list(&[]));
    place.abide(&["--store", &path("new.db"), "verify"]).ok();
    let exists = format!("{:?}: the file exists and is not overwritten", path("new.db"));
    place.abide(&["--store", &path("new.db"), "restore", &path("copy.db")]).refused(4, &exists);
}

/// A bare name, as one types it in the folder of a store that a worker has left with its log.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_with_a_log_is_restored_from_a_bare_name() {
    let place = TestStore::new();
    let abide = place.open().await;
    abide.run(greet, "World".to_owned()).id("greet-1").await.expect("it runs");
    let path = place.url().trim_start_matches("sqlite:").to_owned();
    let name = std::path::Path::new(&path).file_name().unwrap().to_str().unwrap();
    let restore =
        command(&["--store", "new.db", "restore", name]).current_dir(place.folder()).output().unwrap();
    assert!(restore.status.success(), "{}", String::from_utf8_lossy(&restore.stderr));
    let new = place.folder().join("new.db").display().to_string();
    assert!(place.abide(&["--store", &new, "list"]).ok().stdout.contains("greet-1"));
    abide.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_state_is_named_and_rebuilt() {
    let place = left_behind().await;
    let before = place.abide(&["show", "nap-1", "-o", "json"]).ok().json();
    let path = place.url().trim_start_matches("sqlite:").to_owned();
    let damage = "UPDATE abide_executions SET state = x'00' WHERE id = 'nap-1'";
    damage_by(path, damage);
    let found = place.abide(&["verify"]);
    assert!(found.code != 0 && found.stdout.contains("is damaged: it is cut short"), "{found:?}");
    let listed = place.abide(&["list", "--status", "damaged", "-o", "json"]).ok();
    assert!(listed.stdout.contains("nap-1"), "{listed:?}");
    let why = place.abide(&["why", "nap-1"]).ok();
    assert!(why.stdout.contains(r#""nap-1" is damaged: "#), "{why:?}");
    let table = place.abide(&["list", "--status", "damaged"]).ok().stdout;
    let words: Vec<_> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(words, ["nap-1", "nap", "damaged", "-", "-"], "{table}");
    let repaired = place.abide(&["verify", "--repair", "-o", "json"]).ok().json();
    assert_eq!(repaired["repaired"], serde_json::json!([r#"execution "nap-1": its state was rebuilt"#]));
    assert_eq!((&repaired["left"], &repaired["sound"]), (&serde_json::json!([]), &serde_json::json!(true)));
    let repaired = place.abide(&["verify", "--repair"]).ok();
    assert!(repaired.stdout.contains("sound: 6 executions, "), "{repaired:?}");
    let sound = place.abide(&["verify", "-o", "json"]).ok().json();
    assert!(sound.get("repaired").is_none(), "nothing was asked for: {sound}");
    let after = place.abide(&["show", "nap-1", "-o", "json"]).ok().json();
    assert_eq!(after["journal"], before["journal"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_message_is_dropped_by_name() {
    let place = left_behind().await;
    place.abide(&["signal", "family-1", "unheard"]).ok();
    let drop = || place.abide(&["verify", "--repair", "--drop-messages", "family-1"]);
    let none = r#"nothing of execution "family-1" was dropped: none of its unread messages is damaged"#;
    drop().refused(4, none);
    let path = place.url().trim_start_matches("sqlite:").to_owned();
    let damage = "UPDATE abide_inbox SET body = x'00' WHERE body IS NOT NULL";
    damage_by(path, damage);
    assert_eq!(place.abide(&["verify"]).code, 1);
    let dropped = drop().ok();
    assert!(dropped.stderr.contains("was dropped, and is lost"), "{dropped:?}");
    assert!(dropped.stdout.starts_with("sound: "), "{dropped:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_execution_with_a_damaged_message_is_shown_without_it() {
    let place = left_behind().await;
    place.abide(&["signal", "family-1", "first"]).ok();
    place.abide(&["signal", "family-1", "second"]).ok();
    let sound = place.abide(&["show", "family-1", "-o", "json"]).ok().json();
    assert_eq!(sound["damage"], json!([]));
    let path = place.url().trim_start_matches("sqlite:").to_owned();
    let damage = "UPDATE abide_inbox SET body = x'00'
        WHERE arrived = (SELECT MAX(arrived) FROM abide_inbox WHERE body IS NOT NULL)";
    damage_by(path, damage);
    let shown = place.abide(&["show", "family-1"]);
    assert_eq!(shown.code, 1, "{shown:?}");
    let said = "not all of execution \"family-1\" can be read; abide why family-1 says what can be done, \
                and abide verify what is wrong";
    assert!(shown.stderr.contains(said), "{shown:?}");
    for part in
        ["family-1  waiting", "  damage    message ", "JOURNAL", "child-started", "UNREAD MESSAGES", "first"]
    {
        assert!(shown.stdout.contains(part), "{part}: {shown:?}");
    }
    let shown = place.abide(&["show", "family-1", "-o", "json"]).json();
    assert!(shown["damage"][0].as_str().unwrap().contains("is damaged: its checksum is wrong"), "{shown}");
    assert_eq!((&shown["journal"], &shown["inbox"]), (&sound["journal"], &json!([sound["inbox"][0]])));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_execution_with_a_damaged_entry_is_shown_without_it() {
    let place = left_behind().await;
    let sound = place.abide(&["show", "family-1", "-o", "json"]).ok().json();
    let path = place.url().trim_start_matches("sqlite:").to_owned();
    let damage = "UPDATE abide_journal SET body = x'00' WHERE execution = (SELECT key FROM abide_executions
        WHERE id = 'family-1') AND row = (SELECT MAX(row) FROM abide_journal WHERE execution = (SELECT key FROM
        abide_executions WHERE id = 'family-1'))";
    damage_by(path, damage);
    let shown = place.abide(&["show", "family-1", "-o", "json"]);
    assert_eq!(shown.code, 1, "{shown:?}");
    let shown = shown.json();
    assert_eq!(shown["journal"][0], sound["journal"][0], "{shown}");
    assert!(shown["journal"].as_array().unwrap().len() < sound["journal"].as_array().unwrap().len());
    assert!(shown["damage"][0].as_str().unwrap().contains("damaged"), "{shown}");
    assert_eq!(shown["id"], "family-1");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_execution_is_shown_without_its_journal() {
    let place = left_behind().await;
    let shown = place.abide(&["show", "nap-1", "--limit", "0", "-o", "json"]).ok().json();
    assert_eq!(shown["journal"], serde_json::json!([]));
    let help = place.abide(&["show", "--help"]).ok().stdout;
    assert!(help.contains("0 shows the execution without them"), "{help}");
}

#[tokio::test(flavor = "multi_thread")]
async fn why_and_show_of_a_parent_name_its_damaged_child() {
    let place = left_behind().await;
    let path = place.url().trim_start_matches("sqlite:").to_owned();
    let damage = "UPDATE abide_executions SET state = x'00' WHERE id = 'child'";
    damage_by(path, damage);
    let why = place.abide(&["why", "family-1", "-o", "json"]).ok().json();
    let said = r#"workflow "family-1" is waiting for child "child" (at crates/cli/tests/cli/store.rs:43), which is damaged: the state of execution "child""#;
    assert_eq!(why["status"], "waiting");
    assert!(why["why"].as_str().unwrap().starts_with(said), "{why}");
    let shown = place.abide(&["show", "family-1", "-o", "json"]).ok().json();
    assert_eq!(shown["children"], json!([{ "id": "child", "name": null, "status": "damaged" }]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parent_gets_over_a_child_that_cannot_be_rebuilt() {
    let place = left_behind().await;
    let path = place.url().trim_start_matches("sqlite:").to_owned();
    let damage = "UPDATE abide_journal SET body = x'00'
                  WHERE execution = (SELECT key FROM abide_executions WHERE id = 'child')";
    let database = abide::rusqlite::Connection::open(path).unwrap();
    abide_sqlite::flaw::unbind(&database);
    let first = "SELECT min(row) FROM abide_journal WHERE body = x'00'";
    database.execute_batch(damage).unwrap();
    let row: i64 = database.query_row(first, [], |row| row.get(0)).unwrap();
    let why = place.abide(&["why", "child"]).ok().stdout;
    assert!(why.contains("abide verify --repair --discard child ends it"), "{why}");
    assert_eq!(place.abide(&["verify", "--discard", "child"]).code, 2, "it may be rebuilt");
    let discard = |id| place.abide(&["verify", "--repair", "--discard", id]);
    let left = format!(r#"abide: execution "child" cannot be rebuilt: journal row {row} is damaged"#);
    let sound = r#"abide: execution "nap-1" was not discarded: it is not damaged; abide terminate ends it"#;
    let unknown = r#"abide: there is no execution "nobody""#;
    for (id, code, refusal) in [("nap-1", 4, sound), ("nobody", 3, unknown)] {
        let refused = discard(id);
        let lines: Vec<_> = refused.stderr.lines().collect();
        assert_eq!((refused.code, &lines[..]), (code, &[&*left, refusal][..]));
    }
    discard("child").ok();
    let why = place.abide(&["why", "child"]).ok().stdout;
    assert!(why.ends_with("it was damaged and could not be rebuilt.\n"), "{why}");
    let abide = place.open().await;
    until_status(&place, "family-1", "failed");
    abide.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parent_gets_over_a_child_of_which_nothing_can_be_read() {
    let place = left_behind().await;
    let path = place.url().trim_start_matches("sqlite:").to_owned();
    let damage = "UPDATE abide_journal SET body = x'00'
                  WHERE execution = (SELECT key FROM abide_executions WHERE id = 'child');
                  UPDATE abide_executions SET state = x'00' WHERE id = 'child'";
    damage_by(path, damage);
    place.abide(&["verify", "--repair", "--discard", "child"]).ok();
    let lost = r#"execution "child": it was damaged, and was discarded"#;
    place.abide(&["retry", "child"]).refused(4, lost);
    let page = place.abide(&["show", "child"]).ok().stdout;
    assert!(
        page.contains("discarded, because it was damaged") && page.contains("parent    family-1"),
        "{page}"
    );
    let abide = place.open().await;
    until_status(&place, "family-1", "failed");
    abide.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_leaves_ends_a_list_quietly() {
    let place = left_behind().await;
    for format in ["table", "json", "jsonl"] {
        let mut command = command(&["--store", &place.url(), "list", "-o", format]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]), "{format}");
    }
}
