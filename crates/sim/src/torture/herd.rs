//! The processes of a torture, from outside: started, killed, stopped and continued.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use super::actor::Role;

/// A process.
pub(crate) struct Process {
    child: Child,
    stdin: ChildStdin,
    pub(crate) machine: u32,
    pub(crate) is_stopped: bool,
    /// Whether it was ordered to shut down, and ends on its own.
    pub(crate) is_leaving: bool,
}

impl Process {
    /// Starts a process in a role, and waits until it is ready: from then on it dies with the
    /// thread that calls this. A process that is stopped earlier could outlive everybody.
    pub(crate) fn start(command: &[std::ffi::OsString], role: &Role) -> io::Result<Self> {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A group of its own: Ctrl-C reaches only the parent, which lets everything end. A
            // stopped process whose parent dies gets SIGCONT and SIGHUP.
            .process_group(0)
            .spawn()?;
        let stdin = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut process = Self { child, stdin, machine: role.machine, is_stopped: false, is_leaving: false };
        process.tell(role);
        // A process that ends before it is ready says nothing; the next look at it finds that.
        let stdout = process.child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        BufReader::new(stdout).read_line(&mut String::new())?;
        Ok(process)
    }

    /// Writes one line to the process. A dead process ignores it.
    pub(crate) fn tell(&mut self, what: &impl Serialize) {
        if let Ok(mut line) = serde_json::to_vec(what) {
            line.push(b'\n');
            let _ = self.stdin.write_all(&line);
        }
    }

    /// Sends SIGKILL, and waits until the process is gone.
    pub(crate) fn kill(mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(|_| ())
    }

    /// Sends SIGSTOP.
    pub(crate) fn stop(&mut self) -> io::Result<()> {
        self.is_stopped = true;
        Ok(kill_process(Pid::from_child(&self.child), Signal::STOP)?)
    }

    /// Sends SIGCONT.
    pub(crate) fn go_on(&mut self) -> io::Result<()> {
        self.is_stopped = false;
        Ok(kill_process(Pid::from_child(&self.child), Signal::CONT)?)
    }

    /// Returns the exit status, if the process has ended.
    pub(crate) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(script: &str) -> Process {
        let command = ["sh", "-c", script].map(Into::into);
        let role = Role {
            machine: 1,
            worker: None,
            url: String::new(),
            effects: std::path::PathBuf::new(),
            session_ttl_ms: 0,
            prefix: String::new(),
            seed: 0,
        };
        Process::start(&command, &role).expect("there is a shell")
    }

    #[test]
    fn a_process_that_has_started_is_ready() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("ready");
        let _process =
            start(&format!("read role; sleep 0.3; touch {}; echo ready; read order", file.display()));
        assert!(file.exists(), "it was started before it was ready");
    }

    #[test]
    fn a_process_that_ends_before_it_is_ready_is_found_dead() {
        let mut process = start("exit 3");
        let status = process.child.wait().expect("it is a child");
        assert_eq!(status.code(), Some(3));
    }
}
