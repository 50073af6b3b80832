//! What a message finds.

use std::sync::Arc;

use abide_core::intake::{Found, Standing};
use abide_core::{Address, Body, Entry, Execution, LeaseRow, Message, MessageId, Start};
use abide_store::Record;
use tokio_postgres::Row;

use crate::error::Stop;
use crate::rows;

/// A look for an execution, on behalf of a message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Question {
    pub(crate) address: Address,
    /// The id of the message; empty if only the key is wanted.
    pub(crate) message: String,
    wants_count: bool,
    wants_state: bool,
    wants_first: bool,
}

impl Question {
    /// Asks for everything that the intake of `message` may depend on.
    pub(crate) fn of(message: &Message) -> Self {
        let is_start = matches!(message.body, Body::Start(_));
        let is_retry = matches!(message.body, Body::Retry);
        // There is room for every outcome of a child, however many there are.
        let is_answer = matches!(message.body, Body::ChildDone { .. });
        Self {
            address: message.to.clone(),
            message: message.id.as_str().to_owned(),
            wants_count: !is_start && !is_retry && !is_answer,
            wants_state: message.control().is_some() || message.descent.is_some() || is_retry,
            wants_first: is_start || is_retry,
        }
    }

    /// Asks for the key.
    pub(crate) fn of_address(address: Address) -> Self {
        let message = String::new();
        Self { address, message, wants_count: false, wants_state: false, wants_first: false }
    }

    pub(crate) fn flags(&self) -> (bool, bool, bool) {
        (self.wants_count, self.wants_state, self.wants_first)
    }
}

/// An execution, as far as it was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) key: i64,
    pub(crate) address: Address,
    pub(crate) route: i32,
    pub(crate) rank: i32,
    pub(crate) standing: Standing,
    pub(crate) is_aside: bool,
    pub(crate) lease: LeaseRow,
    unread_count: usize,
    /// The newest unread message.
    pub(crate) newest: Option<MessageId>,
    /// Whether the message is known.
    pub(crate) is_seen: bool,
    execution: Option<Result<Execution, String>>,
    /// The first record of the first run, and that of the current one.
    first: Option<Vec<u8>>,
    run_first: Option<Vec<u8>>,
    orders: Vec<Vec<u8>>,
}

impl Target {
    pub(crate) fn read(row: &Row, address: &Address) -> Result<Option<Self>, Stop> {
        let Some(key) = row.try_get::<_, Option<i64>>(0)? else { return Ok(None) };
        let standing = Standing {
            status: rows::status(key, row.try_get(3)?)?,
            listens: rows::listens(key, row.try_get(4)?)?,
            run: Some(rows::run(key, row.try_get(6)?)?),
        };
        let count: Option<i64> = row.try_get(10)?;
        let newest: Option<String> = row.try_get(11)?;
        let state: Option<Vec<u8>> = row.try_get(13)?;
        let execution = state.map(|state| match rows::state(key, address, &state) {
            Ok(execution) => Ok(execution),
            Err(Stop::Told(error)) => Err(error.to_string()),
            Err(_) => Err("its state cannot be read".to_owned()),
        });
        Ok(Some(Self {
            key,
            address: address.clone(),
            route: row.try_get(1)?,
            rank: row.try_get(2)?,
            standing,
            is_aside: row.try_get(5)?,
            lease: rows::lease_row(row.try_get(7)?, row.try_get(8)?, row.try_get(9)?),
            unread_count: usize::try_from(count.unwrap_or(0)).unwrap_or(0),
            newest: newest.map(MessageId::new),
            is_seen: row.try_get(12)?,
            execution,
            first: row.try_get(14)?,
            run_first: row.try_get(15)?,
            orders: row.try_get::<_, Option<Vec<Vec<u8>>>>(16)?.unwrap_or_default(),
        }))
    }

    /// Returns the first entry of its current run.
    pub(crate) fn run_first(&self) -> Result<Entry, Stop> {
        self.entry(self.run_first.as_deref())
    }

    fn entry(&self, body: Option<&[u8]>) -> Result<Entry, Stop> {
        let missing = || Stop::corrupt(format!("the journal of {} has no beginning", self.address));
        let records = rows::unpacked(self.key, 1, body.ok_or_else(missing)?)?;
        Ok(records.first().map(Record::entry).ok_or_else(missing)??)
    }
}

impl Found for Target {
    type Error = Stop;

    fn standing(&self) -> Standing {
        self.standing
    }

    fn execution(&self) -> Result<&Execution, Stop> {
        match &self.execution {
            Some(Ok(execution)) => Ok(execution),
            Some(Err(what)) => Err(Stop::corrupt(what.clone())),
            None => Err(Stop::corrupt(format!("the state of {} was not asked for", self.address))),
        }
    }

    fn first_start(&mut self) -> Result<Arc<Start>, Stop> {
        let entry = self.entry(self.first.as_deref())?;
        let began = entry.began().ok_or_else(|| {
            Stop::corrupt(format!("the journal of {} does not begin with its start", self.address))
        })?;
        Ok(Arc::new(began.start.clone()))
    }

    fn has_seen(&mut self, _id: &MessageId) -> Result<bool, Stop> {
        Ok(self.is_seen)
    }

    fn unread_count(&mut self) -> Result<usize, Stop> {
        Ok(self.unread_count)
    }

    fn orders(&mut self) -> Result<Vec<Message>, Stop> {
        self.orders.iter().map(|body| rows::message(self.key, body)).collect()
    }

    fn pass_over(&self, error: Stop) -> Result<(), Stop> {
        if error.is_unreadable() { Ok(()) } else { Err(error) }
    }
}
