//! The errors of opening a store, and the meaning of SQLite's complaints to a caller.

use std::fmt;
use std::path::PathBuf;

use abide_core::Refusal;
use abide_core::codec::DecodeError;
use abide_core::planted::{Bug, planted};
use abide_store::Error;
use rusqlite::ErrorCode;

use crate::legible::Damage;

/// The reason why a database could not be opened, created, copied or restored.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The folder of the file does not exist.
    MissingFolder(PathBuf),
    /// The file does not exist, and it may not be created.
    MissingFile(PathBuf),
    /// The file exists, and it may not be overwritten.
    Exists(PathBuf),
    /// The file is missing or empty, and its log is not. SQLite would delete the log, or apply it
    /// to the next file of this name.
    LogWithoutFile {
        /// The file.
        path: PathBuf,
        /// Its log, or the index of its log.
        log: PathBuf,
    },
    /// The file has several names. The log and the locks lie beside the name by which it is opened,
    /// so that workers under two names would not know of each other.
    SeveralNames {
        /// The file.
        path: PathBuf,
        /// Its other name, or how many names it has.
        what: String,
    },
    /// The path names a folder.
    IsFolder(PathBuf),
    /// The file is no SQLite database.
    NotADatabase(PathBuf),
    /// The file is a SQLite database without abide's tables.
    NotAbide(PathBuf),
    /// The file, or its folder, cannot be written.
    ReadOnly(PathBuf),
    /// A newer version of abide has written the file.
    NewerSchema {
        /// The file.
        path: PathBuf,
        /// Its schema version.
        found: i64,
        /// The newest version that this program knows.
        known: i64,
    },
    /// The file's description of its own tables is damaged.
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damage.
        what: String,
    },
    /// The SQLite library can lose commits.
    OldLibrary {
        /// Its version number, as SQLite counts.
        found: i32,
        /// The oldest version that is safe.
        least: i32,
    },
    /// The disk has no room for what SQLite writes when it opens a file.
    Full {
        /// The file.
        path: PathBuf,
        /// The free room on its disk.
        free_bytes: u64,
        /// The complaint.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The file cannot be used for another reason.
    Unusable {
        /// The file.
        path: PathBuf,
        /// The complaint.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingFolder(path) => write!(f, "{path:?}: the folder does not exist"),
            Self::MissingFile(path) => write!(f, "{path:?}: there is no such file"),
            Self::Exists(path) => write!(f, "{path:?}: the file exists and is not overwritten"),
            Self::LogWithoutFile { path, log } if log.as_os_str().as_encoded_bytes().ends_with(b"-shm") => {
                write!(
                    f,
                    "{path:?}: the file is missing or empty, but the index of its log is there, {log:?}: \
                     another process may have the file open; end that process, or move the index away"
                )
            }
            Self::LogWithoutFile { path, log } => write!(
                f,
                "{path:?}: the file is missing or empty, but a log of it is there, {log:?}, with commits \
                 that may be nowhere else: move the log to where the file is, or move it away"
            ),
            Self::SeveralNames { path, what } => write!(
                f,
                "{path:?}: {what}; workers under different names of one file do not know of each other, and \
                 their logs damage it"
            ),
            Self::IsFolder(path) => write!(f, "{path:?}: this is a folder, not a database file"),
            Self::NotADatabase(path) => write!(f, "{path:?}: this is not an SQLite database"),
            Self::NotAbide(path) => write!(f, "{path:?}: this SQLite database has no tables of abide"),
            Self::ReadOnly(path) => write!(f, "{path:?}: the file or its folder is read-only"),
            Self::NewerSchema { path, found, known } => write!(
                f,
                "{path:?}: written by a newer abide: schema version {found}, this program knows {known}"
            ),
            Self::Damaged { path, what } => write!(f, "{path:?}: damaged: {what}"),
            Self::OldLibrary { found, least } => write!(
                f,
                "the SQLite library is version {}, but versions before {} can lose commits",
                Library(*found),
                Library(*least)
            ),
            Self::Full { path, free_bytes, source } => {
                let free = if *free_bytes == 1 { "byte is" } else { "bytes are" };
                write!(f, "{path:?}: the disk is full ({free_bytes} {free} free): {source}")
            }
            Self::Unusable { path, source } => write!(f, "{path:?}: {source}"),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Full { source, .. } | Self::Unusable { source, .. } => Some(source.as_ref()),
            _ => None,
        }
    }
}

