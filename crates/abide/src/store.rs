//! The only place in this crate that knows the kinds of stores, except for the connections of
//! transaction steps.

use std::sync::Arc;

use abide_core::Bounds;
use abide_core::planted::{Bug, planted};
use abide_store::{Clock, Store};

use crate::client_error::ClientError;
use crate::url::{InvalidUrl, StoreUrl, shown};

#[cfg(not(any(feature = "sqlite", feature = "postgres")))]
compile_error!("the crate abide needs one of its features `sqlite` and `postgres`");

/// The bounds that every kind of store receives.
pub(crate) struct StoreBounds {
    pub(crate) bounds: Bounds,
    /// How long a call waits for other processes; `None` for the store's own default.
    #[cfg_attr(
        not(feature = "sqlite"),
        expect(dead_code, reason = "nobody locks a whole PostgreSQL database")
    )]
    pub(crate) busy_ms_max: Option<u64>,
    /// How long a transaction step may run; `None` for the store's own default.
    pub(crate) transaction_ms_max: Option<u64>,
}

/// The purpose of opening a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To run its executions: the store is created if needed.
    Work,
    /// To look at it, and to send something: the store must exist. A store created by a mistyped
    /// path would hide the mistake, and no worker would ever run the executions in it.
    Watch,
}

impl Purpose {
    fn creates(self) -> bool {
        self == Self::Work || planted(Bug::ClientCreatesStore)
    }
}

/// The reason why a store cannot be opened.
enum Closed {
    /// It does not exist, and may not be created.
    Missing,
    /// Any other.
    Because(String),
}

/// Opens the store that `url` names.
pub(crate) fn open(
    url: &str,
    clock: Arc<dyn Clock>,
    bounds: StoreBounds,
    purpose: Purpose,
) -> Result<Arc<dyn Store>, ClientError> {
    let parsed = url.parse().map_err(|error: InvalidUrl| Closed::Because(error.to_string()));
    let opened = parsed.and_then(|named: StoreUrl| match named {
        StoreUrl::Memory => in_memory(clock, bounds),
        StoreUrl::File(path) => in_file(&path, clock, bounds, purpose),
        StoreUrl::Postgres(url) => on_server(&url, clock, bounds, purpose),
    });
    opened.map_err(|closed| match closed {
        Closed::Missing => ClientError::NoStore { url: shown(url) },
        Closed::Because(message) => ClientError::Open { url: shown(url), message },
    })
}

#[cfg(feature = "sqlite")]
fn in_memory(clock: Arc<dyn Clock>, bounds: StoreBounds) -> Result<Arc<dyn Store>, Closed> {
    Ok(abide_sqlite::SqliteStore::in_memory(clock, sqlite_options(bounds, Purpose::Work))?)
}

#[cfg(feature = "sqlite")]
fn in_file(
    path: &std::path::Path,
    clock: Arc<dyn Clock>,
    bounds: StoreBounds,
    purpose: Purpose,
) -> Result<Arc<dyn Store>, Closed> {
    Ok(abide_sqlite::SqliteStore::open(path, clock, sqlite_options(bounds, purpose))?)
}

#[cfg(feature = "sqlite")]
fn sqlite_options(bounds: StoreBounds, purpose: Purpose) -> abide_sqlite::Options {
    let defaults = abide_sqlite::Options::default();
    abide_sqlite::Options {
        bounds: bounds.bounds,
        create: purpose.creates(),
        busy_ms_max: bounds.busy_ms_max.unwrap_or(defaults.busy_ms_max),
        transaction_ms_max: bounds.transaction_ms_max.unwrap_or(defaults.transaction_ms_max),
        ..defaults
    }
}

#[cfg(feature = "sqlite")]
impl From<abide_sqlite::OpenError> for Closed {
    fn from(error: abide_sqlite::OpenError) -> Self {
        match error {
            abide_sqlite::OpenError::MissingFile(_) => Self::Missing,
            error => Self::Because(error.to_string()),
        }
    }
}

/// Without SQLite, the reference store keeps what tests run.
#[cfg(not(feature = "sqlite"))]
fn in_memory(clock: Arc<dyn Clock>, bounds: StoreBounds) -> Result<Arc<dyn Store>, Closed> {
    let page_bounds = abide_store::PageBounds::default();
    Ok(abide_store::memory::MemoryStore::bounded(clock, bounds.bounds, page_bounds))
}

#[cfg(not(feature = "sqlite"))]
fn in_file(
    _path: &std::path::Path,
    _clock: Arc<dyn Clock>,
    _bounds: StoreBounds,
    _purpose: Purpose,
) -> Result<Arc<dyn Store>, Closed> {
    Err(without("sqlite", "SQLite"))
}

#[cfg(feature = "postgres")]
fn on_server(
    url: &str,
    clock: Arc<dyn Clock>,
    bounds: StoreBounds,
    purpose: Purpose,
) -> Result<Arc<dyn Store>, Closed> {
    let defaults = abide_postgres::Options::default();
    let options = abide_postgres::Options {
        bounds: bounds.bounds,
        create: purpose.creates(),
        transaction_ms_max: bounds.transaction_ms_max.unwrap_or(defaults.transaction_ms_max),
        ..defaults
    };
    Ok(abide_postgres::PostgresStore::open(url, clock, options)?)
}

#[cfg(feature = "postgres")]
impl From<abide_postgres::OpenError> for Closed {
    fn from(error: abide_postgres::OpenError) -> Self {
        match error {
            abide_postgres::OpenError::MissingSchema { .. } => Self::Missing,
            error => Self::Because(error.to_string()),
        }
    }
}

#[cfg(not(feature = "postgres"))]
fn on_server(
    _url: &str,
    _clock: Arc<dyn Clock>,
    _bounds: StoreBounds,
    _purpose: Purpose,
) -> Result<Arc<dyn Store>, Closed> {
    Err(without("postgres", "PostgreSQL"))
}

#[cfg(not(all(feature = "sqlite", feature = "postgres")))]
fn without(feature: &str, database: &str) -> Closed {
    Closed::Because(format!(
        "this program was built without {database}: enable the feature {feature:?} of the crate abide"
    ))
}
