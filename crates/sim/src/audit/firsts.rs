//! Rules for the order in which the code of a run gets outcomes: messages in the store's order, a
//! timer against a message by due time and arrival, and of several waits for a signal the first.
//!
//! The model says which operations were open when an outcome was recorded. Clocks that differ make
//! "first" mean different things to different machines, so the rules judge timers only where all
//! clocks agree.

use std::collections::{BTreeMap, BTreeSet};

use abide_core::{Entry, Event, MessageId, Op, OpKind, Timestamp};

use super::delays::has_true_clocks;
use super::{Books, Past, editions};
use crate::history::{Arrival, Happened};
use crate::model::{Id, Moment, id_of, is_text_in, word_of};
use crate::program::keyed;
use crate::scenario::Scenario;

pub(super) fn check(books: &Books, scenario: &Scenario) -> Vec<String> {
    let is_timed = has_true_clocks(scenario);
    let arrivals = arrivals(books);
    let mut found = Vec::new();
    for past in books.pasts.values() {
        let Some(mail) = arrivals.get(past.id.as_str()) else { continue };
        for (run, journal) in (1..).zip(&past.runs) {
            let lives = Lives { mail, run, journal, read: read_before(past, run), due: due_times(journal) };
            for moment in editions::moments(past, books, run) {
                let wrong = lives.out_of_order(&moment).or_else(|| lives.untimely(&moment, is_timed));
                let wrong = wrong.or_else(|| lives.overtaken(&moment));
                found.extend(wrong.map(|wrong| format!("{:?} run {run}: {wrong}", past.id)));
            }
        }
    }
    found
}

/// Returns the messages that arrived at each execution, in the store's order.
pub(super) fn arrivals(books: &Books) -> BTreeMap<&str, Vec<&Arrival>> {
    let mut arrivals: BTreeMap<&str, Vec<&Arrival>> = BTreeMap::new();
    for item in &books.items {
        if let Happened::Arrived(arrival) = item {
            arrivals.entry(&arrival.to).or_default().push(arrival);
        }
    }
    arrivals
}

/// Returns the signals that earlier runs took, readable or not.
fn read_before(past: &Past, run: u32) -> BTreeSet<&MessageId> {
    past.runs.iter().take(run as usize - 1).flatten().filter_map(received).collect()
}

fn received(entry: &Entry) -> Option<&MessageId> {
    match &entry.event {
        Event::SignalReceived { message, .. } => Some(message),
        Event::SignalRejected(rejected) => Some(&rejected.message),
        _ => None,
    }
}

/// Returns the due time of each timer of a journal, with the number of the entry that set it.
fn due_times(journal: &[Entry]) -> BTreeMap<Id, (u64, Timestamp)> {
    let due = |entry: &Entry| match &entry.event {
        Event::TimerSet { op, due_at } => Some((id_of(op), (entry.seq, *due_at))),
        _ => None,
    };
    journal.iter().filter_map(due).collect()
}

struct Lives<'a> {
    mail: &'a [&'a Arrival],
    run: u32,
    journal: &'a [Entry],
    read: BTreeSet<&'a MessageId>,
    due: BTreeMap<Id, (u64, Timestamp)>,
}

