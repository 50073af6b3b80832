//! Moving executions from one store to another.

use abide_core::whole::{Settled, Whole};
use abide_core::{
    Address, Bounds, Entry, Epoch, Execution, Message, MessageId, Refusal, Summary, Timestamp, TooLarge,
    Version,
};

use crate::{Error, ExecutionKey, InboxRead, Read, Record, Result, Snapshot, Target, View};

/// A whole execution, as [`export`] reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// The journal of each run, from the first run on.
    pub runs: Vec<Vec<Record>>,
    /// Its state. It must follow from the entries of the last run.
    pub execution: Execution,
    /// Its summary. It says when to look at the execution next.
    pub summary: Summary,
    /// Its unread messages, in order of arrival.
    pub unread: Vec<Message>,
    /// The epoch of its last lease. The lease itself does not come along.
    pub epoch: Epoch,
    /// The number of its commits.
    pub version: Version,
    /// How many sessions in a row died while holding it.
    pub takeover_count: u32,
    /// Whether somebody held it, or it was ready.
    pub was_ready: bool,
}

/// The outcome of an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Imported {
    /// The execution is new here.
    New(ExecutionKey),
    /// It was here before, and may have gone on since.
    Known(ExecutionKey),
}

impl Import {
    /// The largest epoch or version that is accepted: no store has counted further.
    const COUNT_MAX: u64 = 1 << 48;

    /// How much larger than a payload and an error an entry may be.
    const ENTRY_SLACK_BYTES: usize = 64 << 10;

    /// Returns the address of the execution.
    pub fn address(&self) -> &Address {
        self.execution.address()
    }

    /// Checks all of it, and returns how it is stored at `now`. Stores call this before they write.
    pub fn settle(&self, bounds: &Bounds, now: Timestamp) -> Result<Settled> {
        let max = bounds.payload_bytes_max.saturating_add(bounds.failure_bytes_max);
        let max = max.saturating_add(Self::ENTRY_SLACK_BYTES);
        let largest = self.runs.iter().flatten().map(|record| record.bytes.len()).max().unwrap_or(0);
        if largest > max {
            let what = format!("an entry of {}", self.address());
            let refusal: Refusal = TooLarge { what, limit: "payload_bytes_max", found: largest, max }.into();
            return Err(refusal.into());
        }
        if self.epoch.0.max(self.version.0) > Self::COUNT_MAX {
            return Err(self.unsound("it counts too many leases or commits"));
        }
        let entries = |run: &Vec<Record>| run.iter().map(Record::entry).collect::<Result<Vec<Entry>>>();
        let runs: Vec<Vec<Entry>> = self
            .runs
            .iter()
            .map(entries)
            .collect::<Result<_>>()
            .map_err(|error| self.unsound(&error.to_string()))?;
        let Self { execution, summary, unread, was_ready, .. } = self;
        let whole = Whole { runs: &runs, execution, summary, unread, was_ready: *was_ready };
        Ok(whole.settle(bounds, now)?)
    }

    fn unsound(&self, what: &str) -> Error {
        Refusal::Unsound { id: self.address().id.clone(), what: what.to_owned() }.into()
    }

    /// Whether a store has this execution already: it has the same entries, possibly followed by
    /// more, and knows all these messages. `page` returns entries of a run from a number on.
    pub fn is_known<E>(
        &self,
        mut page: impl FnMut(u32, u64) -> std::result::Result<Vec<Record>, E>,
        mut knows: impl FnMut(&MessageId) -> std::result::Result<bool, E>,
    ) -> std::result::Result<bool, E> {
        for (records, run) in self.runs.iter().zip(1..) {
            let mut left = records.as_slice();
            while let Some(first) = left.first() {
                let found = page(run, first.seq)?;
                let count = found.len().min(left.len());
                if count == 0 || found[..count] != left[..count] {
                    return Ok(false);
                }
                left = &left[count..];
            }
        }
        for message in &self.unread {
            if !knows(&message.id)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the refusal when another execution has the id.
    pub fn conflict(&self) -> Error {
        let entry_count = self.execution.entry_count();
        let requested =
            format!("the import of one with {entry_count} entries in run {}", self.execution.run());
        let existing = "an execution with another history".to_owned();
        Refusal::Conflict { id: self.address().id.clone(), existing, requested }.into()
    }
}

/// Reads a whole execution as it is while nobody writes it; `None` when there is no such execution.
/// If it changes meanwhile, it is read again, a few times. Its lease stays where it is: the caller
/// makes sure that nobody goes on with the execution here.
pub async fn export(view: &dyn View, address: &Address) -> Result<Option<Import>> {
    const ATTEMPT_COUNT_MAX: usize = 10;
    for _ in 0..ATTEMPT_COUNT_MAX {
        let Some(before) = look(view, address).await? else { return Ok(None) };
        let mut runs = Vec::new();
        for run in 1..=before.execution.run() {
            runs.push(journal(view, &before, run).await?);
        }
        let unread = inbox(view, before.key).await?;
        let after = look(view, address).await?;
        if after.is_some_and(|after| (after.key, after.version()) == (before.key, before.version())) {
            return Ok(Some(Import {
                runs,
                was_ready: before.lease.session.is_some() || before.ready_at.is_some(),
                epoch: before.lease.epoch,
                version: before.lease.version,
                takeover_count: before.takeover_count,
                execution: before.execution,
                summary: before.summary,
                unread,
            }));
        }
    }
    Err(Error::Busy { what: "export" })
}

async fn look(view: &dyn View, address: &Address) -> Result<Option<Snapshot>> {
    let target = Target::Address(address.clone());
    view.read(Read { target, run: None, from: 1, limit: 0, with_inbox: false }).await
}

async fn journal(view: &dyn View, snapshot: &Snapshot, run: u32) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    loop {
        let (target, from) = (Target::Key(snapshot.key), records.len() as u64 + 1);
        let read = Read { target, run: Some(run), from, limit: usize::MAX, with_inbox: false };
        let page = view.read(read).await?.map(|found| found.journal).unwrap_or_default();
        if page.is_empty() {
            return Ok(records);
        }
        records.extend(page);
    }
}

async fn inbox(view: &dyn View, key: ExecutionKey) -> Result<Vec<Message>> {
    let (mut messages, mut read) = (Vec::new(), InboxRead::first(key));
    loop {
        let page = view.inbox(read).await?;
        messages.extend(page.messages);
        if page.next.is_none() {
            return Ok(messages);
        }
        read.after = page.next;
    }
}

impl Snapshot {
    fn version(&self) -> Version {
        self.lease.version
    }
}
