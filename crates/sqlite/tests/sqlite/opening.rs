//! Files that can be opened, and the errors for the others.

use std::time::Duration;

use abide_sqlite::{Options, SqliteStore};
use abide_store::conformance::block_on;
use abide_store::{Error, Store, View};

use crate::fixture::{Fixture, look, start, submit, worker};

fn complaint(fixture: &Fixture, name: &str, options: Options) -> String {
    let path = fixture.folder.path().join(name);
    let error = SqliteStore::open(&path, fixture.clock.clone(), options)
        .expect_err("it cannot be opened")
        .to_string();
    let folder = fixture.folder.path().canonicalize().expect("the folder exists");
    error.replace(&format!("{}/", folder.display()), "")
}

#[test]
fn what_cannot_be_opened_is_named_with_the_reason() {
    let fixture = Fixture::new();
    let folder = fixture.folder.path();
    std::fs::create_dir(folder.join("folder")).unwrap();
    std::fs::write(
        folder.join("text.db"),
        "this is a text and not a database, and long enough to be looked at".repeat(20),
    )
    .unwrap();
    std::fs::write(folder.join("locked.db"), "").unwrap();
    let mut permissions = std::fs::metadata(folder.join("locked.db")).unwrap().permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(folder.join("locked.db"), permissions).unwrap();
    drop(fixture.open());
    fixture.raw().execute("UPDATE abide_meta SET value = 99 WHERE name = 'schema_version'", []).unwrap();
    let rows = [
        ("folder", r#""folder": this is a folder, not a database file"#),
        ("missing/a.db", r#""missing/a.db": the folder does not exist"#),
        ("text.db", r#""text.db": this is not an SQLite database"#),
        ("locked.db", r#""locked.db": the file or its folder is read-only"#),
        ("abide.db", r#""abide.db": written by a newer abide: schema version 99, this program knows 1"#),
    ];
    for (name, expected) in rows {
        assert_eq!(complaint(&fixture, name, Options::default()), expected);
    }
}

/// Nothing is created in such a file, and it is not called sound.
#[test]
fn a_damaged_schema_version_is_named() {
    const NONE: &str = r#""abide.db": damaged: its schema version is missing, or is no number"#;
    let rows = [
        (
            "UPDATE abide_meta SET value = 0",
            r#""abide.db": damaged: its schema version is 0, and there never was such a one"#,
        ),
        (
            "UPDATE abide_meta SET value = -3",
            r#""abide.db": damaged: its schema version is -3, and there never was such a one"#,
        ),
        ("UPDATE abide_meta SET value = 'x'", NONE),
        ("UPDATE abide_meta SET name = 'x'", NONE),
        ("DROP TABLE abide_meta", NONE),
    ];
    for (damage, expected) in rows {
        let fixture = Fixture::new();
        let store = fixture.open();
        fixture.raw().execute_batch(damage).unwrap();
        assert!(!store.verify().unwrap().is_sound(), "{damage}");
        store.close();
        for read_only in [false, true] {
            let options = Options { read_only, ..Options::default() };
            assert_eq!(complaint(&fixture, "abide.db", options), expected, "{damage}");
        }
    }
}

#[test]
fn read_only_opens_nothing_that_is_not_there() {
    let fixture = Fixture::new();
    rusqlite::Connection::open(fixture.folder.path().join("other.db"))
        .unwrap()
        .execute_batch("CREATE TABLE stock (item TEXT)")
        .unwrap();
    let read_only = Options { read_only: true, ..Options::default() };
    let rows = [
        ("new.db", r#""new.db": there is no such file"#),
        ("other.db", r#""other.db": this SQLite database has no tables of abide"#),
    ];
    for (name, expected) in rows {
        assert_eq!(complaint(&fixture, name, read_only.clone()), expected);
    }
    assert!(!fixture.folder.path().join("new.db").exists());
}

#[test]
fn read_only_store_reads_and_refuses_to_write() {
    let fixture = Fixture::new();
    let store = fixture.open();
    submit(&store, vec![start("a")]).unwrap();
    let reader = fixture.open_with(Options { read_only: true, ..Options::default() });
    assert_eq!(look(&reader, "a").journal.len(), 1);
    let refused = submit(&reader, vec![start("b")]).unwrap_err();
    assert_eq!(refused.to_string(), "the store was opened read-only: no submit");
}

/// `abide result --wait` waits this way.
#[test]
fn a_read_only_store_hears_of_each_write_of_others() {
    const PATIENCE: Duration = Duration::from_secs(20);
    let fixture = Fixture::new();
    let store = fixture.open();
    let reader = fixture.open_with(Options { read_only: true, ..Options::default() });
    for id in ["a", "b", "c"] {
        let changed = reader.changed();
        submit(&store, vec![start(id)]).unwrap();
        let (sender, heard) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| sender.send(block_on(changed)));
            let heard = heard.recv_timeout(PATIENCE);
            if heard.is_err() {
                reader.close();
            }
            heard.expect("it hears in time").unwrap();
        });
    }
}

#[test]
fn abide_lives_beside_the_tables_of_an_application() {
    let fixture = Fixture::new();
    fixture.raw().execute_batch("CREATE TABLE stock (item TEXT); INSERT INTO stock VALUES ('nail')").unwrap();
    let store = fixture.open();
    submit(&store, vec![start("a")]).unwrap();
    let item: String = fixture.raw().query_row("SELECT item FROM stock", [], |row| row.get(0)).unwrap();
    assert_eq!(item, "nail");
}

#[test]
fn what_was_acknowledged_is_there_after_reopening() {
    let fixture = Fixture::new();
    let store = fixture.open();
    submit(&store, vec![start("a")]).unwrap();
    store.close();
    assert!(matches!(submit(&store, vec![start("b")]), Err(Error::Closed)));
    assert!(matches!(block_on(store.register(worker())), Err(Error::Closed)));
    assert_eq!(look(&fixture.open(), "a").journal.len(), 1);
}

#[test]
fn a_link_to_a_database_is_the_same_database() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let link = fixture.folder.path().join("link.db");
    std::os::unix::fs::symlink(fixture.path(), &link).unwrap();
    let linked = SqliteStore::open(&link, fixture.clock.clone(), Options::default()).unwrap();
    let seat = fixture.seat(&linked);
    seat.born("a");
    // Its lock file is next to the database, so the session counts as alive.
    assert!(fixture.seat(&store).claim(true).leased.is_empty());
}

#[test]
fn a_link_to_a_database_that_is_still_to_be_made_is_the_same_database() {
    let fixture = Fixture::new();
    let (link, other) = (fixture.folder.path().join("link.db"), fixture.folder.path().join("other.db"));
    let folder = fixture.folder.path().join("real");
    std::fs::create_dir(&folder).unwrap();
    std::os::unix::fs::symlink("other.db", &link).unwrap();
    std::os::unix::fs::symlink(folder.join("a.db"), &other).unwrap();
    let open = || SqliteStore::open(&link, fixture.clock.clone(), Options::default()).unwrap();
    let (first, second) = (open(), open());
    fixture.seat(&first).born("a");
    assert!(fixture.seat(&second).claim(true).leased.is_empty(), "its holder is alive");
}

#[test]
fn a_link_that_leads_nowhere_is_refused() {
    let fixture = Fixture::new();
    let link = fixture.folder.path().join("link.db");
    std::os::unix::fs::symlink("link.db", &link).unwrap();
    let opened = SqliteStore::open(&link, fixture.clock.clone(), Options::default());
    assert!(opened.is_err(), "a link to itself");
    let missing = fixture.folder.path().join("missing.db");
    std::os::unix::fs::symlink("nowhere/a.db", &missing).unwrap();
    let error = SqliteStore::open(&missing, fixture.clock.clone(), Options::default()).err().unwrap();
    assert!(error.to_string().contains("nowhere"), "{error}");
}

#[test]
fn a_new_file_can_be_opened_by_many_at_once() {
    const FILE_COUNT: usize = 20;
    const OPENER_COUNT: usize = 8;
    let fixture = Fixture::new();
    for nth in 0..FILE_COUNT {
        let path = fixture.folder.path().join(format!("{nth}.db"));
        let gate = std::sync::Barrier::new(OPENER_COUNT);
        let open = || {
            gate.wait();
            SqliteStore::open(&path, fixture.clock.clone(), Options::default()).map(drop)
        };
        std::thread::scope(|scope| {
            let openers: Vec<_> = (0..OPENER_COUNT).map(|_| scope.spawn(open)).collect();
            for opener in openers {
                opener.join().expect("it opens").expect("nobody is refused");
            }
        });
    }
}

/// The first change of a new file sets its journal mode, for which SQLite calls no busy handler.
#[test]
fn opening_a_new_file_waits_for_whoever_writes_it() {
    let fixture = Fixture::new();
    let other = fixture.raw();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let (sender, opened) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            sender.send(SqliteStore::open(&fixture.path(), fixture.clock.clone(), Options::default()))
        });
        let early = opened.recv_timeout(Duration::from_millis(300));
        assert!(early.is_err(), "it did not wait: {:?}", early.map(drop).map_err(drop));
        other.execute_batch("ROLLBACK").unwrap();
        let store = opened.recv().unwrap().unwrap();
        submit(&store, vec![start("a")]).unwrap();
    });
}

