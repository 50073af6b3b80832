//! The speed of SQLite itself on this machine: the limit that no store on it can pass.
//!
//! One table in a file of its own, with the settings of the store's writer and a log of the same
//! size made by the same means, and nothing else: no fence, no index, no queue. A benchmark puts
//! its figures beside these.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, params};

use crate::error::OpenError;
use crate::os::Moment;
use crate::wal::log_path;
use crate::{Options, schema, sql};

const TABLE_CREATE: &str = "
CREATE TABLE raw (
    id INTEGER PRIMARY KEY,
    payload BLOB NOT NULL
)";
const ROW_INSERT: &str = "
INSERT INTO raw (payload)
VALUES (?1)";
const ROWS_READ: &str = "
SELECT id, payload
FROM raw
ORDER BY id";

/// The size of the log at which it is restarted, outside the measured time.
const RESTART_AT_BYTES: u64 = 48 << 20;

/// The result of a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Commits {
    /// Commits per second.
    pub per_second: f64,
    /// The median duration of a commit.
    pub p50: Duration,
}

/// Measures commits of one row each, one after the other, for about as long as `duration`.
pub fn single_row_commits(
    folder: &Path,
    payload_bytes: usize,
    duration: Duration,
) -> Result<Commits, OpenError> {
    commits(folder, (1, payload_bytes), duration)
}

/// Measures rows per second, in commits of `rows_per_commit`, for about as long as `duration`.
pub fn rows_per_second(
    folder: &Path,
    (rows_per_commit, payload_bytes): (usize, usize),
    duration: Duration,
) -> Result<f64, OpenError> {
    let commits = commits(folder, (rows_per_commit, payload_bytes), duration)?;
    Ok(commits.per_second * rows_per_commit as f64)
}

/// Measures how long it takes to read `count` rows in their order, from the opening of the file on.
pub fn read_rows(folder: &Path, (count, payload_bytes): (usize, usize)) -> Result<Duration, OpenError> {
    let scratch = Scratch::new(folder);
    let explained = |error| schema::explain(&scratch.0, error);
    scratch.fill((count, payload_bytes)).map_err(explained)?;
    let begun = Moment::now();
    let found = scratch.read_all().map_err(explained)?;
    let took = begun.elapsed();
    assert_eq!(found, (count, count * payload_bytes), "every row is read");
    Ok(took)
}

fn commits(
    folder: &Path,
    (rows, payload_bytes): (usize, usize),
    duration: Duration,
) -> Result<Commits, OpenError> {
    let scratch = Scratch::new(folder);
    let measured = scratch.open().and_then(|connection| {
        scratch.size_log();
        measure(&connection, (rows, payload_bytes), duration)
    });
    measured.map_err(|error| schema::explain(&scratch.0, error))
}

fn measure(
    connection: &Connection,
    (rows, payload_bytes): (usize, usize),
    duration: Duration,
) -> rusqlite::Result<Commits> {
    let payload = vec![b'x'; payload_bytes];
    // A commit writes the last page of the table and the added pages, and one more now and then.
    let page_count = 2 + rows * (payload_bytes + 16) / (schema::PAGE_BYTES - 48);
    let round_count = usize::try_from(RESTART_AT_BYTES / (schema::PAGE_BYTES as u64 + 24))
        .unwrap_or(usize::MAX)
        / page_count;
    let mut took = Vec::new();
    let mut sum = Duration::ZERO;
    while sum < duration {
        for _ in 0..round_count {
            let begun = Moment::now();
            commit(connection, rows, &payload)?;
            let one = begun.elapsed();
            took.push(one);
            sum += one;
            if sum >= duration {
                break;
            }
        }
        connection.query_row(sql::CHECKPOINT, [], |_| Ok(()))?;
    }
    took.sort_unstable();
    Ok(Commits { per_second: took.len() as f64 / sum.as_secs_f64(), p50: took[took.len() / 2] })
}

fn commit(connection: &Connection, rows: usize, payload: &[u8]) -> rusqlite::Result<()> {
    let mut insert = connection.prepare_cached(ROW_INSERT)?;
    if rows == 1 {
        insert.execute([payload])?;
        return Ok(());
    }
    connection.prepare_cached(sql::BEGIN)?.execute([])?;
    for _ in 0..rows {
        insert.execute([payload])?;
    }
    connection.prepare_cached(sql::COMMIT)?.execute([])?;
    Ok(())
}

/// A database file that is removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(folder: &Path) -> Self {
        let scratch = Self(folder.join("raw.db"));
        scratch.remove();
        scratch
    }

    fn open(&self) -> rusqlite::Result<Connection> {
        let connection = Connection::open(&self.0)?;
        connection.execute_batch(sql::PAGE_SIZE)?;
        connection.query_row(sql::JOURNAL_MODE_WAL, [], |_| Ok(()))?;
        connection.execute_batch(sql::PRAGMAS)?;
        connection.execute_batch(sql::PRAGMAS_WRITER)?;
        connection.execute_batch(TABLE_CREATE)?;
        Ok(connection)
    }

    /// Sizes the log as the store does. If this fails, commits are slower, and the figures show it.
    fn size_log(&self) {
        let bytes = usize::try_from(Options::default().wal_bytes_presized).unwrap_or(0);
        let file = OpenOptions::new().append(true).open(log_path(&self.0));
        let sized = file.and_then(|mut file| file.write_all(&vec![0; bytes]).and_then(|()| file.sync_all()));
        if let Err(error) = sized {
            tracing::debug!(%error, "cannot size the log");
        }
    }

    fn fill(&self, (count, payload_bytes): (usize, usize)) -> rusqlite::Result<()> {
        let connection = self.open()?;
        let payload = vec![b'x'; payload_bytes];
        let mut left = count;
        while left > 0 {
            let rows = left.min(10_000);
            connection.execute_batch(sql::BEGIN)?;
            let mut insert = connection.prepare_cached(ROW_INSERT)?;
            for _ in 0..rows {
                insert.execute(params![payload])?;
            }
            connection.execute_batch(sql::COMMIT)?;
            left -= rows;
        }
        Ok(())
    }

    fn read_all(&self) -> rusqlite::Result<(usize, usize)> {
        let connection = Connection::open(&self.0)?;
        connection.execute_batch(sql::PRAGMAS)?;
        connection.execute_batch(sql::PRAGMAS_READER)?;
        let mut statement = connection.prepare(ROWS_READ)?;
        let mut rows = statement.query([])?;
        let (mut count, mut bytes) = (0, 0);
        while let Some(row) = rows.next()? {
            let payload: Vec<u8> = row.get(1)?;
            count += 1;
            bytes += payload.len();
        }
        Ok((count, bytes))
    }

    fn remove(&self) {
        for suffix in ["", "-wal", "-shm"] {
            let mut name = self.0.as_os_str().to_owned();
            name.push(suffix);
            // A missing file need not be removed. The next open meets a file that cannot be
            // removed.
            let _ = std::fs::remove_file(name);
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.remove();
    }
}
