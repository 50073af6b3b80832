//! A PostgreSQL server for tests: started in a temporary folder, and stopped however we end.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::geteuid;

use crate::{Result, packages, process};

/// The variable that names the server to the tests.
pub(crate) const VARIABLE: &str = "ABIDE_TEST_POSTGRES";

/// Where Debian keeps the servers, one folder for each version.
const VERSIONS: &str = "/usr/lib/postgresql";

/// Where Debian keeps the pooler that tests put before the server.
const POOLER: &str = "/usr/sbin/pgbouncer";

/// The users that may run the server when we are root, which it refuses. The package brings the
/// first one.
const USERS: [&str; 2] = ["postgres", "nobody"];

/// Starts the server, and stops it at the end of its input. That comes however we end: a process
/// that is killed closes its pipes too.
const KEEPER: &str = r#"
bin=$1 folder=$2 port=$3
trap '' INT TERM
"$bin/initdb" --pgdata "$folder/data" --username postgres --auth trust --encoding UTF8 --locale C --no-sync \
    >"$folder/log" 2>&1 || { cat "$folder/log" >&2; rm -rf "$folder"; exit 1; }
"$bin/postgres" -D "$folder/data" -p "$port" -c listen_addresses=127.0.0.1 \
    -c unix_socket_directories="$folder" -c fsync=on >>"$folder/log" 2>&1 &
server=$!
until "$bin/pg_isready" --quiet --host 127.0.0.1 --port "$port"; do
    kill -0 "$server" 2>/dev/null || { cat "$folder/log" >&2; rm -rf "$folder"; exit 1; }
    sleep 0.1
done
echo ready
while read -r line; do :; done
kill -INT "$server" 2>/dev/null
wait "$server"
rm -rf "$folder"
"#;

/// Runs the command with a server that its tests can use.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let Some((program, arguments)) = words.split_first() else {
        return Err("which command? For example: cargo xtask postgres -- cargo test -p abide-postgres".into());
    };
    with_server(Command::new(program).args(arguments))
}

/// Runs `command` with the server that the variable names, or with one that is started for it.
pub(crate) fn with_server(command: &mut Command) -> Result<()> {
    let server = Server::named_or_own()?;
    process::run(command.env(VARIABLE, &server.url))
}

/// A server that tests may use.
pub(crate) struct Server {
    pub(crate) url: String,
    /// Who stops it, if it is ours.
    keeper: Option<Child>,
}

impl Server {
    /// Returns the server that the variable names, or one that is started and ends with us.
    pub(crate) fn named_or_own() -> Result<Self> {
        match env::var(VARIABLE) {
            Ok(url) => Ok(Self { url, keeper: None }),
            Err(_) => Self::start(),
        }
    }

    fn start() -> Result<Self> {
        packages::ensure("postgresql", || binaries().is_some())?;
        packages::ensure("pgbouncer", || Path::new(POOLER).is_file())?;
        let binaries = binaries().ok_or("the server is gone again")?;
        let folder = env::temp_dir().join(["abide-postgres-", &std::process::id().to_string()].concat());
        fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        // Nobody else takes it in the moment until the server does, or the server says so.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
        let mut keeper = Command::new("sh");
        keeper.args(["-c", KEEPER, "sh"]).arg(&binaries).arg(&folder).arg(&port);
        keeper.stdin(Stdio::piped()).stdout(Stdio::piped()).current_dir(env::temp_dir());
        // An interrupt from the terminal reaches us. The server ends after its clients.
        keeper.process_group(0);
        if geteuid().is_root() {
            let (user, group) = unprivileged()?;
            chown(&folder, Some(user), Some(group))?;
            keeper.uid(user).gid(group);
        }
        let mut keeper = keeper.spawn()?;
        let mut ready = String::new();
        BufReader::new(keeper.stdout.take().ok_or("the keeper has no output")?).read_line(&mut ready)?;
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
        let server = Self { url, keeper: Some(keeper) };
        if ready.trim() == "ready" { Ok(server) } else { Err("the PostgreSQL server does not start".into()) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The keeper stops at the end of its input.
        let Some(keeper) = &mut self.keeper else { return };
        drop(keeper.stdin.take());
        if let Err(error) = keeper.wait() {
            eprintln!("the keeper of the PostgreSQL server: {error}");
        }
    }
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
    ["postgres", "initdb", "pg_isready"].iter().all(|program| binaries.join(program).is_file())
}

/// Returns a user and a group without rights of their own.
fn unprivileged() -> Result<(u32, u32)> {
    let known = fs::read_to_string("/etc/passwd")?;
    let found = USERS.iter().find_map(|user| numbers_of(&known, user));
    found.ok_or_else(|| {
        format!("there is no user {}, and root may not run the server", USERS.join(" or ")).into()
    })
}

/// Returns the numbers of a user and its group, as `/etc/passwd` has them.
fn numbers_of(known: &str, user: &str) -> Option<(u32, u32)> {
    known.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, number, group, ..] = fields.as_slice() else { return None };
        (*name == user).then_some((number.parse().ok()?, group.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_its_whole_name() {
        let known =
            "root:x:0:0:root:/root:/bin/sh\npostgres2:x:7:8::/:/bin/sh\npostgres:x:101:102::/:/bin/sh\n";
        assert_eq!(numbers_of(known, "postgres"), Some((101, 102)));
        assert_eq!(numbers_of(known, "nobody"), None);
    }
}