#[test]
fn opening_a_new_file_does_not_wait_for_ever() {
    let fixture = Fixture::new();
    let other = fixture.raw();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let busy = complaint(&fixture, "abide.db", Options { busy_ms_max: 50, ..Options::default() });
    assert!(busy.contains("locked"), "{busy}");
}

/// Only the user who runs the program may read the recorded data.
#[cfg(unix)]
#[test]
fn every_file_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let fixture = Fixture::new();
    let store = fixture.open();
    submit(&store, vec![start("a")]).expect("it is taken");
    let session = block_on(store.register(worker())).expect("a session");
    let copy = fixture.folder.path().join("copy.db");
    store.backup(&copy).expect("a backup");
    SqliteStore::restore(&copy, &fixture.folder.path().join("again.db"), &*fixture.clock).expect("restored");
    let mut modes = Vec::new();
    for entry in std::fs::read_dir(fixture.folder.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        modes.push((entry.file_name().into_string().unwrap(), format!("{mode:o}")));
    }
    modes.sort();
    let names: Vec<&str> = modes.iter().map(|(name, _)| name.as_str()).collect();
    let lock = format!("abide.db-session-{}", session.session);
    for name in ["abide.db", "abide.db-wal", "abide.db-shm", "again.db", "copy.db", &lock] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    assert_eq!(
        modes.iter().filter(|(_, mode)| mode != "600").collect::<Vec<_>>(),
        Vec::<&(String, String)>::new()
    );
}

