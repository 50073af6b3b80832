//! Journal rows that were written in one transaction share a row of the table, and are rows like
//! all others.

use std::sync::Arc;
use std::time::Duration;

use abide_core::{Body, Happening, Message, Payload, Status, Summary};
use abide_sqlite::flaw::Flaw;
use abide_sqlite::stepped::{Fate, Stepped};
use abide_sqlite::{Options, SqliteStore};
use abide_store::conformance::block_on;
use abide_store::{
    Answer, Changes, Claim, Claimed, Clock, Commit, CommitOutcome, Feed, FeedFrom, Hold, Prune, Store,
    Submissions, Submit, Submitted, View,
};

use crate::fixture::{Fixture, Held, Seat, complete, flow, look, message, signal, start, step};

/// A store whose transactions are stepped, with a session.
pub(crate) struct Bench {
    pub(crate) fixture: Fixture,
    pub(crate) store: Arc<SqliteStore>,
    pub(crate) seat: Seat,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let fixture = Fixture::new();
        let store = stepped(&fixture);
        let seat = seat(&fixture, &store);
        Self { fixture, store, seat }
    }

    /// Has the operations happen in one transaction, and returns their answers.
    pub(crate) fn together<T>(&self, answers: Vec<Answer<T>>) -> Vec<T> {
        assert_eq!(self.store.step(Fate::Committed), Stepped::Done);
        answers.into_iter().map(|answer| block_on(answer).expect("it is done")).collect()
    }

    pub(crate) fn submit(&self, messages: Vec<Message>) -> Answer<Submissions> {
        self.store.submit(Submit { messages, born_to: Some(self.seat.session), alone: false, stretch: None })
    }

    /// Starts executions in one transaction.
    pub(crate) fn born(&self, ids: &[String]) -> Vec<Held> {
        let answers = ids.iter().map(|id| self.submit(vec![start(id)])).collect();
        self.together(answers).into_iter().flatten().map(held).collect()
    }

    /// Records a step of each in one transaction.
    pub(crate) fn record(&self, held: &mut [Held], nth: u32) {
        let answers = held.iter_mut().map(|held| self.commit(self.seat.draft(held, vec![step(nth)])));
        check(self.together(answers.collect()));
    }

    /// Completes each in one transaction.
    pub(crate) fn complete(&self, held: &mut [Held]) {
        let answers = held.iter_mut().map(|held| self.commit(self.seat.draft(held, vec![complete()])));
        check(self.together(answers.collect()));
    }

    /// Has a commit wait for the others of its transaction.
    pub(crate) fn commit(&self, commit: Commit) -> Answer<CommitOutcome> {
        self.store.commit(Commit { alone: false, ..commit })
    }

    pub(crate) fn claim(&self) -> Answer<Claimed> {
        let (session, slots) = (self.seat.session, 1_000);
        self.store.claim(Claim { session, request: 1, slots, care_slots: 0, with_mail: false, sweep: true })
    }

    /// Ends the process, and begins another one.
    pub(crate) fn reopen(&mut self) {
        self.store.crash();
        self.store = stepped(&self.fixture);
    }

    pub(crate) fn table_row_count(&self) -> i64 {
        let count = "SELECT COUNT(*) FROM abide_journal";
        self.fixture.raw().query_row(count, [], |row| row.get(0)).expect("rows are counted")
    }

    pub(crate) fn problems(&self) -> Vec<String> {
        self.store.verify().expect("it is looked at").problems
    }
}

pub(crate) fn stepped(fixture: &Fixture) -> Arc<SqliteStore> {
    SqliteStore::stepped(&fixture.path(), fixture.clock.clone(), Options::default(), || Duration::ZERO)
        .expect("the file can be opened")
}

pub(crate) fn seat(fixture: &Fixture, store: &Arc<SqliteStore>) -> Seat {
    let answer = store.register(crate::fixture::worker());
    assert_eq!(store.step(Fate::Committed), Stepped::Done);
    Seat::of(fixture, store, block_on(answer).expect("a worker is registered").session)
}

fn held(submitted: Submitted) -> Held {
    match submitted {
        Submitted::Started(_, Some(leased)) => Held::from(*leased),
        other => panic!("not born leased: {other:?}"),
    }
}

pub(crate) fn check(outcomes: Vec<CommitOutcome>) {
    assert!(outcomes.iter().all(|outcome| matches!(outcome, CommitOutcome::Committed(_))), "{outcomes:?}");
}

/// The same commit, after which the execution waits.
fn parked(commit: Commit) -> Commit {
    let summary = Summary { status: Status::Waiting, ..commit.changes.summary.clone() };
    let changes = Arc::new(Changes { summary, ..(*commit.changes).clone() });
    Commit { changes, hold: Hold::Park { seen: Vec::new() }, ..commit }
}

pub(crate) fn ids(count: usize) -> Vec<String> {
    (0..count).map(|nth| format!("e{nth}")).collect()
}

pub(crate) fn entry_count(store: &Arc<SqliteStore>, id: &str) -> usize {
    look(store, id).journal.len()
}

