//! A file beside the database that is locked for as long as its session's process lives.
//!
//! The operating system releases the lock when a process ends, however it ends. A process that can
//! take the lock of another session knows at once that the session is dead, without waiting for its
//! time to live. The lock decides only when a takeover may start; epochs decide what the process of
//! a dead session may still write.
//!
//! A cleanup may delete the file of a live session. A live process looks for its files every second
//! and recreates them; so if a file is missing for [`ABSENCE_MAX`], its process is gone.
//!
//! A process that was stopped beyond its time also misses its file, because the process that ended
//! its session has deleted it. It recreates the file before it learns of its end. Nobody looks for
//! such a file, so each registration of a session deletes the unlocked files of ended sessions.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use abide_core::SessionId;
use abide_core::planted::{Bug, planted};

use crate::os::Moment;
use crate::private;

/// The interval at which a live process looks for its own files.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The absence of its file after which a session is dead; never sooner.
pub(crate) const ABSENCE_MAX: Duration = Duration::from_secs(3);

/// The lock of a session of this process.
#[derive(Debug)]
pub(crate) struct LockFile {
    path: PathBuf,
    // Closing the file releases the lock.
    file: File,
}

impl LockFile {
    /// Creates and locks the file of `session`.
    pub(crate) fn acquire(database: &Path, session: SessionId) -> io::Result<Self> {
        let path = path_of(database, session);
        let mut unseen = path.clone().into_os_string();
        unseen.push("-new");
        let file = private::options().create(true).truncate(false).write(true).open(&unseen)?;
        file.try_lock().map_err(io::Error::from)?;
        // The file gets its name only when it is locked: another process that found it unlocked
        // would take the session for dead.
        std::fs::rename(&unseen, &path)?;
        Ok(Self { path, file })
    }

    /// Whether the file still has its name, so that others find its lock.
    pub(crate) fn is_found(&self) -> bool {
        match (std::fs::metadata(&self.path), self.file.metadata()) {
            (Ok(found), Ok(ours)) => is_same(&found, &ours),
            (Err(error), _) => error.kind() != io::ErrorKind::NotFound,
            (_, Err(_)) => true,
        }
    }

    /// Deletes the file: its session has ended in the database, so nobody asks again.
    pub(crate) fn remove(self) {
        remove(&self.path);
    }
}

#[cfg(unix)]
fn is_same(one: &std::fs::Metadata, other: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

#[cfg(not(unix))]
fn is_same(_: &std::fs::Metadata, _: &std::fs::Metadata) -> bool {
    true
}

/// The state of a session's process, according to its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    /// A process holds the lock, or the state is unknown.
    Life,
    /// Nobody holds the lock.
    Death,
    /// There is no file.
    Nothing,
}

/// Looks at the file of a session of any process.
pub(crate) fn look(database: &Path, session: SessionId) -> Sign {
    match probe(database, session) {
        Ok(Ok(())) => Sign::Death,
        Ok(Err(TryLockError::WouldBlock | TryLockError::Error(_))) => Sign::Life,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Sign::Nothing,
        Err(_) => Sign::Life,
    }
}

/// Whether a process certainly holds the lock of any session but `own`.
pub(crate) fn is_any_held(database: &Path, own: &[SessionId]) -> bool {
    let is_held = |session| matches!(probe(database, session), Ok(Err(TryLockError::WouldBlock)));
    let found = sessions(database).unwrap_or_default();
    found.into_iter().filter(|session| !own.contains(session)).any(is_held)
}

/// Tries to take the lock of a session, and releases it at once. It is a shared lock: an exclusive
/// one would make us look like the session's process to others who try at the same moment. A reader
/// that may not write can take it too.
fn probe(database: &Path, session: SessionId) -> io::Result<Result<(), TryLockError>> {
    let path = path_of(database, session);
    // To open something else, such as a pipe, could wait for ever.
    if !std::fs::metadata(&path)?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let file = OpenOptions::new().read(true).open(path)?;
    Ok(file.try_lock_shared())
}

/// Sessions whose files were missing, and since when.
#[derive(Debug, Default)]
pub(crate) struct Absences(HashMap<SessionId, Moment>);

impl Absences {
    /// Whether the process of a session with this sign is certainly gone.
    pub(crate) fn is_gone(&mut self, session: SessionId, sign: Sign, now: Moment) -> bool {
        match sign {
            Sign::Nothing if planted(Bug::MissingLockFileIsDeath) => true,
            Sign::Nothing => now.since(*self.0.entry(session).or_insert(now)) >= ABSENCE_MAX,
            Sign::Life | Sign::Death => {
                self.0.remove(&session);
                sign == Sign::Death
            }
        }
    }

    pub(crate) fn forget(&mut self, session: SessionId) {
        self.0.remove(&session);
    }
}

/// Returns the sessions that have files.
pub(crate) fn sessions(database: &Path) -> io::Result<Vec<SessionId>> {
    let (Some(folder), Some(name)) = (database.parent(), database.file_name()) else { return Ok(Vec::new()) };
    let mut sessions = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let file = entry?.file_name();
        let ending = file.as_encoded_bytes().strip_prefix(name.as_encoded_bytes());
        sessions.extend(ending.and_then(session_of));
    }
    Ok(sessions)
}

