//! Bytes that change on the disk: a row is then where no lookup finds it, which no `UPDATE` can do.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use abide_core::{Body, By, Message, MessageId, Namespace, Start, Tag};
use abide_sqlite::flaw::PAGE_BYTES;
use abide_sqlite::{MessagesDropped, Repairs, SqliteStore};
use abide_store::conformance::block_on;
use abide_store::{CommitOutcome, Hold, List, Result, Store, View};

use crate::fixture::{
    Fixture, Held, Seat, address, complete, damaged, flow, message, name, signal, start, step, submit,
};

fn tag(nth: usize) -> Tag {
    Tag { key: name("customer"), value: name(&format!("value{nth}")) }
}

pub(crate) fn tagged(nth: usize) -> Message {
    let start = Start { tags: vec![tag(nth)], ..flow() };
    message("start", &format!("q-{nth}"), Body::Start(start.into()))
}

/// Returns the ids of the executions that the tag of the `nth` one leads to.
pub(crate) fn found_by_tag(store: &Arc<SqliteStore>, nth: usize) -> Result<Vec<String>> {
    let list = List { tags: vec![tag(nth)], ..List::of(Namespace::default(), 100) };
    Ok(block_on(store.list(list))?.items.into_iter().map(|item| item.address.id.to_string()).collect())
}

/// How often a repair of a small store may wait for an answer.
const WAIT_COUNT_MAX: usize = 1_000;

/// Runs a repair that has to end.
pub(crate) fn repaired(store: &Arc<SqliteStore>) -> Result<Repairs> {
    let mut repair = pin!(store.repair());
    let mut wait_count = 0;
    block_on(poll_fn(|context| {
        wait_count += 1;
        assert!(wait_count < WAIT_COUNT_MAX, "the repair does not end");
        repair.as_mut().poll(context)
    }))
}

/// Returns the store after `change` was applied to the bytes of its file.
fn changed(
    fixture: &Fixture,
    store: &Arc<SqliteStore>,
    change: impl FnOnce(&mut Vec<u8>),
) -> Arc<SqliteStore> {
    store.close();
    fixture.raw().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").expect("the log can be emptied");
    let mut bytes = std::fs::read(fixture.path()).expect("it can be read");
    change(&mut bytes);
    for beside in ["abide.db-wal", "abide.db-shm"] {
        let _ = std::fs::remove_file(fixture.path().with_file_name(beside));
    }
    std::fs::write(fixture.path(), &bytes).expect("it can be written");
    fixture.open()
}

/// Returns the offset of a table's root page.
fn root(fixture: &Fixture, table: &str) -> usize {
    let text = "SELECT rootpage FROM sqlite_schema WHERE name = ?1";
    let page: u32 = fixture.raw().query_row(text, [table], |row| row.get(0)).expect("the table is there");
    (page as usize - 1) * PAGE_BYTES
}

/// Returns the offset of `text`, which must occur once.
fn only(bytes: &[u8], text: &[u8]) -> usize {
    let found: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(text)).collect();
    let [at] = found[..] else { panic!("{} is there {} times", text.escape_ascii(), found.len()) };
    at
}

/// A change to the tag at an offset.
type Change = dyn Fn(&mut Vec<u8>, usize);

#[test]
fn tags_that_stand_out_of_order_are_written_anew() {
    // The row's header now says that the text is a number of the same length.
    let type_of_value = |bytes: &mut Vec<u8>, at: usize| {
        let types = (at - 8..at).find(|at| bytes[*at..].starts_with(&[29, 25])).expect("there is a header");
        bytes[types + 1] = 5;
    };
    let changes: [(&str, &Change); 4] = [
        ("a smaller value", &|bytes, at| bytes[at + 8] = b'a'),
        ("a larger value", &|bytes, at| bytes[at + 8] = b'z'),
        ("another key", &|bytes, at| bytes[at] = b'a'),
        ("a value of another type", &type_of_value),
    ];
    for (what, change) in changes {
        let fixture = Fixture::new();
        let store = fixture.open();
        submit(&store, (0..10).map(tagged).collect()).expect("they are taken");
        let store = changed(&fixture, &store, |bytes| {
            let at = only(bytes, b"customervalue5");
            change(bytes, at);
        });
        assert!(!store.verify().expect("it is looked at").is_sound(), "{what}");
        let repairs = repaired(&store).expect("it is repaired");
        assert!(repairs.rebuilt.contains(&"the tags were written anew".to_owned()), "{what}: {repairs:?}");
        assert_eq!(repairs.left, Vec::<String>::new(), "{what}");
        assert_eq!(store.verify().expect("it is looked at").problems, Vec::<String>::new(), "{what}");
        for nth in 0..10 {
            assert_eq!(found_by_tag(&store, nth).expect("it is listed"), [format!("q-{nth}")], "{what}");
        }
    }
}

