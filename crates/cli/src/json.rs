//! Executions as JSON. Times are RFC 3339 in UTC; payloads are the values that they contain.

use abide_core::{
    Address, Block, Body, Entry, Event, Failure, FailureKind, Message, Name, Op, Origin, Outcome, Patch,
    Payload, Remedy, Start, StepRecord, StepRemedy, Summary, Tag, Timestamp, Waiting,
};
use serde_json::{Map, Value, json};

/// Renders a time.
pub(crate) fn time(at: Timestamp) -> Value {
    Value::String(at.to_string())
}

/// Renders a time that may be missing.
pub(crate) fn time_maybe(at: Option<Timestamp>) -> Value {
    at.map_or(Value::Null, time)
}

/// Renders the user's bytes as their JSON value, or as text if they are not JSON.
pub(crate) fn payload(payload: &Payload) -> Value {
    serde_json::from_slice(payload.as_bytes())
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(payload.as_bytes()).into_owned()))
}

/// Renders everything that an execution waits for.
pub(crate) fn waiting(summary: &Summary) -> Value {
    let with_site = |(wait, site): (&Waiting, Option<&str>)| {
        let mut fields = object(one_wait(wait));
        fields.insert("site".to_owned(), site.into());
        Value::Object(fields)
    };
    summary.waits().map(with_site).collect()
}

fn one_wait(waiting: &Waiting) -> Value {
    match waiting {
        Waiting::Step { name, attempt } => {
            json!({ "for": "step", "name": name.as_str(), "attempt": attempt })
        }
        Waiting::Retry { name, attempt, at } => {
            json!({ "for": "retry", "name": name.as_str(), "attempt": attempt, "until": time(*at) })
        }
        Waiting::Sleep { until } => json!({ "for": "time", "until": time(*until) }),
        Waiting::Signal { name, until } => {
            json!({ "for": "signal", "name": name.as_str(), "until": time_maybe(*until) })
        }
        Waiting::Child { id } => json!({ "for": "child", "id": id.as_str() }),
        Waiting::Suspect { died_at, until } => {
            let died_at: Vec<_> = died_at.iter().map(|at| time(*at)).collect();
            json!({ "for": "suspicion", "died_at": died_at, "until": time_maybe(*until) })
        }
        Waiting::Build { until } => json!({ "for": "build", "until": time(*until) }),
    }
}

/// Renders tags as an object.
pub(crate) fn tags(tags: &[Tag]) -> Value {
    let pairs = tags.iter().map(|tag| (tag.key.to_string(), Value::String(tag.value.to_string())));
    Value::Object(pairs.collect())
}

/// Renders a recorded error.
pub(crate) fn failure(failure: &Failure) -> Value {
    json!({
        "kind": failure_kind(failure.kind),
        "type": failure.type_name,
        "message": failure.message,
        "chain": failure.chain,
        "value": failure.value.as_ref().map(payload),
        "at": failure.at.as_ref().map(place),
    })
}

fn place(at: &Origin) -> Value {
    json!({ "code": at.code, "op": at.op, "attempt": at.attempt, "site": at.site })
}

/// Returns the word for the kind of a failure.
pub(crate) fn failure_kind(kind: FailureKind) -> &'static str {
    kind.word()
}

/// Renders an unread message.
pub(crate) fn message(message: &Message) -> Value {
    let mut fields = object(json!({
        "id": message.id.as_str(),
        "message": message.body.word(),
        "by": message.by.0,
        "arrived_at": time(message.arrived_at),
    }));
    fields.extend(object(match &message.body {
        Body::Signal { name, payload: value } => json!({ "name": name.as_str(), "payload": payload(value) }),
        Body::ChildDone { op, outcome: end, .. } => {
            json!({ "op": operation(op), "outcome": outcome(end) })
        }
        Body::Pause { reason } | Body::Cancel { reason } | Body::Terminate { reason } => {
            json!({ "reason": reason })
        }
        Body::Inherit { number, pause } => json!({ "number": number, "reason": pause }),
        Body::Resume | Body::Unblock { step: None } | Body::Retry => json!({}),
        Body::Unblock { step: Some(StepRemedy { step, remedy: choice }) } => {
            json!({ "step": step, "remedy": remedy(choice) })
        }
        Body::Start(start) => started(start),
    }));
    Value::Object(fields)
}

/// Renders one journal entry, which comes from this place in the code.
pub(crate) fn entry(entry: &Entry, site: Option<&str>) -> Value {
    let mut fields = object(json!({ "seq": entry.seq, "at": time(entry.at), "event": word(&entry.event) }));
    if let Some(op) = entry.event.op() {
        fields.insert("op".to_owned(), operation(op));
    }
    fields.insert("site".to_owned(), site.into());
    fields.extend(object(details(&entry.event)));
    Value::Object(fields)
}

/// Returns the word for an event. The answer to `ctx.patched` is recorded as a step is, but nothing
/// has run.
pub(crate) fn word(event: &Event) -> &'static str {
    if Patch::of(event).is_some() { "patched" } else { event.word() }
}

