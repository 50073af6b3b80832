//! The order of delivery is the order of events: a timer against a message by due time and arrival,
//! messages among themselves in the store's order. The same holds live, after downtime, after a
//! takeover and after a pause.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use abide::prelude::*;
use abide::testing::{Lab, Machine, Skew};
use abide::{Builder, Code, Workflow};
use abide_core::Bounds;
use abide_store::faults::{Fault, FaultyStore, NoticeFault};
use abide_store::memory::MemoryStore;
use abide_store::{Clock, Notice, Store};
use tokio::join;
use tokio::sync::Notify;

/// Waits for a signal, with a timeout.
#[workflow]
async fn patient(ctx: Ctx, patience: Duration) -> Result<String> {
    match ctx.recv::<String>("a").timeout(patience).await {
        Err(error) if error.is_timeout() => Ok("timer".to_owned()),
        other => other.map(|text| text[..7].to_owned()),
    }
}

/// The timer is written behind the wait for the signal.
#[workflow]
async fn signal_or_sleep(ctx: Ctx, nap: Duration) -> Result<String> {
    select! {
        text = ctx.recv::<String>("a") => text.map(|text| text[..7].to_owned()),
        slept = ctx.sleep(nap) => slept.map(|()| "timer".to_owned()),
    }
}

/// The timer is written before the wait for the signal.
#[workflow]
async fn sleep_or_signal(ctx: Ctx, nap: Duration) -> Result<String> {
    select! {
        slept = ctx.sleep(nap) => slept.map(|()| "timer".to_owned()),
        text = ctx.recv::<String>("a") => text.map(|text| text[..7].to_owned()),
    }
}

/// Awaits both to the end, and returns the first.
#[workflow]
async fn signal_and_sleep(ctx: Ctx, nap: Duration) -> Result<String> {
    let first = Mutex::new(None);
    let say = |what: &str| _ = first.lock().unwrap().get_or_insert(what.to_owned());
    let (text, slept) = join!(
        async {
            let text = ctx.recv::<String>("a").await?;
            say(&text[..7]);
            Ok::<_, Error>(())
        },
        async {
            ctx.sleep(nap).await?;
            say("timer");
            Ok::<_, Error>(())
        },
    );
    text?;
    slept?;
    Ok(first.into_inner().unwrap().unwrap_or_default())
}

/// Ends when its signal arrives, wherever it runs.
#[workflow]
async fn child(ctx: Ctx) -> Result<String> {
    ctx.recv::<String>("a").await
}

/// The answer of a child is a message, like a signal.
#[workflow]
async fn child_or_sleep(ctx: Ctx, nap: Duration) -> Result<String> {
    select! {
        text = ctx.run(child, ()).id("child").lane("children") => text.map(|text| text[..7].to_owned()),
        slept = ctx.sleep(nap) => slept.map(|()| "timer".to_owned()),
    }
}

/// The disturbance while time passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meanwhile {
    Nothing,
    /// The execution leaves memory and comes back when something has happened.
    Parked,
    Downtime,
    Takeover,
    Pause,
}

const MEANWHILE: [Meanwhile; 5] =
    [Meanwhile::Nothing, Meanwhile::Parked, Meanwhile::Downtime, Meanwhile::Takeover, Meanwhile::Pause];

/// The times of the events, from the start on.
#[derive(Clone, Copy, Debug)]
struct Plan {
    due: Duration,
    signal: Duration,
    mail_bytes_max: usize,
    meanwhile: Meanwhile,
    /// The difference between the clocks of the first worker and the store.
    skew: Option<Skew>,
}

impl Plan {
    fn options(self, builder: Builder) -> Builder {
        let builder = builder.mail_bytes_max(self.mail_bytes_max);
        let builder =
            if self.meanwhile == Meanwhile::Parked { builder } else { builder.park_after(hours(1)) };
        builder.session_ttl(secs(10))
    }
}

