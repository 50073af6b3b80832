//! Damage to journal rows that share a row of the table, and rows that are read in the transaction
//! that wrote them.

use std::sync::Arc;
use std::time::Duration;

use abide_core::{Command, Op, OpKind, Outcome, Payload, StepRecord};
use abide_sqlite::SqliteStore;
use abide_sqlite::flaw::Flaw;
use abide_sqlite::stepped::{Fate, Stepped};
use abide_store::conformance::block_on;
use abide_store::{Clock, Feed, FeedFrom, Prune, Read, Store, Target, View};

use crate::fixture::{Fixture, Held, address, name, start, step, submit};
use crate::pages::{PAGE_BYTES, change};
use crate::sheaves::{Bench, check, entry_count, ids, seat, stepped};

/// Changes the bytes behind a row.
fn flip(fixture: &Fixture, row: i64, change: impl FnOnce(&mut Vec<u8>)) {
    let raw = fixture.raw();
    let read = "SELECT more FROM abide_journal WHERE row = ?1";
    let mut more: Vec<u8> = raw.query_row(read, [row], |row| row.get(0)).expect("there are rows behind it");
    change(&mut more);
    raw.execute("UPDATE abide_journal SET more = ?2 WHERE row = ?1", (row, more)).expect("it is damaged");
}

/// The length of a row, the checksum of its columns, and the columns: bits that move all that
/// follows, and others.
#[test]
fn p1_no_flipped_bit_hides_the_last_row_of_a_tail() {
    let flips = (0..11).flat_map(|byte| [0x01, 0x04, 0x40, 0x80].map(|bit| (byte, bit)));
    for (byte, bit) in flips {
        let nth = format!("{bit:#x} of byte {byte}");
        let mut bench = Bench::new();
        let mut held = bench.born(&ids(2));
        bench.record(&mut held, 1);
        bench.record(&mut held, 2);
        bench.store.crash();
        flip(&bench.fixture, 5, |more| more[byte] ^= bit);
        bench.fixture.clock.advance(Duration::from_secs(60));
        bench.store = stepped(&bench.fixture);
        bench.seat = seat(&bench.fixture, &bench.store);
        let answer = bench.claim();
        let leased = bench.together(vec![answer]).remove(0).leased;
        let taken: Vec<_> = leased.iter().map(|leased| leased.address().id.as_str()).collect();
        assert!(!taken.contains(&"e1"), "flip {nth}: {taken:?}");
        let problems = bench.problems();
        assert!(
            problems.iter().any(|problem| problem.contains("execution \"e1\"")),
            "flip {nth}: {problems:?}"
        );
    }
}

/// The length of a row, its columns, its list and its body.
#[test]
fn no_flipped_bit_of_the_last_row_of_a_tail_goes_unnoticed() {
    let bench = Bench::new();
    let mut held = bench.born(&ids(5));
    bench.record(&mut held, 1);
    bench.record(&mut held, 2);
    bench.store.crash();
    let raw = bench.fixture.raw();
    let read = "SELECT more FROM abide_journal WHERE row = 11";
    let more: Vec<u8> = raw.query_row(read, [], |row| row.get(0)).expect("there are rows behind it");
    // Each of the four rows behind the first one has as many bytes.
    let last = more.len() - more.len() / 4;
    for (byte, bit) in (last..more.len()).flat_map(|byte| (0..8).map(move |bit| (byte, bit))) {
        let mut flipped = more.clone();
        flipped[byte] ^= 1 << bit;
        let write = "UPDATE abide_journal SET more = ?1 WHERE row = 11";
        raw.execute(write, [flipped]).expect("it is damaged");
        let store = stepped(&bench.fixture);
        let problems = store.verify().expect("it is looked at").problems;
        store.crash();
        assert!(!problems.is_empty(), "bit {bit} of byte {byte} of {}", more.len());
    }
}

