//! Stores behind a pooler that hands each transaction any of its connections: pgbouncer, in
//! transaction mode, with few connections for many clients.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use abide_postgres::PostgresStore;
use abide_store::conformance::{TestClock, block_on, bounds};

use crate::conformance::{PARALLEL, all_pass};
use crate::fixture::{Raw, Schema, options, place_of, server};

const PGBOUNCER: &str = "/usr/sbin/pgbouncer";

/// How many connections the pooler has to the server: fewer than there are clients.
const SERVER_CONNECTION_COUNT: usize = 4;

struct Pooler {
    process: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Pooler {
    fn start() -> Self {
        assert!(
            Path::new(PGBOUNCER).is_file(),
            "this test needs the package pgbouncer: run it as `cargo xtask postgres -- cargo test …`"
        );
        let folder = tempfile::tempdir().expect("a folder can be made");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("it listens").port();
        drop(listener);
        let url = server();
        let (host, server_port) = place_of(&url).rsplit_once(':').unwrap_or((place_of(&url), "5432"));
        let settings = format!(
            "[databases]\n* = host={host} port={server_port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {users}\n\
             pool_mode = transaction\ndefault_pool_size = {SERVER_CONNECTION_COUNT}\nmax_client_conn = 200\n",
            users = folder.path().join("users").display(),
        );
        let user =
            url.split_once("://").and_then(|(_, rest)| rest.split(['@', ':']).next()).unwrap_or("postgres");
        fs::write(folder.path().join("users"), format!("\"{user}\" \"\"\n")).expect("a file can be written");
        let settings_path = folder.path().join("settings");
        fs::write(&settings_path, settings).expect("a file can be written");
        let mut command = Command::new(PGBOUNCER);
        command.arg(&settings_path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if let Some((user, group)) = unprivileged(folder.path()) {
            command.uid(user).gid(group);
        }
        let process = command.spawn().expect("it can be started");
        let pooler = Self { process, port, _folder: folder };
        let mut tries = 0..1_000;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(tries.next().is_some(), "pgbouncer does not listen");
            Raw::open().run("SELECT pg_sleep(0.01)");
        }
        pooler
    }

    /// Returns the URL of a schema, through the pooler.
    fn url(&self, schema: &Schema) -> String {
        let direct = schema.url();
        direct.replace(place_of(&direct), &format!("127.0.0.1:{}", self.port)) + "&listen=off"
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns a user without rights of its own, to whom the files are given, if we are root.
fn unprivileged(folder: &Path) -> Option<(u32, u32)> {
    let known = fs::read_to_string("/etc/passwd").ok()?;
    let (user, group) = known.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let ["postgres", _, user, group, ..] = fields.as_slice() else { return None };
        Some((user.parse().ok()?, group.parse().ok()?))
    })?;
    let paths = [folder.to_owned(), folder.join("users"), folder.join("settings")];
    // Somebody who is not root runs the pooler as himself.
    paths.iter().try_for_each(|path| chown(path, Some(user), Some(group))).ok()?;
    Some((user, group))
}

/// All stores share four connections, so a statement that was prepared or a setting that stayed
/// would be found by another one, or missed.
#[test]
fn the_store_passes_every_case_through_a_pooler_in_transaction_mode() {
    let pooler = Pooler::start();
    all_pass(|schema| pooler.url(schema));
    const { assert!(PARALLEL > SERVER_CONNECTION_COUNT, "they share connections") };
}

/// Settings would plan the statements of other clients badly, or lead them to other tables.
#[test]
fn nothing_stays_in_the_connections_of_a_pooler() {
    let pooler = Pooler::start();
    let schema = Schema::new();
    let url = pooler.url(&schema);
    let store = PostgresStore::open(&url, TestClock::new(), options(bounds())).expect("it opens");
    block_on(store.verify()).expect("it can be read");
    let mut other = Raw::at(&server().replace(place_of(&server()), &format!("127.0.0.1:{}", pooler.port)));
    for _ in 0..2 * SERVER_CONNECTION_COUNT {
        let row = other.texts(
            "SELECT current_setting('search_path'), current_setting('enable_seqscan'), \
             (SELECT count(*) FROM pg_prepared_statements)",
        );
        assert_eq!(row, ["\"$user\", public", "on", "0"]);
    }
    store.close();
}
