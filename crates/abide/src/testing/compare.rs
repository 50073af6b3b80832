//! Comparison of recorded events, and their differences in words.
//!
//! Values are compared in their canonical form: a `HashMap` is written in another order each time.
//!
//! Messages show the beginning of a value. Comparisons look at all of it, so a message says where
//! the rest differs.

use std::sync::Arc;

use abide_core::{
    Details, Event, Failure, Fingerprint, Outcome, Payload, Start, StepRecord, Timestamp, codec,
};

use crate::canonical;

/// Returns an event with its value in canonical form. The functions below compare such events.
pub(super) fn canonical(mut event: Event) -> Event {
    match &mut event {
        // The hash is for another start of the execution. That of a later run is of its bytes.
        Event::Started(start) => {
            *start = Arc::new(Start::clone(start).with_input(canonical::form(&start.input)));
        }
        Event::StepRecorded(StepRecord { outcome, .. }) | Event::ChildFinished { outcome, .. } => {
            match outcome {
                Outcome::Success(payload) => write(payload),
                Outcome::Failure(failure) => write_failure(failure),
                Outcome::Unrecordable(_) => {}
            }
        }
        Event::AttemptFailed { failure, .. } | Event::Failed(failure) => write_failure(failure),
        Event::SignalReceived { payload, .. }
        | Event::ContinuedAsNew { input: payload }
        | Event::Completed { result: payload, .. } => write(payload),
        Event::SignalRejected(rejected) => write(&mut rejected.payload),
        _ => {}
    }
    event
}

fn write(payload: &mut Payload) {
    *payload = canonical::form(payload);
}

/// The message of a typed error ends with its value.
fn write_failure(failure: &mut Failure) {
    let Some(value) = failure.value.clone() else { return };
    let (written, canonical) = (value.excerpt(), canonical::form(&value));
    let Details { message, chain, value, .. } = &mut **failure;
    for text in std::iter::once(message).chain(chain) {
        if let Some(before) = text.strip_suffix(&written) {
            *text = format!("{before}{}", canonical.excerpt());
        }
    }
    *value = Some(canonical);
}

/// Describes an event for people.
pub(super) fn describe(event: &Event) -> String {
    let op = event.op().map(|op| format!(" {op}")).unwrap_or_default();
    let what = match event {
        Event::StepRecorded(record) => format!(": {}", record.outcome),
        Event::ChildFinished { outcome, .. } => format!(": {outcome}"),
        Event::SignalReceived { payload, .. } => format!(": {}", payload.excerpt()),
        Event::SignalRejected(rejected) => format!(": {rejected}"),
        Event::AttemptFailed { attempt, failure, .. } => format!(", attempt {attempt}: {failure}"),
        Event::ContinuedAsNew { input } => format!(": {}", input.excerpt()),
        Event::Completed { result, .. } => format!(": {}", result.excerpt()),
        Event::Failed(failure) => format!(": {failure}"),
        Event::Blocked { reason, .. } => format!(": {reason}"),
        _ => String::new(),
    };
    format!("{}{op}{what}", event.word())
}

/// Returns everything in an event but its times and the excerpts of inputs. An input is compared by
/// its hash; the excerpt of a `HashMap` is another one each time.
pub(super) fn timeless(event: &Event) -> Vec<u8> {
    let mut event = event.clone();
    match &mut event {
        Event::AttemptFailed { retry_at, first_at, .. } => {
            (*retry_at, *first_at) = (Timestamp::from_micros(0), Timestamp::from_micros(0));
        }
        Event::TimerSet { due_at: at, .. } | Event::DeadlinePassed { until: at } => {
            *at = Timestamp::from_micros(0);
        }
        Event::StepRecorded(StepRecord { input: Some(input), .. }) | Event::ChildStarted { input, .. } => {
            input.excerpt.clear();
        }
        _ => {}
    }
    // Not as text, which shows only the beginning of a payload.
    codec::encode(&event)
}