/// Both have a tail, and the last row of the first one lies before that of the second one or behind
/// it.
#[test]
fn damage_to_the_last_row_of_a_tail_harms_no_neighbour() {
    for (harmed, other) in [("e0", "e1"), ("e1", "e0")] {
        let mut bench = Bench::new();
        let mut held = bench.born(&ids(2));
        bench.record(&mut held, 1);
        bench.record(&mut held, 2);
        bench.store.crash();
        assert!(Flaw::Journal(0).make(&bench.fixture.path(), harmed, 9), "the damage is done");
        bench.fixture.clock.advance(Duration::from_secs(60));
        bench.store = stepped(&bench.fixture);
        bench.seat = seat(&bench.fixture, &bench.store);
        let answer = bench.claim();
        let leased = bench.together(vec![answer]).remove(0).leased;
        let taken: Vec<_> = leased.iter().map(|leased| leased.address().id.as_str()).collect();
        assert!(taken.contains(&other) && !taken.contains(&harmed), "{harmed} is damaged: {taken:?}");
        let problems = bench.problems();
        assert!(!problems.is_empty(), "{harmed} is damaged");
        assert!(!problems.iter().any(|problem| problem.contains(&format!("\"{other}\""))), "{problems:?}");
    }
}

/// Returns a closed store with 400 executions, so many of which were started at once.
fn with_executions(count: usize) -> Fixture {
    let fixture = Fixture::new();
    let store = fixture.open();
    let starts: Vec<_> = (1..=400).map(|nth| start(&format!("q-{nth}"))).collect();
    for some in starts.chunks(count) {
        submit(&store, some.to_vec()).expect("they are taken");
    }
    store.close();
    let damage = "UPDATE abide_executions SET status = 9 WHERE id IN ('q-1', 'q-400')";
    fixture.raw().execute_batch(damage).expect("the damage can be done");
    fixture
}

/// Returns a store where one page of the journal cannot be read: the one that a cell of the root
/// leads to. Each sheaf fits on a page.
fn with_unreadable_page(nth_cell: usize) -> (Fixture, Arc<SqliteStore>) {
    let fixture = with_executions(20);
    let root = "SELECT rootpage FROM sqlite_schema WHERE name = 'abide_journal'";
    let root: i64 = fixture.raw().query_row(root, [], |row| row.get(0)).expect("there is a root");
    let root = (root as usize - 1) * PAGE_BYTES;
    change(&fixture.path(), |bytes| {
        let cell = root + 12 + 2 * nth_cell;
        let cell = root + usize::from(u16::from_be_bytes([bytes[cell], bytes[cell + 1]]));
        let child = u32::from_be_bytes(bytes[cell..cell + 4].try_into().expect("four bytes"));
        bytes[(child as usize - 1) * PAGE_BYTES] = 0xff;
    });
    let store = fixture.open();
    (fixture, store)
}

/// Returns the executions whose journal cannot be read. All that lie between two of them are such.
fn unread(store: &SqliteStore) -> (u32, u32) {
    let is_unread = |nth: &u32| {
        let target = Target::Address(address(&format!("q-{nth}")));
        block_on(store.read(Read { target, run: None, from: 1, limit: 10, with_inbox: false })).is_err()
    };
    let unread: Vec<u32> = (1..=400).filter(is_unread).collect();
    let (first, last) = (unread[0], unread[unread.len() - 1]);
    assert_eq!(unread, (first..=last).collect::<Vec<_>>());
    (first, last)
}

/// A sheaf of many rows continues on pages of its own, each of which leads to the next.
#[test]
fn a_lost_page_of_a_sheaf_costs_that_sheaf_alone() {
    let fixture = with_executions(80);
    change(&fixture.path(), |bytes| {
        let is_further = |page: &&mut [u8]| page[0] == 0 && page.windows(5).any(|text| text == b"q-110");
        let page = bytes.chunks_mut(PAGE_BYTES).find(is_further).expect("the sheaf has several pages");
        assert_ne!(page[..4], [0; 4], "it leads to another");
        page[..4].fill(0xff);
    });
    let store = fixture.open();
    let (first, last) = unread(&store);
    assert!(81 <= first && last == 160, "{first} to {last}");
    let problems = store.verify().expect("it is looked at").problems;
    for nth in first..=last {
        let named = format!("execution \"q-{nth}\"");
        assert!(problems.iter().any(|problem| problem.starts_with(&named)), "{named}: {problems:?}");
    }
    let repairs = block_on(store.repair()).expect("it is looked at");
    assert!(repairs.rebuilt.iter().any(|line| line.contains("q-400")), "{repairs:?}");
}

