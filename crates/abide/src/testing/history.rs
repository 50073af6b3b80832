//! The journal of one execution as a file: JSON that people can read, with the exact bytes of each
//! entry.

use std::fmt;

use abide_core::{Address, Entry, Event, Execution, ExecutionId, Namespace};
use abide_store::{Import, Record};
use serde::{Deserialize, Serialize};

use super::compare::describe;

/// The recorded history of one execution, as `abide export` writes it. Its text form is
/// [`Display`](fmt::Display).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    pub(crate) address: Address,
    /// The entries of each run, from the first run on.
    pub(crate) runs: Vec<Vec<Entry>>,
}

/// The reason why a text is not a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidHistory(String);

impl fmt::Display for InvalidHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this is no history of abide: {}", self.0)
    }
}

impl std::error::Error for InvalidHistory {}

#[derive(Serialize, Deserialize)]
struct Document {
    abide_history: u32,
    namespace: String,
    id: String,
    runs: Vec<Vec<Line>>,
}

/// An entry: in a form for people, and as it was recorded.
#[derive(Serialize, Deserialize)]
struct Line {
    #[serde(default)]
    entry: String,
    bytes: String,
}

impl History {
    /// The version of the format.
    const FORMAT: u32 = 1;

    /// Returns the history in an export of a store.
    #[doc(hidden)]
    pub fn of(whole: &Import) -> abide_store::Result<Self> {
        let entries = |run: &Vec<Record>| run.iter().map(Record::entry).collect();
        let runs = whole.runs.iter().map(entries).collect::<abide_store::Result<_>>()?;
        Ok(Self { address: whole.address().clone(), runs })
    }

    /// Reads the text form.
    pub fn parse(text: &str) -> Result<Self, InvalidHistory> {
        let invalid = |what: String| InvalidHistory(what);
        let document: Document = serde_json::from_str(text).map_err(|error| invalid(error.to_string()))?;
        if document.abide_history != Self::FORMAT {
            return Err(invalid(format!("its format is {}, not {}", document.abide_history, Self::FORMAT)));
        }
        let namespace = Namespace::new(&document.namespace).map_err(|error| invalid(error.to_string()))?;
        let id = ExecutionId::new(&document.id).map_err(|error| invalid(error.to_string()))?;
        let address = Address { namespace, id };
        let mut runs = Vec::new();
        for (lines, run) in document.runs.iter().zip(1..) {
            let entries: Vec<_> =
                lines.iter().zip(1..).map(entry).collect::<Result<_, _>>().map_err(invalid)?;
            if Execution::fold(address.clone(), run, &entries).is_none() {
                return Err(invalid(format!("run {run} does not begin with a start")));
            }
            runs.push(entries);
        }
        if runs.is_empty() {
            return Err(invalid("it has no run".to_owned()));
        }
        Ok(Self { address, runs })
    }
}

fn entry((line, seq): (&Line, u64)) -> Result<Entry, String> {
    let digits = line.bytes.as_bytes();
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let byte = |pair: &[u8]| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?);
    let bytes: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
    let bytes = bytes.ok_or_else(|| format!("the bytes of entry {seq} are no hexadecimal digits"))?;
    Record { seq, bytes }.entry().map_err(|error| error.to_string())
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |entry: &Entry| {
            let bytes = Record::of(entry).bytes;
            Line {
                entry: format!("{} {}", entry.seq, described(&entry.event)),
                bytes: bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
            }
        };
        let document = Document {
            abide_history: Self::FORMAT,
            namespace: self.address.namespace.to_string(),
            id: self.address.id.to_string(),
            runs: self.runs.iter().map(|run| run.iter().map(line).collect()).collect(),
        };
        let text = serde_json::to_string_pretty(&document).map_err(|_| fmt::Error)?;
        writeln!(f, "{text}")
    }
}

fn described(event: &Event) -> String {
    match event {
        Event::Started(start) => format!("started {} {:?}", start.kind.word(), start.name),
        event => describe(event),
    }
}
