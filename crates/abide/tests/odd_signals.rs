//! A signal of another type than the code waits for is set aside, and the wait continues.

use abide::prelude::*;
use abide::testing::{History, Lab, Test};
use abide::{Builder, Status};
use abide_core::{Address, Entry, Event, ExecutionId, Namespace};
use abide_store::{Read, Record, Snapshot, Target};
use futures_util::join;

#[workflow(name = "approval")]
async fn approval(ctx: Ctx) -> Result<String> {
    match ctx.recv::<bool>("approval").timeout(secs(20)).await {
        Ok(is_approved) => Ok(format!("approved: {is_approved}")),
        Err(error) if error.is_timeout() => Ok("nobody answered".to_owned()),
        Err(error) => Err(error),
    }
}

/// The next deploy waits for a word.
#[workflow(name = "approval")]
async fn approval_by_word(ctx: Ctx) -> Result<String> {
    ctx.recv::<String>("approval").timeout(secs(20)).await
}

/// A deploy has renamed the signal.
#[workflow(name = "approval")]
async fn decision(ctx: Ctx) -> Result<String> {
    match ctx.recv::<bool>("decision").renamed_from("approval").timeout(secs(20)).await {
        Ok(is_approved) => Ok(format!("decided: {is_approved}")),
        Err(error) if error.is_timeout() => Ok("nobody decided".to_owned()),
        Err(error) => Err(error),
    }
}

#[workflow(name = "two")]
async fn numbers(ctx: Ctx) -> Result<u32> {
    Ok(ctx.recv::<u32>("n").await? + ctx.recv::<u32>("n").await?)
}

/// The next deploy adds texts.
#[workflow(name = "two")]
async fn texts(ctx: Ctx) -> Result<String> {
    Ok(ctx.recv::<String>("n").await? + &ctx.recv::<String>("n").await?)
}

/// The first version of the code.
fn first(builder: Builder) -> Builder {
    builder.workflow(approval).workflow(numbers)
}

/// A worker that runs none of these workflows.
fn elsewhere(builder: Builder) -> Builder {
    first(builder).lanes(["elsewhere"])
}

/// The version after it.
fn second(builder: Builder) -> Builder {
    builder.workflow(approval_by_word).workflow(texts)
}

/// Returns the journal of the current run.
async fn entries(lab: &Lab, id: &str) -> Vec<Entry> {
    let address = Address { namespace: Namespace::default(), id: ExecutionId::new(id).unwrap() };
    let read = Read { target: Target::Address(address), run: None, from: 1, limit: 100, with_inbox: true };
    let Snapshot { journal, inbox, .. } = lab.store().read(read).await.unwrap().unwrap();
    assert!(inbox.messages.is_empty(), "{:?}", inbox.messages);
    journal.iter().map(|record: &Record| record.entry().unwrap()).collect()
}

