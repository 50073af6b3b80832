//! A child process that the parent kills, stops and continues.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};

use crate::clock::{self, until};
use crate::roles::{ROLE, Role};

/// The id of a user without rights.
const NOBODY: u32 = 65_534;

fn this_program() -> PathBuf {
    std::env::current_exe().expect("this program has a path")
}

pub(crate) struct Process {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Process {
    /// Starts a child in a role.
    pub(crate) fn spawn(role: &Role) -> Self {
        Self::spawn_by(Command::new(this_program()), role)
    }

    /// Starts a child that gets an error instead of a signal when it writes past the limit on the
    /// size of files.
    pub(crate) fn spawn_deaf_to_limits(role: &Role) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(this_program());
        Self::spawn_by(command, role)
    }

    /// Starts a child with additions to its environment, and waits until it has opened the store.
    pub(crate) async fn spawn_with(role: &Role, environment: [(&str, &Path); 2]) -> Self {
        let mut process = Self::spawn_in(role, environment);
        process.hear("ready").await;
        process
    }

    /// Starts a child with additions to its environment.
    pub(crate) fn spawn_in(role: &Role, environment: [(&str, &Path); 2]) -> Self {
        let mut command = Command::new(this_program());
        command.envs(environment);
        Self::spawn_by(command, role)
    }

    /// Starts a child that permissions bind: as another user, if this is root. `folder` is for a
    /// copy of the program.
    pub(crate) fn spawn_as_nobody(role: &Role, folder: &Path) -> Self {
        if !rustix::process::getuid().is_root() {
            return Self::spawn(role);
        }
        let program = folder.join("program");
        std::fs::copy(this_program(), &program).expect("a copy of the program");
        let mut command = Command::new(program);
        command.uid(NOBODY).gid(NOBODY).current_dir("/");
        Self::spawn_by(command, role)
    }

    fn spawn_by(mut command: Command, role: &Role) -> Self {
        command.args(["--exact", "role", "--nocapture", "--test-threads", "1"]);
        command.env(ROLE, serde_json::to_string(role).expect("a role serializes"));
        // The child has a process group of its own: a signal from the terminal reaches only the
        // parent, which cleans up.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn().expect("a child process starts");
        let stdin = child.stdin.take().expect("it is piped");
        let stdout = child.stdout.take().expect("it is piped");
        let (sender, lines) = channel();
        clock::beside(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // The test harness of the child prints lines too.
                if let Some(word) = line.strip_prefix("@") {
                    let _ = sender.send(word.to_owned());
                }
            }
        });
        Self { child, stdin, lines }
    }

    /// Starts a child and waits until it has opened the store.
    pub(crate) async fn spawn_ready(role: &Role) -> Self {
        let mut process = Self::spawn(role);
        process.hear("ready").await;
        process
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the child says `word`, and returns the rest of that line.
    pub(crate) async fn hear(&mut self, word: &str) -> String {
        let what = format!("child {} says {word:?}", self.pid());
        until(&what, async || {
            let heard = self
                .lines
                .try_iter()
                .find_map(|line| line.strip_prefix(word).map(|rest| rest.trim().to_owned()));
            if heard.is_none()
                && let Ok(Some(status)) = self.child.try_wait()
                && !status.success()
            {
                panic!("{what}: it ended with {status}");
            }
            heard
        })
        .await
    }

    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").expect("the child listens");
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("the child is there until it is waited for");
    }

    /// Limits the size of the files that the child writes, or lifts the limit.
    pub(crate) fn limit_files(&self, bytes: Option<u64>) {
        let limit = Rlimit { current: bytes, maximum: None };
        prlimit(Some(Pid::from_child(&self.child)), Resource::Fsize, limit).expect("a limit");
    }

    /// Sends SIGSTOP, and waits until every thread has stopped.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        while !self.is_stopped() {
            std::thread::yield_now();
        }
    }

    fn is_stopped(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("a process has threads");
        let is_stopped = |stat: &str| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'));
        let mut stats = threads.flatten().map(|thread| std::fs::read_to_string(thread.path().join("stat")));
        stats.all(|stat| stat.is_ok_and(|stat| is_stopped(&stat)))
    }

    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends SIGKILL, and waits until the process is gone.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.child.wait().expect("a killed child is gone");
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_none()
    }

    /// Waits until the process has ended on its own.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let what = format!("child {} ends", self.pid());
        until(&what, async || self.child.try_wait().expect("it is our child")).await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