#[test]
fn a_page_that_cannot_be_read_costs_no_row_before_it() {
    let (_fixture, store) = with_unreadable_page(1);
    let (first, last) = unread(&store);
    let problems = store.verify().expect("it is looked at").problems;
    let gap = format!("journal row {first} to {last} cannot be read");
    assert!(problems.iter().any(|problem| problem.starts_with(&gap)), "{gap}: {problems:?}");
}

#[test]
fn a_repair_goes_around_the_first_page_of_the_journal() {
    let (_fixture, store) = with_unreadable_page(0);
    let repairs = block_on(store.repair()).expect("it is looked at");
    assert!(repairs.rebuilt.iter().any(|line| line.contains("q-400")), "{repairs:?}");
}

/// Returns a bench where `e0` was taken over with this many rows.
fn taken_over(row_count: u32) -> (Bench, Held) {
    let mut bench = Bench::new();
    let mut held = bench.born(&ids(1));
    (1..row_count).for_each(|nth| bench.record(&mut held, nth));
    bench.reopen();
    bench.fixture.clock.advance(Duration::from_secs(60));
    bench.seat = seat(&bench.fixture, &bench.store);
    let answer = bench.claim();
    let held = bench.together(vec![answer]).remove(0).leased.remove(0);
    (bench, held.into())
}

fn large_step(nth: u32) -> Command {
    let op = Op { kind: OpKind::Step, name: name("step"), key: None, nth };
    let outcome = Outcome::Success(Payload::from(format!("\"{}\"", "x".repeat(20_000)).as_str()));
    Command::RecordStep(StepRecord { op, outcome, attempt: 1, input: None })
}

/// Every 128th row lists its predecessors, and the writer has forgotten them.
#[test]
fn a_list_of_predecessors_finds_them_in_its_own_transaction() {
    let (bench, mut held) = taken_over(126);
    let commit = bench.commit(bench.seat.draft(&mut held, vec![step(126)]));
    check(bench.together(vec![commit]));
    let other = bench.submit(vec![start("x")]);
    let commit = bench.commit(bench.seat.draft(&mut held, vec![step(127)]));
    assert_eq!(bench.store.step(Fate::Committed), Stepped::Done);
    block_on(other).expect("it is taken");
    check(vec![block_on(commit).expect("it is written")]);
    assert_eq!(bench.problems(), Vec::<String>::new());
    assert_eq!((entry_count(&bench.store, "e0"), entry_count(&bench.store, "x")), (128, 1));

    let (bench, mut held) = taken_over(126);
    let commit = bench.commit(bench.seat.draft(&mut held, vec![step(126), large_step(127)]));
    check(bench.together(vec![commit]));
    assert_eq!(bench.problems(), Vec::<String>::new());
    assert_eq!(entry_count(&bench.store, "e0"), 128);
}

/// Its commit reads the tail of the journal, because another process has written.
#[test]
fn a_commit_that_reads_its_row_finds_the_rows_before_it() {
    let bench = Bench::new();
    let mut held = bench.born(&ids(2));
    (1..=3).for_each(|nth| bench.record(&mut held, nth));
    bench.fixture.raw().execute_batch("PRAGMA user_version = 77").expect("it is written");
    let other = bench.submit(vec![start("x")]);
    let commit = bench.commit(bench.seat.draft(&mut held[0], vec![step(4)]));
    assert_eq!(bench.store.step(Fate::Committed), Stepped::Done);
    block_on(other).expect("it is taken");
    check(vec![block_on(commit).expect("it is written")]);
    assert_eq!(bench.problems(), Vec::<String>::new());
}

#[test]
fn a_prune_leaves_the_bytes_of_damaged_rows() {
    let bench = Bench::new();
    let mut held = bench.born(&ids(4));
    bench.complete(&mut held[..1]);
    bench.store.crash();
    // The length of the second row behind the first.
    flip(&bench.fixture, 1, |more| {
        let second = 2 + usize::from(u16::from_le_bytes([more[0], more[1]]));
        more[second + 1] ^= 0x40;
    });
    let byte_count = || -> i64 {
        let count = "SELECT SUM(LENGTH(body) + COALESCE(LENGTH(more), 0)) FROM abide_journal WHERE row <= 4";
        bench.fixture.raw().query_row(count, [], |row| row.get(0)).expect("they are counted")
    };
    let before = byte_count();
    bench.fixture.clock.advance(Duration::from_secs(60));
    let store = bench.fixture.open();
    let prune = Prune { finished_before: bench.fixture.clock.now(), limit: 100 };
    assert_eq!(block_on(store.prune(prune)).expect("it prunes"), 1);
    let problems = store.verify().expect("it is looked at").problems;
    let told = "what is behind journal row 2 cannot be read".to_owned();
    assert!(problems.contains(&told), "{problems:?}");
    assert!(byte_count() > before / 2, "{} of {before} bytes are left", byte_count());
}

