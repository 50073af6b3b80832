//! Starts and signals that others have written down in a transaction of their own.
//!
//! Every store has an intake table. Any program can put a row into it, in the transaction of its
//! own writes. An engine takes the rows out, and [`Enqueued::message`] says what each of them
//! means. So a row from Python starts the same execution as a call in Rust.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::{
    Address, Body, By, ContentHash, ExecutionId, InvalidName, Kind, Message, MessageId, Name, Namespace,
    Payload, Refusal, Retry, Start, Tag, Timestamp, canonical, text,
};

/// A row of the intake table. Its author may have written anything, so nothing in it is checked
/// before an engine takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enqueued {
    /// A random id. No other row has it, now or later.
    pub id: String,
    /// The namespace of the execution.
    pub namespace: String,
    /// `start` or `signal`.
    pub verb: String,
    /// The id of the execution.
    pub execution: String,
    /// The name of the workflow, task or signal.
    pub name: String,
    /// The input of the execution, or the value of the signal, as JSON.
    pub input: String,
    /// A JSON object of [`StartOptions`] or [`SignalOptions`].
    pub options: String,
    /// The author.
    pub sender: String,
}

/// The options of a start in the intake table. Every one of them may be missing. Times are in
/// milliseconds, in whole ones or in parts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StartOptions {
    /// `workflow`, if missing, or `task`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The queue that it waits in; `default` if missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lane: Option<String>,
    /// The capabilities that a worker must have to take it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    /// Higher goes first within a lane.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i16>,
    /// How long after an engine has taken the row it begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<f64>,
    /// When it begins, since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_at_ms: Option<f64>,
    /// How long after an engine has taken the row it must have ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<f64>,
    /// When it must have ended, since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_at_ms: Option<f64>,
    /// The retry policy of a task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryOptions>,
    /// The tags by which it can be found.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// The hash of the input, from a program that knows the type of it; see [`canonical`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_hash: Option<String>,
    /// The names that its code was registered under before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub old_names: Vec<String>,
}

/// The options of a signal in the intake table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SignalOptions {
    /// The sender's key: another signal of the same name and key changes nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// A retry policy as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetryOptions {
    /// The pause after the first attempt.
    pub first_delay_ms: f64,
    /// How many times as long each pause is as the one before it; 2 if missing.
    pub factor: Option<u32>,
    /// The longest pause; an hour if missing.
    pub max_delay_ms: Option<f64>,
    /// The most attempts; 10 if missing.
    pub max_attempts: Option<u32>,
    /// The part of each pause that is left to chance.
    pub jitter: Option<f64>,
    /// How long after the first attempt none is planned any more.
    pub max_elapsed_ms: Option<f64>,
}

impl Enqueued {
    /// The verb of a start.
    pub const START: &str = "start";
    /// The verb of a signal.
    pub const SIGNAL: &str = "signal";
    /// The largest options of one row, in bytes.
    pub const OPTIONS_BYTES_MAX: usize = 64 << 10;

    /// Returns the message that this row stands for, when an engine takes it at `now`.
    pub fn message(&self, now: Timestamp) -> Result<Message, Refusal> {
        let id = Name::of_field("intake id", &self.id)?;
        let namespace = Namespace::new(&self.namespace)?;
        let to = Address { namespace, id: ExecutionId::new(&self.execution)? };
        let by = By(Name::of_field("sender", &self.sender)?.as_str().to_owned().into());
        self.check_json()?;
        match self.verb.as_str() {
            Self::START => {
                let start = self.start(&self.read_options()?, now)?;
                Ok(Message::new(MessageId::of_start(), to, by, Body::Start(start.into())))
            }
            Self::SIGNAL => {
                let options: SignalOptions = self.read_options()?;
                let name = Name::of_field("signal name", &self.name)?;
                let id = match options.key {
                    Some(key) => MessageId::of_signal(&name, &Name::of_field("signal key", key)?),
                    None => MessageId::new(text::joined(&["intake ", id.as_str()], str::to_owned)),
                };
                let payload = Payload::from(self.input.as_str());
                Ok(Message::new(id, to, by, Body::Signal { name, payload }))
            }
            other => Err(unfit(format!("{} is neither a start nor a signal", text::quoted(other)))),
        }
    }

    /// Returns the address that this row names, in a form that people can read: a row that cannot
    /// be taken may name one that no execution can have.
    pub fn legible_address(&self) -> Address {
        let namespace =
            Namespace::new(&self.namespace).or_else(|_| Namespace::new(readable(&self.namespace)));
        let id = ExecutionId::new(&self.execution).or_else(|_| ExecutionId::new(readable(&self.execution)));
        Address {
            namespace: namespace.expect("a text in quotes without unseen characters is a name"),
            id: id.expect("a text in quotes without unseen characters is a name"),
        }
    }

