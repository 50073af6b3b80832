//! Looks into a store without writing to it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use abide::prelude::{Abide, Filter, Status};
use abide_core::{Address, Entry, Event, ExecutionId, Namespace, Outcome, StepRecord, Timestamp};
use abide_engine::SystemClock;
use abide_sqlite::{OpenError, Options, SqliteStore};
use abide_store::conformance;
use abide_store::{Read, Snapshot, Target, View, WorkerRow, Workers};

use crate::clock::{until_much, wall_us};

/// Returns the database file in a test's folder.
pub(crate) fn database(folder: &Path) -> PathBuf {
    folder.join("app.db")
}

pub(crate) fn url(folder: &Path) -> String {
    format!("sqlite:{}", database(folder).display())
}

/// Opens a client that waits for other processes for as long as a busy machine may need.
pub(crate) async fn client(folder: &Path) -> Abide {
    const BUSY_MS_MAX: u64 = 50_000;
    if !database(folder).exists() {
        create(&database(folder));
    }
    Abide::builder(url(folder)).busy_ms_max(BUSY_MS_MAX).client().await.expect("a client")
}

/// Makes an empty store: a client creates none, and a worker would take the started executions.
pub(crate) fn create(path: &Path) {
    let clock = Arc::new(SystemClock);
    let store = SqliteStore::open(path, clock, Options::default());
    store.expect("the store can be made").close();
}

/// Opens a store that only reads.
pub(crate) fn try_to_read(folder: &Path) -> Result<Arc<SqliteStore>, OpenError> {
    let options = Options { read_only: true, ..Options::default() };
    SqliteStore::open(&database(folder), Arc::new(SystemClock), options)
}

/// A reader of a store that remembers what it has read.
pub(crate) struct Look {
    store: Arc<SqliteStore>,
    /// Everything recorded at the last look.
    pub(crate) entries: Vec<(String, Entry)>,
}

/// A recorded step.
pub(crate) struct Recorded {
    pub(crate) at_us: i64,
    pub(crate) attempt: u32,
    pub(crate) outcome: Outcome,
}

impl Look {
    pub(crate) fn at(folder: &Path) -> Self {
        Self { store: try_to_read(folder).expect("a look into the store"), entries: Vec::new() }
    }

    /// Reads everything recorded.
    pub(crate) async fn again(&mut self) {
        let all = conformance::recorded(&*self.store, &Namespace::default()).await.expect("all journals");
        let entry = |item: conformance::Recorded| {
            (item.address.id.to_string(), item.record.entry().expect("an entry"))
        };
        self.entries = all.into_iter().map(entry).collect();
    }

    /// Returns the recorded steps, transactions and tasks, by idempotency key. Panics if one is
    /// recorded twice.
    pub(crate) fn recorded(&self) -> BTreeMap<String, Recorded> {
        let mut recorded = BTreeMap::new();
        let mut runs: BTreeMap<&str, u32> = BTreeMap::new();
        for (id, entry) in &self.entries {
            let run = runs.entry(id).or_default();
            *run += u32::from(entry.seq == 1);
            let Event::StepRecorded(StepRecord { op, outcome, attempt, .. }) = &entry.event else { continue };
            let key = format!("default/{}/{run}/{}/{}", id.replace('/', "%2F"), op.name, op.nth);
            let at_us = entry.at.as_micros();
            let record = Recorded { at_us, attempt: *attempt, outcome: outcome.clone() };
            assert!(recorded.insert(key, record).is_none(), "{op} of {id} was recorded twice");
        }
        recorded
    }

    /// Returns the problems that the store finds in itself.
    pub(crate) fn problems(&self) -> Vec<String> {
        self.store.verify().expect("a look at everything").problems
    }

    /// Returns the times at which each execution ended.
    pub(crate) fn ends(&self) -> BTreeMap<&str, Vec<i64>> {
        let mut ends: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
        for (id, entry) in self.entries.iter().filter(|(_, entry)| entry.event.is_terminal()) {
            ends.entry(id).or_default().push(entry.at.as_micros());
        }
        ends
    }

    pub(crate) async fn snapshot(&self, id: &str) -> Option<Snapshot> {
        let address = Address { namespace: Namespace::default(), id: ExecutionId::new(id).expect("an id") };
        let read = Read { target: Target::Address(address), run: None, from: 0, limit: 0, with_inbox: false };
        self.store.read(read).await.expect("a snapshot")
    }

    pub(crate) async fn sessions(&self) -> Vec<WorkerRow> {
        let all = Workers { namespace: Namespace::default(), after: None, limit: 10_000 };
        self.store.workers(all).await.expect("the sessions")
    }

    /// Waits until nothing runs or is ready to run, and nobody holds anything in memory.
    pub(crate) async fn wait_until_all_rest(&self, client: &Abide) {
        until_much("all executions rest", async || {
            let held_count: u64 = self.live_sessions().await.iter().map(|row| row.lease_count).sum();
            if held_count > 0 {
                return None;
            }
            let running = client.list(Filter::all().status(Status::Running).take(1)).await.expect("a list");
            running.is_empty().then_some(())
        })
        .await;
    }

    pub(crate) async fn live_sessions(&self) -> Vec<WorkerRow> {
        let now = Timestamp::from_micros(wall_us());
        self.sessions().await.into_iter().filter(|row| row.is_live(now)).collect()
    }
}

/// Returns the value of a recorded outcome.
pub(crate) fn value<T: serde::de::DeserializeOwned>(outcome: &Outcome) -> T {
    let Outcome::Success(payload) = outcome else { panic!("this step failed: {outcome}") };
    serde_json::from_slice(payload.as_bytes()).expect("a recorded value")
}
