//! The times and options that a program asks for, compared with the recorded ones.

use std::time::Duration;

use abide_core::{Entry, Event, Start, Timestamp};

use super::{Expected, Knowledge, Life};
use crate::code::{CAPABILITY, LANES, policy};
use crate::program::StartWith;

/// The time at which a timer is due, as the program asks for it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Due {
    /// This long after it is set.
    After(u64),
    /// At this time, in microseconds.
    At(u64),
}

/// Returns a complaint if the recorded due time of a timer differs from the time that the program
/// asks for. `set` is the entry that sets the timer.
pub(super) fn wrong_due(expected: &Expected, set: &Entry, slack: Duration) -> Option<String> {
    let Event::TimerSet { op, due_at } = &set.event else { return None };
    let is_right = match expected {
        Expected::Timer(Due::After(ms)) | Expected::Signal { timeout_ms: Some(ms), .. } => {
            is_after((set.at, Duration::from_millis(*ms)), *due_at, slack)
        }
        Expected::Timer(Due::At(micros)) => i64::try_from(*micros) == Ok(due_at.as_micros()),
        // Whether the timer may fire at all is checked when it fires.
        _ => true,
    };
    (!is_right).then(|| format!("{op} was set at {}, and is not due as asked: {due_at}", set.at))
}

/// Whether `time` is this long after the moment at which an entry was recorded. The clock may have
/// been read before, within the slack.
fn is_after((at, duration): (Timestamp, Duration), time: Timestamp, slack: Duration) -> bool {
    let latest = at.after(duration);
    time <= latest && latest <= time.after(slack)
}

/// Returns a complaint if the start of a child differs from the request of its parent.
/// Nothing is known about a child that was not created, because somebody else has its id.
pub(super) fn wrong_child(
    expected: &Expected,
    entry: &Entry,
    life: &Life<'_>,
    knowledge: &dyn Knowledge,
) -> Option<String> {
    let (Expected::Child { options, .. }, Event::ChildStarted { op, child, .. }) = (expected, &entry.event)
    else {
        return None;
    };
    let start = knowledge.start_of(child.as_str())?;
    let parent = start.parent.as_ref()?;
    let is_own = parent.id.as_str() == life.id && parent.run == life.run && parent.op == op.child_result();
    let what = wrong_start(options, entry.at, start, knowledge.slack()).filter(|_| is_own)?;
    Some(format!("entry {} started {child:?} with another {what} than asked for", entry.seq))
}

/// Returns the part of a start that differs from a request at this time, if one does.
pub(crate) fn wrong_start(
    options: &StartWith,
    at: Timestamp,
    start: &Start,
    slack: Duration,
) -> Option<&'static str> {
    let is_time = |asked_ms: Option<u64>, found: Option<Timestamp>| match (asked_ms, found) {
        (Some(ms), Some(found)) => is_after((at, Duration::from_millis(ms)), found, slack),
        (asked, found) => asked.is_none() && found.is_none(),
    };
    let names = |found: &[abide_core::Name]| found.iter().map(ToString::to_string).collect::<Vec<_>>();
    let requires: &[&str] = if options.is_demanding { &[CAPABILITY] } else { &[] };
    let tags: &[(&str, &str)] = if options.is_tagged { &[("sort", "tagged")] } else { &[] };
    let found_tags: Vec<_> = start.tags.iter().map(|tag| (tag.key.as_str(), tag.value.as_str())).collect();
    let parts = [
        ("delay", is_time(options.delay_ms, start.start_at)),
        ("deadline", is_time(options.deadline_ms, start.deadline_at)),
        ("priority", options.priority == start.priority),
        ("lane", LANES[usize::from(options.is_aside)] == start.lane.as_str()),
        ("requirement", names(&start.requires) == requires),
        ("tag", found_tags == tags),
        ("policy", options.retry.map(policy) == start.retry),
    ];
    parts.into_iter().find(|(_, is_right)| !is_right).map(|(what, _)| what)
}
