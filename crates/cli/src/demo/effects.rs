//! The file of effects: every closure appends a line when it runs, whoever runs it and however often.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use abide_core::Timestamp;
use serde::{Deserialize, Serialize};

use crate::clock;

/// The file.
#[derive(Clone, Debug)]
pub(super) struct Effects {
    path: PathBuf,
}

/// One line: a closure ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Effect {
    /// When.
    pub(super) at: Timestamp,
    /// In which process.
    pub(super) pid: u32,
    /// Of which execution.
    pub(super) execution: String,
    /// Which step, or the whole task.
    pub(super) step: String,
}

impl Effects {
    pub(super) fn at(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Adds a line. One write of one short line reaches the file whole, and stays when the process is killed.
    pub(super) fn append(&self, execution: &str, step: &str) -> io::Result<()> {
        let (execution, step) = (execution.to_owned(), step.to_owned());
        let effect = Effect { at: clock::now(), pid: std::process::id(), execution, step };
        let mut line = serde_json::to_string(&effect)?;
        line.push('\n');
        OpenOptions::new().create(true).append(true).open(&self.path)?.write_all(line.as_bytes())
    }

    /// Every line.
    pub(super) fn read(&self) -> io::Result<Vec<Effect>> {
        let text = fs::read_to_string(&self.path)?;
        text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    }
}