#[test]
fn tags_in_a_page_that_makes_no_sense_are_written_anew() {
    let fixture = Fixture::new();
    let store = fixture.open();
    submit(&store, (0..10).map(tagged).collect()).expect("they are taken");
    let root = root(&fixture, "abide_tags");
    let store = changed(&fixture, &store, |bytes| {
        let page = &mut bytes[root..][..PAGE_BYTES];
        assert_eq!(page[0], 10, "all of them stand in one page");
        // The offset of the fifth tag.
        page[16] ^= 0x04;
    });
    assert!(!store.verify().expect("it is looked at").is_sound());
    let repairs = repaired(&store).expect("it is repaired");
    assert!(repairs.rebuilt.contains(&"the tags were written anew".to_owned()), "{repairs:?}");
    assert_eq!(store.verify().expect("it is looked at").problems, Vec::<String>::new(), "{repairs:?}");
}

#[test]
fn many_tags_are_written_anew_some_at_a_time() {
    const TAG_COUNT: usize = 1_100;
    let fixture = Fixture::new();
    let store = fixture.open();
    for from in (0..TAG_COUNT).step_by(100) {
        submit(&store, (from..from + 100).map(tagged).collect()).expect("they are taken");
    }
    let store = changed(&fixture, &store, |bytes| {
        let at = only(bytes, b"customervalue555");
        bytes[at + 8] = b'a';
    });
    let repairs = repaired(&store).expect("it is repaired");
    let told = ["the indexes were made anew", "the tags were written anew"].map(str::to_owned);
    assert_eq!((repairs.rebuilt, repairs.left), (told.to_vec(), Vec::new()));
    assert_eq!(store.verify().expect("it is looked at").problems, Vec::<String>::new());
}

#[test]
fn a_tag_that_stands_there_twice_is_one_again() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let alike = |nth: usize| Message { to: address(&format!("q-{nth}")), ..tagged(3) };
    submit(&store, (0..10).map(alike).collect()).expect("they are taken");
    let store = changed(&fixture, &store, |bytes| {
        let sixth = only(bytes, b"customervalue3\x06");
        bytes[sixth + 14] = 5;
    });
    assert!(!store.verify().expect("it is looked at").is_sound());
    let repairs = repaired(&store).expect("it is repaired");
    assert_eq!(store.verify().expect("it is looked at").problems, Vec::<String>::new(), "{repairs:?}");
    let all: Vec<String> = (0..10).map(|nth| format!("q-{nth}")).collect();
    let mut found = found_by_tag(&store, 3).expect("it is listed");
    found.sort_unstable();
    assert_eq!(found, all);
}

#[test]
fn tags_of_what_cannot_be_read_stay_when_the_others_are_written_anew() {
    let fixture = Fixture::new();
    let store = fixture.open();
    submit(&store, (0..10).map(tagged).collect()).expect("they are taken");
    let store = damaged(&fixture, &store, "UPDATE abide_journal SET body = x'00' WHERE execution = 3");
    let store = changed(&fixture, &store, |bytes| {
        let at = only(bytes, b"customervalue5");
        bytes[at + 8] = b'a';
    });
    repaired(&store).expect("it is repaired");
    let count: i64 = fixture
        .raw()
        .query_row("SELECT COUNT(*) FROM abide_tags WHERE execution = 3", [], |row| row.get(0))
        .expect("it is counted");
    assert_eq!(count, 1, "nobody could write it again");
    assert_eq!(found_by_tag(&store, 5).expect("it is listed"), ["q-5"]);
}

