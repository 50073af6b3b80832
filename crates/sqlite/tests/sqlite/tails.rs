//! Tails of journals: commits that leave the row of their execution as it is.

use std::sync::Arc;
use std::time::Duration;

use abide_core::{Body, Namespace, Payload, Summary, Waiting};
use abide_sqlite::SqliteStore;
use abide_sqlite::flaw::PAGE_BYTES;
use abide_sqlite::stepped::{Fate, Stepped};
use abide_store::conformance::block_on;
use abide_store::{Beat, Commit, CommitOutcome, Heartbeat, Hold, IdleHook, List, Store, View};

use crate::fixture::{
    Fixture, Held, Seat, complete, damaged, flow, look, message, signal, start, step, submit,
};
use crate::sheaves::{Bench, ids, seat, stepped};

/// How far the head of `a` is behind its last row.
fn tail_length(fixture: &Fixture) -> i64 {
    const LENGTH: &str = "
        SELECT MAX(j.row) - e.head FROM abide_executions AS e JOIN abide_journal AS j ON j.execution = e.key
        WHERE e.id = 'a'";
    fixture.raw().query_row(LENGTH, [], |row| row.get(0)).expect("it can be read")
}

/// The executions whose heads are behind their last rows, in the order of their births.
fn with_tails(fixture: &Fixture) -> Vec<String> {
    const BEHIND: &str = "
        SELECT DISTINCT e.id FROM abide_executions AS e JOIN abide_journal AS j ON j.execution = e.key
        WHERE j.row > e.head ORDER BY e.key";
    let raw = fixture.raw();
    let mut behind = raw.prepare(BEHIND).expect("it can be asked");
    let ids = behind.query_map([], |row| row.get(0)).expect("it can be read");
    ids.collect::<Result<_, _>>().expect("each has an id")
}

/// Returns a store in which `a` has this many steps, of which all but the first are a tail.
fn with_tail(fixture: &Fixture, step_count: u32) -> (Arc<SqliteStore>, Seat, Held) {
    let store = fixture.open();
    let seat = fixture.seat(&store);
    let mut held = seat.born("a");
    (1..=step_count).for_each(|nth| seat.record(&mut held, vec![step(nth)]));
    assert_eq!(tail_length(fixture), i64::from(step_count) - 1);
    (store, seat, held)
}

/// Changes the summary of a commit.
fn summed_up(mut commit: Commit, summary: impl FnOnce(Summary) -> Summary) -> Commit {
    let changes = Arc::make_mut(&mut commit.changes);
    changes.summary = summary(changes.summary.clone());
    commit
}

fn assert_sound(store: &Arc<SqliteStore>) {
    assert_eq!(store.verify().expect("it is looked at").problems, Vec::<String>::new());
}

#[test]
fn every_reader_follows_a_tail() {
    let fixture = Fixture::new();
    let (ours, _seat, held) = with_tail(&fixture, 300);
    for store in [ours, fixture.open()] {
        let found = look(&store, "a");
        assert_eq!((found.journal.len(), found.lease.version), (301, held.version));
        assert_eq!(found.execution, held.execution);
        assert_sound(&store);
    }
}

#[test]
fn the_waits_of_a_tail_are_shown_and_listed() {
    let fixture = Fixture::new();
    let (store, seat, mut held) = with_tail(&fixture, 3);
    let waiting = Waiting::Step { name: crate::fixture::name("last"), attempt: 1 };
    let commit = seat.draft(&mut held, vec![step(4)]);
    let commit = summed_up(commit, |summary| Summary { waiting: [waiting.clone()].into(), ..summary });
    block_on(store.commit(commit)).expect("it is written");
    assert_eq!(tail_length(&fixture), 3);
    assert_eq!(look(&store, "a").summary.waiting.as_slice(), std::slice::from_ref(&waiting));
    let list = List::of(Namespace::default(), 10);
    let listed = block_on(store.list(list)).expect("it is listed").items.remove(0);
    assert_eq!(listed.summary.waiting.as_slice(), [waiting]);
}

/// A store decides by these without the tail.
#[test]
fn a_commit_that_changes_a_time_or_a_status_writes_the_row() {
    let fixture = Fixture::new();
    let (store, seat, mut held) = with_tail(&fixture, 3);
    let wake_at = Some(abide_core::Timestamp::from_millis(77));
    let commit = seat.draft(&mut held, vec![step(4)]);
    block_on(store.commit(summed_up(commit, |summary| Summary { wake_at, ..summary })))
        .expect("it is written");
    assert_eq!((tail_length(&fixture), look(&store, "a").summary.wake_at), (0, wake_at));
}