/// A version number of SQLite, for people.
struct Library(i32);

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0 / 1_000_000, self.0 / 1_000 % 1_000, self.0 % 1_000)
    }
}

/// The meaning of a failed operation to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    Busy,
    Unavailable,
    Indeterminate,
    Corrupt,
    /// SQLite finds the file malformed: an index and its table differ, a page is damaged, or the
    /// disk did not return it. A later read may succeed.
    Malformed,
    /// The disk did not return a page.
    Unread,
    /// A newer version of abide wrote it.
    Newer,
    /// The user's own closure is to blame; trying again would do the same.
    Misuse,
}

/// A failure that several operations of one batch may share.
#[derive(Clone, Debug)]
pub(crate) struct BatchFailure {
    pub(crate) meaning: Meaning,
    pub(crate) complaint: String,
}

impl BatchFailure {
    pub(crate) fn of(error: &rusqlite::Error) -> Self {
        Self { meaning: meaning(error), complaint: complaint(error) }
    }

    /// Returns the failure of a COMMIT. SQLite has written nothing when it is busy, the disk is
    /// full or a deferred foreign key is broken, which only a transaction step can do. After any
    /// other complaint the log may or may not be on disk.
    pub(crate) fn of_commit(error: &rusqlite::Error) -> Self {
        let meaning = match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Meaning::Busy,
            Some(ErrorCode::DiskFull) if !planted(Bug::FullDiskUnknown) => Meaning::Unavailable,
            Some(ErrorCode::ConstraintViolation) if !planted(Bug::DeferredKeyUnknown) => Meaning::Misuse,
            _ if planted(Bug::UnknownCommitFailed) => Meaning::Unavailable,
            _ => Meaning::Indeterminate,
        };
        let complaint = match meaning {
            Meaning::Misuse => format!("the transaction step leaves a deferred foreign key broken: {error}"),
            _ => error.to_string(),
        };
        Self { meaning, complaint }
    }

    pub(crate) fn unavailable(complaint: impl Into<String>) -> Self {
        Self { meaning: Meaning::Unavailable, complaint: complaint.into() }
    }

    /// Returns the error of the operation `what`.
    pub(crate) fn error(&self, what: &'static str) -> Error {
        let source = || self.complaint.clone().into();
        match self.meaning {
            Meaning::Busy => Error::Busy { what },
            Meaning::Unavailable => Error::Unavailable { what, source: source() },
            Meaning::Malformed => {
                let source = format!("{}: `abide verify` tells what can be read", self.complaint);
                Error::Unread { what, source: source.into() }
            }
            Meaning::Unread => Error::Unread { what, source: source() },
            Meaning::Indeterminate => Error::Indeterminate { what, source: source() },
            Meaning::Corrupt => Error::Corrupt { what: self.complaint.clone() },
            Meaning::Newer => Error::Newer { what: self.complaint.clone() },
            Meaning::Misuse => Error::Refused(Refusal::Unsupported { what: self.complaint.clone() }),
        }
    }
}

/// Returns the complaint without its place in a statement: a complaint about a value names its
/// owner.
pub(crate) fn complaint(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::FromSqlConversionFailure(_, _, source) => source.to_string(),
        rusqlite::Error::InvalidColumnType(_, name, found) => {
            format!("its {name} is a value of another type, {found}")
        }
        other => other.to_string(),
    }
}

fn meaning(error: &rusqlite::Error) -> Meaning {
    use rusqlite::Error as Sql;
    match error {
        error if is_newer(error) => Meaning::Newer,
        Sql::FromSqlConversionFailure(..)
        | Sql::IntegralValueOutOfRange(..)
        | Sql::InvalidColumnType(..)
        | Sql::QueryReturnedNoRows
        | Sql::Utf8Error(..) => Meaning::Corrupt,
        other if is_unread_page(other) => Meaning::Unread,
        other if is_forbidden_commit(other) => Meaning::Unavailable,
        other => match other.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Meaning::Busy,
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Meaning::Malformed,
            // A retry would meet the same: a statement of ours is wrong.
            Some(
                ErrorCode::ConstraintViolation
                | ErrorCode::TypeMismatch
                | ErrorCode::TooBig
                | ErrorCode::ApiMisuse
                | ErrorCode::ParameterOutOfRange
                | ErrorCode::InternalMalfunction
                | ErrorCode::Unknown,
            ) => Meaning::Corrupt,
            _ => Meaning::Unavailable,
        },
    }
}