/// Repairs a store in which one execution is not found by its number. Returns the executions that
/// the tags lead to, and the repairs.
fn beside_a_lost_number(change: impl Fn(&mut Vec<u8>)) -> (Vec<i64>, Repairs) {
    let fixture = Fixture::new();
    let store = fixture.open();
    submit(&store, (0..10).map(tagged).collect()).expect("they are taken");
    let root = root(&fixture, "abide_executions");
    let store = changed(&fixture, &store, |bytes| {
        change(bytes);
        let page = &mut bytes[root..][..PAGE_BYTES];
        assert_eq!(page[0], 13, "all of them stand in one page");
        let cell = usize::from(u16::from_be_bytes([page[18], page[19]]));
        let number =
            cell + page[cell..].iter().position(|byte| *byte < 128).expect("a length has an end") + 1;
        assert_eq!(std::mem::replace(&mut page[number], 71), 6);
    });
    let repairs = repaired(&store).expect("it is repaired");
    let raw = fixture.raw();
    let mut statement =
        raw.prepare("SELECT execution FROM abide_tags ORDER BY +execution").expect("the table is there");
    let keys = statement.query_map([], |row| row.get(0)).expect("it can be read");
    (keys.collect::<rusqlite::Result<_>>().expect("it can be read"), repairs)
}

#[test]
fn tags_stay_where_executions_cannot_be_sought() {
    let all: Vec<i64> = (1..=10).collect();
    let (tags, _) = beside_a_lost_number(|_| {});
    assert_eq!(tags, all, "nobody can tell whose they are");
    let (mut tags, repairs) = beside_a_lost_number(|bytes| {
        let at = only(bytes, b"customervalue2");
        bytes[at + 8] = b'z';
    });
    tags.dedup();
    assert_eq!(tags, all, "nobody could write them again");
    let told = "the tags are left out of order, because the executions are".to_owned();
    assert!(repairs.left.contains(&told), "{repairs:?}");
}

#[test]
fn nothing_is_deleted_among_earlier_runs_that_cannot_be_read() {
    // The length of a row, and the type of its first column.
    for (nth, what) in (0..3).flat_map(|nth| [(nth, 0), (nth, 2)]) {
        let fixture = Fixture::new();
        let store = fixture.open();
        let seat = fixture.seat(&store);
        for id in ["a", "b", "c"] {
            let mut held = seat.born(id);
            seat.continue_as_new(&mut held, vec![step(1)]);
            seat.record(&mut held, vec![complete()]);
        }
        seat.retire();
        let root = root(&fixture, "abide_runs");
        let store = changed(&fixture, &store, |bytes| {
            let page = &mut bytes[root..][..PAGE_BYTES];
            assert_eq!(page[0], 10, "all of them stand in one page");
            let cell = usize::from(u16::from_be_bytes([page[8 + 2 * nth], page[9 + 2 * nth]]));
            page[cell + what] |= 0x80;
        });
        let count = || store.verify().expect("it is looked at").problems.len();
        let before = count();
        assert!(before > 0, "{nth} {what}");
        let repairs = repaired(&store).expect("it is repaired");
        assert!(count() <= before, "{nth} {what}: {repairs:?}");
        assert_eq!(
            repairs.rebuilt.iter().filter(|line| line.contains("runs")).count(),
            0,
            "{nth} {what}: {repairs:?}"
        );
    }
}

/// Returns a store with a message whose row is damaged, unlike the indexes. The message has been
/// read if `is_read`.
fn with_a_damaged_row(is_read: bool) -> (Fixture, Arc<SqliteStore>) {
    let fixture = Fixture::new();
    let store = fixture.open();
    submit(&store, vec![start("a")]).expect("it is taken");
    submit(&store, (0..10).map(|nth| signal(&format!("messageid{nth}"), "a")).collect())
        .expect("they are taken");
    if is_read {
        let mut seat = fixture.seat(&store);
        let mut held = claimed(&mut seat);
        read(&seat, &mut held, "messageid5");
    }
    let root = root(&fixture, "abide_inbox");
    let store = changed(&fixture, &store, |bytes| {
        let page = &mut bytes[root..][..PAGE_BYTES];
        let at = (0..page.len()).filter(|at| page[*at..].starts_with(b"messageid5")).collect::<Vec<_>>();
        // The body repeats the id, and reading a message rewrites its row.
        let flipped = if is_read { &at[..] } else { &at[..1] };
        flipped.iter().for_each(|at| page[*at] = b'z');
    });
    (fixture, store)
}

fn claimed(seat: &mut Seat) -> Held {
    Held::from(seat.claim(true).leased.remove(0))
}

/// Reads one message, and yields the execution to others.
fn read(seat: &Seat, held: &mut Held, id: &str) {
    let mut commit = seat.draft(held, vec![step(1)]);
    Arc::get_mut(&mut commit.changes).expect("it was not sent yet").consumed = vec![MessageId::new(id)];
    commit.hold = Hold::Yield;
    let outcome = block_on(seat.store.commit(commit)).expect("it is answered");
    assert!(matches!(outcome, CommitOutcome::Committed(_)), "{outcome:?}");
}

