//! Code that reads bytes here, for tests and fuzzers; see [`abide_core::readers`]. Not for use by
//! hand.
//!
//! A checksum stands before most inputs. Each input says whether its checksum is corrected first,
//! which also exercises the code behind the check.

use std::sync::{Arc, OnceLock};

use abide_core::fixture;
use abide_core::readers::{Reader, Verdict, record};
use abide_core::{
    Address, Bounds, Entry, Event, Execution, ExecutionId, Namespace, Payload, SessionId, Summary, Version,
    codec,
};
use abide_store::memory::MemoryStore;
use abide_store::readers::{NOW, answer};
use abide_store::{
    ExecutionKey, Feed, FeedCursor, FeedFrom, InboxCursor, InboxRead, LeaseCursor, Leases, List, ListCursor,
    ListOrder, Read, Record, Store, Target, Workers,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::answers::Kept;
use crate::checksum::{self, CHECKSUM_BYTES, Checksum};
use crate::journal::{Found, Link, listed, packed};
use crate::lockfile;
use crate::packing::unpack;
use crate::place::{self, Columns, Place, ReadyQueue};
use crate::rows::unsigned;
use crate::sheaf::{Behind, Split};
use crate::sheet::{Anchor, Cold, Draft, Identity, Sheet};
use crate::{Options, SqliteStore};

/// The readers of this crate.
pub const ALL: [Reader; 7] = [
    Reader { name: "journal_row", read: journal_row, seeds: journal_row_seeds },
    Reader { name: "sheaf", read: sheaf, seeds: sheaf_seeds },
    Reader { name: "skip_list", read: skip_list, seeds: skip_list_seeds },
    Reader { name: "sheet", read: sheet, seeds: sheet_seeds },
    Reader { name: "place", read: place, seeds: place_seeds },
    Reader { name: "cursors", read: cursors, seeds: cursors_seeds },
    Reader { name: "lock_file_name", read: lock_file_name, seeds: lock_file_name_seeds },
];

fn input<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    codec::decode(bytes).ok()
}

fn seed<T: Serialize>(value: &T) -> Vec<u8> {
    codec::encode(value)
}

/// A journal row: `row, execution, previous, seq, happened, skip`, whether its checksum is
/// corrected, and its body.
type JournalRow = ((i64, i64, Option<i64>, i64, Option<u8>, Option<Vec<u8>>), bool, Vec<u8>);

fn journal_row(bytes: &[u8]) -> Verdict {
    let Some((columns, is_mended, mut body)) = input::<JournalRow>(bytes) else { return Verdict::Refused };
    let (row, key, previous, seq, happened, skip) = columns;
    let seq = unsigned(seq);
    let link = Link { row, key, previous, happened, skip: skip.as_deref() };
    if is_mended && body.len() >= CHECKSUM_BYTES {
        let sum = link.sum(seq, Checksum::new().bytes(&body[CHECKSUM_BYTES..]));
        checksum::put(&mut body, sum);
    }
    let Ok(found) = Found::open(&link, seq, &body) else { return Verdict::Refused };
    assert!(link.previous.is_none_or(|previous| previous < link.row), "a row follows an older one");
    let (_, _) = (found.last(), found.end());
    if let Some(kept) = found.answer().and_then(Kept::of) {
        let mut bytes = Vec::new();
        kept.begin(&mut bytes);
        bytes.extend_from_slice(kept.message);
        assert_eq!(Kept::of(&bytes), Some(kept), "an answer survives its bytes");
    }
    found.summary().map(record::<Summary>);
    let records: Option<Vec<Record>> = found
        .records()
        .map(|record| record.ok().map(|(seq, bytes)| Record { seq, bytes: bytes.to_vec() }))
        .collect();
    let Some(records) = records else { return Verdict::Refused };
    let mut packs = packed(&records);
    let again = packs.iter_mut().flat_map(|pack| unpack(&pack.body[CHECKSUM_BYTES..]));
    assert!(again.eq(records.iter().map(|record| Some(record.bytes.as_slice()))), "packed as it was");
    for one in &records {
        let _ = record::<Entry>(&one.bytes);
    }
    Verdict::Read
}

fn journal_row_seeds() -> Vec<Vec<u8>> {
    let entry = |seq, event| Record::of(&Entry::new(seq, NOW.0, event));
    let records = [
        entry(1, Event::Started(fixture::flow().into())),
        entry(2, Event::ContinuedAsNew { input: Payload::from("2") }),
    ];
    let mut packs = packed(&records);
    packs.last_mut().expect("there are entries").keep(|mut body| {
        Kept { parent: 1, arrived: 6, id: "done:x:1", message: &[] }.begin(&mut body);
        body.extend_from_slice(b"a message");
        body
    });
    let mut summed_up = packed(&records[1..]);
    let (execution, _) = Execution::start(address(), fixture::flow(), NOW.0);
    summed_up.only_mut().expect("there is an entry").sum_up(&execution.summary(&[]));
    let bodies = packs.iter_mut().chain(summed_up.iter_mut()).map(|pack| std::mem::take(&mut pack.body));
    bodies.map(|body| seed::<JournalRow>(&((7, 1, Some(3), 1, None, Some(vec![1])), true, body))).collect()
}