/// Returns the result of `flow` if its timer and the signal come as planned, and the disturbance
/// ends after both.
async fn lives(lab: Lab, flow: impl Workflow<Input = Duration, Output = String>, plan: Plan) -> String {
    let elsewhere = |builder: Builder| builder.lanes(["children"]).session_ttl(secs(10));
    let (_, _children) = lab.worker_with(elsewhere).await.unwrap();
    let client = lab.client().await.unwrap();
    let (machine, abide) = lab.worker_with(|builder| plan.options(builder)).await.unwrap();
    if let Some(skew) = plan.skew {
        lab.set_skew(machine, skew);
    }
    let handle = abide.start(flow, plan.due).id("one").await.unwrap();
    lab.sleep(secs(1)).await;
    begin(&lab, machine, &client, plan.meanwhile).await;
    lab.sleep(plan.signal - secs(1)).await;
    let target = if client.handle::<String>("child").status().await.is_ok() { "child" } else { "one" };
    // The store refuses the signal if the run has ended.
    let _ = client.handle::<String>(target).signal("a", &large("signals")).await;
    lab.sleep(secs(60)).await;
    let (_, _next) = match plan.meanwhile {
        Meanwhile::Downtime | Meanwhile::Takeover => {
            let (machine, next) = lab.worker_with(|builder| plan.options(builder)).await.unwrap();
            (Some(machine), Some(next))
        }
        Meanwhile::Pause => {
            client.handle::<String>("one").resume().await.unwrap();
            (None, None)
        }
        _ => (None, None),
    };
    lab.sleep(secs(60)).await;
    lab.thaw(machine);
    drop(handle);
    client.handle::<String>("one").result().await.unwrap()
}

/// Returns a text that is larger than the bytes of it that are kept in memory.
fn large(text: &str) -> String {
    format!("{text}{}", "x".repeat(1_000))
}

async fn begin(lab: &Lab, machine: Machine, client: &Abide, meanwhile: Meanwhile) {
    match meanwhile {
        Meanwhile::Nothing | Meanwhile::Parked => {}
        Meanwhile::Downtime => lab.crash(machine),
        Meanwhile::Takeover => lab.freeze(machine),
        Meanwhile::Pause => client.handle::<String>("one").pause().await.unwrap(),
    }
}

/// Checks that the same comes first under every disturbance.
fn check<W: Workflow<Input = Duration, Output = String> + Copy>(flow: W, signal_at: u64, expected: &str) {
    for meanwhile in MEANWHILE {
        // A pause reaches the whole tree: the child would not answer.
        if meanwhile == Meanwhile::Pause && W::NAME == "child_or_sleep" {
            continue;
        }
        for mail_bytes_max in [1 << 20, 0] {
            let (due, signal) = (secs(20), secs(signal_at));
            let plan = Plan { due, signal, mail_bytes_max, meanwhile, skew: None };
            Lab::run_on_each(1, |lab| async move {
                assert_eq!(lives(lab, flow, plan).await, expected, "{plan:?}");
            });
        }
    }
}

#[test]
fn a_signal_before_the_timeout_is_received() {
    check(patient, 10, "signals");
}

#[test]
fn a_signal_after_the_timeout_is_too_late() {
    check(patient, 30, "timer");
}

#[test]
fn an_earlier_signal_goes_before_a_timer() {
    check(signal_or_sleep, 10, "signals");
    check(sleep_or_signal, 10, "signals");
    check(signal_and_sleep, 10, "signals");
}

#[test]
fn an_earlier_timer_goes_before_a_signal() {
    check(signal_or_sleep, 30, "timer");
    check(sleep_or_signal, 30, "timer");
    check(signal_and_sleep, 30, "timer");
}

#[test]
fn the_answer_of_a_child_against_a_timer_is_in_order_too() {
    check(child_or_sleep, 10, "signals");
    check(child_or_sleep, 30, "timer");
}

/// Returns whether the child answered or the signal came first.
#[workflow]
async fn child_or_signal(ctx: Ctx) -> Result<String> {
    select! {
        text = ctx.run(child, ()).id("child").lane("children") => text,
        text = ctx.recv::<String>("a") => text,
    }
}

/// Both arrive while nobody runs the parent.
#[test]
fn the_answer_of_a_child_against_a_signal_is_in_order_too() {
    for targets in [["one", "child"], ["child", "one"]] {
        for mail_bytes_max in [1 << 20, 0] {
            Lab::run_on_each(1, |lab| async move {
                let elsewhere = |builder: Builder| builder.lanes(["children"]).session_ttl(secs(10));
                let (_, _children) = lab.worker_with(elsewhere).await.unwrap();
                let options = |builder: Builder| builder.mail_bytes_max(mail_bytes_max).session_ttl(secs(10));
                let (machine, abide) = lab.worker_with(options).await.unwrap();
                abide.start(child_or_signal, ()).id("one").await.unwrap();
                lab.sleep(secs(1)).await;
                lab.crash(machine);
                let client = lab.client().await.unwrap();
                for target in targets {
                    client.handle::<String>(target).signal("a", &target.to_owned()).await.unwrap();
                    lab.sleep(secs(20)).await;
                }
                let (_, next) = lab.worker_with(options).await.unwrap();
                let first = next.handle::<String>("one").result().await.unwrap();
                assert_eq!(first, targets[0], "{mail_bytes_max}");
            });
        }
    }
}

