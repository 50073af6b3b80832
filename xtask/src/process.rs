//! Child processes and their durations. No other file of xtask reads a clock.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::Result;

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Runs the command to its end with our own standard streams.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().map_err(|error| format!("{}: {error}", line(command)))?;
    if status.success() { Ok(()) } else { Err(format!("`{}`: {status}", line(command)).into()) }
}

/// Waits for the end of `child`, and kills it when it takes longer than `limit`.
pub(crate) fn wait_within(child: &mut Child, limit: Duration) -> Result<ExitStatus> {
    if let Some(status) = ended_within(child, limit)? {
        return Ok(status);
    }
    child.kill()?;
    child.wait()?;
    Err(format!("still running after {} s", limit.as_secs()).into())
}

/// A process with everything that it starts. `cargo test` waits for a process of its own. If cargo
/// alone were killed, that process would outlive it and could loop for ever. The price: an
/// interrupt from the terminal does not reach the group.
pub(crate) struct Group {
    leader: Child,
}

impl Group {
    pub(crate) fn spawn(command: &mut Command) -> Result<Self> {
        let spawned = command.process_group(0).spawn();
        Ok(Self { leader: spawned.map_err(|error| format!("{}: {error}", line(command)))? })
    }

    /// Returns the status of the ended process. When it takes longer than `limit`, kills the whole
    /// group and returns `None`.
    pub(crate) fn wait_within(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        if let Some(status) = ended_within(&mut self.leader, limit)? {
            return Ok(Some(status));
        }
        // No other process has this number: ours keeps it until we wait for it.
        kill_process_group(Pid::from_child(&self.leader), Signal::KILL)?;
        self.leader.wait()?;
        Ok(None)
    }
}

/// Returns the result of `work` and its duration.
#[expect(clippy::disallowed_methods, reason = "the duration is for a person to read")]
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let started_at = Instant::now();
    let value = work();
    (value, started_at.elapsed())
}

#[expect(clippy::disallowed_methods, reason = "a real process takes real time")]
fn ended_within(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let started_at = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if started_at.elapsed() > limit {
            return Ok(None);
        }
        thread::sleep(POLL_INTERVAL);
    }
}

fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};
    use std::process::Stdio;

    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::piped());
        command
    }

    #[test]
    fn a_group_that_takes_too_long_dies_with_what_it_started() {
        let mut group = Group::spawn(&mut shell("(echo begun; sleep 5; echo survived) & wait")).unwrap();
        let mut printed = BufReader::new(group.leader.stdout.take().unwrap());
        let mut begun = String::new();
        printed.read_line(&mut begun).unwrap();
        assert_eq!(begun, "begun\n");

        assert_eq!(group.wait_within(Duration::ZERO).unwrap(), None);

        let mut rest = String::new();
        printed.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "");
    }

    #[test]
    fn a_group_that_ends_in_time_tells_how() {
        let mut group = Group::spawn(&mut shell("exit 3")).unwrap();
        let status = group.wait_within(Duration::from_secs(60)).unwrap();
        assert_eq!(status.and_then(|status| status.code()), Some(3));
    }
}