/// Reads the rows behind the first one of a sheaf: its number, and the bytes behind it.
fn sheaf(bytes: &[u8]) -> Verdict {
    let Some((first, more)) = input::<(i64, Vec<u8>)>(bytes) else { return Verdict::Refused };
    let (mut number, mut rest, mut again) = (first, more.as_slice(), Vec::new());
    while !rest.is_empty() {
        let Some(next) = number.checked_add(1) else { return Verdict::Refused };
        let Some(Split { row, is_named, rest: others }) = Behind::split(next, rest) else {
            return Verdict::Refused;
        };
        if !is_named {
            return Verdict::Refused;
        }
        assert!(row.previous.is_none_or(|previous| previous < next), "a row follows an older one");
        let begin = again.len();
        row.put(&mut again, next);
        let written = Behind::split(next, &again[begin..]).expect("it was just written");
        assert_eq!(written, Split { row, is_named, rest: &[] }, "a row survives its bytes");
        (number, rest) = (next, others);
    }
    assert!(again.len() <= more.len(), "nothing is made up");
    Verdict::Read
}

fn sheaf_seeds() -> Vec<Vec<u8>> {
    let mut more = Vec::new();
    let row = Behind { key: 300, previous: Some(7), seq: 2, happened: None, skip: None, body: b"entries" };
    row.put(&mut more, 9);
    let alone = seed(&(8_i64, more.clone()));
    Behind { previous: None, seq: 1, happened: Some(1), skip: Some(b"owner"), ..row }.put(&mut more, 10);
    vec![alone, seed(&(8_i64, more))]
}

/// Reads a skip list: its row, its position in its run, and its bytes.
fn skip_list(bytes: &[u8]) -> Verdict {
    let Some((row, nth, skip)) = input::<(i64, u64, Vec<u8>)>(bytes) else { return Verdict::Refused };
    let Ok((_, rows)) = listed((row, nth), &skip) else { return Verdict::Refused };
    let all: Vec<i64> = std::iter::once(row).chain(rows).collect();
    assert!(all.is_sorted_by(|newer, older| newer > older), "each row follows an older one: {all:?}");
    assert!(all[1..].iter().all(|row| *row > 0), "rows are numbered from 1: {all:?}");
    Verdict::Read
}

fn skip_list_seeds() -> Vec<Vec<u8>> {
    let list = |count| codec::encode(&(500_u64, vec![2_u64; count]));
    vec![seed(&(900_i64, 128_u64, list(127))), seed(&(900_i64, 256_u64, list(128)))]
}

/// The columns of an execution: `key, namespace, queue, parent, head, version`, whether its
/// checksum is corrected, and the sheet.
type Columned = ((i64, i64, i64, Option<i64>, i64, u64), bool, Vec<u8>);

fn sheet(bytes: &[u8]) -> Verdict {
    let Some((columns, is_mended, mut body)) = input::<Columned>(bytes) else { return Verdict::Refused };
    let (key, namespace, queue, parent, head, version) = columns;
    let identity = Identity { key, namespace, id: "x", queue: ReadyQueue::of(queue), parent };
    assert_eq!(identity.queue.number(), queue);
    let anchor = Anchor::new(identity, head, Version(version));
    if is_mended {
        mend(&mut body, &anchor);
    }
    let Ok(found) = Sheet::open(&body, &anchor) else { return Verdict::Refused };
    // If the whole can be read, its beginning can.
    let (summary, standing) = (found.summary(), found.standing());
    assert!(summary.is_err() || standing.is_ok());
    let _ = record::<Execution>(found.state);
    let Ok(summary) = summary else { return Verdict::Refused };
    assert_eq!(Summary::beginning_of(found.summary), Some((summary.status, summary.listens)));
    let mut draft = Draft::new(&summary, found.state);
    let again = Sheet::open(draft.sealed(&found.cold, &anchor), &anchor).expect("it was just written");
    assert_eq!((again.cold, again.state), (found.cold, found.state));
    assert!(draft.sealed(&found.cold, &anchor).len() <= body.len(), "nothing is lost or made up");
    Verdict::Read
}

/// Corrects the checksum of a sheet, as far as its parts can be separated.
fn mend(body: &mut [u8], anchor: &Anchor) {
    let Some(rest) = body.get(CHECKSUM_BYTES..) else { return };
    let Ok((_, cold)) = postcard::take_from_bytes::<(&[u8], &[u8])>(rest) else { return };
    let (prepared, cold) = rest.split_at(rest.len() - cold.len());
    let sum = anchor.sum(Checksum::new().bytes(prepared).bytes(cold));
    checksum::put(body, sum);
}

