//! One connection: statements that are prepared once, and sent one behind the other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use tokio_postgres::{Client, Row, Statement};

use crate::counters;
use crate::error::Stop;
use crate::gate::start;
use crate::planted::form_of;
use crate::pooler::Pooler;
use crate::sheet::Parameter;
use crate::sql;
use crate::url::Place;

/// A connection with the settings of the store. Several statements may be under way at a time: the
/// server carries them out in the order in which they were first polled.
pub(crate) struct Connection {
    pub(crate) client: Client,
    prepared: Mutex<HashMap<usize, Statement>>,
    /// For a pooler in transaction mode, through which nothing can be prepared.
    pooler: Option<Pooler>,
    cut: Arc<Notify>,
}

impl Connection {
    /// Connects. The task that moves the bytes ends when the connection is dropped.
    pub(crate) async fn open(place: &Place) -> Result<Self, tokio_postgres::Error> {
        let connection = Self::plain(place).await?;
        match &connection.pooler {
            Some(pooler) => pooler.settle(&place.schema),
            None => drop(connection.client.query(sql::CONNECTION, &[&place.schema]).await?),
        }
        Ok(connection)
    }

    /// Connects, with the settings that everybody gets from the server.
    pub(crate) async fn plain(place: &Place) -> Result<Self, tokio_postgres::Error> {
        let (client, bytes) = place.connect().await?;
        let cut = Arc::new(Notify::new());
        let is_cut = Arc::clone(&cut);
        start(async move {
            // Each statement that is under way gets the error too.
            tokio::select! {
                _ = bytes => {}
                () = is_cut.notified() => {}
            }
        });
        let pooler = (!place.listens).then(Pooler::new);
        Ok(Self { client, prepared: Mutex::default(), pooler, cut })
    }

    /// Has the server stop the statement that is under way.
    pub(crate) async fn cancel(&self, place: &Place) -> Result<(), Stop> {
        Ok(self.client.cancel_token().cancel_query(place.tls.clone()).await?)
    }

    /// Closes the connection, also under a statement.
    pub(crate) fn cut(&self) {
        self.cut.notify_one();
    }

    pub(crate) fn is_usable(&self) -> bool {
        !self.client.is_closed()
    }

    async fn prepare(&self, text: &'static str) -> Result<Statement, tokio_postgres::Error> {
        // Statements are static: the place of one names it.
        let name = text.as_ptr().addr();
        let known = self.prepared.lock().unwrap_or_else(PoisonError::into_inner).get(&name).cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        let statement = self.client.prepare(form_of(text)).await?;
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner).insert(name, statement.clone());
        Ok(statement)
    }

    pub(crate) async fn rows(
        &self,
        text: &'static str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, Stop> {
        counters::count_statement();
        if let Some(pooler) = &self.pooler {
            return Ok(pooler.query(&self.client, form_of(text), parameters).await?);
        }
        let statement = self.prepare(text).await?;
        Ok(self.client.query(&statement, parameters).await?)
    }

    /// Returns the only row.
    pub(crate) async fn row(&self, text: &'static str, parameters: &[Parameter<'_>]) -> Result<Row, Stop> {
        self.maybe_row(text, parameters).await?.ok_or_else(|| Stop::corrupt("a row is missing"))
    }

    /// Returns the first row, if there is one.
    pub(crate) async fn maybe_row(
        &self,
        text: &'static str,
        parameters: &[Parameter<'_>],
    ) -> Result<Option<Row>, Stop> {
        Ok(self.rows(text, parameters).await?.pop())
    }

    /// Returns the number of rows that were changed.
    pub(crate) async fn change(&self, text: &'static str, parameters: &[Parameter<'_>]) -> Result<u64, Stop> {
        counters::count_statement();
        if let Some(pooler) = &self.pooler {
            return Ok(pooler.execute(&self.client, form_of(text), parameters).await?);
        }
        let statement = self.prepare(text).await?;
        Ok(self.client.execute(&statement, parameters).await?)
    }

    /// Runs statements without parameters and results.
    pub(crate) async fn run(&self, text: &'static str) -> Result<(), Stop> {
        counters::count_statement();
        if let Some(pooler) = &self.pooler {
            return Ok(pooler.run(&self.client, text).await?);
        }
        Ok(self.client.batch_execute(text).await?)
    }
}
