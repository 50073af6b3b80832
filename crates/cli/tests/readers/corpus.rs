//! The committed corpus. Each reader has one, and a fuzz target for use with a nightly toolchain.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use abide_cli::readers;
use abide_core::readers::{Reader, Verdict};

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Returns the names of the files in a folder of `fuzz`; none if the folder does not exist.
fn names(folder: &str) -> BTreeSet<String> {
    let Ok(files) = fs::read_dir(root().join("fuzz").join(folder)) else { return BTreeSet::new() };
    files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
}

/// Returns the committed inputs of a reader.
pub(crate) fn inputs(reader: &str) -> Vec<Vec<u8>> {
    let folder = format!("corpus/{reader}");
    names(&folder)
        .iter()
        .map(|name| fs::read(root().join("fuzz").join(&folder).join(name)).unwrap())
        .collect()
}

/// Returns the inputs that a reader must be able to read: its own seeds and the golden file's.
pub(crate) fn seeds(reader: &Reader) -> Vec<Vec<u8>> {
    let golden = fs::read_to_string(root().join("crates/core/tests/golden/format-1.txt")).unwrap();
    let is_record = ["entry", "execution", "summary", "message", "ability", "route"].contains(&reader.name);
    let lines = golden.lines().filter(|_| is_record);
    let records = lines.filter_map(|line| line.split_once(' ')).map(|(_, hex)| bytes(hex));
    let read = records.filter(|bytes| (reader.read)(bytes) == Verdict::Read);
    (reader.seeds)().into_iter().chain(read).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal digits");
    (0..hex.len()).step_by(2).map(byte).collect()
}

/// `UPDATE_EXPECT=1` rewrites the seeds after a change of a format.
#[test]
fn the_seeds_of_each_reader_are_in_its_corpus() {
    let is_update = std::env::var_os("UPDATE_EXPECT").is_some();
    for reader in readers::all() {
        let folder = root().join("fuzz/corpus").join(reader.name);
        for (seed, number) in seeds(&reader).into_iter().zip(1..) {
            let path = folder.join(format!("seed-{number:02}"));
            if is_update {
                fs::create_dir_all(&folder).unwrap();
                fs::write(&path, &seed).unwrap();
            }
            assert!(fs::read(&path).ok().as_ref() == Some(&seed), "{path:?}: run with UPDATE_EXPECT=1");
        }
    }
}

#[test]
fn every_file_of_the_corpus_is_read_or_refused() {
    for reader in readers::all() {
        for bytes in inputs(reader.name) {
            (reader.read)(&bytes);
        }
    }
}

#[test]
fn each_reader_has_a_corpus_and_a_fuzz_target() {
    let readers: BTreeSet<String> = readers::all().map(|reader| reader.name.to_owned()).collect();
    assert_eq!(readers.len(), readers::all().count(), "no two readers share a name");
    assert_eq!(names("corpus"), readers);
    let targets = names("fuzz_targets");
    assert_eq!(targets, readers.iter().map(|name| format!("{name}.rs")).collect());
    let manifest = fs::read_to_string(root().join("fuzz/Cargo.toml")).unwrap();
    for name in &readers {
        let source = fs::read_to_string(root().join("fuzz/fuzz_targets").join(format!("{name}.rs"))).unwrap();
        assert!(source.contains(&format!("read({name:?}, bytes)")), "{name}.rs calls its reader");
        assert!(
            manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")),
            "{name} is in fuzz/Cargo.toml"
        );
    }
}
