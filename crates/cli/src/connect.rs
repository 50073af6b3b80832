//! From a URL to a store. Only the demo and the torture create one: a typing error must not become
//! an empty database.

use std::path::PathBuf;
use std::sync::Arc;

use abide::{InvalidUrl, StoreUrl};
use abide_engine::{Client, Runtime, SystemClock, TokioRuntime};
use abide_postgres::PostgresStore;
use abide_sqlite::SqliteStore;
use abide_store::{Clock, Store};

use crate::args::Global;
use crate::command_error::CommandError;

/// What a command may do to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Look into it.
    Read,
    /// Also send something.
    Write,
    /// Also make it, if it does not exist.
    Create,
}

/// Returns the store that the command line names.
pub(crate) fn named(global: &Global) -> Result<StoreUrl, CommandError> {
    let url = global.store.as_deref().filter(|url| !url.is_empty());
    let url =
        url.ok_or_else(|| CommandError::usage("no store is given: write --store URL or set ABIDE_STORE"))?;
    let problem = match url.parse() {
        Ok(StoreUrl::Memory) => {
            "a store in memory belongs to its process; nobody else can look into it".to_owned()
        }
        Ok(named) => return Ok(named),
        Err(invalid) => InvalidUrl::to_string(&invalid),
    };
    Err(CommandError::usage(format!("the store {url:?}: {problem}")))
}

/// Returns the path of the store's file, for a command that works on files. `instead` says what
/// does the same for a server.
pub(crate) fn file(global: &Global, instead: &str) -> Result<PathBuf, CommandError> {
    match named(global)? {
        StoreUrl::File(path) => Ok(path),
        other => Err(CommandError::usage(format!(
            "the store {:?}: this command works on SQLite files; {instead}",
            other.to_string()
        ))),
    }
}

/// Opens a store.
pub(crate) fn open(
    store: &StoreUrl,
    clock: Arc<dyn Clock>,
    access: Access,
) -> Result<Arc<dyn Store>, CommandError> {
    let (create, read_only) = (access == Access::Create, access == Access::Read);
    Ok(match store {
        StoreUrl::File(path) => {
            let options = abide_sqlite::Options { create, read_only, ..Default::default() };
            SqliteStore::open(path, clock, options)?
        }
        StoreUrl::Postgres(url) => {
            let options = abide_postgres::Options { create, ..Default::default() };
            PostgresStore::open(url, clock, options)?
        }
        StoreUrl::Memory => return Err(CommandError::usage("a store in memory belongs to its process")),
    })
}

/// Opens the store read-only and runs `work` with it.
pub(crate) fn read<T>(
    global: &Global,
    work: impl AsyncFnOnce(Arc<dyn Store>) -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    let named = named(global)?;
    block_on(async {
        let store = open(&named, Arc::new(SystemClock), Access::Read)?;
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
    let named = named(global)?;
    block_on(async {
        let runtime = TokioRuntime::current().ok_or_else(|| CommandError::failed("there is no runtime"))?;
        let clock: Arc<dyn Clock> = runtime.clone();
        let store = open(&named, clock, Access::Write)?;
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
