//! Executions from other stores.

use abide_core::{LeaseRow, Timestamp};

use super::row::Row;
use super::state::MemoryState;
use crate::{ExecutionKey, Import, Imported, Result};

impl MemoryState {
    pub(super) fn import(&mut self, import: Import, now: Timestamp) -> Result<Imported> {
        let settled = import.settle(&self.bounds, now)?;
        if let Some(row) = self.at(import.address()) {
            let page =
                |run, from| Ok(Row::page(row.journal_of(Some(run)), (from, usize::MAX), &self.page_bounds));
            let is_known = import.is_known(page, |id| Ok::<_, crate::Error>(row.seen.contains(id)))?;
            return if is_known { Ok(Imported::Known(row.key)) } else { Err(import.conflict()) };
        }
        let key = self.next_key();
        let mut past = self.positioned_runs(key, &import);
        let journal = past.pop().expect("what is sound has a run");
        let (_, first) = past.first().unwrap_or(&journal).first().expect("a run begins with its start");
        let first = first.entry()?;
        let began = first.began().expect("a run begins with its start");
        let address = import.address();
        let read = settled.read.into_iter().chain(import.unread.iter().map(|message| message.id.clone()));
        self.insert(Row {
            key,
            route: import.execution.route(),
            parent: self.parent_key(began.start, &address.namespace),
            start: began.start.clone(),
            ready_at: settled.is_ready.then_some(now),
            wake_at: settled.summary.wake_at,
            summary: settled.summary,
            lease: LeaseRow { session: None, epoch: import.epoch, version: import.version },
            given_beat: 0,
            created_at: began.at,
            finished_at: settled.finished_at,
            takeover_count: import.takeover_count,
            journal,
            past,
            seen: read.collect(),
            is_aside: false,
            arrived_count: import.unread.len() as u64,
            inbox: (1..).zip(import.unread).collect(),
            execution: import.execution,
        });
        Ok(Imported::New(key))
    }

    fn positioned_runs(&mut self, key: ExecutionKey, import: &Import) -> Vec<Vec<(u64, crate::Record)>> {
        let runs = import.runs.iter().zip(1..);
        runs.map(|(records, run)| self.positioned(key, (import.address(), run), records.clone())).collect()
    }
}
