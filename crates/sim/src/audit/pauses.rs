//! Rules for paused executions: no closure begins until the pause is lifted by the side that set
//! it. A parent that goes on lifts only its own pause.

use std::collections::BTreeMap;

use abide_core::{Entry, Event};

use super::care::is_task;
use super::causes::{CurrentRuns, Run};
use super::{Books, Happened};
use crate::history::Closure;

pub(super) fn check(books: &Books) -> Vec<String> {
    let (mut place, mut pauses): (CurrentRuns, BTreeMap<Run, Pauses>) = Default::default();
    let mut known_epochs: BTreeMap<(u32, &str), u64> = BTreeMap::new();
    let mut found = Vec::new();
    for item in &books.items {
        match item {
            Happened::Leased { machine, id, epoch, .. } => {
                let known = known_epochs.entry((*machine, id)).or_default();
                *known = (*known).max(*epoch);
            }
            Happened::Began { machine, closure, .. } => {
                let spot = &closure.spot;
                let known = known_epochs.get(&(*machine, spot.id.as_str())).copied().unwrap_or_default();
                let paused = pauses.get(&(spot.id.clone(), spot.run)).and_then(Pauses::since);
                // A machine that has lost the lease does not know of the pause.
                if paused.is_some_and(|epoch| known >= epoch) && is_seen(books, closure) {
                    let Closure { key, spot, .. } = closure;
                    found.push(format!("{key} began on machine {machine} while {:?} was paused", spot.id));
                }
            }
            _ => {}
        }
        place.follow(item, |run, commit| {
            let pauses = pauses.entry(run).or_default();
            commit.entries.iter().for_each(|entry| pauses.follow(entry, commit.epoch));
        });
    }
    found
}

/// Whether the history shows that a closure began behind a pause. The function of a task may begin
/// before the resume that allows it is durable, and a blocking closure that has begun may still
/// wait for a thread.
fn is_seen(books: &Books, Closure { spot, is_blocking, .. }: &Closure) -> bool {
    books.pasts.contains_key(&spot.id) && !is_task(books, spot) && !is_blocking
}

/// The pauses of a run, each with the epoch under which it was recorded.
#[derive(Default)]
struct Pauses {
    own: Option<u64>,
    of_parent: Option<u64>,
}

impl Pauses {
    fn since(&self) -> Option<u64> {
        [self.own, self.of_parent].into_iter().flatten().max()
    }

    fn follow(&mut self, entry: &Entry, epoch: u64) {
        match &entry.event {
            Event::Paused { .. } => self.own = Some(epoch),
            Event::Inherited { pause, .. } => self.of_parent = pause.as_ref().map(|_| epoch),
            // Code that winds down is not paused.
            Event::Resumed { .. } | Event::CancelRequested { .. } | Event::DeadlinePassed { .. } => {
                *self = Self::default();
            }
            _ => {}
        }
    }
}
