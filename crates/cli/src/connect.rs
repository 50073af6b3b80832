//! From a URL to a store. Nothing here creates one: a typing error must not become an empty
//! database.

use std::path::PathBuf;
use std::sync::Arc;

use abide::{InvalidUrl, StoreUrl};
use abide_engine::{Client, Runtime, SystemClock, TokioRuntime};
use abide_sqlite::{Options, SqliteStore};
use abide_store::{Clock, Store};

use crate::args::Global;
use crate::command_error::CommandError;

/// Returns the path of the store's file.
pub(crate) fn path(global: &Global) -> Result<PathBuf, CommandError> {
    let url = global.store.as_deref().filter(|url| !url.is_empty());
    let url =
        url.ok_or_else(|| CommandError::usage("no store is given: write --store URL or set ABIDE_STORE"))?;
    let problem = match url.parse() {
        Ok(StoreUrl::File(path)) => return Ok(path),
        Ok(StoreUrl::Memory) => {
            "a store in memory belongs to its process; nobody else can look into it".to_owned()
        }
        Err(invalid) => InvalidUrl::to_string(&invalid),
    };
    Err(CommandError::usage(format!("the store {url:?}: {problem}")))
}

/// Opens the store read-only and runs `work` with it.
pub(crate) fn read<T>(
    global: &Global,
    work: impl AsyncFnOnce(Arc<dyn Store>) -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    let path = path(global)?;
    block_on(async {
        let options = Options { read_only: true, ..Options::default() };
        let store = SqliteStore::open(&path, Arc::new(SystemClock), options)?;
        let done = work(store.clone()).await;
        store.close();
        done
    })
}

/// Opens the store read-only and runs `work` with a client that sends nothing.
pub(crate) fn watch<T>(
    global: &Global,
    work: impl AsyncFnOnce(Client) -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    read(global, async |store| {
        let runtime = TokioRuntime::current().ok_or_else(|| CommandError::failed("there is no runtime"))?;
        work(Client::alone(store, runtime, global.namespace.clone())).await
    })
}

/// Opens the store for writing and runs `work` with a client.
pub(crate) fn client<T>(
    global: &Global,
    work: impl AsyncFnOnce(Client) -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    let path = path(global)?;
    block_on(async {
        let runtime = TokioRuntime::current().ok_or_else(|| CommandError::failed("there is no runtime"))?;
        let clock: Arc<dyn Clock> = runtime.clone();
        let store = SqliteStore::open(&path, clock, Options { create: false, ..Options::default() })?;
        let runtime: Arc<dyn Runtime> = runtime;
        let done = work(Client::alone(store.clone(), runtime, global.namespace.clone())).await;
        store.close();
        done
    })
}

/// Runs a future on this thread.
pub(crate) fn block_on<T>(future: impl Future<Output = Result<T, CommandError>>) -> Result<T, CommandError> {
    tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(future)
}
