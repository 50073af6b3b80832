//! A page that SQLite cannot read, or a row that lookups miss, costs only its own content.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use abide_core::{Body, By, Namespace, Payload, Start, Status, Summary, Tag, Waiting};
use abide_sqlite::{Discarded, SqliteStore};
use abide_store::conformance::block_on;
use abide_store::{Changes, Claim, Commit, Error, Feed, FeedFrom, Hold, List, Read, Store, Target, View};

use crate::aside::with_status;
use crate::fixture::{Fixture, address, flow, message, name, signal, start, step, submit, worker};

pub(crate) use abide_sqlite::flaw::PAGE_BYTES;

/// Changes the bytes of a file that nobody has open.
pub(crate) fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let raw = rusqlite::Connection::open(path).expect("it can be opened");
    raw.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).expect("all of it is in the file");
    drop(raw);
    let mut bytes = std::fs::read(path).expect("it can be read");
    change(&mut bytes);
    for beside in ["abide.db-wal", "abide.db-shm"] {
        let _ = std::fs::remove_file(path.with_file_name(beside));
    }
    std::fs::write(path, bytes).expect("it can be written");
}

/// Replaces the first occurrence of a text.
fn replace(bytes: &mut [u8], (from, to): (&[u8], &[u8])) {
    let at = bytes.windows(from.len()).position(|found| found == from).expect("it is there");
    bytes[at..at + to.len()].copy_from_slice(to);
}

fn problems(store: &Arc<SqliteStore>) -> Vec<String> {
    store.verify().expect("it is looked at").problems
}

/// Returns the offset of the root page of a table or an index.
fn root(fixture: &Fixture, name: &str) -> usize {
    let found = "SELECT rootpage FROM sqlite_schema WHERE name = ?1";
    let root: i64 = fixture.raw().query_row(found, [name], |row| row.get(0)).expect("it is there");
    (usize::try_from(root).expect("pages are counted from 1") - 1) * PAGE_BYTES
}

/// Makes the second page of a table's rows malformed.
fn break_leaf(fixture: &Fixture, table: &str) {
    let root = root(fixture, table);
    change(&fixture.path(), |bytes| {
        assert!([2, 5].contains(&bytes[root]), "{table} has pages below its first");
        let at = |at: usize, length| &bytes[at..at + length];
        let cell = usize::from(u16::from_be_bytes(at(root + 14, 2).try_into().expect("two bytes")));
        let child = u32::from_be_bytes(at(root + cell, 4).try_into().expect("four bytes"));
        bytes[(child as usize - 1) * PAGE_BYTES] = 0xff;
    });
}

fn discard(store: &Arc<SqliteStore>, id: &str) -> Discarded {
    let by = By("ann".into());
    block_on(store.discard(&address(id), by, "beyond repair".to_owned())).expect("it is looked at")
}

/// Returns a store with three executions: the journal of `large` has an unreadable page, and `q-3`
/// has a wrong status.
fn beside_an_unreadable_journal() -> (Fixture, Arc<SqliteStore>) {
    const FILL: u8 = b'z';
    let fixture = Fixture::new();
    let store = fixture.open();
    let input = Payload::from(String::from_utf8(vec![FILL; 20_000]).expect("it is a text").as_str());
    let large = message("start", "large", Body::Start(flow().with_input(input).into()));
    submit(&store, vec![start("q-1"), large, signal("s", "large"), start("q-3")]).expect("they are taken");
    store.close();
    let damage = "UPDATE abide_executions SET status = 9 WHERE id = 'q-3'";
    fixture.raw().execute_batch(damage).expect("the damage can be done");
    change(&fixture.path(), |bytes| {
        let is_overflow = |page: &[u8]| page[4..].iter().all(|byte| *byte == FILL);
        let page = bytes.chunks(PAGE_BYTES).position(is_overflow).expect("the input has pages of its own");
        bytes[page * PAGE_BYTES..][..4].fill(0xff);
    });
    let store = fixture.open();
    (fixture, store)
}