fn sheet_seeds() -> Vec<Vec<u8>> {
    let (execution, _) = Execution::start(address(), fixture::flow(), NOW.0);
    let cold = Cold::of_newborn(&fixture::flow(), 7, NOW.0);
    let columns = (1, 1, ReadyQueue { route: 1, priority: 0 }.number(), None, 7, 1);
    let anchor = Anchor::new(
        Identity { key: 1, namespace: 1, id: "x", queue: ReadyQueue::of(columns.2), parent: None },
        7,
        Version(1),
    );
    let mut draft = Draft::of(&execution.summary(&[]), &execution);
    let body = draft.sealed(&cold, &anchor).to_vec();
    vec![seed::<Columned>(&(columns, false, body.clone())), seed::<Columned>(&(columns, true, body))]
}

/// Reads the columns `place, rank, since`.
fn place(bytes: &[u8]) -> Verdict {
    let Some((place, rank, place_at)) = input(bytes) else { return Verdict::Refused };
    place::held(SessionId(place as u64));
    let Some(found) = Place::of(Columns { place, rank, place_at }) else { return Verdict::Refused };
    assert_eq!(Place::of(found.columns()), Some(found), "a place survives its columns");
    Verdict::Read
}

fn place_seeds() -> Vec<Vec<u8>> {
    (0..4_i64).map(|kind| seed(&(kind + 4, 0_i64, 9_i64))).collect()
}

/// A feed cursor, a key, the three numbers of a lease cursor, a session and a limit.
type Cursors = (u128, u64, [u64; 3], u64, u64);

/// Checks that both stores answer any cursor, and return no more items than requested.
fn cursors(bytes: &[u8]) -> Verdict {
    let Some(cursors) = input::<Cursors>(bytes) else { return Verdict::Refused };
    static STORES: OnceLock<[Arc<dyn Store>; 2]> = OnceLock::new();
    for store in STORES.get_or_init(stores) {
        ask(&**store, cursors);
    }
    Verdict::Read
}

fn ask(store: &dyn Store, (feed, key, lease, session, limit): Cursors) {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let (session, key) = (SessionId(session), ExecutionKey(key));
    let page = answer(store.feed(Feed { from: FeedFrom::After(FeedCursor(feed)), limit }));
    let page = page.expect("any place is a place in the feed");
    assert!(page.items.len() <= limit);
    for order in [ListOrder::NewestFirst, ListOrder::OldestFirst] {
        let list = List { order, after: Some(ListCursor(key)), ..List::of(Namespace::default(), limit) };
        let listing = answer(store.list(list)).expect("any key is a place in a list");
        assert!(listing.items.len() <= limit);
    }
    let after = Some(LeaseCursor(lease));
    let leases = answer(store.leases(Leases { session, after, limit })).expect("it holds nothing");
    assert_eq!(leases.leases, []);
    let workers = Workers { namespace: Namespace::default(), after: Some(session), limit };
    assert_eq!(answer(store.workers(workers)).expect("there are none"), []);
    let [number, from, _] = lease;
    let inbox = InboxRead { key, after: Some(InboxCursor(number)), limit };
    assert_eq!(answer(store.inbox(inbox)).expect("nothing is there").messages, []);
    let run = u32::try_from(number).ok();
    let read = Read { target: Target::Key(key), run, from, limit, with_inbox: true };
    let snapshot = answer(store.read(read)).expect("any part of a journal can be asked for");
    assert!(snapshot.is_none_or(|found| found.journal.len() <= limit.min(1)));
}

fn cursors_seeds() -> Vec<Vec<u8>> {
    let greatest = u64::MAX;
    vec![
        seed::<Cursors>(&(0, 1, [1, 1, 0], 1, 10)),
        seed::<Cursors>(&(u128::MAX, greatest, [greatest; 3], greatest, greatest)),
        seed::<Cursors>(&(i64::MAX as u128, 0, [0, greatest, 0], i64::MAX as u64, 0)),
    ]
}

/// Reads the name of a lock file, from the end of the name of its database on.
fn lock_file_name(bytes: &[u8]) -> Verdict {
    let Some(session) = lockfile::session_of(bytes) else { return Verdict::Refused };
    assert_eq!(lockfile::ending_of(session).as_bytes(), bytes, "a session has one name");
    Verdict::Read
}

fn lock_file_name_seeds() -> Vec<Vec<u8>> {
    ["-session-7", "-session-18446744073709551615"].map(Vec::from).to_vec()
}

/// Returns two stores with one execution each.
fn stores() -> [Arc<dyn Store>; 2] {
    let (execution, first) = Execution::start(address(), fixture::flow(), NOW.0);
    let sqlite = SqliteStore::in_memory(Arc::new(NOW), Options::default()).expect("memory is there");
    let stores: [Arc<dyn Store>; 2] = [MemoryStore::new(Arc::new(NOW), Bounds::default()), sqlite];
    for store in &stores {
        let import = abide_store::Import {
            runs: vec![vec![Record::of(&first)]],
            summary: execution.summary(&[]),
            execution: execution.clone(),
            unread: Vec::new(),
            epoch: abide_core::Epoch(0),
            version: Version(1),
            takeover_count: 0,
            was_ready: true,
        };
        answer(store.import(import)).expect("it is sound");
    }
    stores
}

fn address() -> Address {
    Address { namespace: Namespace::default(), id: ExecutionId::new("x").expect("an id") }
}