#[test]
fn a_tail_ends_where_readers_stop_to_look() {
    let fixture = Fixture::new();
    let (store, seat, mut held) = with_tail(&fixture, 1_024);
    let mut longest = 0;
    for nth in 1_025..=3_100 {
        seat.record(&mut held, vec![step(nth)]);
        longest = longest.max(tail_length(&fixture));
    }
    assert_eq!(longest, 1_024);
    assert_eq!(look(&store, "a").execution, held.execution);
    assert_sound(&store);
}

/// Rows of others count: a reader goes through them too.
#[test]
fn a_tail_ends_among_the_rows_of_others() {
    let fixture = Fixture::new();
    let (store, seat, mut held) = with_tail(&fixture, 2);
    let mut other = seat.born("b");
    (1..1_100).for_each(|nth| seat.record(&mut other, vec![step(nth)]));
    seat.record(&mut held, vec![step(3)]);
    assert_eq!(tail_length(&fixture), 0, "its row was written");
    assert_eq!(look(&store, "a").execution, held.execution);
}

#[test]
fn p1_the_next_holder_has_everything_that_a_tail_records() {
    for is_orderly in [false, true] {
        let fixture = Fixture::new();
        let (store, seat, held) = with_tail(&fixture, 200);
        if is_orderly {
            seat.retire();
            assert_eq!(tail_length(&fixture), 0, "nothing is left to be looked for");
        } else {
            fixture.clock.advance(Duration::from_secs(60));
        }
        let theirs = fixture.open();
        let mut next = fixture.seat(&theirs);
        let mut taken: Held = next.claim(true).leased.remove(0).into();
        assert_eq!((taken.version, &taken.execution), (held.version, &held.execution));
        next.record(&mut taken, vec![step(201)]);
        next.record(&mut taken, vec![step(202), complete()]);
        assert_eq!(look(&theirs, "a").journal.len(), 204);
        assert_sound(&store);
    }
}

#[test]
fn p3_a_stale_holder_adds_nothing_to_a_tail() {
    let fixture = Fixture::new();
    let (store, seat, mut held) = with_tail(&fixture, 5);
    fixture.clock.advance(Duration::from_secs(60));
    let theirs = fixture.open();
    let mut next = fixture.seat(&theirs);
    let mut taken: Held = next.claim(true).leased.remove(0).into();
    let late = seat.draft(&mut held, vec![step(6)]);
    let outcome = block_on(store.commit(late)).expect("it is answered");
    assert!(matches!(outcome, CommitOutcome::Fenced(_)), "{outcome:?}");
    next.record(&mut taken, vec![step(6)]);
    assert_eq!(look(&store, "a").execution, taken.execution);
    assert_sound(&store);
}

/// After an unknown outcome only the file can tell whether a commit was applied.
#[test]
fn a_commit_in_a_tail_is_recognized_when_it_is_sent_again() {
    let fixture = Fixture::new();
    let (store, seat, mut held) = with_tail(&fixture, 5);
    let commit = seat.draft(&mut held, vec![step(6)]);
    block_on(store.commit(commit.clone())).expect("it is written");
    // Another process writes, so nothing that was remembered counts any longer.
    submit(&fixture.open(), vec![signal("s", "a")]).expect("it is taken");
    let again = block_on(store.commit(commit)).expect("it is answered");
    assert!(matches!(again, CommitOutcome::Committed(_)), "{again:?}");
    assert_eq!(look(&store, "a").journal.len(), 7);
    seat.record(&mut held, vec![step(7)]);
    assert_sound(&store);
}

/// Each of its commits would have to look for the tail again.
#[test]
fn there_is_no_tail_while_other_processes_write() {
    let fixture = Fixture::new();
    let (store, seat, mut held) = with_tail(&fixture, 5);
    let theirs = fixture.open();
    for nth in 6..12 {
        submit(&theirs, vec![signal(&format!("s-{nth}"), "a")]).expect("it is taken");
        seat.record(&mut held, vec![step(nth)]);
        assert_eq!(tail_length(&fixture), 0, "step {nth}");
    }
    (12..14).for_each(|nth| seat.record(&mut held, vec![step(nth)]));
    assert_eq!(tail_length(&fixture), 1, "the first of them has said that there may be one");
    assert_sound(&store);
}

