//! Makes the log durable that a store finds, before its first answer.
//!
//! SQLite puts a commit into the index of the log after the sync of the commit, so readers of an
//! index never see anything that is not on disk. But the index is lost when the last process
//! detaches from it. The next one makes it anew from the log, and takes each complete commit that
//! it reads there for one that was synced. Two kinds were not:
//!
//! - Its process died between the write and the sync. A sync is all that is missing.
//! - Its sync failed. Linux then counts the pages as clean although they are not on disk, so a
//!   later sync has nothing to do, and succeeds. Only a write makes them dirty again.
//!
//! Answers that rest on such a commit are wrong after a power failure. Worse, later commits are
//! written and synced behind it, and SQLite reads a log only up to its first gap.
//!
//! So a store that can write writes the same bytes again, and syncs them. A store that only reads
//! may not write; it syncs.
//!
//! # Beside others
//!
//! Once every commit in the index is on disk, this stays so for as long as anybody is attached to
//! the index. A store that holds the lock file of a session is attached, and has been since it
//! came to know this: a session is registered after `open`, the connection of a writer is closed
//! after its locks are released, and an abandoned one when the next is attached. We are attached
//! before we look for such a lock. So if we find one, nobody made the index anew between that
//! store's knowledge and our look, and nobody will while we are here.
//!
//! To overlook a lock costs only time; to find one by mistake would break the promise. Somebody who
//! looks at the same moment has no lock that we could find, because looks share theirs. One mistake
//! is left: the kernel takes the locks of SQLite from a dying process some microseconds before
//! those of its sessions, and we may attach in between. So we sync even beside a lock, which is
//! enough if the process died before its sync. Not covered is a failed sync, followed by a death
//! and by this coincidence.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;

use abide_core::SessionId;
use abide_core::planted::{Bug, planted};
use rusqlite::Connection;

use crate::error::OpenError;
use crate::wal::log_path;
use crate::{counters, lockfile, schema, sql};

const HEADER_BYTES: usize = 32;
const FRAME_HEADER_BYTES: usize = 24;
/// The part of the log that is in memory at once.
const CHUNK_BYTES: usize = 256 << 10;

/// Makes the log of the file at `path` durable, to which `connection` is attached. Locks of the
/// sessions `own` say nothing: the connection may be the only one of the store that has them.
pub(crate) fn settle(connection: &Connection, path: &Path, own: &[SessionId]) -> Result<(), OpenError> {
    let log_path = &log_path(path);
    let explained = |error| schema::explain_io(log_path, error);
    let Some(log) = found(log_path, OpenOptions::new().read(true).write(true)).map_err(explained)? else {
        return Ok(());
    };
    if lockfile::is_any_held(path, own) {
        return sync_frames(&log).map_err(explained);
    }
    // The write lock keeps others from appending, and from beginning the log anew: these bytes
    // would overwrite theirs.
    connection.execute_batch(sql::BEGIN).map_err(|error| schema::explain(path, error))?;
    let written = write_again(&log).and_then(|()| sync_named(&log, log_path));
    let ended = connection.execute_batch(sql::ROLLBACK);
    written.map_err(explained)?;
    ended.map_err(|error| schema::explain(path, error))
}

/// Syncs the log of the file at `path`, to which a connection of the caller is attached.
pub(crate) fn sync(path: &Path) -> Result<(), OpenError> {
    let log_path = &log_path(path);
    let explained = |error| schema::explain_io(log_path, error);
    match found(log_path, OpenOptions::new().read(true)).map_err(explained)? {
        None => Ok(()),
        Some(log) if lockfile::is_any_held(path, &[]) => sync_frames(&log).map_err(explained),
        Some(log) => sync_named(&log, log_path).map_err(explained),
    }
}

