//! The unfinished file of a copy, `TO-partial-PID-NUMBER`, and those that killed processes left.
//!
//! A copy locks its file for as long as its process lives. The operating system releases the lock,
//! however the process ends. A number of a process says less: two containers on one disk both have
//! a process 1, and the process that has a number now may be another one than the one that had it.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::private;

/// The ends of the names of files that SQLite makes beside a database.
const BESIDE: [&str; 3] = ["-journal", "-wal", "-shm"];

/// An unfinished copy of this process.
pub(crate) struct Partial {
    pub(crate) path: PathBuf,
    // Closing the file releases the lock. It must outlive the connection to the file: SQLite's own
    // locks end with any descriptor of the file that a process closes.
    _lock: File,
}

impl Partial {
    /// Creates and locks an empty file. No two copies share one: a copy that removed the unfinished
    /// file of another one would make the other one publish an incomplete file.
    pub(crate) fn create(to: &Path) -> io::Result<Self> {
        static COPY_COUNT: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = COPY_COUNT.fetch_add(1, Ordering::Relaxed);
            let mut path = to.as_os_str().to_owned();
            path.push(format!("-partial-{}-{number}", std::process::id()));
            let path = PathBuf::from(path);
            match private::options().write(true).create_new(true).open(&path) {
                Ok(file) => {
                    // Some file systems have no locks. Elsewhere than on Unix, a lock would keep
                    // SQLite out. A copy is as good without one.
                    let _ = if cfg!(unix) { file.try_lock() } else { Ok(()) };
                    return Ok(Self { path, _lock: file });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Removes the unfinished copies to this file whose processes are gone.
pub(crate) fn remove_leftovers(to: &Path) {
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (Some(name), Ok(entries)) = (to.file_name(), std::fs::read_dir(folder)) else { return };
    for entry in entries.flatten().filter(|entry| is_partial(name, &entry.file_name())) {
        if cfg!(unix) && is_left(&entry.path()) {
            tracing::info!(path = ?entry.path(), "removing the unfinished copy of a process that is gone");
            remove(&entry.path());
        }
    }
}

/// Removes an unfinished copy. If that fails, the next copy tries again.
pub(crate) fn remove(path: &Path) {
    for beside in BESIDE {
        let mut name = path.as_os_str().to_owned();
        name.push(beside);
        let _ = std::fs::remove_file(name);
    }
    let _ = std::fs::remove_file(path);
}

/// Whether a file of this name is an unfinished copy to `to`.
fn is_partial(to: &OsStr, file: &OsStr) -> bool {
    let rest = file.as_encoded_bytes().strip_prefix(to.as_encoded_bytes());
    let rest = rest.and_then(|rest| rest.strip_prefix(b"-partial-"));
    let numbers = rest.and_then(|rest| str::from_utf8(rest).ok()).and_then(|rest| rest.split_once('-'));
    numbers.is_some_and(|(process, number)| process.parse::<u32>().is_ok() && number.parse::<u64>().is_ok())
}

/// Whether nobody holds the lock of an unfinished copy. An empty one may be about to be locked, and
/// is left: a process locks its file before it writes the first byte.
fn is_left(path: &Path) -> bool {
    let has_content = std::fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.len() > 0);
    has_content && File::open(path).is_ok_and(|file| file.try_lock().is_ok())
}