/// More executions than one heartbeat takes in had a tail, and have ended.
#[test]
fn a_heartbeat_takes_in_tails_beside_many_that_are_over() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let seat = fixture.seat(&store);
    for nth in 0..1_100 {
        let mut over = seat.born(&format!("over-{nth}"));
        (1..=2).for_each(|nth| seat.record(&mut over, vec![step(nth)]));
        seat.record(&mut over, vec![complete()]);
    }
    let mut held: Vec<Held> = (0..50).map(|nth| seat.born(&format!("e{nth}"))).collect();
    for nth in 1..=2 {
        held.iter_mut().for_each(|held| seat.record(held, vec![step(nth)]));
    }
    assert_eq!(with_tails(&fixture).len(), 50);
    seat.beat();
    assert_eq!(with_tails(&fixture), Vec::<String>::new());
    assert_sound(&store);
}

/// Sends the heartbeat of a store that is stepped.
fn beat(bench: &Bench) {
    let answer = bench.store.heartbeat(Beat::of(bench.seat.session));
    assert!(matches!(bench.together(vec![answer]).remove(0), Heartbeat::Refreshed { .. }));
}

/// Their rows say that there may be a tail, and there is none. If a row behind them may be any
/// execution's, it may be theirs: nobody would know whether it records what happens next.
#[test]
fn damage_behind_executions_that_do_nothing_does_not_reach_them() {
    for step_count in [1, 2] {
        let mut bench = Bench::new();
        let mut idle = bench.born(&(0..20).map(|nth| format!("idle{nth}")).collect::<Vec<_>>());
        (1..=step_count).for_each(|nth| bench.record(&mut idle, nth));
        (0..2).for_each(|_| beat(&bench));
        let mut over = bench.born(&ids(5));
        bench.record(&mut over, 1);
        bench.complete(&mut over);
        bench.store.crash();
        let raw = bench.fixture.raw();
        let last = "SELECT MAX(row) FROM abide_journal WHERE more IS NOT NULL";
        let row: i64 = raw.query_row(last, [], |row| row.get(0)).expect("there is a sheaf");
        let flip = "UPDATE abide_journal SET more = CAST(x'7f' || substr(more, 2) AS BLOB) WHERE row = ?1";
        raw.execute(flip, [row]).expect("the damage can be done");
        bench.fixture.clock.advance(Duration::from_secs(60));
        bench.store = stepped(&bench.fixture);
        bench.seat = seat(&bench.fixture, &bench.store);
        let answer = bench.claim();
        assert_eq!(bench.together(vec![answer]).remove(0).leased.len(), 20, "{step_count} steps");
        let problems = bench.problems();
        assert!(!problems.is_empty() && problems.iter().all(|one| !one.contains("idle")), "{problems:?}");
    }
}

/// Several messages, the second of which is refused.
fn refused() -> Vec<abide_core::Message> {
    let other = Body::Start(flow().with_input(Payload::from("9")).into());
    vec![signal("s", "a"), message("other", "a", other)]
}

#[test]
fn a_tail_is_taken_in_though_its_writer_has_forgotten_the_execution() {
    type Forget = fn(&Fixture, &Arc<SqliteStore>);
    let cases: [(&str, Forget); 3] = [
        ("another process writes", |fixture, _| {
            submit(&fixture.open(), vec![start("b")]).expect("it is taken");
        }),
        ("the store is idle", |_, store| {
            let (tell, told) = std::sync::mpsc::channel();
            store.idle(&IdleHook::new(move || tell.send(()).expect("somebody waits")));
            told.recv().expect("it is idle");
        }),
        ("an operation is undone", |_, store| {
            submit(store, refused()).expect_err("it is refused");
        }),
    ];
    for (case, forget) in cases {
        let fixture = Fixture::new();
        let (store, seat, mut held) = with_tail(&fixture, 5);
        forget(&fixture, &store);
        seat.beat();
        assert_eq!(tail_length(&fixture), 0, "{case}");
        assert_eq!(look(&store, "a").execution, held.execution, "{case}");
        (6..9).for_each(|nth| seat.record(&mut held, vec![step(nth)]));
        assert_sound(&store);
    }
}

