//! The outcomes that an operation may have.

use abide_core::{
    Block, ContentHash, Entry, Event, FailureKind, Op, Outcome as Recorded, Payload, Remedied, Remedy,
};
use serde_json::Value;

use super::{Expected, Failed, Knowledge, Reads, Under};
use crate::program::{Child, Code, Way, Work, mix};

/// Returns the outcome that an entry has for an operation, or an error if it is not possible.
/// Returns `None` if an operator has to decide about the outcome.
pub(super) fn possible(
    expected: &Expected,
    entry: &Entry,
    knowledge: &dyn Knowledge,
) -> Result<Option<Result<u64, Failed>>, String> {
    match (&entry.event, expected) {
        (Event::StepRecorded(record), Expected::Closure { work, .. })
            if matches!(record.outcome, Recorded::Unrecordable(_)) =>
        {
            let is_possible = work.way == Way::Unwritable && work.failure_count > 0;
            is_possible.then_some(None).ok_or_else(|| "its closure gives what can be recorded".to_owned())
        }
        _ => given(expected, entry, knowledge).map(Some),
    }
}

/// Returns the outcome of an entry that another edition wrote.
pub(super) fn foreign(expected: &Expected, entry: &Entry) -> Result<Option<Result<u64, Failed>>, String> {
    match &entry.event {
        Event::StepRecorded(record) => match &record.outcome {
            Recorded::Unrecordable(_) => Ok(None),
            outcome => outcome_of(outcome).map(Some),
        },
        Event::Unblocked { remedied: Some(Remedied { remedy: Remedy::Edit(payload), .. }), .. }
        | Event::SignalReceived { payload, .. } => Ok(Some(Ok(number(payload)?))),
        Event::TimerFired { .. } => match expected {
            Expected::Signal { .. } => Ok(Some(Err(Failed(FailureKind::Timeout)))),
            _ => Ok(Some(Ok(0))),
        },
        Event::ChildStarted { .. } => Ok(Some(Ok(0))),
        Event::ChildFinished { outcome, .. } => outcome_of(outcome).map(Some),
        other => Err(format!("{} gives nothing", other.word())),
    }
}

/// Whether a step or child has another input than the recorded one, and no operator has accepted
/// that.
pub(super) fn contradicts(expected: &Expected, entry: &Entry, journal: &[Entry]) -> bool {
    let (declared, recorded) = match (expected, &entry.event) {
        (Expected::Closure { input: Some(input), .. }, Event::StepRecorded(record)) => {
            (ContentHash::of(input.to_string().as_bytes()), record.input.as_ref())
        }
        (Expected::Child { input: Some(declared), .. }, Event::ChildStarted { input, .. }) => {
            (*declared, Some(input))
        }
        _ => return false,
    };
    let accepts = |later: &Entry| match &later.event {
        Event::Unblocked { remedied: Some(Remedied { op, declared: accepted, .. }), .. } => {
            Some(op) == entry.event.op() && accepted.as_deref() == Some(&declared)
        }
        _ => false,
    };
    recorded.is_some_and(|recorded| recorded.hash != declared) && !journal.iter().any(accepts)
}

/// Returns the hash that compares inputs of a child: its members in order, without null members.
/// In programs these are fields of structs: no variant holds nothing, and there are no maps.
pub(super) fn input_hash(child: &Child) -> ContentHash {
    let mut input = match &child.code {
        Code::Workflow(program) => serde_json::to_value(program),
        Code::Task(job) => serde_json::to_value(job),
    }
    .expect("programs are JSON");
    strip(&mut input);
    ContentHash::of(input.to_string().as_bytes())
}

fn strip(value: &mut Value) {
    match value {
        Value::Array(parts) => parts.iter_mut().for_each(strip),
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(strip);
        }
        _ => {}
    }
}

/// Whether the code can read the recorded payload.
pub(super) fn is_readable(expected: &Expected, event: &Event) -> bool {
    let payload = match event {
        Event::StepRecorded(record) => match &record.outcome {
            Recorded::Success(payload) => payload,
            _ => return true,
        },
        Event::Unblocked { remedied: Some(Remedied { remedy: Remedy::Edit(payload), .. }), .. }
        | Event::SignalReceived { payload, .. } => payload,
        _ => return true,
    };
    let reads = match expected {
        Expected::Closure { reads, .. } => *reads,
        Expected::Signal { is_text: true, .. } => Reads::Text,
        Expected::Signal { is_text: false, .. } => Reads::Number,
        _ => return true,
    };
    let found = if is_text_in(payload) { Reads::Text } else { Reads::Number };
    reads == Reads::Both || reads == found
}

/// Whether the payload is a text, and not a number.
pub(crate) fn is_text_in(payload: &Payload) -> bool {
    payload.as_bytes().starts_with(b"\"")
}

/// Returns the wait that took a signal from the inbox, readable or not, and the payload of the
/// signal.
pub(crate) fn taken_signal(event: &Event) -> Option<(&Op, &Payload)> {
    match event {
        Event::SignalReceived { op, payload, .. } => Some((op, payload)),
        Event::SignalRejected(rejected) => Some((&rejected.op, &rejected.payload)),
        _ => None,
    }
}

