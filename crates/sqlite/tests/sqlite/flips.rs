//! One changed byte in a file: `verify` finds it, or nobody reads it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use abide_core::{Body, By, Command, Failure, FailureKind, Namespace, Start, Tag};
use abide_sqlite::{MessagesDropped, Options, Repairs, SqliteStore};
use abide_store::conformance::{TestClock, block_on};
use abide_store::{Changes, Commit, Feed, FeedFrom, Hold, List, Read, Store, Target, View, Workers};

use crate::disorder::{found_by_tag, repaired, tagged};
use crate::fixture::{Fixture, Held, address, complete, flow, message, name, signal, start, step, submit};
use crate::pages::PAGE_BYTES;

/// Returns the file of a store with some data of each kind.
fn filled(fixture: &Fixture) -> Vec<u8> {
    let store = fixture.open();
    let mut seat = fixture.seat(&store);
    let mut long = seat.born("long");
    (1..=300).for_each(|nth| seat.record(&mut long, vec![step(nth)]));
    let mut failed = seat.born("failed");
    seat.continue_as_new(&mut failed, vec![step(1)]);
    seat.record(&mut failed, vec![step(1), Command::Fail(Failure::new(FailureKind::Fatal, "no"))]);
    for nth in 0..20 {
        let mut done = seat.born(&format!("done-{nth}"));
        seat.record(&mut done, vec![step(1), complete()]);
    }
    let tags = vec![Tag { key: name("customer"), value: name("c7") }];
    let tagged = message("start", "tagged", Body::Start(Start { tags, ..flow() }.into()));
    submit(&store, vec![tagged, signal("s-1", "tagged"), signal("s-2", "tagged")]).expect("they are taken");
    let held: Vec<Held> = seat.claim(false).leased.into_iter().map(Held::from).collect();
    let mut tagged = held.into_iter().next().expect("it was ready");
    let commit = seat.draft(&mut tagged, vec![step(1)]);
    let mut changes: Changes = (*commit.changes).clone();
    changes.consumed = vec![abide_core::MessageId::new("s-1")];
    let commit = Commit { changes: Arc::new(changes), hold: Hold::Yield, ..commit };
    block_on(store.commit(commit)).expect("it is committed");
    seat.retire();
    submit(&store, vec![start("ready")]).expect("it is taken");
    let copy = fixture.folder.path().join("copy.db");
    store.backup(&copy).expect("it can be copied");
    store.close();
    std::fs::read(copy).expect("it can be read")
}

/// Returns everything that can be read, or the error.
fn picture(path: &Path, clock: &Arc<TestClock>) -> Result<Vec<String>, String> {
    let tell = |error: &dyn std::fmt::Display| error.to_string();
    let store = SqliteStore::open(path, clock.clone(), Options::default()).map_err(|error| tell(&error))?;
    let list = List::of(Namespace::default(), 1_000);
    let listing = block_on(store.list(list.clone())).map_err(|error| tell(&error))?;
    let tags = vec![Tag { key: name("customer"), value: name("c7") }];
    let tagged = block_on(store.list(List { tags, ..list })).map_err(|error| tell(&error))?;
    let mut lines = vec![format!("{listing:?} {tagged:?}")];
    for item in &listing.items {
        for run in [None, Some(1)] {
            for from in [1, 129, 290] {
                let read = Read { target: Target::Key(item.key), run, from, limit: 1_000, with_inbox: true };
                let found = block_on(store.read(read)).map_err(|error| tell(&error))?;
                lines.push(format!("{found:?}"));
            }
        }
    }
    let feed = Feed { from: FeedFrom::Beginning, limit: 1_000 };
    lines.push(format!("{:?}", block_on(store.feed(feed)).map_err(|error| tell(&error))?));
    let workers = Workers { namespace: Namespace::default(), after: None, limit: 100 };
    lines.push(format!("{:?}", block_on(store.workers(workers)).map_err(|error| tell(&error))?));
    store.close();
    Ok(lines)
}

/// Returns whether `verify` finds a file sound.
fn verdict(path: &Path, clock: &Arc<TestClock>) -> Result<bool, String> {
    let options = Options { read_only: true, ..Options::default() };
    let store = SqliteStore::open(path, clock.clone(), options).map_err(|error| error.to_string())?;
    let found = store.verify().map_err(|error| error.to_string());
    store.close();
    Ok(found?.is_sound())
}

/// Returns the next number of the seed's sequence.
fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