impl<'a> Lives<'a> {
    fn entry(&self, moment: &Moment) -> Option<&'a Entry> {
        self.journal.get(usize::try_from(moment.seq).ok()?.checked_sub(1)?)
    }

    /// Returns the message that was taken at this moment, and its place.
    fn taken(&self, moment: &Moment) -> Option<(usize, &'a Arrival)> {
        let is_it = |arrival: &Arrival| match &self.entry(moment)?.event {
            Event::SignalReceived { message, .. } => Some(arrival.id == *message),
            // Earlier code gave the child up: later code hears so from no message.
            Event::ChildFinished { op, .. } if self.is_given_up(op) => None,
            Event::ChildFinished { op, .. } => Some(arrival.answers == Some((self.run, id_of(op)))),
            _ => None,
        };
        let (place, arrival) =
            self.mail.iter().enumerate().find(|(_, arrival)| is_it(arrival) == Some(true))?;
        Some((place, arrival))
    }

    fn is_given_up(&self, wait: &Op) -> bool {
        let gives_up = |event: &Event| matches!(event, Event::ChildCancelled { op } if op == wait);
        self.journal.iter().any(|entry| gives_up(&entry.event))
    }

    /// Returns the messages that were unread at this moment and that an open operation waited for.
    fn awaited(&self, moment: &'a Moment) -> impl Iterator<Item = (usize, &'a Arrival)> {
        let before = self.journal.iter().take_while(move |entry| entry.seq < moment.seq);
        let read: BTreeSet<_> = before.filter_map(received).collect();
        let is_open = move |arrival: &Arrival| match (&arrival.signals, &arrival.answers) {
            (Some(name), _) => {
                let waits = |(kind, of, _): &Id| *kind == word_of(OpKind::Signal) && keyed(of).0 == name;
                moment.open.iter().any(waits)
            }
            (_, Some((run, id))) => *run == self.run && moment.open.contains(id),
            _ => false,
        };
        let is_unread = move |id: &MessageId| !read.contains(id) && !self.read.contains(id);
        let mail = self.mail.iter().copied().enumerate();
        mail.filter(move |(_, arrival)| is_unread(&arrival.id) && is_open(arrival))
    }

    /// Checks that a message goes before all later messages. Another rule covers signals of one
    /// name.
    fn out_of_order(&self, moment: &Moment) -> Option<String> {
        let (place, taken) = self.taken(moment)?;
        let is_other = |other: &Arrival| other.answers.is_some() || other.signals != taken.signals;
        let mut earlier = self.awaited(moment).take_while(|(other, _)| *other < place);
        let (_, other) = earlier.find(|(_, other)| is_other(other))?;
        Some(format!("entry {} takes {:?}, though {:?} came before it", moment.seq, taken.id, other.id))
    }

    /// Checks that of several waits for one signal, the first that can read it receives it. Waits
    /// of one name and key are numbered in the order in which they are opened.
    fn overtaken(&self, moment: &Moment) -> Option<String> {
        let Event::SignalReceived { op, payload, .. } = &self.entry(moment)?.event else { return None };
        let (kind, name, nth) = id_of(op);
        let can_read = |id: &Id| moment.texts.contains(id) == is_text_in(payload);
        let is_before = |id: &&Id| (id.0, &id.1) == (kind, &name) && id.2 < nth && can_read(id);
        let first = moment.open.iter().find(is_before)?;
        Some(format!("entry {} gives {op} a signal for which {first:?} waited before it", moment.seq))
    }

    /// Checks that a timer goes before messages that surely arrived after its due time, and behind
    /// messages that surely arrived before it.
    fn untimely(&self, moment: &Moment, is_timed: bool) -> Option<String> {
        let entry = self.entry(moment).filter(|_| is_timed)?;
        if let Event::TimerFired { op } = &entry.event {
            let (_, due_at) = *self.due.get(&id_of(op))?;
            let (_, earlier) = self.awaited(moment).find(|(_, arrival)| arrival.at < due_at)?;
            return Some(format!("{op} fired at entry {}, though {:?} came earlier", entry.seq, earlier.id));
        }
        let (_, taken) = self.taken(moment)?;
        let is_due = |id: &&Id| {
            let due = self.due.get(*id).filter(|(set, _)| *set < entry.seq);
            due.is_some_and(|(_, due_at)| *due_at <= entry.at && *due_at < taken.asked_at)
        };
        let id = moment.timed.iter().find(is_due)?;
        Some(format!("entry {} takes {:?}, though {id:?} was due earlier", entry.seq, taken.id))
    }
}
