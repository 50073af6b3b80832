//! Says what an execution waits for.

use abide_core::{Entry, Event, ExecutionId, Name, Summary, Timestamp, Waiting, text};
use abide_store::Snapshot;

use super::sentence::{Child, Facts, excerpt, predicate, since};

/// Describes everything that it waits for; `None` when it has announced nothing. An execution that
/// rests does nothing else: its other waits are those of its last worker.
pub(super) fn waits(facts: &Facts) -> Option<String> {
    let known = |id: &ExecutionId| facts.child.as_ref().filter(|_| facts.followed.as_ref() == Some(id));
    let waits = || facts.snapshot.summary.waits();
    let others = waits().filter(|(wait, _)| rested_since(wait).is_none());
    let told = others.map(|(wait, site)| match wait {
        Waiting::Child { id } => waits_for_child((id, site), known(id)),
        wait => waits_for(facts, wait, site),
    });
    let told = text::enumerated(told.collect()).map(|told| format!("{told}{}", left_out(facts)));
    let Some((rest, _)) = waits().find(|(wait, _)| rested_since(wait).is_some()) else { return told };
    let before = told.map(|told| format!("; when its worker died it was {told}")).unwrap_or_default();
    Some(format!("{rest}{before}"))
}

/// Says that a summary, which names a few waits, does not name all children.
fn left_out(facts: &Facts) -> String {
    let Snapshot { summary, execution, .. } = &facts.snapshot;
    let named_count = summary.waiting.iter().filter(|wait| matches!(wait, Waiting::Child { .. })).count();
    let open_count = execution.open_child_count();
    let is_excerpt = summary.waiting.len() >= Summary::WAITING_COUNT_MAX;
    let has_more = is_excerpt && named_count > 0 && open_count as usize > named_count;
    if has_more { format!(" ({open_count} children are open)") } else { String::new() }
}

/// Returns the last death of its worker, if this is a rest.
fn rested_since(wait: &Waiting) -> Option<Timestamp> {
    match wait {
        Waiting::Suspect { died_at, until: Some(_) } => died_at.last().copied(),
        _ => None,
    }
}

fn waits_for(facts: &Facts, wait: &Waiting, site: Option<&str>) -> String {
    let at_site = text::at(site);
    match wait {
        Waiting::Sleep { until } => {
            let at_site = site.map(|site| format!(" at {site}")).unwrap_or_default();
            format!("sleeping until {}{at_site}", text::when(*until, facts.now))
        }
        Waiting::Retry { name, attempt, at } => {
            let is_it = |entry: &&Entry| entry.event.op().is_some_and(|op| op.name == *name);
            let failed = facts.tail.iter().rev().find(is_it).map(|entry| &entry.event);
            let why = match failed {
                Some(Event::AttemptFailed { attempt, failure, .. }) => {
                    let failed_at = failure.at.as_ref().and_then(|at| at.site.as_deref());
                    let at_site = text::at(site.or(failed_at));
                    format!(", because attempt {attempt} failed: {}{at_site}", excerpt(&failure.to_string()))
                }
                _ => at_site,
            };
            let at_words = text::when(*at, facts.now);
            // No entry records that an attempt begins. An execution without a holder is described
            // as ready, and none begins in a rest.
            let rest = facts.snapshot.summary.waiting.iter().find_map(rested_since);
            if *at <= rest.unwrap_or(facts.now) {
                return format!("running attempt {attempt} of {name:?}, which was due at {at_words}{why}");
            }
            format!("waiting until {at_words} for attempt {attempt} of {name:?}{why}")
        }
        Waiting::Signal { name, until } => {
            let since = since(facts, |event| !matches!(event, Event::SignalRejected(_)));
            let until = until.map(|until| format!(", and gives up at {}", text::when(until, facts.now)));
            let until = until.unwrap_or_default();
            format!("waiting for signal {name:?}{at_site}{since}{until}{}", set_aside(facts, name))
        }
        Waiting::Step { .. } | Waiting::Child { .. } | Waiting::Suspect { .. } | Waiting::Build { .. } => {
            format!("{wait}{at_site}")
        }
    }
}

/// Describes the last signal of this name, if the code could not read it.
fn set_aside(facts: &Facts, name: &Name) -> String {
    let is_signal = |event: &Event| matches!(event, Event::SignalRejected(_) | Event::SignalReceived { .. });
    let is_of_name =
        |entry: &&Entry| is_signal(&entry.event) && entry.event.op().is_some_and(|op| op.name == *name);
    match facts.tail.iter().rev().find(is_of_name).map(|entry| &entry.event) {
        Some(Event::SignalRejected(rejected)) => {
            let (by, at) = (excerpt(&rejected.by.0), text::when(rejected.arrived_at, facts.now));
            format!("; one from {by} at {at} was set aside: {}", excerpt(&rejected.to_string()))
        }
        _ => String::new(),
    }
}

fn waits_for_child((id, site): (&ExecutionId, Option<&str>), child: Option<&Child>) -> String {
    let which = match child {
        Some(Child::Known(facts)) => format!(", which {}", predicate(facts)),
        Some(Child::Missing) => ", which does not exist".to_owned(),
        Some(Child::Damaged(what)) => format!(", which is damaged: {what}"),
        Some(Child::Newer) => ", which was written by a newer version of abide".to_owned(),
        Some(Child::Unread(why)) => format!(", which cannot be read now: {why}"),
        Some(Child::TooDeep) | None => String::new(),
    };
    format!("waiting for child {id:?}{}{which}", text::at(site))
}
