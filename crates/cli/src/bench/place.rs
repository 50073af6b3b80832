//! Where the stores of a benchmark are: in files of a folder, or in schemas of a database.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use abide_postgres::raw::RawServer;
use abide_sqlite::raw;

use super::figure::{Goals, Work};
use super::flows::PAYLOAD_BYTES;
use super::folder::BenchFolder;
use super::stopwatch::Stopwatch;
use crate::command_error::CommandError;
use crate::output;

/// The number of rows that share a commit where the works group them.
const ROWS_PER_COMMIT: usize = 100;

/// Raw limits, measured before and after a work.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Raw {
    pub(super) commits_per_second: f64,
    pub(super) commit_us: f64,
    pub(super) rows_per_second: f64,
}

#[derive(Debug)]
pub(super) enum Place {
    Folder(BenchFolder),
    Server(BenchServer),
}

impl Place {
    /// Opens the place that the store's URL names, or a folder in `folder`.
    pub(super) fn open(store: Option<&str>, folder: Option<&Path>) -> Result<Self, CommandError> {
        let on_server =
            store.filter(|url| url.starts_with("postgres://") || url.starts_with("postgresql://"));
        match (on_server, folder) {
            (Some(_), Some(_)) => {
                Err(CommandError::usage("--dir is for files, and the store is on a server"))
            }
            (Some(url), None) => Ok(Self::Server(BenchServer::open(url)?)),
            (None, folder) => Ok(Self::Folder(BenchFolder::new(folder)?)),
        }
    }

    /// Returns the URL of a store of the benchmark's own.
    pub(super) fn store(&self, name: &str) -> String {
        match self {
            Self::Folder(folder) => format!("sqlite:{}", folder.file(&format!("{name}.db")).display()),
            Self::Server(server) => server.store(name),
        }
    }

    /// Removes a store that nobody has open.
    pub(super) fn remove(&self, store: &str) -> Result<(), CommandError> {
        match self {
            Self::Folder(_) => {
                for suffix in ["", "-wal", "-shm"] {
                    // Whatever is left is removed with the folder.
                    let _ = std::fs::remove_file([file_of(store), suffix].concat());
                }
                Ok(())
            }
            Self::Server(server) => server.remove(store),
        }
    }

    /// Whether a work makes sense here.
    pub(super) fn has(&self, work: Work) -> bool {
        let of_files = [Work::RandomIds, Work::IdleRss, Work::IdleCpu, Work::SleepingRss];
        matches!(self, Self::Folder(_)) || !of_files.contains(&work)
    }

    /// Returns the goals of a figure that depend on the place.
    pub(super) fn goals(&self, in_file: Goals, on_server: Goals) -> Goals {
        match self {
            Self::Folder(_) => in_file,
            Self::Server(_) => on_server,
        }
    }

    /// Waits, after a warm-up, until the store has grown its log to its final size. A file does
    /// this once in its life, in the background, and the raw limits are measured with a log that is
    /// large from the start.
    pub(super) fn settle(&self, store: &str) {
        if matches!(self, Self::Folder(_)) {
            wait_for_log(file_of(store));
        }
    }

    /// Measures the limits of the database, for so long each.
    pub(super) fn raw(&self, duration: Duration) -> Result<Raw, CommandError> {
        let (rows, one) = ((ROWS_PER_COMMIT, PAYLOAD_BYTES), PAYLOAD_BYTES);
        let (per_second, p50, rows_per_second) = match self {
            Self::Folder(folder) => {
                let single = raw::single_row_commits(folder.folder(), one, duration)?;
                let rows = raw::rows_per_second(folder.folder(), rows, duration)?;
                (single.per_second, single.p50, rows)
            }
            Self::Server(server) => {
                let single = server.raw.single_row_commits(one, duration).map_err(unusable)?;
                let rows = server.raw.rows_per_second(rows, duration).map_err(unusable)?;
                (single.per_second, single.p50, rows)
            }
        };
        Ok(Raw { commits_per_second: per_second, commit_us: p50.as_secs_f64() * 1e6, rows_per_second })
    }

