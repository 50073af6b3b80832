//! Sheets that a leaner statement than `sql::APPLY` can write: only commits that do little, or only
//! starts.

use super::{Feed, Journal, Parameter, Sheet, Written};
use crate::connection::Connection;
use crate::error::Stop;
use crate::{rows, sql};

/// The record and the item of the feed beside each row, column by column.
#[derive(Default)]
struct Beside<'a> {
    seq: Vec<Option<i64>>,
    count: Vec<Option<i32>>,
    body: Vec<Option<&'a [u8]>>,
    at: Vec<Option<i64>>,
    happening: Vec<Option<i16>>,
    is_end: Vec<Option<bool>>,
}

impl<'a> Beside<'a> {
    /// Returns nothing if a row has two of a kind, or one in another run than `run`.
    fn of(keys: &[i64], run: Option<i32>, journal: &'a Journal, feed: &Feed) -> Option<Self> {
        let (mut beside, mut record, mut item) = (Self::default(), 0, 0);
        for key in keys {
            let has_record = journal.execution.get(record) == Some(key);
            if has_record && (journal.run[record], journal.run_step[record]) != (run, 0) {
                return None;
            }
            beside.seq.push(has_record.then(|| journal.seq[record]));
            beside.count.push(has_record.then(|| journal.count[record]));
            beside.body.push(has_record.then(|| journal.body[record].as_slice()));
            record += usize::from(has_record);
            let has_item = feed.execution.get(item) == Some(key);
            if has_item && (feed.run[item], feed.run_step[item]) != (run, 0) {
                return None;
            }
            beside.at.push(has_item.then(|| feed.at[item]));
            beside.happening.push(has_item.then(|| feed.happening[item]));
            beside.is_end.push(has_item.then(|| feed.is_end[item]));
            item += usize::from(has_item);
        }
        (record == journal.execution.len() && item == feed.execution.len()).then_some(beside)
    }
}

impl Sheet {
    /// Writes the rows, if a lean statement can.
    pub(super) async fn write_lean(
        &self,
        connection: &Connection,
        now: i64,
    ) -> Result<Option<Written>, Stop> {
        let is_bare = self.retries.key.is_empty()
            && self.inbox.execution.is_empty()
            && self.consumed.execution.is_empty()
            && self.wakes_seen.execution.is_empty()
            && self.cares.execution.is_empty()
            && self.cares_seen.execution.is_empty()
            && self.tags.execution.is_empty();
        let found = match (self.updates.key.is_empty(), self.newborns.key.is_empty()) {
            (false, true) if is_bare && self.wakes.execution.is_empty() => {
                self.write_commits(connection, now).await?
            }
            (true, false) if is_bare => self.write_starts(connection, now).await?,
            _ => None,
        };
        let Some(found) = found else { return Ok(None) };
        let keys = found.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        Ok(Some(Written { keys, ..Written::default() }))
    }

    async fn write_commits(
        &self,
        connection: &Connection,
        now: i64,
    ) -> Result<Option<Vec<tokio_postgres::Row>>, Stop> {
        let i = &self.updates;
        let is_plain = i.version_step.iter().all(|step| *step == 1)
            && i.run_step.iter().all(|step| *step == 0)
            && i.state.iter().all(Option::is_some);
        let beside = Beside::of(&i.key, None, &self.journal, &self.feed);
        let Some(beside) = beside.filter(|_| is_plain) else { return Ok(None) };
        let only_appends = self.feed.execution.is_empty()
            && i.keeps_lease.iter().chain(&i.keeps_care).all(|keeps| *keeps)
            && !i.clears.contains(&true)
            && i.finished_at.iter().all(Option::is_none);
        let mut parameters: Vec<Parameter<'_>> = vec![
            &now,
            &i.key,
            &i.epoch,
            &i.version,
            &i.session,
            &i.status,
            &i.listens,
            &i.wake_at,
            &i.ends_suspicion,
            &i.summary,
            &i.state,
            &beside.seq,
            &beside.count,
            &beside.body,
        ];
        if only_appends {
            return connection.rows(sql::APPENDS, &parameters).await.map(Some);
        }
        let more: [Parameter<'_>; 8] = [
            &i.care_at,
            &i.keeps_care,
            &i.keeps_lease,
            &i.finished_at,
            &i.clears,
            &beside.at,
            &beside.happening,
            &beside.is_end,
        ];
        parameters.extend(more);
        connection.rows(sql::ENDS, &parameters).await.map(Some)
    }

    async fn write_starts(
        &self,
        connection: &Connection,
        now: i64,
    ) -> Result<Option<Vec<tokio_postgres::Row>>, Stop> {
        let i = &self.newborns;
        let is_plain = i.gate.iter().all(Option::is_none)
            && i.parent.iter().all(Option::is_none)
            && !i.is_child.contains(&true)
            && i.tags.iter().all(Option::is_none);
        let beside = Beside::of(&i.key, Some(1), &self.journal, &self.feed);
        let (Some(beside), Some(is_ready)) = (beside.filter(|_| is_plain), self.ready_newborns(now)) else {
            return Ok(None);
        };
        let parameters: [Parameter<'_>; 22] = [
            &now,
            &self.is_unseen,
            &i.key,
            &i.ns,
            &i.id,
            &i.route,
            &i.rank,
            &i.session,
            &i.epoch,
            &i.status,
            &i.listens,
            &i.wake_at,
            &i.care_at,
            &i.summary,
            &i.state,
            &beside.seq,
            &beside.count,
            &beside.body,
            &beside.at,
            &beside.happening,
            &beside.is_end,
            &is_ready,
        ];
        connection.rows(sql::STARTS, &parameters).await.map(Some)
    }

    /// Returns which newborns have a wake, if these are all the wakes.
    fn ready_newborns(&self, now: i64) -> Option<Vec<bool>> {
        let (wakes, mut nth) = (&self.wakes, 0);
        let mut is_ready = Vec::with_capacity(self.newborns.key.len());
        for key in &self.newborns.key {
            let has_wake = wakes.execution.get(nth) == Some(key)
                && wakes.since[nth] == now
                && wakes.message[nth].is_empty()
                && wakes.needs[nth] == rows::NEEDS_NOTHING;
            nth += usize::from(has_wake);
            is_ready.push(has_wake);
        }
        (nth == wakes.execution.len()).then_some(is_ready)
    }
}
