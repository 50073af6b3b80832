//! A worker that is stopped past its session's time to live is refused when it goes on: safety
//! rests on epochs, not on clocks.

use std::path::Path;

use abide::prelude::*;
use abide::rusqlite::Connection;

use crate::clock::{in_time, until, within};
use crate::effects::{self, Effect};
use crate::flows::{Ran, gated_hard};
use crate::in_turn;
use crate::look::{self, Look};
use crate::process::Process;
use crate::roles::Role;

const ROUND_COUNT: u32 = 6;
const LONE_ROUND_COUNT: u32 = 2;
const EXECUTION_COUNT: u64 = 8;
const TTL_MS: u64 = 400;

/// Everything of one round.
struct Round {
    folder: tempfile::TempDir,
    client: Abide,
    look: Look,
}

impl Round {
    async fn open() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let client = look::client(folder.path()).await;
        let look = Look::at(folder.path());
        Self { folder, client, look }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the role of the worker that will be stopped.
    fn stopped(&self) -> Role {
        Role { ttl_ms: Some(TTL_MS), ..Role::worker(self.path()) }
    }

    /// Returns the role of the worker that takes over. Its session lives long: a machine that
    /// stands still takes nothing from it.
    fn other(&self) -> Role {
        Role { generation: 1, ..Role::worker(self.path()) }
    }

    /// Reports whether there are just `expected` sessions. If the machine stood still for longer
    /// than the short session lives, there are more, and the round proves nothing here.
    async fn undisturbed(&self, expected: usize) -> Result<(), String> {
        let found = self.look.sessions().await.len();
        assert!(found >= expected, "{found} sessions");
        if found == expected { Ok(()) } else { Err(format!("there were {found} sessions, not {expected}")) }
    }

    /// Starts executions on the only worker, and waits until it runs the first step of each.
    async fn start(&self) {
        for n in 0..EXECUTION_COUNT {
            self.client.start(gated_hard, n).id(format!("gated-{n}")).await.expect("a start");
        }
        self.wait_for("begin", 0).await;
    }

    /// Waits until process `generation` has written this word for every execution.
    async fn wait_for(&self, word: &str, generation: u32) {
        let what = format!("process {generation} writes {word:?} of every execution");
        until(&what, async || (self.lines(word, generation).len() as u64 >= EXECUTION_COUNT).then_some(()))
            .await;
    }

    fn lines(&self, word: &str, generation: u32) -> Vec<Effect> {
        let mine = |effect: &Effect| effect.word == word && effect.generation == generation;
        effects::read(self.path()).into_iter().filter(mine).collect()
    }

    /// Stops a process, but not in the middle of a transaction: then nobody could take over.
    async fn stop(&self, process: &Process) {
        let connection = Connection::open(look::database(self.path())).expect("the database");
        connection.busy_timeout(ms(0)).expect("a timeout");
        until("a stop between two transactions", async || {
            process.stop();
            let begun = connection.execute_batch("BEGIN IMMEDIATE; ROLLBACK");
            if begun.is_err() {
                process.go_on();
            }
            begun.ok()
        })
        .await;
    }

    async fn wait_until_expired(&self) {
        until("the session expires", async || self.look.live_sessions().await.is_empty().then_some(())).await;
    }

    fn open_gate(&self, process: &Process) {
        std::fs::write(self.path().join(format!("gate-{}", process.pid())), "").expect("a gate");
    }

    async fn epochs(&self) -> Vec<u64> {
        let mut epochs = Vec::new();
        for n in 0..EXECUTION_COUNT {
            let snapshot = self.look.snapshot(&format!("gated-{n}")).await.expect("it was started");
            epochs.push(snapshot.lease.epoch.0);
        }
        epochs
    }

    /// Checks that every result is that of a run whose nonce is in `allowed`, and that everything
    /// is recorded once and at the first attempt.
    async fn check(&mut self, allowed: &[Effect]) {
        for n in 0..EXECUTION_COUNT {
            let id = format!("gated-{n}");
            let handle = self.client.handle::<(Ran, Ran)>(&id);
            let (first, _) = within("a result", handle.result()).await.expect("a result");
            let is_allowed = allowed.iter().any(|effect| effect.nonce == first.nonce && effect.id == id);
            assert!(is_allowed, "{id} has the result of the stopped worker: {first:?}");
        }
        self.look.again().await;
        for (key, record) in self.look.recorded() {
            assert_eq!(record.attempt, 1, "{key}");
        }
        assert_eq!(self.look.recorded().len() as u64, EXECUTION_COUNT * 2);
        let ends = self.look.ends();
        assert_eq!(ends.len() as u64, EXECUTION_COUNT);
        assert!(ends.values().all(|ends| ends.len() == 1), "one completion a run");
    }
}

