//! Operations that share a transaction with a user's closure may fail, or be redone. The closure
//! then runs again, and its writes happen once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use abide_core::{Body, Payload, SessionId};
use abide_sqlite::stepped::{Fate, Stepped};
use abide_sqlite::{Options, SqliteStore};
use abide_store::conformance::block_on;
use abide_store::{Answer, Claim, Claimed, Commit, CommitOutcome, Error, Store, Submit};

use crate::fixture::{Fixture, flow, look, message, start, submit};
use crate::indexes::{break_overflow, put};

const LARGE: u8 = b'z';

/// A transaction step of execution `innocent`, and the number of runs of its closure.
struct Innocent {
    session: SessionId,
    commit: Commit,
    run_count: Arc<AtomicU32>,
}

impl Innocent {
    /// Prepares the step. Its session outlives the store that it was registered in.
    fn new(fixture: &Fixture) -> Self {
        fixture.raw().execute_batch("CREATE TABLE stock (item TEXT)").expect("a table can be made");
        let store = fixture.open();
        let seat = fixture.seat(&store);
        let run_count = Arc::new(AtomicU32::new(0));
        let counted = run_count.clone();
        let mut commit = seat.transaction(&seat.born("innocent"), move |tx| {
            counted.fetch_add(1, Ordering::Relaxed);
            tx.execute("INSERT INTO stock VALUES ('nail')", []).map(|_| ())
        });
        commit.alone = false;
        store.close();
        Self { session: seat.session, commit, run_count }
    }

    fn check(&self, fixture: &Fixture, (store, answer): (&Arc<SqliteStore>, Answer<CommitOutcome>)) {
        let Ok(CommitOutcome::Committed(committed)) = block_on(answer) else {
            panic!("it failed with its neighbour")
        };
        assert_eq!(self.run_count.load(Ordering::Relaxed), 2, "they shared a transaction");
        let stock = "SELECT COUNT(*) FROM stock";
        let count: i64 = fixture.raw().query_row(stock, [], |row| row.get(0)).expect("it is counted");
        assert_eq!(count, 1, "its writes happen once");
        let journal = look(store, "innocent").journal;
        assert_eq!((journal.len(), committed.transacted.as_ref()), (2, journal.last()));
    }
}

fn stepped(fixture: &Fixture) -> Arc<SqliteStore> {
    let still = || Duration::ZERO;
    SqliteStore::stepped(&fixture.path(), fixture.clock.clone(), Options::default(), still)
        .expect("the file can be opened")
}

fn large(id: &str, byte_count: usize) -> abide_core::Message {
    let text = String::from_utf8(vec![LARGE; byte_count]).expect("it is a text");
    message("start", id, Body::Start(flow().with_input(Payload::from(text.as_str())).into()))
}

/// If a row finds no room, SQLite rolls back everything before it in the same transaction.
#[test]
fn a_transaction_that_sqlite_ends_costs_the_transaction_step_beside_it_a_second_run() {
    let fixture = Fixture::new();
    let innocent = Innocent::new(&fixture);
    let store = stepped(&fixture);
    let good = store.commit(innocent.commit.clone());
    let bad = store.submit(Submit {
        messages: vec![large("large", 100_000)],
        born_to: None,
        alone: false,
        stretch: None,
    });
    assert_eq!(store.step(Fate::Full), Stepped::Done);
    assert!(matches!(block_on(bad), Err(Error::Unavailable { .. })));
    innocent.check(&fixture, (&store, good));
    assert!(store.verify().expect("it is looked at").is_sound());
}

#[test]
fn a_claim_that_is_done_again_has_the_closure_beside_it_run_again() {
    let fixture = Fixture::new();
    let innocent = Innocent::new(&fixture);
    let store = fixture.open();
    submit(&store, vec![large("large", 20_000)]).expect("it is taken");
    store.close();
    let whole = std::fs::read(fixture.path()).expect("it can be read");
    put(&fixture.path(), &break_overflow(&whole, LARGE).0);
    let store = stepped(&fixture);
    let claim = |request| -> Answer<Claimed> {
        let (session, slots) = (innocent.session, 9);
        store.claim(Claim { session, request, slots, care_slots: 0, with_mail: false, sweep: false })
    };
    // The first time, all indexes are rebuilt, which does not help.
    let first = claim(1);
    assert_eq!(store.step(Fate::Committed), Stepped::Done);
    assert_eq!(block_on(first).expect("it is given what can be read").leased.len(), 0);
    fixture.clock.advance(Duration::from_secs(1));
    block_on(store.submit(Submit { messages: vec![start("q")], born_to: None, alone: true, stretch: None }))
        .expect("it is taken");
    let (good, second) = (store.commit(innocent.commit.clone()), claim(2));
    assert_eq!(store.step(Fate::Committed), Stepped::Done);
    let leased = block_on(second).expect("it is given what can be read").leased;
    let ids: Vec<_> = leased.iter().map(|leased| leased.execution.address().id.as_str()).collect();
    assert_eq!(ids, ["q"]);
    innocent.check(&fixture, (&store, good));
}
