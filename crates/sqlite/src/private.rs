//! Files that only their owner can read: recorded data may be secret, and a folder for programs is
//! often open to all.

use std::fs::OpenOptions;
use std::path::Path;

#[cfg(unix)]
use abide_core::planted::{Bug, planted};

/// Returns options that make a file private if they create it.
pub(crate) fn options() -> OpenOptions {
    #[cfg_attr(not(unix), expect(unused_mut, reason = "elsewhere the folder decides who may read"))]
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(
        &mut options,
        if planted(Bug::FilesForAll) { 0o644 } else { 0o600 },
    );
    options
}

/// Creates an empty file for SQLite, which uses the same permissions for its log and its index. An
/// existing file stays as it is. SQLite meets any error again and reports it.
pub(crate) fn create(path: &Path) {
    let _ = options().write(true).create_new(true).open(path);
}