/// Whether two builds end alike. The place of an error is not compared, because lines move.
pub(super) fn is_same_end(one: &Event, other: &Event) -> bool {
    let placeless = |failure: &Failure| {
        let mut failure = failure.clone();
        failure.at = None;
        failure
    };
    match (one, other) {
        (Event::Completed { result: one, .. }, Event::Completed { result: other, .. })
        | (Event::ContinuedAsNew { input: one }, Event::ContinuedAsNew { input: other }) => one == other,
        (Event::Failed(one), Event::Failed(other)) => placeless(one) == placeless(other),
        _ => describe(one) == describe(other),
    }
}

/// Describes a difference between two events that their descriptions do not show.
pub(super) fn hidden_difference(one: &Event, other: &Event) -> Option<String> {
    input_difference(one, other).or_else(|| end_difference(one, other))
}

/// Describes a difference of inputs, which no description of an event shows.
fn input_difference(one: &Event, other: &Event) -> Option<String> {
    let (one, other) = (input_of(one), input_of(other));
    let shown = |input: Option<&Fingerprint>| input.map_or("none".to_owned(), |input| format!("`{input}`"));
    let (shown_one, shown_other) = (shown(one), shown(other));
    let hash = |input: Option<&Fingerprint>| input.map(|input| input.hash);
    (hash(one) != hash(other)).then(|| match shown_one == shown_other {
        true => format!("its input differs beyond the recorded beginning {shown_one}"),
        false => format!("its input is {shown_one} and {shown_other}"),
    })
}

fn input_of(event: &Event) -> Option<&Fingerprint> {
    match event {
        Event::StepRecorded(record) => record.input.as_deref(),
        Event::ChildStarted { input, .. } => Some(input),
        _ => None,
    }
}

/// Describes a difference of failures or results that their descriptions do not show.
fn end_difference(one: &Event, other: &Event) -> Option<String> {
    match (failure_of(one), failure_of(other)) {
        (Some(one), Some(other)) if one.kind != other.kind => {
            Some(format!("its kind is {} and {}", one.kind.word(), other.kind.word()))
        }
        (Some(one), Some(other)) if one.type_name != other.type_name => {
            Some(format!("its type is {} and {}", one.type_name, other.type_name))
        }
        (Some(one), Some(other)) => {
            let differs = first_difference(one.value.as_ref()?, other.value.as_ref()?)?;
            Some(format!("its value {differs}"))
        }
        _ => {
            let (one, other) = (payload_of(one)?, payload_of(other)?);
            let is_shown = |payload: &Payload| payload.excerpt().as_bytes() == payload.as_bytes();
            let differs = first_difference(one, other).filter(|_| !is_shown(one) || !is_shown(other))?;
            Some(format!("it {differs}"))
        }
    }
}

fn failure_of(event: &Event) -> Option<&Failure> {
    match event {
        Event::StepRecorded(record) => match &record.outcome {
            Outcome::Failure(failure) => Some(failure),
            _ => None,
        },
        Event::ChildFinished { outcome: Outcome::Failure(failure), .. }
        | Event::AttemptFailed { failure, .. }
        | Event::Failed(failure) => Some(failure),
        _ => None,
    }
}

fn payload_of(event: &Event) -> Option<&Payload> {
    match event {
        Event::StepRecorded(record) => match &record.outcome {
            Outcome::Success(payload) => Some(payload),
            _ => None,
        },
        Event::ChildFinished { outcome: Outcome::Success(payload), .. }
        | Event::SignalReceived { payload, .. }
        | Event::ContinuedAsNew { input: payload }
        | Event::Completed { result: payload, .. } => Some(payload),
        _ => None,
    }
}

/// Returns the place of the first difference of two payloads, and what each has there.
fn first_difference(one: &Payload, other: &Payload) -> Option<String> {
    const CHARS_SHOWN: usize = 20;
    let [one, other] = [one, other].map(|payload| String::from_utf8_lossy(payload.as_bytes()));
    let same_count = one.chars().zip(other.chars()).take_while(|(one, other)| one == other).count();
    let rest = |text: &str| text.chars().skip(same_count).take(CHARS_SHOWN).collect::<String>();
    let (rest_of_one, rest_of_other) = (rest(&one), rest(&other));
    let number = same_count + 1;
    (one != other)
        .then(|| format!("differs from character {number} on: `{rest_of_one}` and `{rest_of_other}`"))
}
