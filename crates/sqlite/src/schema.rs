//! Opening connections, and the way from an empty file to the current schema.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use abide_core::planted::{Bug, planted};
use abide_store::Trouble;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension};

use crate::error::OpenError;
use crate::named;
use crate::os::{self, Moment};
use crate::partial;
use crate::private;
use crate::rows::number;
use crate::step_connection::{Rules, StepConnection};
use crate::trouble;
use crate::user_transaction;
use crate::{Options, counters, sql};

/// The schema that this program writes.
pub(crate) const SCHEMA_VERSION: i64 = sql::MIGRATIONS.len() as i64;

/// Older libraries can lose commits of a write-ahead log when a checkpoint meets a restart.
const LIBRARY_VERSION_MIN: i32 = 3_051_003;

/// The size of a page of a new file, as [`sql::PAGE_SIZE`] sets it.
pub(crate) const PAGE_BYTES: usize = 2_048;

/// More than the number of statements, so each is prepared once.
const STATEMENT_COUNT_MAX: usize = 160;

/// Refuses an unsafe library.
pub(crate) fn check_library(found: i32) -> Result<(), OpenError> {
    if found >= LIBRARY_VERSION_MIN {
        return Ok(());
    }
    Err(OpenError::OldLibrary { found, least: LIBRARY_VERSION_MIN })
}

/// Opens the writer of a file, creating it and bringing it to the current schema.
pub(crate) fn open_writer(path: &Path, options: &Options) -> Result<StepConnection, OpenError> {
    check_library(rusqlite::version_number())?;
    check_path(path)?;
    // SQLite would open it, and complain only at the first write.
    if path.metadata().is_ok_and(|file| file.permissions().readonly()) {
        return Err(OpenError::ReadOnly(path.to_owned()));
    }
    if options.create {
        private::create(path);
    } else if !path.exists() {
        return Err(OpenError::MissingFile(path.to_owned()));
    }
    // The file exists by now, unless it cannot be created: then SQLite says why.
    let access = if options.create { OpenFlags::SQLITE_OPEN_CREATE } else { OpenFlags::empty() };
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | access;
    let connection = Connection::open_with_flags(path, flags).map_err(|error| explain(path, error))?;
    // Before any write: the very first one would change the journal mode.
    if check_version(&connection, path)?.is_none() && !options.create {
        return Err(OpenError::NotAbide(path.to_owned()));
    }
    let writer = set_up(connection, options, true).map_err(|error| explain(path, error))?;
    migrate(&writer.connection, path)?;
    Ok(writer)
}

/// Opens the only connection of a store in memory.
pub(crate) fn open_in_memory(options: &Options) -> Result<StepConnection, OpenError> {
    check_library(rusqlite::version_number())?;
    let path = Path::new(":memory:");
    let connection = Connection::open_in_memory().map_err(|error| explain(path, error))?;
    let writer = set_up(connection, options, false).map_err(|error| explain(path, error))?;
    migrate(&writer.connection, path)?;
    Ok(writer)
}

fn set_up(connection: Connection, options: &Options, wal: bool) -> rusqlite::Result<StepConnection> {
    counters::attach(&connection);
    connection.set_prepared_statement_cache_capacity(STATEMENT_COUNT_MAX);
    set_patience(&connection, options)?;
    connection.execute_batch(sql::PAGE_SIZE)?;
    if wal {
        begin_wal(&connection, options)?;
    }
    keep_plans(&connection)?;
    connection.execute_batch(sql::PRAGMAS)?;
    if !planted(Bug::ForeignKeysOff) {
        connection.execute_batch(sql::PRAGMAS_WRITER)?;
    }
    let rules = Arc::new(Rules::default());
    let told = Arc::clone(&rules);
    // Installed once: installing an authorizer makes every prepared statement stale.
    connection.authorizer(Some(move |context: rusqlite::hooks::AuthContext<'_>| {
        user_transaction::authorize(&told, &context)
    }))?;
    let told = Arc::clone(&rules);
    // A statement that would commit runs after the transaction has ended: SQLite ends it on its own
    // when a read fails, and a statement of the user can. Even binding a parameter can end it, so a
    // look before each statement is not enough.
    connection.commit_hook(Some(move || told.forbid_commit()))?;
    Ok(StepConnection::new(connection, rules))
}

