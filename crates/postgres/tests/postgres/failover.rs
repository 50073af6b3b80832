//! A server that comes back without its last commits.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use abide_core::{Ability, Body, Kind, Namespace};
use abide_postgres::PostgresStore;
use abide_store::conformance::{TestClock, block_on, bounds};
use abide_store::{Claim, CommitOutcome, Leased, Store, Submit, View, Worker, Workers};

use crate::cluster::Cluster;
use crate::fixture::options;
use crate::isolation::{message, name, parking};

fn open(cluster: &Cluster, clock: &Arc<TestClock>) -> Arc<PostgresStore> {
    let url = cluster.url("postgres", "127.0.0.1");
    PostgresStore::open(&url, clock.clone(), options(bounds())).expect("the server is there")
}

/// Starts an execution and takes its lease.
fn leased(store: &PostgresStore) -> Leased {
    let start = abide_core::fixture::flow();
    let ability = Ability {
        namespace: Namespace::default(),
        lanes: [start.lane.clone()].into(),
        runs: [(Kind::Workflow, start.name.clone())].into(),
        capabilities: BTreeSet::new(),
        build: None,
    };
    let worker = Worker { name: name("worker"), ability, ttl: Duration::from_secs(10) };
    let session = block_on(store.register(worker)).expect("a worker is registered").session;
    let messages = vec![message("start", Body::Start(start.into()))];
    let submit = Submit { messages, born_to: None, alone: false, stretch: None };
    block_on(store.submit(submit)).expect("the start is taken");
    let claim = Claim { session, request: 1, slots: 9, care_slots: 0, with_mail: false, sweep: false };
    block_on(store.claim(claim)).expect("a live session may claim").leased.remove(0)
}

fn workers(store: &PostgresStore) -> Result<(), String> {
    let all = Workers { namespace: Namespace::default(), after: None, limit: 10 };
    block_on(store.workers(all)).map(drop).map_err(|error| error.to_string())
}

/// How often a store is asked that has to find out that its connections are gone.
const ASKED_COUNT_MAX: usize = 100;

#[test]
fn a_server_without_the_last_commits_is_reported_and_not_used() {
    let (cluster, clock) = (Cluster::new(), TestClock::new());
    cluster.start("");
    let store = open(&cluster, &clock);
    let leased = leased(&store);
    // A restart loses nothing, and the store goes on.
    cluster.stop();
    let (data, copy) = (cluster.data().display().to_string(), cluster.path("copy").display().to_string());
    cluster.run(Path::new("cp"), &["-a", &data, &copy]);
    cluster.start("");
    assert!((0..ASKED_COUNT_MAX).any(|_| workers(&store).is_ok()), "it connects again");
    let commit = parking(&leased, &clock, (&[], Vec::new()));
    let outcome = block_on(store.commit(commit)).expect("it is committed");
    assert!(matches!(outcome, CommitOutcome::Committed(_)), "{outcome:?}");
    // An older copy takes its place, at the same address.
    cluster.stop();
    cluster.run(Path::new("rm"), &["-r", &data]);
    cluster.run(Path::new("mv"), &[&copy, &data]);
    cluster.start("");
    let told = (0..ASKED_COUNT_MAX).find_map(|_| workers(&store).err().filter(|told| told.contains("lost")));
    let told = told.expect("the loss is found");
    assert!(told.contains("the server has lost commits that it had acknowledged"), "{told}");
    assert!(workers(&store).is_err(), "it is not used again");
    assert!(block_on(store.trouble()).expect("it is known").is_some());
    store.close();
    // A process that comes later knows nothing of them.
    let later = open(&cluster, &clock);
    workers(&later).expect("it is a sound database");
    later.close();
}
