//! Keeps the write-ahead log fast and small.
//!
//! Fast: overwriting a log syncs twice as fast as extending it, so the file is filled with zeros up
//! to its usual size once it is in real use. SQLite ignores the bytes after the last valid frame,
//! because they carry no valid salt.
//!
//! Small: a background thread copies most of the log into the database file while the writer
//! continues; then the writer copies the small rest between two transactions. The log can restart
//! at its beginning only when nothing is left to copy, and with a busy writer a background thread
//! alone never gets there.

use std::cell::Cell;
use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use rusqlite::Connection;

use abide_core::planted::{Bug, planted};

use crate::batch::Batch;
use crate::error::{BatchFailure, Stop};
use crate::job::Operation;
use crate::os::Moment;
use crate::schema;
use crate::trouble;
use crate::writer::{Scheduling, WriteQueue};
use crate::{Options, counters, sql};

/// The size of a frame of the log: a page and its header.
const FRAME_BYTES: u64 = schema::PAGE_BYTES as u64 + 24;
/// The used part of the log before its file is sized: a process that writes little should leave
/// little behind.
const USED_BYTES_BEFORE_SIZING: u64 = 1 << 20;
/// The log takes at most this part of a disk, and of the room that is left on it.
const DISK_SHARE: u64 = 8;
/// The smallest size to which the log is cut down for that.
const BYTES_MAX_LEAST: u64 = 1 << 20;
/// The pause between two copies of the log that are made because there was no room.
const RELIEF_EVERY: Duration = Duration::from_secs(1);
/// The bytes that are written at once while sizing: all other writers wait for them.
const SIZING_BYTES: usize = 512 << 10;
/// The largest rest that the writer copies itself.
const REST_FRAMES_MAX: u64 = 1_024;

thread_local! {
    // A hook of SQLite is a plain function without a place for its arguments. It runs on the thread
    // that commits, which reads this right after.
    static FRAMES: Cell<u64> = const { Cell::new(0) };
}

/// The shared knowledge of the writer and the background thread about the log.
#[derive(Debug)]
pub(crate) struct Wal {
    path: PathBuf,
    frames_max: u64,
    bytes_presized: u64,
    /// The frames that are also in the database file.
    copied_frames: AtomicU64,
    /// The length of the log when the writer last copied from it.
    tried_frames: AtomicU64,
    sized: AtomicBool,
    /// When the log was last copied because there was no room.
    relieved: Mutex<Option<Moment>>,
    wanted: Mutex<Wanted>,
    wake: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
struct Wanted {
    sizing: bool,
    checkpoint: bool,
    closed: bool,
}

impl Wal {
    pub(crate) fn new(path: &Path, options: &Options) -> Self {
        let sizing = options.wal_presized_at_open && options.wal_bytes_presized > 0;
        // On a small disk a log of the usual size leaves the database file no room to grow, so that
        // nothing can be copied there.
        let share = trouble::disk_bytes(path).map_or(u64::MAX, |bytes| bytes / DISK_SHARE);
        let bytes_max = options.wal_bytes_max.min(share.max(BYTES_MAX_LEAST));
        Self {
            path: path.to_owned(),
            frames_max: if planted(Bug::LogUnbounded) {
                u64::from(u32::MAX)
            } else {
                (bytes_max / FRAME_BYTES).max(16)
            },
            bytes_presized: options.wal_bytes_presized.min(share),
            relieved: Mutex::new(None),
            copied_frames: AtomicU64::new(0),
            tried_frames: AtomicU64::new(0),
            sized: AtomicBool::new(sizing),
            wanted: Mutex::new(Wanted { sizing, ..Wanted::default() }),
            wake: Condvar::new(),
        }
    }

    /// Installs a hook that gets the length of the log at each commit of this connection.
    pub(crate) fn watch(&self, connection: &Connection) {
        connection.wal_hook(Some(|_, frames| {
            FRAMES.set(u64::try_from(frames).unwrap_or(0));
            Ok(())
        }));
    }

    /// Does the work after each commit of the writer, on its thread and outside any transaction.
    pub(crate) fn committed(&self, connection: &Connection) {
        let frames = FRAMES.replace(0);
        if frames == 0 {
            return;
        }
        counters::count_syncs(1);
        let mut copied = self.copied_frames.load(Ordering::Relaxed);
        if frames < copied {
            // The log has restarted.
            copied = 0;
            self.copied_frames.store(0, Ordering::Relaxed);
            self.tried_frames.store(0, Ordering::Relaxed);
        }
        if !self.sized.load(Ordering::Relaxed) && frames * FRAME_BYTES >= USED_BYTES_BEFORE_SIZING {
            self.sized.store(true, Ordering::Relaxed);
            self.want(|wanted| wanted.sizing = true);
        }
        let rest = frames - copied;
        let tried = self.tried_frames.load(Ordering::Relaxed);
        // A reader can keep the log from restarting for a while: do not try at every commit.
        let patient = frames >= tried + REST_FRAMES_MAX.min(self.frames_max / 4);
        let finish = frames >= self.frames_max / 2 && rest <= REST_FRAMES_MAX;
        if (finish || frames >= self.frames_max) && patient {
            self.tried_frames.store(frames, Ordering::Relaxed);
            self.checkpoint(connection);
        } else if rest >= self.frames_max / 4 {
            self.want(|wanted| wanted.checkpoint = true);
        }
    }

