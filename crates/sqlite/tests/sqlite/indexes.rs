//! Indexes are rebuilt from their tables, and a page that is unreadable for a while does no harm.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use abide_core::{Body, Namespace, Payload, Status};
use abide_sqlite::{SqliteStore, Verification};
use abide_store::conformance::block_on;
use abide_store::{Beat, Claim, List, Store, View};

use crate::fixture::{Fixture, Held, Seat, complete, flow, message, name, signal, start, submit};
use crate::pages::{PAGE_BYTES, change};

const ROOTS: &str = "
SELECT name, rootpage
FROM sqlite_schema
WHERE type = 'index' AND tbl_name = ?1
ORDER BY rootpage";

/// Returns a file with four ready executions, each with this mail.
fn filled(mail: &[Body]) -> (Fixture, Vec<u8>) {
    let fixture = Fixture::new();
    let store = fixture.open();
    for id in (0..4).map(|nth| format!("q-{nth}")) {
        let mail = mail.iter().map(|body| message(body.word(), &id, body.clone()));
        submit(&store, std::iter::once(start(&id)).chain(mail).collect()).expect("they are taken");
    }
    store.close();
    let whole = std::fs::read(fixture.path()).expect("it can be read");
    (fixture, whole)
}

fn claim(seat: &mut Seat, request: u64) -> Vec<Held> {
    let claim =
        Claim { session: seat.session, request, slots: 10, care_slots: 0, with_mail: true, sweep: true };
    match block_on(seat.store.claim(claim)) {
        Ok(claimed) => claimed.leased.into_iter().map(Held::from).collect(),
        Err(_) => Vec::new(),
    }
}

/// Completes all claimed executions, for a minute. Returns the number of completed ones.
fn finish(fixture: &Fixture, store: &Arc<SqliteStore>) -> usize {
    let mut seat = fixture.seat(store);
    for request in 1..=8 {
        for mut held in claim(&mut seat, request) {
            let commit = seat.draft(&mut held, vec![complete()]);
            let _ = block_on(store.commit(commit));
        }
        fixture.clock.advance(Duration::from_secs(8));
        let _ = block_on(store.heartbeat(Beat::of(seat.session)));
    }
    done(store)
}

fn done(store: &Arc<SqliteStore>) -> usize {
    let list = List { statuses: vec![Status::Completed], ..List::of(Namespace::default(), 100) };
    block_on(store.list(list)).expect("it is listed").items.len()
}

/// Replaces the bytes of a file.
pub(super) fn put(path: &Path, bytes: &[u8]) {
    for beside in ["abide.db-wal", "abide.db-shm"] {
        let _ = std::fs::remove_file(path.with_file_name(beside));
    }
    std::fs::write(path, bytes).expect("it can be written");
}

/// Returns the used bytes of each index of a table, except the header of its page: SQLite cannot
/// rebuild an index whose pages it cannot free.
fn used(template: &Fixture, whole: &[u8], table: &str) -> Vec<(String, Vec<usize>)> {
    let raw = template.raw();
    let mut statement = raw.prepare(ROOTS).expect("there are indexes");
    let roots = statement.query_map([table], |row| Ok((row.get(0)?, row.get::<_, i64>(1)? as usize)));
    let used = |root: usize| {
        let begin = (root - 1) * PAGE_BYTES;
        (begin + 8..begin + PAGE_BYTES).filter(|at| whole[*at] != 0).collect()
    };
    let roots = roots.expect("there are indexes").map(|root| root.expect("it can be read"));
    roots.map(|(name, root)| (name, used(root))).collect()
}

/// Returns a store whose file has one flipped bit.
fn flipped(whole: &[u8], (at, bit): (usize, usize)) -> (Fixture, Arc<SqliteStore>) {
    let fixture = Fixture::new();
    let mut bytes = whole.to_vec();
    bytes[at] ^= 1 << (bit % 8);
    put(&fixture.path(), &bytes);
    let store = fixture.open();
    (fixture, store)
}

/// Repairs a store and returns the remaining fault, if there is one.
fn wrong_after_repair(fixture: &Fixture, store: &Arc<SqliteStore>) -> Option<String> {
    let repaired = block_on(store.repair());
    let (done, verified) = (finish(fixture, store), store.verify());
    let is_right = done == 4 && verified.as_ref().is_ok_and(Verification::is_sound);
    (!is_right).then(|| format!("{repaired:?}, {done} of 4 are done, {verified:?}"))
}

