//! Files that nobody but their owner can read: what users record may be secret, and a folder for programs is often open to all.

use std::fs::OpenOptions;
use std::path::Path;

/// How to open a file that is private if it is created.
pub(crate) fn options() -> OpenOptions {
    #[cfg_attr(not(unix), expect(unused_mut, reason = "elsewhere the folder decides who may read"))]
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Creates an empty file for SQLite, which gives its log and its index the same permissions. A file that is there stays as it is. Whatever is the
/// matter, SQLite meets it again and says so.
pub(crate) fn create(path: &Path) {
    let _ = options().write(true).create_new(true).open(path);
}