/// Whether a statement tried to commit on its own and was stopped, because SQLite had ended its
/// transaction.
fn is_forbidden_commit(error: &rusqlite::Error) -> bool {
    let code = rusqlite::ffi::SQLITE_CONSTRAINT_COMMITHOOK;
    error.sqlite_error().is_some_and(|error| error.extended_code == code)
}

/// Whether the disk did not return a page. Any other error of the disk concerns the file.
fn is_unread_page(error: &rusqlite::Error) -> bool {
    use rusqlite::ffi;
    const CODES: [i32; 4] = [
        ffi::SQLITE_IOERR_READ,
        ffi::SQLITE_IOERR_SHORT_READ,
        ffi::SQLITE_IOERR_DATA,
        ffi::SQLITE_IOERR_CORRUPTFS,
    ];
    error.sqlite_error().is_some_and(|error| CODES.contains(&error.extended_code))
}

/// Returns the error of `what` when no execution is to blame: the file cannot be used.
pub(crate) fn opening(what: &'static str, error: &rusqlite::Error) -> Error {
    match reading(what, error) {
        Error::Unread { what, source } => Error::Unavailable { what, source },
        other => other,
    }
}

/// Returns the error of the reading operation `what`.
pub(crate) fn reading(what: &'static str, error: &rusqlite::Error) -> Error {
    BatchFailure::of(error).error(what)
}

/// The reason why an operation stopped.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It was refused before it wrote anything: the others of its batch go on.
    Refused(Error),
    /// SQLite failed: the batch is rolled back.
    Sql(rusqlite::Error),
    /// A row makes no sense, or a user's closure broke off: the batch is rolled back.
    Broken(BatchFailure),
}

impl Stop {
    pub(crate) fn corrupt(what: impl Into<String>) -> Self {
        Self::Broken(BatchFailure { meaning: Meaning::Corrupt, complaint: what.into() })
    }

    /// Reports that an index leads to a missing row of an execution, or of its inbox.
    pub(crate) fn stale_index(key: i64) -> Self {
        let complaint = format!("an index leads to a row of execution {key} that is not there");
        let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
        Self::Sql(rusqlite::Error::SqliteFailure(code, Some(complaint)))
    }
}

impl Stop {
    /// Whether SQLite could not read a row, which says nothing about its contents.
    pub(crate) fn is_unread(&self) -> bool {
        let Self::Sql(error) = self else { return false };
        let code = error.sqlite_error_code();
        meaning(error) == Meaning::Malformed || code == Some(ErrorCode::SystemIoFailure)
    }

    /// Reports that SQLite could not read the unread messages of an execution, and not the
    /// execution itself.
    pub(crate) fn of_mail(self) -> Self {
        match &self {
            Self::Sql(error) if self.is_unread() => {
                let BatchFailure { meaning, complaint } = BatchFailure::of(error);
                Self::Broken(BatchFailure {
                    meaning,
                    complaint: format!("its mail cannot be read: {complaint}"),
                })
            }
            _ => self,
        }
    }

    /// Returns the complaint, without its meaning to a caller.
    pub(crate) fn complaint(&self) -> String {
        match self {
            Self::Refused(error) => error.to_string(),
            Self::Sql(error) => complaint(error),
            Self::Broken(failure) => failure.complaint.clone(),
        }
    }

    /// Returns the damage of a row that was read. `None` for a row that a newer program wrote: it
    /// is sound, only this program cannot read it.
    pub(crate) fn damage(&self) -> Option<String> {
        match self {
            Self::Sql(error) if meaning(error) == Meaning::Corrupt => Some(complaint(error)),
            Self::Broken(BatchFailure { meaning: Meaning::Corrupt, complaint }) => Some(complaint.clone()),
            Self::Refused(_) | Self::Sql(_) | Self::Broken(_) => None,
        }
    }

