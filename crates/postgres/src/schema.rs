//! The schema: found, created, migrated or refused.

use abide_store::Error;

use crate::connection::Connection;
use crate::error::{Kind, Said, Stop};
use crate::url::Place;
use crate::{OpenError, Options, sql};

/// The oldest server on which everything is known to work.
const SERVER_VERSION_MIN: i32 = 130_000;

/// A step from one version of the schema to the next.
struct Step {
    /// What it does, for people.
    what: &'static str,
    text: &'static str,
    /// The oldest version whose programs still work on the schema after it. A step that only adds
    /// something that older programs need not know leaves them at work, so that a deploy can run
    /// two versions of a program side by side.
    compatible_from: i64,
}

/// The migrations, in order. Migration n leads to version n.
const MIGRATIONS: [Step; 1] =
    [Step { what: "create the tables", text: sql::MIGRATION_1, compatible_from: 1 }];

/// What [`PostgresStore::migrate`](crate::PostgresStore::migrate) has done, or would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migration {
    /// The name of the schema.
    pub schema: String,
    /// The version that was found; 0 if there was none.
    pub found: i64,
    /// The version of this program.
    pub known: i64,
    /// The steps between them.
    pub steps: Vec<&'static str>,
}

/// Brings a schema to the version of this program, or says which steps are missing.
pub(crate) async fn bring(place: &Place, is_dry: bool) -> Result<Migration, OpenError> {
    let connection = Connection::open(place).await.map_err(|source| OpenError::Unreachable { source })?;
    let unusable = |stop| unusable(place, stop);
    let server = connection.row(sql::SERVER, &[]).await.map_err(unusable)?;
    check(server.get(0), server.get(1))?;
    connection.run(sql::BEGIN).await.map_err(unusable)?;
    let found = Found::read(&connection, &place.schema).await.map_err(unusable)?;
    let missing = found.missing();
    let migration = Migration {
        schema: place.schema.clone(),
        found: found.version,
        known: MIGRATIONS.len() as i64,
        steps: missing.iter().map(|step| step.what).collect(),
    };
    if let Some(error) = found.refusal(&place.schema) {
        return Err(error);
    }
    let end = if is_dry {
        sql::ROLLBACK
    } else {
        found.apply(&connection, &place.schema).await.map_err(unusable)?;
        sql::COMMIT
    };
    connection.run(end).await.map_err(unusable)?;
    Ok(migration)
}

/// Opens the first connection of a store, and brings the schema to the version of this program.
pub(crate) async fn open(place: &Place, options: &Options) -> Result<Connection, OpenError> {
    let connection = Connection::open(place).await.map_err(|source| OpenError::Unreachable { source })?;
    let unusable = |stop| unusable(place, stop);
    let server = connection.row(sql::SERVER, &[]).await.map_err(unusable)?;
    check(server.get(0), server.get(1))?;
    connection.run(sql::BEGIN).await.map_err(unusable)?;
    match migrate(&connection, &place.schema, options).await {
        Ok(Migrated::Done) => connection.run(sql::COMMIT).await.map_err(unusable)?,
        Ok(Migrated::Refused(error)) => {
            connection.run(sql::ROLLBACK).await.map_err(unusable)?;
            return Err(error);
        }
        Err(stop) => return Err(unusable(stop)),
    }
    Ok(connection)
}

/// Refuses a server on which abide does not work.
fn check(version: i32, encoding: String) -> Result<(), OpenError> {
    if version < SERVER_VERSION_MIN {
        return Err(OpenError::OldServer { found: version, least: SERVER_VERSION_MIN });
    }
    if encoding != "UTF8" {
        return Err(OpenError::Encoding { found: encoding });
    }
    Ok(())
}

fn unusable(place: &Place, stop: Stop) -> OpenError {
    let source = match stop {
        Stop::Database(error) => Said(error).into(),
        Stop::Told(Error::Unavailable { source, .. }) => source,
        stop => stop.told("open", Kind::Reads).into(),
    };
    OpenError::Unusable { schema: place.schema.clone(), source }
}

enum Migrated {
    Done,
    Refused(OpenError),
}

async fn migrate(connection: &Connection, schema: &str, options: &Options) -> Result<Migrated, Stop> {
    let found = Found::read(connection, schema).await?;
    if !found.has_tables && !options.create {
        return Ok(Migrated::Refused(OpenError::MissingSchema { schema: schema.to_owned() }));
    }
    if let Some(error) = found.refusal(schema) {
        return Ok(Migrated::Refused(error));
    }
    found.apply(connection, schema).await?;
    Ok(Migrated::Done)
}

/// What there is of a schema. Nobody else changes it before the transaction ends.
struct Found {
    has_schema: bool,
    has_tables: bool,
    version: i64,
    /// The oldest version whose programs work on it.
    compatible_from: i64,
}

impl Found {
    async fn read(connection: &Connection, schema: &str) -> Result<Self, Stop> {
        connection.row(sql::MIGRATION_LOCK, &[&schema]).await?;
        let exists = connection.row(sql::SCHEMA_EXISTS, &[&schema]).await?;
        let (has_schema, has_tables) = (exists.get(0), exists.get(1));
        if !exists.get::<_, bool>(2) {
            // Its tables would seem to be missing.
            let source = "the role of this connection has no right to use it".into();
            return Err(Stop::Told(Error::Unavailable { what: "open", source }));
        }
        let (mut version, mut compatible_from) = (0, 0);
        if has_tables {
            let row = connection.row(sql::VERSION, &[]).await?;
            (version, compatible_from) = (row.get(0), row.get(1));
        }
        Ok(Self { has_schema, has_tables, version, compatible_from })
    }

    /// Why this program cannot work on it.
    fn refusal(&self, schema: &str) -> Option<OpenError> {
        let known = MIGRATIONS.len() as i64;
        let (schema, found) = (schema.to_owned(), self.version);
        (self.compatible_from > known).then_some(OpenError::NewerSchema { schema, found, known })
    }

    fn missing(&self) -> &'static [Step] {
        let done = usize::try_from(self.version).unwrap_or(0);
        MIGRATIONS.get(done..).unwrap_or_default()
    }

    async fn apply(&self, connection: &Connection, schema: &str) -> Result<(), Stop> {
        if !self.has_schema {
            connection.row(sql::SCHEMA_NAME, &[&schema]).await?;
            connection.run(sql::SCHEMA_CREATE).await?;
        }
        if !self.has_tables {
            connection.run(sql::MIGRATIONS_CREATE).await?;
        }
        for (step, version) in self.missing().iter().zip(self.version + 1..) {
            connection.run(step.text).await?;
            connection.change(sql::VERSION_INSERT, &[&version, &step.compatible_from]).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_too_old_is_refused_by_name() {
        for (version, expected) in [
            (90_624, "has version 9.6.24, abide needs 13 or later"),
            (120_022, "has version 12.22, abide needs 13 or later"),
        ] {
            let told = check(version, "UTF8".to_owned()).unwrap_err().to_string();
            assert!(told.contains(expected), "{told}");
        }
        assert!(check(130_000, "UTF8".to_owned()).is_ok());
    }
}
