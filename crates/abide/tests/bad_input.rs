//! Wrong input of every kind: a clear error that names the thing, nothing written, no panic.

#![expect(clippy::disallowed_methods, reason = "it tests workflows that await what they must not")]

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

use abide::Receive;
use abide::prelude::*;
use futures_util::FutureExt;
use serde::{Deserialize, Serialize};

#[workflow]
async fn fine(_ctx: Ctx, _input: String) -> Result<String> {
    Ok("fine".to_owned())
}

/// A type whose values do not all serialize: JSON has no keys but strings.
#[derive(Clone, Serialize, Deserialize)]
struct Odd(BTreeMap<(u32, u32), u32>);

fn odd() -> Odd {
    Odd([((1, 2), 3)].into())
}

#[workflow]
async fn odd_input(_ctx: Ctx, _odd: Odd) -> Result<()> {
    Ok(())
}

#[workflow]
async fn odd_step(ctx: Ctx) -> Result<()> {
    ctx.step("odd", || async { Ok(odd()) }).await?;
    Ok(())
}

#[workflow]
async fn odd_result(_ctx: Ctx) -> Result<Odd> {
    Ok(odd())
}

#[workflow]
async fn big_step(ctx: Ctx, size: usize) -> Result<usize> {
    Ok(ctx.step("big", || async { Ok("x".repeat(size)) }).await?.len())
}

#[workflow]
async fn awaits_tokio(ctx: Ctx) -> Result<()> {
    ctx.step("before", || async { Ok(()) }).await?;
    tokio::time::sleep(ms(5)).await;
    Ok(())
}

#[workflow]
async fn races_tokio(ctx: Ctx) -> Result<()> {
    tokio::select! {
        _ = tokio::time::sleep(ms(5)) => Ok(()),
        _ = ctx.recv::<()>("never") => Ok(()),
    }
}

#[workflow]
async fn nests(ctx: Ctx) -> Result<()> {
    ctx.step("outer", || async { ctx.step("inner", || async { Ok(()) }).await }).await
}

#[workflow]
async fn clashes(ctx: Ctx) -> Result<()> {
    ctx.step("x", || async { Ok(()) }).await?;
    ctx.sleep(ms(1)).named("x").await
}

#[workflow]
async fn badly_named(ctx: Ctx, name: String) -> Result<()> {
    ctx.step(&name, || async { Ok(()) }).await
}

#[workflow]
async fn timed(ctx: Ctx, micros: u64) -> Result<u32> {
    let step = ctx.step("quick", || async { Ok(1) });
    step.timeout(std::time::Duration::from_micros(micros)).await
}

static KEPT: Mutex<Option<Ctx>> = Mutex::new(None);

/// Leaves a clone of its context behind, as code does that hands its context to a task.
#[workflow]
async fn leaves_its_ctx(ctx: Ctx) -> Result<()> {
    *KEPT.lock().unwrap() = Some(ctx.clone());
    ctx.step("x", || async { Ok(()) }).await
}

struct NotGiven;

const STATE_IS_ASKED_FOR_IN_LINE: u32 = line!() + 4;

#[workflow]
async fn wants_state(ctx: Ctx) -> Result<()> {
    let _: &NotGiven = ctx.state();
    Ok(())
}

/// Starts an execution, waits until it is blocked and returns the reason.
async fn blocked<W: abide::Workflow>(abide: &Abide, code: W, input: W::Input) -> Result<String> {
    let handle = abide.start(code, input).id("b").await?;
    while handle.status().await? != Status::Blocked {
        // The step may wait for the outside world; another run lets a little time pass.
        abide.run(timed, 1_000_000).await?;
        std::thread::yield_now();
    }
    let listed = abide.list(Filter::blocked()).await?;
    assert_eq!(listed.len(), 1);
    let why = handle.why().await?;
    let (_, reason) = why.split_once(" ago): ").unwrap();
    Ok(reason.trim_end_matches('.').to_owned())
}

