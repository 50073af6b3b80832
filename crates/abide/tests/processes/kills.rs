//! A process that is killed at random moments loses nothing, and repeats nothing recorded.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use abide::prelude::*;
use abide::rusqlite::Connection;
use abide_core::Event;

use crate::clock::{Chance, Stopwatch, pause, until};
use crate::effects::{self, Effect};
use crate::flows::{self, Ran, Receipt, bonus_count, order};
use crate::in_turn;
use crate::look::{self, Look};
use crate::process::Process;
use crate::roles::{Kind, Role};

const KILL_COUNT: u32 = 60;
const ORDER_COUNT: u64 = 220;
/// The longest life of every other process, however far it comes: some are killed while they open
/// the store.
const LIFE_MS_MAX: u64 = 260;
/// The longest further life of the others, once they have done something, however slow the machine
/// is.
const WORK_MS_MAX: u64 = 130;
/// The number of processes that must have done something, or the kills hit nothing.
const WORKING_COUNT_MIN: usize = 25;

#[test]
fn a_process_that_is_killed_loses_nothing_and_repeats_nothing_that_was_recorded() {
    in_turn(async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut chance = Chance::seeded(42);
        let client = look::client(folder.path()).await;
        create_table(folder.path());
        let mut look = Look::at(folder.path());
        let mut seen = BTreeMap::new();
        let mut customer = Customer { client, started: 0, signalled: BTreeMap::new() };
        for generation in 0..KILL_COUNT {
            look.again().await;
            check_silence(&look, folder.path(), generation, &mut seen);
            let first = effects::byte_count(folder.path());
            let mut process = Process::spawn(&role(folder.path(), generation));
            let is_working = || effects::byte_count(folder.path()) > first;
            let lives_to_work = generation % 2 == 1;
            let life_ms = chance.below(if lives_to_work { WORK_MS_MAX } else { LIFE_MS_MAX });
            let death = async {
                if lives_to_work {
                    until("a process does something", async || is_working().then_some(())).await;
                }
                pause(ms(life_ms)).await;
                assert!(process.is_alive(), "process {generation} ended by itself");
                process.kill();
            };
            tokio::join!(death, customer.shop(&mut chance, generation));
        }
        look.again().await;
        check_silence(&look, folder.path(), KILL_COUNT, &mut seen);
        let open = count_open(&look);
        let mut last = Process::spawn(&role(folder.path(), KILL_COUNT));
        last.hear("shopped").await;
        customer.finish(folder.path()).await;
        let ids = customer.ids().chain(acknowledged(folder.path(), "started")).collect::<BTreeSet<_>>();
        wait_for_all(&mut look, &ids).await;
        assert!(last.is_alive());
        check_silence(&look, folder.path(), KILL_COUNT + 1, &mut seen);
        check_results(&customer, &look, folder.path()).await;
        let lines = effects::read(folder.path());
        let working: BTreeSet<u32> = lines.iter().map(|effect| effect.generation).collect();
        println!(
            "{KILL_COUNT} kills, {} executions, {} runs of steps by {} processes, {open} open at the last kill",
            ids.len(),
            lines.len(),
            working.len()
        );
        assert!(working.len() >= WORKING_COUNT_MIN, "only {} processes did something", working.len());
    });
}

fn role(folder: &Path, generation: u32) -> Role {
    Role { kind: Kind::Starter, generation, ..Role::worker(folder) }
}

fn create_table(folder: &Path) {
    let connection = Connection::open(look::database(folder)).expect("the database");
    connection
        .execute_batch("CREATE TABLE booked (id TEXT NOT NULL, pid INTEGER NOT NULL)")
        .expect("a table");
}

/// The parent as a client: every answer that it got must be true.
struct Customer {
    client: Abide,
    started: u64,
    /// The number of acknowledged signals, by order.
    signalled: BTreeMap<u64, u64>,
}

