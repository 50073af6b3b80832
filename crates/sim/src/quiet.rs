//! Invariants of open executions after a while without faults: every message has been delivered by
//! then. Also decides which executions may be helped to an end: none that has to hear of it from
//! another execution.

use std::collections::BTreeMap;

use abide_core::{Body, Event, Name, Phase, Waiting};
use abide_store::{Listed, Read, Snapshot, Target};

use crate::ending::executions;
use crate::life::SUSPECT_TAKEOVER_COUNT;
use crate::whole::whole;
use crate::world::World;

/// The state of every execution, by its id.
type Standing = BTreeMap<String, Snapshot>;

/// Returns all violations in a quiet world.
pub(crate) async fn check(world: &World) -> Vec<String> {
    let standing = standing(world, Look::Whole).await;
    let mut found = Vec::new();
    for (id, snapshot) in standing.iter().filter(|(_, snapshot)| !is_over(snapshot)) {
        if let Some(parent) = goes_on_without(&standing, snapshot) {
            found.push(format!("{parent:?} is paused, but its child {id:?} is not"));
        }
        if let Some(parent) = paused_for_nothing(&standing, snapshot) {
            found.push(format!("{id:?} is paused by its parent {parent:?}, which is not paused"));
        }
        if leaves_unread(snapshot) {
            found.push(format!("{id:?} leaves the answer of a child unread that it has given up"));
        }
        if let Some(signal) = unheard_signal(snapshot) {
            found.push(format!("{id:?} waits for signal {signal:?}, which lies in its inbox"));
        }
    }
    found
}

/// Returns the executions that may be helped to their end. A child whose parent has ended gets no
/// help: it has to hear of that end without it.
pub(crate) async fn helpable(world: &World, open: Vec<Listed>) -> Vec<Listed> {
    let standing = standing(world, Look::State).await;
    let mut helpable = Vec::new();
    for item in open {
        let is_orphan = standing.get(item.address.id.as_str()).is_some_and(|it| is_orphan(&standing, it));
        helpable.extend((!is_orphan).then_some(item));
    }
    helpable
}

/// How much of an execution is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    State,
    /// Also its journal and its inbox.
    Whole,
}

async fn standing(world: &World, look: Look) -> Standing {
    let mut standing = Standing::new();
    for item in executions(&*world.store, None).await.unwrap_or_default() {
        let state = Read { target: Target::Key(item.key), run: None, from: 1, limit: 0, with_inbox: false };
        let found = match look {
            Look::State => world.store.read(state).await,
            Look::Whole => whole(&*world.store, item.key).await,
        };
        if let Ok(Some(snapshot)) = found {
            standing.insert(item.address.id.to_string(), snapshot);
        }
    }
    standing
}

/// Returns the recorded events of the current run.
fn events(snapshot: &Snapshot) -> impl Iterator<Item = Event> {
    snapshot.journal.iter().filter_map(|record| record.entry().ok()).map(|entry| entry.event)
}

/// Whether live code leaves an answer unread that it will never want. An answer that the code has
/// not asked for yet may wait.
fn leaves_unread(snapshot: &Snapshot) -> bool {
    let is_given_up = |body: &Body| match body {
        Body::ChildDone { run, op, .. } => {
            let is_cancelled =
                |event| matches!(event, Event::ChildCancelled { op: given_up } if given_up == *op);
            *run != snapshot.execution.run() || events(snapshot).any(is_cancelled)
        }
        _ => false,
    };
    is_live(snapshot) && snapshot.inbox.messages.iter().any(|message| is_given_up(&message.body))
}

/// Whether nothing keeps the code from going on. Code that is left to another build, or waits to
/// run alone, is not live.
fn is_live(snapshot: &Snapshot) -> bool {
    let is_left = snapshot.summary.waiting.iter().any(|waiting| matches!(waiting, Waiting::Build { .. }));
    !is_left
        && snapshot.takeover_count < SUSPECT_TAKEOVER_COUNT
        && matches!(snapshot.execution.phase(), Phase::Running)
}

/// Returns the signal that live code waits for although it has arrived. Nothing else need happen
/// for the code to go on.
fn unheard_signal(snapshot: &Snapshot) -> Option<String> {
    let has_arrived = |wanted: &Name| {
        let is_it = |body: &Body| matches!(body, Body::Signal { name, .. } if name == wanted);
        snapshot.inbox.messages.iter().any(|message| is_it(&message.body))
    };
    let wanted = snapshot.summary.waiting.iter().find_map(|waiting| match waiting {
        Waiting::Signal { name, .. } if has_arrived(name) => Some(name.to_string()),
        _ => None,
    });
    wanted.filter(|_| is_live(snapshot))
}

/// Returns the parent on whose account a child is paused although the parent is not.
fn paused_for_nothing(standing: &Standing, snapshot: &Snapshot) -> Option<String> {
    let parent = snapshot.execution.parent()?;
    let of_parent = standing.get(parent.id.as_str())?;
    let is_inherited = matches!(snapshot.execution.phase(), Phase::Paused { is_own: false, .. });
    let goes_on = of_parent.execution.run() == parent.run
        && matches!(of_parent.execution.phase(), Phase::Running | Phase::Cancelling { .. });
    (is_inherited && goes_on).then(|| parent.id.to_string())
}

/// Returns the paused parent of a child that goes on nevertheless.
fn goes_on_without(standing: &Standing, snapshot: &Snapshot) -> Option<String> {
    let parent = snapshot.execution.parent()?;
    let of_parent = standing.get(parent.id.as_str())?;
    let is_paused = of_parent.execution.run() == parent.run
        && matches!(of_parent.execution.phase(), Phase::Paused { .. });
    // Exempt are executions that wind down, because they get no more messages; retried ones, which
    // are no longer children; ones that another client resumed; and ones that wait to run alone,
    // which learn of the pause then.
    let goes_on = matches!(snapshot.execution.phase(), Phase::Running)
        && snapshot.execution.run() == 1
        && snapshot.takeover_count < SUSPECT_TAKEOVER_COUNT
        && !events(snapshot).any(|event| matches!(event, Event::Resumed { .. }));
    (is_paused && goes_on).then(|| parent.id.to_string())
}

fn is_over(snapshot: &Snapshot) -> bool {
    snapshot.summary.status.is_terminal()
}

/// Whether the run that started a child has ended without the child's knowledge.
fn is_orphan(standing: &Standing, snapshot: &Snapshot) -> bool {
    let Some(parent) = snapshot.execution.parent() else { return false };
    let Some(of_parent) = standing.get(parent.id.as_str()) else { return false };
    let run = of_parent.execution.run();
    let has_ended = run > parent.run || (run == parent.run && is_over(of_parent));
    // After a retry or continue-as-new, the parent may have forgotten the child.
    let knows_nothing = matches!(snapshot.execution.phase(), Phase::Running | Phase::Paused { .. });
    has_ended && knows_nothing && snapshot.execution.run() == 1
}
