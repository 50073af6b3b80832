//! Several stores on one file, like several processes.

use abide_core::{Fence, Namespace, SessionId};
use abide_sqlite::SqliteStore;
use abide_store::conformance::block_on;
use abide_store::{Beat, CommitOutcome, Heartbeat, Notice, Store, View, Workers};

use crate::fixture::{Fixture, Held, look, signal, start, step, submit};

fn lock_files(fixture: &Fixture) -> Vec<String> {
    let names = std::fs::read_dir(fixture.folder.path()).expect("the folder can be read").flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<_> = names.filter(|name| name.contains("-session-")).collect();
    names.sort();
    names
}

/// Returns why each session ended.
fn ends(store: &SqliteStore) -> Vec<Option<String>> {
    let namespace = Namespace::new("default").expect("a name");
    let workers = block_on(store.workers(Workers { namespace, after: None, limit: 10 })).expect("an answer");
    workers.into_iter().map(|row| row.retired).collect()
}

#[test]
fn a_session_whose_process_is_gone_is_swept_at_once() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.open(), fixture.open());
    let gone = fixture.seat(&one);
    gone.born("a");
    let mut seat = fixture.seat(&two);
    assert!(seat.claim(true).leased.is_empty(), "it lives");
    assert_eq!(ends(&two), [None, None]);
    drop(gone);
    drop(one);
    // A query before the sweep already says so.
    assert_eq!(ends(&two), [Some("its process is gone".to_owned()), None]);
    let leased = seat.claim(true).leased;
    assert_eq!((leased.len(), leased[0].takeover_count, leased[0].lease.epoch.0), (1, 1, 2));
    assert_eq!(lock_files(&fixture), ["abide.db-session-2"]);
}

#[test]
fn lock_files_go_with_their_sessions() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let (one, two) = (fixture.seat(&store), fixture.seat(&store));
    assert_eq!(lock_files(&fixture), ["abide.db-session-1", "abide.db-session-2"]);
    one.retire();
    assert_eq!(lock_files(&fixture), ["abide.db-session-2"]);
    two.retire();
    assert!(lock_files(&fixture).is_empty());
}

#[test]
fn stale_worker_of_another_process_cannot_write() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.open(), fixture.open());
    let (old, mut new) = (fixture.seat(&one), fixture.seat(&two));
    let mut held = old.born("a");
    old.record(&mut held, vec![step(1)]);
    // Another process ends its session, while its own store still has it in its caches.
    let retire = abide_store::Retire { session: old.session, reason: "marked dead".to_owned() };
    block_on(two.retire(retire)).unwrap();
    match old.commit(&mut held.clone(), vec![step(2)]) {
        CommitOutcome::Fenced(Fence::DeadSession(session)) => assert_eq!(session, old.session),
        other => panic!("expected it to be fenced: {other:?}"),
    }
    let mut taken = Held::from(new.claim(false).leased.remove(0));
    new.record(&mut taken, vec![step(2)]);
    match old.commit(&mut held, vec![step(2)]) {
        CommitOutcome::Fenced(Fence::StaleEpoch { .. }) => {}
        other => panic!("expected it to be fenced: {other:?}"),
    }
    let beat = Beat::of(old.session);
    assert!(matches!(block_on(one.heartbeat(beat)).unwrap(), Heartbeat::NotRegistered));
    assert_eq!(look(&one, "a").journal.len(), 3);
}

#[test]
fn both_processes_append_to_one_log() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.open(), fixture.open());
    let (first, second) = (fixture.seat(&one), fixture.seat(&two));
    let (mut a, mut b) = (first.born("a"), second.born("b"));
    for nth in 1..300 {
        first.record(&mut a, vec![step(nth)]);
        second.record(&mut b, vec![step(nth)]);
    }
    let found = one.verify().unwrap();
    assert_eq!((found.entry_count, found.problems), (600, Vec::<String>::new()));
    assert_ne!(a.key, b.key);
}

#[test]
fn what_another_process_does_is_noticed() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.open(), fixture.open());
    let seat = fixture.seat(&one);
    seat.born("a");
    let notices = one.wait(seat.session);
    submit(&two, vec![signal("s", "a")]).unwrap();
    let told = block_on(notices).unwrap();
    assert!(told.contains(&Notice::Changed), "{told:?}");
    let mut seat = seat;
    let mail = seat.claim(false).mail;
    assert_eq!(mail.iter().map(|(_, newest)| newest.as_str()).collect::<Vec<_>>(), ["s"]);
}

#[test]
fn routes_and_namespaces_of_other_processes_are_known() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.open(), fixture.open());
    let mut seat = fixture.seat(&one);
    assert!(seat.claim(false).leased.is_empty());
    submit(&two, vec![start("a")]).unwrap();
    assert_eq!(seat.claim(false).leased.len(), 1);
    assert_eq!(look(&one, "a").lease.session, Some(SessionId(1)));
}

#[test]
fn a_wait_ends_with_the_store() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let seat = fixture.seat(&store);
    let waiting = store.wait(seat.session);
    store.close();
    assert!(matches!(block_on(waiting), Err(abide_store::Error::Closed)));
}

#[test]
fn ten_thousand_leases_of_a_dead_session_are_taken_over() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let dead = fixture.seat(&store);
    for hundred in 0..100 {
        let messages = (0..100).map(|nth| start(&format!("{hundred}-{nth}"))).collect();
        let submit =
            abide_store::Submit { messages, born_to: Some(dead.session), alone: true, stretch: None };
        block_on(store.submit(submit)).unwrap();
    }
    fixture.clock.advance(std::time::Duration::from_secs(5));
    let mut seat = fixture.seat(&store);
    fixture.clock.advance(std::time::Duration::from_secs(6));
    assert_eq!(seat.claim(true).leased.len(), 10_000);
}

#[test]
fn lock_files_of_ended_sessions_are_deleted_by_whoever_comes_next() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.open(), fixture.open());
    let lost = fixture.seat(&one);
    fixture.seat(&two).retire();
    fixture.seat(&two).retire();
    drop((lost, one));
    // Sessions 2 and 3 were stopped beyond their time: each recreated its file before it learned
    // that it had ended. One of them is still alive.
    let path = |name: &str| fixture.folder.path().join(name);
    std::fs::write(path("abide.db-session-2"), "").expect("it is written");
    let zombie = std::fs::File::create(path("abide.db-session-3")).expect("it is made");
    zombie.lock().expect("it is locked");
    for others in ["abide.db-session-x", "abide.db-session-2.txt", "other.db-session-2"] {
        std::fs::write(path(others), "").expect("it is written");
    }
    let _seat = fixture.seat(&two);
    let left = [
        // No claim has swept it yet.
        "abide.db-session-1",
        "abide.db-session-2.txt",
        "abide.db-session-3",
        "abide.db-session-4",
        "abide.db-session-x",
        "other.db-session-2",
    ];
    assert_eq!(lock_files(&fixture), left);
    drop(zombie);
    fixture.seat(&two).retire();
    assert!(!lock_files(&fixture).contains(&"abide.db-session-3".to_owned()));
}