    /// Returns the name that this row names, in a form that people can read.
    pub fn legible_name(&self) -> String {
        match Name::new(&self.name) {
            Ok(_) => self.name.clone(),
            Err(_) => readable(&self.name),
        }
    }

    fn check_json(&self) -> Result<(), Refusal> {
        let checked: Result<IgnoredAny, _> = serde_json::from_str(&self.input);
        checked.map(|_| ()).map_err(|error| {
            let (what, name) =
                (if self.verb == Self::START { "input" } else { "value" }, text::quoted(&self.name));
            unfit(format!("the {what} of {name} is not JSON: {error}"))
        })
    }

    fn read_options<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Refusal> {
        let (found, max) = (self.options.len(), Self::OPTIONS_BYTES_MAX);
        if found > max {
            let what = format!("the options of the {}", self.verb);
            return Err(crate::TooLarge { what, limit: "options_bytes_max", found, max }.into());
        }
        serde_json::from_str(&self.options).map_err(|error| {
            unfit(format!("the options of the {}: {}", self.verb, text::clean(&error.to_string())))
        })
    }

    fn start(&self, options: &StartOptions, now: Timestamp) -> Result<Start, Refusal> {
        let kind = match options.kind.as_deref().unwrap_or("workflow") {
            "workflow" => Kind::Workflow,
            "task" => Kind::Task,
            other => {
                return Err(unfit(format!("the kind {} is neither workflow nor task", text::quoted(other))));
            }
        };
        if kind == Kind::Workflow && options.retry.is_some() {
            return Err(unfit("a workflow has no retry policy: its steps have".to_owned()));
        }
        let names = |field, texts: &[String]| -> Result<Vec<Name>, InvalidName> {
            texts.iter().map(|text| Name::of_field(field, text)).collect()
        };
        let input = Payload::from(self.input.as_str());
        let tag = |(key, value): (&String, &String)| {
            Ok(Tag { key: Name::of_field("tag key", key)?, value: Name::of_field("tag value", value)? })
        };
        let field = if kind == Kind::Task { "task name" } else { "workflow name" };
        Ok(Start {
            input_hash: match &options.input_hash {
                Some(hash) => {
                    ContentHash::read(hash).ok_or_else(|| unfit("the input hash is not one".to_owned()))?
                }
                None => canonical::hash(&input),
            },
            lane: Name::of_field("lane", options.lane.as_deref().unwrap_or("default"))?,
            requires: names("capability", &options.requires)?,
            priority: options.priority.unwrap_or(0),
            start_at: point((options.delay_ms, "delay_ms"), (options.start_at_ms, "start_at_ms"), now)?,
            deadline_at: point(
                (options.deadline_ms, "deadline_ms"),
                (options.deadline_at_ms, "deadline_at_ms"),
                now,
            )?,
            retry: options.retry.as_ref().map(RetryOptions::retry).transpose()?,
            tags: options.tags.iter().map(tag).collect::<Result<_, InvalidName>>()?,
            old_names: Some(names("old name", &options.old_names)?).filter(|names| !names.is_empty()),
            ..Start::of(kind, Name::of_field(field, &self.name)?, input)
        })
    }
}

/// The longest part of an invalid name that is kept for people.
const EXCERPT_CHARS_MAX: usize = 60;

/// Returns a text that people can read, for one that may be anything.
fn readable(text: &str) -> String {
    text::excerpt(&text::quoted(text), EXCERPT_CHARS_MAX)
}

fn unfit(what: String) -> Refusal {
    Refusal::Unsupported { what }
}

impl StartOptions {
    /// Returns the options of this start, in which nothing depends on when it is taken.
    pub fn of(start: &Start) -> Self {
        let texts = |names: &[Name]| names.iter().map(|name| name.as_str().to_owned()).collect();
        Self {
            kind: Some(start.kind.word().to_owned()),
            lane: Some(start.lane.as_str().to_owned()),
            requires: texts(&start.requires),
            priority: Some(start.priority),
            delay_ms: None,
            start_at_ms: start.start_at.map(millis_of),
            deadline_ms: None,
            deadline_at_ms: start.deadline_at.map(millis_of),
            retry: start.retry.as_ref().map(Retry::options),
            tags: start.tags.iter().map(|tag| (tag.key.to_string(), tag.value.to_string())).collect(),
            input_hash: Some(format!("{:?}", start.input_hash)),
            old_names: texts(start.old_names.as_deref().unwrap_or_default()),
        }
    }

