//! Journals of any length, read from any entry.

use abide_sqlite::Options;
use abide_store::conformance::block_on;
use abide_store::{ExecutionKey, PageBounds, Read, Store, Target, View};

use crate::fixture::{Fixture, Seat, step};

fn page(seat: &Seat, key: ExecutionKey, (from, limit): (u64, usize)) -> Vec<u64> {
    let read = Read { target: Target::Key(key), run: None, from, limit, with_inbox: false };
    let journal = block_on(seat.store.read(read)).expect("it is read").expect("it exists").journal;
    journal.iter().map(|record| record.entry().expect("it can be read").seq).collect()
}

/// Grows two journals in turns, in commits of different sizes.
fn grow(seat: &Seat, lengths: &[u32]) -> ExecutionKey {
    let (mut one, mut other) = (seat.born("one"), seat.born("other"));
    let mut nth = 0;
    for length in lengths {
        let commands = (0..*length).map(|_| {
            nth += 1;
            step(nth)
        });
        seat.record(&mut one, commands.collect());
        seat.record(&mut other, vec![step(nth)]);
    }
    one.key
}

#[test]
fn every_page_of_a_journal_can_be_read() {
    let fixture = Fixture::new();
    let seat = fixture.seat(&fixture.open());
    let key = grow(&seat, &[1, 125, 1, 1, 126, 3, 127, 128, 129, 1, 2, 260]);
    let count = 1 + 904;
    for from in
        [1, 2, 126, 127, 128, 129, 130, 255, 256, 257, 383, 384, 385, 512, 640, 768, 896, 897, 904, 905]
    {
        for limit in [1, 2, 127, 128, 129, 1_000] {
            let expected: Vec<u64> = (from..=count).take(limit).collect();
            assert_eq!(page(&seat, key, (from, limit)), expected, "from {from}, at most {limit}");
        }
    }
    assert!(page(&seat, key, (count + 1, 10)).is_empty());
    assert!(page(&seat, key, (1, 0)).is_empty());
    assert!(seat.store.verify().unwrap().is_sound());
}

#[test]
fn skip_entries_are_right_after_a_restart_in_the_middle_of_a_block() {
    let fixture = Fixture::new();
    for restarts in 0..12 {
        let store = fixture.open();
        let mut seat = fixture.seat(&store);
        let mut held = match restarts {
            0 => seat.born("one"),
            _ => seat.claim(true).leased.remove(0).into(),
        };
        for nth in 0..50 {
            seat.record(&mut held, vec![step(restarts * 50 + nth + 1)]);
        }
        assert_eq!(store.verify().unwrap().problems, Vec::<String>::new());
    }
    let store = fixture.open();
    let seat = fixture.seat(&store);
    assert_eq!(page(&seat, ExecutionKey(1), (1, 1_000)), (1..=601).collect::<Vec<u64>>());
}

#[test]
fn a_page_ends_before_its_bytes_run_out_but_has_at_least_one_entry() {
    let fixture = Fixture::new();
    let page_bounds = PageBounds { journal_page_bytes_max: 1, ..PageBounds::default() };
    let options = Options { page_bounds, ..Options::default() };
    let seat = fixture.seat(&fixture.open_with(options));
    let key = grow(&seat, &[300]);
    for from in [1, 127, 128, 129, 301] {
        assert_eq!(page(&seat, key, (from, 100)), [from]);
    }
}

#[test]
fn numbers_are_not_given_again_after_pruning() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let seat = fixture.seat(&store);
    let mut held = seat.born("a");
    seat.record(&mut held, vec![crate::fixture::complete()]);
    fixture.clock.advance(std::time::Duration::from_secs(1));
    let prune = abide_store::Prune { finished_before: abide_store::Clock::now(&*fixture.clock), limit: 10 };
    assert_eq!(block_on(store.prune(prune)).unwrap(), 1);
    store.close();
    let store = fixture.open();
    let seat = fixture.seat(&store);
    assert!(seat.born("b").key > held.key);
    let feed = abide_store::Feed { from: abide_store::FeedFrom::Beginning, limit: 10 };
    let page = block_on(store.feed(feed)).unwrap();
    assert_eq!((page.items.len(), page.next), (1, abide_store::FeedCursor(3)));
    assert!(store.verify().unwrap().is_sound());
}

#[test]
fn pruning_finds_what_ended_behind_a_long_open_journal() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let seat = fixture.seat(&store);
    let mut open = seat.born("open");
    for first in (0..21_000).step_by(1_000) {
        seat.record(&mut open, (first..first + 1_000).map(step).collect());
    }
    for id in ["a", "b", "c"] {
        let mut held = seat.born(id);
        seat.record(&mut held, vec![crate::fixture::complete()]);
    }
    fixture.clock.advance(std::time::Duration::from_secs(1));
    let prune = |limit| {
        let finished_before = abide_store::Clock::now(&*fixture.clock);
        block_on(store.prune(abide_store::Prune { finished_before, limit })).unwrap()
    };
    assert_eq!((prune(2), prune(2), prune(2)), (2, 1, 0));
    seat.record(&mut open, vec![crate::fixture::complete()]);
    fixture.clock.advance(std::time::Duration::from_secs(1));
    assert_eq!((prune(2), prune(2)), (1, 0));
    assert!(store.verify().unwrap().is_sound());
}

#[test]
fn the_number_of_a_pruned_session_is_not_given_again() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let seat = fixture.seat(&store);
    seat.retire();
    fixture.clock.advance(std::time::Duration::from_secs(60));
    let finished_before = abide_store::Clock::now(&*fixture.clock);
    block_on(store.prune(abide_store::Prune { finished_before, limit: 1 })).unwrap();
    let left: i64 =
        fixture.raw().query_row("SELECT COUNT(*) FROM abide_sessions", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 0);
    assert!(fixture.seat(&store).session > seat.session, "whoever was that session would be this one");
}
