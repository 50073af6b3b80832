//! Sees to it that everything ends, once nothing goes wrong any longer.

use std::pin::pin;

use abide::prelude::*;
use abide_core::{Namespace, Waiting};
use abide_engine::Runtime;
use abide_store::{List, ListCursor, ListOrder, Listed, View};

use futures_util::future::{Either, select};

use crate::ask::undecided_step;
use crate::generate::SIGNALS;

/// Values of the signals that see to the end begin here.
pub(crate) const LAST_SIGNALS: u64 = 1_000_000;

/// Why what is blocked, and stays so, is terminated at last.
pub(crate) const GIVEN_UP: &str = "no build goes on with it";

/// Why what cannot be sent a signal is terminated at last.
pub(crate) const INBOX_FULL: &str = "nothing that it waits for can be sent";

/// The most that is asked for at once.
const PAGE: usize = 1_000;

/// Lets everything end: resumes what is paused, sends what is waited for. What its parent paused is left to the parent, which must not have
/// forgotten it.
pub(crate) struct Ending {
    signal: u64,
}

impl Default for Ending {
    fn default() -> Self {
        Self { signal: LAST_SIGNALS }
    }
}

impl Ending {
    /// Gives each of them what it lacks.
    pub(crate) async fn help(&mut self, abide: &Abide, runtime: &dyn Runtime, open: Vec<Listed>) {
        for item in open {
            let handle = abide.handle::<u64>(item.address.id.as_str());
            match item.summary.status {
                Status::Paused if is_paused_by_parent(&handle).await => {}
                Status::Paused => drop(handle.resume().await),
                Status::Blocked => self.unblock(&handle, runtime).await,
                _ => self.signal(&handle, wanted_signals(&item)).await,
            }
        }
    }

    /// Decides about a step as `why` advises; whatever else is blocked ends.
    async fn unblock(&mut self, handle: &Handle<u64>, runtime: &dyn Runtime) {
        self.signal += 1;
        match handle.why().await.ok().as_deref().and_then(undecided_step) {
            Some(step) if self.signal.is_multiple_of(2) => drop(handle.unblock().rerun(step).await),
            Some(step) => drop(handle.unblock().edit(step, &self.signal).await),
            None if is_given_up(handle, runtime).await => drop(handle.terminate(GIVEN_UP).await),
            None => {}
        }
    }

    async fn signal(&mut self, handle: &Handle<u64>, names: Vec<String>) {
        for name in names {
            self.signal += 1;
            // A number, unless one was set aside by whoever waits for a text.
            let is_text = handle.why().await.is_ok_and(|why| why.contains(TEXT_WANTED));
            let sent = match is_text {
                true => handle.signal(&name, &self.signal.to_string()).await,
                false => handle.signal(&name, &self.signal).await,
            };
            // An inbox that is full of what nobody waits for takes no more.
            if let Err(ClientError::Refused { .. }) = sent {
                drop(handle.terminate(INBOX_FULL).await);
            }
        }
    }
}

/// How `why` begins to tell that a signal was set aside by code that waits for a text.
const TEXT_WANTED: &str = "was set aside: expected abide_sim::code::Written<true>";

/// Whether every live build has tried what is blocked, as whoever waits for its result is told. Until then the wait goes on.
async fn is_given_up(handle: &Handle<u64>, runtime: &dyn Runtime) -> bool {
    const PATIENCE_MS: u64 = 500;
    let result = pin!(handle.result());
    let told = select(result, runtime.sleep(ms(PATIENCE_MS))).await;
    matches!(told, Either::Left((Err(ClientError::Blocked { .. }), _)))
}

async fn is_paused_by_parent(handle: &Handle<u64>) -> bool {
    handle.why().await.is_ok_and(|why| why.contains(" by parent "))
}

/// The signals that an execution waits for, as it tells itself.
fn wanted_signals(item: &Listed) -> Vec<String> {
    let names = item.summary.waiting.iter().filter_map(|waiting| match waiting {
        // What was renamed takes the signals of its old name.
        Waiting::Signal { name, .. } => Some(name.as_str().trim_end_matches('n').to_owned()),
        _ => None,
    });
    let mut names: Vec<String> = names.collect();
    names.dedup();
    names.retain(|name| SIGNALS.contains(&name.as_str()));
    names
}

/// Those that have not ended.
pub(crate) fn open(executions: Vec<Listed>) -> Vec<Listed> {
    executions.into_iter().filter(|item| !item.summary.status.is_terminal()).collect()
}

/// Why each of them has not ended, a line each.
pub(crate) async fn reasons(abide: &Abide, open: Vec<Listed>) -> String {
    let mut told = String::new();
    for item in open {
        let why = abide.handle::<u64>(item.address.id.as_str()).why().await;
        told.push_str(&format!("\n  {}", why.unwrap_or_else(|error| error.to_string())));
    }
    told
}

/// The executions that were made last.
pub(crate) async fn newest(view: &(impl View + ?Sized)) -> abide_store::Result<Option<ListCursor>> {
    let newest = view.list(List { limit: 1, ..list(ListOrder::NewestFirst, None) }).await?;
    Ok(newest.items.first().map(|item| ListCursor(item.key)))
}

fn list(order: ListOrder, after: Option<ListCursor>) -> List {
    List { order, after, ..List::of(Namespace::default(), PAGE) }
}

/// Every execution that was made after this one, the oldest first.
pub(crate) async fn executions(
    view: &(impl View + ?Sized),
    mut after: Option<ListCursor>,
) -> abide_store::Result<Vec<Listed>> {
    let mut found: Vec<Listed> = Vec::new();
    loop {
        let page = view.list(list(ListOrder::OldestFirst, after)).await?;
        found.extend(page.items);
        after = page.next;
        if after.is_none() {
            return Ok(found);
        }
    }
}
