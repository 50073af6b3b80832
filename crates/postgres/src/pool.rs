//! The connections of a store.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use abide_store::{Clock, Error};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::connection::Connection;
use crate::error::{Kind, Stop};
use crate::sql;
use crate::url::Place;
use crate::witness::Witness;

pub(crate) struct Pool {
    pub(crate) place: Place,
    /// What this process knows of the database.
    pub(crate) witness: Witness,
    permits: Semaphore,
    idle: Mutex<Vec<Connection>>,
}

impl Pool {
    pub(crate) fn new(place: Place, connection_count_max: usize, clock: Arc<dyn Clock>) -> Self {
        let witness = Witness::new(clock);
        Self { place, witness, permits: Semaphore::new(connection_count_max.max(1)), idle: Mutex::default() }
    }

    /// Takes a connection from the pool, or opens one.
    pub(crate) async fn take(&self) -> Result<Pooled<'_>, Stop> {
        let permit = self.permits.acquire().await.map_err(|_| Error::Closed)?;
        self.witness.check()?;
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let connection = match idle {
                Some(connection) if !connection.is_usable() => continue,
                Some(connection) => connection,
                None => self.open().await?,
            };
            return Ok(Pooled { pool: self, connection: Some(connection), is_open: false, _permit: permit });
        }
    }

    async fn open(&self) -> Result<Connection, Stop> {
        let connection = Connection::open(&self.place).await.map_err(unreachable)?;
        // Nothing was sent that changes anything.
        let asked = self.witness.question(&connection).await;
        asked.map_err(|stop| Stop::Told(stop.told("connect", Kind::Reads)))?;
        Ok(connection)
    }

    pub(crate) fn close(&self) {
        self.permits.close();
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Nothing was sent yet, so nothing has happened, whatever the complaint is.
fn unreachable(source: tokio_postgres::Error) -> Stop {
    Stop::Told(Error::Unavailable { what: "connect", source: source.into() })
}

/// A connection that nobody else uses. It goes back when it is dropped.
pub(crate) struct Pooled<'a> {
    pool: &'a Pool,
    connection: Option<Connection>,
    /// Whether a transaction is open. A connection that is dropped with one is not used again.
    is_open: bool,
    _permit: SemaphorePermit<'a>,
}

impl Pooled<'_> {
    pub(crate) async fn begin(&mut self, text: &'static str) -> Result<(), Stop> {
        self.is_open = true;
        self.run(text).await
    }

    /// Ends the transaction. If that fails, the connection is not used again.
    pub(crate) async fn end(&mut self, text: &'static str) -> Result<(), Stop> {
        self.run(text).await?;
        self.is_open = false;
        Ok(())
    }

    /// Undoes the transaction.
    pub(crate) async fn undo(&mut self) {
        // A connection that is not here, or on which that fails, is closed. The server undoes it
        // then.
        if self.connection.is_some() {
            let _ = self.end(sql::ROLLBACK).await;
        }
    }

    /// Lends the connection to a thread that may block. It comes back by `put_back`.
    pub(crate) fn lend(&mut self) -> Connection {
        self.connection.take().expect("a connection is lent once at a time")
    }

    pub(crate) fn put_back(&mut self, connection: Connection) {
        self.connection = Some(connection);
    }
}

impl Deref for Pooled<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection.as_ref().expect("a connection that is lent is not used")
    }
}

impl Drop for Pooled<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take().filter(|one| !self.is_open && one.is_usable()) {
            self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        }
    }
}