    /// Turns damage into an answer to the caller alone: nothing was written yet, and the other
    /// operations of the same transaction go on.
    pub(crate) fn aside(self) -> Self {
        match self.damage() {
            Some(what) => Self::Refused(Error::Corrupt { what }),
            None if self.is_newer() => Self::Refused(Error::from(self)),
            None => self,
        }
    }

    /// Whether it was refused because a row could not be read, by this program or by any.
    pub(crate) fn is_unreadable(&self) -> bool {
        matches!(self, Self::Refused(Error::Corrupt { .. } | Error::Newer { .. }))
    }

    /// Whether a newer program wrote the unreadable row.
    pub(crate) fn is_newer(&self) -> bool {
        match self {
            Self::Refused(_) => false,
            Self::Sql(error) => is_newer(error),
            Self::Broken(failure) => failure.meaning == Meaning::Newer,
        }
    }
}

/// Returns `None` where SQLite could not read.
pub(crate) fn read_or_not<T>(read: Result<T, Stop>) -> Result<Option<T>, Stop> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(stop) if stop.is_unread() => Ok(None),
        Err(stop) => Err(stop),
    }
}

/// Whether a newer program wrote the unreadable row.
pub(crate) fn is_newer(error: &rusqlite::Error) -> bool {
    let rusqlite::Error::FromSqlConversionFailure(_, _, source) = error else { return false };
    source.downcast_ref().is_some_and(DecodeError::is_newer)
}

impl From<rusqlite::Error> for Stop {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<Damage> for Stop {
    fn from(damage: Damage) -> Self {
        let meaning = if damage.is_newer { Meaning::Newer } else { Meaning::Corrupt };
        Self::Broken(BatchFailure { meaning, complaint: damage.what })
    }
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(Error::Refused(refusal))
    }
}

impl From<DecodeError> for Stop {
    fn from(error: DecodeError) -> Self {
        let meaning = if error.is_newer() { Meaning::Newer } else { Meaning::Corrupt };
        Self::Broken(BatchFailure { meaning, complaint: error.to_string() })
    }
}

impl From<Stop> for Error {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Refused(error) => error,
            Stop::Sql(error) => reading("read", &error),
            Stop::Broken(failure) => failure.error("read"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the error of a reading operation, and the error of opening the file.
    #[track_caller]
    fn check(code: i32, (reads, opens): (&str, &str)) {
        let error = rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
        let word = |error: Error| match error {
            Error::Busy { .. } => "busy",
            Error::Unavailable { .. } => "unavailable",
            Error::Unread { .. } => "unread",
            other => panic!("{other:?}"),
        };
        assert_eq!((word(reading("read", &error)), word(opening("read", &error))), (reads, opens));
    }

    /// What SQLite has not written can be sent again at once.
    #[test]
    fn a_commit_that_wrote_nothing_has_a_known_outcome() {
        use rusqlite::ffi;
        let rows = [
            (ffi::SQLITE_BUSY, Meaning::Busy),
            (ffi::SQLITE_FULL, Meaning::Unavailable),
            (ffi::SQLITE_CONSTRAINT_FOREIGNKEY, Meaning::Misuse),
            (ffi::SQLITE_IOERR_FSYNC, Meaning::Indeterminate),
        ];
        for (code, meaning) in rows {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            assert_eq!(BatchFailure::of_commit(&error).meaning, meaning, "{error}");
        }
    }

    #[test]
    fn a_page_that_cannot_be_read_is_told_from_a_file_that_cannot() {
        use rusqlite::ffi;
        check(ffi::SQLITE_CORRUPT, ("unread", "unavailable"));
        check(ffi::SQLITE_IOERR_READ, ("unread", "unavailable"));
        check(ffi::SQLITE_IOERR_SHORT_READ, ("unread", "unavailable"));
        check(ffi::SQLITE_IOERR_DATA, ("unread", "unavailable"));
        check(ffi::SQLITE_IOERR_CORRUPTFS, ("unread", "unavailable"));
        check(ffi::SQLITE_IOERR_SHMMAP, ("unavailable", "unavailable"));
        check(ffi::SQLITE_CANTOPEN, ("unavailable", "unavailable"));
        check(ffi::SQLITE_BUSY, ("busy", "busy"));
    }
}
