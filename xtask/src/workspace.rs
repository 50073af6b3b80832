//! The checkout, its target directory, cargo, and the files that belong to the project.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{self, Path, PathBuf};
use std::process::Command;

use crate::Result;

pub(crate) struct Workspace {
    root: PathBuf,
    target: PathBuf,
}

impl Workspace {
    pub(crate) fn locate() -> Result<Workspace> {
        let manifest = env::var_os("CARGO_MANIFEST_DIR").ok_or("run this as `cargo xtask`")?;
        let root = Path::new(&manifest).parent().ok_or("xtask is not inside a workspace")?.to_path_buf();
        // Made absolute because our children run in `root`, where a relative path would lead
        // elsewhere.
        let target = match env::var_os("CARGO_TARGET_DIR") {
            Some(directory) => path::absolute(directory)?,
            None => root.join("target"),
        };
        Ok(Workspace { root, target })
    }

    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Returns the path of the `abide` binary that `cargo build --release` makes.
    pub(crate) fn release_binary(&self) -> PathBuf {
        self.target.join("release").join(format!("abide{}", env::consts::EXE_SUFFIX))
    }

    /// Returns a cargo command in the root of the checkout that shares our target directory.
    pub(crate) fn cargo<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Command {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = self.command(&cargo);
        command.args(arguments).env("CARGO_TARGET_DIR", &self.target);
        command
    }

    /// Lists the project's files relative to the root, with `/` between directories: files that git
    /// tracks, and files that it would track after `git add`. A new file is thus checked before its
    /// first commit and not after.
    pub(crate) fn files(&self) -> Result<Vec<String>> {
        let output = self
            .command("git".as_ref())
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .output()?;
        if !output.status.success() {
            return Err(format!("git ls-files: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        let listed = String::from_utf8(output.stdout)?;
        let mut files: Vec<String> = listed
            .split_terminator('\0')
            .filter(|file| self.root.join(file).is_file())
            .map(str::to_string)
            .collect();
        files.sort();
        files.dedup();
        Ok(files)
    }

    /// Returns the text of one of [`Workspace::files`], or `None` if it is not a text file.
    pub(crate) fn read(&self, file: &str) -> Result<Option<String>> {
        let bytes = fs::read(self.root.join(file))?;
        Ok(String::from_utf8(bytes).ok())
    }

    /// Writes one of [`Workspace::files`].
    pub(crate) fn write(&self, file: &str, text: &str) -> Result<()> {
        Ok(fs::write(self.root.join(file), text)?)
    }

    fn command(&self, program: &OsStr) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        command
    }
}