#[test]
fn what_is_not_to_be_created_is_refused_and_left_as_it_is() {
    let fixture = Fixture::new();
    let existing = || Options { create: false, ..Options::default() };
    let missing = complaint(&fixture, "missing.db", existing());
    assert_eq!(missing, r#""missing.db": there is no such file"#);
    std::fs::write(fixture.folder.path().join("empty.db"), "").expect("a file");
    let empty = complaint(&fixture, "empty.db", existing());
    assert_eq!(empty, r#""empty.db": this SQLite database has no tables of abide"#);
    let left: Vec<_> = std::fs::read_dir(fixture.folder.path()).expect("a folder").collect();
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(left[0].as_ref().expect("a file").metadata().expect("its size").len(), 0);
    fixture.open().close();
    fixture.open_with(existing()).close();
}

/// Its commits may be nowhere else. SQLite would delete it together with an empty file, and would
/// apply it to any other file of this name.
#[test]
fn p2_a_log_without_its_file_is_neither_deleted_nor_applied_to_another() {
    for (end, what) in
        [("-wal", "a log of it"), ("-shm", "the index of its log"), ("-journal", "a log of it")]
    {
        let fixture = Fixture::new();
        let store = fixture.open();
        submit(&store, vec![start("a")]).unwrap();
        let folder = fixture.folder.path();
        let (moved, log) = (folder.join("moved.db"), folder.join(format!("moved.db{end}")));
        std::fs::copy(folder.join("abide.db-wal"), &log).unwrap();
        let size = log.metadata().unwrap().len();
        let expected =
            format!(r#""moved.db": the file is missing or empty, but {what} is there, "moved.db{end}""#);
        for is_empty in [false, true] {
            if is_empty {
                std::fs::write(&moved, "").unwrap();
            }
            // A journal is also there while another process makes the file.
            for create in [true, false].into_iter().filter(|_| end != "-journal") {
                let said = complaint(&fixture, "moved.db", Options { create, ..Options::default() });
                assert!(said.starts_with(&expected), "{said}");
            }
            assert!(end == "-journal" || moved.exists() == is_empty);
            assert_eq!(log.metadata().unwrap().len(), size);
        }
        std::fs::remove_file(&moved).unwrap();
        assert!(log.exists());
        let copy = folder.join("copy.db");
        store.backup(&copy).unwrap();
        let said = SqliteStore::restore(&copy, &moved, &*fixture.clock).unwrap_err().to_string();
        assert!(said.contains(&format!("{what} is there")) && !moved.exists(), "{said}");
        std::fs::remove_file(&log).unwrap();
        SqliteStore::restore(&copy, &moved, &*fixture.clock).unwrap();
    }
}

/// The log and the locks lie beside the name by which a file is opened.
#[test]
#[cfg(unix)]
fn p3_a_file_with_two_names_is_refused() {
    let fixture = Fixture::new();
    drop(fixture.open());
    let other = fixture.folder.path().join("other.db");
    std::fs::hard_link(fixture.path(), &other).unwrap();
    for (name, read_only) in [("abide.db", false), ("other.db", false), ("other.db", true)] {
        let said = complaint(&fixture, name, Options { read_only, ..Options::default() });
        let expected = format!("{name:?}: the file has 2 names (hard links): keep only the one");
        assert!(said.starts_with(&expected), "{said}");
    }
    std::fs::remove_file(&other).unwrap();
    drop(fixture.open());
    // A process that was killed while it published a copy leaves such a name.
    std::fs::hard_link(fixture.path(), fixture.folder.path().join("abide.db-partial-4000000-7")).unwrap();
    drop(fixture.open());
}

#[test]
fn the_longest_patience_is_longer_than_sqlite_can_count() {
    let fixture = Fixture::new();
    let store = fixture.open_with(Options { busy_ms_max: u64::MAX, ..Options::default() });
    submit(&store, vec![start("a")]).unwrap();
    assert_eq!(look(&store, "a").journal.len(), 1);
}
