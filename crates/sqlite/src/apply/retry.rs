//! `retry`: the next run of a failed or cancelled execution.

use abide_core::Message;
use abide_store::{ExecutionKey, Record};
use rusqlite::params;

use super::inbox::Put;
use super::message::first_entry;
use crate::batch::Batch;
use crate::caches::{CachedRow, Newest};
use crate::error::Stop;
use crate::journal;
use crate::mail::read_sum;
use crate::place::{Columns, Place};
use crate::rows::{LeaseState, Target, indexed, micros, unsigned};
use crate::sheet::Draft;
use crate::sql;

impl Batch<'_> {
    /// Opens the next run, unless the message was there before. The caller has asked the execution,
    /// on whose state `core` decides.
    ///
    /// Neither epoch nor version changes: the sender of the last commit of the ended run still
    /// learns that it was applied. It can write nothing more, because nobody holds the execution
    /// until it is claimed under the next epoch.
    pub(crate) fn retry(&mut self, target: &Target, message: &Message) -> Result<Put, Stop> {
        let key = ExecutionKey(unsigned(target.key));
        let now = self.now();
        let state = LeaseState::read(self.connection, target.key).map_err(Stop::aside)?;
        let state = state.ok_or_else(|| Stop::corrupt(format!("execution {} is gone", target.key)))?;
        let first = first_entry(self.connection, target.key, state.cold.first).map_err(Stop::aside)?;
        let began = first.began().ok_or_else(|| Stop::corrupt(format!("{} has no start", target.key)))?;
        // Before anything is written: a refusal leaves no trace.
        let (execution, entries) =
            target.execution(self.connection)?.retried(began, message.by.clone(), now)?;
        let kept = self.kept_by(target.key).map_err(Stop::aside)?;
        if !self.insert_read(target.key, &message.id)? {
            return Ok(Put::Duplicate(key));
        }
        if let Some(kept) = kept {
            self.let_go(kept)?;
        }
        self.forget_orders(target.key)?;
        let mut cached = CachedRow { state, rows: Newest::new(), is_warm: false };
        let records: Vec<_> = entries.iter().map(Record::of).collect();
        journal::begin_run(self, target.key, &mut cached, &records)?;
        let summary = execution.summary_at_start(now);
        let Columns { place, rank, place_at } = Place::Ready(target.queue, now).columns();
        let mut sheet = Draft::of(&summary, &execution);
        let reopened = self.connection.prepare_cached(sql::EXECUTION_REOPEN)?.execute(params![
            target.key,
            indexed(summary.status),
            cached.state.anchor.head,
            sheet.sealed(&cached.state.cold, &cached.state.anchor),
            place,
            rank,
            place_at,
            micros(summary.care_at)
        ])?;
        if reopened != 1 {
            return Err(Stop::corrupt(format!("execution {} has not ended", target.key)));
        }
        self.caches.rows.remove(&target.key);
        self.caches.inboxes.remove(&target.key);
        self.caches.targets.remove(&target.key);
        self.announce(target.queue.route)?;
        if summary.care_at.is_some() {
            self.announce_care(target.queue.route)?;
        }
        Ok(Put::Delivered(key))
    }

    /// Marks the orders for the ended run as read.
    fn forget_orders(&mut self, key: i64) -> Result<(), Stop> {
        let mut forgotten = Vec::new();
        self.each_sort(key, |id, sort| {
            // A message whose sort cannot be read stays unread, and a reader of the inbox meets it.
            if let (Some(id), Some(sort)) = (id, sort)
                && !sort.outlives_failure()
            {
                forgotten.push(id.to_owned());
            }
        })?;
        let mut consume = self.connection.prepare_cached(sql::INBOX_CONSUME)?;
        for id in forgotten {
            consume.execute(params![key, id, read_sum(key, &id)])?;
        }
        Ok(())
    }
}