fn unread_ids(seat: &mut Seat) -> Vec<String> {
    let leased = seat.claim(true).leased.remove(0);
    leased.inbox.messages.iter().map(|message| message.id.as_str().to_owned()).collect()
}

#[test]
fn a_message_whose_row_is_damaged_is_put_back_by_what_its_index_tells() {
    for is_read in [false, true] {
        let (fixture, store) = with_a_damaged_row(is_read);
        let problems = || store.verify().expect("it is looked at").problems;
        assert_ne!(problems(), Vec::<String>::new(), "{is_read}");
        let dropped = block_on(store.drop_messages(&address("a"), By::client())).expect("it is answered");
        assert_eq!(dropped, MessagesDropped::Dropped(Vec::new()), "{is_read}");
        assert_eq!(repaired(&store).expect("it is repaired").left, Vec::<String>::new(), "{is_read}");
        assert_eq!(problems(), Vec::<String>::new(), "{is_read}");
        submit(&store, vec![signal("messageid5", "a")]).expect("it is sent again");
        let expected: Vec<_> =
            (0..10).filter(|nth| !is_read || *nth != 5).map(|nth| format!("messageid{nth}")).collect();
        assert_eq!(unread_ids(&mut fixture.seat(&store)), expected);
    }
}

#[test]
fn a_message_whose_place_is_damaged_is_put_back_by_what_its_index_tells() {
    let fixture = Fixture::new();
    let store = fixture.open();
    submit(&store, vec![start("a")]).expect("it is taken");
    let ids: Vec<_> = (0..5).map(|nth| format!("messageid{nth}")).collect();
    submit(&store, ids.iter().map(|id| signal(id, "a")).collect()).expect("they are taken");
    let root = root(&fixture, "abide_inbox");
    let store = changed(&fixture, &store, |bytes| {
        let page = &mut bytes[root..][..PAGE_BYTES];
        let is_its = |at: &usize| page[*at..].starts_with(b"messageid2\x0c");
        let at = (0..page.len()).find(is_its).expect("its place stands behind its id");
        page[at + 10] ^= 0x40;
    });
    assert_eq!(repaired(&store).expect("it is repaired").left, Vec::<String>::new());
    assert_eq!(store.verify().expect("it is looked at").problems, Vec::<String>::new());
    assert_eq!(unread_ids(&mut fixture.seat(&store)), ids);
}

/// There was no repair: readers use the index, and the writer rebuilds the indexes if they are
/// wrong.
#[test]
fn a_message_whose_row_is_damaged_is_read_once() {
    let (fixture, store) = with_a_damaged_row(false);
    let mut seat = fixture.seat(&store);
    let mut held = claimed(&mut seat);
    read(&seat, &mut held, "messageid5");
    assert_eq!(store.verify().expect("it is looked at").problems, Vec::<String>::new());
    submit(&store, vec![signal("messageid5", "a")]).expect("it is sent again");
    assert!(!unread_ids(&mut seat).contains(&"messageid5".to_owned()), "it was read");
}

/// Children share the ids of their parent's orders: after a flipped bit, two rows have the same
/// key, and the index of ids cannot be rebuilt.
#[test]
fn a_message_whose_row_became_like_that_of_a_sibling_is_read_once_and_so_is_the_other() {
    for is_repaired in [false, true] {
        let fixture = Fixture::new();
        let store = fixture.open();
        submit(&store, vec![start("other"), start("a"), start("b")]).expect("they are taken");
        submit(&store, vec![signal("shared", "a"), signal("shared", "b")]).expect("they are taken");
        let root = root(&fixture, "abide_inbox");
        let store = changed(&fixture, &store, |bytes| {
            let page = &mut bytes[root..][..PAGE_BYTES];
            // The number of the execution comes before the id.
            let is_its = |at: &usize| page[*at..].starts_with(b"\x02shared");
            let at = (0..page.len()).find(is_its).expect("it is there");
            page[at] = 3;
        });
        if is_repaired {
            assert_eq!(repaired(&store).expect("it is repaired").left, Vec::<String>::new());
        }
        let mut seat = fixture.seat(&store);
        for mut held in seat.claim(true).leased.into_iter().map(Held::from) {
            if held.execution.address().id.as_str() != "other" {
                read(&seat, &mut held, "shared");
            }
        }
        submit(&store, vec![signal("shared", "a"), signal("shared", "b")]).expect("they are sent again");
        let unread = seat.claim(true).leased.iter().map(|leased| leased.inbox.messages.len()).sum::<usize>();
        assert_eq!(unread, 0, "both were read");
        assert_eq!(store.verify().expect("it is looked at").problems, Vec::<String>::new());
    }
}

