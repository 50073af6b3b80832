//! A file beside the database that is locked for as long as its session's process lives.
//!
//! The operating system gives the lock back when a process ends, however it ends: who can take the lock of another
//! session knows at once that it is dead, without waiting for its time to live. The lock decides only when a takeover
//! may start; what a dead session's process may still write is decided by epochs.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use abide_core::SessionId;

/// The lock of a session of this process.
#[derive(Debug)]
pub(crate) struct LockFile {
    path: PathBuf,
    // Closing the file gives the lock back.
    _file: File,
}

impl LockFile {
    /// Makes and locks the file of `session`.
    pub(crate) fn acquire(database: &Path, session: SessionId) -> io::Result<Self> {
        let path = path_of(database, session);
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
        file.try_lock().map_err(io::Error::from)?;
        Ok(Self { path, _file: file })
    }

    /// Deletes the file: its session has ended in the database, so nobody asks again.
    pub(crate) fn remove(self) {
        remove(&self.path);
    }
}

/// Whether the process of `session` is certainly gone. A file that is missing says nothing: it was never made, or
/// somebody cleaned up.
pub(crate) fn is_abandoned(database: &Path, session: SessionId) -> bool {
    let Ok(file) = OpenOptions::new().write(true).open(path_of(database, session)) else { return false };
    match file.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock | TryLockError::Error(_)) => false,
    }
}

/// Deletes the file of a session that has ended.
pub(crate) fn remove_of(database: &Path, session: SessionId) {
    remove(&path_of(database, session));
}

fn remove(path: &Path) {
    // A file that stays behind costs a name in the folder and nothing else.
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(?path, %error, "cannot delete the lock file of an ended session");
    }
}

fn path_of(database: &Path, session: SessionId) -> PathBuf {
    let mut name = OsString::from(database);
    name.push(format!("-session-{session}"));
    name.into()
}
