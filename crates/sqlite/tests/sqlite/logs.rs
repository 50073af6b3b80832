//! The write-ahead log: large enough to be fast, and no larger.

use abide_core::{Body, Payload};
use abide_sqlite::Options;

use crate::fixture::{Fixture, flow, message, submit};

fn log_bytes(fixture: &Fixture) -> u64 {
    let mut name = fixture.path().into_os_string();
    name.push("-wal");
    std::fs::metadata(name).map_or(0, |file| file.len())
}

fn write_kilobytes(store: &std::sync::Arc<abide_sqlite::SqliteStore>, (round, count): (u32, u32)) {
    for nth in 0..count {
        let start = flow().with_input(Payload::from(vec![b'x'; 1_000]));
        let start = message("start", &format!("{round}-{nth}"), Body::Start(start.into()));
        submit(store, vec![start]).expect("it is started");
    }
}

#[test]
fn the_log_stays_within_its_bound() {
    let fixture = Fixture::new();
    let wal_bytes_max = 2 << 20;
    let store = fixture.open_with(Options { wal_bytes_max, wal_bytes_presized: 0, ..Options::default() });
    for round in 0..6 {
        write_kilobytes(&store, (round, 300));
    }
    let found = log_bytes(&fixture);
    assert!(found <= wal_bytes_max * 2, "the log has {found} bytes");
    assert!(store.verify().expect("it is looked at").is_sound());
}

#[test]
fn the_log_is_sized_when_it_is_used_and_nothing_is_lost_by_it() {
    let fixture = Fixture::new();
    let store = fixture.open_with(Options { wal_bytes_presized: 16 << 20, ..Options::default() });
    write_kilobytes(&store, (0, 1));
    assert!(log_bytes(&fixture) < 1 << 20, "who writes little leaves little behind");
    let sized = (1..200).find(|round| {
        write_kilobytes(&store, (*round, 50));
        log_bytes(&fixture) == 16 << 20
    });
    assert!(sized.is_some(), "the log has {} bytes", log_bytes(&fixture));
    assert!(store.verify().expect("it is looked at").is_sound());
    // The bytes after the last frame are not mistaken for frames, now or at the next opening.
    let reopened = fixture.open();
    assert_eq!(reopened.verify().expect("it is looked at"), store.verify().expect("it is looked at"));
}
