//! From a URL to a store. Nothing here creates a store: a typing error must not become an empty database.

use std::path::PathBuf;
use std::sync::Arc;

use abide_engine::{Client, Runtime, SystemClock, TokioRuntime};
use abide_sqlite::{Options, SqliteStore};
use abide_store::{Clock, Store};

use crate::args::Global;
use crate::failure::Failure;

/// The file that the store is in.
pub(crate) fn path(global: &Global) -> Result<PathBuf, Failure> {
    let url = global.store.as_deref().filter(|url| !url.is_empty());
    let url = url.ok_or_else(|| Failure::usage("no store is given: write --store URL or set ABIDE_STORE"))?;
    place(url).map_err(|problem| Failure::usage(format!("the store {url:?}: {problem}")))
}

/// What a URL means.
fn place(url: &str) -> Result<PathBuf, String> {
    if let Some(path) = url.strip_prefix("sqlite:") {
        return match path {
            ":memory:" => {
                Err("a store in memory belongs to its process; nobody else can look into it".to_owned())
            }
            "" | "//" => Err("the path is missing: write sqlite:PATH".to_owned()),
            path => Ok(path.strip_prefix("//").unwrap_or(path).into()),
        };
    }
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        return Err("this version has no PostgreSQL store yet; write sqlite:PATH".to_owned());
    }
    match url.split_once(':') {
        // A path may contain a colon, but not where a scheme would end.
        Some((scheme, _))
            if !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric() || c == '+') =>
        {
            Err(format!("the scheme {scheme:?} is unknown: write sqlite:PATH or a path"))
        }
        _ => Ok(url.into()),
    }
}

/// Opens the store to look, and runs `work` with it.
pub(crate) fn read<T>(
    global: &Global,
    work: impl AsyncFnOnce(Arc<dyn Store>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let path = path(global)?;
    block_on(async {
        let options = Options { read_only: true, ..Options::default() };
        let store = SqliteStore::open(&path, Arc::new(SystemClock), options)?;
        let done = work(store.clone()).await;
        store.close();
        done
    })
}

/// Opens the store to send something, and runs `work` with a client of it.
pub(crate) fn client<T>(
    global: &Global,
    work: impl AsyncFnOnce(Client) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let path = path(global)?;
    block_on(async {
        let runtime = TokioRuntime::current().ok_or_else(|| Failure::failed("there is no runtime"))?;
        let clock: Arc<dyn Clock> = runtime.clone();
        let look = Options { read_only: true, ..Options::default() };
        // Looking first finds out whether it exists and is one of ours; opening for writing would make it so.
        SqliteStore::open(&path, clock.clone(), look)?.close();
        let store = SqliteStore::open(&path, clock, Options::default())?;
        let runtime: Arc<dyn Runtime> = runtime;
        let done = work(Client::alone(store.clone(), runtime, global.namespace.clone())).await;
        store.close();
        done
    })
}

/// Runs a future on this thread.
pub(crate) fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(future)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_paths_or_refused() {
        let file = |path: &str| Ok(PathBuf::from(path));
        let refused = |problem: &str| Err(problem.to_owned());
        let rows = [
            ("sqlite:app.db", file("app.db")),
            ("sqlite:///tmp/app.db", file("/tmp/app.db")),
            ("data/app.db", file("data/app.db")),
            ("./odd:name.db", file("./odd:name.db")),
            (
                "sqlite::memory:",
                refused("a store in memory belongs to its process; nobody else can look into it"),
            ),
            ("sqlite:", refused("the path is missing: write sqlite:PATH")),
            ("mysql://x", refused("the scheme \"mysql\" is unknown: write sqlite:PATH or a path")),
            ("postgres://x", refused("this version has no PostgreSQL store yet; write sqlite:PATH")),
        ];
        for (url, expected) in rows {
            assert_eq!(place(url), expected, "{url}");
        }
    }
}