    /// Returns them as JSON.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers are JSON")
    }
}

impl SignalOptions {
    /// Returns them as JSON.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("texts are JSON")
    }
}

impl RetryOptions {
    fn retry(&self) -> Result<Retry, Refusal> {
        let mut retry = Retry::exponential(duration(self.first_delay_ms, "first_delay_ms")?);
        if let Some(factor) = self.factor {
            retry = retry.factor(factor);
        }
        if let Some(delay) = self.max_delay_ms {
            retry = retry.max_delay(duration(delay, "max_delay_ms")?);
        }
        if let Some(count) = self.max_attempts {
            retry = retry.max_attempts(count);
        }
        if let Some(part) = self.jitter {
            retry = retry.jitter(part);
        }
        if let Some(elapsed) = self.max_elapsed_ms {
            retry = retry.max_elapsed(duration(elapsed, "max_elapsed_ms")?);
        }
        Ok(retry)
    }
}

fn duration(millis: f64, option: &str) -> Result<Duration, Refusal> {
    // No sum of times is later than the last point in time, so a longer one says no more.
    const MILLIS_MAX: f64 = 1e15;
    Duration::try_from_secs_f64(millis.min(MILLIS_MAX) / 1_000.0)
        .map_err(|_| unfit(format!("the option {option} is {millis}, which is no length of time")))
}

fn millis_of(at: Timestamp) -> f64 {
    at.as_micros() as f64 / 1_000.0
}

