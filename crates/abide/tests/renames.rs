//! Operations that have another name in newer code, and results that have another type.

use std::sync::{Arc, Mutex};

use abide::prelude::*;
use abide::testing::{Lab, Machine};
use abide::{Builder, Workflow};
use abide_core::{Address, Event, ExecutionId, Namespace, Phase};
use abide_store::{Read, Target};

/// The steps that ran, in order.
#[derive(Clone, Default)]
struct Ran(Arc<Mutex<Vec<String>>>);

impl Ran {
    fn take(&self) -> String {
        std::mem::take(&mut *self.0.lock().unwrap()).join(" ")
    }
}

fn note(ctx: &Ctx, what: &str) {
    ctx.state::<Ran>().0.lock().unwrap().push(what.to_owned());
}

async fn go(ctx: &Ctx) -> Result<()> {
    ctx.recv("go").await
}

/// Two versions of one workflow, each of them plain and strict.
macro_rules! version {
    ($name:ident, |$ctx:ident| $body:block) => {
        mod $name {
            use super::*;
            #[workflow(name = "flow")]
            pub(super) async fn plain($ctx: Ctx) -> Result<String> $body
            #[workflow(name = "flow", strict)]
            pub(super) async fn strict($ctx: Ctx) -> Result<String> $body
        }
    };
}

#[task]
async fn double(n: u64) -> Result<u64> {
    Ok(n * 2)
}

#[task(renamed_from = "double")]
async fn twice(n: u64) -> Result<u64> {
    Ok(n * 200)
}

version!(old, |ctx| {
    let paid: u64 = ctx.step("pay", || async { Ok(7) }).await?;
    let keyed: u64 = ctx.step("send", || async { Ok(8) }).key(&1).await?;
    ctx.sleep(secs(1)).named("pause").await?;
    let told: u64 = ctx.recv("told").await?;
    let child = ctx.run(double, 3).await?;
    go(&ctx).await?;
    Ok(format!("{paid} {keyed} {told} {child}"))
});

version!(new, |ctx| {
    let run = |name: &'static str, value: u64| {
        note(&ctx, name);
        Ok(value)
    };
    let paid: u64 = ctx.step("charge", || async { run("charge", 70) }).renamed_from("pay").await?;
    let keyed = ctx.step("mail", || async { run("mail", 80) }).key(&1).renamed_from("send");
    let keyed: u64 = keyed.renamed_from("post").await?;
    ctx.sleep(secs(100)).named("rest").renamed_from("pause").await?;
    let told: u64 = ctx.recv("said").renamed_from("told").await?;
    let child = ctx.run(twice, 3).await?;
    go(&ctx).await?;
    Ok(format!("{paid} {keyed} {told} {child}"))
});

version!(without, |ctx| {
    let paid: u64 = ctx.step("charge", || async { Ok(70) }).await?;
    go(&ctx).await?;
    Ok(paid.to_string())
});

version!(short, |ctx| {
    let paid: u64 = ctx.step("pay", || async { Ok(7) }).await?;
    go(&ctx).await?;
    Ok(paid.to_string())
});

version!(shortly, |ctx| {
    let paid: u64 = ctx.step("charge", || async { Ok(700) }).renamed_from("pay").await?;
    go(&ctx).await?;
    Ok(paid.to_string())
});

/// A version whose only step is known by this.
macro_rules! paying {
    ($($version:ident: $name:literal $(, $option:ident($value:expr))*;)*) => {$(
        version!($version, |ctx| {
            let paid: u64 = ctx.step($name, || async { Ok(7) })$(.$option($value))*.await?;
            go(&ctx).await?;
            Ok(paid.to_string())
        });
    )*};
}

paying! {
    keyed: "pay", key("a");
    other_key: "pay", key("b");
    renamed_without_key: "charge", renamed_from("pay");
    renamed_undeclared: "charge", key("b");
}

// Both steps may end at once; then the code never asks for the result of the second.
version!(racing, |ctx| {
    let (one, other) = (ctx.step("pay", || async { Ok(7) }).key("a"), ctx.step("pay", || async { Ok(8) }));
    let paid: u64 = tokio::select! { biased; paid = one => paid?, paid = other.key("b") => paid? };
    go(&ctx).await?;
    let again: u64 = ctx.step("pay", || async { Ok(9) }).key("c").await?;
    Ok(format!("{paid}{again}"))
});

// Fails once; the next attempt comes an hour later.
version!(failing, |ctx| {
    let retry = Retry::fixed(minutes(60)).max_attempts(2);
    let key: String = ctx.step("pay", || async { Err(Error::new("no")) }).retry(retry).await?;
    Ok(key)
});

