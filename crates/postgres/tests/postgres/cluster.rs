//! A server of a test's own, which it may stop and change.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Where Debian keeps the servers, one folder for each version.
const VERSIONS: &str = "/usr/lib/postgresql";

/// A server in a temporary folder, on a free port. It ends with the test.
pub(crate) struct Cluster {
    folder: TempDir,
    port: u16,
    /// Who runs the server when we are root, which it refuses.
    user: Option<(u32, u32)>,
}

impl Cluster {
    /// Makes a cluster. It does not run yet.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("there is a folder");
        let port = TcpListener::bind("127.0.0.1:0")
            .expect("a port is free")
            .local_addr()
            .expect("it has one")
            .port();
        let user = rustix::process::geteuid().is_root().then(unprivileged);
        let cluster = Self { folder, port, user };
        cluster.own(cluster.folder.path());
        cluster.tool(
            "initdb",
            &[
                "--auth",
                "trust",
                "--username",
                "postgres",
                "--encoding",
                "UTF8",
                "--locale",
                "C",
                "--no-sync",
            ],
        );
        cluster
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Puts a line before all others of the file that says who may connect how.
    pub(crate) fn allow(&self, line: &str) {
        let path = self.data().join("pg_hba.conf");
        let rules = fs::read_to_string(&path).expect("initdb has made it");
        fs::write(&path, [line, "\n", &rules].concat()).expect("it can be written");
    }

    /// Writes a file that only the server may read.
    pub(crate) fn own(&self, path: &Path) {
        let mode = if path.is_dir() { 0o755 } else { 0o600 };
        fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("it is ours");
        if let Some((user, group)) = self.user {
            chown(path, Some(user), Some(group)).expect("root may give it away");
        }
    }

    pub(crate) fn start(&self, settings: &str) {
        let log = self.path("log");
        let socket = self.folder.path().display();
        let all = format!(
            "-p {} -c listen_addresses=127.0.0.1 -c unix_socket_directories={socket} {settings}",
            self.port
        );
        self.tool("pg_ctl", &["start", "-w", "-l", &log.display().to_string(), "-o", &all]);
    }

    pub(crate) fn stop(&self) {
        self.tool("pg_ctl", &["stop", "-w", "-m", "fast"]);
    }

    /// Runs a program as the user of the server.
    pub(crate) fn run(&self, program: &Path, arguments: &[&str]) {
        let mut command = Command::new(program);
        command.args(arguments).env("PGDATA", self.data()).current_dir(self.folder.path());
        if let Some((user, group)) = self.user {
            command.uid(user).gid(group);
        }
        let output = command.output().expect("the program is there");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        assert!(output.status.success(), "{program:?} {arguments:?}: {said}\n{log}");
    }

    fn tool(&self, name: &str, arguments: &[&str]) {
        self.run(&binaries().join(name), arguments);
    }

    pub(crate) fn port(&self) -> String {
        self.port.to_string()
    }

    pub(crate) fn url(&self, user: &str, host: &str) -> String {
        format!("postgres://{user}@{host}:{}/postgres", self.port)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.data().join("postmaster.pid").exists() {
            self.tool("pg_ctl", &["stop", "-w", "-m", "immediate"]);
        }
    }
}

fn binaries() -> PathBuf {
    let versions = fs::read_dir(VERSIONS).expect("a server is installed").flatten();
    let newest = versions.filter_map(|one| one.file_name().to_str()?.parse::<u32>().ok()).max();
    Path::new(VERSIONS).join(newest.expect("a server is installed").to_string()).join("bin")
}

/// Returns the numbers of the user that the package brings.
fn unprivileged() -> (u32, u32) {
    let known = fs::read_to_string("/etc/passwd").expect("everybody may read it");
    let line = known.lines().find(|line| line.starts_with("postgres:")).expect("the package brings a user");
    let fields: Vec<&str> = line.split(':').collect();
    (fields[2].parse().expect("a number"), fields[3].parse().expect("a number"))
}
