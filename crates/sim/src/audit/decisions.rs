//! Rules for decisions about steps: an execution follows a decision that the store took, unless the
//! execution ends first.

use std::collections::BTreeMap;

use abide_core::{Body, Event};

use super::causes::CurrentRuns;
use super::{Books, Happened};

pub(super) fn check(books: &Books) -> Vec<String> {
    let mut place = CurrentRuns::default();
    // The steps with a decision that no execution has read yet.
    let mut unread: BTreeMap<String, &str> = BTreeMap::new();
    let mut found = Vec::new();
    for item in &books.items {
        if let Happened::Accepted { message } = item
            && let Body::Unblock { step: Some(remedy) } = &message.body
        {
            let id = message.to.id.to_string();
            if let Some(before) = unread.insert(id.clone(), &remedy.step) {
                found.push(format!(
                    "{id:?}: a decision about {before:?} was taken, and another one behind it"
                ));
            }
        }
        place.follow(item, |(id, _), commit| {
            for entry in &commit.entries {
                match &entry.event {
                    Event::Unblocked { remedied: None, .. } if unread.contains_key(&id) => {
                        found.push(format!("{id:?}: a decision was taken, but it went on without"));
                    }
                    Event::Unblocked { .. }
                    | Event::CancelRequested { .. }
                    | Event::DeadlinePassed { .. } => {
                        unread.remove(&id);
                    }
                    event if event.is_terminal() => drop(unread.remove(&id)),
                    _ => {}
                }
            }
        });
    }
    let lost = unread.into_iter().filter(|(id, _)| books.pasts.contains_key(id));
    found.extend(
        lost.map(|(id, step)| format!("{id:?}: a decision about {step:?} was taken and never followed")),
    );
    found
}
