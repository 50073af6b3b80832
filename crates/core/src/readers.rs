//! Every reader of bytes in this crate, for tests and fuzzers that pass arbitrary input. Not for
//! use by hand.
//!
//! A reader panics when one of these rules is broken. A readable value is written and read again as
//! the same value, in no more bytes than before. Unreadable bytes are refused with a fitting error.
//! Everything that was read can be inspected and decided about.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::codec::{self, DecodeError};
use crate::{
    Ability, Address, Bounds, By, Command, Entry, Execution, ExecutionId, Failure, FailureKind, Happening,
    Kind, Message, Name, Namespace, Op, OpKind, Payload, Route, Summary, Timestamp, child_id, text,
};

/// A reader of bytes.
#[derive(Clone, Copy, Debug)]
pub struct Reader {
    /// The name of its format, of its fuzz target and of the folder with its corpus.
    pub name: &'static str,
    /// Reads, and panics when it breaks a rule.
    pub read: fn(&[u8]) -> Verdict,
    /// Returns some readable inputs. If there are none, the golden files have them.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// The result of reading bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The bytes are readable.
    Read,
    /// The bytes are not readable.
    Refused,
}

impl Verdict {
    /// Returns the verdict on bytes in which a value was found, or was not.
    pub fn of<T>(found: Option<T>) -> Self {
        if found.is_some() { Self::Read } else { Self::Refused }
    }
}

/// The readers of this crate.
pub const ALL: [Reader; 7] = [
    Reader { name: "entry", read: entry, seeds: Vec::new },
    Reader { name: "execution", read: execution, seeds: Vec::new },
    Reader { name: "summary", read: summary, seeds: Vec::new },
    Reader { name: "message", read: message, seeds: Vec::new },
    Reader { name: "ability", read: ability, seeds: Vec::new },
    Reader { name: "route", read: route, seeds: Vec::new },
    Reader {
        name: "name",
        read: name,
        seeds: || ["a", "order-1/2/größe/1", "report#2"].map(Vec::from).to_vec(),
    },
];

/// Returns the value in `bytes`, if they can be read.
pub fn record<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) -> Option<T> {
    match codec::decode::<T>(bytes) {
        Ok(value) => {
            let written = codec::encode(&value);
            assert!(written.len() <= bytes.len(), "{} bytes became {}", bytes.len(), written.len());
            assert_eq!(codec::decode(&written).as_ref(), Ok(&value), "it is read as it was written");
            Some(value)
        }
        Err(error) => {
            assert!(is_apt(&error, bytes), "{error}");
            None
        }
    }
}

/// Whether an error fits the bytes.
fn is_apt(error: &DecodeError, bytes: &[u8]) -> bool {
    match (bytes.first(), error) {
        (first, DecodeError::Empty) => first.is_none(),
        (first, DecodeError::UnknownVersion(version)) => first == Some(version),
        (first, DecodeError::Newer | DecodeError::Damaged(_)) => first == codec::encode(&()).first(),
    }
}

fn at() -> Address {
    Address { namespace: Namespace::default(), id: ExecutionId::composed("x") }
}

fn entry(bytes: &[u8]) -> Verdict {
    let found = record::<Entry>(bytes);
    assert_eq!(Entry::decode(bytes).ok(), found, "the short way says the same");
    if let Some(entry) = &found {
        let expected = Happening::of(&entry.event).map(|happening| (entry.at, happening));
        assert_eq!(Entry::happening_of(bytes), expected, "its beginning says the same");
        let written = entry.encode();
        assert_eq!(written, codec::encode(entry), "the short way writes the same");
        assert_eq!(Entry::meaning_of(&written), Happening::of(&entry.event), "likewise");
        if let Some(folded) = Execution::fold(at(), u32::MAX, [entry]) {
            look_at(&folded);
        }
        let start = crate::Start::of(Kind::Task, Name::new("x").expect("a name"), Payload::from("1"));
        let (mut execution, _) = Execution::start(at(), start, Timestamp::MAX);
        execution.apply(entry);
        look_at(&execution);
        assert!(!format!("{entry:?} {} {:?}", entry.at, entry.event.op()).is_empty());
    } else {
        // A reader may recognize an entry of a newer program, as long as the format is the same.
        let format = codec::encode(&());
        assert!(bytes.first() == format.first() || Entry::happening_of(bytes).is_none());
    }
    Verdict::of(found)
}

