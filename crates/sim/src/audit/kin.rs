//! What must hold for why things end: a run that ends tells each of its children that is left, and nothing is cancelled that nobody has cancelled.

use std::collections::{BTreeMap, BTreeSet};

use abide_core::{Body, By, Entry, Event, Message};
use serde::Deserialize;

use super::causes::{Place, Run};
use super::{Books, Commit, Happened};

pub(super) fn check(books: &Books) -> Vec<String> {
    let mut family = Family {
        books,
        ended: BTreeSet::new(),
        told: BTreeSet::new(),
        over: BTreeMap::new(),
        asked: BTreeSet::new(),
        tellers: BTreeMap::new(),
        found: Vec::new(),
    };
    let mut place = Place::default();
    for item in &books.items {
        if let Happened::Accepted { message } = item {
            family.asked(message);
        }
        place.follow(item, |run, commit| family.committed(&run, commit));
    }
    family.found
}

/// Who was told what, as far as it has happened.
struct Family<'a> {
    books: &'a Books,
    /// What has come to its end.
    ended: BTreeSet<String>,
    /// The children that were told to end, and by which run of their parent.
    told: BTreeSet<(String, Run)>,
    /// What clients wanted to end, and why.
    asked: BTreeSet<(String, String)>,
    /// The runs that have ended, and how.
    over: BTreeMap<Run, &'static str>,
    /// The executions that are about to tell the children of a run, and of which.
    tellers: BTreeMap<String, Run>,
    found: Vec<String>,
}

/// What somebody who tells children is given.
#[derive(Deserialize)]
struct Task {
    parent: String,
    run: u32,
    change: serde_json::Value,
}

impl Task {
    /// Whether the children are to end, and not only to wait or to go on.
    fn ends(&self) -> bool {
        self.change == "Terminate" || self.change.get("Cancel").is_some()
    }
}

impl Family<'_> {
    fn asked(&mut self, message: &Message) {
        if let Body::Cancel { reason } | Body::Terminate { reason } = &message.body {
            self.asked.insert((message.to.id.to_string(), reason.clone()));
        }
    }

    fn committed(&mut self, run: &Run, commit: &Commit) {
        for message in &commit.told {
            match (&message.body, message.descent.as_deref()) {
                (Body::Start(start), _) => {
                    let task = serde_json::from_slice::<Task>(start.input.as_bytes()).ok();
                    if let Some(task) = task.filter(Task::ends) {
                        self.tellers.insert(message.to.id.to_string(), (task.parent, task.run));
                    }
                }
                (_, Some(descent)) => {
                    let by = (descent.parent.to_string(), descent.run);
                    self.told.insert((message.to.id.to_string(), by));
                }
                _ => {}
            }
        }
        let unasked: Vec<_> = commit.entries.iter().filter_map(|entry| self.unasked(run, entry)).collect();
        self.found.extend(unasked);
        let Some(end) = commit.entries.last().filter(|entry| entry.event.is_terminal()) else { return };
        if commit.next.is_none() {
            self.ended.insert(run.0.clone());
        }
        self.over.insert(run.clone(), end.event.word());
        let parent = self.tellers.remove(&run.0);
        // Somebody else may be about to tell them.
        for left in parent.iter().chain([run]) {
            if let Some(how) = self.over.get(left).copied()
                && !self.tellers.values().any(|told| told == left)
            {
                self.leave(left, how);
            }
        }
    }

    /// A run leaves its children behind.
    fn leave(&mut self, parent: &Run, how: &str) {
        let Some(past) = self.books.pasts.get(&parent.0) else { return };
        let journal = past.runs.get(parent.1 as usize - 1).map(Vec::as_slice).unwrap_or_default();
        let started = journal.iter().filter_map(|entry| match &entry.event {
            Event::ChildStarted { child, .. } => Some(child.as_str()),
            _ => None,
        });
        for id in started {
            let is_child =
                self.books.pasts.get(id).is_some_and(|child| child.is_child_of(&parent.0, parent.1));
            let is_told = self.told.contains(&(id.to_owned(), parent.clone()));
            if is_child && !is_told && !self.ended.contains(id) {
                let (parent, run) = parent;
                self.found.push(format!(
                    "{parent:?} run {run} has ended ({how}), but its child {id:?} was not told"
                ));
            }
        }
    }

    /// A cancellation of a client's that no client has sent.
    fn unasked(&self, (id, run): &Run, entry: &Entry) -> Option<String> {
        let (Event::CancelRequested { by: By(by), reason } | Event::Cancelled { by: By(by), reason }) =
            &entry.event
        else {
            return None;
        };
        // The world discards what it has damaged, and with it ends the children.
        let is_asked = by.starts_with("parent ")
            || by == "the world"
            || self.asked.contains(&(id.clone(), reason.clone()));
        (!is_asked).then(|| {
            format!("{id:?} run {run}: {} by {by} for {reason:?}, which nobody has sent", entry.event.word())
        })
    }
}