/// Loses every notice of a message to "one".
fn unnoticed(clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    FaultyStore::disturbing(MemoryStore::new(clock, Bounds::default()), |notice| match notice {
        Notice::Message { message, .. } if message.to.id.as_str() == "one" => NoticeFault::Lose,
        _ => NoticeFault::None,
    })
}

/// The worker has to ask the store before a timer fires. It would not look by itself so soon.
#[test]
fn a_message_without_a_notice_goes_before_a_later_timer() {
    let (due, signal) = (secs(20), ms(19_990));
    let plan = Plan { due, signal, mail_bytes_max: 1 << 20, meanwhile: Meanwhile::Nothing, skew: None };
    let check = |found: String| assert_eq!(found, "signals");
    check(Lab::run_on(1, unnoticed, |lab| lives(lab, patient, plan)));
    check(Lab::run_on(1, unnoticed, |lab| lives(lab, signal_or_sleep, plan)));
    check(Lab::run_on(1, unnoticed, |lab| lives(lab, child_or_sleep, plan)));
}

/// The timer is due while its look is on its way, and once more after the clock was set back. The
/// signal came in between: the first look is too old.
#[test]
fn a_timer_that_is_due_again_looks_again() {
    let slow = Arc::new(OnceLock::<Arc<FaultyStore>>::new());
    let made = slow.clone();
    let make = move |clock| -> Arc<dyn Store> {
        let hold = |operation| if operation == "inbox" { Fault::Hold } else { Fault::None };
        made.get_or_init(|| FaultyStore::deciding(unnoticed(clock), hold)).clone()
    };
    Lab::run_on(1, make, |lab| async move {
        let options = |builder: Builder| builder.session_ttl(hours(12)).park_after(hours(1));
        let (_, abide) = lab.worker_with(options).await.unwrap();
        let handle = abide.start(patient, secs(20)).id("one").await.unwrap();
        lab.sleep(secs(21)).await;
        assert!(!handle.status().await.unwrap().is_terminal(), "it looks");
        lab.set_clock_back(secs(11));
        slow.get().unwrap().heal();
        lab.sleep(ms(9_990)).await;
        handle.signal("a", &large("signals")).await.unwrap();
        assert_eq!(handle.result().await.unwrap(), "signals");
    });
}

/// Waits in vain, and for a signal that is there when its step has ended.
#[workflow]
async fn waits_in_vain_and_again(ctx: Ctx, patience: Duration) -> Result<String> {
    ctx.recv::<()>("nothing").timeout(patience).await.unwrap_err();
    let gate = ctx.state::<Arc<Notify>>();
    ctx.step("gate", || async {
        gate.notified().await;
        Ok(())
    })
    .await?;
    <patient as Code>::call(ctx, Duration::ZERO).await
}

/// The clock was set back after the look of the first timer, so the second is due before that look
/// was. But it was set after it, and after the signal.
#[test]
fn a_timer_that_is_set_after_a_look_has_its_own() {
    Lab::run_on(1, unnoticed, |lab| async move {
        let gate = Arc::new(Notify::new());
        let options = |builder: Builder| builder.session_ttl(hours(12)).state(gate.clone());
        let (_, abide) = lab.worker_with(options).await.unwrap();
        let handle = abide.start(waits_in_vain_and_again, secs(20)).id("one").await.unwrap();
        lab.sleep(secs(21)).await;
        lab.set_clock_back(secs(10));
        handle.signal("a", &large("signals")).await.unwrap();
        lab.sleep(ms(10)).await;
        gate.notify_one();
        assert_eq!(handle.result().await.unwrap(), "signals");
    });
}

/// The order of a timer and a message is wrong by no more than the clocks differ.
#[test]
fn clocks_that_differ_by_less_than_the_outcomes_change_nothing() {
    for skew in [Skew::Ahead(secs(5)), Skew::Behind(secs(5))] {
        for meanwhile in MEANWHILE {
            for (signal_at, expected) in [(10, "signals"), (30, "timer")] {
                let (due, signal) = (secs(20), secs(signal_at));
                let plan = Plan { due, signal, mail_bytes_max: 0, meanwhile, skew: Some(skew) };
                Lab::run(1, |lab| async move {
                    assert_eq!(lives(lab, signal_or_sleep, plan).await, expected, "{plan:?}");
                });
            }
        }
    }
}

/// At the same moment the timer goes first: it was due when the message came.
#[test]
fn a_timer_that_is_due_when_a_message_arrives_goes_before_it() {
    check(patient, 20, "timer");
    check(signal_or_sleep, 20, "timer");
    check(sleep_or_signal, 20, "timer");
    check(signal_and_sleep, 20, "timer");
}

