//! An execution as a page for people.

use std::fmt::Write as _;

use abide_core::{Event, Outcome, Patch, StepRecord, Timestamp};
use abide_store::Snapshot;

use super::{Picture, failed_attempts};
use crate::json;
use crate::output;
use crate::table::{Fit, Table, terminal_width};
use abide_core::text;

/// The most characters of a detail.
const DETAIL_CHARS: usize = 100;

/// Renders the whole page.
pub(super) fn of(picture: &Picture, now: Timestamp) -> String {
    let mut page = head(picture, now);
    section(&mut page, "JOURNAL", journal(picture));
    section(&mut page, "FAILED ATTEMPTS", attempts(picture));
    section(&mut page, "CHILDREN", children(picture));
    section(&mut page, "UNREAD MESSAGES", inbox(&picture.snapshot));
    page
}

/// Appends a table under a title, if it has rows.
fn section(page: &mut String, title: &str, table: Option<Table>) {
    let fit = Fit { width: terminal_width(), cut: &["DETAIL", "ERROR", "NAME"], left_out: &["TIME", "SITE"] };
    if let Some(table) = table.map(|table| table.fitting(fit)) {
        let _ = write!(page, "\n{title}\n{table}");
    }
}

fn head(picture: &Picture, now: Timestamp) -> String {
    let snapshot = &picture.snapshot;
    let (execution, summary) = (&snapshot.execution, &snapshot.summary);
    let route = execution.route();
    let mut head = format!("{}  {}\n", text::clean(execution.address().id.as_str()), summary.status_at(now));
    let mut line = |word: &str, text: String| {
        let _ = writeln!(head, "  {word:9} {}", text::clean(&text));
    };
    line("why", picture.why.clone());
    for damage in &picture.damage.0 {
        line("damage", damage.clone());
    }
    line(route.kind.word(), route.name.to_string());
    let entries = output::counted(execution.entry_count(), output::ENTRIES);
    line("run", format!("{}, {entries}", execution.run()));
    if picture.run != execution.run() {
        line("shown", format!("run {} of {}", picture.run, execution.run()));
    }
    if !picture.unused.is_empty() {
        let unused = picture.unused.iter().map(ToString::to_string);
        line("unused", unused.collect::<Vec<_>>().join(", "));
    }
    if let Some(unclaimed) = &summary.unclaimed {
        line("hint", unclaimed.to_string());
    }
    line("created", text::when(snapshot.created_at, now));
    if !execution.is_finished() {
        line("held by", holder(picture, now));
    }
    if let Some(at) = execution.deadline_at() {
        // It rings no more for an execution that has ended.
        line("deadline", if execution.is_finished() { at.to_string() } else { text::when(at, now) });
    }
    line("lane", lane(snapshot));
    if let Some(parent) = execution.parent() {
        line("parent", parent.id.to_string());
    }
    if !snapshot.tags.is_empty() {
        let tags = snapshot.tags.iter().map(|tag| format!("{}={}", tag.key, tag.value));
        line("tags", tags.collect::<Vec<_>>().join(" "));
    }
    head
}

fn lane(snapshot: &Snapshot) -> String {
    let (route, priority) = (snapshot.execution.route(), snapshot.execution.priority());
    let mut lane = route.lane.to_string();
    if priority != 0 {
        let _ = write!(lane, ", priority {priority}");
    }
    if !route.requires.is_empty() {
        let _ = write!(lane, ", requires {}", text::names(&route.requires));
    }
    lane
}

fn holder(picture: &Picture, now: Timestamp) -> String {
    match (picture.snapshot.lease.session, &picture.holder) {
        (None, _) => "nobody".to_owned(),
        (Some(session), None) => format!("session {session}"),
        (Some(session), Some(row)) => {
            let live = if row.is_live(now) { "live" } else { "no longer live" };
            format!("worker {:?}, session {session}, {live}", row.worker.name)
        }
    }
}

fn journal(picture: &Picture) -> Option<Table> {
    if picture.journal.is_empty() {
        return None;
    }
    let mut table = Table::new(["#", "TIME", "EVENT", "NAME", "DETAIL", "SITE"]);
    for entry in &picture.journal {
        let name = match &entry.event {
            Event::Started(start) => start.name.to_string(),
            event => event.op().map(nth).unwrap_or_default(),
        };
        let detail = text::excerpt(&detail(&entry.event), DETAIL_CHARS);
        let (seq, at, word) =
            (entry.seq.to_string(), entry.at.to_string(), json::word(&entry.event).to_owned());
        let site = picture.site(entry).unwrap_or_default().to_owned();
        table.push(vec![seq, at, word, name, detail, site]);
    }
    Some(table)
}

/// Returns the name of an operation, with its number if it is not the first of that name.
fn nth(op: &abide_core::Op) -> String {
    let key = op.key.as_ref().map(|key| format!("[{key}]")).unwrap_or_default();
    let nth = if op.nth > 1 { format!(" #{}", op.nth) } else { String::new() };
    format!("{}{key}{nth}", op.name)
}

