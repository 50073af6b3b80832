//! What cannot be a store is refused with words, and is left as it was.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use abide::prelude::*;
use abide::rusqlite::Connection;

use crate::in_turn;

/// Something that cannot be opened, and the words that the error must contain.
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
    newer(&at("newer.db"), "WAL");
    newer(&at("newer-delete.db"), "DELETE");
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

/// A database that a later abide has written.
fn newer(path: &Path, journal_mode: &str) {
    let connection = Connection::open(path).expect("a database");
    connection.query_row(&format!("PRAGMA journal_mode = {journal_mode}"), [], |_| Ok(())).expect("a mode");
    let sql = "CREATE TABLE abide_meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
               INSERT INTO abide_meta VALUES ('schema_version', 999);";
    connection.execute_batch(sql).expect("a schema");
}

/// Every file below a folder, with what is in it.
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

#[test]
fn a_read_only_file_is_refused_by_name_and_left_as_it_was() {
    in_turn(async {
        let folder = tempfile::tempdir().expect("a folder");
        let place = ReadOnly::prepare(folder.path()).await;
        println!("read-only by {}", place.how);
        let before = contents(folder.path());
        let url = format!("sqlite:{}", place.file.display());
        let mut problems = Vec::new();
        for (way, opened) in [("open", Abide::open(&url).await), ("client", Abide::client(&url).await)] {
            match opened {
                Ok(abide) => {
                    abide.shutdown().await;
                    problems.push(format!("{way} succeeds"));
                }
                Err(error) => {
                    let case = Case {
                        name: "a read-only file",
                        url: url.clone(),
                        words: vec!["app.db".into(), "read-only".into()],
                    };
                    problems.extend(wrong(&case, way, &error));
                }
            }
        }
        let after = contents(folder.path());
        drop(place);
        assert!(problems.is_empty(), "{problems:#?}");
        assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
        assert!(before == after, "the file was written");
    });
}

/// A store that cannot be written any more.
struct ReadOnly {
    file: PathBuf,
    how: &'static str,
    mounted: Option<PathBuf>,
}

impl ReadOnly {
    /// Permissions do not bind root, a read-only file system does.
    async fn prepare(folder: &Path) -> Self {
        let mounted = mount(folder, "size=8m").then(|| folder.to_owned());
        let file = folder.join("app.db");
        let abide = Abide::open(&format!("sqlite:{}", file.display())).await.expect("a store");
        abide.shutdown().await;
        drop(abide);
        let how = if mounted.is_some() {
            assert!(
                run("mount", &["-o", "remount,ro", &folder.display().to_string()]),
                "a read-only file system"
            );
            "a read-only file system"
        } else {
            assert!(run("chmod", &["-R", "a-w", &folder.display().to_string()]), "permissions");
            "permissions"
        };
        Self { file, how, mounted }
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        match &self.mounted {
            Some(folder) => run("umount", &["-l", &folder.display().to_string()]),
            None => {
                run("chmod", &["-R", "u+w", &self.file.parent().expect("a folder").display().to_string()])
            }
        };
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