/// Returns the session whose lock file has this ending after the name of its database. Another
/// spelling of its number, such as `+7` or `007`, is the name of some other file, which
/// [`path_of`] never leads to.
pub(crate) fn session_of(ending: &[u8]) -> Option<SessionId> {
    let number = str::from_utf8(ending.strip_prefix(b"-session-")?).ok()?;
    let session = SessionId(number.parse().ok()?);
    (ending_of(session).as_bytes() == ending).then_some(session)
}

/// Returns the end of the name of a session's lock file.
pub(crate) fn ending_of(session: SessionId) -> String {
    format!("-session-{session}")
}

/// Deletes the file of a session that has ended.
pub(crate) fn remove_of(database: &Path, session: SessionId) {
    remove(&path_of(database, session));
}

fn remove(path: &Path) {
    // A leftover file costs a name in the folder and nothing else.
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(?path, %error, "cannot delete the lock file of an ended session");
    }
}

fn path_of(database: &Path, session: SessionId) -> PathBuf {
    let mut name = OsString::from(database);
    name.push(ending_of(session));
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: SessionId = SessionId(7);

    #[test]
    fn a_missing_file_means_death_after_three_seconds_and_never_sooner() {
        let began = Moment::now();
        let at = |millis| began.after(Duration::from_millis(millis));
        let rows = [
            (Sign::Nothing, 0, false),
            (Sign::Nothing, 2_999, false),
            // The file was recreated: its absence begins with the next look that misses it.
            (Sign::Life, 3_000, false),
            (Sign::Nothing, 4_000, false),
            (Sign::Nothing, 6_999, false),
            (Sign::Nothing, 7_000, true),
        ];
        let mut absences = Absences::default();
        for (sign, millis, gone) in rows {
            assert_eq!(absences.is_gone(SESSION, sign, at(millis)), gone, "{sign:?} after {millis} ms");
        }
        assert!(absences.is_gone(SESSION, Sign::Death, began), "who can take a lock need not wait");
    }

    #[test]
    fn what_stands_in_a_lock_file_says_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("a.db");
        for content in [&b""[..], &[0xff; 4_096], b"7\n", b"alive"] {
            std::fs::write(path_of(&database, SESSION), content).unwrap();
            assert_eq!(look(&database, SESSION), Sign::Death);
            let lock = LockFile::acquire(&database, SESSION).unwrap();
            assert_eq!(look(&database, SESSION), Sign::Life);
            lock.remove();
        }
        std::fs::create_dir(path_of(&database, SESSION)).unwrap();
        assert_eq!(look(&database, SESSION), Sign::Life, "nothing can be told by what is no file");
    }

    #[test]
    fn only_a_name_that_the_store_writes_is_the_name_of_a_lock_file() {
        let greatest = format!("-session-{}", u64::MAX);
        let names = [("-session-0", 0), ("-session-7", 7), ("-session-10", 10), (&greatest, u64::MAX)];
        for (name, number) in names {
            assert_eq!(session_of(name.as_bytes()), Some(SessionId(number)), "{name}");
        }
        let others =
            ["+5", "007", "00", "-0", "-5", " 5", "5 ", "", "+", "5-new", "0x5", "18446744073709551616"];
        for other in others {
            assert_eq!(session_of(format!("-session-{other}").as_bytes()), None, "{other:?}");
        }
        for other in [&b""[..], b"7", b"-wal", b"session-7", b"-session-\xff", b"--session-7"] {
            assert_eq!(session_of(other), None, "{other:?}");
        }
    }

    #[test]
    fn only_the_lock_files_of_the_database_are_found_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("a.db");
        for name in ["a.db", "a.db-session-7", "a.db-session-+7", "a.db-session-07", "b.db-session-8"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(sessions(&database).unwrap(), [SESSION]);
    }

    #[test]
    fn who_looks_is_not_taken_for_the_process_of_the_session() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("a.db");
        drop(LockFile::acquire(&database, SESSION).unwrap());
        let other_look = OpenOptions::new().read(true).open(path_of(&database, SESSION)).unwrap();
        other_look.try_lock_shared().unwrap();
        assert_eq!(look(&database, SESSION), Sign::Death);
        assert!(!is_any_held(&database, &[]));
        drop(other_look);
        let _lock = LockFile::acquire(&database, SESSION).unwrap();
        assert!(is_any_held(&database, &[]));
        assert!(!is_any_held(&database, &[SESSION]), "its own lock tells a store nothing");
    }

    #[test]
    fn a_lock_file_is_found_until_it_is_deleted_or_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("a.db");
        assert_eq!(look(&database, SESSION), Sign::Nothing);
        let lock = LockFile::acquire(&database, SESSION).unwrap();
        assert!(lock.is_found());
        assert_eq!(look(&database, SESSION), Sign::Life);
        std::fs::remove_file(&lock.path).unwrap();
        assert!(!lock.is_found());
        std::fs::write(&lock.path, "").unwrap();
        assert!(!lock.is_found(), "another file has its name");
        let anew = LockFile::acquire(&database, SESSION).unwrap();
        assert!(anew.is_found());
        drop(lock);
        assert_eq!(look(&database, SESSION), Sign::Life);
        drop(anew);
        assert_eq!(look(&database, SESSION), Sign::Death);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "one name is left");
    }
}