// Leaves the step whose attempt has failed.
version!(impatient, |ctx| {
    let retry = Retry::fixed(minutes(60)).max_attempts(2);
    let pay = ctx.step("pay", || async { Err::<u64, _>(Error::new("no")) }).retry(retry);
    let paid = tokio::select! { paid = pay => paid?, slept = ctx.sleep(secs(1)) => slept.map(|()| 0)? };
    go(&ctx).await?;
    let mailed: u64 = ctx.step("mail", || async { Ok(1) }).await?;
    Ok(format!("{paid}{mailed}"))
});

// The same with another name for the step.
version!(impatient_renamed, |ctx| {
    let retry = Retry::fixed(minutes(60)).max_attempts(2);
    let pay = ctx.step("charge", || async { Err::<u64, _>(Error::new("no")) }).retry(retry);
    let paid = tokio::select! {
        paid = pay.renamed_from("pay") => paid?,
        slept = ctx.sleep(secs(1)) => slept.map(|()| 0)?,
    };
    go(&ctx).await?;
    let mailed: u64 = ctx.step("mail", || async { Ok(1) }).await?;
    Ok(format!("{paid}{mailed}"))
});

version!(failing_renamed, |ctx| {
    let retry = Retry::fixed(minutes(60)).max_attempts(2);
    let run = || async { Ok(ctx.idempotency_key()) };
    ctx.step("charge", run).retry(retry).renamed_from("pay").await
});

version!(sleeping, |ctx| {
    ctx.sleep(minutes(10)).named("pause").await?;
    Ok("slept".to_owned())
});

version!(sleeping_renamed, |ctx| {
    let before = ctx.now();
    ctx.sleep(minutes(100)).named("rest").renamed_from("pause").await?;
    Ok(format!("{} s", ctx.now().since(before).as_secs()))
});

version!(both, |ctx| {
    let paid: u64 = ctx.step("pay", || async { Ok(7) }).await?;
    go(&ctx).await?;
    let charged: u64 = ctx.step("charge", || async { Ok(7) }).renamed_from("pay").await?;
    Ok(format!("{paid}{charged}"))
});

version!(later, |ctx| {
    let first: u64 = ctx.step("first", || async { Ok(1) }).await?;
    let paid: u64 = ctx.step("charge", || async { Ok(700) }).renamed_from("pay").await?;
    go(&ctx).await?;
    Ok(format!("{first} {paid}"))
});

version!(texts, |ctx| {
    let paid: String = ctx
        .step("pay", || async { Ok("new".to_owned()) })
        .upgrade(|cents: u64| Ok(format!("{cents} cents")))
        .await?;
    let again: String = ctx
        .step("again", || async { Ok("7".to_owned()) })
        .upgrade(|old: String| Ok(format!("old {old}")))
        .await?;
    go(&ctx).await?;
    Ok(format!("{paid}, {again}"))
});

version!(refusing, |ctx| {
    let convert = |cents: u64| Err(Error::new(format!("{cents} is too little")));
    let paid: String = ctx.step("pay", || async { Ok("new".to_owned()) }).upgrade(convert).await?;
    Ok(paid)
});

version!(misreading, |ctx| {
    let paid: String =
        ctx.step("pay", || async { Ok("new".to_owned()) }).upgrade(|flag: bool| Ok(flag.to_string())).await?;
    Ok(paid)
});

async fn machine<W: Workflow + Copy>(lab: &Lab, ran: &Ran, code: W) -> (Machine, Abide) {
    let with = |builder: Builder| builder.state(ran.clone()).session_ttl(secs(3)).workflow(code);
    lab.worker_with(|builder| with(builder).task(double)).await.unwrap()
}

/// Runs one version after the other, each until nothing happens. Returns the steps that ran since
/// the first version, and the end.
fn deployed<O, N>(old: O, between: &[&str], new: N) -> String
where
    O: Workflow<Input = (), Output = String> + Copy,
    N: Workflow<Input = (), Output = String> + Copy,
{
    let signals: Vec<String> = between.iter().map(|name| (*name).to_owned()).collect();
    Lab::run(7, |lab| async move {
        let ran = Ran::default();
        let with = |builder: Builder| builder.state(ran.clone()).session_ttl(secs(3));
        let (machine, abide) =
            lab.worker_with(|builder| with(builder).workflow(old).task(double)).await.unwrap();
        let handle = abide.start(old, ()).id("one").await.unwrap();
        lab.sleep(secs(2)).await;
        for name in &signals {
            handle.signal(name, &5).await.unwrap();
        }
        lab.sleep(secs(2)).await;
        lab.crash(machine);
        ran.take();
        let (_, abide) = lab.worker_with(|builder| with(builder).workflow(new).task(twice)).await.unwrap();
        abide.handle::<String>("one").signal("go", &()).await.unwrap();
        lab.sleep(minutes(90)).await;
        format!("ran [{}]: {}", ran.take(), end(&lab).await)
    })
}

