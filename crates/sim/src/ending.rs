//! Makes sure that everything ends once the faults are over.

use std::pin::pin;

use abide::prelude::*;
use abide_core::{Namespace, Waiting};
use abide_engine::Runtime;
use abide_store::{List, ListCursor, ListOrder, Listed, View};

use futures_util::future::{Either, select};

use crate::ask::{changed_operation, undecided_step};
use crate::generate::SIGNALS;

/// The values of signals that help executions to their end begin here.
pub(crate) const LAST_SIGNALS: u64 = 1_000_000;

/// The reason for terminating an execution that stays blocked.
pub(crate) const GIVEN_UP: &str = "no build goes on with it";

/// The reason for terminating an execution that can be sent no signal.
pub(crate) const INBOX_FULL: &str = "nothing that it waits for can be sent";

/// The most executions in one request.
const PAGE: usize = 1_000;

/// Lets everything end: resumes paused executions and sends the signals that they wait for. An
/// execution that its parent paused is left to the parent, which must not have forgotten it.
pub(crate) struct Ending {
    signal: u64,
}

impl Default for Ending {
    fn default() -> Self {
        Self { signal: LAST_SIGNALS }
    }
}

impl Ending {
    /// Resumes, unblocks or signals each execution, as its status demands.
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

    /// Decides about an operation as `why` advises, and accepts every other one; another blocked
    /// execution is terminated once all builds have given up on it.
    async fn unblock(&mut self, handle: &Handle<u64>, runtime: &dyn Runtime) {
        self.signal += 1;
        let why = handle.why().await.unwrap_or_default();
        let is_even = self.signal.is_multiple_of(2);
        match (undecided_step(&why), changed_operation(&why)) {
            (Some(step), _) if is_even => drop(handle.unblock().rerun(step).await),
            (Some(step), _) => drop(handle.unblock().edit(step, &self.signal).await),
            (None, Some(op)) if is_even => drop(handle.unblock().accept(op).await),
            (None, _) if is_given_up(handle, runtime).await => drop(handle.terminate(GIVEN_UP).await),
            (None, _) => {}
        }
    }

    async fn signal(&mut self, handle: &Handle<u64>, names: Vec<String>) {
        for name in names {
            self.signal += 1;
            // Send a number, unless code that waits for a text has set a number aside.
            let is_text = handle.why().await.is_ok_and(|why| why.contains(TEXT_WANTED));
            let sent = match is_text {
                true => handle.signal(&name, &self.signal.to_string()).await,
                false => handle.signal(&name, &self.signal).await,
            };
            // An inbox that is full of unwanted signals takes no more.
            if let Err(ClientError::Refused { .. }) = sent {
                drop(handle.terminate(INBOX_FULL).await);
            }
        }
    }
}

/// The words of `why` about a signal that was set aside by code that waits for a text.
const TEXT_WANTED: &str = "was set aside: expected abide_sim::code::Written<true>";

/// Whether every live build has tried the blocked execution: only then does waiting for its result
/// fail.
async fn is_given_up(handle: &Handle<u64>, runtime: &dyn Runtime) -> bool {
    const PATIENCE_MS: u64 = 500;
    let result = pin!(handle.result());
    let told = select(result, runtime.sleep(ms(PATIENCE_MS))).await;
    matches!(told, Either::Left((Err(ClientError::Blocked { .. }), _)))
}

async fn is_paused_by_parent(handle: &Handle<u64>) -> bool {
    handle.why().await.is_ok_and(|why| why.contains(" by parent "))
}

/// Returns the signals that an execution waits for, according to its summary.
fn wanted_signals(item: &Listed) -> Vec<String> {
    let names = item.summary.waiting.iter().filter_map(|waiting| match waiting {
        // A renamed operation takes the signals of its old name.
        Waiting::Signal { name, .. } => Some(name.as_str().trim_end_matches('n').to_owned()),
        _ => None,
    });
    let mut names: Vec<String> = names.collect();
    names.dedup();
    names.retain(|name| SIGNALS.contains(&name.as_str()));
    names
}

/// Returns the executions that have not ended.
pub(crate) fn open(executions: Vec<Listed>) -> Vec<Listed> {
    executions.into_iter().filter(|item| !item.summary.status.is_terminal()).collect()
}

/// Returns the reason why each of them has not ended, one a line.
pub(crate) async fn reasons(abide: &Abide, open: Vec<Listed>) -> String {
    let mut told = String::new();
    for item in open {
        let why = abide.handle::<u64>(item.address.id.as_str()).why().await;
        told.push_str(&format!("\n  {}", why.unwrap_or_else(|error| error.to_string())));
    }
    told
}

/// Returns a cursor at the newest execution.
pub(crate) async fn newest(view: &(impl View + ?Sized)) -> abide_store::Result<Option<ListCursor>> {
    let newest = view.list(List { limit: 1, ..list(ListOrder::NewestFirst, None) }).await?;
    Ok(newest.items.first().map(|item| ListCursor(item.key)))
}

fn list(order: ListOrder, after: Option<ListCursor>) -> List {
    List { order, after, with_tags: true, ..List::of(Namespace::default(), PAGE) }
}

/// Returns every execution that was created after this one, oldest first.
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
