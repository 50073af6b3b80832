//! Whether the database file that a live store has opened still has its name.
//!
//! A file that is deleted or replaced lives on for as long as a process has it open. SQLite goes on
//! writing to it, and everything that is acknowledged there is lost with the process, while others
//! use another file of the same name. So a live store looks every second, and refuses all work once
//! its file is gone.
//!
//! The look asks for the name and opens nothing: closing a file releases all POSIX locks that the
//! process has on it, and with them those of SQLite. No other file gets the number of an open one,
//! so two files are never taken for one.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use abide_core::planted::{Bug, planted};

use crate::error::{BatchFailure, OpenError};

/// The number of looks in a row that must miss the file: one may fall between two renames.
const MISS_COUNT_MAX: u32 = 2;

/// The file of a store, as it was when it was opened.
#[derive(Debug)]
pub(crate) struct NamedFile {
    path: PathBuf,
    identity: Identity,
    miss_count: AtomicU32,
    is_lost: AtomicBool,
}

/// What a look has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    Found,
    /// The file may be lost, or was lost before.
    Missed,
    /// The file is lost since this look.
    Lost,
}

impl NamedFile {
    /// Remembers the file that has been opened under this name; `None` where the system does not
    /// identify files.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let identity = identity(path).ok().flatten()?;
        let (miss_count, is_lost) = (AtomicU32::new(0), AtomicBool::new(false));
        Some(Self { path: path.to_owned(), identity, miss_count, is_lost })
    }

    /// Looks for the file. Only one thread may look.
    pub(crate) fn look(&self) -> Look {
        if self.is_lost() {
            return Look::Missed;
        }
        if self.has_name() {
            self.miss_count.store(0, Ordering::Relaxed);
            return Look::Found;
        }
        if self.miss_count.fetch_add(1, Ordering::Relaxed) + 1 < MISS_COUNT_MAX {
            return Look::Missed;
        }
        self.is_lost.store(true, Ordering::Relaxed);
        Look::Lost
    }

    /// Whether the file was lost. It never returns, also if its name does: others may have written
    /// to the file meanwhile without the locks of this store.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Whether the name leads to the file at this moment. True where the system cannot tell.
    pub(crate) fn has_name(&self) -> bool {
        match identity(&self.path) {
            Ok(found) => found == Some(self.identity),
            Err(error) => !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
        }
    }

    /// Returns the failure of everything that would use the file.
    pub(crate) fn failure(&self) -> BatchFailure {
        BatchFailure::unavailable(format!(
            "the database file {:?} was deleted or replaced while this process used it; the process must \
             be restarted",
            self.path
        ))
    }
}

/// Refuses a file that others may open by another name: a hard link, or the file itself mounted
/// somewhere. A link from one name to another is no such name.
pub(crate) fn check_only_name(path: &Path) -> Result<(), OpenError> {
    let what = match name_count(path) {
        0 | 1 if is_mounted(path) => "only the file is mounted here: mount its folder".to_owned(),
        0 | 1 => return Ok(()),
        count => format!(
            "the file has {count} names (hard links): keep only the one that its workers have used, which \
             has the log (-wal) beside it"
        ),
    };
    if planted(Bug::SecondNameOpened) {
        return Ok(());
    }
    Err(OpenError::SeveralNames { path: path.to_owned(), what })
}

#[cfg(unix)]
fn name_count(path: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::nlink(&match std::fs::metadata(path) {
        Ok(found) => found,
        Err(_) => return 0,
    })
}

#[cfg(not(unix))]
fn name_count(_: &Path) -> u64 {
    1
}

/// Whether a file system is mounted at the file itself. False where the system does not say.
fn is_mounted(path: &Path) -> bool {
    // Names of mounts need not be UTF-8. One that is not is some other place's.
    let mounts = std::fs::read("/proc/self/mountinfo");
    mounts.is_ok_and(|mounts| has_mount(&String::from_utf8_lossy(&mounts), path))
}