async fn end(lab: &Lab) -> String {
    let id = ExecutionId::new("one").unwrap();
    let target = Target::Address(Address { namespace: Namespace::default(), id });
    let read = |from| {
        lab.store().read(Read { target: target.clone(), run: None, from, limit: 1, with_inbox: false })
    };
    let found = read(1).await.unwrap().unwrap();
    if let Phase::Blocked { reason, .. } = found.execution.phase() {
        return format!("blocked: {reason}");
    }
    let last = read(found.execution.entry_count()).await.unwrap().unwrap().journal.remove(0);
    match last.entry().unwrap().event {
        Event::Completed { result, unused } => {
            let result: String = serde_json::from_slice(result.as_bytes()).unwrap();
            unused.iter().fold(result, |text, op| format!("{text}, unused {op}"))
        }
        other => format!("{other:?}"),
    }
}

#[test]
fn a_renamed_operation_goes_on_with_what_was_recorded() {
    assert_eq!(deployed(old::plain, &["told"], new::plain), "ran []: 7 8 5 6");
    assert_eq!(deployed(old::strict, &["told"], new::strict), "ran []: 7 8 5 6");
}

/// The signal was sent under its old name, before or after the deploy.
#[test]
fn a_renamed_receipt_takes_signals_of_its_old_name() {
    assert_eq!(deployed(short::plain, &[], told_late::plain), "ran []: told");
}

version!(told_late, |ctx| {
    let _: u64 = ctx.step("pay", || async { Ok(0) }).await?;
    ctx.recv::<()>("said").renamed_from("go").await?;
    Ok("told".to_owned())
});

#[test]
fn an_old_name_is_found_behind_what_newer_code_put_before_it() {
    assert_eq!(deployed(short::plain, &[], later::plain), "ran []: 1 7");
}

#[test]
fn a_failed_attempt_counts_under_the_new_name_and_keeps_its_key() {
    assert_eq!(deployed(failing::plain, &[], failing_renamed::plain), "ran []: default/one/1/pay/1");
    assert_eq!(deployed(failing::strict, &[], failing_renamed::strict), "ran []: default/one/1/pay/1");
}

#[test]
fn a_renamed_sleep_is_over_when_it_was_to_be() {
    assert_eq!(deployed(sleeping::plain, &[], sleeping_renamed::plain), "ran []: 600 s");
}

version!(itself, |ctx| {
    let run = || async {
        note(&ctx, "pay");
        Ok(70)
    };
    let paid: u64 = ctx.step("pay", run).renamed_from("pay").await?;
    ctx.sleep(secs(1)).renamed_from("(sleep)").await?;
    go(&ctx).await?;
    Ok(paid.to_string())
});

version!(raced, |ctx| {
    let first: u64 = select! {
        a = ctx.step("a", || async { Ok(1) }) => a?,
        b = ctx.step("b", || async { Ok(2) }) => b?,
    };
    go(&ctx).await?;
    Ok(first.to_string())
});
version!(raced_renamed, |ctx| {
    let first: u64 = select! {
        a = ctx.step("a", || async { Ok(1) }) => a?,
        b = ctx.step("c", || async { Ok(2) }).renamed_from("b") => b?,
    };
    go(&ctx).await?;
    Ok(first.to_string())
});

/// Both steps end in one poll: the result of the one that was given up is recorded behind the
/// other.
#[test]
fn strict_code_may_give_up_a_renamed_step_that_came_second() {
    let unchanged = deployed(raced::strict, &[], raced::strict);
    assert!(unchanged.starts_with("ran []: 1"), "{unchanged}");
    assert_eq!(deployed(raced::strict, &[], raced_renamed::strict), unchanged);
    assert_eq!(deployed(raced::plain, &[], raced_renamed::plain), unchanged);
}

/// There is nothing to rename: the operation keeps its record, and no other is in its way.
#[test]
fn an_old_name_that_is_the_own_name_changes_nothing() {
    assert_eq!(deployed(short::plain, &[], itself::plain), "ran []: 7");
    assert_eq!(deployed(itself::plain, &[], itself::plain), "ran []: 70");
    assert_eq!(deployed(itself::strict, &[], itself::strict), "ran []: 70");
}

