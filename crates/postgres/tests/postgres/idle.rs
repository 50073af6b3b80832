//! The cost of an idle process, and how it learns of changes whose notices were lost.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use abide_core::{
    Ability, Address, Body, By, ExecutionId, Kind, Message, MessageId, Name, Namespace, SessionId,
};
use abide_postgres::{Options, PostgresStore};
use abide_store::conformance::{TestClock, block_on, bounds};
use abide_store::{Beat, Claim, Claimed, Notice, Store, Submit, Worker};

use crate::fixture::{Raw, Schema, options, server};

fn name(text: &str) -> Name {
    Name::new(text).expect("tests use good names")
}

fn worker() -> Worker {
    let start = abide_core::fixture::flow();
    let ability = Ability {
        namespace: Namespace::default(),
        lanes: [start.lane.clone()].into(),
        runs: [(Kind::Workflow, start.name)].into(),
        capabilities: BTreeSet::new(),
        build: None,
    };
    Worker { name: name("worker"), ability, ttl: Duration::from_secs(15) }
}

fn start(id: &str) -> Submit {
    let to = Address { namespace: Namespace::default(), id: ExecutionId::new(id).expect("a good id") };
    let body = Body::Start(abide_core::fixture::flow().into());
    let message = Message::new(MessageId::new(id), to, By("ann".into()), body);
    Submit { messages: vec![message], born_to: None, alone: false, stretch: None }
}

/// A session of an engine that has nothing to do.
struct Seat {
    store: Arc<PostgresStore>,
    session: SessionId,
    request: u64,
}

impl Seat {
    fn new(store: Arc<PostgresStore>) -> Self {
        let session = block_on(store.register(worker())).expect("a worker is registered").session;
        Self { store, session, request: 0 }
    }

    fn claim(&mut self, sweep: bool) -> Claimed {
        self.request += 1;
        let (session, request) = (self.session, self.request);
        let claim = Claim { session, request, slots: 8, care_slots: 64, with_mail: true, sweep };
        block_on(self.store.claim(claim)).expect("a live session may claim")
    }
}

/// Ten seconds, in tenths.
const TENTHS: usize = 100;

/// A database of its own, whose transactions nobody else counts to.
struct Database(String);

impl Database {
    fn new(name: &str) -> Self {
        let name = [name, &std::process::id().to_string()].join("_");
        let mut raw = Raw::open();
        raw.run(&["CREATE DATABASE ", &name].concat());
        Self(name)
    }

    fn url(&self, rest: &str) -> String {
        let server = server();
        let separator = if server.contains('?') { "&" } else { "?" };
        [&server, separator, "dbname=", &self.0, rest].concat()
    }

    fn transaction_count(&self, raw: &mut Raw) -> i64 {
        let count = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1";
        raw.query(count, &[&self.0])[0].get(0)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        Raw::open().run(&["DROP DATABASE ", &self.0, " WITH (FORCE)"].concat());
    }
}

/// Does what an idle engine does for ten seconds: a claim with a sweep every two, a heartbeat every
/// five, and a claim when the store says that something may have changed.
fn rest(seat: &mut Seat, raw: &mut Raw) {
    for tenth in 0..TENTHS {
        if tenth % 20 == 7 {
            assert!(seat.claim(true).leased.is_empty());
        }
        if tenth % 50 == 13 {
            let beat = Beat { digest: Some(abide_core::Digest::default()), ..Beat::of(seat.session) };
            block_on(seat.store.heartbeat(beat)).expect("it lives");
        }
        if tenth == 71 {
            assert!(seat.claim(false).leased.is_empty());
        }
        raw.query("SELECT pg_sleep(0.1)::TEXT", &[]);
    }
}

fn check_idle(database: &str, rest_of_url: &str) {
    let database = Database::new(database);
    let options = Options { poll_ms: Options::default().poll_ms, ..options(bounds()) };
    let store = PostgresStore::open(&database.url(rest_of_url), TestClock::new(), options).expect("it opens");
    let mut raw = Raw::open();
    let mut seat = Seat::new(store.clone());
    block_on(store.submit(start("a"))).expect("it is taken");
    assert_eq!(seat.claim(true).leased.len(), 1);
    block_on(store.retire(abide_store::Retire { session: seat.session, reason: "over".to_owned() }))
        .expect("it ends");
    // The session holds nothing, and the schema has seen an execution of its route.
    let mut raw_there = Raw::at(&database.url(""));
    raw_there
        .run("UPDATE abide.sessions SET released = TRUE; DELETE FROM abide.wakes; DELETE FROM abide.cares");
    drop(raw_there);
    let mut seat = Seat::new(store.clone());
    rest(&mut seat, &mut raw);
    let mut found = Vec::new();
    // A vacuum of the server may come in between.
    while found.len() < 3 && found.iter().all(|count| *count > 10) {
        let before = database.transaction_count(&mut raw);
        rest(&mut seat, &mut raw);
        found.push(database.transaction_count(&mut raw) - before);
    }
    println!("{found:?} transactions in ten seconds each");
    assert!(found.iter().any(|count| *count <= 10), "{found:?}");
    store.close();
}

#[test]
fn p7_an_idle_engine_sends_at_most_one_statement_a_second() {
    check_idle("abide_idle", "");
}

#[test]
fn p7_an_idle_engine_that_does_not_listen_sends_at_most_one_statement_a_second() {
    check_idle("abide_idle_deaf", "&listen=off");
}

/// Waits for a notice after which an engine claims.
fn wait(seat: &Seat) {
    let notices = block_on(seat.store.wait(seat.session)).expect("it is told");
    assert!(notices.iter().any(|notice| matches!(notice, Notice::Ready | Notice::Changed)), "{notices:?}");
}

/// A store that hears no notices learns of what another one has started.
#[test]
fn a_lost_notice_costs_the_time_of_a_look() {
    let schema = Schema::new();
    let clock = TestClock::new();
    let deaf_url = [&schema.url(), "&listen=off"].concat();
    let options = Options { poll_ms: 50, ..options(bounds()) };
    let deaf = PostgresStore::open(&deaf_url, clock.clone(), options.clone()).expect("it opens");
    let other = schema.open(clock, options);
    let mut seat = Seat::new(deaf);
    for id in ["a", "b"] {
        assert!(seat.claim(false).leased.is_empty());
        block_on(other.submit(start(id))).expect("it is taken");
        let mut leased = Vec::new();
        while leased.is_empty() {
            wait(&seat);
            leased = seat.claim(false).leased;
        }
        assert_eq!(leased[0].execution.address().id.as_str(), id);
    }
}

/// A writer of another database does not stall the feed, not even one of a table of the same name.
#[test]
fn the_feed_is_not_stalled_from_another_database() {
    let schema = Schema::new();
    let store = schema.open(TestClock::new(), options(bounds()));
    let database = Database::new("abide_foreign");
    let mut foreign = Raw::at(&database.url(""));
    foreign.run("CREATE TABLE feed (n INT); BEGIN; INSERT INTO feed VALUES (1)");
    block_on(store.submit(start("a"))).expect("it is taken");
    let feed = abide_store::Feed { from: abide_store::FeedFrom::Beginning, limit: 9 };
    let page = block_on(abide_store::View::feed(&*store, feed)).expect("it is fed");
    assert_eq!((page.items.len(), page.is_end), (1, true));
    drop(foreign);
}