/// Renders everything in an event except its name and its operation.
fn details(event: &Event) -> Value {
    if let Some(Patch { is_taken, .. }) = Patch::of(event) {
        return json!({ "taken": is_taken });
    }
    match event {
        Event::Started(start) => started(start),
        Event::StepRecorded(StepRecord { outcome: end, attempt, .. }) => {
            json!({ "attempt": attempt, "outcome": outcome(end) })
        }
        Event::AttemptFailed { attempt, failure: error, retry_at, .. } => {
            json!({ "attempt": attempt, "error": failure(error), "retry_at": time(*retry_at) })
        }
        Event::TimerSet { due_at, .. } => json!({ "due_at": time(*due_at) }),
        Event::DeadlinePassed { until } => json!({ "until": time(*until) }),
        Event::SignalReceived { message, payload: value, .. } => {
            json!({ "message": message.as_str(), "payload": payload(value) })
        }
        Event::SignalRejected(rejected) => json!({
            "message": rejected.message.as_str(),
            "by": rejected.by.0,
            "arrived_at": time(rejected.arrived_at),
            "payload": payload(&rejected.payload),
            "expected": rejected.expected,
            "complaint": rejected.complaint,
        }),
        Event::ChildStarted { child, input, .. } => {
            json!({ "child": child.as_str(), "input": input.excerpt })
        }
        Event::ChildFinished { outcome: end, .. } => json!({ "outcome": outcome(end) }),
        Event::TimerFired { .. } | Event::ChildCancelled { .. } => json!({}),
        Event::Paused { by, reason }
        | Event::CancelRequested { by, reason }
        | Event::Cancelled { by, reason } => {
            json!({ "by": by.0, "reason": reason })
        }
        Event::Inherited { by, number, pause } => {
            json!({ "by": by.0, "number": number, "reason": pause })
        }
        Event::Resumed { by } | Event::Unblocked { by, remedied: None } | Event::Retried { by } => {
            json!({ "by": by.0 })
        }
        Event::Blocked { reason, build } => block(reason, build.as_ref()),
        Event::Completed { result, unused } => {
            json!({ "result": payload(result), "unused": unused.iter().map(operation).collect::<Value>() })
        }
        Event::Failed(error) => json!({ "error": failure(error) }),
        Event::ContinuedAsNew { input } => json!({ "input": payload(input) }),
        Event::Unblocked { by, remedied: Some(remedied) } => {
            json!({ "by": by.0, "remedy": remedy(&remedied.remedy) })
        }
        Event::Foreign(foreign) => {
            json!({ "kind": foreign.kind.as_str(), "payload": payload(&foreign.payload) })
        }
    }
}

fn started(start: &Start) -> Value {
    json!({
        "kind": start.kind.word(),
        "name": start.name.as_str(),
        "input": payload(&start.input),
        "discarded_at": time_maybe(start.discarded_at),
        "lane": start.lane.as_str(),
        "requires": start.requires.iter().map(Name::as_str).collect::<Vec<_>>(),
        "priority": start.priority,
        "start_at": time_maybe(start.start_at),
        "deadline_at": time_maybe(start.deadline_at),
        "tags": tags(&start.tags),
        "parent": start.parent.as_ref().map(|parent| parent.id.as_str()),
    })
}

fn block(reason: &Block, build: Option<&Name>) -> Value {
    let (expected, found) = match reason {
        Block::Mismatch { expected, found } | Block::Undecodable { expected, found, .. } => {
            (Some(expected), Some(found))
        }
        Block::OtherInput(other) => (Some(&other.recorded.excerpt), Some(&other.declared.excerpt)),
        _ => (None, None),
    };
    json!({ "reason": reason.to_string(), "expected": expected, "found": found, "build": build.map(Name::as_str) })
}

/// Renders the end of an operation: one of `ok`, `error` and `unrecordable`.
fn outcome(outcome: &Outcome) -> Value {
    match outcome {
        Outcome::Success(value) => json!({ "ok": payload(value) }),
        Outcome::Failure(error) => json!({ "error": failure(error) }),
        Outcome::Unrecordable(lost) => json!({ "unrecordable": lost.reason }),
    }
}

/// Renders the decision about an operation: `"rerun"`, its result as `edit`, or `"accept"`.
fn remedy(remedy: &Remedy) -> Value {
    match remedy {
        Remedy::Rerun => json!("rerun"),
        Remedy::Edit(result) => json!({ "edit": payload(result) }),
        Remedy::Accept => json!("accept"),
    }
}

/// Renders an operation.
pub(crate) fn operation(op: &Op) -> Value {
    let key = op.key.as_ref().map(Name::as_str);
    json!({ "kind": op.kind.word(), "name": op.name.as_str(), "key": key, "nth": op.nth })
}

/// Renders the address of an execution.
pub(crate) fn address(address: &Address) -> Value {
    json!({ "id": address.id.as_str(), "namespace": address.namespace.as_str() })
}

/// Returns the fields of an object.
pub(crate) fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}