#[test]
fn an_old_name_that_is_still_in_use_blocks() {
    let blocked = "blocked: the name \"pay\" is used for a step, and step \"charge\" is renamed from it";
    let told = deployed(short::plain, &[], both::plain);
    assert!(told.starts_with(&format!("ran []: {blocked} (at {}:", file!())), "{told}");
}

#[test]
fn a_result_is_upgraded_only_where_the_new_type_fails() {
    assert_eq!(deployed(short::plain, &[], texts::plain), "ran []: 7 cents, 7");
    assert_eq!(deployed(texts::plain, &[], texts::plain), "ran []: new, 7");
}

#[test]
fn an_upgrade_that_fails_blocks() {
    let cannot = r#"blocked: the recorded result of step "pay" cannot be read: expected alloc::string::String, found 7"#;
    let wrong = "invalid type: integer `7`, expected a string at line 1 column 1";
    assert_eq!(
        deployed(short::plain, &[], refusing::plain),
        format!("ran []: {cannot} ({wrong}; the upgrade failed: 7 is too little)")
    );
    let flag = "and no bool to upgrade: invalid type: integer `7`, expected a boolean at line 1 column 1";
    assert_eq!(deployed(short::plain, &[], misreading::plain), format!("ran []: {cannot} ({wrong}; {flag})"));
}

/// Reported before the run has ended, and after.
#[test]
fn an_entry_that_a_renamed_step_leaves_unused_is_told() {
    let told =
        r#"step "charge" ran although an entry of step "pay" went unused: renamed? use .renamed_from("pay")"#;
    Lab::run(7, |lab| async move {
        let ran = Ran::default();
        let (first, abide) = machine(&lab, &ran, short::plain).await;
        abide.start(short::plain, ()).id("one").await.unwrap();
        abide.start(short::plain, ()).id("two").await.unwrap();
        abide.start(short::plain, ()).id("three").await.unwrap();
        lab.sleep(secs(2)).await;
        lab.crash(first);
        let (second, abide) = machine(&lab, &ran, without::plain).await;
        let handle = abide.handle::<String>("one");
        handle.signal("poke", &()).await.unwrap();
        lab.sleep(secs(10)).await;
        assert!(handle.why().await.unwrap().contains(told), "{}", handle.why().await.unwrap());
        let handle = abide.handle::<String>("three");
        handle.signal("go", &()).await.unwrap();
        lab.sleep(secs(10)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Completed);
        assert!(handle.why().await.unwrap().contains(told), "{}", handle.why().await.unwrap());
        lab.crash(second);
        // A step that was added before the others leaves nothing unused.
        let (_, abide) = machine(&lab, &ran, later::plain).await;
        let handle = abide.handle::<String>("two");
        handle.signal("go", &()).await.unwrap();
        lab.sleep(secs(10)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Completed);
        assert!(!handle.why().await.unwrap().contains("unused"), "{}", handle.why().await.unwrap());
    });
}

/// Runs one version up to the signal, and then the other up to it. Returns the words of `why` about
/// an entry that went unused.
fn hint<O, N>(old: O, new: N) -> Option<String>
where
    O: Workflow<Input = (), Output = String> + Copy,
    N: Workflow<Input = (), Output = String> + Copy,
{
    Lab::run(7, |lab| async move {
        let ran = Ran::default();
        let (first, abide) = machine(&lab, &ran, old).await;
        abide.start(old, ()).id("one").await.unwrap();
        lab.sleep(secs(2)).await;
        lab.crash(first);
        let (_, abide) = machine(&lab, &ran, new).await;
        let handle = abide.handle::<String>("one");
        handle.signal("poke", &()).await.unwrap();
        lab.sleep(secs(10)).await;
        let why = handle.why().await.unwrap();
        handle.signal("go", &()).await.unwrap();
        lab.sleep(secs(10)).await;
        let ended = handle.why().await.unwrap();
        let hint = |why: &str| why.split_once("; step ").map(|(_, hint)| hint.to_owned());
        assert_eq!(hint(&why), hint(&ended), "{why} {ended}");
        hint(&why)
    })
}

