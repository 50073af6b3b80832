//! Rules for the answers that clients got.

use std::collections::BTreeSet;

use abide_core::{Body, Event};

use super::{Books, Happened};
use crate::history::Answer;
use crate::model;
use crate::scenario::{Ask, Scenario};

pub(super) fn check(books: &Books, scenario: &Scenario) -> Vec<String> {
    let mut found = Vec::new();
    let (taken, results) = (taken_signals(books), results(books));
    for item in &books.items {
        let Happened::Answered { action, answer } = item else { continue };
        let action = &scenario.actions[*action];
        let say = |what: &str| {
            format!(
                "action {} ({}) was answered with {answer:?}, but {what}",
                action.number,
                action.what.word()
            )
        };
        match (&action.what, answer) {
            (Ask::Signal(..), Answer::Done) if books.is_watched && !taken.contains(&action.number) => {
                found.push(say("the signal was never taken"));
            }
            (Ask::Signal(..), Answer::Refused(_) | Answer::Unavailable) if taken.contains(&action.number) => {
                found.push(say("the signal was taken"));
            }
            (Ask::Start(root) | Ask::Run(root), Answer::Done | Answer::Result(_))
                if !books.exists(&scenario.roots[*root].id) =>
            {
                found.push(say("it does not exist"));
            }
            _ => {}
        }
        if let Answer::Result(value) = answer
            && !results.contains(value)
        {
            found.push(say("nothing ended with that"));
        }
    }
    found
}

/// Returns the numbers of the signals that the store took.
fn taken_signals(books: &Books) -> BTreeSet<u64> {
    let taken = books.items.iter().filter_map(|item| match item {
        Happened::Accepted { message } => match &message.body {
            Body::Signal { payload, .. } => model::number(payload).ok(),
            _ => None,
        },
        _ => None,
    });
    taken.collect()
}

/// Returns every result with which an execution ended.
fn results(books: &Books) -> BTreeSet<u64> {
    let recorded = books.pasts.values().flat_map(|past| past.ends().flatten().collect::<Vec<_>>());
    // An execution may have ended before its rows were damaged.
    let taken = books.items.iter().filter_map(|item| match item {
        Happened::Committed(commit) => commit.entries.last().map(|entry| &entry.event),
        _ => None,
    });
    let results = recorded.chain(taken.filter(|_| !books.damaged.is_empty())).filter_map(|end| match end {
        Event::Completed { result, .. } => model::number(result).ok(),
        _ => None,
    });
    results.collect()
}
