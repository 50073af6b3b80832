//! Statements that go through a pooler in transaction mode, which hands each transaction any of its
//! connections to the server. So nothing may stay in a connection: no setting, and no statement
//! that was prepared.
//!
//! Each statement is a transaction with the settings of the store, sent in one piece. It is not
//! prepared, but the client has to know the types of its parameters. It asks the server for them
//! once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Mutex as Turns;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, Row};

use crate::sheet::Parameter;
use crate::sql;

type Types = Arc<Vec<Type>>;

/// A connection to a pooler.
pub(crate) struct Pooler {
    /// The schema that is to be found, or none for the settings that everybody gets.
    schema: Mutex<Option<String>>,
    /// Whether a transaction of several statements is open.
    is_open: AtomicBool,
    /// The types of the parameters of each statement, by the place of its text.
    types: Mutex<HashMap<usize, Types>>,
    /// One statement at a time: each is several messages.
    turns: Turns<()>,
}

impl Pooler {
    pub(crate) fn new() -> Self {
        let (schema, types) = (Mutex::default(), Mutex::default());
        Self { schema, types, is_open: AtomicBool::new(false), turns: Turns::new(()) }
    }

    /// From now on, statements find this schema and are planned as the store wants.
    pub(crate) fn settle(&self, schema: &str) {
        *self.schema.lock().unwrap_or_else(PoisonError::into_inner) = Some(schema.to_owned());
    }

    fn schema(&self) -> Option<String> {
        self.schema.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs a statement, and returns its rows.
    pub(crate) async fn query(
        &self,
        client: &Client,
        text: &'static str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, Error> {
        let _turn = self.turns.lock().await;
        let text = local(text);
        if self.is_open.load(Ordering::Relaxed) {
            let types = self.types(client, text).await?;
            return client.query_typed(text, &typed(parameters, &types)).await;
        }
        let types = self.learned(client, text).await?;
        let parameters = typed(parameters, &types);
        let (begun, set, rows, ended) = tokio::join!(
            client.batch_execute(sql::POOLED_BEGIN),
            self.set(client),
            client.query_typed(text, &parameters),
            client.batch_execute(sql::COMMIT),
        );
        begun?;
        set?;
        let rows = rows?;
        // After a failed statement it would undo everything, but that was told above.
        ended?;
        Ok(rows)
    }

    /// Runs a statement, and returns the number of rows that it changed.
    pub(crate) async fn execute(
        &self,
        client: &Client,
        text: &'static str,
        parameters: &[Parameter<'_>],
    ) -> Result<u64, Error> {
        let _turn = self.turns.lock().await;
        if self.is_open.load(Ordering::Relaxed) {
            let types = self.types(client, text).await?;
            return client.execute_typed(text, &typed(parameters, &types)).await;
        }
        let types = self.learned(client, text).await?;
        let parameters = typed(parameters, &types);
        let (begun, set, count, ended) = tokio::join!(
            client.batch_execute(sql::POOLED_BEGIN),
            self.set(client),
            client.execute_typed(text, &parameters),
            client.batch_execute(sql::COMMIT),
        );
        begun?;
        set?;
        let count = count?;
        ended?;
        Ok(count)
    }

    /// Runs statements without parameters and results. They begin or end a transaction, or belong
    /// to one.
    pub(crate) async fn run(&self, client: &Client, text: &'static str) -> Result<(), Error> {
        let _turn = self.turns.lock().await;
        match text {
            sql::BEGIN | sql::BEGIN_READ => {
                let begin = if text == sql::BEGIN { sql::POOLED_BEGIN } else { text };
                let (begun, set) = tokio::join!(client.batch_execute(begin), self.set(client));
                self.is_open.store(true, Ordering::Relaxed);
                begun.and(set)
            }
            sql::COMMIT | sql::ROLLBACK => {
                client.batch_execute(text).await?;
                self.is_open.store(false, Ordering::Relaxed);
                Ok(())
            }
            sql::STEP_BEGIN => client.batch_execute(sql::POOLED_STEP_BEGIN).await,
            sql::STEP_END => client.batch_execute(sql::POOLED_STEP_END).await,
            _ => client.batch_execute(text).await,
        }
    }

    /// Sets what the store needs, until the end of the transaction.
    async fn set(&self, client: &Client) -> Result<(), Error> {
        let Some(schema) = self.schema() else { return Ok(()) };
        client.query_typed(sql::POOLED_CONNECTION, &[(&schema, Type::TEXT)]).await.map(drop)
    }

    /// Returns the types of the parameters of a statement, outside of any transaction.
    async fn learned(&self, client: &Client, text: &'static str) -> Result<Types, Error> {
        if let Some(types) = self.known(text) {
            return Ok(types);
        }
        client.batch_execute(sql::POOLED_BEGIN).await?;
        let types = match self.set(client).await {
            Ok(()) => self.types(client, text).await,
            Err(error) => Err(error),
        };
        client.batch_execute(sql::ROLLBACK).await?;
        types
    }

    /// Returns the types, inside of a transaction. The server forgets the statement before the
    /// transaction ends: it may be the connection of somebody else behind that.
    async fn types(&self, client: &Client, text: &'static str) -> Result<Types, Error> {
        if let Some(types) = self.known(text) {
            return Ok(types);
        }
        let statement = client.prepare(text).await?;
        let types = Arc::new(statement.params().to_vec());
        drop(statement);
        let name = text.as_ptr().addr();
        self.types.lock().unwrap_or_else(PoisonError::into_inner).insert(name, Arc::clone(&types));
        Ok(types)
    }

    fn known(&self, text: &'static str) -> Option<Types> {
        self.types.lock().unwrap_or_else(PoisonError::into_inner).get(&text.as_ptr().addr()).cloned()
    }
}

/// Returns the form of a statement that changes nothing behind its transaction.
fn local(text: &'static str) -> &'static str {
    if text == sql::CONNECTION { sql::POOLED_CONNECTION } else { text }
}

fn typed<'a>(parameters: &[Parameter<'a>], types: &[Type]) -> Vec<(Parameter<'a>, Type)> {
    parameters.iter().copied().zip(types.iter().cloned()).collect()
}