/// One bit of a row number in the index of ids is flipped: one message's entry leads to another.
#[test]
fn p2_whoever_reads_a_message_does_not_read_that_of_another_whose_row_the_index_leads_to() {
    let fixture = Fixture::new();
    let store = fixture.open();
    submit(&store, vec![start("other"), start("a"), start("b")]).expect("they are taken");
    let signals = [signal("first", "other"), signal("of-a", "a"), signal("of-b", "b")];
    submit(&store, signals.to_vec()).expect("they are taken");
    let root = root(&fixture, "abide_inbox_ids");
    let store = changed(&fixture, &store, |bytes| {
        let page = &mut bytes[root..][..PAGE_BYTES];
        let at = (0..page.len()).find(|at| page[*at..].starts_with(b"of-a\x02")).expect("it is there");
        page[at + 4] = 3;
    });
    let mut seat = fixture.seat(&store);
    for mut held in seat.claim(true).leased.into_iter().map(Held::from) {
        match held.execution.address().id.as_str() {
            "a" => read(&seat, &mut held, "of-a"),
            "b" => read(&seat, &mut held, "of-b"),
            _ => {}
        }
    }
    assert_eq!(store.verify().expect("it is looked at").problems, Vec::<String>::new());
}

/// The number of a row is its place in the table: the rows after a wrong one are not found either.
#[test]
fn messages_whose_rows_are_not_found_by_their_numbers_are_put_in_order() {
    let fixture = Fixture::new();
    let store = fixture.open();
    for id in ["a", "b"] {
        let ids = (0..10).map(|nth| format!("messageid{nth}"));
        let mail = ids.map(|message| signal(&message, id));
        submit(&store, std::iter::once(start(id)).chain(mail).collect()).expect("they are taken");
    }
    let root = root(&fixture, "abide_inbox");
    let store = changed(&fixture, &store, |bytes| {
        let page = &mut bytes[root..][..PAGE_BYTES];
        assert_eq!(page[0], 13, "all of them stand in one page");
        let cell = usize::from(u16::from_be_bytes([page[8 + 2 * 9], page[9 + 2 * 9]]));
        // The number follows the length of the row, which takes one or two bytes.
        let number = cell + if page[cell] < 0x80 { 1 } else { 2 };
        assert_eq!(page[number], 10);
        page[number] |= 0x40;
    });
    let repairs = repaired(&store).expect("it is repaired");
    assert_eq!(repairs.left, Vec::<String>::new(), "{repairs:?}");
    assert_eq!(store.verify().expect("it is looked at").problems, Vec::<String>::new());
    let leased = fixture.seat(&store).claim(true).leased;
    assert_eq!(leased.iter().map(|leased| leased.inbox.messages.len()).collect::<Vec<_>>(), [10, 10]);
}

#[test]
fn nothing_is_written_where_the_tables_are_not_ours() {
    let fixture = Fixture::new();
    let store = fixture.open();
    submit(&store, (0..10).map(tagged).collect()).expect("they are taken");
    let store = changed(&fixture, &store, |bytes| {
        // The page of the schema was split, and its first half may still have what moved.
        let text = b"abide_executions (\n    key INTEGER";
        for at in (0..bytes.len()).filter(|at| bytes[*at..].starts_with(text)).collect::<Vec<_>>() {
            // The type has another name, so every row has lost its number.
            bytes[at + text.len() - 1] ^= 0x08;
        }
    });
    let before = std::fs::read(fixture.path()).expect("it can be read");
    let repairs = repaired(&store).expect("it is answered");
    let refusal = "the tables are not those that this program makes, and nothing was changed".to_owned();
    assert_eq!((repairs.rebuilt, repairs.left), (Vec::new(), vec![refusal]));
    for id in ["q-1", "q-2"] {
        block_on(store.discard(&address(id), By::client(), "no".to_owned())).expect_err("it is refused");
        block_on(store.drop_messages(&address(id), By::client())).expect_err("it is refused");
    }
    store.close();
    fixture.raw().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").expect("the log can be emptied");
    assert!(before == std::fs::read(fixture.path()).expect("it can be read"), "nothing was written");
}
