//! All records of a store.

use abide_core::{Address, Namespace};

use crate::{List, Read, Record, Result, Target, View};

/// A record with its execution and run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The execution.
    pub address: Address,
    /// Its run.
    pub run: u32,
    /// The record.
    pub record: Record,
}

/// Reads all records of the executions of a namespace: the oldest execution first, run by run. For
/// tests; the result is as large as the store.
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

/// Reads all records of one run of an execution.
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