/// Keeps bound values from changing a plan. SQLite would look at each `LIMIT ?`, and at each
/// parameter that a partial index might depend on, and would prepare the statement anew for each
/// new value: once for every claim and every look at the feed. No statement here wants that.
fn keep_plans(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(|_| ())
}

/// Switches to a write-ahead log. SQLite reads before it writes here, and refuses the right to
/// write to a connection with a read lock at once, without the busy handler: another connection
/// might wait for that reader. So this function waits itself.
fn begin_wal(connection: &Connection, options: &Options) -> rusqlite::Result<()> {
    const PAUSE: Duration = Duration::from_millis(5);
    let (began, patience) = (Moment::now(), Duration::from_millis(options.busy_ms_max));
    loop {
        match connection.query_row(sql::JOURNAL_MODE_WAL, [], |_| Ok(())) {
            Err(error) if is_busy(&error) && began.elapsed() < patience => os::pause(PAUSE),
            switched => return switched,
        }
    }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Opens one more connection to a file that the writer has prepared.
pub(crate) fn open_reader(path: &Path, options: &Options) -> rusqlite::Result<Connection> {
    let access =
        if options.read_only { OpenFlags::SQLITE_OPEN_READ_ONLY } else { OpenFlags::SQLITE_OPEN_READ_WRITE };
    let connection = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    counters::attach(&connection);
    connection.set_prepared_statement_cache_capacity(STATEMENT_COUNT_MAX);
    set_patience(&connection, options)?;
    keep_plans(&connection)?;
    connection.execute_batch(sql::PRAGMAS)?;
    connection.execute_batch(sql::PRAGMAS_READER)?;
    Ok(connection)
}

/// Opens a connection that copies the log into the database file.
pub(crate) fn open_checkpointer(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.execute_batch(sql::PRAGMAS)?;
    Ok(connection)
}

/// Opens and checks a file that will only be read.
pub(crate) fn open_read_only(path: &Path, options: &Options) -> Result<Connection, OpenError> {
    check_library(rusqlite::version_number())?;
    check_path(path)?;
    if !path.exists() {
        return Err(OpenError::MissingFile(path.to_owned()));
    }
    named::check_only_name(path)?;
    let connection = open_reader(path, options).map_err(|error| explain(path, error))?;
    match check_version(&connection, path)? {
        Some(_) => Ok(connection),
        None => Err(OpenError::NotAbide(path.to_owned())),
    }
}

/// Returns the one name of a file: locks and logs lie beside the file itself, not beside a link to
/// it.
pub(crate) fn resolved(path: &Path) -> Result<PathBuf, OpenError> {
    check_path(path)?;
    let unusable = |error: io::Error| OpenError::Unusable { path: path.to_owned(), source: Box::new(error) };
    if path.exists() {
        return path.canonicalize().map_err(unusable);
    }
    let name = path.file_name().ok_or_else(|| OpenError::IsFolder(path.to_owned()))?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = folder.canonicalize().map_err(unusable)?;
    // SQLite creates the file that a link leads to. A link to itself leads nowhere, but then its
    // metadata say so.
    match std::fs::read_link(path) {
        Ok(target) if !is_loop(path) => resolved(&folder.join(target)),
        _ => Ok(folder.join(name)),
    }
}

/// Whether the links at this path lead back to it.
fn is_loop(path: &Path) -> bool {
    std::fs::metadata(path).is_err_and(|error| error.kind() != io::ErrorKind::NotFound)
}

/// Refuses a file whose neighbours, or whose names, would lose commits.
pub(crate) fn check_file(path: &Path) -> Result<(), OpenError> {
    check_log(path, &["-wal", "-shm"])?;
    named::check_only_name(path).or_else(|_| {
        // A process that died when it published a copy leaves a second name.
        partial::remove_leftovers(path);
        named::check_only_name(path)
    })
}

/// Refuses a log whose database is not there: opening the name, or giving it to another file, would
/// lose the commits in the log, or mix them with those of the other file. The names of the logs and
/// of their indexes end with one of `ends`.
pub(crate) fn check_log(path: &Path, ends: &[&str]) -> Result<(), OpenError> {
    let has_bytes = |path: &Path| path.metadata().is_ok_and(|found| found.len() > 0);
    // The log is looked at first: a process that is about to make the file writes the log last.
    match ends.iter().map(|end| beside(path, end)).find(|log| has_bytes(log)) {
        Some(log) if !has_bytes(path) && !planted(Bug::LogTakenOver) => {
            Err(OpenError::LogWithoutFile { path: path.to_owned(), log })
        }
        Some(_) | None => Ok(()),
    }
}

/// Returns the name of a file that SQLite makes beside a database.
fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// Sets how long a connection waits for others. SQLite counts milliseconds in 32 bits.
fn set_patience(connection: &Connection, options: &Options) -> rusqlite::Result<()> {
    const MS_MAX: u64 = i32::MAX as u64;
    connection.busy_timeout(Duration::from_millis(options.busy_ms_max.min(MS_MAX)))
}

pub(crate) fn check_path(path: &Path) -> Result<(), OpenError> {
    if path.is_dir() {
        return Err(OpenError::IsFolder(path.to_owned()));
    }
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
            Err(OpenError::MissingFolder(path.to_owned()))
        }
        _ => Ok(()),
    }
}