/// Whether an operator supplied a result that the code could not read: the code was blocked at the
/// same step later. Such a result is not delivered again.
pub(super) fn is_refuted(entry: &Entry, journal: &[Entry]) -> bool {
    let Event::Unblocked { remedied: Some(Remedied { op, remedy: Remedy::Edit(_), .. }), .. } = &entry.event
    else {
        return false;
    };
    let mut later = journal.iter().filter(|later| later.seq > entry.seq);
    later.any(|later| {
        matches!(&later.event, Event::Blocked { reason: Block::Unrecordable { op: again, .. }, .. } if again == op)
    })
}

fn given(
    expected: &Expected,
    entry: &Entry,
    knowledge: &dyn Knowledge,
) -> Result<Result<u64, Failed>, String> {
    match (&entry.event, expected) {
        (
            Event::Unblocked { remedied: Some(Remedied { remedy: Remedy::Edit(payload), .. }), .. },
            Expected::Closure { work, .. },
        ) if work.way == Way::Unwritable => Ok(Ok(number(payload)?)),
        (Event::StepRecorded(record), Expected::Closure { spot, work, has_timeout, .. }) => {
            let outcome = outcome_of(&record.outcome)?;
            possible_result(&outcome, work, *has_timeout, knowledge.run_count(spot))?;
            Ok(outcome)
        }
        (Event::StepRecorded(record), Expected::Transaction { fails }) => {
            match (outcome_of(&record.outcome)?, fails) {
                (Ok(1), false) => Ok(Ok(1)),
                (Ok(count), false) => Err(format!("a transaction happened {count} times")),
                (Err(Failed(FailureKind::Fatal)), true) => Ok(Err(Failed(FailureKind::Fatal))),
                (other, _) => Err(format!("a transaction gave {other:?}")),
            }
        }
        (Event::TimerFired { .. }, Expected::Timer(_)) => Ok(Ok(0)),
        (Event::TimerFired { .. }, Expected::Signal { timeout_ms: Some(_), .. }) => {
            Ok(Err(Failed(FailureKind::Timeout)))
        }
        (Event::SignalReceived { payload, .. }, Expected::Signal { .. }) => Ok(Ok(number(payload)?)),
        (Event::ChildStarted { op, child, .. }, Expected::Child { under, .. })
            if is_id(child.as_str(), op, under) =>
        {
            Ok(Ok(0))
        }
        (Event::ChildFinished { outcome, .. }, Expected::Result) => outcome_of(outcome),
        _ => Err(format!("{expected:?} is waited for")),
    }
}

fn is_id(child: &str, op: &Op, under: &Under) -> bool {
    match under {
        Under::Given(id) => child == id,
        Under::Own(parent) => {
            let key = op.key.as_ref().map(|key| format!("={key}")).unwrap_or_default();
            child == format!("{parent}/{}{key}/{}", op.name, op.nth)
        }
    }
}

/// Checks the end of a task whose function does this work.
pub(crate) fn possible_end(
    outcome: Result<u64, FailureKind>,
    work: &Work,
    run_count: u64,
) -> Result<(), String> {
    possible_result(&outcome.map_err(Failed), work, false, run_count)
}

/// Checks the result of a closure.
fn possible_result(
    outcome: &Result<u64, Failed>,
    work: &Work,
    has_timeout: bool,
    run_count: u64,
) -> Result<(), String> {
    match outcome {
        Ok(value) => {
            let first = u64::from(work.failure_count) + 1;
            let is_known = (first..=run_count).any(|nth| mix(work.value, nth) == *value);
            is_known.then_some(()).ok_or_else(|| format!("no run of the closure gave {value}"))
        }
        Err(Failed(FailureKind::Timeout)) if has_timeout => Ok(()),
        Err(Failed(kind)) if work.failure_count > 0 => match (kind, work.way) {
            (FailureKind::Error, Way::Error)
            | (FailureKind::Fatal, Way::Fatal)
            | (FailureKind::Panic, Way::Panic) => Ok(()),
            _ => Err(format!("its closure does not fail by {kind:?}")),
        },
        Err(Failed(kind)) => Err(format!("its closure never fails, but gave {kind:?}")),
    }
}

fn outcome_of(outcome: &Recorded) -> Result<Result<u64, Failed>, String> {
    match outcome {
        Recorded::Success(payload) => Ok(Ok(number(payload)?)),
        Recorded::Failure(failure) => Ok(Err(Failed(failure.kind))),
        Recorded::Unrecordable(lost) => Err(lost.reason.clone()),
    }
}

/// Returns the number in a payload, or in the text in it.
pub(crate) fn number(payload: &Payload) -> Result<u64, String> {
    if let Ok(text) = serde_json::from_slice::<String>(payload.as_bytes()) {
        return text.parse().map_err(|error| format!("{text:?}: {error}"));
    }
    serde_json::from_slice(payload.as_bytes()).map_err(|error| format!("{}: {error}", payload.excerpt()))
}
