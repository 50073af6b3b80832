//! Backup and restore.

use abide_sqlite::{Options, SqliteStore};

use crate::fixture::{Fixture, look, signal, start, step, submit};

#[test]
fn a_copy_has_everything_and_can_be_opened() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let seat = fixture.seat(&store);
    let mut held = seat.born("a");
    (1..300).for_each(|nth| seat.record(&mut held, vec![step(nth)]));
    submit(&store, vec![start("b"), signal("s", "b")]).unwrap();
    let copy = fixture.folder.path().join("copy.db");
    store.backup(&copy).unwrap();
    seat.record(&mut held, vec![step(300)]);
    let names: Vec<_> = std::fs::read_dir(fixture.folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("copy"))
        .collect();
    assert_eq!(names, ["copy.db"], "a copy is one file");
    let opened = SqliteStore::open(&copy, fixture.clock.clone(), Options::default()).unwrap();
    let found = opened.verify().unwrap();
    assert_eq!((found.execution_count, found.entry_count, found.is_sound()), (2, 301, true), "{found:?}");
    assert_eq!(look(&opened, "b").inbox.messages.len(), 1);
}

#[test]
fn copies_overwrite_nothing() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let taken = fixture.folder.path().join("taken.db");
    std::fs::write(&taken, "mine").unwrap();
    let said = store.backup(&taken).unwrap_err().to_string();
    assert!(said.ends_with("the file exists and is not overwritten"), "{said}");
    let said = SqliteStore::restore(&fixture.path(), &taken, &*fixture.clock).unwrap_err().to_string();
    assert!(said.ends_with("the file exists and is not overwritten"), "{said}");
    assert_eq!(std::fs::read(&taken).unwrap(), b"mine");
    let nowhere = store.backup(&fixture.folder.path().join("no/where.db")).unwrap_err().to_string();
    assert!(nowhere.ends_with("the folder does not exist"), "{nowhere}");
}

#[test]
fn only_databases_of_abide_are_restored() {
    let fixture = Fixture::new();
    let (other, to) = (fixture.folder.path().join("other.db"), fixture.folder.path().join("to.db"));
    rusqlite::Connection::open(&other).unwrap().execute_batch("CREATE TABLE stock (item TEXT)").unwrap();
    let said = SqliteStore::restore(&other, &to, &*fixture.clock).unwrap_err().to_string();
    assert!(said.ends_with("this SQLite database has no tables of abide"), "{said}");
    assert!(!to.exists());
}

#[test]
fn a_restored_database_has_no_live_sessions_and_goes_on_at_once() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let seat = fixture.seat(&store);
    let mut held = seat.born("a");
    seat.record(&mut held, vec![step(1)]);
    let (copy, to) = (fixture.folder.path().join("copy.db"), fixture.folder.path().join("restored.db"));
    store.backup(&copy).unwrap();
    SqliteStore::restore(&copy, &to, &*fixture.clock).unwrap();
    let restored = SqliteStore::open(&to, fixture.clock.clone(), Options::default()).unwrap();
    let claimed = fixture.seat(&restored).claim(false).leased;
    assert_eq!((claimed.len(), claimed[0].takeover_count), (1, 0));
    assert!(restored.verify().unwrap().is_sound());
    // The original is not affected.
    seat.record(&mut held, vec![step(2)]);
}

#[test]
fn a_database_in_memory_can_be_copied() {
    let fixture = Fixture::new();
    let store = SqliteStore::in_memory(fixture.clock.clone(), Options::default()).unwrap();
    submit(&store, vec![start("a")]).unwrap();
    store.backup(&fixture.path()).unwrap();
    assert_eq!(look(&fixture.open(), "a").journal.len(), 1);
}

/// A killed process cannot remove its unfinished copy. The next copy to that file does.
#[test]
fn a_copy_removes_what_killed_ones_have_left() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let folder = fixture.folder.path();
    let to = folder.join("copy.db");
    let left = ["copy.db-partial-4000000-0", "copy.db-partial-4000000-0-journal", "copy.db-partial-1-7"];
    let others = ["copy.db-partial", "copy.db-partial-1-7-mine", "other.db-partial-1-7", "copy.db-partial-1"];
    left.iter().chain(&others).for_each(|name| std::fs::write(folder.join(name), "half").unwrap());
    let taken = folder.join("copy.db-partial-2-2");
    std::fs::write(&taken, "half").unwrap();
    let taken = std::fs::File::open(taken).unwrap();
    taken.lock().unwrap();
    store.backup(&to).unwrap();
    let is_there = |name: &&&str| folder.join(name).exists();
    assert_eq!(left.iter().filter(is_there).count(), 0);
    assert_eq!(others.iter().filter(is_there).count(), others.len(), "nobody made these for a copy");
    assert!(folder.join("copy.db-partial-2-2").exists(), "its process lives");
    drop(taken);
    std::fs::remove_file(&to).unwrap();
    store.backup(&to).unwrap();
    assert!(!folder.join("copy.db-partial-2-2").exists());
}