/// The row of `e1` follows that of `e0`, which is removed, and has lost its owner.
#[test]
fn a_prune_neither_heals_nor_spreads_damaged_columns() {
    let bench = Bench::new();
    let mut held = bench.born(&ids(4));
    bench.complete(&mut held[..1]);
    bench.store.crash();
    flip(&bench.fixture, 1, |more| more[6] ^= 0x01);
    bench.fixture.clock.advance(Duration::from_secs(60));
    let store = bench.fixture.open();
    let prune = Prune { finished_before: bench.fixture.clock.now(), limit: 100 };
    assert_eq!(block_on(store.prune(prune)).expect("it prunes"), 1);
    assert_eq!(["e2", "e3"].map(|id| entry_count(&store, id)), [1, 1]);
    let problems = store.verify().expect("it is looked at").problems;
    assert!(problems.iter().any(|problem| problem.contains("\"e1\"")), "{problems:?}");
    for id in ["e2", "e3"] {
        assert!(!problems.iter().any(|problem| problem.contains(&format!("\"{id}\""))), "{problems:?}");
    }
}

/// Rows have their numbers from those before them. Row 2 is that of `e1`, which is removed, and row
/// 3 is damaged in its length or in its columns.
#[test]
fn p1_a_prune_leaves_the_row_before_a_damaged_one_where_it_is() {
    for (byte, bit) in [(1, 0x40), (6, 0x01)] {
        let bench = Bench::new();
        let mut held = bench.born(&ids(4));
        bench.complete(&mut held[1..2]);
        bench.store.crash();
        flip(&bench.fixture, 1, |more| {
            let second = 2 + usize::from(u16::from_le_bytes([more[0], more[1]]));
            more[second + byte] ^= bit;
        });
        bench.fixture.clock.advance(Duration::from_secs(60));
        let store = bench.fixture.open();
        let prune = Prune { finished_before: bench.fixture.clock.now(), limit: 100 };
        assert_eq!(block_on(store.prune(prune)).expect("it prunes"), 1);
        let problems = store.verify().expect("it is looked at").problems;
        if byte == 1 {
            let told = "what is behind journal row 2 cannot be read".to_owned();
            assert!(problems.contains(&told), "{problems:?}");
        } else {
            assert_eq!(["e0", "e3"].map(|id| entry_count(&store, id)), [1, 1]);
            assert!(problems.iter().any(|problem| problem.contains("journal row 3")), "{problems:?}");
        }
    }
}

#[test]
fn no_number_is_used_again_behind_something_that_is_no_row() {
    for more in ["'x'", "SUBSTR(more, 1, LENGTH(more) - 1)"] {
        let bench = Bench::new();
        bench.born(&ids(8));
        bench.store.crash();
        let damage = ["UPDATE abide_journal SET more = ", more].concat();
        bench.fixture.raw().execute_batch(&damage).expect("it is damaged");
        let store = stepped(&bench.fixture);
        let bench = Bench { store, ..bench };
        bench.together(vec![bench.submit(vec![start("new")])]);
        let head = "SELECT head FROM abide_executions WHERE id = 'new'";
        let head: i64 = bench.fixture.raw().query_row(head, [], |row| row.get(0)).expect("it is there");
        assert!(head > 8, "{more}: {head}");
    }
}

#[test]
fn a_page_of_no_items_passes_nothing_over() {
    let bench = Bench::new();
    bench.born(&ids(3));
    let feed = |from, limit| block_on(bench.store.feed(Feed { from, limit })).expect("it is read");
    let page = feed(FeedFrom::Beginning, 0);
    assert!(page.items.is_empty() && !page.is_end, "{page:?}");
    assert_eq!(feed(FeedFrom::After(page.next), 10).items.len(), 3);
}