#[test]
fn an_entry_that_another_key_leaves_unused_is_told() {
    let keeps = "was its key changed? a recorded operation keeps its key.";
    let declare = r#"renamed? use .renamed_from("pay"), with the key as it was."#;
    let told = |begun: &str, recorded: &str, advice: &str| {
        Some(format!("{begun} ran although an entry of step {recorded} went unused: {advice}"))
    };
    let keyed = r#""pay" [a]"#;
    assert_eq!(hint(keyed::plain, short::plain), told(r#""pay""#, keyed, keeps));
    assert_eq!(hint(short::plain, keyed::plain), told(keyed, r#""pay""#, keeps));
    assert_eq!(hint(keyed::plain, other_key::plain), told(r#""pay" [b]"#, keyed, keeps));
    assert_eq!(hint(keyed::plain, renamed_without_key::plain), told(r#""charge""#, keyed, declare));
    assert_eq!(hint(keyed::plain, renamed_undeclared::plain), told(r#""charge" [b]"#, keyed, declare));
    assert_eq!(hint(keyed::plain, keyed::plain), None);
    assert_eq!(hint(racing::plain, racing::plain), None, "the code asked for it");
}

/// An attempt that failed, or a sleep that was under way, is an entry without an outcome.
#[test]
fn an_operation_under_way_that_the_code_leaves_out_is_told() {
    let renamed = r#"ran although an entry of step "pay" went unused: renamed? use .renamed_from("pay")."#;
    assert_eq!(hint(failing::plain, without::plain), Some(format!(r#""charge" {renamed}"#)));
    assert_eq!(deployed(failing::plain, &[], without::plain), r#"ran []: 70, unused step "pay""#);
    assert_eq!(deployed(sleeping::plain, &[], without::plain), r#"ran []: 70, unused timer "pause""#);
    // Code that asks for the operation and leaves it has used it.
    assert_eq!(hint(impatient::plain, impatient::plain), None);
    assert_eq!(deployed(impatient::plain, &[], impatient::plain), "ran []: 01");
}

#[test]
fn a_renamed_operation_that_the_code_leaves_was_asked_for() {
    assert_eq!(hint(impatient::plain, impatient_renamed::plain), None);
    assert_eq!(deployed(impatient::plain, &[], impatient_renamed::plain), "ran []: 01");
}

/// The step has an entry under its new name after that: a replay does not begin it anew.
#[test]
fn an_unused_entry_is_told_after_a_pause_and_a_crash_too() {
    let told = r#"renamed? use .renamed_from("pay")"#;
    Lab::run_on_each(7, |lab| async move {
        let ran = Ran::default();
        let (first, abide) = machine(&lab, &ran, short::plain).await;
        abide.start(short::plain, ()).id("one").await.unwrap();
        lab.sleep(secs(2)).await;
        lab.crash(first);
        let (second, abide) = machine(&lab, &ran, without::plain).await;
        let handle = abide.handle::<String>("one");
        let says = async |handle: &Handle<String>| {
            lab.sleep(secs(10)).await;
            handle.why().await.unwrap().contains(told)
        };
        handle.signal("poke", &()).await.unwrap();
        assert!(says(&handle).await);
        handle.pause().await.unwrap();
        assert!(says(&handle).await, "in a pause");
        handle.resume().await.unwrap();
        assert!(says(&handle).await, "after a pause");
        lab.crash(second);
        let (third, abide) = machine(&lab, &ran, without::plain).await;
        let handle = abide.handle::<String>("one");
        handle.signal("poke", &()).await.unwrap();
        assert!(says(&handle).await, "after a crash");
        lab.crash(third);
        // The older code asks for the entry.
        let (_, abide) = machine(&lab, &ran, short::plain).await;
        let handle = abide.handle::<String>("one");
        handle.signal("poke", &()).await.unwrap();
        assert!(!says(&handle).await, "the entry is used again: {}", handle.why().await.unwrap());
    });
}

/// The renamed code did not declare the old name, ran the step again and continued with that
/// result. Then it declares the old name.
#[test]
fn what_ran_again_under_the_new_name_stays_the_result() {
    Lab::run(7, |lab| async move {
        let ran = Ran::default();
        let (first, abide) = machine(&lab, &ran, short::plain).await;
        abide.start(short::plain, ()).id("one").await.unwrap();
        lab.sleep(secs(2)).await;
        lab.crash(first);
        let (second, abide) = machine(&lab, &ran, without::plain).await;
        abide.handle::<String>("one").signal("poke", &()).await.unwrap();
        lab.sleep(secs(10)).await;
        lab.crash(second);
        let (_, last) = machine(&lab, &ran, shortly::plain).await;
        abide.handle::<String>("one").signal("go", &()).await.unwrap();
        assert_eq!(last.handle::<String>("one").result().await.unwrap(), "70");
        assert_eq!(end(&lab).await, r#"70, unused step "pay""#);
    });
}