#[test]
fn every_changed_byte_is_found_or_is_read_by_nobody() {
    let fixture = Fixture::new();
    let whole = filled(&fixture);
    fixture.clock.advance(Duration::from_millis(5));
    let path = fixture.folder.path().join("flipped.db");
    std::fs::write(&path, &whole).expect("it can be written");
    assert_eq!(verdict(&path, &fixture.clock), Ok(true));
    let expected = picture(&path, &fixture.clock).expect("it can be read");
    let mut seed = 7;
    let mut missed = Vec::new();
    for _ in 0..200 {
        let at = next(&mut seed) as usize % whole.len();
        let flip = (next(&mut seed) % 255) as u8 + 1;
        let mut bytes = whole.clone();
        bytes[at] ^= flip;
        for beside in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(fixture.folder.path().join(format!("flipped.db{beside}")));
        }
        std::fs::write(&path, &bytes).expect("it can be written");
        let is_found = verdict(&path, &fixture.clock) != Ok(true);
        if !is_found && picture(&path, &fixture.clock).as_ref() != Ok(&expected) {
            let around = &whole[at.saturating_sub(24)..(at + 24).min(whole.len())];
            missed.push(format!(
                "byte {at} ^ {flip:#x}, page {}: {}",
                at / PAGE_BYTES + 1,
                around.escape_ascii()
            ));
        }
    }
    assert!(missed.is_empty(), "{} missed:\n{}", missed.len(), missed.join("\n"));
}

/// Returns the file of a small store with some of everything that can be repaired, all with tags.
fn repairable(fixture: &Fixture) -> Vec<u8> {
    let store = fixture.open();
    let mut seat = fixture.seat(&store);
    for nth in 0..COUNT {
        let (first, second) = (format!("{nth}a"), format!("{nth}b"));
        let id = format!("q-{nth}");
        submit(&store, vec![tagged(nth), signal(&first, &id), signal(&second, &id)]).expect("they are taken");
    }
    for (nth, leased) in seat.claim(true).leased.into_iter().enumerate() {
        let mut held = Held::from(leased);
        if nth % 4 == 0 {
            seat.continue_as_new(&mut held, vec![step(1)]);
        }
        let (commands, has_ended) =
            if nth % 3 == 0 { (vec![step(1), complete()], true) } else { (vec![step(1)], false) };
        let commit = seat.draft(&mut held, commands);
        let hold = if has_ended { commit.hold.clone() } else { Hold::Yield };
        block_on(store.commit(Commit { hold, ..commit })).expect("it is committed");
    }
    seat.retire();
    let copy = fixture.folder.path().join("copy.db");
    store.backup(&copy).expect("it can be copied");
    store.close();
    std::fs::read(copy).expect("it can be read")
}

/// The number of executions.
const COUNT: usize = 12;
/// The number of bits that are flipped, one at a time.
const FLIP_COUNT: usize = 200;

/// Describes each execution: its state, its journal, its mail, and the lookup by its tag.
fn looks(store: &Arc<SqliteStore>) -> Vec<String> {
    let look = |nth: usize| {
        let runs = [None, Some(1)].map(|run| {
            let target = Target::Address(address(&format!("q-{nth}")));
            let read = block_on(store.read(Read { target, run, from: 1, limit: 1_000, with_inbox: true }));
            read.map(|found| {
                found.map(|found| (found.execution, found.summary, found.journal, found.inbox.messages))
            })
        });
        format!("{runs:?} {:?}", found_by_tag(store, nth))
    };
    (0..COUNT).map(look).collect()
}

/// Returns the faults of a repair of a store with one flipped bit.
fn blame(path: &Path, clock: &Arc<TestClock>, expected: &[String]) -> Vec<String> {
    let Ok(store) = SqliteStore::open(path, clock.clone(), Options::default()) else { return Vec::new() };
    let before = looks(&store);
    // An index may still repeat data that its table has lost.
    let told = store.verify().map(|found| found.problems.join("\n")).unwrap_or_default();
    let is_told = |nth: &usize| told.contains(&format!("{:?}", format!("q-{nth}")));
    let is_sound = |nth: usize| before[nth] == expected[nth] && !is_told(&nth);
    let first = repaired(&store);
    let (after, mut blames) = (looks(&store), Vec::new());
    for (nth, expected) in expected.iter().enumerate() {
        if is_sound(nth) && after[nth] != *expected {
            blames.push(format!("q-{nth} was sound and is not: {} became {}", before[nth], after[nth]));
        }
    }
    match first {
        // If the tables themselves are unreadable, there is nothing to repair.
        Err(_) if told.is_empty() || told.contains("names and the routes cannot be read") => {}
        Err(error) => blames.push(format!("the repair fails: {error} {told}")),
        Ok(first) => {
            let second = repaired(&store).map(|second| second.rebuilt).unwrap_or_default();
            let again = second.into_iter().filter(|line| !line.starts_with("the indexes"));
            blames.extend(again.map(|line| format!("told twice: {line} {first:?}")));
        }
    }
    blames.extend((0..COUNT).filter(is_told).filter_map(|nth| {
        let drop = || block_on(store.drop_messages(&address(&format!("q-{nth}")), By::client()));
        let (Ok(MessagesDropped::Dropped(first)), again) = (drop(), drop()) else { return None };
        let is_gone = first.is_empty()
            || again.as_ref().is_ok_and(|again| *again == MessagesDropped::Dropped(Vec::new()));
        (!is_gone).then(|| format!("dropped twice: {first:?} {again:?}"))
    }));
    store.close();
    blames
}

