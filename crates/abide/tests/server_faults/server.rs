//! A server of a test's own.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Where Debian keeps the servers, one folder for each version.
const VERSIONS: &str = "/usr/lib/postgresql";

/// Starts the server, obeys orders, and stops it at the end of its input. That comes however we
/// end: a process that is killed closes its pipes too.
const KEEPER: &str = r#"
bin=$1 folder=$2 port=$3
trap '' INT TERM
control() { "$bin/pg_ctl" --pgdata "$folder/data" --log "$folder/log" --wait --silent "$@" >/dev/null 2>&1; }
"$bin/initdb" --pgdata "$folder/data" --username postgres --auth trust --encoding UTF8 --locale C --no-sync \
    --wal-segsize 1 >"$folder/log" 2>&1 || { cat "$folder/log" >&2; rm -rf "$folder"; exit 1; }
cat >>"$folder/data/postgresql.conf" <<EOF
port = $port
listen_addresses = '127.0.0.1'
unix_socket_directories = '$folder'
max_connections = 30
superuser_reserved_connections = 2
EOF
control start || { cat "$folder/log" >&2; rm -rf "$folder"; exit 1; }
echo ready
while read -r order; do
    case $order in
        restart) control --mode immediate restart ;;
        stop) control --mode immediate stop ;;
        start) control start ;;
        small) for process in $(pgrep -u "$(id -u)" -P "$(head -n 1 "$folder/data/postmaster.pid")") \
            $(head -n 1 "$folder/data/postmaster.pid"); do prlimit --pid "$process" --fsize=1048576: ; done ;;
        large) for process in $(pgrep -u "$(id -u)" -P "$(head -n 1 "$folder/data/postmaster.pid")") \
            $(head -n 1 "$folder/data/postmaster.pid"); do prlimit --pid "$process" --fsize=unlimited: ; done ;;
    esac
    echo done
done
control --mode immediate stop
rm -rf "$folder"
"#;

pub(crate) struct Server {
    binaries: PathBuf,
    port: u16,
    keeper: Child,
    orders: Option<ChildStdin>,
    told: BufReader<ChildStdout>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let binaries =
            binaries().expect("these tests need the package postgresql: `cargo xtask test` installs it");
        let folder =
            tempfile::Builder::new().prefix("abide-server-").tempdir().expect("a folder can be made");
        // The keeper removes it.
        let folder = folder.keep();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("it listens").port();
        drop(listener);
        let mut keeper = Command::new("sh");
        keeper.args(["-c", KEEPER, "sh"]).arg(&binaries).arg(&folder).arg(port.to_string());
        keeper.stdin(Stdio::piped()).stdout(Stdio::piped()).current_dir("/").process_group(0);
        if rustix::process::geteuid().is_root() {
            let (user, group) = unprivileged();
            chown(&folder, Some(user), Some(group)).expect("root may give a folder away");
            keeper.uid(user).gid(group);
        }
        let mut keeper = keeper.spawn().expect("there is a shell");
        let (orders, told) = (keeper.stdin.take(), keeper.stdout.take().expect("it has an output"));
        let mut server = Self { binaries, port, keeper, orders, told: BufReader::new(told) };
        server.hear("ready");
        server
    }

    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    pub(crate) fn url(&self) -> String {
        url(self.port)
    }

    /// Sends the keeper an order, and waits until it is carried out.
    pub(crate) fn order(&mut self, order: &str) {
        let orders = self.orders.as_mut().expect("the keeper listens until the end");
        writeln!(orders, "{order}").expect("the keeper lives");
        self.hear("done");
    }

    fn hear(&mut self, expected: &str) {
        let mut line = String::new();
        self.told.read_line(&mut line).expect("the keeper lives");
        assert_eq!(line.trim(), expected, "the server does not start or stop");
    }

    /// Carries out statements as an operator does, and returns the output. The server may be
    /// away.
    pub(crate) fn psql(&self, statements: &[&str]) -> String {
        let mut psql = Command::new(self.binaries.join("psql"));
        // The limits that a test sets are for others.
        psql.env("PGOPTIONS", "-c statement_timeout=0 -c idle_in_transaction_session_timeout=0");
        psql.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", &self.url()]);
        for statement in statements {
            psql.args(["--command", statement]);
        }
        let output = psql.output().expect("psql is beside the server");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.orders.take());
        let _ = self.keeper.wait();
    }
}

pub(crate) fn url(port: u16) -> String {
    format!("postgres://postgres@127.0.0.1:{port}/postgres?application_name=abide_faults")
}

/// Returns the folder of the newest server that is installed.
fn binaries() -> Option<PathBuf> {
    let versions = fs::read_dir(VERSIONS).ok()?.flatten().filter_map(|entry| {
        let version: u32 = entry.file_name().to_str()?.parse().ok()?;
        let binaries = entry.path().join("bin");
        has_server(&binaries).then_some((version, binaries))
    });
    versions.max().map(|(_, binaries)| binaries)
}

fn has_server(binaries: &Path) -> bool {
    ["postgres", "initdb", "pg_ctl", "psql"].iter().all(|program| binaries.join(program).is_file())
}

/// Returns a user and a group without rights of their own. The server refuses to run as root.
fn unprivileged() -> (u32, u32) {
    let known = fs::read_to_string("/etc/passwd").expect("it can be read");
    let found = known.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let ["postgres", _, user, group, ..] = fields.as_slice() else { return None };
        Some((user.parse().ok()?, group.parse().ok()?))
    });
    found.expect("the package postgresql makes a user of its name")
}
