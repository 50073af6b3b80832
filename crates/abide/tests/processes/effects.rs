//! The outside world: a file to which every run of every step appends one line.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::clock::wall_us;

/// One line: an effect outside the store.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Effect {
    pub(crate) at_us: i64,
    /// The id of the execution.
    pub(crate) id: String,
    /// The idempotency key of the step.
    pub(crate) key: String,
    pub(crate) pid: u32,
    /// The number of the process within the test.
    pub(crate) generation: u32,
    /// The place within the step.
    pub(crate) word: String,
    /// A text that no other line has.
    pub(crate) nonce: String,
}

/// An appender to the file of effects.
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

    /// Appends a line, and returns its nonce.
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
        // One write keeps the lines of several processes apart.
        (&*self.file).write_all(&line).expect("an effect is written");
        nonce
    }
}

/// Returns the length of the file, which may be growing just now.
pub(crate) fn byte_count(folder: &Path) -> u64 {
    std::fs::metadata(folder.join("effects")).map_or(0, |file| file.len())
}

/// Returns every line so far.
pub(crate) fn read(folder: &Path) -> Vec<Effect> {
    let text = std::fs::read_to_string(folder.join("effects")).unwrap_or_default();
    // The last line may be incomplete, if its process was killed.
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}