fn has_mount(mounts: &str, path: &Path) -> bool {
    let place = |line: &str| line.split(' ').nth(4).map(unescaped);
    mounts.lines().filter_map(place).any(|place| Path::new(&place) == path)
}

/// Returns a path of the table of mounts, which writes blanks and backslashes as octal numbers.
fn unescaped(text: &str) -> String {
    let octal = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    octal.iter().fold(text.to_owned(), |text, (number, character)| text.replace(number, character))
}

/// The device and the number of a file.
type Identity = (u64, u64);

#[cfg(unix)]
fn identity(path: &Path) -> io::Result<Option<Identity>> {
    use std::os::unix::fs::MetadataExt;
    let found = std::fs::metadata(path)?;
    Ok(Some((found.dev(), found.ino())))
}

/// Elsewhere the system does not let anybody delete an open database.
#[cfg(not(unix))]
fn identity(_: &Path) -> io::Result<Option<Identity>> {
    Ok(None)
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::sync::Arc;
    use std::time::Duration;

    use abide_core::Namespace;
    use abide_store::conformance::{TestClock, block_on};
    use abide_store::{Answer, Error, List, Store, Submissions, Submit, Trouble, View};

    use super::*;
    use crate::fixture::{register, start_of, try_submit};
    use crate::stepped::Fate;
    use crate::{Options, SqliteStore, os};

    #[test]
    fn a_file_that_is_mounted_itself_is_found_in_the_table_of_mounts() {
        let mounts = "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
                      36 22 254:0 /srv/app.db /data/my\\040app.db rw - ext4 /dev/vda rw\n";
        for (path, is_found) in [("/data/my app.db", true), ("/data", false), ("/srv/app.db", false)] {
            assert_eq!(has_mount(mounts, Path::new(path)), is_found, "{path}");
        }
    }

    /// A way to take the file from a store.
    type Theft = fn(&Path);

    const THEFTS: [(&str, Theft); 3] = [
        ("deleted", |path| fs::remove_file(path).unwrap()),
        ("renamed", |path| fs::rename(path, path.with_extension("old")).unwrap()),
        ("replaced", |path| {
            let copy = path.with_extension("copy");
            fs::copy(path, &copy).unwrap();
            fs::rename(copy, path).unwrap();
        }),
    ];

    struct Stepped {
        folder: tempfile::TempDir,
        store: Arc<SqliteStore>,
    }

    impl Stepped {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let (path, options) = (folder.path().join("a.db"), Options::default());
            let store = SqliteStore::stepped(&path, TestClock::new(), options, || Duration::ZERO).unwrap();
            Self { folder, store }
        }

        fn path(&self) -> PathBuf {
            self.folder.path().join("a.db")
        }

        /// Starts an execution, and returns the answer.
        fn start(&self, id: &str) -> abide_store::Result<Submissions> {
            self.start_in(id, Fate::Committed)
        }

        fn start_in(&self, id: &str, fate: Fate) -> abide_store::Result<Submissions> {
            let answer: Answer<_> = self.store.submit(Submit {
                messages: vec![start_of(id)],
                born_to: None,
                alone: false,
                stretch: None,
            });
            self.store.step(fate);
            block_on(answer)
        }

        fn count(&self) -> abide_store::Result<usize> {
            Ok(block_on(self.store.list(List::of(Namespace::default(), 10)))?.items.len())
        }
    }

    fn is_told<T: std::fmt::Debug>(answer: abide_store::Result<T>) -> bool {
        let Err(Error::Unavailable { source, .. }) = answer else { return false };
        let source = source.to_string();
        source.contains("a.db\" was deleted or replaced") && source.contains("restarted")
    }

    #[test]
    fn a_store_whose_file_is_taken_away_refuses_all_work_from_the_second_look_on() {
        for (word, theft) in THEFTS {
            let world = Stepped::new();
            world.start("before").unwrap();
            world.store.look_up();
            theft(&world.path());
            world.store.look_up();
            assert!(!world.store.shared.is_file_lost(), "{word}: one look is not enough");
            world.store.look_up();
            assert!(is_told(world.start("after")), "{word}");
            assert!(is_told(world.count()), "{word}");
            let trouble = block_on(world.store.trouble()).unwrap();
            let Some(Trouble::Failing { complaint, .. }) = trouble else { panic!("{word}: {trouble:?}") };
            assert!(complaint.contains("deleted or replaced"), "{word}: {complaint}");
        }
    }

    #[test]
    fn a_file_that_is_back_at_the_next_look_was_never_gone() {
        let world = Stepped::new();
        world.start("a").unwrap();
        let aside = world.path().with_extension("aside");
        for id in ["b", "c", "d"] {
            fs::rename(world.path(), &aside).unwrap();
            world.store.look_up();
            fs::rename(&aside, world.path()).unwrap();
            world.store.look_up();
            world.start(id).unwrap();
        }
        assert_eq!(world.count().unwrap(), 4);
    }

    #[test]
    fn a_file_that_comes_back_later_stays_refused() {
        let world = Stepped::new();
        let aside = world.path().with_extension("aside");
        fs::rename(world.path(), &aside).unwrap();
        world.store.look_up();
        world.store.look_up();
        fs::rename(&aside, world.path()).unwrap();
        world.store.look_up();
        assert!(is_told(world.start("a")));
    }

    /// A new connection leads to the file that has the name now, or would create one.
    #[test]
    fn a_new_connection_is_made_only_to_the_same_file() {
        for (word, theft) in THEFTS {
            let world = Stepped::new();
            // The outcome of the commit is unknown, so the connection is given up.
            world.start_in("a", Fate::Unwritten).unwrap_err();
            theft(&world.path());
            let existed = world.path().exists();
            assert!(is_told(world.start("b")), "{word}");
            assert!(is_told(world.count()), "{word}: no reader was open");
            assert_eq!(world.path().exists(), existed, "{word}: no file is made");
        }
    }

    /// They would say that the sessions of the other file are alive, and displace their locks.
    #[test]
    fn a_store_without_its_file_keeps_no_locks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let store = SqliteStore::open(&path, TestClock::new(), Options::default()).unwrap();
        let session = register(&store, "default");
        assert_eq!(store.shared.own_sessions(), [session]);
        fs::remove_file(&path).unwrap();
        store.shared.keep_files();
        store.shared.keep_files();
        assert_eq!(store.shared.own_sessions(), []);
    }

    #[test]
    fn the_thread_of_a_store_looks_for_the_file() {
        for (read_only, is_followed) in [(false, true), (true, true), (false, false), (true, false)] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("a.db");
            let open = |read_only| {
                let options = Options { read_only, ..Options::default() };
                SqliteStore::open(&path, TestClock::new(), options).unwrap()
            };
            drop(open(false));
            let store = open(read_only);
            fs::remove_file(&path).unwrap();
            for _ in 0..1_000 {
                match (store.shared.is_file_lost(), is_followed) {
                    (true, _) => break,
                    // The loss is news to those who follow.
                    (false, true) => block_on(store.changed()).unwrap(),
                    (false, false) => os::pause(Duration::from_millis(10)),
                }
            }
            assert!(is_told(block_on(store.list(List::of(Namespace::default(), 10)))));
            assert!(read_only || is_told(try_submit(&store, start_of("a"))));
        }
    }

    #[test]
    fn a_store_in_memory_has_no_file_to_lose() {
        let store = SqliteStore::in_memory(TestClock::new(), Options::default()).unwrap();
        for _ in 0..3 {
            store.shared.keep_files();
        }
        try_submit(&store, start_of("a")).unwrap();
    }
}
