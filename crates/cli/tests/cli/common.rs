//! The real binary, and stores for it that were made through the SDK.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use abide::prelude::*;
use serde_json::Value;

/// The output of the binary and its exit code.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    fn of(output: Output) -> Self {
        Self {
            code: output.status.code().expect("it ends by itself"),
            stdout: String::from_utf8(output.stdout).expect("text"),
            stderr: String::from_utf8(output.stderr).expect("text"),
        }
    }

    /// Returns the one JSON document on stdout.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Asserts that the command succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }

    /// Asserts this exit code, nothing on stdout, and one line on stderr.
    #[track_caller]
    pub(crate) fn refused(self, code: i32, message: &str) {
        assert_eq!((self.code, self.stdout.as_str()), (code, ""), "{self:?}");
        assert_eq!(self.stderr, format!("abide: {message}\n"));
    }
}

/// A store in a folder of its own.
pub(crate) struct TestStore {
    folder: tempfile::TempDir,
}

impl TestStore {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder") }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite:{}/app.db", self.folder().display())
    }

    /// Runs `abide` on this store.
    pub(crate) fn abide(&self, args: &[&str]) -> Ran {
        Ran::of(command(args).env("ABIDE_STORE", self.url()).output().expect("the binary runs"))
    }

    /// Runs `abide` with this text on its stdin.
    pub(crate) fn abide_with(&self, args: &[&str], stdin: impl AsRef<[u8]>) -> Ran {
        let mut command = command(args);
        command
            .env("ABIDE_STORE", self.url())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary runs");
        child.stdin.take().expect("it is piped").write_all(stdin.as_ref()).expect("it reads");
        Ran::of(child.wait_with_output().expect("it ends"))
    }

    pub(crate) async fn open(&self) -> Abide {
        Abide::builder(self.url()).worker_name("tester").park_after(ms(20)).open().await.expect("it opens")
    }
}

/// Returns a command that runs the binary without a store of its own.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_abide"));
    command.args(args).env_remove("ABIDE_STORE").env("USER", "ann").stdin(Stdio::null());
    command
}

/// Runs the binary without a store of its own.
pub(crate) fn abide(args: &[&str]) -> Ran {
    Ran::of(command(args).output().expect("the binary runs"))
}

/// Looks until the condition holds. Other processes and threads do not announce their end.
#[expect(clippy::disallowed_methods, reason = "other processes are watched in real time")]
#[track_caller]
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    const PATIENCE: Duration = Duration::from_secs(60);
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "{what} did not happen within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the status of an execution, as `abide list` prints it.
fn status(place: &TestStore, id: &str) -> Option<String> {
    let list = place.abide(&["list", "-o", "json"]).ok().json();
    let found = list.as_array()?.iter().find(|item| item["id"] == id)?;
    found["status"].as_str().map(str::to_owned)
}

pub(crate) fn until_status(place: &TestStore, id: &str, wanted: &str) {
    until(&format!("{id} is {wanted}"), || status(place, id).filter(|status| status == wanted));
}
