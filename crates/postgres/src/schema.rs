//! The schema: found, created, migrated or refused.

use crate::connection::Connection;
use crate::error::Stop;
use crate::url::Place;
use crate::{OpenError, Options, sql};

/// The oldest server on which everything is known to work.
const SERVER_VERSION_MIN: i32 = 130_000;

/// The migrations, in order. Migration n leads to version n.
const MIGRATIONS: [&str; 1] = [sql::MIGRATION_1];

/// Opens the first connection of a store, and brings the schema to the version of this program.
pub(crate) async fn open(place: &Place, options: &Options) -> Result<Connection, OpenError> {
    let connection = Connection::open(place).await.map_err(|source| OpenError::Unreachable { source })?;
    let unusable = |stop: Stop| OpenError::Unusable {
        schema: place.schema.clone(),
        source: stop.told("open", crate::error::Kind::Reads).into(),
    };
    let server = connection.row(sql::SERVER, &[]).await.map_err(unusable)?;
    let (found, encoding): (i32, String) = (server.get(0), server.get(1));
    if found < SERVER_VERSION_MIN {
        return Err(OpenError::OldServer { found, least: SERVER_VERSION_MIN });
    }
    if encoding != "UTF8" {
        return Err(OpenError::Encoding { found: encoding });
    }
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

enum Migrated {
    Done,
    Refused(OpenError),
}

async fn migrate(connection: &Connection, schema: &str, options: &Options) -> Result<Migrated, Stop> {
    connection.row(sql::MIGRATION_LOCK, &[&schema]).await?;
    let exists = connection.row(sql::SCHEMA_EXISTS, &[&schema]).await?;
    let (has_schema, has_tables): (bool, bool) = (exists.get(0), exists.get(1));
    if !has_tables {
        if !options.create {
            return Ok(Migrated::Refused(OpenError::MissingSchema { schema: schema.to_owned() }));
        }
        if !has_schema {
            connection.row(sql::SCHEMA_NAME, &[&schema]).await?;
            connection.run(sql::SCHEMA_CREATE).await?;
        }
        connection.run(sql::MIGRATIONS_CREATE).await?;
    }
    let found: i64 = connection.row(sql::VERSION, &[]).await?.get(0);
    let known = MIGRATIONS.len() as i64;
    if found > known {
        let schema = schema.to_owned();
        return Ok(Migrated::Refused(OpenError::NewerSchema { schema, found, known }));
    }
    for (migration, version) in MIGRATIONS.iter().zip(1_i64..).skip(usize::try_from(found).unwrap_or(0)) {
        connection.run(migration).await?;
        connection.change(sql::VERSION_INSERT, &[&version]).await?;
    }
    Ok(Migrated::Done)
}