/// The heartbeat takes the tail in, and its COMMIT fails.
#[test]
fn a_tail_is_taken_in_after_a_heartbeat_that_was_undone() {
    for fate in [Fate::Unwritten, Fate::Unheard] {
        let bench = Bench::new();
        let mut held = bench.born(&["a".to_owned()]);
        (1..=5).for_each(|nth| bench.record(&mut held, nth));
        let undone = bench.store.heartbeat(Beat::of(bench.seat.session));
        assert_eq!(bench.store.step(fate), Stepped::Done);
        drop(undone);
        assert_eq!(tail_length(&bench.fixture), if fate == Fate::Unwritten { 4 } else { 0 });
        beat(&bench);
        assert_eq!(tail_length(&bench.fixture), 0);
        bench.record(&mut held, 6);
        assert_eq!(bench.problems(), Vec::<String>::new());
    }
}

/// A commit that ends the execution closes its tail, and is undone. Its holder does nothing more.
#[test]
fn a_tail_is_taken_in_after_an_end_that_was_undone() {
    let bench = Bench::new();
    let mut held = bench.born(&["a".to_owned()]);
    (1..=5).for_each(|nth| bench.record(&mut held, nth));
    let end = bench.commit(bench.seat.draft(&mut held[0], vec![complete()]));
    assert_eq!(bench.store.step(Fate::Unwritten), Stepped::Done);
    drop(end);
    assert_eq!(tail_length(&bench.fixture), 4);
    beat(&bench);
    assert_eq!(tail_length(&bench.fixture), 0);
}

/// None of them waits for ever, however many others are at work.
#[test]
fn the_oldest_tails_are_taken_in_first() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let seat = fixture.seat(&store);
    let ids = ids(300);
    let mut held: Vec<Held> = ids.iter().map(|id| seat.born(id)).collect();
    let record = |held: &mut [Held], nth| held.iter_mut().for_each(|held| seat.record(held, vec![step(nth)]));
    (1..=2).for_each(|nth| record(&mut held, nth));
    assert_eq!(with_tails(&fixture), ids);
    seat.beat();
    assert_eq!(with_tails(&fixture), ids[256..]);
    // These have new tails, which are younger than those of the others.
    (3..=4).for_each(|nth| record(&mut held[..250], nth));
    seat.beat();
    assert_eq!(with_tails(&fixture), ids[212..250]);
    seat.beat();
    assert_eq!(with_tails(&fixture), Vec::<String>::new());
    assert_sound(&store);
}

/// Its first step may take long.
#[test]
fn the_tail_of_a_former_holder_is_taken_in() {
    let fixture = Fixture::new();
    let (store, _seat, held) = with_tail(&fixture, 5);
    store.close();
    fixture.clock.advance(Duration::from_secs(60));
    let theirs = fixture.open();
    let mut next = fixture.seat(&theirs);
    let mut taken: Held = next.claim(true).leased.remove(0).into();
    assert_eq!((tail_length(&fixture), taken.version), (4, held.version));
    next.beat();
    assert_eq!(tail_length(&fixture), 0);
    next.record(&mut taken, vec![step(6)]);
    assert_eq!(look(&theirs, "a").execution, taken.execution);
    assert_sound(&theirs);
}

/// It reads rows that its own work does not need. The session would end if it failed.
#[test]
fn p6_a_heartbeat_succeeds_beside_a_tail_that_cannot_be_read() {
    const LAST_LEAF: &str = "
        SELECT pageno FROM dbstat WHERE name = 'abide_journal' AND pagetype = 'leaf'
        ORDER BY path DESC LIMIT 1";
    let fixture = Fixture::new();
    let store = fixture.open();
    let seat = fixture.seat(&store);
    let mut held = ["a", "b", "c", "d"].map(|id| seat.born(id));
    for nth in 1..=30 {
        held.iter_mut().for_each(|held| seat.record(held, vec![step(nth)]));
    }
    assert_eq!(with_tails(&fixture).len(), 4);
    // The writer forgets the executions and the page.
    submit(&fixture.open(), vec![start("e")]).expect("it is taken");
    let raw = fixture.raw();
    raw.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).expect("all of it is in the file");
    let page: u32 = raw.query_row(LAST_LEAF, [], |row| row.get(0)).expect("it has several pages");
    let file = std::fs::OpenOptions::new().write(true).open(fixture.path()).expect("it can be opened");
    let at = u64::from(page - 1) * PAGE_BYTES as u64;
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xff], at).expect("the damage can be done");
    // Each meets another execution. The first one has the writer look at its indexes.
    for nth in 1..=4 {
        let answer = block_on(store.heartbeat(Beat::of(seat.session)));
        assert!(matches!(answer, Ok(Heartbeat::Refreshed { .. })), "heartbeat {nth}: {answer:?}");
    }
}

