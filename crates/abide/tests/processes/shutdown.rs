//! A worker that is shut down finishes its running steps, returns its leases, and uses up no
//! attempt.

use std::path::Path;

use abide::prelude::*;

use crate::clock::{in_time, until, wall_us, within};
use crate::effects::{self, Effect};
use crate::flows::{Ran, gated, waiter};
use crate::in_turn;
use crate::look::{self, Look};
use crate::process::Process;
use crate::roles::Role;

const EXECUTION_COUNT: u64 = 20;
const HANDOVER_MS_MAX: i64 = 1_000;
/// The time that the running steps get; in one of the two cases they need longer.
const GRACE_MS: u64 = 400;
/// A time longer than any test waits.
const GRACE_MS_LONG: u64 = 3_600_000;

struct Case {
    folder: tempfile::TempDir,
    client: Abide,
    leaving: Process,
    staying: Process,
}

impl Case {
    /// Starts a worker that runs the first step of every execution, and another one that waits
    /// beside it.
    async fn open(grace_ms: u64) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let client = look::client(folder.path()).await;
        let leaving =
            Process::spawn_ready(&Role { grace_ms: Some(grace_ms), ..Role::worker(folder.path()) }).await;
        for n in 0..EXECUTION_COUNT {
            client.start(gated, n).id(format!("gated-{n}")).await.expect("a start");
            // These rest in the memory of the leaving worker, or in the store.
            client.start(waiter, n).id(format!("waiter-{n}")).await.expect("a start");
        }
        wait_for(folder.path(), "begin", 0).await;
        let staying = Process::spawn_ready(&Role { generation: 1, ..Role::worker(folder.path()) }).await;
        std::fs::write(folder.path().join(format!("gate-{}", staying.pid())), "").expect("a gate");
        Self { folder, client, leaving, staying }
    }

    /// Checks that everything ends with the right result, and that the recorded attempt is the
    /// first.
    async fn check(&mut self, first_generation: u32) {
        let lines = effects::read(self.folder.path());
        let by =
            |nonce: &str| lines.iter().find(|effect| effect.nonce == nonce).map(|effect| effect.generation);
        for n in 0..EXECUTION_COUNT {
            let waiting = self.client.handle::<u64>(&format!("waiter-{n}"));
            waiting.signal("go", &1u64).await.expect("a signal");
            assert_eq!(within("a result", waiting.result()).await.expect("a result"), n + 1);
            let handle = self.client.handle::<(Ran, Ran)>(&format!("gated-{n}"));
            let (first, second) = within("a result", handle.result()).await.expect("a result");
            assert_eq!(by(&first.nonce), Some(first_generation), "the first step of gated-{n}");
            assert_eq!(by(&second.nonce), Some(1), "the second step of gated-{n}");
        }
        let mut look = Look::at(self.folder.path());
        look.again().await;
        for (key, record) in look.recorded() {
            assert_eq!(record.attempt, 1, "{key}: an attempt was burnt");
        }
        let failed = look.entries.iter().find(|(_, entry)| entry.event.word() == "attempt-failed");
        assert!(failed.is_none(), "{failed:?}");
        assert!(self.staying.is_alive());
    }
}

async fn wait_for(folder: &Path, word: &str, generation: u32) -> Vec<Effect> {
    let what = format!("process {generation} writes {word:?} of every execution");
    until(&what, async || {
        let mine = |effect: &Effect| {
            effect.word == word && effect.generation == generation && effect.id.starts_with("gated")
        };
        let lines: Vec<Effect> = effects::read(folder).into_iter().filter(mine).collect();
        (lines.len() as u64 >= EXECUTION_COUNT).then_some(lines)
    })
    .await
}

#[test]
fn running_steps_finish_and_are_recorded_and_another_process_continues_at_once() {
    in_turn(async { in_time(async |_| finish().await).await });
}

async fn finish() -> Result<(), String> {
    let mut case = Case::open(GRACE_MS_LONG).await;
    case.leaving.tell("shutdown");
    case.leaving.hear("leaving").await;
    // The leaving worker takes nothing new: the other one runs a new execution, while the steps
    // still run.
    case.client.start(gated, 99).id("new").await.expect("a start");
    let new = case.client.handle::<(Ran, Ran)>("new");
    within("the other process takes what is new", new.result()).await.expect("a result");
    std::fs::write(case.folder.path().join(format!("gate-{}", case.leaving.pid())), "").expect("a gate");
    let ends = wait_for(case.folder.path(), "end", 0).await;
    let ran = wait_for(case.folder.path(), "ran", 1).await;
    let handover_us = |after: &Effect| Some(after.at_us - ends.iter().find(|end| end.id == after.id)?.at_us);
    let slowest_us = ran.iter().filter_map(handover_us).max().expect("some were handed over");
    println!("the slowest handover took {slowest_us} us");
    assert!(case.leaving.ended().await.success());
    case.check(0).await;
    in_time_for_handover(slowest_us)
}

fn in_time_for_handover(took_us: i64) -> Result<(), String> {
    if took_us < HANDOVER_MS_MAX * 1_000 { Ok(()) } else { Err(format!("handed over in {took_us} us")) }
}

#[test]
fn steps_that_do_not_finish_in_time_are_handed_over_and_no_attempt_is_burnt() {
    in_turn(async { in_time(async |_| hand_over().await).await });
}

async fn hand_over() -> Result<(), String> {
    let mut case = Case::open(GRACE_MS).await;
    let told_us = wall_us();
    case.leaving.tell("shutdown");
    let begun = wait_for(case.folder.path(), "begin", 1).await;
    let slowest_us = begun.iter().map(|effect| effect.at_us).max().unwrap_or_default() - told_us;
    println!("interrupted steps began anew after {slowest_us} us, {GRACE_MS} ms of them grace");
    let grace_us = i64::try_from(GRACE_MS * 1_000).expect("short");
    assert!(slowest_us >= grace_us, "the steps were not given their time: {slowest_us} us");
    assert!(case.leaving.ended().await.success());
    wait_for(case.folder.path(), "ran", 1).await;
    case.check(1).await;
    in_time_for_handover(slowest_us - grace_us)
}