/// Waits for all of these names at once, and returns them in the order of arrival.
#[workflow]
async fn all_of(ctx: Ctx, names: Vec<String>) -> Result<Vec<String>> {
    let got = Mutex::new(Vec::new());
    let receive = async |name: &str| {
        let text: String = ctx.recv(name).await?;
        got.lock().unwrap().push(text[..1].to_owned());
        Ok::<_, Error>(())
    };
    let (one, two, three) = join!(receive(&names[0]), receive(&names[1]), receive(&names[2]));
    one.and(two).and(three)?;
    Ok(got.into_inner().unwrap())
}

/// Waits for any of these names, again and again.
#[workflow]
async fn any_of(ctx: Ctx, names: Vec<String>) -> Result<Vec<String>> {
    let mut got = Vec::new();
    for _ in 0..3 {
        let text = select! {
            text = ctx.recv::<String>(&names[0]) => text,
            text = ctx.recv::<String>(&names[1]) => text,
            text = ctx.recv::<String>(&names[2]) => text,
        };
        got.push(text?[..1].to_owned());
    }
    Ok(got)
}

/// Sends three signals before the code asks for any of them.
fn check_names<W: Workflow<Input = Vec<String>, Output = Vec<String>> + Copy>(flow: W) {
    for mail_bytes_max in [1 << 20, 0, 1_500] {
        for is_late in [false, true] {
            Lab::run_on_each(1, |lab| async move {
                let options = |builder: Builder| builder.mail_bytes_max(mail_bytes_max);
                let client = lab.client().await.unwrap();
                let first = match is_late {
                    true => None,
                    false => Some(lab.worker_with(options).await.unwrap()),
                };
                let names = ["a", "b", "c"].map(str::to_owned).to_vec();
                let handle = client.start(flow, names).id("one").await.unwrap();
                handle.pause().await.unwrap();
                for name in ["c", "a", "b"] {
                    handle.signal(name, &large(name)).await.unwrap();
                }
                let next = match is_late {
                    true => Some(lab.worker_with(options).await.unwrap()),
                    false => None,
                };
                handle.resume().await.unwrap();
                assert_eq!(handle.result().await.unwrap(), ["c", "a", "b"], "{mail_bytes_max} {is_late}");
                drop((first, next));
            });
        }
    }
}

#[test]
fn signals_that_were_there_before_the_code_asked_come_in_the_stores_order() {
    check_names(all_of);
    check_names(any_of);
}

/// The store's order holds, whatever its clock shows.
#[test]
fn signals_keep_their_order_when_the_clock_is_set_back() {
    Lab::run(1, |lab| async move {
        let (_, abide) = lab.worker_with(|builder| builder.session_ttl(hours(12))).await.unwrap();
        let names = ["a", "b", "c"].map(str::to_owned).to_vec();
        let handle = abide.start(any_of, names).id("one").await.unwrap();
        handle.pause().await.unwrap();
        for name in ["c", "a", "b"] {
            handle.signal(name, &large(name)).await.unwrap();
            lab.set_clock_back(hours(1));
        }
        handle.resume().await.unwrap();
        assert_eq!(handle.result().await.unwrap(), ["c", "a", "b"]);
    });
}

/// Waits for its first signal, and then for another one with a timeout.
#[workflow]
async fn goes_and_waits(ctx: Ctx, patience: Duration) -> Result<String> {
    ctx.recv::<()>("go").await?;
    <patient as Code>::call(ctx, patience).await
}

/// Checks that a waiting signal is received however short the timeout is, and that the timer fires
/// if no signal waits.
fn check_short(patience: Duration, skew: Option<Skew>) {
    for mail_bytes_max in [1 << 20, 0] {
        Lab::run_on_each(1, |lab| async move {
            let (machine, abide) =
                lab.worker_with(|builder| builder.mail_bytes_max(mail_bytes_max)).await.unwrap();
            if let Some(skew) = skew {
                lab.set_skew(machine, skew);
            }
            let there = abide.start(goes_and_waits, patience).id("there").await.unwrap();
            there.signal("a", &large("signals")).await.unwrap();
            there.signal("go", &()).await.unwrap();
            assert_eq!(there.result().await.unwrap(), "signals", "{patience:?} {skew:?}");
            let nothing = abide.start(goes_and_waits, patience).id("nothing").await.unwrap();
            nothing.signal("go", &()).await.unwrap();
            assert_eq!(nothing.result().await.unwrap(), "timer", "{patience:?} {skew:?}");
        });
    }
}

#[test]
fn what_is_there_is_received_however_short_the_timeout_is() {
    for patience in [Duration::ZERO, Duration::from_micros(1)] {
        for skew in [None, Some(Skew::Ahead(secs(5))), Some(Skew::Behind(secs(5)))] {
            check_short(patience, skew);
        }
    }
}
