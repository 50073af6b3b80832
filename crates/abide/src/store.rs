//! The only place in this crate that knows the kinds of stores, except for the connection type of
//! `ctx.sqlite`.

use std::sync::Arc;

use abide_core::Bounds;
use abide_core::planted::{Bug, planted};
use abide_sqlite::{OpenError, Options, SqliteStore};
use abide_store::{Clock, Store};

use crate::client_error::ClientError;
use crate::url::{InvalidUrl, StoreUrl};

/// The bounds that every kind of store receives.
pub(crate) struct StoreBounds {
    pub(crate) bounds: Bounds,
    /// How long a call waits for other processes; `None` for the store's own default.
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

/// Opens the store that `url` names.
pub(crate) fn open(
    url: &str,
    clock: Arc<dyn Clock>,
    bounds: StoreBounds,
    purpose: Purpose,
) -> Result<Arc<dyn Store>, ClientError> {
    let closed = |message| ClientError::Open { url: url.to_owned(), message };
    let named: StoreUrl = url.parse().map_err(|error: InvalidUrl| closed(error.to_string()))?;
    let create = purpose == Purpose::Work || planted(Bug::ClientCreatesStore);
    let mut options = Options { bounds: bounds.bounds, create, ..Options::default() };
    options.busy_ms_max = bounds.busy_ms_max.unwrap_or(options.busy_ms_max);
    options.transaction_ms_max = bounds.transaction_ms_max.unwrap_or(options.transaction_ms_max);
    let store = match named {
        StoreUrl::Memory => SqliteStore::in_memory(clock, options),
        StoreUrl::File(path) => SqliteStore::open(&path, clock, options),
    };
    Ok(store.map_err(|error| match error {
        OpenError::MissingFile(_) => ClientError::NoStore { url: url.to_owned() },
        error => closed(error.to_string()),
    })?)
}