#[test]
fn what_a_stopped_worker_writes_late_is_refused() {
    in_turn(async {
        for round in 0..ROUND_COUNT {
            in_time(async |_| take_over(Round::open().await, round % 2 == 1).await).await;
        }
    });
}

/// Stops one worker and lets another take over, which was there before (`is_waiting`) or comes
/// after.
async fn take_over(mut round: Round, is_waiting: bool) -> Result<(), String> {
    let stopped = Process::spawn_ready(&round.stopped()).await;
    round.start().await;
    let epochs_before = round.epochs().await;
    let mut other = None;
    if is_waiting {
        other = Some(Process::spawn_ready(&round.other()).await);
    }
    round.stop(&stopped).await;
    round.undisturbed(1 + usize::from(is_waiting)).await?;
    round.open_gate(&stopped);
    if !is_waiting {
        round.wait_until_expired().await;
    }
    let other = match other {
        Some(other) => other,
        None => Process::spawn_ready(&round.other()).await,
    };
    round.wait_for("begin", 1).await;
    let epochs = round.epochs().await;
    assert!(
        epochs.iter().zip(&epochs_before).all(|(now, before)| now > before),
        "{epochs_before:?} {epochs:?}"
    );
    stopped.go_on();
    // The steps of the stopped worker finish now, and it tries to record them, until it learns that
    // its session is gone and has a new one.
    round.wait_for("end", 0).await;
    until("the stopped worker registers anew", async || {
        (round.look.live_sessions().await.len() == 2).then_some(())
    })
    .await;
    round.look.again().await;
    let late =
        round.look.recorded().into_keys().filter(|key| key.ends_with("/first/1") && key.contains("gated-"));
    assert_eq!(
        late.collect::<Vec<_>>(),
        Vec::<String>::new(),
        "late writes of the stopped worker were accepted"
    );
    assert_eq!(round.epochs().await, epochs, "the stopped worker took the leases back");
    round.open_gate(&other);
    let allowed = {
        round.wait_for("end", 1).await;
        round.lines("end", 1)
    };
    round.check(&allowed).await;
    Ok(())
}

#[test]
fn a_worker_whose_session_expired_is_refused_even_if_nobody_took_over() {
    in_turn(async {
        for _ in 0..LONE_ROUND_COUNT {
            in_time(async |_| lone(Round::open().await).await).await;
        }
    });
}

/// Stops the only worker until its session has expired.
async fn lone(mut round: Round) -> Result<(), String> {
    let alone = Process::spawn_ready(&round.stopped()).await;
    round.start().await;
    let epochs_before = round.epochs().await;
    round.stop(&alone).await;
    round.undisturbed(1).await?;
    round.open_gate(&alone);
    round.wait_until_expired().await;
    let stale = round.lines("begin", 0);
    alone.go_on();
    for n in 0..EXECUTION_COUNT {
        let handle = round.client.handle::<(Ran, Ran)>(&format!("gated-{n}"));
        within("a result", handle.result()).await.expect("a result");
    }
    round.undisturbed(2).await?;
    // The first "end" of each execution belongs to the run whose session had expired.
    let ends = round.lines("end", 0);
    round.check(&not_the_first_of_each(ends)).await;
    let begins = round.lines("begin", 0).len();
    assert_eq!(begins, stale.len() * 2, "steps ran again under the session that had expired");
    let epochs = round.epochs().await;
    assert!(epochs.iter().zip(&epochs_before).all(|(now, before)| now > before));
    Ok(())
}

fn not_the_first_of_each(effects: Vec<Effect>) -> Vec<Effect> {
    let mut seen = std::collections::BTreeSet::new();
    effects.into_iter().filter(|effect| !seen.insert(effect.id.clone())).collect()
}