fn detail(event: &Event) -> String {
    match event {
        Event::Started(start) if start.discarded_at.is_some() => {
            "discarded, because it was damaged".to_owned()
        }
        Event::Started(start) => format!("input {}", start.input.excerpt()),
        Event::StepRecorded(StepRecord { outcome, attempt, .. }) => match Patch::of(event) {
            Some(Patch { is_taken: true, .. }) => "takes the change".to_owned(),
            Some(_) => "does not take the change".to_owned(),
            None => with_attempt(outcome, *attempt),
        },
        Event::AttemptFailed { attempt, failure, retry_at, .. } => {
            format!("attempt {attempt}: {failure}; again at {retry_at}")
        }
        Event::TimerSet { due_at, .. } => format!("due at {due_at}"),
        Event::DeadlinePassed { until } => format!("its code may wind down until {until}"),
        Event::SignalReceived { payload, .. } => payload.excerpt(),
        Event::SignalRejected(rejected) => {
            format!("set aside, from {}: {rejected}", rejected.by)
        }
        Event::ChildStarted { child, .. } => child.to_string(),
        Event::ChildFinished { outcome, .. } => outcome.to_string(),
        Event::TimerFired { .. } | Event::ChildCancelled { .. } => String::new(),
        Event::Inherited { by, pause: None, .. } => format!("by {by}"),
        Event::Paused { by, reason }
        | Event::Inherited { by, pause: Some(reason), .. }
        | Event::CancelRequested { by, reason }
        | Event::Cancelled { by, reason } => {
            if reason.is_empty() {
                format!("by {by}")
            } else {
                format!("by {by}: {reason}")
            }
        }
        Event::Resumed { by } | Event::Unblocked { by, remedied: None } | Event::Retried { by } => {
            format!("by {by}")
        }
        Event::Blocked { reason, build: None } => reason.to_string(),
        Event::Blocked { reason, build: Some(build) } => format!("{reason} (build {build})"),
        Event::Completed { result, .. } => format!("result {}", result.excerpt()),
        Event::Failed(failure) => format!("{failure:#}"),
        Event::ContinuedAsNew { input } => format!("input {}", input.excerpt()),
        Event::Unblocked { by, remedied: Some(remedied) } => format!("by {by} {}", remedied.remedy),
        Event::Foreign(foreign) => format!("{} {}", foreign.kind, foreign.payload.excerpt()),
    }
}

/// File and line of the call that failed, if they are known.
fn site(failure: &abide_core::Failure) -> String {
    let site = failure.at.as_ref().and_then(|at| at.site.as_ref());
    site.map(|site| format!(" (at {site})")).unwrap_or_default()
}

fn with_attempt(outcome: &Outcome, attempt: u32) -> String {
    if attempt > 1 { format!("{outcome} (attempt {attempt})") } else { outcome.to_string() }
}

fn attempts(picture: &Picture) -> Option<Table> {
    let mut table = Table::new(["#", "TIME", "OF", "ATTEMPT", "ERROR"]);
    let mut is_empty = true;
    for entry in failed_attempts(&picture.journal) {
        let Event::AttemptFailed { op, attempt, failure, .. } = &entry.event else { continue };
        let error = text::excerpt(&format!("{failure}{}", site(failure)), DETAIL_CHARS);
        table.push(vec![
            entry.seq.to_string(),
            entry.at.to_string(),
            op.to_string(),
            attempt.to_string(),
            error,
        ]);
        is_empty = false;
    }
    (!is_empty).then_some(table)
}

fn children(picture: &Picture) -> Option<Table> {
    if picture.children.is_empty() {
        return None;
    }
    let mut table = Table::new(["ID", "WORKFLOW", "STATUS"]);
    for child in &picture.children {
        let (name, status) = (child.found.name().unwrap_or_default(), child.found.status());
        let status = status.unwrap_or("not there");
        table.push(vec![child.id.to_string(), name.to_owned(), status.to_owned()]);
    }
    Some(table)
}

fn inbox(snapshot: &Snapshot) -> Option<Table> {
    use abide_core::{Body, StepRemedy};
    if snapshot.inbox.messages.is_empty() {
        return None;
    }
    let mut table = Table::new(["MESSAGE", "NAME", "DETAIL"]);
    for message in &snapshot.inbox.messages {
        let by = &message.by;
        let (name, detail) = match &message.body {
            Body::Signal { name, payload } => (name.to_string(), payload.excerpt()),
            Body::ChildDone { op, outcome, .. } => (nth(op), outcome.to_string()),
            Body::Pause { reason } | Body::Cancel { reason } | Body::Terminate { reason } => {
                (String::new(), format!("by {by} {reason}"))
            }
            Body::Inherit { pause, .. } => {
                (String::new(), format!("by {by} {}", pause.as_deref().unwrap_or_default()))
            }
            Body::Resume | Body::Unblock { step: None } | Body::Retry => (String::new(), format!("by {by}")),
            Body::Unblock { step: Some(StepRemedy { step, remedy }) } => {
                (step.clone(), format!("by {by} {remedy}"))
            }
            Body::Start(start) => (start.name.to_string(), String::new()),
        };
        table.push(vec![message.body.word().to_owned(), name, text::excerpt(&detail, DETAIL_CHARS)]);
    }
    Some(table)
}