    /// Measures how long it takes to read so many rows.
    pub(super) fn read_rows(&self, count: usize) -> Result<Duration, CommandError> {
        let size = (count, PAYLOAD_BYTES);
        match self {
            Self::Folder(folder) => Ok(raw::read_rows(folder.folder(), size)?),
            Self::Server(server) => server.raw.read_rows(size).map_err(unusable),
        }
    }

    /// Returns how many bytes were written until now: by this process, or to the log of the server.
    pub(super) fn bytes_written(&self) -> Result<Option<u64>, CommandError> {
        match self {
            Self::Folder(_) => Ok(super::counts::bytes_written()),
            Self::Server(server) => Ok(Some(server.raw.wal_bytes().map_err(unusable)?)),
        }
    }
}

/// A database for the benchmark's own schemas, which are dropped at the end.
#[derive(Debug)]
pub(super) struct BenchServer {
    url: String,
    raw: RawServer,
    /// The schemas that may exist.
    schemas: Mutex<BTreeSet<String>>,
}

impl BenchServer {
    fn open(url: &str) -> Result<Self, CommandError> {
        let raw = RawServer::open(&with_schema(url, &schema("raw"))).map_err(unusable)?;
        Ok(Self { url: url.to_owned(), raw, schemas: Mutex::default() })
    }

    fn store(&self, name: &str) -> String {
        let schema = schema(name);
        let url = with_schema(&self.url, &schema);
        self.schemas.lock().unwrap_or_else(PoisonError::into_inner).insert(schema);
        url
    }

    fn remove(&self, store: &str) -> Result<(), CommandError> {
        let mut schemas = self.schemas.lock().unwrap_or_else(PoisonError::into_inner);
        let found = schemas.iter().find(|schema| with_schema(&self.url, schema) == store).cloned();
        if let Some(schema) = found {
            self.raw.drop_schema(&schema).map_err(unusable)?;
            schemas.remove(&schema);
        }
        Ok(())
    }
}

impl Drop for BenchServer {
    fn drop(&mut self) {
        let schemas = std::mem::take(self.schemas.get_mut().unwrap_or_else(PoisonError::into_inner));
        for schema in schemas {
            if let Err(error) = self.raw.drop_schema(&schema) {
                output::say(format_args!("schema {schema} is left behind: {error}"));
            }
        }
    }
}

fn unusable(error: abide_postgres::OpenError) -> CommandError {
    CommandError::new(crate::command_error::Code::Unavailable, error)
}

/// Returns a name that no other benchmark uses now.
fn schema(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
    let name: String = name.chars().map(plain).collect();
    format!("abide_bench_{}_{name}", std::process::id())
}

/// Returns the URL with another schema.
fn with_schema(url: &str, schema: &str) -> String {
    let (address, query) = url.split_once('?').unwrap_or((url, ""));
    let others = query.split('&').filter(|pair| !pair.is_empty() && !pair.starts_with("schema="));
    let own = format!("schema={schema}");
    let pairs: Vec<_> = others.chain([own.as_str()]).collect();
    format!("{address}?{}", pairs.join("&"))
}

/// Returns the file of a store in a folder.
fn file_of(store: &str) -> &str {
    store.strip_prefix("sqlite:").unwrap_or(store)
}

/// Waits until a store has grown its log to its final size, for two seconds at most.
fn wait_for_log(file: &str) {
    let log = [file, "-wal"].concat();
    let is_sized = || std::fs::metadata(&log).is_ok_and(|file| file.len() >= 64 << 20);
    let begun = Stopwatch::start();
    while !is_sized() && begun.elapsed() < Duration::from_secs(2) {
        crate::clock::pause(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_is_put_into_the_url() {
        let rows = [
            ("postgres://h/d", "postgres://h/d?schema=s"),
            ("postgres://h/d?listen=off&schema=mine", "postgres://h/d?listen=off&schema=s"),
        ];
        for (url, expected) in rows {
            assert_eq!(with_schema(url, "s"), expected);
        }
        let schema = schema("W1-latency-counts");
        assert!(schema.starts_with("abide_bench_") && schema.ends_with("_w1_latency_counts"), "{schema}");
    }

    #[test]
    fn a_server_takes_no_folder() {
        let error = Place::open(Some("postgres://h/d"), Some(Path::new("/tmp"))).unwrap_err();
        assert_eq!(error.message, "--dir is for files, and the store is on a server");
    }
}