impl Customer {
    /// Starts some orders and sends some signals, while the worker lives or dies.
    async fn shop(&mut self, chance: &mut Chance, generation: u32) {
        let due = ORDER_COUNT * u64::from(generation + 1) / u64::from(KILL_COUNT);
        while self.started < due {
            self.start().await;
        }
        for _ in 0..chance.below(12) {
            self.signal(chance.below(self.started.max(1))).await;
        }
    }

    async fn start(&mut self) {
        let n = self.started;
        self.client.start(order, n).id(format!("order-{n}")).await.expect("a start");
        self.started += 1;
    }

    async fn signal(&mut self, n: u64) {
        let count = self.signalled.get(&n).copied().unwrap_or(0);
        if n < self.started && count < bonus_count(n) {
            let handle = self.client.handle::<Receipt>(&format!("order-{n}"));
            handle.signal("bonus", &(100 + count)).await.expect("a signal");
            self.signalled.insert(n, count + 1);
        }
    }

    /// Starts the missing orders and sends the missing signals, also to the orders that killed
    /// processes started.
    async fn finish(&mut self, folder: &Path) {
        while self.started < ORDER_COUNT {
            self.start().await;
        }
        for n in 0..ORDER_COUNT {
            for _ in 0..bonus_count(n) {
                self.signal(n).await;
            }
        }
        let sent: Vec<String> = acknowledged(folder, "signalled").collect();
        for id in acknowledged(folder, "started") {
            let sent = sent.iter().filter(|of| **of == id).count() as u64;
            for i in sent..bonus_count(generation_of(&id)) {
                match self.client.handle::<Receipt>(&id).signal("bonus", &(100 + i)).await {
                    // A signal whose acknowledgement was lost in a kill has arrived too.
                    Ok(()) | Err(ClientError::Refused { .. }) => {}
                    Err(error) => panic!("{id}: {error}"),
                }
            }
        }
    }

    fn ids(&self) -> impl Iterator<Item = String> {
        (0..self.started).map(|n| format!("order-{n}"))
    }
}

/// Returns the acknowledgements that the killed processes got before they were killed.
fn acknowledged(folder: &Path, word: &'static str) -> impl Iterator<Item = String> {
    effects::read(folder).into_iter().filter(move |effect| effect.word == word).map(|effect| effect.id)
}

/// Checks that neither this process nor any later one repeats anything recorded before it started.
/// `seen` has, by key, the process before which the key was first found recorded.
pub(crate) fn check_silence(look: &Look, folder: &Path, generation: u32, seen: &mut BTreeMap<String, u32>) {
    for key in look.recorded().into_keys().chain(ended_tasks(look)) {
        seen.entry(key).or_insert(generation);
    }
    for effect in effects::read(folder) {
        if let Some(seen) = seen.get(&effect.key) {
            assert!(effect.generation < *seen, "recorded before process {seen} started, and yet: {effect:?}");
        }
    }
}

/// Returns the keys of the ended tasks.
fn ended_tasks(look: &Look) -> impl Iterator<Item = String> {
    look.ends()
        .into_keys()
        .map(|id| format!("default/{}/1", id.replace('/', "%2F")))
        .collect::<Vec<_>>()
        .into_iter()
}

fn count_open(look: &Look) -> usize {
    let started: BTreeSet<&str> = look.entries.iter().map(|(id, _)| id.as_str()).collect();
    started.len() - look.ends().len()
}

async fn wait_for_all(look: &mut Look, ids: &BTreeSet<String>) {
    let (mut watch, mut left) = (Stopwatch::start(), usize::MAX);
    loop {
        look.again().await;
        let ends = look.ends();
        let stuck: Vec<&String> = ids.iter().filter(|id| !ends.contains_key(id.as_str())).collect();
        if stuck.is_empty() {
            return;
        }
        // Executions that died often run one after the other, so all of them together may take a
        // while.
        if stuck.len() < left {
            (watch, left) = (Stopwatch::start(), stuck.len());
        }
        if watch.elapsed() > secs(60) {
            let first = look.snapshot(stuck[0]).await;
            panic!("{} executions are stuck, the first of them {}: {first:#?}", stuck.len(), stuck[0]);
        }
        pause(ms(20)).await;
    }
}

