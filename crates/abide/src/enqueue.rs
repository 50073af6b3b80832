//! `enqueue_in`: starts and signals in a transaction of the caller's own.

use std::any::Any;
use std::future::Future;
use std::sync::Arc;

use abide_core::{Enqueued, ExecutionId, Name, Payload, SignalOptions, StartOptions};
use abide_engine::Client;
use abide_store::{Error, Store};

use crate::client_error::ClientError;

/// A transaction of the caller's own, in which a start or a signal can be written down: that of
/// `rusqlite` or of `tokio_postgres`.
///
/// The start or signal exists if and only if this transaction commits. From then on it waits in
/// abide's intake table for an engine, which takes it soon. A refusal that comes only then, such as
/// that of a signal to an unknown execution, is in the feed, and `abide intake` shows it.
pub trait EnqueueIn: Sized {
    /// Resolves when the row is written, but not yet committed.
    type Answer<T: Send + 'static>: Future<Output = Result<T, ClientError>>;

    /// Writes a row. Returns what goes with it.
    #[doc(hidden)]
    fn put<T: Send + 'static>(self, row: Result<(Row, T), ClientError>) -> Self::Answer<T>;
}

/// A row that is about to be written, and the store that it is for.
#[doc(hidden)]
pub struct Row {
    enqueued: Enqueued,
    store: Arc<dyn Store>,
}

impl Row {
    /// Returns the row that starts an execution.
    pub(crate) fn start(client: &Client, id: &ExecutionId, start: &abide_core::Start) -> Self {
        Self::of(
            client,
            id,
            Parts {
                verb: Enqueued::START,
                name: &start.name,
                input: &start.input,
                options: StartOptions::of(start).json(),
            },
        )
    }

    /// Returns the row that sends a signal.
    pub(crate) fn signal(
        client: &Client,
        id: &ExecutionId,
        (name, input, key): (&Name, &Payload, Option<&Name>),
    ) -> Self {
        let key = key.map(|key| key.as_str().to_owned());
        let options = SignalOptions { key }.json();
        Self::of(client, id, Parts { verb: Enqueued::SIGNAL, name, input, options })
    }

    fn of(client: &Client, id: &ExecutionId, Parts { verb, name, input, options }: Parts<'_>) -> Self {
        let enqueued = Enqueued {
            id: client.fresh_id().to_string(),
            namespace: client.namespace().to_string(),
            verb: verb.to_owned(),
            execution: id.to_string(),
            name: name.to_string(),
            // What serializes as JSON is a text.
            input: String::from_utf8_lossy(input.as_bytes()).into_owned(),
            options,
            sender: abide_core::By::client().to_string(),
        };
        Self { enqueued, store: Arc::clone(client.store()) }
    }

    /// Returns the store, if it is one of this kind.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    fn store<S: Any>(&self, database: &str) -> Result<&S, ClientError> {
        let store: &dyn Any = &*self.store;
        store.downcast_ref().ok_or_else(|| ClientError::Refused {
            id: self.enqueued.execution.clone(),
            message: format!("the transaction is one of {database}, and the store is not"),
        })
    }

    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    fn explained(&self, error: Error) -> ClientError {
        ClientError::of(&self.enqueued.execution, error)
    }
}

struct Parts<'a> {
    verb: &'static str,
    name: &'a Name,
    input: &'a Payload,
    options: String,
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use std::future::{Ready, ready};

    use abide_sqlite::SqliteStore;

    use super::{ClientError, EnqueueIn, Row};

    /// Nothing is awaited: code that is not async takes the answer with
    /// [`into_inner`](Ready::into_inner).
    macro_rules! connections {
        ($($connection:ty),*) => {$(
            impl EnqueueIn for &$connection {
                type Answer<T: Send + 'static> = Ready<Result<T, ClientError>>;

                fn put<T: Send + 'static>(self, row: Result<(Row, T), ClientError>) -> Self::Answer<T> {
                    ready(row.and_then(|(row, done)| {
                        let store = row.store::<SqliteStore>("SQLite")?;
                        store.enqueue_in(self, &row.enqueued).map_err(|error| row.explained(error))?;
                        Ok(done)
                    }))
                }
            }
        )*};
    }

    connections!(rusqlite::Transaction<'_>, rusqlite::Savepoint<'_>, rusqlite::Connection);
}

#[cfg(feature = "postgres")]
mod postgres {
    use std::pin::Pin;

    use abide_postgres::PostgresStore;

    use super::{ClientError, EnqueueIn, Row};

    impl<'a> EnqueueIn for &'a tokio_postgres::Transaction<'_> {
        type Answer<T: Send + 'static> = Pin<Box<dyn Future<Output = Result<T, ClientError>> + Send + 'a>>;

        fn put<T: Send + 'static>(self, row: Result<(Row, T), ClientError>) -> Self::Answer<T> {
            Box::pin(async move {
                let (row, done) = row?;
                let store = row.store::<PostgresStore>("PostgreSQL")?;
                let put = store.enqueue_in(self, &row.enqueued).await;
                put.map(|()| done).map_err(|error| row.explained(error))
            })
        }
    }
}
