//! The rows that a batch of operations writes, column by column, as `sql::APPLY` takes them.

mod lean;

use std::collections::HashSet;

use tokio_postgres::types::ToSql;

use crate::connection::Connection;
use crate::error::Stop;
use crate::sql;

/// Makes the row of a table, and the table as one array for each column.
macro_rules! table {
    ($(#[$doc:meta])* $table:ident of $row:ident { $($field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $row {
            $(pub(crate) $field: $type,)*
        }

        #[derive(Debug, Default)]
        pub(crate) struct $table {
            $($field: Vec<$type>,)*
        }

        impl $table {
            pub(crate) fn push(&mut self, row: $row) {
                $(self.$field.push(row.$field);)*
            }

            fn append(&mut self, mut later: Self) {
                $(self.$field.append(&mut later.$field);)*
            }

            fn bind<'a>(&'a self, parameters: &mut Vec<Parameter<'a>>) {
                $(parameters.push(&self.$field);)*
            }
        }
    };
}

pub(crate) type Parameter<'a> = &'a (dyn ToSql + Sync);

table! {
    /// A commit.
    Updates of Update {
        key: i64,
        epoch: i64,
        version: i64,
        session: i64,
        version_step: i32,
        run_step: i32,
        status: i16,
        listens: i16,
        wake_at: Option<i64>,
        care_at: Option<i64>,
        keeps_care: bool,
        keeps_lease: bool,
        ends_suspicion: bool,
        finished_at: Option<i64>,
        clears: bool,
        summary: Option<Vec<u8>>,
        state: Option<Vec<u8>>,
    }
}

table! {
    /// A new execution.
    Newborns of Newborn {
        key: i64,
        gate: Option<i64>,
        strict: bool,
        ns: String,
        id: String,
        route: i32,
        rank: i32,
        session: Option<i64>,
        epoch: i64,
        status: i16,
        listens: i16,
        wake_at: Option<i64>,
        care_at: Option<i64>,
        parent: Option<i64>,
        parent_run: Option<i32>,
        is_child: bool,
        tags: Option<Vec<u8>>,
        summary: Vec<u8>,
        state: Vec<u8>,
    }
}

table! {
    /// The next run of an execution that has ended.
    Retries of RetryRow {
        key: i64,
        gate: Option<i64>,
        epoch: i64,
        version: i64,
        run: i32,
        status: i16,
        listens: i16,
        wake_at: Option<i64>,
        care_at: Option<i64>,
        summary: Vec<u8>,
        state: Vec<u8>,
    }
}

table! {
    /// The records of one commit. Without `run`, they belong to the run that the row is in, or to
    /// the one after it.
    Journal of JournalRow {
        execution: i64,
        gate: i64,
        run: Option<i32>,
        run_step: i32,
        seq: i64,
        count: i32,
        body: Vec<u8>,
    }
}

table! {
    /// An item of the feed.
    Feed of FeedRow {
        execution: i64,
        gate: i64,
        run: Option<i32>,
        run_step: i32,
        at: i64,
        happening: i16,
        is_end: bool,
    }
}

table! {
    /// A message. Without `body`, it was read before it arrived, and only its id stays.
    Inbox of InboxRow {
        execution: i64,
        gate: Option<i64>,
        strict: bool,
        id: String,
        sort: i16,
        body: Option<Vec<u8>>,
    }
}

table! {
    /// A message that was read.
    Consumed of ConsumedRow {
        execution: i64,
        strict: bool,
        id: String,
    }
}

table! {
    /// A wake. It counts while its execution listens to at least what it `needs`.
    Wakes of Wake {
        execution: i64,
        gate: Option<i64>,
        route: i32,
        rank: i32,
        since: i64,
        message: String,
        needs: i16,
    }
}

table! {
    /// A wake, or a reason for care, that its holder has seen.
    Seen of SeenRow {
        execution: i64,
        message: String,
    }
}

table! {
    /// A reason to look at an execution without its code.
    Cares of Care {
        execution: i64,
        gate: Option<i64>,
        ns: String,
        at: i64,
        message: String,
        while_held: bool,
    }
}

table! {
    /// A tag of a new execution.
    Tags of TagRow {
        execution: i64,
        key: String,
        value: String,
    }
}

/// Everything that is written together.
#[derive(Debug, Default)]
pub(crate) struct Sheet {
    pub(crate) updates: Updates,
    pub(crate) newborns: Newborns,
    pub(crate) retries: Retries,
    pub(crate) journal: Journal,
    pub(crate) feed: Feed,
    pub(crate) inbox: Inbox,
    pub(crate) consumed: Consumed,
    pub(crate) wakes: Wakes,
    pub(crate) wakes_seen: Seen,
    pub(crate) cares: Cares,
    pub(crate) cares_seen: Seen,
    pub(crate) tags: Tags,
    /// Whether newborns are leased without a look at the queue before them.
    pub(crate) is_unseen: bool,
}

/// The rows that were written.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// The executions that were changed or created.
    pub(crate) keys: HashSet<i64>,
    /// The messages that were put into inboxes.
    pub(crate) messages: HashSet<(i64, String)>,
}

impl Sheet {
    pub(crate) fn is_empty(&self) -> bool {
        self.updates.key.is_empty()
            && self.newborns.key.is_empty()
            && self.retries.key.is_empty()
            && self.inbox.execution.is_empty()
    }

    /// Adds the rows of another operation.
    pub(crate) fn append(&mut self, later: Self) {
        self.updates.append(later.updates);
        self.newborns.append(later.newborns);
        self.retries.append(later.retries);
        self.journal.append(later.journal);
        self.feed.append(later.feed);
        self.inbox.append(later.inbox);
        self.consumed.append(later.consumed);
        self.wakes.append(later.wakes);
        self.wakes_seen.append(later.wakes_seen);
        self.cares.append(later.cares);
        self.cares_seen.append(later.cares_seen);
        self.tags.append(later.tags);
        self.is_unseen |= later.is_unseen;
    }

    /// Writes the rows, at `now`.
    pub(crate) async fn write(&self, connection: &Connection, now: i64) -> Result<Written, Stop> {
        if self.is_empty() {
            return Ok(Written::default());
        }
        if let Some(written) = self.write_lean(connection, now).await? {
            return Ok(written);
        }
        if self.is_unseen {
            // Only the lean statement looks.
            return Err(Stop::Raced);
        }
        let mut parameters: Vec<Parameter<'_>> = vec![&now];
        self.updates.bind(&mut parameters);
        self.newborns.bind(&mut parameters);
        self.retries.bind(&mut parameters);
        self.journal.bind(&mut parameters);
        self.feed.bind(&mut parameters);
        self.inbox.bind(&mut parameters);
        self.consumed.bind(&mut parameters);
        self.wakes.bind(&mut parameters);
        self.wakes_seen.bind(&mut parameters);
        self.cares.bind(&mut parameters);
        self.cares_seen.bind(&mut parameters);
        self.tags.bind(&mut parameters);
        let row = connection.row(sql::APPLY, &parameters).await?;
        let keys: Vec<i64> = row.try_get(0)?;
        let (targets, ids): (Vec<i64>, Vec<String>) = (row.try_get(1)?, row.try_get(2)?);
        Ok(Written { keys: keys.into_iter().collect(), messages: targets.into_iter().zip(ids).collect() })
    }
}
