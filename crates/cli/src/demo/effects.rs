//! The file of effects. Every closure appends a line each time it runs, in any process.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use abide_core::Timestamp;
use serde::{Deserialize, Serialize};

use crate::clock;

/// The file of effects.
#[derive(Clone, Debug)]
pub(super) struct Effects {
    path: PathBuf,
}

/// One line: a closure that ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Effect {
    /// The time of the run.
    pub(super) at: Timestamp,
    /// The process that ran it.
    pub(super) pid: u32,
    /// The execution that it belongs to.
    pub(super) execution: String,
    /// The step, or the whole task.
    pub(super) step: String,
}

impl Effects {
    pub(super) fn at(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Appends a line. One write of one short line reaches the file whole, and survives a kill.
    pub(super) fn append(&self, execution: &str, step: &str) -> io::Result<()> {
        let (execution, step) = (execution.to_owned(), step.to_owned());
        let effect = Effect { at: clock::now(), pid: std::process::id(), execution, step };
        let mut line = serde_json::to_string(&effect)?;
        line.push('\n');
        OpenOptions::new().create(true).append(true).open(&self.path)?.write_all(line.as_bytes())
    }

    /// Reads every line.
    pub(super) fn read(&self) -> io::Result<Vec<Effect>> {
        let text = fs::read_to_string(&self.path)?;
        text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    }
}
