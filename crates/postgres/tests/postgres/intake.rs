//! The intake table beside others: two engines that take at a time, and one that is thrown out.

use std::sync::Arc;

use abide_core::Enqueued;
use abide_postgres::{Intake, PostgresStore};
use abide_store::conformance::{TestClock, block_on, bounds, enqueued_signal, enqueued_start};
use abide_store::{Feed, FeedFrom, List, Store, TakeIn, TakenIn, View};
use tokio_postgres::types::ToSql;

use crate::fixture::{Raw, Schema, options};

fn put(schema: &Schema, rows: &[Enqueued]) {
    let intake = Intake::of(&schema.url()).expect("it names a schema");
    let mut raw = Raw::of(schema);
    raw.run("BEGIN");
    for Enqueued { id, namespace, verb, execution, name, input, options, sender } in rows {
        let parameters: [&(dyn ToSql + Sync); 8] =
            [id, namespace, verb, execution, name, input, options, sender];
        raw.query(intake.statement(), &parameters);
    }
    raw.run("COMMIT");
}

fn take(store: &PostgresStore, limit: usize) -> TakenIn {
    block_on(store.take_in(TakeIn { limit })).expect("rows are taken")
}

fn refused_count(store: &PostgresStore) -> usize {
    let page = block_on(store.feed(Feed { from: FeedFrom::Beginning, limit: 1_000 })).expect("it is fed");
    page.items.iter().filter(|item| item.refused.is_some()).count()
}

/// Somebody takes a start and has not committed. The signal behind it would be refused.
#[test]
fn a_signal_is_not_taken_before_its_start() {
    let schema = Schema::new();
    let store = schema.open(TestClock::new(), options(bounds()));
    put(&schema, &[enqueued_start("a"), enqueued_signal("a", "1"), enqueued_start("b")]);
    let mut raw = Raw::of(&schema);
    raw.run("BEGIN");
    raw.run("SELECT number FROM intake WHERE execution = 'a' ORDER BY number LIMIT 1 FOR UPDATE");
    assert_eq!(take(&store, 100).taken_count, 1, "only the start of b");
    assert_eq!(refused_count(&store), 0);
    raw.run("ROLLBACK");
    assert_eq!(take(&store, 100), TakenIn { taken_count: 2, refused_count: 0, more: true });
    assert_eq!(take(&store, 100), TakenIn::default());
}

/// Two engines take what a third program goes on writing.
#[test]
fn two_engines_take_each_row_once_and_in_order() {
    const COUNT: usize = 120;
    let schema = Schema::new();
    let clock = TestClock::new();
    let stores = [(); 2].map(|()| schema.open(clock.clone(), options(bounds())));
    let done = std::sync::atomic::AtomicBool::new(false);
    let taken_count: usize = std::thread::scope(|scope| {
        let takers: Vec<_> = stores
            .iter()
            .map(|store| {
                scope.spawn(|| {
                    let mut count = 0;
                    loop {
                        // Before the last look, so that nothing comes after it.
                        let is_over = done.load(std::sync::atomic::Ordering::SeqCst);
                        let taken = take(store, 7);
                        count += taken.taken_count;
                        if is_over && taken.taken_count == 0 {
                            return count;
                        }
                    }
                })
            })
            .collect();
        for n in 0..COUNT {
            let id = ["e", &n.to_string()].concat();
            put(&schema, &[enqueued_start(&id)]);
            put(&schema, &[enqueued_signal(&id, "1"), enqueued_signal(&id, "2")]);
        }
        done.store(true, std::sync::atomic::Ordering::SeqCst);
        takers.into_iter().map(|taker| taker.join().expect("it takes")).sum()
    });
    // Both may have stopped in front of rows that the other one held.
    let taken_count = taken_count + take(&stores[0], 1_000).taken_count;
    assert_eq!((taken_count, refused_count(&stores[0])), (3 * COUNT, 0));
    let listed =
        block_on(stores[0].list(List::of(abide_core::Namespace::default(), 1_000))).expect("it lists");
    assert_eq!(listed.items.len(), COUNT);
    let mut raw = Raw::of(&schema);
    let unread = "SELECT count(*) FROM inbox WHERE body IS NOT NULL";
    assert_eq!(raw.query(unread, &[])[0].get::<_, i64>(0), 2 * COUNT as i64);
}

/// The connection of an engine is cut while its transaction has locked rows and waits for another.
#[test]
fn an_engine_that_is_thrown_out_loses_and_repeats_nothing() {
    let schema = Schema::new();
    let store: Arc<PostgresStore> = schema.open(TestClock::new(), options(bounds()));
    put(&schema, &[enqueued_start("a"), enqueued_start("b"), enqueued_signal("b", "1")]);
    let mut raw = Raw::of(&schema);
    raw.run("BEGIN");
    // A start of the same id that has not committed: the engine waits for it.
    raw.run(
        "INSERT INTO executions (key, ns, id, route, rank, request, is_care, given_beat, epoch, version, run, \
         status, listens, aside, is_child, created_at, takeovers, summary, state) \
         VALUES (999999, 'default', 'b', 1, 0, 0, FALSE, 0, 0, 0, 1, 0, 0, FALSE, FALSE, 0, 0, '', '')",
    );
    let taking = store.take_in(TakeIn { limit: 100 });
    raw.until_somebody_waits(&schema);
    raw.query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE application_name = $1 AND wait_event_type = 'Lock'",
        &[&schema.0],
    );
    let outcome = block_on(taking);
    assert!(outcome.is_err(), "{outcome:?}");
    raw.run("ROLLBACK");
    assert_eq!(take(&store, 100), TakenIn { taken_count: 3, refused_count: 0, more: true });
    let listed = block_on(store.list(List::of(abide_core::Namespace::default(), 10))).expect("it lists");
    assert_eq!(listed.items.len(), 2);
}
