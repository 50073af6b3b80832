//! Putting rows into the intake table, in a transaction of the caller's own.

use abide_core::{Enqueued, Refusal};
use abide_store::Error;
use tokio_postgres::GenericClient;

use crate::error::{Kind, Stop};
use crate::url::Place;
use crate::{OpenError, sql};

/// The way into the intake table of one schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intake {
    statement: String,
}

impl Intake {
    /// Returns the way into the intake table of the schema that this URL names.
    pub fn of(url: &str) -> Result<Self, OpenError> {
        Ok(Self::named(&Place::parse(url, 1)?.schema))
    }

    /// Returns the way into the intake table of a schema whose name was checked: it consists of
    /// lower-case letters, digits and underscores.
    pub(crate) fn named(schema: &str) -> Self {
        Self { statement: sql::ENQUEUE.join(schema) }
    }

    /// Returns the statement, for other clients of PostgreSQL. Its parameters are the fields of an
    /// [`Enqueued`], in their order, all of them texts.
    pub fn statement(&self) -> &str {
        &self.statement
    }

    /// Puts a row into the table. It is there if and only if the client's transaction commits.
    pub async fn put(&self, client: &(impl GenericClient + Sync), row: &Enqueued) -> Result<(), Error> {
        let Enqueued { id, namespace, verb, execution, name, input, options, sender } = row;
        let parameters: [crate::sheet::Parameter<'_>; 8] =
            [id, namespace, verb, execution, name, input, options, sender];
        client.execute(self.statement.as_str(), &parameters).await.map(drop).map_err(explained)
    }
}

/// Returns what the server's complaint about such a row means.
fn explained(error: tokio_postgres::Error) -> Error {
    // Data exceptions, broken constraints, and a database without our functions.
    let is_unfit = |code: &str| ["22", "23", "3F", "42"].iter().any(|class| code.starts_with(class));
    match error.as_db_error() {
        Some(complaint) if is_unfit(complaint.code().code()) => {
            Refusal::Unsupported { what: format!("it cannot be enqueued: {}", complaint.message()) }.into()
        }
        // Nothing is committed yet.
        _ => Stop::Database(error).told("enqueue", Kind::Reads),
    }
}
