//! The one place where this crate knows which stores there are; beside it only the connection type of `ctx.sqlite`.

use std::sync::Arc;

use abide_core::Limits;
use abide_sqlite::{Options, SqliteStore};
use abide_store::{Clock, Store};

use crate::url::{InvalidUrl, StoreUrl};

/// What every kind of store is told.
pub(crate) struct StoreBounds {
    pub(crate) limits: Limits,
    /// How long a call waits for other processes; `None` for the store's own default.
    pub(crate) busy_ms_max: Option<u64>,
}

/// Opens the store that `url` names.
pub(crate) fn open(url: &str, clock: Arc<dyn Clock>, bounds: StoreBounds) -> Result<Arc<dyn Store>, String> {
    let url: StoreUrl = url.parse().map_err(|error: InvalidUrl| error.to_string())?;
    let mut options = Options { limits: bounds.limits, ..Options::default() };
    options.busy_ms_max = bounds.busy_ms_max.unwrap_or(options.busy_ms_max);
    let store = match url {
        StoreUrl::Memory => SqliteStore::in_memory(clock, options),
        StoreUrl::File(path) => SqliteStore::open(&path, clock, options),
    };
    Ok(store.map_err(|error| error.to_string())?)
}
