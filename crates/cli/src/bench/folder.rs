//! The folder for the benchmark's files.

use std::path::{Path, PathBuf};

use crate::command_error::CommandError;
use crate::output;

/// A folder that is removed at the end.
#[derive(Debug)]
pub(super) struct BenchFolder {
    folder: tempfile::TempDir,
}

impl BenchFolder {
    /// Creates a folder in `parent`, or in the system's folder for temporary files.
    pub(super) fn new(parent: Option<&Path>) -> Result<Self, CommandError> {
        let builder = || {
            let mut builder = tempfile::Builder::new();
            builder.prefix("abide-bench-");
            builder
        };
        let folder = match parent {
            Some(parent) => builder().tempdir_in(parent),
            None => builder().tempdir(),
        };
        let folder =
            folder.map_err(|error| CommandError::failed(format!("no folder for the files: {error}")))?;
        let place = Self { folder };
        place.warn_about_memory();
        Ok(place)
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn warn_about_memory(&self) {
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
        let folder = self.folder().canonicalize().unwrap_or_else(|_| self.folder().to_owned());
        let found = mount_of(&mounts, &folder);
        if let Some(("tmpfs" | "ramfs", mount)) = found {
            output::say(format_args!(
                "warning: {mount} is memory and not a disk, where a sync costs nothing: say --dir with a folder on a disk"
            ));
        }
    }
}

/// Returns the type and the mount point of the file system that contains a folder.
fn mount_of<'a>(mounts: &'a str, folder: &Path) -> Option<(&'a str, &'a str)> {
    let mount = |line: &'a str| {
        let mut words = line.split(' ');
        let (_, path, kind) = (words.next()?, words.next()?, words.next()?);
        folder.starts_with(path).then_some((kind, path))
    };
    // The longest path is the innermost mount. Of two equal ones, the later hides the earlier.
    mounts.lines().filter_map(mount).max_by_key(|(_, path)| path.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_file_system_counts() {
        let mounts = "/dev/vda / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/vdb /tmp/disk xfs rw 0 0\n";
        let rows = [
            ("/var/x", Some(("ext4", "/"))),
            ("/tmp/x", Some(("tmpfs", "/tmp"))),
            ("/tmpx", Some(("ext4", "/"))),
            ("/tmp/disk/x", Some(("xfs", "/tmp/disk"))),
        ];
        for (folder, expected) in rows {
            assert_eq!(mount_of(mounts, Path::new(folder)), expected, "{folder}");
        }
    }
}
