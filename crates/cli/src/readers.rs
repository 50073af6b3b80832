//! All readers of bytes in abide, for tests and fuzzers alone; see [`abide_core::readers`].

use abide_core::Payload;
use abide_core::readers::{Reader, Verdict};
use clap::Parser;

use crate::args::Args;
use crate::control::edited;
use crate::json;
use crate::payload::checked;

/// The readers of this crate.
const OWN: [Reader; 3] = [
    Reader { name: "arguments", read: arguments, seeds: arguments_seeds },
    Reader { name: "edit", read: edit, seeds: edit_seeds },
    Reader { name: "json_argument", read: json_argument, seeds: json_argument_seeds },
];

/// Returns the readers of all crates.
pub fn all() -> impl Iterator<Item = Reader> {
    let core = abide_core::readers::ALL.into_iter();
    let stores = abide_store::readers::ALL.into_iter().chain(abide_sqlite::readers::ALL);
    core.chain(stores).chain(abide::readers::ALL).chain(OWN)
}

/// Runs the reader of this name. Fuzz targets call this.
pub fn read(name: &str, bytes: &[u8]) -> Verdict {
    let reader = all().find(|reader| reader.name == name).expect("each target has a reader");
    (reader.read)(bytes)
}

/// Reads a command line, one argument per line.
fn arguments(bytes: &[u8]) -> Verdict {
    let Ok(text) = std::str::from_utf8(bytes) else { return Verdict::Refused };
    match Args::try_parse_from(std::iter::once("abide").chain(text.split('\n'))) {
        Ok(args) => {
            assert!(!format!("{args:?}").is_empty());
            Verdict::Read
        }
        Err(complaint) => {
            assert!(!complaint.to_string().is_empty());
            Verdict::Refused
        }
    }
}

fn arguments_seeds() -> Vec<Vec<u8>> {
    let lines = [
        "list\n--status\nfailed\n--tag\na=b\n--limit\n7\n-o\njsonl",
        "show\norder-1\n--from\n18446744073709551615\n--limit\n0",
        "signal\norder-1\ngo\n-1",
        "unblock\norder-1\n--edit\nreport#2={}",
        "cancel\norder-1\n--reason\nlunch\n--by\nann",
        "verify\n--store\nsqlite:a.db\n--repair",
    ];
    lines.map(Vec::from).to_vec()
}

/// Reads `STEP=JSON`.
fn edit(bytes: &[u8]) -> Verdict {
    let Ok(text) = std::str::from_utf8(bytes) else { return Verdict::Refused };
    let Ok((step, json)) = edited(text) else { return Verdict::Refused };
    assert_eq!(format!("{step}={json}"), text, "nothing is lost");
    assert!(!step.is_empty());
    Verdict::of(checked("it", json).ok())
}

fn edit_seeds() -> Vec<Vec<u8>> {
    ["big=1", "big#2={\"a\":1}", "a=b=1", "big=\"x=1\""].map(Vec::from).to_vec()
}

/// Reads a value passed as JSON, and renders it.
fn json_argument(bytes: &[u8]) -> Verdict {
    // Any recorded bytes can be rendered.
    assert!(!json::payload(&Payload::from(bytes.to_vec())).to_string().is_empty());
    let Ok(text) = std::str::from_utf8(bytes) else { return Verdict::Refused };
    let Ok(payload) = checked("it", text) else { return Verdict::Refused };
    assert_eq!(payload.as_bytes(), text.trim().as_bytes(), "every digit is kept");
    Verdict::Read
}

fn json_argument_seeds() -> Vec<Vec<u8>> {
    let nested = "[".repeat(127) + &"]".repeat(127);
    [" {\"a\": 1} ", "12345678901234567890123", "null", &nested].map(Vec::from).to_vec()
}
