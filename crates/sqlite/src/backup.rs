//! Backup and restore of a database that is in use.

use std::fs::File;
use std::io;
use std::path::Path;

use abide_store::Clock;
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};

use crate::answers;
use crate::error::{OpenError, Stop};
use crate::partial::{self, Partial};
use crate::store::SqliteStore;
use crate::{Options, inherited, schema, sql};

impl SqliteStore {
    /// Copies the current state of the database into a new file, while others continue to read and
    /// write. The copy is one plain file and can be opened directly. If the original may still be
    /// in use, use [`SqliteStore::restore`].
    pub fn backup(&self, to: &Path) -> Result<(), OpenError> {
        let copied = self.view_on_this_thread("backup", |view| {
            // The read transaction makes it a copy of one moment, which never has to restart.
            copy(view.connection, to, |_| Ok(())).map_err(|error| {
                // The caller wants the whole error, and only a refusal passes through unchanged.
                Stop::Refused(abide_store::Error::Unavailable { what: "backup", source: Box::new(error) })
            })
        });
        copied.map_err(|error| match error {
            abide_store::Error::Unavailable { source, .. } => match source.downcast::<OpenError>() {
                Ok(error) => *error,
                Err(source) => OpenError::Unusable { path: to.to_owned(), source },
            },
            other => OpenError::Unusable { path: to.to_owned(), source: Box::new(other) },
        })
    }

    /// Creates a new database file from a copy. It ends the sessions that were alive when the copy
    /// was made, so that others can claim their executions at once. The original, if it still runs,
    /// is another database from then on.
    pub fn restore(from: &Path, to: &Path, clock: &dyn Clock) -> Result<(), OpenError> {
        // Its log lies beside the file itself, and is synced together with its folder.
        let from = &if from.exists() { schema::resolved(from)? } else { from.to_owned() };
        // Held until the end: the last connection to close copies the log into the file, which must
        // not happen before the log is durable.
        let _checked = schema::open_read_only(from, &Options { read_only: false, ..Options::default() })?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let source =
            Connection::open_with_flags(from, flags).map_err(|error| schema::explain(from, error))?;
        inherited::settle(&source, from, &[])?;
        copy(&source, to, |copied| {
            copied.execute(sql::SESSIONS_EXPIRE_ALL, ["restored from a copy"])?;
            for key in answers::found(copied, sql::PARENTS_HELD, 0)? {
                answers::settle(copied, key)?;
            }
            copied.execute(sql::LEASES_RELEASE_ALL, [clock.now().as_micros()])?;
            Ok(())
        })
    }
}

/// Copies `source` into the new file `to`: under another name first, so that a file of that name is
/// always complete.
fn copy(
    source: &Connection,
    to: &Path,
    finish: impl FnOnce(&Connection) -> rusqlite::Result<()>,
) -> Result<(), OpenError> {
    schema::check_path(to)?;
    if to.exists() {
        return Err(OpenError::Exists(to.to_owned()));
    }
    // SQLite would also apply a journal of another database, which it writes when it makes a file.
    schema::check_log(to, &["-wal", "-shm", "-journal"])?;
    partial::remove_leftovers(to);
    let partial = Partial::create(to).map_err(|error| unusable(to, error))?;
    let copied = copy_pages(source, &partial.path, finish)
        .map_err(|error| schema::explain(to, error))
        .and_then(|()| publish(&partial.path, to));
    if copied.is_err() {
        // The remains of a failed attempt are useless.
        partial::remove(&partial.path);
    }
    copied
}

fn copy_pages(
    source: &Connection,
    partial: &Path,
    finish: impl FnOnce(&Connection) -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    let mut target = Connection::open(partial)?;
    let backup = Backup::new(source, &mut target)?;
    while backup.step(-1)? != StepResult::Done {}
    drop(backup);
    // Leave WAL mode, because the copy is one file. The change of the mode also syncs it.
    target.query_row(sql::JOURNAL_MODE_DELETE, [], |_| Ok(()))?;
    finish(&target)?;
    target.close().map_err(|(_, error)| error)
}

/// Renames the finished copy durably, unless another process took the name meanwhile.
fn publish(partial: &Path, to: &Path) -> Result<(), OpenError> {
    let unusable = |error| unusable(to, error);
    File::open(partial).and_then(|file| file.sync_all()).map_err(unusable)?;
    // A link, unlike a rename, does not overwrite.
    std::fs::hard_link(partial, to).map_err(unusable)?;
    std::fs::remove_file(partial).map_err(unusable)?;
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(unusable)
}

fn unusable(to: &Path, error: io::Error) -> OpenError {
    match error.kind() {
        io::ErrorKind::AlreadyExists => OpenError::Exists(to.to_owned()),
        _ => OpenError::Unusable { path: to.to_owned(), source: Box::new(error) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_copies_to_one_file_at_once_leave_the_first_one_whole() {
        let folder = tempfile::tempdir().unwrap();
        let source = Connection::open_in_memory().unwrap();
        source.execute_batch("CREATE TABLE numbers (n); INSERT INTO numbers VALUES (1), (2)").unwrap();
        let to = folder.path().join("copy.db");
        let slow = copy(&source, &to, |_| {
            copy(&source, &to, |_| Ok(())).unwrap();
            Ok(())
        });
        assert!(matches!(slow, Err(OpenError::Exists(_))), "{slow:?}");
        let files: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path()).collect();
        assert_eq!(files, std::slice::from_ref(&to), "nothing is left of the slow one");
        let count =
            Connection::open(&to).unwrap().query_row("SELECT count(*) FROM numbers", [], |row| row.get(0));
        assert_eq!(count, Ok(2));
    }
}
