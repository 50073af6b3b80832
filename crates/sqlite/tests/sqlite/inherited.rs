//! A log that others have left behind: nobody knows whether it was synced.

use std::fs::{File, OpenOptions};
use std::path::PathBuf;
use std::time::SystemTime;

use abide_core::{Body, Payload};
use abide_sqlite::flaw::PAGE_BYTES;
use abide_sqlite::{Options, SqliteStore};

use crate::fixture::{Fixture, flow, look, message, start, submit};

/// More than is written again at once.
const START_COUNT: u32 = 100;

fn log_path(fixture: &Fixture) -> PathBuf {
    let mut name = fixture.path().into_os_string();
    name.push("-wal");
    name.into()
}

/// Returns the files of a store whose process has died.
fn left_behind() -> Fixture {
    let (alive, dead) = (Fixture::new(), Fixture::new());
    let store = alive.open();
    for nth in 0..START_COUNT {
        let start = flow().with_input(Payload::from(vec![b'x'; 10_000]));
        submit(&store, vec![message("start", &nth.to_string(), Body::Start(start.into()))]).unwrap();
    }
    std::fs::copy(alive.path(), dead.path()).unwrap();
    std::fs::copy(log_path(&alive), log_path(&dead)).unwrap();
    dead
}

/// Makes the log look as if it had been written long ago.
fn age(fixture: &Fixture) {
    let log = OpenOptions::new().append(true).open(log_path(fixture)).unwrap();
    log.set_modified(SystemTime::UNIX_EPOCH).unwrap();
}

fn is_written(fixture: &Fixture) -> bool {
    let log = File::open(log_path(fixture)).unwrap();
    log.metadata().unwrap().modified().unwrap() != SystemTime::UNIX_EPOCH
}

#[test]
fn p2_a_log_that_was_left_behind_is_written_again_before_the_first_answer() {
    for create in [false, true] {
        let fixture = left_behind();
        let before = std::fs::read(log_path(&fixture)).unwrap();
        age(&fixture);
        let store = fixture.open_with(Options { create, ..Options::default() });
        assert!(is_written(&fixture));
        assert!(std::fs::read(log_path(&fixture)).unwrap() == before, "its bytes are the same");
        assert_eq!(look(&store, "99").journal.len(), 1);
        submit(&store, vec![start("next")]).unwrap();
        assert!(store.verify().unwrap().is_sound());
    }
}

#[test]
fn a_copy_is_made_of_a_log_that_was_written_again() {
    let fixture = left_behind();
    age(&fixture);
    // It keeps the log from being deleted at the end.
    let other = fixture.raw();
    other.query_row("SELECT count(*) FROM abide_meta", [], |_| Ok(())).unwrap();
    let to = fixture.folder.path().join("restored.db");
    SqliteStore::restore(&fixture.path(), &to, &*fixture.clock).unwrap();
    assert!(is_written(&fixture));
}

#[test]
fn the_log_of_a_live_session_is_left_as_it_is() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let seat = fixture.seat(&store);
    seat.born("a");
    age(&fixture);
    let second = fixture.open();
    assert!(!is_written(&fixture));
    seat.retire();
    age(&fixture);
    let third = fixture.open();
    assert!(is_written(&fixture), "nobody says that somebody else has done it");
    drop((store, second, third));
}

#[test]
fn who_only_reads_writes_nothing_and_keeps_the_index_of_the_log() {
    let fixture = left_behind();
    age(&fixture);
    let reader = fixture.open_with(Options { read_only: true, ..Options::default() });
    assert!(!is_written(&fixture));
    fixture.open().close();
    assert!(log_path(&fixture).exists(), "somebody is attached");
    reader.close();
    fixture.open().close();
    assert!(!log_path(&fixture).exists(), "nobody is");
}

#[test]
fn a_log_that_cannot_be_read_is_no_error() {
    let whole = std::fs::read(log_path(&left_behind())).unwrap();
    let changed = |at: usize, byte: u8| {
        let mut log = whole.clone();
        log[at] = byte;
        log
    };
    let rows = [
        ("nothing", Vec::new()),
        ("a part of the header", whole[..20].to_vec()),
        ("only the header", whole[..32].to_vec()),
        ("a part of a frame", whole[..2_000].to_vec()),
        ("frames and a part of one", whole[..whole.len() - 1].to_vec()),
        ("zeros", vec![0; 100_000]),
        ("noise", vec![0xa5; 100_000]),
        ("another magic number", changed(0, 0)),
        ("a page size of no power of two", changed(10, 0x11)),
        ("a huge page size", changed(8, 0x40)),
        ("other salts in the header", changed(16, whole[16] ^ 1)),
        ("other salts in a frame", changed(32 + (PAGE_BYTES + 24) + 8, whole[16] ^ 1)),
    ];
    for (what, log) in rows {
        let fixture = Fixture::new();
        fixture.open().close();
        std::fs::write(log_path(&fixture), &log).unwrap();
        for read_only in [true, false] {
            let options = Options { read_only, ..Options::default() };
            let store = SqliteStore::open(&fixture.path(), fixture.clock.clone(), options);
            store.unwrap_or_else(|error| panic!("{what}: {error}")).close();
        }
    }
}
