//! The outside world: a file to which every run of every step appends one line.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::clock::wall_us;

/// One line: something happened outside.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Effect {
    pub(crate) at_us: i64,
    /// Which execution.
    pub(crate) id: String,
    /// Which step.
    pub(crate) key: String,
    pub(crate) pid: u32,
    /// The how-many-th process of the test.
    pub(crate) generation: u32,
    /// Where in the step.
    pub(crate) word: String,
    /// No other line has it.
    pub(crate) nonce: String,
}

/// Appends to the file.
#[derive(Clone)]
pub(crate) struct Effects {
    file: Arc<File>,
    generation: u32,
    count: Arc<AtomicU64>,
}

impl Effects {
    pub(crate) fn open(folder: &Path, generation: u32) -> Self {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(folder.join("effects"))
            .expect("a file of effects");
        Self { file: Arc::new(file), generation, count: Arc::default() }
    }

    /// Appends a line; its nonce.
    pub(crate) fn happen(&self, id: &str, key: String, word: &str) -> String {
        let pid = std::process::id();
        let nonce = format!("{}.{pid}.{}", self.generation, self.count.fetch_add(1, Ordering::Relaxed));
        let (id, word) = (id.to_owned(), word.to_owned());
        let effect = Effect {
            at_us: wall_us(),
            id,
            key,
            pid,
            generation: self.generation,
            word,
            nonce: nonce.clone(),
        };
        let mut line = serde_json::to_vec(&effect).expect("an effect serializes");
        line.push(b'\n');
        // One write: lines of several processes do not mix.
        (&*self.file).write_all(&line).expect("an effect is written");
        nonce
    }
}

/// How much is written, perhaps just now.
pub(crate) fn byte_count(folder: &Path) -> u64 {
    std::fs::metadata(folder.join("effects")).map_or(0, |file| file.len())
}

/// Every line so far.
pub(crate) fn read(folder: &Path) -> Vec<Effect> {
    let text = std::fs::read_to_string(folder.join("effects")).unwrap_or_default();
    // The last line may be half of a killed process's.
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}