#[test]
fn a_heartbeat_takes_a_tail_in() {
    let fixture = Fixture::new();
    let (store, seat, mut held) = with_tail(&fixture, 5);
    seat.beat();
    assert_eq!(tail_length(&fixture), 0);
    assert_eq!(look(&store, "a").lease.version, held.version);
    (6..9).for_each(|nth| seat.record(&mut held, vec![step(nth)]));
    assert_eq!(tail_length(&fixture), 2);
    let given_up = Commit { hold: Hold::Yield, ..seat.draft(&mut held, vec![step(9)]) };
    block_on(store.commit(given_up)).expect("it is written");
    assert_eq!(tail_length(&fixture), 0);
    assert_eq!(look(&store, "a").execution, held.execution);
    assert_sound(&store);
}

/// A step whose row was passed over would run again.
#[test]
fn p1_a_damaged_row_of_a_tail_is_found_and_never_passed_over() {
    let damages = [
        "execution = 2",
        "execution = NULL",
        "execution = 'x'",
        "previous = 1",
        "previous = NULL",
        "seq = 9",
        "body = x'00'",
        "body = substr(body, 1, length(body) - 1)",
        "happened = 1",
    ];
    // Row 1 is that of the start, row 2 is the head: these are the first, the middle and the last.
    let rows = damages.iter().flat_map(|damage| ["3", "5", "7"].map(|row| (damage, row)));
    for (damage, row) in rows {
        let fixture = Fixture::new();
        let (store, _seat, _held) = with_tail(&fixture, 6);
        let damage = ["UPDATE abide_journal SET ", damage, " WHERE row = ", row].concat();
        fixture.clock.advance(Duration::from_secs(60));
        let store = damaged(&fixture, &store, &damage);
        assert!(!store.verify().expect("it is looked at").is_sound(), "{damage}");
        let claimed = fixture.seat(&store).claim(true);
        assert!(claimed.leased.is_empty(), "{damage}: {claimed:?}");
    }
}

#[test]
fn a_row_that_a_tail_lacks_is_missed() {
    let fixture = Fixture::new();
    let (store, _seat, _held) = with_tail(&fixture, 6);
    fixture.clock.advance(Duration::from_secs(60));
    let store = damaged(&fixture, &store, "DELETE FROM abide_journal WHERE row = 5");
    let problems = store.verify().expect("it is looked at").problems.join("; ");
    assert!(problems.contains("journal row 6 does not follow row 4"), "{problems}");
    assert!(fixture.seat(&store).claim(true).leased.is_empty());
}

#[test]
fn a_copy_has_the_tail_too() {
    let fixture = Fixture::new();
    let (store, _seat, held) = with_tail(&fixture, 40);
    let (copy, restored) = (fixture.folder.path().join("copy.db"), fixture.folder.path().join("new.db"));
    store.backup(&copy).expect("it can be copied");
    SqliteStore::restore(&copy, &restored, &*fixture.clock).expect("it can be restored");
    let store = SqliteStore::open(&restored, fixture.clock.clone(), Default::default()).expect("it opens");
    assert_sound(&store);
    let taken: Held = fixture.seat(&store).claim(true).leased.remove(0).into();
    assert_eq!((taken.version, &taken.execution), (held.version, &held.execution));
}

/// The sheet alone says that there is a tail. A column beside it is put right, and the tail stays.
#[test]
fn a_column_beside_a_tail_is_put_right() {
    for damage in ["head = head - 1", "version = version + 7", "queue = 1", "id = 'b'"] {
        let fixture = Fixture::new();
        let (store, _seat, held) = with_tail(&fixture, 6);
        fixture.clock.advance(Duration::from_secs(60));
        let damage = ["UPDATE abide_executions SET ", damage, " WHERE id = 'a'"].concat();
        let store = damaged(&fixture, &store, &damage);
        let mut seat = fixture.seat(&store);
        seat.claim(true);
        let repairs = block_on(store.repair()).expect("it is repaired");
        if damage.contains("version") {
            // Nothing else says which version the sheet was sealed with.
            assert_eq!(repairs.left.len(), 1, "{damage}: {repairs:?}");
            continue;
        }
        assert_eq!((repairs.rebuilt.len(), repairs.left.len()), (1, 0), "{damage}: {repairs:?}");
        assert_sound(&store);
        assert_eq!(look(&store, "a").execution, held.execution, "{damage}");
    }
}
