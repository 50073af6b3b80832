//! Rules for the causes of ends: a run that ends sends an order to each child that is left, and no
//! execution is cancelled unless somebody asked for it.

use std::collections::{BTreeMap, BTreeSet};

use abide_core::{Body, By, Entry, Event, Message};
use serde::Deserialize;

use super::causes::{CurrentRuns, Run};
use super::{Books, Commit, Happened, Past};

pub(super) fn check(books: &Books) -> Vec<String> {
    let mut family = Family {
        books,
        ended: BTreeSet::new(),
        told: BTreeSet::new(),
        over: BTreeMap::new(),
        asked: BTreeSet::new(),
        discarded: Vec::new(),
        tellers: BTreeMap::new(),
        found: Vec::new(),
    };
    let mut place = CurrentRuns::default();
    for item in &books.items {
        match item {
            Happened::Accepted { message } => family.asked(message),
            Happened::Discarded { id, by, reason } => family.discarded.push((id, by, reason)),
            _ => {}
        }
        place.follow(item, |run, commit| family.committed(&run, commit));
    }
    family.found
}

/// The orders and ends so far.
struct Family<'a> {
    books: &'a Books,
    /// The executions that have ended.
    ended: BTreeSet<String>,
    /// The children that were ordered to end, each with the run of the parent that ordered it.
    told: BTreeSet<(String, Run)>,
    /// The executions that clients wanted to end, each with the reason.
    asked: BTreeSet<(String, String)>,
    /// The executions that the world has discarded, each with the name and the reason that it gave.
    discarded: Vec<(&'a str, &'a By, &'a str)>,
    /// The ended runs, each with the word of its end.
    over: BTreeMap<Run, &'static str>,
    /// The executions that are about to send orders to the children of a run, each with that run.
    tellers: BTreeMap<String, Run>,
    found: Vec<String>,
}

/// The input of an execution that sends orders to children.
#[derive(Deserialize)]
struct Task {
    parent: String,
    run: u32,
    change: serde_json::Value,
}

impl Task {
    /// Whether the children are to end, and not only to pause or to go on.
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
        // Another execution may still be about to send them their orders.
        for left in parent.iter().chain([run]) {
            if let Some(how) = self.over.get(left).copied()
                && !self.tellers.values().any(|told| told == left)
            {
                self.leave(left, how);
            }
        }
    }

    /// Checks that a run which leaves its children behind has sent them their orders.
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

    /// Reports a cancellation by a client if no client sent it.
    fn unasked(&self, (id, run): &Run, entry: &Entry) -> Option<String> {
        let (Event::CancelRequested { by, reason } | Event::Cancelled { by, reason }) = &entry.event else {
            return None;
        };
        let is_asked = by.0.starts_with("parent ")
            || self.is_discarded(id, (by, reason))
            || self.asked.contains(&(id.clone(), reason.clone()));
        (!is_asked).then(|| {
            let (word, By(by)) = (entry.event.word(), by);
            format!("{id:?} run {run}: {word} by {by} for {reason:?}, which nobody has sent")
        })
    }

    /// Whether the world has discarded an execution, or one above it, in these words: the end of a
    /// parent ends its children.
    fn is_discarded(&self, id: &str, words: (&By, &str)) -> bool {
        let mut above = Some(id.to_owned());
        while let Some(id) = above {
            let is_it = |(of, by, reason): &(&str, &By, &str)| {
                // A child hears the reason behind the fate of its parent.
                *of == id && *by == words.0 && words.1.ends_with(reason)
            };
            if self.discarded.iter().any(is_it) {
                return true;
            }
            above = self.books.pasts.get(&id).and_then(Past::parent);
        }
        false
    }
}