#[abide::test]
async fn names_ids_and_tags_are_checked(abide: Abide) -> Result<()> {
    let input = || "x".to_owned();
    let long = "x".repeat(256);
    let cut = "x".repeat(40);
    let start = || abide.start(fine, input());
    let rows = [
        (start().id(""), r#"execution id "" is empty"#.to_owned()),
        (start().id("a\0b"), r#"execution id "a\0b" contains the control character U+0000"#.to_owned()),
        (start().id(&long), format!("execution id {cut:?} is too long: 256 bytes, at most 255")),
        (start().id("  "), r#"execution id "  " shows nothing"#.to_owned()),
        (
            start().id("a\u{200b}"),
            r#"execution id "a\u{200b}" contains the invisible character U+200B"#.to_owned(),
        ),
        (start().lane(""), r#"lane "" is empty"#.to_owned()),
        (start().lane("a\nb"), r#"lane "a\nb" contains the control character U+000A"#.to_owned()),
        (start().tag("", "x"), r#"tag key "" is empty"#.to_owned()),
        (start().tag("k", &long), format!("tag value {cut:?} is too long: 256 bytes, at most 255")),
        (start().tag("k", "a").tag("l", "b").tag("k", "a"), r#"tag key "k" is given twice"#.to_owned()),
        (start().requires([""]), r#"capability "" is empty"#.to_owned()),
    ];
    for (start, expected) in rows {
        assert_eq!(start.await.unwrap_err().to_string(), expected);
    }
    let many = (0..10_000).fold(start(), |start, n| start.tag(n.to_string(), "v"));
    let error = many.id("many").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"execution "many": the number of tags is over the limit tag_count_max: 10000, at most 64"#
    );
    assert_eq!(abide.list(Filter::all()).await?, []);
    Ok(())
}

#[tokio::test]
async fn bounds_of_zero_are_refused_by_name() {
    let builder = || Abide::builder("sqlite::memory:");
    let rows = [
        (builder().execution_count_max(0), "the execution_count_max is 0, but must be at least 1"),
        (builder().request_count_max(0), "the request_count_max is 0, but must be at least 1"),
    ];
    for (builder, expected) in rows {
        assert_eq!(builder.open().await.err().map(|error| error.to_string()).as_deref(), Some(expected));
    }
    let client = builder().request_count_max(0).client().await;
    assert_eq!(
        client.err().map(|error| error.to_string()).as_deref(),
        Some("the request_count_max is 0, but must be at least 1")
    );
    builder().execution_count_max(1).request_count_max(1).open().await.unwrap().shutdown().await;
}

#[abide::test]
async fn signals_are_checked(abide: Abide) -> Result<()> {
    let error = abide.handle::<()>("nobody").signal("x", &1).await.unwrap_err();
    assert!(matches!(error, ClientError::Unknown { .. }));
    assert_eq!(error.to_string(), r#"there is no execution "nobody""#);
    abide.run(fine, "x".into()).id("done").await?;
    let error = abide.handle::<()>("done").signal("x", &1).await.unwrap_err();
    assert_eq!(error.to_string(), r#"execution "done": it is completed already"#);
    let error = abide.handle::<()>("done").signal("", &1).await.unwrap_err();
    assert_eq!(error.to_string(), r#"signal name "" is empty"#);
    let error = abide.handle::<()>("done").signal("x", &odd()).await.unwrap_err();
    assert!(error.to_string().starts_with(r#"signal "x" does not serialize"#), "{error}");
    let error = abide.handle::<()>("").status().await.unwrap_err();
    assert_eq!(error.to_string(), r#"execution id "" is empty"#);
    let error = abide.handle::<u64>("done").result().await.unwrap_err();
    assert!(error.to_string().starts_with(r#"the result of execution "done" is no u64: "fine""#), "{error}");
    let error = abide.handle::<()>("done").cancel("x\u{1b}y").await.unwrap_err();
    assert!(error.to_string().contains("control character U+001B"), "{error}");
    Ok(())
}

#[abide::test]
async fn an_unknown_workflow_is_refused_by_name(abide: Abide) -> Result<()> {
    let error = abide.start_named::<_, ()>("x", "nope", &1).await.unwrap_err();
    assert_eq!(error.to_string(), r#"no workflow or task "nope" is registered here or by a worker"#);
    let handle = abide.start_named::<_, String>("y", "fine", &"x").await?;
    assert_eq!(handle.result().await?, "fine");
    Ok(())
}

#[abide::test]
async fn an_input_that_the_named_code_cannot_read_is_refused(abide: Abide) -> Result<()> {
    let error = abide.start_named::<_, ()>("x", "fine", &17).await.unwrap_err();
    assert!(matches!(error, ClientError::Data { .. }), "{error}");
    let expected = r#"the input of workflow "fine" cannot be read: expected alloc::string::String, found 17"#;
    assert!(error.to_string().starts_with(expected), "{error}");
    assert_eq!(abide.list(Filter::all()).await?, []);
    Ok(())
}

#[test]
fn a_client_starts_what_is_linked_into_it_by_name() {
    abide::testing::Lab::run(1, async |lab| {
        let (_, worker) = lab.worker().await.unwrap();
        let client = lab.client().await.unwrap();
        let handle = client.start_named::<_, String>("y", "fine", &"x").await.unwrap();
        assert_eq!(handle.result().await.unwrap(), "fine");
        let error = client.start_named::<_, String>("z", "fine", &17).await.unwrap_err();
        assert!(matches!(error, ClientError::Data { .. }), "{error}");
        let error = client.start_named::<_, String>("z", "nope", &17).await.unwrap_err();
        assert!(matches!(error, ClientError::UnknownCode { .. }), "{error}");
        worker.shutdown().await;
    });
}

#[abide::test]
async fn a_list_of_everything_is_one(abide: Abide) -> Result<()> {
    abide.run(fine, "x".into()).id("a").await?;
    let all = abide.list(Filter::all().take(usize::MAX)).await?;
    assert_eq!(all.len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_client_creates_no_store() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let url = format!("sqlite:{}", path.display());
    let error = Abide::client(&url).await.unwrap_err();
    assert!(matches!(&error, ClientError::NoStore { url: found } if *found == url), "{error:?}");
    assert_eq!(error.to_string(), format!("there is no store {url:?}: a client creates none"));
    assert!(!path.exists());
    // A file that something else may have made is left as it is.
    std::fs::write(&path, "").unwrap();
    let error = Abide::client(&url).await.unwrap_err();
    assert!(error.to_string().contains("has no tables of abide"), "{error}");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
    Abide::open(&url).await.unwrap().shutdown().await;
    assert_eq!(Abide::client(&url).await.unwrap().list(Filter::all()).await.unwrap(), []);
}

#[tokio::test]
async fn options_that_leave_nothing_to_do_are_refused() {
    let memory = || Abide::builder("sqlite::memory:");
    let rows = [
        (memory().lanes([]), "the list of lanes is empty: a worker serves at least one"),
        (
            memory().payload_bytes_max(0),
            "the payload_bytes_max is 0, but must be at least 4: even null has 4 bytes",
        ),
        (memory().session_ttl(ms(0)), "the session_ttl is 0 ms, but must be at least 50 ms"),
        (memory().entry_count_max(0), "the entry_count_max is 0, but must be at least 1"),
        (memory().transaction_ms_max(0), "the transaction_ms_max is 0, but must be at least 1"),
        (
            memory().transaction_ms_max(5_001),
            "the transaction_ms_max is 5001, but must be at most 5000, a third of the session_ttl of 15 s",
        ),
        (
            memory().session_ttl(secs(3)).transaction_ms_max(2_000),
            "the transaction_ms_max is 2000, but must be at most 1000, a third of the session_ttl of 3.0 s",
        ),
        (memory().lanes(["a", ""]), r#"lane "" is empty"#),
        (memory().worker_name(" "), r#"worker name " " shows nothing"#),
        (memory().build(""), r#"build "" is empty"#),
        (
            memory().capabilities(["\u{202e}"]),
            r#"capability "\u{202e}" contains the bidirectional control U+202E"#,
        ),
    ];
    for (builder, expected) in rows {
        let error = builder.open().await.unwrap_err();
        assert!(matches!(error, ClientError::Invalid { .. }), "{error:?}");
        assert_eq!(error.to_string(), expected);
    }
}

#[abide::test]
async fn an_input_that_does_not_serialize_is_refused(abide: Abide) -> Result<()> {
    let error = abide.run(odd_input, odd()).await.unwrap_err();
    assert!(matches!(error, ClientError::Data { .. }));
    assert!(
        error.to_string().starts_with(r#"the input of workflow "odd_input" does not serialize"#),
        "{error}"
    );
    Ok(())
}

#[abide::test]
async fn an_oversize_input_is_refused(abide: Abide) -> Result<()> {
    let error = abide.run(fine, "x".repeat(5 << 20)).id("big").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"execution "big": the input of "fine" is over the limit payload_bytes_max: 5242882, at most 4194304"#
    );
    assert!(matches!(abide.handle::<()>("big").status().await, Err(ClientError::Unknown { .. })));
    Ok(())
}

#[abide::test]
async fn a_result_that_does_not_serialize_blocks(abide: Abide) -> Result<()> {
    let why = blocked(&abide, odd_step, ()).await?;
    assert!(why.starts_with(r#"step "odd" has run, but its result could not be recorded"#), "{why}");
    Ok(())
}

#[abide::test]
async fn a_workflow_result_that_does_not_serialize_blocks(abide: Abide) -> Result<()> {
    let why = blocked(&abide, odd_result, ()).await?;
    assert!(why.starts_with(r#"the result of workflow "odd_result" does not serialize"#), "{why}");
    Ok(())
}

#[abide::test]
async fn an_oversize_step_result_blocks(abide: Abide) -> Result<()> {
    let why = blocked(&abide, big_step, 5 << 20).await?;
    assert_eq!(
        why,
        r#"step "big" has run, but its result could not be recorded: the result of step "big" is over the limit payload_bytes_max: 5242882, at most 4194304; to go on: abide unblock b --rerun big, or abide unblock b --edit big=JSON"#
    );
    Ok(())
}

#[abide::test]
async fn an_await_that_is_not_recorded_is_reported(abide: Abide) -> Result<()> {
    let why = blocked(&abide, awaits_tokio, ()).await?;
    assert!(
        why.starts_with(r#"workflow "awaits_tokio" awaits something that is not a ctx operation"#),
        "{why}"
    );
    Ok(())
}

/// Uses real time: virtual time could overtake the real timer, and a workflow that waits for a
/// signal would have left memory before the timer fires.
#[tokio::test]
async fn a_race_with_an_await_that_is_not_recorded_is_reported() -> Result<()> {
    let abide = Abide::builder("sqlite::memory:").park_after(secs(3_600)).open().await?;
    let why = blocked(&abide, races_tokio, ()).await?;
    assert!(why.starts_with(r#"workflow "races_tokio" awaits something"#), "{why}");
    Ok(())
}

#[abide::test]
async fn a_durable_operation_inside_a_step_is_reported(abide: Abide) -> Result<()> {
    let why = blocked(&abide, nests, ()).await?;
    assert!(why.starts_with(r#"step "inner" (at crates/abide/tests/bad_input.rs:"#), "{why}");
    assert!(why.ends_with(r#") is used inside step "outer", where nothing can be recorded"#), "{why}");
    Ok(())
}

#[abide::test]
async fn a_name_used_for_two_kinds_is_reported(abide: Abide) -> Result<()> {
    let why = blocked(&abide, clashes, ()).await?;
    let clash = r#"the name "x" is used for a step and for a timer (at crates/abide/tests/bad_input.rs:"#;
    assert!(why.starts_with(clash), "{why}");
    Ok(())
}

#[abide::test]
async fn a_step_name_is_checked(abide: Abide) -> Result<()> {
    let why = blocked(&abide, badly_named, String::new()).await?;
    assert!(why.starts_with(r#"step name "" is empty (at crates/abide/tests/bad_input.rs:"#), "{why}");
    Ok(())
}

/// Nothing would ever wake such an operation.
#[abide::test]
async fn a_ctx_whose_execution_has_ended_is_refused_by_name(abide: Abide) -> Result<()> {
    abide.run(leaves_its_ctx, ()).id("gone").await?;
    let ctx = KEPT.lock().unwrap().take().unwrap();
    let expected = |op: &str| {
        Some(format!(
            r#"{op} is used after its execution "gone" has ended or left memory, where nothing can be recorded"#
        ))
    };
    let said = |error: Option<Error>| error.map(|error| error.to_string());
    let step = ctx.step("late", || async { Ok(1) }).now_or_never();
    assert_eq!(said(step.map(Result::unwrap_err)), expected(r#"step "late""#));
    let sleep = ctx.sleep(ms(1)).now_or_never();
    assert_eq!(said(sleep.map(Result::unwrap_err)), expected(r#"timer "(sleep)""#));
    let receipt = ctx.recv::<u8>("late").now_or_never();
    assert_eq!(said(receipt.map(Result::unwrap_err)), expected(r#"signal "late""#));
    let child = ctx.start(fine, "x".into()).now_or_never();
    assert_eq!(said(child.map(|child| child.err().unwrap())), expected(r#"child "fine""#));
    let next = ctx.continue_as_new::<()>(1).now_or_never();
    assert_eq!(said(next.map(Result::unwrap_err)), expected("continue_as_new"));
    Ok(())
}

/// A job and its pool of one thread: real threads, so real time.
#[derive(Clone)]
struct Pool {
    has_begun: Arc<AtomicBool>,
}

#[workflow]
async fn queued_job(ctx: Ctx) -> Result<()> {
    let has_begun = ctx.state::<Pool>().has_begun.clone();
    let job = move || {
        has_begun.store(true, Ordering::SeqCst);
        Ok(())
    };
    ctx.blocking("late", job).timeout(ms(20)).await
}

#[test]
fn a_queued_job_does_not_begin_after_its_timeout_was_recorded() {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).max_blocking_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let (release, released) = std::sync::mpsc::channel::<()>();
        let occupies = tokio::task::spawn_blocking(move || released.recv().is_ok());
        let pool = Pool { has_begun: Arc::default() };
        let abide = Abide::builder("sqlite::memory:").state(pool.clone()).open().await.unwrap();
        let error = abide.run(queued_job, ()).await.unwrap_err();
        assert!(error.to_string().contains("the attempt took longer than 20ms"), "{error}");
        release.send(()).unwrap();
        assert!(occupies.await.unwrap());
        // The queue is first in, first out: the job would have run before this one.
        tokio::task::spawn_blocking(|| ()).await.unwrap();
        assert!(!pool.has_begun.load(Ordering::SeqCst), "its timeout is its recorded outcome");
    });
}

/// The waker of a task of the user's: whether it was called.
#[derive(Default)]
struct Called(AtomicBool);

impl Wake for Called {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// An operation, and the waker of the task that waits for it.
type Elsewhere = (Pin<Box<Receive<u8>>>, Arc<Called>);

static ELSEWHERE: Mutex<Option<Elsewhere>> = Mutex::new(None);

#[workflow]
async fn leaves_an_operation(ctx: Ctx) -> Result<()> {
    let (mut receipt, called) = (Box::pin(ctx.recv("never")), Arc::new(Called::default()));
    ctx.step("begin", || async { Ok(()) }).await?;
    let waker = Waker::from(called.clone());
    assert!(receipt.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    *ELSEWHERE.lock().unwrap() = Some((receipt, called));
    ctx.sleep(secs(1)).await
}

/// Nobody else would poll the operation again: its task would wait for ever.
#[abide::test]
async fn an_operation_that_is_kept_elsewhere_is_woken_when_its_execution_is_gone(abide: Abide) -> Result<()> {
    abide.run(leaves_an_operation, ()).await?;
    let (receipt, called) = ELSEWHERE.lock().unwrap().take().unwrap();
    assert!(called.0.load(Ordering::SeqCst), "its task was woken");
    let error = receipt.now_or_never().expect("it says so at once").unwrap_err();
    assert!(error.to_string().contains("has ended or left memory"), "{error}");
    Ok(())
}

#[abide::test]
async fn a_panic_for_missing_state_points_at_the_caller(abide: Abide) -> Result<()> {
    static LINE: Mutex<Option<(String, u32)>> = Mutex::new(None);
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let message = panic.payload().downcast_ref::<String>();
        if message.is_some_and(|message| message.contains("NotGiven")) {
            *LINE.lock().unwrap() = panic.location().map(|at| (at.file().to_owned(), at.line()));
        } else {
            before(panic);
        }
    }));
    let error = abide.run(wants_state, ()).await.unwrap_err();
    assert!(error.to_string().contains("no state of type bad_input::NotGiven"), "{error}");
    let expected = (file!().to_owned(), STATE_IS_ASKED_FOR_IN_LINE);
    assert_eq!(LINE.lock().unwrap().clone(), Some(expected));
    Ok(())
}

#[abide::test]
async fn zero_and_huge_timeouts_are_no_problem(abide: Abide) -> Result<()> {
    assert_eq!(abide.run(timed, u64::MAX).await?, 1);
    // A closure that is ready at once has ended before any other timeout can come.
    assert_eq!(abide.run(timed, 1).await?, 1);
    let error = abide.run(timed, 0).await.unwrap_err().to_string();
    assert!(error.contains("the attempt was due at once: its timeout is 0"), "{error}");
    assert_eq!(abide.run(fine, "x".into()).delay(ms(0)).deadline(std::time::Duration::MAX).await?, "fine");
    Ok(())
}

#[tokio::test]
async fn urls_are_checked() {
    let rows = [
        (
            "",
            r#"the store "" cannot be opened: the URL is empty: write sqlite:PATH, sqlite::memory:, postgres://… or a path"#,
        ),
        (
            "mysql://x",
            r#"the store "mysql://x" cannot be opened: the scheme "mysql" is unknown: write sqlite:PATH, sqlite::memory:, postgres://… or a path"#,
        ),
        (
            "sqlite:/tmp/abide-no-such.db?mode=rwc",
            r#"the store "sqlite:/tmp/abide-no-such.db?mode=rwc" cannot be opened: the parameter "mode" is unknown: a URL of a SQLite store has none; a file whose name contains a question mark is named by its bare path"#,
        ),
    ];
    for (url, expected) in rows {
        assert_eq!(Abide::open(url).await.unwrap_err().to_string(), expected);
    }
    let error = Abide::builder("sqlite::memory:").namespace("").open().await.unwrap_err();
    assert_eq!(error.to_string(), r#"namespace "" is empty"#);
}