/// Returns the words of the journal.
async fn words(lab: &Lab, id: &str) -> String {
    let entries = entries(lab, id).await;
    entries.iter().map(|entry| entry.event.word()).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_signal_of_another_type_is_set_aside_and_the_wait_goes_on() {
    Lab::run_on_each(1, async |lab| {
        let (_, abide) = lab.worker_with(first).await.unwrap();
        let handle = abide.start(approval, ()).id("a").await.unwrap();
        lab.sleep(secs(5)).await;
        handle.signal("approval", "yes").await.unwrap();
        lab.sleep(secs(5)).await;
        let why = handle.why().await.unwrap();
        assert_eq!(handle.status().await.unwrap(), Status::Waiting, "{why}");
        assert!(why.contains(r#"is waiting for signal "approval""#), "{why}");
        assert!(
            why.contains("; one from client at 2025-06-15T15:06:45.000Z (5.0 s ago) was set aside: "),
            "{why}"
        );
        assert!(why.contains(r#"was set aside: expected bool, found "yes" (invalid type: "#), "{why}");
        handle.signal("approval", &true).await.unwrap();
        assert_eq!(handle.result().await.unwrap(), "approved: true");
        let expected = "started timer-set signal-rejected signal-received completed";
        assert_eq!(words(&lab, "a").await, expected);
        let rejected = entries(&lab, "a").await.into_iter().nth(2).unwrap();
        let Event::SignalRejected(rejected) = rejected.event else { panic!("{rejected:?}") };
        assert_eq!(rejected.payload.as_bytes(), br#""yes""#);
        assert_eq!(rejected.expected, "bool");
    });
}

/// The key of a signal that was set aside is used up.
#[test]
fn a_signal_that_was_set_aside_is_corrected_under_another_key() {
    Lab::run_on_each(1, async |lab| {
        let (_, abide) = lab.worker_with(first).await.unwrap();
        let handle = abide.start(approval, ()).id("a").await.unwrap();
        handle.signal("approval", "yes").idempotency_key("form-7").await.unwrap();
        lab.sleep(secs(5)).await;
        handle.signal("approval", &true).idempotency_key("form-7").await.unwrap();
        lab.sleep(secs(5)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Waiting, "it was sent before");
        handle.signal("approval", &true).idempotency_key("form-7-corrected").await.unwrap();
        assert_eq!(handle.result().await.unwrap(), "approved: true");
    });
}

/// The timeout counts from the beginning of the wait, whatever signals come meanwhile.
#[test]
fn a_signal_that_was_set_aside_lengthens_no_timeout() {
    Lab::run_on_each(2, async |lab| {
        let (_, abide) = lab.worker_with(first).await.unwrap();
        let handle = abide.start(approval, ()).id("a").await.unwrap();
        for n in 0..3 {
            lab.sleep(secs(6)).await;
            handle.signal("approval", &n).await.unwrap();
        }
        lab.sleep(ms(1_900)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Waiting);
        lab.sleep(ms(300)).await;
        assert_eq!(handle.result().await.unwrap(), "nobody answered");
        let expected =
            "started timer-set signal-rejected signal-rejected signal-rejected timer-fired completed";
        assert_eq!(words(&lab, "a").await, expected);
    });
}

/// Two sorts of signals arrive before any code waits for them.
#[test]
fn the_next_signal_of_the_name_is_delivered() {
    for bytes in [0, 1 << 20] {
        Lab::run_on_each(3, async |lab| {
            let (_, client) = lab.worker_with(elsewhere).await.unwrap();
            let handle = client.start(approval, ()).id("a").await.unwrap();
            handle.signal("approval", &"x".repeat(5_000)).await.unwrap();
            handle.signal("other", &1).await.unwrap();
            handle.signal("approval", &vec![1, 2]).await.unwrap();
            handle.signal("approval", &false).await.unwrap();
            let options = |builder| first(builder).mail_bytes_max(bytes);
            let (_, _abide) = lab.worker_with(options).await.unwrap();
            assert_eq!(handle.result().await.unwrap(), "approved: false");
        });
    }
}

#[test]
fn a_paused_execution_sets_nothing_aside_until_it_goes_on() {
    Lab::run_on_each(4, async |lab| {
        let (_, abide) = lab.worker_with(first).await.unwrap();
        let handle = abide.start(approval, ()).id("a").await.unwrap();
        lab.sleep(secs(1)).await;
        handle.pause().await.unwrap();
        lab.sleep(secs(1)).await;
        handle.signal("approval", &1).await.unwrap();
        lab.sleep(secs(5)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Paused);
        handle.resume().await.unwrap();
        lab.sleep(secs(1)).await;
        assert_eq!(words(&lab, "a").await, "started timer-set paused resumed signal-rejected");
        handle.signal("approval", &true).await.unwrap();
        assert_eq!(handle.result().await.unwrap(), "approved: true");
    });
}

#[test]
fn a_wait_that_set_something_aside_is_cancelled_like_any() {
    Lab::run_on_each(5, async |lab| {
        let (_, abide) = lab.worker_with(first).await.unwrap();
        let handle = abide.start(approval, ()).id("a").await.unwrap();
        handle.signal("approval", &1).await.unwrap();
        handle.cancel("enough").await.unwrap();
        lab.sleep(secs(1)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Cancelled);
    });
}

/// The machine that set the signal aside dies: no worker sets it aside again, and no code receives
/// it.
#[test]
fn a_signal_is_set_aside_once() {
    Lab::run_on_each(6, async |lab| {
        let (machine, abide) = lab.worker_with(first).await.unwrap();
        let handle = abide.start(approval, ()).id("a").await.unwrap();
        handle.signal("approval", "yes").await.unwrap();
        lab.sleep(secs(1)).await;
        lab.crash(machine);
        // A signal that the first code could not read stays set aside, though this code could read
        // it.
        let (_, abide) = lab.worker_with(second).await.unwrap();
        lab.sleep(secs(1)).await;
        let handle = abide.handle::<String>("a");
        handle.signal("approval", "no").await.unwrap();
        assert_eq!(handle.result().await.unwrap(), "no");
        let expected = "started timer-set signal-rejected signal-received completed";
        assert_eq!(words(&lab, "a").await, expected);
    });
}

/// A deploy has changed the type of a received signal: it is not set aside, because code has
/// continued with it.
#[test]
fn a_received_signal_is_never_set_aside() {
    Lab::run_on_each(7, async |lab| {
        let (machine, abide) = lab.worker_with(first).await.unwrap();
        let handle = abide.start(numbers, ()).id("a").await.unwrap();
        handle.signal("n", &1).await.unwrap();
        // Not so long that it has left memory.
        lab.sleep(ms(500)).await;
        lab.crash(machine);
        let (_, abide) = lab.worker_with(second).await.unwrap();
        lab.sleep(secs(60)).await;
        let why = abide.handle::<String>("a").why().await.unwrap();
        let expected =
            r#"the recorded result of signal "n" cannot be read: expected alloc::string::String, found 1"#;
        assert!(why.contains(expected), "{why}");
    });
}

#[workflow]
async fn impatient(ctx: Ctx) -> Result<String> {
    let first = ctx.recv::<u32>("n").timeout(secs(0)).await;
    let second = ctx.recv::<u32>("n").await?;
    Ok(format!("{:?} {second}", first.ok()))
}

/// Whichever comes first, the timer or the next signal: no set-aside signal is delivered, and no
/// other is lost.
#[test]
fn a_timeout_of_zero_beside_signals_of_another_type() {
    Lab::run_on_each(8, async |lab| {
        let (_, client) = lab.worker_with(elsewhere).await.unwrap();
        let handle = client.start(impatient, ()).id("a").await.unwrap();
        handle.signal("n", "one").await.unwrap();
        handle.signal("n", &2).await.unwrap();
        handle.signal("n", &3).await.unwrap();
        let (_, _abide) = lab.worker_with(first).await.unwrap();
        let found = handle.result().await.unwrap();
        assert!(["Some(2) 3", "None 2"].contains(&found.as_str()), "{found}");
    });
}

#[workflow]
async fn slow_to_answer(ctx: Ctx, patience_secs: u64) -> Result<bool> {
    ctx.recv("approval").timeout(secs(patience_secs)).await
}

#[test]
fn a_timeout_is_told_in_the_units_of_people() {
    for (patience_secs, expected) in [(172_800, "2 d"), (5_400, "1 h 30 min"), (20, "20 s")] {
        Lab::run(1, async |lab| {
            let (_, worker) = lab.worker_with(first).await.unwrap();
            let error = worker.run(slow_to_answer, patience_secs).await.unwrap_err().to_string();
            assert!(error.contains(&format!(r#"no signal "approval" came within {expected} ("#)), "{error}");
        });
    }
}

#[workflow]
async fn turns(ctx: Ctx, turn: u32) -> Result<u32> {
    if turn == 0 {
        ctx.step("wait", || async { Ok(()) }).await?;
        return ctx.continue_as_new(1).await;
    }
    ctx.recv("n").await
}

#[test]
fn the_next_run_sets_aside_what_the_last_one_did_not_read() {
    Lab::run_on_each(9, async |lab| {
        let (_, client) = lab.worker_with(elsewhere).await.unwrap();
        let handle = client.start(turns, 0).id("a").await.unwrap();
        handle.signal("n", "one").await.unwrap();
        handle.signal("n", &2).await.unwrap();
        let (_, _abide) = lab.worker_with(first).await.unwrap();
        assert_eq!(handle.result().await.unwrap(), 2);
        assert_eq!(words(&lab, "a").await, "started signal-rejected signal-received completed");
    });
}

#[workflow]
async fn either(ctx: Ctx) -> Result<(u32, String)> {
    let (number, word) = join!(ctx.recv::<u32>("n"), ctx.recv::<String>("n"));
    Ok((number?, word?))
}

/// Of two waits for one name, the first one that can read the signal receives it, whatever the
/// order of the signals.
#[test]
fn two_waits_of_different_types_share_the_signals_of_a_name() {
    for (is_early, is_word_first) in [(false, false), (false, true), (true, false), (true, true)] {
        Lab::run_on_each(10, async |lab| {
            let (_, client) = lab.worker_with(elsewhere).await.unwrap();
            let handle = client.start(either, ()).id("a").await.unwrap();
            let mut workers = Vec::new();
            if !is_early {
                workers.push(lab.worker_with(first).await.unwrap());
                lab.sleep(secs(1)).await;
            }
            handle.signal("n", &vec![0]).await.unwrap();
            if is_word_first {
                handle.signal("n", "word").await.unwrap();
                handle.signal("n", &7).await.unwrap();
            } else {
                handle.signal("n", &7).await.unwrap();
                handle.signal("n", "word").await.unwrap();
            }
            if is_early {
                workers.push(lab.worker_with(first).await.unwrap());
            }
            assert_eq!(handle.result().await.unwrap(), (7, "word".to_owned()));
            let expected = "started signal-rejected signal-received signal-received completed";
            assert_eq!(words(&lab, "a").await, expected);
        });
    }
}

#[workflow]
async fn twice(ctx: Ctx) -> Result<(u32, u32)> {
    let (one, other) = join!(ctx.recv::<u32>("n"), ctx.recv::<u32>("n"));
    Ok((one?, other?))
}

#[test]
fn of_two_equal_waits_the_first_receives_the_first_signal() {
    Lab::run_on_each(14, async |lab| {
        let (_, abide) = lab.worker_with(first).await.unwrap();
        let handle = abide.start(twice, ()).id("a").await.unwrap();
        lab.sleep(secs(1)).await;
        handle.signal("n", &1).await.unwrap();
        handle.signal("n", &2).await.unwrap();
        assert_eq!(handle.result().await.unwrap(), (1, 2));
    });
}

#[test]
fn a_history_with_a_signal_that_was_set_aside_fits_its_code() {
    let history = Lab::run(11, async |lab| {
        let (_, abide) = lab.worker_with(first).await.unwrap();
        let handle = abide.start(approval, ()).id("a").await.unwrap();
        handle.signal("approval", "yes").await.unwrap();
        lab.sleep(secs(1)).await;
        handle.signal("approval", &true).await.unwrap();
        handle.result().await.unwrap();
        let address = Address { namespace: Namespace::default(), id: ExecutionId::new("a").unwrap() };
        let whole = abide_store::export(&**lab.store(), &address).await.unwrap().unwrap();
        History::of(&whole).unwrap().to_string()
    });
    assert!(history.contains(r#"signal-rejected signal \"approval\": expected bool, found"#), "{history}");
    Test::new().workflow(approval).workflow(numbers).replay(&history).assert_fits();
    let found = Test::new().workflow(approval_by_word).workflow(numbers).replay(&history);
    assert!(found.blocked.is_some(), "{found}");
}

/// `crash_everywhere` crashes the workflow at every position of the journal.
#[test]
fn a_crash_at_any_entry_sets_the_same_aside() {
    let survived = Test::new()
        .workflow(approval)
        .workflow(numbers)
        .signal("approval", "yes")
        .signal("approval", &true)
        .crash_everywhere(approval, ());
    assert_eq!(survived.result.unwrap(), "approved: true");
    assert_eq!(survived.position_count, 5);
}

/// A signal was set aside under the old name of a wait. The renamed wait does not receive it, goes
/// on with the time of the old one, and sets aside under both names.
#[test]
fn a_renamed_wait_goes_on_behind_a_signal_that_was_set_aside() {
    let renamed = |builder: Builder| builder.workflow(decision).workflow(numbers).session_ttl(secs(3));
    for (name, expected) in
        [("approval", "decided: true"), ("decision", "decided: true"), ("", "nobody decided")]
    {
        Lab::run_on_each(12, async |lab| {
            let (machine, abide) =
                lab.worker_with(|builder| first(builder).session_ttl(secs(3))).await.unwrap();
            let handle = abide.start(approval, ()).id("a").await.unwrap();
            handle.signal("approval", "yes").await.unwrap();
            lab.sleep(secs(1)).await;
            lab.crash(machine);
            let (machine, abide) = lab.worker_with(renamed).await.unwrap();
            let handle = abide.handle::<String>("a");
            handle.signal("decision", "no").await.unwrap();
            handle.signal("approval", &1).await.unwrap();
            lab.sleep(secs(8)).await;
            assert_eq!(handle.status().await.unwrap(), Status::Waiting, "{}", handle.why().await.unwrap());
            lab.crash(machine);
            let (_, abide) = lab.worker_with(renamed).await.unwrap();
            let handle = abide.handle::<String>("a");
            if !name.is_empty() {
                handle.signal(name, &true).await.unwrap();
            }
            lab.sleep(secs(12)).await;
            assert_eq!(handle.result().await.unwrap(), expected, "{name}");
            let end = if name.is_empty() { "timer-fired" } else { "signal-received" };
            let all = "started timer-set signal-rejected signal-rejected signal-rejected";
            assert_eq!(words(&lab, "a").await, format!("{all} {end} completed"), "{name}");
        });
    }
}