#[test]
fn a_journal_that_cannot_be_read_keeps_no_other_from_being_repaired() {
    let (_fixture, store) = beside_an_unreadable_journal();
    let repairs = block_on(store.repair()).expect("it is looked at");
    assert!(
        repairs.rebuilt.contains(&r#"execution "q-3": its row was put right: status"#.to_owned()),
        "{repairs:?}"
    );
    let left = r#"execution "large" cannot be read: database disk image is malformed"#;
    assert!(repairs.left.contains(&left.to_owned()), "{repairs:?}");
    assert!(!problems(&store).iter().any(|problem| problem.contains("q-3")));
}

/// The error says that this execution cannot be read, not that the store cannot.
#[test]
fn what_cannot_be_read_is_told_from_a_store_that_cannot() {
    let (_fixture, store) = beside_an_unreadable_journal();
    let read = |id| {
        let target = Target::Address(address(id));
        block_on(store.read(Read { target, run: None, from: 1, limit: 10, with_inbox: false }))
    };
    assert!(matches!(read("large"), Err(Error::Unread { what: "read", .. })), "{:?}", read("large"));
    assert!(read("q-1").is_ok_and(|found| found.is_some()));
}

#[test]
fn what_cannot_be_read_can_be_ended() {
    let (fixture, store) = beside_an_unreadable_journal();
    assert_eq!(discard(&store, "large"), Discarded::Ended);
    assert_eq!(with_status(&store, Status::Cancelled), ["large"]);
    let unread: i64 = fixture
        .raw()
        .query_row("SELECT COUNT(*) FROM abide_inbox WHERE body IS NOT NULL", [], |row| row.get(0))
        .expect("they are counted");
    assert_eq!(unread, 0);
    assert!(!problems(&store).iter().any(|problem| problem.contains("large")), "it is in order");
    assert_ne!(problems(&store), Vec::<String>::new(), "what SQLite cannot free is told");
    block_on(store.repair()).expect("it is looked at");
    assert_eq!(fixture.seat(&store).claim(true).leased.len(), 2, "the others go on");
}

/// Returns a store with 400 executions, of which the first and the last have a wrong status, and
/// with an unreadable page of `table`.
fn with_broken_leaf(table: &str) -> (Fixture, Arc<SqliteStore>) {
    let fixture = Fixture::new();
    let store = fixture.open();
    let starts: Vec<_> =
        (1..=400).flat_map(|n| [start(&format!("q-{n}")), signal("s", &format!("q-{n}"))]).collect();
    starts.chunks(100).for_each(|some| drop(submit(&store, some.to_vec()).expect("they are taken")));
    store.close();
    let damage = "UPDATE abide_executions SET status = 9 WHERE id IN ('q-1', 'q-400')";
    fixture.raw().execute_batch(damage).expect("the damage can be done");
    break_leaf(&fixture, table);
    let store = fixture.open();
    (fixture, store)
}

#[test]
fn executions_beside_a_page_that_cannot_be_read_are_verified_and_repaired() {
    let (_fixture, store) = with_broken_leaf("abide_executions");
    let found = store.verify().expect("it is looked at");
    let is_told = |part: &str| found.problems.iter().any(|problem| problem.contains(part));
    assert!(is_told("SQLite: "), "{:?}", found.problems);
    assert!(is_told("cannot be read: database disk image is malformed"), "{:?}", found.problems);
    assert!(is_told(r#"execution "q-1": "#) && is_told(r#"execution "q-400": "#), "{:?}", found.problems);
    assert!((300..400).contains(&found.execution_count), "{}", found.execution_count);
    let repairs = block_on(store.repair()).expect("it is looked at");
    for id in ["q-1", "q-400"] {
        let line = format!("execution {id:?}: its row was put right: status");
        assert!(repairs.rebuilt.contains(&line), "{repairs:?}");
    }
    assert!(repairs.left.iter().any(|line| line.starts_with("execution number ")), "{repairs:?}");
    assert!(!problems(&store).iter().any(|problem| problem.contains("q-400")));
}

#[test]
fn a_page_of_another_table_that_cannot_be_read_costs_only_what_is_in_it() {
    for table in ["abide_journal", "abide_inbox"] {
        let (_fixture, store) = with_broken_leaf(table);
        let found = problems(&store);
        assert!(found.iter().any(|problem| problem.contains(r#"execution "q-400": "#)), "{table}: {found:?}");
        let repairs = block_on(store.repair()).expect("it is looked at");
        assert!(repairs.rebuilt.iter().any(|line| line.contains("q-400")), "{table}: {repairs:?}");
    }
}

/// Returns a store with ten executions, each with a tag and a message of its own.
pub(super) fn tagged() -> (Fixture, Arc<SqliteStore>) {
    let fixture = Fixture::new();
    let store = fixture.open();
    for n in 0..10 {
        let tags = vec![Tag { key: name("key"), value: name(&format!("value{n}")) }];
        let begin = message("start", &format!("q-{n}"), Body::Start(Start { tags, ..flow() }.into()));
        submit(&store, vec![begin, signal("early", &format!("q-{n}"))]).expect("they are taken");
    }
    submit(&store, vec![signal("flipped", "q-5"), signal("late", "q-5")]).expect("they are taken");
    store.close();
    (fixture, store)
}

/// Changes a text in one table, in place.
pub(super) fn change_in(fixture: &Fixture, table: &str, texts: (&[u8], &[u8])) -> Arc<SqliteStore> {
    let root = root(fixture, table);
    change(&fixture.path(), |bytes| replace(&mut bytes[root..root + PAGE_BYTES], texts));
    fixture.open()
}

#[test]
fn a_tag_that_stands_out_of_order_is_put_right() {
    for flipped in [b"aalue5", b"zalue5", b"valua5"] {
        let (fixture, _) = tagged();
        let store = change_in(&fixture, "abide_tags", (b"value5", flipped));
        assert_ne!(problems(&store), Vec::<String>::new());
        let repairs = block_on(store.repair()).expect("it ends");
        assert_eq!(repairs.left, Vec::<String>::new());
        assert_eq!(problems(&store), Vec::<String>::new(), "{repairs:?}");
    }
}

/// Every check relies on the tables being those of this program.
#[test]
fn nothing_is_repaired_in_tables_of_another_make() {
    let (fixture, _) = tagged();
    let change = "PRAGMA writable_schema = ON;
                  UPDATE sqlite_schema SET sql = replace(sql, 'key INTEGER PRIMARY KEY', 'key INTEGEZ PRIMARY KEY')
                  WHERE name = 'abide_executions'";
    fixture.raw().execute_batch(change).expect("the damage can be done");
    let store = fixture.open();
    let repairs = block_on(store.repair()).expect("it is looked at");
    assert_eq!(repairs.rebuilt, Vec::<String>::new());
    let left = "the tables are not those that this program makes, and nothing was changed";
    assert_eq!(repairs.left, [left]);
    let tags: i64 = fixture
        .raw()
        .query_row("SELECT COUNT(*) FROM abide_tags", [], |row| row.get(0))
        .expect("they are counted");
    assert_eq!(tags, 10);
}

/// The list of operations that `bad` waits for takes several pages, one of which is unreadable.
/// Both executions have an unread terminate: `bad` keeps no caretaker from `good`.
#[test]
fn a_state_that_cannot_be_read_keeps_no_other_from_being_looked_after() {
    const FILL: u8 = b'z';
    let fixture = Fixture::new();
    let store = fixture.open();
    let seat = fixture.seat(&store);
    for id in ["bad", "good"] {
        let mut held = seat.born(id);
        let long = String::from_utf8(vec![FILL; 100]).expect("it is a text");
        let waiting =
            vec![Waiting::Signal { name: name(&long), until: None }; if id == "bad" { 200 } else { 1 }];
        let commit = seat.draft(&mut held, vec![step(1)]);
        let summary = Summary { waiting: waiting.into(), ..held.execution.summary(&[]) };
        let changes = Changes { summary, ..(*commit.changes).clone() };
        let hold = Hold::Park { seen: Vec::new() };
        block_on(store.commit(Commit { changes: changes.into(), hold, ..commit })).expect("it is parked");
    }
    let end = |id| message("end", id, Body::Terminate { reason: "enough".to_owned() });
    submit(&store, vec![end("bad"), end("good")]).expect("they are taken");
    seat.retire();
    store.close();
    change(&fixture.path(), |bytes| {
        let is_filled =
            |page: &&mut [u8]| page.iter().filter(|byte| **byte == FILL).count() > PAGE_BYTES * 3 / 4;
        let count = (bytes.len() / PAGE_BYTES) as u32;
        let has_next = |page: &&mut [u8]| {
            (1..=count).contains(&u32::from_be_bytes(page[..4].try_into().expect("four bytes")))
        };
        let pages = bytes.chunks_mut(PAGE_BYTES).filter(is_filled).filter(has_next);
        pages.for_each(|page| page[..4].fill(0xff));
    });
    let store = fixture.open();
    fixture.clock.advance(Duration::from_secs(60));
    let mut elsewhere = worker();
    elsewhere.ability.lanes = [name("other")].into();
    let cared = fixture.seat_of(&store, elsewhere).claim_with_care();
    assert_eq!(cared.iter().map(|leased| leased.address().id.as_str()).collect::<Vec<_>>(), ["good"]);
}

/// Otherwise they would silently omit executions.
#[test]
fn lists_and_the_feed_name_verify_where_a_page_cannot_be_read() {
    for table in ["abide_executions", "abide_journal"] {
        let (_fixture, store) = with_broken_leaf(table);
        let list = block_on(store.list(List::of(Namespace::default(), 1_000)));
        let feed = block_on(store.feed(Feed { from: FeedFrom::Beginning, limit: 1_000 }));
        let told = [list.err().filter(|_| table == "abide_executions"), feed.err()];
        let told: Vec<String> = told.into_iter().flatten().map(|error| error.to_string()).collect();
        let malformed = "database disk image is malformed: `abide verify` tells what can be read";
        assert!(told.iter().all(|told| told.contains(malformed)), "{table}: {told:?}");
        assert_eq!(told.len(), if table == "abide_executions" { 2 } else { 1 }, "{table}: {told:?}");
    }
}

/// One bit of SQLite's own index of ids is flipped: lookups miss an execution, whose id seems free.
#[test]
fn an_id_that_its_index_hides_is_told_and_found_after_a_repair() {
    for is_taken in [false, true] {
        let fixture = Fixture::new();
        let store = fixture.open();
        submit(&store, vec![start("q-1"), start("q-3")]).expect("they are taken");
        store.close();
        let store = change_in(&fixture, "sqlite_autoindex_abide_executions_1", (b"q-3", b"q-2"));
        assert_ne!(problems(&store), Vec::<String>::new());
        if is_taken {
            submit(&store, vec![start("q-3")]).expect("nobody seems to have this id");
            assert_ne!(problems(&store), Vec::<String>::new(), "there are two of them");
        }
        let repairs = block_on(store.repair()).expect("it is looked at");
        assert_eq!(repairs.left.is_empty(), !is_taken, "{repairs:?}");
        assert_eq!(problems(&store).is_empty(), !is_taken, "{repairs:?}");
        assert_eq!(fixture.seat(&store).claim(true).leased.len(), if is_taken { 3 } else { 2 });
    }
}

/// Each execution has an order for a caretaker. A page of orders that SQLite cannot read delays
/// none of the others.
#[test]
fn orders_that_cannot_be_read_keep_nobody_from_being_looked_after() {
    const COUNT: usize = 400;
    let fixture = Fixture::new();
    let store = fixture.open();
    let end = |n| message("end", &format!("q-{n}"), Body::Terminate { reason: "enough".to_owned() });
    let messages: Vec<_> = (1..=COUNT).flat_map(|n| [start(&format!("q-{n}")), end(n)]).collect();
    messages.chunks(100).for_each(|some| drop(submit(&store, some.to_vec()).expect("they are taken")));
    store.close();
    break_leaf(&fixture, "abide_inbox");
    let store = fixture.open();
    let mut elsewhere = worker();
    elsewhere.ability.lanes = [name("other")].into();
    let session = fixture.seat_of(&store, elsewhere).session;
    fixture.clock.advance(Duration::from_secs(3));
    let claim = Claim { session, request: 1, slots: 0, care_slots: 1_000, with_mail: false, sweep: false };
    let care = block_on(store.claim(claim)).expect("it is answered").care;
    assert!((300..COUNT).contains(&care.len()), "{} of {COUNT} are looked after", care.len());
    assert_eq!(
        with_status(&store, Status::Damaged),
        Vec::<String>::new(),
        "what was not read is not damaged"
    );
}

/// `why` reports it in these words. The executions themselves can be read.
#[test]
fn mail_that_cannot_be_read_is_told_as_such() {
    let (_fixture, store) = with_broken_leaf("abide_inbox");
    let read = |n: usize, with_inbox| {
        let target = Target::Address(address(&format!("q-{n}")));
        block_on(store.read(Read { target, run: None, from: 0, limit: 0, with_inbox }))
    };
    let unread = (2..400).filter_map(|n| read(n, true).err().map(|error| (n, error))).collect::<Vec<_>>();
    assert!(!unread.is_empty(), "a page is malformed");
    for (n, error) in unread {
        assert!(matches!(error, Error::Unread { .. }), "{error:?}");
        let words = "its mail cannot be read: database disk image is malformed";
        assert!(error.to_string().contains(words), "{error}");
        assert!(read(n, false).is_ok(), "it can be read without its mail");
    }
}
