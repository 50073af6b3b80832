//! The processes of a torture, from outside: started, killed, stopped and continued.

use std::io::{self, Write};
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
    /// It was told to shut down, and ends by itself.
    pub(crate) is_leaving: bool,
}

impl Process {
    /// Starts a process in a role. It dies with the thread that calls this.
    pub(crate) fn start(command: &[std::ffi::OsString], role: &Role) -> io::Result<Self> {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // A group of its own: Ctrl-C reaches only the parent, which sees to the end; and a stopped process whose parent dies is woken and hung up on.
            .process_group(0)
            .spawn()?;
        let stdin = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut process = Self { child, stdin, machine: role.machine, is_stopped: false, is_leaving: false };
        process.tell(role);
        Ok(process)
    }

    /// Writes one line to it. One that is dead hears nothing.
    pub(crate) fn tell(&mut self, what: &impl Serialize) {
        if let Ok(mut line) = serde_json::to_vec(what) {
            line.push(b'\n');
            let _ = self.stdin.write_all(&line);
        }
    }

    /// SIGKILL, and waits until the process is gone.
    pub(crate) fn kill(mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(|_| ())
    }

    /// SIGSTOP.
    pub(crate) fn stop(&mut self) -> io::Result<()> {
        self.is_stopped = true;
        Ok(kill_process(Pid::from_child(&self.child), Signal::STOP)?)
    }

    /// SIGCONT.
    pub(crate) fn go_on(&mut self) -> io::Result<()> {
        self.is_stopped = false;
        Ok(kill_process(Pid::from_child(&self.child), Signal::CONT)?)
    }

    /// How it ended, if it has.
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
