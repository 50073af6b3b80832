//! Effects outside of any store: a file to which every process of a torture appends lines.
//!
//! No process locks the file: one that was stopped with the lock would stop all others. The system
//! appends lines whole and one after the other; only a kill in the middle of a write tears one.
//! Each line therefore carries a checksum and begins on a line of its own. A process that wrote
//! half a line never saw its effect happen.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use abide_engine::SystemClock;
use abide_store::Clock;
use serde::{Deserialize, Serialize};

use crate::history::{Answer, Closure, Draw, Spot};

/// One effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Line {
    /// A process has begun.
    Booted { machine: u32, pid: u32, what: String },
    /// A closure began.
    Began { machine: u32, closure: Closure },
    /// A closure ended, or was given up.
    Ended { machine: u32 },
    /// A program drew a random number or a UUID.
    Drew { draw: Draw, value: u64 },
    /// A client is about to ask.
    Asked { scenario: u64, action: usize, id: Option<String> },
    /// A client got an answer.
    Answered { scenario: u64, action: usize, answer: Answer },
    /// A process was killed.
    Killed { machine: u32 },
    /// A process was stopped.
    Stopped { machine: u32 },
    /// A stopped process was continued.
    Continued { machine: u32 },
    /// A process met a violation.
    Failed { machine: u32, what: String },
}

/// A line as it stands in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Told {
    /// The time, for people: the order is that of the lines.
    pub(crate) at_us: i64,
    pub(crate) line: Line,
}

/// The file, as far as this process has read it.
pub(crate) struct Effects {
    file: File,
    /// The number of bytes that have been read.
    read_count: u64,
    run_counts: BTreeMap<Spot, u64>,
    open_counts: BTreeMap<u32, i64>,
}

impl Effects {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).read(true).append(true).open(path)?;
        Ok(Self { file, read_count: 0, run_counts: BTreeMap::new(), open_counts: BTreeMap::new() })
    }

    /// Adds a line. When this returns, every process sees it.
    pub(crate) fn append(&mut self, line: Line) -> io::Result<()> {
        let bytes = encode(&Told { at_us: SystemClock.now().as_micros(), line })?;
        // A partial write leaves a torn line, followed by the lines of others: write the line anew.
        while self.file.write(&bytes)? < bytes.len() {}
        Ok(())
    }

    /// Records that a closure begins, and returns how often it has begun in all processes.
    pub(crate) fn begin(&mut self, machine: u32, closure: Closure) -> io::Result<u64> {
        let spot = closure.spot.clone();
        self.append(Line::Began { machine, closure })?;
        // After an append, the position is the end of the appended line: later lines do not count.
        let end = self.file.stream_position()?;
        self.read_to(end)?;
        Ok(self.run_counts.get(&spot).copied().unwrap_or_default())
    }

    /// Whether a closure of the machine is under way.
    pub(crate) fn is_under_way(&mut self, machine: u32) -> io::Result<bool> {
        let end = self.file.metadata()?.len();
        self.read_to(end)?;
        Ok(self.open_counts.get(&machine).is_some_and(|count| *count > 0))
    }

    /// Counts new lines up to `end`.
    fn read_to(&mut self, end: u64) -> io::Result<()> {
        let mut bytes = vec![0; usize::try_from(end.saturating_sub(self.read_count)).unwrap_or_default()];
        self.file.seek(SeekFrom::Start(self.read_count))?;
        self.file.read_exact(&mut bytes)?;
        // A line that is being written waits for the next call.
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |index| index + 1);
        self.read_count += whole as u64;
        for told in decode(&bytes[..whole]) {
            match told.line {
                Line::Began { machine, closure } => {
                    *self.run_counts.entry(closure.spot).or_default() += 1;
                    *self.open_counts.entry(machine).or_default() += 1;
                }
                Line::Ended { machine } => *self.open_counts.entry(machine).or_default() -= 1,
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns all effects, in order.
pub(crate) fn read(path: &Path) -> io::Result<Vec<Told>> {
    Ok(decode(&std::fs::read(path)?).collect())
}

/// Encodes a line with its checksum, on a line of its own whatever precedes it.
fn encode(told: &Told) -> io::Result<Vec<u8>> {
    let json = serde_json::to_string(told)?;
    Ok(format!("\n{:016x} {json}\n", checksum(json.as_bytes())).into_bytes())
}

/// Returns the whole lines.
fn decode(bytes: &[u8]) -> impl Iterator<Item = Told> {
    bytes.split(|byte| *byte == b'\n').filter_map(|line| {
        let (sum, json) = (line.get(..16)?, line.get(17..)?);
        let sum = u64::from_str_radix(std::str::from_utf8(sum).ok()?, 16).ok()?;
        if sum == checksum(json) { serde_json::from_slice(json).ok() } else { None }
    })
}

fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spot(node: u32) -> Spot {
        Spot { id: "a".to_owned(), run: 1, node, edition: 0 }
    }

    fn closure(node: u32) -> Closure {
        Closure { spot: spot(node), key: format!("k{node}"), is_blocking: false }
    }

    fn temporary() -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("effects");
        (folder, path)
    }

    #[test]
    fn runs_are_counted_over_all_processes() {
        let (_folder, path) = temporary();
        let (mut one, mut two) = (Effects::open(&path).unwrap(), Effects::open(&path).unwrap());
        assert_eq!(one.begin(1, closure(1)).unwrap(), 1);
        assert_eq!(two.begin(2, closure(1)).unwrap(), 2);
        assert_eq!(two.begin(2, closure(2)).unwrap(), 1);
        assert_eq!(one.begin(1, closure(1)).unwrap(), 3);
        assert!(one.is_under_way(2).unwrap());
        two.append(Line::Ended { machine: 2 }).unwrap();
        assert!(one.is_under_way(2).unwrap());
        two.append(Line::Ended { machine: 2 }).unwrap();
        assert!(!one.is_under_way(2).unwrap());
    }

    #[test]
    fn a_torn_line_did_not_happen_and_spoils_no_other() {
        let (_folder, path) = temporary();
        let mut one = Effects::open(&path).unwrap();
        let torn = encode(&Told { at_us: 1, line: Line::Killed { machine: 7 } }).unwrap();
        for cut in 1..torn.len() - 1 {
            (&one.file).write_all(&torn[..cut]).unwrap();
            let nth = one.begin(1, closure(1)).unwrap();
            assert_eq!(nth, cut as u64, "after {cut} bytes of a torn line");
        }
        let lines = read(&path).unwrap();
        assert_eq!(lines.len(), torn.len() - 2);
        assert!(lines.iter().all(|told| matches!(told.line, Line::Began { machine: 1, .. })));
    }
}