#[test]
fn a_repair_ends_and_leaves_alone_what_is_sound() {
    let fixture = Fixture::new();
    let whole = repairable(&fixture);
    let path = fixture.folder.path().join("flipped.db");
    std::fs::write(&path, &whole).expect("it can be written");
    let store = SqliteStore::open(&path, fixture.clock.clone(), Options::default()).expect("it is opened");
    let expected = looks(&store);
    assert_eq!(repaired(&store).expect("it is repaired"), Repairs::default());
    store.close();
    // The bytes after the header of the file that are in use.
    let used: Vec<usize> = (100..whole.len()).filter(|at| whole[*at] != 0).collect();
    let mut seed = 3;
    let mut blames = Vec::new();
    for _ in 0..FLIP_COUNT {
        let at = used[next(&mut seed) as usize % used.len()];
        let flip = 1 << (next(&mut seed) % 8);
        let mut bytes = whole.clone();
        bytes[at] ^= flip;
        for beside in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(fixture.folder.path().join(format!("flipped.db{beside}")));
        }
        std::fs::write(&path, &bytes).expect("it can be written");
        let around = whole[at.saturating_sub(16)..(at + 16).min(whole.len())].escape_ascii();
        let where_ = format!("byte {at} ^ {flip:#x}, page {}: {around}", at / PAGE_BYTES + 1);
        let found = blame(&path, &fixture.clock, &expected);
        blames.extend(found.into_iter().map(|found| format!("{where_}\n    {found}")));
    }
    assert!(blames.is_empty(), "{} blames:\n{}", blames.len(), blames.join("\n"));
}

/// Changes columns of a row behind the back of SQLite, which would recompute their seal: flipped
/// bytes on the disk do the same.
fn flip_columns(fixture: &Fixture, change: &str) {
    let raw = fixture.raw();
    let schema: String = raw
        .query_row("SELECT sql FROM sqlite_schema WHERE name = 'abide_executions'", [], |row| row.get(0))
        .expect("there is a table");
    let (begin, end) = (" GENERATED ALWAYS AS (", ") STORED");
    let plain = match (schema.find(begin), schema.find(end)) {
        (Some(from), Some(to)) => format!("{}{}", &schema[..from], &schema[to + end.len()..]),
        _ => schema.clone(),
    };
    let write = |text: &str| {
        raw.execute_batch("PRAGMA writable_schema = ON").expect("a test may");
        raw.execute("UPDATE sqlite_schema SET sql = ?1 WHERE name = 'abide_executions'", [text])
            .expect("a test may");
        raw.execute_batch("PRAGMA writable_schema = RESET").expect("a test may");
    };
    write(&plain);
    raw.execute_batch(&["UPDATE abide_executions SET ", change].concat()).expect("the damage can be done");
    write(&schema);
}

/// A column that is stored nowhere else has a sum of its own.
#[test]
fn a_changed_column_of_a_lease_or_a_place_is_found_and_put_right() {
    let changes = [
        "epoch = epoch + 1 WHERE id = 'ready'",
        "epoch = epoch - 1 WHERE id = 'tagged'",
        "epoch = epoch + 256 WHERE id = 'done-3'",
        "takeover_count = 1 WHERE id = 'ready'",
        "takeover_count = 4 WHERE id = 'long'",
        "place_at = place_at + 1 WHERE id = 'ready'",
        "place_at = place_at - 65536 WHERE id = 'tagged'",
        "place_at = place_at + 1 WHERE id = 'failed'",
        "care_at = 1 WHERE id = 'ready'",
        "care_at = care_at + 1 WHERE id = 'tagged'",
        "seal = seal + 1 WHERE id = 'ready'",
    ];
    for change in changes {
        let fixture = Fixture::new();
        filled(&fixture);
        fixture.open().close();
        flip_columns(&fixture, change);
        let store = fixture.open();
        let problems = store.verify().expect("it is looked at").problems;
        assert_eq!(problems.len(), 1, "{change}: {problems:?}");
        let repairs = block_on(store.repair()).expect("it is repaired");
        assert_eq!((repairs.rebuilt.len(), repairs.left.len()), (1, 0), "{change}: {repairs:?}");
        assert!(store.verify().expect("it is looked at").is_sound(), "{change}");
        let again = block_on(store.repair()).expect("it is repaired");
        assert_eq!(again, Repairs::default(), "{change}");
        let mut seat = fixture.seat(&store);
        let claimed: Vec<_> = seat.claim(true).leased;
        assert!(!claimed.is_empty(), "{change}: what can go on is claimed");
    }
}