/// Returns everything in the feed, read in pages of at most `limit`.
fn feed(store: &Arc<SqliteStore>, limit: usize) -> Vec<(String, Happening)> {
    let (mut from, mut found) = (FeedFrom::Beginning, Vec::new());
    loop {
        let page = block_on(store.feed(Feed { from, limit })).expect("it is read");
        assert!(page.items.len() <= limit);
        found
            .extend(page.items.into_iter().map(|item| (item.address.id.as_str().to_owned(), item.happening)));
        if page.is_end {
            return found;
        }
        from = FeedFrom::After(page.next);
    }
}

#[test]
fn rows_of_one_transaction_share_few_rows_of_the_table_and_are_all_found() {
    let mut bench = Bench::new();
    let ids = ids(200);
    let mut held = bench.born(&ids);
    (1..=3).for_each(|nth| bench.record(&mut held, nth));
    bench.complete(&mut held);
    let row_count = bench.table_row_count();
    assert!((5..=12).contains(&row_count), "1,000 rows are in {row_count} rows of the table");
    for is_anew in [false, true] {
        if is_anew {
            bench.reopen();
        }
        assert_eq!(bench.problems(), Vec::<String>::new());
        ids.iter().for_each(|id| assert_eq!(entry_count(&bench.store, id), 5, "{id}"));
        let expected: Vec<_> = [Happening::Began, Happening::Completed]
            .into_iter()
            .flat_map(|happening| ids.iter().map(move |id| (id.clone(), happening)))
            .collect();
        for limit in [1, 7, 1_000] {
            assert_eq!(feed(&bench.store, limit), expected, "pages of {limit}");
        }
    }
}

/// The row of such an execution falls behind its journal, and its next holder reads the journal.
#[test]
fn a_takeover_finds_what_lies_behind_other_rows() {
    let mut bench = Bench::new();
    let mut held = bench.born(&ids(30));
    (1..=4).for_each(|nth| bench.record(&mut held, nth));
    bench.reopen();
    bench.fixture.clock.advance(Duration::from_secs(60));
    bench.seat = seat(&bench.fixture, &bench.store);
    let answer = bench.claim();
    let leased = bench.together(vec![answer]).remove(0).leased;
    assert_eq!(leased.len(), 30);
    for leased in leased {
        let entry_count = leased.opening.clone().into_records().len();
        assert_eq!((entry_count, leased.version.0), (5, 4), "{}", leased.address());
    }
    assert_eq!(bench.problems(), Vec::<String>::new());
}

#[test]
fn a_damaged_row_harms_no_other_row_of_its_sheaf() {
    let mut bench = Bench::new();
    let ids = ids(40);
    let mut held = bench.born(&ids);
    bench.record(&mut held, 1);
    bench.complete(&mut held);
    bench.store.crash();
    for id in ["e7", "e21", "e39"] {
        assert!(Flaw::Journal(1).make(&bench.fixture.path(), id, 3));
    }
    bench.store = stepped(&bench.fixture);
    let problems = bench.problems();
    assert_eq!(problems.len(), 3, "{problems:?}");
    for (id, problem) in ["e7", "e21", "e39"].iter().zip(&problems) {
        assert!(problem.starts_with(&format!("execution {id:?}: journal row")), "{problem}");
    }
    for id in ids.iter().filter(|id| !["e7", "e21", "e39"].contains(&id.as_str())) {
        assert_eq!(entry_count(&bench.store, id), 3, "{id}");
    }
}

/// The length of a row says where the next one begins.
#[test]
fn rows_behind_a_damaged_length_are_told() {
    let bench = Bench::new();
    bench.born(&ids(8));
    bench.store.crash();
    let cut = "UPDATE abide_journal SET more = SUBSTR(more, 1, LENGTH(more) - 1)";
    bench.fixture.raw().execute_batch(cut).expect("it can be damaged");
    let store = stepped(&bench.fixture);
    let problems = store.verify().expect("it is looked at").problems;
    assert_eq!(
        problems,
        [
            "execution \"e7\": entry 1 should be in journal row 8, which is missing",
            "what is behind journal row 7 cannot be read",
        ]
    );
    (0..7).for_each(|nth| assert_eq!(entry_count(&store, &format!("e{nth}")), 1));
}