#[test]
fn a_damaged_index_is_made_anew_and_everything_goes_on() {
    let (template, whole) = filled(&[]);
    let mut wrong = Vec::new();
    for (name, used) in used(&template, &whole, "abide_executions") {
        for at in used.into_iter().step_by(3) {
            let (fixture, store) = flipped(&whole, (at, at));
            let done = finish(&fixture, &store);
            // Only a comparison reveals an index entry that is in order but differs from its row.
            let is_told = || !store.verify().expect("it is looked at").is_sound();
            if done < 3 || (done == 3 && !is_told()) {
                wrong.push(format!("{name}, byte {at}: {done} of 4 are done"));
            }
            wrong.extend(
                wrong_after_repair(&fixture, &store).map(|what| format!("{name}, byte {at}: {what}")),
            );
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// This includes an index that SQLite cannot read, unless it cannot free the pages.
#[test]
fn a_damaged_index_of_the_inbox_is_made_anew() {
    let (template, whole) = filled(&[
        Body::Signal { name: name("go"), payload: Payload::from("1") },
        Body::Pause { reason: String::new() },
    ]);
    let (mut wrong, mut lost_count) = (Vec::new(), 0);
    for (name, used) in used(&template, &whole, "abide_inbox") {
        for (bit, at) in used.into_iter().enumerate().step_by(2) {
            let (fixture, store) = flipped(&whole, (at, bit / 2));
            let Some(what) = wrong_after_repair(&fixture, &store) else { continue };
            if what.contains("Extends off end of page") && what.contains("`.dump`") {
                lost_count += 1;
            } else {
                wrong.push(format!("{name}, byte {at}: {what}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!((1..5).contains(&lost_count), "{lost_count} are lost");
}

/// Returns the first child of a table's or index's root page, and the offset of its page number.
fn first_child(fixture: &Fixture, bytes: &[u8], name: &str) -> (usize, [u8; 4]) {
    let found = "SELECT rootpage FROM sqlite_schema WHERE name = ?1";
    let root: i64 = fixture.raw().query_row(found, [name], |row| row.get(0)).expect("it is there");
    let begin = (root as usize - 1) * PAGE_BYTES;
    assert!([2, 5].contains(&bytes[begin]), "{name} has pages below its first");
    let cell = usize::from(u16::from_be_bytes([bytes[begin + 12], bytes[begin + 13]]));
    let child = bytes[begin + cell..][..4].try_into().expect("a page has a number of four bytes");
    (begin + cell, child)
}

/// When SQLite rebuilds an index, it frees all pages that the index leads to, even pages of others.
#[test]
fn p2_nothing_is_made_anew_that_leads_to_the_pages_of_a_table() {
    const COUNTS: [(&str, &str); 2] = [
        ("abide_inbox", "SELECT COUNT(*) FROM abide_inbox NOT INDEXED"),
        ("abide_journal", "SELECT COUNT(*) FROM abide_journal NOT INDEXED"),
    ];
    for (table, count) in COUNTS {
        let fixture = Fixture::new();
        let store = fixture.open();
        for nth in 0..120 {
            let id = format!("q-{nth}");
            let mail = (0..5).map(|nth| signal(&format!("messageid{nth}"), &id));
            submit(&store, std::iter::once(start(&id)).chain(mail).collect()).expect("they are taken");
        }
        store.close();
        change(&fixture.path(), |_| {});
        let mut bytes = std::fs::read(fixture.path()).expect("it can be read");
        let (at, _) = first_child(&fixture, &bytes, "abide_inbox_ids");
        let (_, leaf) = first_child(&fixture, &bytes, table);
        bytes[at..at + 4].copy_from_slice(&leaf);
        put(&fixture.path(), &bytes);
        let count =
            || fixture.raw().query_row(count, [], |row| row.get::<_, i64>(0)).expect("it can be counted");
        let before = count();
        let store = fixture.open();
        finish(&fixture, &store);
        let repairs = block_on(store.repair()).expect("it is answered");
        assert!(repairs.left.iter().any(|left| left.contains("a page belongs to two")), "{repairs:?}");
        store.close();
        assert!(count() >= before, "{table}: {} of {before} are left", count());
    }
}

/// SQLite also calls a page malformed if the disk did not return it. An unread page is not damaged.
#[test]
fn what_could_not_be_read_for_a_while_is_given_later() {
    const FILL: u8 = b'z';
    let fixture = Fixture::new();
    let store = fixture.open();
    let input = Payload::from(String::from_utf8(vec![FILL; 20_000]).expect("it is a text").as_str());
    let large = message("start", "large", Body::Start(flow().with_input(input).into()));
    submit(&store, vec![start("q-1"), large, start("q-3")]).expect("they are taken");
    store.close();
    let whole = std::fs::read(fixture.path()).expect("it can be read");
    let (broken, page) = break_overflow(&whole, FILL);
    put(&fixture.path(), &broken);
    let store = fixture.open();
    assert_eq!(finish(&fixture, &store), 2, "the others go on");
    let statuses = |status| {
        let list = List { statuses: vec![status], ..List::of(Namespace::default(), 100) };
        block_on(store.list(list)).expect("it is listed").items.len()
    };
    assert_eq!((statuses(Status::Damaged), statuses(Status::Running)), (0, 1));
    mend(&fixture, (page, &whole));
    assert_eq!(finish(&fixture, &store), 3, "it goes on where it was");
}

/// Breaks one page of a payload that consists of `fill`. Returns the file and the page number.
pub(super) fn break_overflow(whole: &[u8], fill: u8) -> (Vec<u8>, usize) {
    let is_overflow = |page: &[u8]| page[4..].iter().all(|byte| *byte == fill);
    let page = whole.chunks(PAGE_BYTES).position(is_overflow).expect("the payload has pages of its own");
    let mut broken = whole.to_vec();
    broken[page * PAGE_BYTES..][..4].fill(0xff);
    (broken, page)
}

/// Restores a page. The file was written, so connections that have read the page read it again.
fn mend(fixture: &Fixture, (page, whole): (usize, &[u8])) {
    use std::io::{Seek, SeekFrom, Write};
    let begin = page * PAGE_BYTES;
    let mut file = std::fs::File::options().write(true).open(fixture.path()).expect("it can be opened");
    file.seek(SeekFrom::Start(begin as u64)).expect("it is there");
    file.write_all(&whole[begin..begin + PAGE_BYTES]).expect("it can be written");
    fixture.raw().execute_batch("CREATE TABLE other (number INTEGER)").expect("it can be written");
}

/// Changes a row without updating an index.
fn change_unheard(fixture: &Fixture, index: &str, change: &str) {
    let hide = [
        "PRAGMA writable_schema = ON; CREATE TABLE hidden AS SELECT * FROM sqlite_schema WHERE name = '",
        index,
        "'; DELETE FROM sqlite_schema WHERE name = '",
        index,
        "'",
    ]
    .concat();
    fixture.raw().execute_batch(&hide).expect("an index can be hidden");
    fixture.raw().execute_batch(change).expect("the row can be changed");
    let show =
        "PRAGMA writable_schema = ON; INSERT INTO sqlite_schema SELECT * FROM hidden; DROP TABLE hidden";
    fixture.raw().execute_batch(show).expect("an index can be shown");
}

/// An execution that has ended is never claimed. If only the index says that it is ready, the index
/// is wrong and the row is right; if the row says so, the row is damaged.
#[test]
fn p4_what_has_ended_is_given_to_nobody_whoever_says_that_it_is_ready() {
    let ready = "UPDATE abide_executions SET place = (queue >> 16) * 4 + 1 WHERE id = 'over'";
    let over = "UPDATE abide_executions SET place = 4 WHERE id = 'over'";
    for (is_index_wrong, statuses) in [(true, [1, 0]), (false, [0, 1])] {
        let fixture = Fixture::new();
        let store = fixture.open();
        let seat = fixture.seat(&store);
        seat.record(&mut seat.born("over"), vec![complete()]);
        submit(&store, vec![start("q")]).expect("it is taken");
        store.close();
        fixture.raw().execute_batch(ready).expect("the damage can be done");
        if is_index_wrong {
            change_unheard(&fixture, "abide_executions_place", over);
        }
        let store = fixture.open();
        let given = claim(&mut fixture.seat(&store), 1);
        let ids: Vec<_> = given.iter().map(|held| held.execution.address().id.as_str()).collect();
        assert_eq!(ids, ["q"]);
        let count = |status| {
            let list = List { statuses: vec![status], ..List::of(Namespace::default(), 100) };
            block_on(store.list(list)).expect("it is listed").items.len()
        };
        assert_eq!([count(Status::Completed), count(Status::Damaged)], statuses);
    }
}
