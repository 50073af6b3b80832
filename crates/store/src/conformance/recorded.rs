//! Everything that a store has recorded.

use abide_core::{Address, Namespace};

use crate::{List, Read, Record, Result, Target, View};

/// A record, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Of which execution.
    pub address: Address,
    /// Of which of its runs.
    pub run: u32,
    /// The record.
    pub record: Record,
}

/// Everything that the executions of a namespace have recorded: the oldest execution first, run by run. For tests; it is as large as the store.
pub async fn recorded(view: &(impl View + ?Sized), namespace: &Namespace) -> Result<Vec<Recorded>> {
    let mut found = Vec::new();
    let mut list = List::of(namespace.clone(), 1_000);
    loop {
        let page = view.list(list.clone()).await?;
        for item in &page.items {
            for run in 1..=item.run.unwrap_or(0) {
                for record in recorded_by(view, &item.address, run).await? {
                    found.push(Recorded { address: item.address.clone(), run, record });
                }
            }
        }
        list.after = page.next;
        if list.after.is_none() {
            return Ok(found);
        }
    }
}

/// Everything that one run of an execution has recorded.
pub async fn recorded_by(view: &(impl View + ?Sized), address: &Address, run: u32) -> Result<Vec<Record>> {
    let mut records: Vec<Record> = Vec::new();
    loop {
        let (target, from) = (Target::Address(address.clone()), records.len() as u64 + 1);
        let read = Read { target, run: Some(run), from, limit: 1_000, with_inbox: false };
        match view.read(read).await? {
            Some(found) if !found.journal.is_empty() => records.extend(found.journal),
            _ => return Ok(records),
        }
    }
}