/// Returns the point in time that one of two options names.
fn point(
    (after, after_name): (Option<f64>, &str),
    (at, at_name): (Option<f64>, &str),
    now: Timestamp,
) -> Result<Option<Timestamp>, Refusal> {
    match (after, at) {
        (Some(_), Some(_)) => {
            Err(unfit(format!("the options {after_name} and {at_name} exclude each other")))
        }
        (Some(after), None) => Ok(Some(now.after(duration(after, after_name)?))),
        // The cast stops at the last point in time.
        (None, Some(at)) => Ok(Some(Timestamp::from_micros((at * 1_000.0).round() as i64))),
        (None, None) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    fn row(change: impl FnOnce(&mut Enqueued)) -> Enqueued {
        let mut row = Enqueued {
            id: "r1".to_owned(),
            namespace: "default".to_owned(),
            verb: Enqueued::START.to_owned(),
            execution: "o-1".to_owned(),
            name: "checkout".to_owned(),
            input: r#"{"b": 1, "a": 5.0}"#.to_owned(),
            options: "{}".to_owned(),
            sender: "ann".to_owned(),
        };
        change(&mut row);
        row
    }

    fn start_of(row: &Enqueued) -> Start {
        match row.message(NOW).expect("it is taken").body {
            Body::Start(start) => Start::clone(&start),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_row_without_options_is_a_workflow_that_begins_at_once() {
        let row = row(|_| ());
        let message = row.message(NOW).expect("it is taken");
        assert_eq!((message.id, message.by), (MessageId::of_start(), By("ann".into())));
        assert_eq!(message.to, row.legible_address());
        let found = start_of(&row);
        let expected =
            Start::of(Kind::Workflow, Name::new("checkout").unwrap(), Payload::from(row.input.as_str()));
        let input_hash = canonical::hash(&Payload::from(r#"{"a":5,"b":1}"#));
        assert_eq!(found, Start { input_hash, ..expected });
    }

    #[test]
    fn the_options_of_a_start_are_read_as_they_were_written() {
        let name = |text: &str| Name::new(text).unwrap();
        let retry = Retry::exponential(Duration::from_micros(1_500)).max_attempts(7).jitter(0.25);
        let written = Start {
            input_hash: ContentHash::of(b"typed"),
            lane: name("gpu"),
            requires: vec![name("cuda"), name("big")],
            priority: -3,
            start_at: Some(Timestamp::from_micros(1_792_000_000_123_456)),
            deadline_at: Some(Timestamp::MAX),
            retry: Some(retry.max_elapsed(Duration::from_secs(9)).factor(3)),
            tags: vec![Tag { key: name("customer"), value: name("c7") }],
            old_names: Some(vec![name("till")]),
            ..Start::of(Kind::Task, name("pay"), Payload::from("1"))
        };
        let read = start_of(&row(|row| {
            (row.name, row.input) = ("pay".to_owned(), "1".to_owned());
            row.options = StartOptions::of(&written).json();
        }));
        assert_eq!(read, written);
    }

    #[test]
    fn lengths_of_time_count_from_the_taking() {
        let read = start_of(&row(|row| row.options = r#"{"delay_ms": 0.5, "deadline_ms": 2000}"#.to_owned()));
        assert_eq!(read.start_at, Some(NOW.after(Duration::from_micros(500))));
        assert_eq!(read.deadline_at, Some(NOW.after(Duration::from_secs(2))));
        let retry = r#"{"kind": "task", "retry": {"first_delay_ms": 100}}"#;
        let read = start_of(&row(|row| row.options = retry.to_owned()));
        assert_eq!(read.retry, Some(Retry::exponential(Duration::from_millis(100))));
    }

    #[test]
    fn a_signal_has_the_id_of_its_row_or_of_its_key() {
        let signal = |options: &str| {
            let row = row(|row| (row.verb, row.options) = (Enqueued::SIGNAL.to_owned(), options.to_owned()));
            row.message(NOW).expect("it is taken")
        };
        let name = |text: &str| Name::new(text).unwrap();
        assert_eq!(signal("{}").id.as_str(), "intake r1");
        let keyed = signal(r#"{"key": "k"}"#);
        assert_eq!(keyed.id, MessageId::of_signal(&name("checkout"), &name("k")));
        let payload = Payload::from(r#"{"b": 1, "a": 5.0}"#);
        assert_eq!(keyed.body, Body::Signal { name: name("checkout"), payload });
    }

    type Change = fn(&mut Enqueued, String);

    #[test]
    fn what_is_unfit_is_refused_by_name() {
        let (options, input): (Change, Change) =
            (|row, text| row.options = text, |row, text| row.input = text);
        let rows: [(Change, &str, &str); 18] = [
            (|row, text| row.verb = text, "cancel", r#""cancel" is neither a start nor a signal"#),
            (
                |row, text| row.execution = text,
                "a\nb",
                r#"execution id "a\nb" contains the control character U+000A"#,
            ),
            (|row, text| row.execution = text, "", r#"execution id "" is empty"#),
            (|row, text| row.namespace = text, "", r#"namespace "" is empty"#),
            (
                |row, text| row.name = text,
                "\u{202e}",
                "workflow name \"\\u{202e}\" contains the bidirectional control U+202E",
            ),
            (|row, text| row.sender = text, "", r#"sender "" is empty"#),
            (|row, text| row.id = text, "", r#"intake id "" is empty"#),
            (
                input,
                "{",
                "the input of \"checkout\" is not JSON: EOF while parsing an object at line 1 column 1",
            ),
            (input, "NaN", "the input of \"checkout\" is not JSON: expected value at line 1 column 1"),
            (options, "", "the options of the start: EOF while parsing a value at line 1 column 0"),
            (
                options,
                "[1]",
                "the options of the start: invalid type: integer `1`, expected a string at line 1 column 2",
            ),
            (options, r#"{"kind": "builtin"}"#, r#"the kind "builtin" is neither workflow nor task"#),
            (
                options,
                r#"{"retry": {"first_delay_ms": 1}}"#,
                "a workflow has no retry policy: its steps have",
            ),
            (
                options,
                r#"{"delay_ms": 1, "start_at_ms": 2}"#,
                "the options delay_ms and start_at_ms exclude each other",
            ),
            (options, r#"{"deadline_ms": -1}"#, "the option deadline_ms is -1, which is no length of time"),
            (options, r#"{"input_hash": "12"}"#, "the input hash is not one"),
            (options, r#"{"tags": {"": "x"}}"#, r#"tag key "" is empty"#),
            (
                options,
                r#"{"requires": ["a\u0000b"]}"#,
                r#"capability "a\0b" contains the control character U+0000"#,
            ),
        ];
        for (change, text, expected) in rows {
            let row = row(|row| change(row, text.to_owned()));
            assert_eq!(row.message(NOW).expect_err(text).to_string(), expected, "{text:?}");
            assert!(
                !row.legible_address().id.as_str().is_empty() && !row.legible_name().contains('\u{202e}')
            );
        }
        let typo =
            row(|row| row.options = r#"{"lanes": "x"}"#.to_owned()).message(NOW).unwrap_err().to_string();
        assert!(
            typo.starts_with("the options of the start: unknown field `lanes`, expected one of `kind`"),
            "{typo}"
        );
        let long = row(|row| row.options = " ".repeat(70_000)).message(NOW).unwrap_err().to_string();
        assert_eq!(
            long,
            "the options of the start is over the limit options_bytes_max: 70000, at most 65536"
        );
    }

    #[test]
    fn an_address_that_nobody_can_have_is_told_in_quotes() {
        let row = row(|row| row.execution = "a\u{202e}b".repeat(100));
        let address = row.legible_address();
        assert!(address.id.as_str().starts_with(r#""a\u{202e}b"#) && address.id.as_str().len() <= 255);
    }
}