#[test]
fn what_is_pruned_leaves_the_rest_of_its_sheaf() {
    // Each bit says whether an execution ends.
    for pattern in [0b0000_0001_u32, 0b1000_0000, 0b0101_0101, 0b1110_0111, 0b0001_1000, 0b1111_1111] {
        let mut bench = Bench::new();
        let ids = ids(8);
        let mut held = bench.born(&ids);
        bench.record(&mut held, 1);
        let ends = |nth: usize| pattern & (1 << nth) != 0;
        let mut ending: Vec<Held> =
            held.iter().enumerate().filter(|(nth, _)| ends(*nth)).map(|(_, held)| held.clone()).collect();
        bench.complete(&mut ending);
        bench.store.crash();
        bench.fixture.clock.advance(Duration::from_secs(60));
        let store = bench.fixture.open();
        let prune = Prune { finished_before: bench.fixture.clock.now(), limit: 100 };
        assert_eq!(block_on(store.prune(prune)).expect("it prunes"), u64::from(pattern.count_ones()));
        store.close();
        bench.store = stepped(&bench.fixture);
        let found = bench.store.verify().expect("it is looked at");
        assert_eq!((found.problems, found.execution_count), (vec![], u64::from(8 - pattern.count_ones())));
        for (nth, id) in ids.iter().enumerate().filter(|(nth, _)| !ends(*nth)) {
            assert_eq!(entry_count(&bench.store, id), 2, "{pattern:b}: {nth}");
        }
        // No number is used again, although the last row is gone.
        let submitted = bench.submit(vec![start("new")]);
        bench.together(vec![submitted]);
        let head = "SELECT head FROM abide_executions WHERE id = 'new'";
        let head: i64 = bench.fixture.raw().query_row(head, [], |row| row.get(0)).expect("it is there");
        assert_eq!(head, 17 + i64::from(pattern.count_ones()), "{pattern:b}");
    }
}

#[test]
fn p6_a_refused_submit_takes_no_row_of_its_neighbours() {
    let bench = Bench::new();
    let first = bench.submit(vec![start("a")]);
    // The second message is refused, so the first one must go.
    let refused = bench.submit(vec![start("b"), signal("s", "nobody")]);
    let last = bench.submit(vec![start("c")]);
    assert_eq!(bench.store.step(Fate::Committed), Stepped::Done);
    block_on(first).expect("it is taken");
    block_on(refused).expect_err("its target is unknown");
    block_on(last).expect("it is taken");
    assert_eq!(bench.problems(), Vec::<String>::new());
    ["a", "c"].iter().for_each(|id| assert_eq!(entry_count(&bench.store, id), 1));
}

#[test]
fn a_large_row_stands_alone() {
    let bench = Bench::new();
    let large = Payload::from(format!("\"{}\"", "x".repeat(20_000)).as_str());
    let large = Body::Start(flow().with_input(large).into());
    let messages = [start("a"), message("start", "b", large), start("c"), start("d")];
    bench.together(messages.into_iter().map(|message| bench.submit(vec![message])).collect());
    assert_eq!(bench.table_row_count(), 3);
    assert_eq!(bench.problems(), Vec::<String>::new());
    ["a", "b", "c", "d"].iter().for_each(|id| assert_eq!(entry_count(&bench.store, id), 1, "{id}"));
}

/// Such a row would fit into the sheaf of those before it, and is too large to share a row of the
/// table. Its number must not become that of the row behind it.
#[test]
fn p2_a_middling_row_among_small_ones_keeps_the_numbers_of_the_others() {
    for size in [1_700, 1_850, 1_900, 1_950, 2_000, 4_000, 7_000, 7_950, 8_050, 9_000] {
        let mut bench = Bench::new();
        let input = Payload::from(format!("\"{}\"", "x".repeat(size)).as_str());
        let middling = Body::Start(flow().with_input(input).into());
        let messages = [start("a"), message("start", "b", middling), start("c"), start("d")];
        bench.together(messages.into_iter().map(|message| bench.submit(vec![message])).collect());
        bench.reopen();
        assert_eq!(bench.problems(), Vec::<String>::new(), "{size}");
        let counts = ["a", "b", "c", "d"].map(|id| entry_count(&bench.store, id));
        assert_eq!(counts, [1; 4], "{size}");
    }
}

/// An operation of one transaction reads what an earlier one has written.
#[test]
fn an_operation_finds_the_rows_of_those_before_it() {
    let bench = Bench::new();
    let mut held = bench.born(&ids(3));
    let [one, two, three] = &mut held[..] else { panic!("there are three") };
    let ended = bench.commit(bench.seat.draft(one, vec![complete()]));
    let waits = bench.commit(parked(bench.seat.draft(two, vec![step(1)])));
    let kept = bench.commit(bench.seat.draft(three, vec![step(1)]));
    // Both attach to an execution of which this transaction has written a row.
    let attached = [bench.submit(vec![start("e0")]), bench.submit(vec![start("e2")])];
    let claimed = bench.claim();
    assert_eq!(bench.store.step(Fate::Committed), Stepped::Done);
    check([ended, waits, kept].into_iter().map(|answer| block_on(answer).expect("it is done")).collect());
    for answer in attached {
        let submitted = block_on(answer).expect("it is taken");
        assert!(matches!(submitted[..], [Submitted::Attached(_)]), "{submitted:?}");
    }
    block_on(claimed).expect("it claims");
    assert_eq!(bench.problems(), Vec::<String>::new());
    let counts = ["e0", "e1", "e2"].map(|id| entry_count(&bench.store, id));
    assert_eq!(counts, [2, 2, 2]);
    assert_eq!(look(&bench.store, "e0").summary.status, Status::Completed);
}