/// The state of abide's tables in a file.
enum Schema {
    /// The file has none.
    Nothing,
    Version(i64),
    /// The file has some, and their version is missing or no number. Tables and version are created
    /// in one transaction.
    Unknown,
}

impl Schema {
    fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let found = connection.query_row(sql::META_EXISTS, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        match found {
            (0_i64, _) => return Ok(Self::Nothing),
            (_, false) => return Ok(Self::Unknown),
            (_, true) => {}
        }
        let mut version = connection.prepare(sql::META_GET)?;
        let version = version.query_row(["schema_version"], |row| number(row, 0)).optional()?;
        Ok(version.flatten().map_or(Self::Unknown, Self::Version))
    }
}

/// Whether the version of abide's tables is the one that this program creates.
pub(crate) fn is_current(connection: &Connection) -> rusqlite::Result<bool> {
    Ok(matches!(Schema::read(connection)?, Schema::Version(SCHEMA_VERSION)))
}

/// Returns the version of a file, and the one of this program.
pub(crate) fn versions(path: &Path) -> Result<(i64, i64), OpenError> {
    let connection = open_read_only(path, &Options { read_only: true, ..Options::default() })?;
    let found = check_version(&connection, path)?;
    Ok((found.unwrap_or(0), SCHEMA_VERSION))
}

/// Runs the missing steps, in one transaction: two processes that open a new file at once wait for
/// each other, and the second finds nothing to do.
fn migrate(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    let explained = |error| explain(path, error);
    if check_version(connection, path)? == Some(SCHEMA_VERSION) {
        return Ok(());
    }
    connection.execute_batch(sql::BEGIN).map_err(explained)?;
    let migrated = run_migrations(connection);
    let end = if migrated.is_ok() { sql::COMMIT } else { sql::ROLLBACK };
    let ended = connection.execute_batch(end);
    migrated.and(ended).map_err(explained)
}

fn run_migrations(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(sql::META_CREATE)?;
    let done = match Schema::read(connection)? {
        Schema::Version(found) => usize::try_from(found).unwrap_or(0),
        Schema::Nothing | Schema::Unknown => 0,
    };
    for step in sql::MIGRATIONS.iter().skip(done) {
        connection.execute_batch(step)?;
    }
    connection.execute(sql::META_SET, rusqlite::params!["schema_version", SCHEMA_VERSION])?;
    Ok(())
}

