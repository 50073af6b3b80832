//! Places that cannot be a store are refused with an explanation, and left as they were.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use abide::prelude::*;
use abide::rusqlite::Connection;

use crate::in_turn;
use crate::look;
use crate::process::Process;
use crate::roles::{Kind, Role};

/// A place that cannot be opened, and the words that the error must contain.
struct Case {
    name: &'static str,
    url: String,
    words: Vec<String>,
}

#[test]
fn what_cannot_be_a_store_is_refused_by_name_and_left_as_it_was() {
    in_turn(async {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path();
        let mut problems = Vec::new();
        for case in cases(path) {
            let before = contents(path);
            for (way, opened) in
                [("open", Abide::open(&case.url).await), ("client", Abide::client(&case.url).await)]
            {
                match opened {
                    Ok(abide) => {
                        abide.shutdown().await;
                        problems.push(format!("{}: {way} succeeds", case.name));
                    }
                    Err(error) => problems.extend(wrong(&case, way, &error)),
                }
                if contents(path) != before {
                    let after: Vec<_> = contents(path).into_keys().collect();
                    problems.push(format!("{}: {way} left a trace: {after:?}", case.name));
                }
            }
        }
        assert!(problems.is_empty(), "{problems:#?}");
    });
}

fn wrong(case: &Case, way: &str, error: &ClientError) -> Vec<String> {
    let text = error.to_string();
    println!("{} by {way}: {text}", case.name);
    let missing = case.words.iter().filter(|word| !text.contains(word.as_str()));
    let mut problems: Vec<String> =
        missing.map(|word| format!("{}: {way} does not say {word:?}: {text}", case.name)).collect();
    if !matches!(error, ClientError::Open { .. }) {
        problems.push(format!("{}: {way} gives {error:?}", case.name));
    }
    problems
}

fn cases(folder: &Path) -> Vec<Case> {
    let at = |name: &str| folder.join(name);
    let url = |path: &Path| format!("sqlite:{}", path.display());
    std::fs::write(at("letter.txt"), "Dear reader,\nthis is no database. ".repeat(200)).expect("a letter");
    std::fs::create_dir(at("folder.db")).expect("a folder");
    newer(&at("newer.db"), "PRAGMA journal_mode = WAL");
    newer(&at("newer-delete.db"), "PRAGMA journal_mode = DELETE");
    let case = |name, url: String, words: &[&str]| Case {
        name,
        url,
        words: words.iter().map(|word| (*word).to_owned()).collect(),
    };
    vec![
        case("a missing folder", url(&at("nowhere/app.db")), &["nowhere/app.db", "folder does not exist"]),
        case("a letter", url(&at("letter.txt")), &["letter.txt", "not an SQLite database"]),
        case("a folder", url(&at("folder.db")), &["folder.db", "this is a folder"]),
        case("an unknown scheme", "mysql://localhost/app".to_owned(), &["mysql", "unknown"]),
        case("nothing", String::new(), &["empty"]),
        case("a newer schema", url(&at("newer.db")), &["newer.db", "newer abide", "999"]),
        case(
            "a newer schema without a log",
            url(&at("newer-delete.db")),
            &["newer-delete.db", "newer abide", "999"],
        ),
    ]
}

/// Makes a database as a later abide would write it.
fn newer(path: &Path, journal_mode: &str) {
    let connection = Connection::open(path).expect("a database");
    connection.query_row(journal_mode, [], |_| Ok(())).expect("a mode");
    let sql = "CREATE TABLE abide_meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
               INSERT INTO abide_meta VALUES ('schema_version', 999);";
    connection.execute_batch(sql).expect("a schema");
}

/// Returns every file below a folder, with its contents.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(contents(&path));
            found.insert(path, Vec::new());
        } else {
            let bytes = std::fs::read(&path).expect("a file");
            found.insert(path, bytes);
        }
    }
    found
}

/// A way to keep a store from being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ban {
    /// Nobody may write the file; others may be made beside it.
    File,
    /// Nobody may make files beside it.
    Folder,
    /// The file system is mounted read-only, if this is root.
    Mount,
}

#[test]
fn a_read_only_file_is_refused_by_name_and_left_as_it_was() {
    in_turn(async {
        let mut problems = Vec::new();
        for ban in [Ban::File, Ban::Folder, Ban::Mount] {
            problems.extend(read_only(ban).await);
        }
        assert!(problems.is_empty(), "{problems:#?}");
    });
}

async fn read_only(ban: Ban) -> Vec<String> {
    let outer = tempfile::tempdir().expect("a folder");
    let folder = outer.path().join("data");
    std::fs::create_dir(&folder).expect("a folder");
    assert!(run("chmod", &["755", &outer.path().display().to_string()]), "permissions");
    let mounted = Mounted(folder.clone());
    if ban == Ban::Mount && !mount(&folder, "size=8m") {
        println!("no file system can be mounted here (needs root)");
        return Vec::new();
    }
    let abide = Abide::open(&look::url(&folder)).await.expect("a store");
    abide.shutdown().await;
    drop(abide);
    ban.impose(&folder);
    let before = contents(&folder);
    let role = Role { kind: Kind::Opener, ..Role::worker(&folder) };
    let mut opener = Process::spawn_as_nobody(&role, outer.path());
    let mut problems = Vec::new();
    for way in ["open", "client"] {
        let answer = opener.hear(way).await;
        println!("{ban:?}: {way}: {answer}");
        if !(answer.starts_with("Open") && answer.contains("app.db") && answer.contains("read-only")) {
            problems.push(format!("{ban:?}: {way}: {answer}"));
        }
    }
    opener.ended().await;
    let after = contents(&folder);
    drop(mounted);
    if before != after {
        problems.push(format!("{ban:?}: it left a trace: {:?}", after.keys().collect::<Vec<_>>()));
    }
    problems
}

impl Ban {
    fn impose(self, folder: &Path) {
        let (file_mode, folder_mode) = match self {
            Self::File => ("444", "777"),
            Self::Folder => ("666", "555"),
            Self::Mount => ("666", "777"),
        };
        let (file, folder) = (look::database(folder).display().to_string(), folder.display().to_string());
        assert!(run("chmod", &[file_mode, &file]), "permissions");
        assert!(run("chmod", &[folder_mode, &folder]), "permissions");
        if self == Self::Mount {
            assert!(run("mount", &["-o", "remount,ro", &folder]), "a read-only file system");
        }
    }
}

/// A folder where something may be mounted.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        run("umount", &["-l", &self.0.display().to_string()]);
        run("chmod", &["755", &self.0.display().to_string()]);
    }
}

/// Mounts a small file system in memory. Needs root.
pub(crate) fn mount(folder: &Path, options: &str) -> bool {
    run("mount", &["-t", "tmpfs", "-o", options, "abide-test", &folder.display().to_string()])
}

pub(crate) fn run(program: &str, arguments: &[&str]) -> bool {
    let output = Command::new(program).args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}