/// Compares everything recorded with everything that happened.
async fn check_results(customer: &Customer, look: &Look, folder: &Path) {
    for n in 0..ORDER_COUNT {
        let handle = customer.client.handle::<Receipt>(&format!("order-{n}"));
        assert_eq!(handle.result().await.expect("a receipt"), flows::receipt(n), "order-{n}");
    }
    let ends = look.ends();
    assert!(ends.values().all(|ends| ends.len() == 1), "an execution ended twice");
    let started: BTreeSet<&str> = look.entries.iter().map(|(id, _)| id.as_str()).collect();
    let open: Vec<_> =
        started.iter().filter(|id| !ends.contains_key(*id) && !id.starts_with("own-")).collect();
    assert!(open.is_empty(), "children that did not end: {open:?}");
    let effects = effects::read(folder);
    check_steps(look, &effects);
    check_own(customer, look, &effects).await;
    check_booked(folder, look);
}

/// Checks that every recorded result is that of the last run of its step, and that no run began
/// after the record.
pub(crate) fn check_steps(look: &Look, effects: &[Effect]) {
    let mut last_runs: BTreeMap<&str, &Effect> = BTreeMap::new();
    for effect in effects {
        last_runs.insert(&effect.key, effect);
    }
    for (key, record) in look.recorded() {
        let Some(last) = last_runs.get(key.as_str()) else {
            assert!(key.contains("/book/"), "{key} was recorded but never ran");
            continue;
        };
        let ran: Ran = look::value(&record.outcome);
        assert_eq!(ran.nonce, last.nonce, "{key}: the recorded result is not that of the last run");
        assert!(last.at_us <= record.at_us, "{key} ran {} us after its record", last.at_us - record.at_us);
    }
    for (id, ends) in look.ends() {
        if let Some(last) = last_runs.get(format!("default/{}/1", id.replace('/', "%2F")).as_str()) {
            assert!(last.at_us <= ends[0], "task {id} ran again after its end");
        }
    }
}

/// Returns the process that started the order `own-N-I`.
fn generation_of(id: &str) -> u64 {
    id.split('-').nth(1).and_then(|text| text.parse().ok()).expect("own-N-I")
}

/// Checks that the acknowledged orders of killed processes exist, with as many signals.
async fn check_own(customer: &Customer, look: &Look, effects: &[Effect]) {
    for id in effects.iter().filter(|effect| effect.word == "started").map(|effect| &effect.id) {
        let generation = generation_of(id);
        let sent =
            effects.iter().filter(|effect| effect.word == "signalled" && effect.id == *id).count() as u64;
        let received = |(of, entry): &&(String, abide_core::Entry)| {
            of == id && matches!(entry.event, Event::SignalReceived { .. })
        };
        let received = look.entries.iter().filter(received).count() as u64;
        if sent == bonus_count(generation) {
            let handle = customer.client.handle::<Receipt>(id);
            assert_eq!(handle.result().await.expect("a receipt"), flows::receipt(generation), "{id}");
        }
        assert!(received >= sent, "{id}: {sent} signals were acknowledged, {received} arrived");
    }
}

/// Checks that the transaction steps happened exactly once.
fn check_booked(folder: &Path, look: &Look) {
    let connection = Connection::open(look::database(folder)).expect("the database");
    let twice = "SELECT COUNT(*) FROM (SELECT id FROM booked GROUP BY id HAVING COUNT(*) > 1)";
    let twice: i64 = connection.query_row(twice, [], |row| row.get(0)).expect("a count");
    assert_eq!(twice, 0, "transactions that happened twice");
    let booked: i64 =
        connection.query_row("SELECT COUNT(*) FROM booked", [], |row| row.get(0)).expect("a count");
    let recorded = look.recorded().into_keys().filter(|key| key.contains("/book/")).count();
    assert_eq!(usize::try_from(booked), Ok(recorded));
}