fn execution(bytes: &[u8]) -> Verdict {
    let found = record::<Execution>(bytes);
    if let Some(execution) = &found {
        look_at(&execution.clone().at(at()));
    }
    Verdict::of(found)
}

/// Calls every query on a state, and sends it every command.
fn look_at(execution: &Execution) {
    let now = Timestamp::from_millis(1);
    let summaries = [execution.summary(&[]), execution.summary_at_rest(), execution.summary_at_start(now)];
    for summary in summaries {
        assert_eq!(record(&codec::encode(&summary)), Some(summary));
    }
    assert_eq!(record(&codec::encode(&execution.route())), Some(execution.route()));
    let by = || By("x".into());
    let reason = String::new;
    let commands = [
        Command::Pause { by: by(), reason: reason() },
        Command::Resume { by: by() },
        Command::Inherit { by: by(), number: u64::MAX, pause: None },
        Command::Cancel { by: by(), reason: reason() },
        Command::Terminate { by: by(), reason: reason() },
        Command::Unblock { by: by(), step: None },
        Command::Fail(Failure::new(FailureKind::Error, "x")),
        Command::Complete { result: Payload::from("1"), unused: Vec::new() },
    ];
    for command in commands {
        let mut changed = execution.clone();
        if let Ok(decision) = changed.decide(command, now) {
            let (entries, _) = decision.record(&mut changed, now);
            assert!(entries.iter().all(|entry| record::<Entry>(&codec::encode(entry)).is_some()));
            assert!(record::<Execution>(&codec::encode(&changed)).is_some());
        }
    }
}

fn summary(bytes: &[u8]) -> Verdict {
    let found = record::<Summary>(bytes);
    if let Some(summary) = &found {
        let beginning = Summary::beginning_of(bytes);
        assert_eq!(beginning, Some((summary.status, summary.listens)), "its beginning says the same");
        assert!(summary.waiting.iter().all(|wait| !wait.to_string().is_empty()));
    } else {
        let format = codec::encode(&());
        assert!(bytes.first() == format.first() || Summary::beginning_of(bytes).is_none());
    }
    Verdict::of(found)
}

fn message(bytes: &[u8]) -> Verdict {
    let found = record::<Message>(bytes);
    if let Some(message) = &found {
        assert!(message.body.carried_bytes() <= bytes.len());
        assert_eq!(message.body.clone().emptied().carried_bytes(), 0);
        assert_eq!(message.control().is_some(), message.body.is_control());
        // The message may be too large or not; the check must not panic.
        let _ = message.check(&Bounds::default());
    }
    Verdict::of(found)
}

fn ability(bytes: &[u8]) -> Verdict {
    let found = record::<Ability>(bytes);
    if let Some(ability) = &found {
        for (kind, name) in &ability.runs {
            let (namespace, name) = (ability.namespace.clone(), name.clone());
            let lane = ability.lanes.first().unwrap_or(&name).clone();
            let route = Route { namespace, lane, kind: *kind, name, requires: ability.capabilities.clone() };
            assert_eq!(ability.serves(&route), ability.objection(&route).is_none());
        }
    }
    Verdict::of(found)
}

fn route(bytes: &[u8]) -> Verdict {
    Verdict::of(record::<Route>(bytes))
}

/// Reads ids and names that people write, and the values derived from them.
fn name(bytes: &[u8]) -> Verdict {
    let Ok(text) = std::str::from_utf8(bytes) else { return Verdict::Refused };
    assert!(!text::clean(text).contains(char::is_control));
    assert!(text::excerpt(text, 40).chars().count() <= 41);
    assert!(text::cut(text.to_owned(), 64).len() <= 64);
    let found = Name::new(text);
    assert_eq!(found.is_ok(), ExecutionId::new(text).is_ok());
    assert_eq!(found.is_ok(), Namespace::new(text).is_ok());
    if let Err(problem) = &found {
        assert!(problem.to_string().len() < 400);
    }
    let Ok(name) = found else { return Verdict::Refused };
    for (kind, nth) in [(OpKind::Step, 1), (OpKind::Transaction, 2), (OpKind::Step, u32::MAX)] {
        let op = Op { kind, name: name.clone(), key: None, nth };
        assert!(op.is_called(&op.label()) && op.is_called(&op.to_string()), "{op} is called by its names");
        let child = child_id(&ExecutionId::composed(text), u32::MAX, &op);
        assert!(ExecutionId::new(child.as_str()).is_ok(), "{child:?} is an id");
    }
    Verdict::Read
}