    /// Makes room after a transaction that found none. Frames that are copied into the database
    /// file need no room in the log any longer, and a log whose frames are all copied begins again
    /// at its start.
    pub(crate) fn relieve(&self, connection: &Connection) {
        let mut relieved = self.relieved.lock().unwrap_or_else(PoisonError::into_inner);
        if relieved.is_none_or(|last| last.elapsed() >= RELIEF_EVERY) {
            *relieved = Some(Moment::now());
            self.checkpoint(connection);
        }
    }

    /// Copies everything that can be copied without waiting for others.
    fn checkpoint(&self, connection: &Connection) {
        let copied = connection
            .prepare_cached(sql::CHECKPOINT)
            .and_then(|mut statement| statement.query_row([], |row| row.get::<_, i64>(2)));
        counters::count_syncs(counters::SYNCS_PER_CHECKPOINT);
        match copied {
            Ok(copied) => self.copied_frames.store(u64::try_from(copied).unwrap_or(0), Ordering::Relaxed),
            // Nothing is lost: the log is longer than it should be, and the next attempt follows.
            Err(error) => tracing::warn!(%error, "cannot copy the log into the database file"),
        }
    }

    fn want(&self, change: impl FnOnce(&mut Wanted)) {
        change(&mut self.wanted.lock().unwrap_or_else(PoisonError::into_inner));
        self.wake.notify_one();
    }

    pub(crate) fn close(&self) {
        self.want(|wanted| wanted.closed = true);
    }

    /// Runs the background thread until the store is closed.
    pub(crate) fn serve(&self, writes: &Arc<WriteQueue>) {
        let mut connection = None;
        loop {
            let wanted = self.next_wanted();
            if wanted.closed {
                return;
            }
            if wanted.sizing {
                self.size(writes);
            }
            if wanted.checkpoint {
                if connection.is_none() {
                    connection = schema::open_checkpointer(&self.path).ok();
                }
                connection.iter().for_each(|connection| self.checkpoint(connection));
            }
        }
    }

    fn next_wanted(&self) -> Wanted {
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        while !(wanted.closed || wanted.sizing || wanted.checkpoint) {
            wanted = self.wake.wait(wanted).unwrap_or_else(PoisonError::into_inner);
        }
        let next = *wanted;
        (wanted.sizing, wanted.checkpoint) = (false, false);
        next
    }

    /// Sizes the file of the log, one piece at a time. This thread syncs each piece: left to the
    /// next commit, all of them together would delay it by a tenth of a second.
    fn size(&self, writes: &Arc<WriteQueue>) {
        let path = log_path(&self.path);
        loop {
            let piece = SizeLog { path: path.clone(), bytes: self.bytes_presized };
            let is_more = wait_for(writes, piece);
            let synced = OpenOptions::new().write(true).open(&path).and_then(|file| file.sync_all());
            match (is_more, synced) {
                (Ok(true), Ok(())) => {}
                (Ok(false), Ok(())) => return,
                (Err(error), _) => {
                    tracing::debug!(%error, "cannot size the log; commits stay slower");
                    return;
                }
                (_, Err(error)) => {
                    tracing::debug!(%error, "cannot sync the sized log");
                    return;
                }
            }
        }
    }
}

/// Waits for the answer of an operation on a thread that has nothing else to do.
fn wait_for<O: Operation>(writes: &Arc<WriteQueue>, operation: O) -> abide_store::Result<O::Output> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut answer = writes.submit(operation, Scheduling::Queued);
    loop {
        if let Poll::Ready(outcome) = answer.as_mut().poll(&mut Context::from_waker(&waker)) {
            return outcome;
        }
        std::thread::park();
    }
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Extends the file of the log by one piece. Returns whether there is more to do.
///
/// This is an operation of the writer, because only the holder of SQLite's write lock knows that no
/// process appends frames to the file at the same moment.
struct SizeLog {
    path: PathBuf,
    bytes: u64,
}

impl Operation for SizeLog {
    type Output = bool;
    const WHAT: &'static str = "size the log";

    fn apply(&mut self, _: &mut Batch<'_>) -> Result<bool, Stop> {
        let failed = |error: std::io::Error| {
            Stop::Refused(BatchFailure::unavailable(error.to_string()).error(Self::WHAT))
        };
        let mut file = OpenOptions::new().write(true).open(&self.path).map_err(failed)?;
        let length = file.seek(SeekFrom::End(0)).map_err(failed)?;
        let missing = self.bytes.saturating_sub(length);
        if trouble::free_bytes(&self.path).is_some_and(|free| free / DISK_SHARE < missing) {
            return Err(Stop::Refused(
                BatchFailure::unavailable("the disk has little room").error(Self::WHAT),
            ));
        }
        let piece = usize::try_from(missing).unwrap_or(SIZING_BYTES).min(SIZING_BYTES);
        if piece > 0 {
            file.write_all(&vec![0; piece]).map_err(failed)?;
        }
        Ok(missing > piece as u64)
    }
}

/// Returns the path of a database's log.
pub(crate) fn log_path(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}