/// Returns the version of abide's tables, if the file has any. Refuses a file that a newer program
/// has written, and one that no program has.
fn check_version(connection: &Connection, path: &Path) -> Result<Option<i64>, OpenError> {
    let (path, damaged) = (path.to_owned(), |path, what| Err(OpenError::Damaged { path, what }));
    match Schema::read(connection).map_err(|error| explain(&path, error))? {
        Schema::Nothing => Ok(None),
        Schema::Version(found) if found > SCHEMA_VERSION => {
            Err(OpenError::NewerSchema { path, found, known: SCHEMA_VERSION })
        }
        Schema::Version(found) if found > 0 => Ok(Some(found)),
        Schema::Version(found) => {
            damaged(path, format!("its schema version is {found}, and there never was such a one"))
        }
        Schema::Unknown => damaged(path, "its schema version is missing, or is no number".to_owned()),
    }
}

/// Returns the meaning of SQLite's complaint about a file.
pub(crate) fn explain(path: &Path, error: rusqlite::Error) -> OpenError {
    let path = path.to_owned();
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => OpenError::NotADatabase(path),
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => OpenError::ReadOnly(path),
        // The file exists, but the files beside it cannot be created.
        Some(ErrorCode::CannotOpen) if path.is_file() => OpenError::ReadOnly(path),
        // SQLite also calls it an I/O error that a file beside the database could not grow.
        Some(ErrorCode::DiskFull | ErrorCode::SystemIoFailure) => failed(path, Box::new(error)),
        _ => OpenError::Unusable { path, source: Box::new(error) },
    }
}

/// Returns the meaning of the operating system's complaint about a file.
pub(crate) fn explain_io(path: &Path, error: io::Error) -> OpenError {
    let path = path.to_owned();
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => OpenError::ReadOnly(path),
        _ => failed(path, Box::new(error)),
    }
}

/// Distinguishes a full disk from other failures of it.
fn failed(path: PathBuf, source: Box<dyn std::error::Error + Send + Sync>) -> OpenError {
    match trouble::of_disk(&path) {
        Some(Trouble::Full { free_bytes }) => OpenError::Full { path, free_bytes, source },
        _ => OpenError::Unusable { path, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_can_lose_commits_is_refused() {
        let rows = [(3_051_002, false), (3_050_099, false), (3_051_003, true), (3_052_000, true)];
        for (found, fine) in rows {
            assert_eq!(check_library(found).is_ok(), fine, "{found}");
        }
        assert_eq!(
            check_library(3_051_002).unwrap_err().to_string(),
            "the SQLite library is version 3.51.2, but versions before 3.51.3 can lose commits"
        );
    }

    /// P2: acknowledged data has been synced. No crash of a process can show the difference, only a
    /// power failure.
    #[test]
    fn p2_every_commit_is_synced() {
        const FULL: i64 = 2;
        let folder = tempfile::tempdir().unwrap();
        let writer = open_writer(&folder.path().join("a.db"), &Options::default()).unwrap();
        let ask = |sql: &str| writer.connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
        assert_eq!(ask("PRAGMA synchronous"), FULL);
        let mode: String = writer.connection.query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap();
        assert_eq!(mode, "wal");
    }

    #[test]
    fn a_statement_is_prepared_once_whatever_is_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let writer = open_writer(&path, &Options::default()).unwrap().connection;
        let reader = open_reader(&path, &Options::default()).unwrap();
        for connection in [writer, reader] {
            for (text, parameter_count) in [(sql::READY_HEAD, 1), (sql::SHEAVES, 2)] {
                let mut statement = connection.prepare(text).unwrap();
                for bound in [7_i64, 9, 11] {
                    let bound = rusqlite::params_from_iter(std::iter::repeat_n(bound, parameter_count));
                    assert!(!statement.exists(bound).unwrap());
                }
                let prepared_again = statement.get_status(rusqlite::StatementStatus::RePrepare);
                assert_eq!(prepared_again, 0, "{text}");
            }
        }
    }

    #[test]
    fn the_bundled_library_is_safe() {
        check_library(rusqlite::version_number()).unwrap();
    }
}
