//! Child processes and how long they take. The only place here that reads a clock.

use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use crate::Result;

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Runs the command to its end with our own standard streams.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().map_err(|error| format!("{}: {error}", line(command)))?;
    if status.success() { Ok(()) } else { Err(format!("`{}`: {status}", line(command)).into()) }
}

/// Waits for the end of `child`, and ends it when it takes longer than `limit`.
#[expect(clippy::disallowed_methods, reason = "a real process takes real time")]
pub(crate) fn wait_within(child: &mut Child, limit: Duration) -> Result<ExitStatus> {
    let started_at = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if started_at.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Err(format!("still running after {} s", limit.as_secs()).into());
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// What `work` returns, and how long it took.
#[expect(clippy::disallowed_methods, reason = "the duration is for a person to read")]
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let started_at = Instant::now();
    let value = work();
    (value, started_at.elapsed())
}

fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