/// Opens the log, if there is one that could have frames.
fn found(log_path: &Path, options: &OpenOptions) -> io::Result<Option<File>> {
    if planted(Bug::LogTrusted) {
        return Ok(None);
    }
    match options.open(log_path) {
        Ok(log) => Ok((log.metadata()?.len() > HEADER_BYTES as u64).then_some(log)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn sync_frames(log: &File) -> io::Result<()> {
    counters::count_syncs(1);
    log.sync_data()
}

/// Syncs the log and its name, which may be as new as the frames: SQLite syncs the folder with the
/// first commit of the process that created the log, which may have died in it. A session was
/// registered by a later commit than the first.
fn sync_named(log: &File, log_path: &Path) -> io::Result<()> {
    sync_frames(log)?;
    match log_path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// Writes the used part of the log over itself.
fn write_again(mut log: &File) -> io::Result<()> {
    let end = end_of_frames(log)?;
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut from = 0;
    while from < end {
        let count = usize::try_from(end - from).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        log.seek(SeekFrom::Start(from))?;
        log.read_exact(&mut chunk[..count])?;
        log.seek(SeekFrom::Start(from))?;
        log.write_all(&chunk[..count])?;
        from += count as u64;
    }
    Ok(())
}

/// Returns where the frames end that were written since the log last began anew; 0 if this
/// is no log. SQLite may read fewer of them, because it also checks their sums, and never more.
fn end_of_frames(mut log: &File) -> io::Result<u64> {
    log.rewind()?;
    let length = log.metadata()?.len();
    let mut reader = BufReader::with_capacity(CHUNK_BYTES, log);
    let mut header = [0; HEADER_BYTES];
    reader.read_exact(&mut header)?;
    let Some(page_bytes) = page_bytes(&header) else { return Ok(0) };
    let frame_bytes = FRAME_HEADER_BYTES as u64 + u64::from(page_bytes);
    let mut end = HEADER_BYTES as u64;
    while end + frame_bytes <= length {
        let mut frame = [0; FRAME_HEADER_BYTES];
        reader.read_exact(&mut frame)?;
        // The salts, which are drawn whenever the log begins anew.
        if frame[8..16] != header[16..24] {
            break;
        }
        reader.seek_relative(i64::from(page_bytes))?;
        end += frame_bytes;
    }
    Ok(end)
}

/// Returns the size of the pages in a log with this header; `None` if SQLite would not read it.
fn page_bytes(header: &[u8; HEADER_BYTES]) -> Option<u32> {
    const MAGIC: u32 = 0x377f_0682;
    let number = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    // The last bit says in which order the bytes are summed up.
    let is_log = number(0) & !1 == MAGIC;
    let page_bytes = number(8);
    (is_log && page_bytes.is_power_of_two() && (512..=65_536).contains(&page_bytes)).then_some(page_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// That of a file that abide did not make.
    const PAGE_BYTES: u64 = 4_096;

    fn frames(count: u64) -> u64 {
        HEADER_BYTES as u64 + count * (FRAME_HEADER_BYTES as u64 + PAGE_BYTES)
    }

    #[test]
    fn the_frames_of_a_log_end_where_older_ones_or_unused_bytes_begin() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let writer = Connection::open(&path).unwrap();
        let write = |sql: &str| {
            writer.execute_batch(sql).unwrap();
            let log = OpenOptions::new().read(true).write(true).open(log_path(&path)).unwrap();
            (end_of_frames(&log).unwrap(), log)
        };
        writer.query_row(sql::JOURNAL_MODE_WAL, [], |_| Ok(())).unwrap();
        let (end, log) = write("CREATE TABLE a (n); CREATE TABLE b (n); CREATE TABLE c (n)");
        assert_eq!(end, log.metadata().unwrap().len(), "all of it is in use");
        assert_eq!(end, frames((end - frames(0)) / (frames(1) - frames(0))), "a whole number of frames");
        log.set_len(end + frames(10)).unwrap();
        assert_eq!(end_of_frames(&log).unwrap(), end, "zeros are no frames");
        log.set_len(end).unwrap();
        writer.query_row(sql::CHECKPOINT, [], |_| Ok(())).unwrap();
        let (anew, log) = write("INSERT INTO a VALUES (1)");
        assert_eq!((anew, log.metadata().unwrap().len()), (frames(1), end), "older frames are left out");
        log.set_len(anew - 1).unwrap();
        assert_eq!(end_of_frames(&log).unwrap(), frames(0), "a part of a frame is none");
    }
}
