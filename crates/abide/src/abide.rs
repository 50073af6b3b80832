//! The entry point.

use std::sync::Arc;

use crate::code::Recorded;
use abide_core::planted::{Bug, planted};
use abide_core::{Block, ExecutionId, Kind, Name};
use abide_engine::{Client, Engine};
use serde::Serialize;

use crate::canonical::Input;
use crate::client_error::ClientError;
use crate::code::{Code, CodeNames, KnownCode};
use crate::filter::{Filter, Listed};
use crate::handle::Handle;
use crate::open::{Builder, Closer};
use crate::start::{Run, Start, StartOptions};

/// A store and, unless opened as a client, a worker that runs the executions in it. Cheap to clone.
///
/// The worker stops when the last clone is dropped, also in the middle of a closure, as if the
/// process had died. Use [`shutdown`](Self::shutdown) to let closures finish.
#[derive(Clone)]
#[must_use = "the worker stops when this is dropped"]
pub struct Abide {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    engine: Option<Engine>,
    code: KnownCode,
    closer: Closer,
}

impl Abide {
    /// Opens a store, creates it if needed, and resumes its open executions. `url` is
    /// `sqlite:PATH`, `sqlite::memory:`, a path, or `postgres://…` with the feature `postgres`.
    ///
    /// Runs every workflow and task that is linked into the program.
    pub async fn open(url: &str) -> Result<Self, ClientError> {
        Self::builder(url).open().await
    }

    /// Opens a store with options.
    pub fn builder(url: impl Into<String>) -> Builder {
        Builder::new(url.into())
    }

    /// Opens a store to start and watch executions without running any. Returns
    /// [`ClientError::NoStore`] if the store does not exist: only a worker creates one.
    pub async fn client(url: &str) -> Result<Self, ClientError> {
        Self::builder(url).client().await
    }

    pub(crate) fn new(client: Client, engine: Option<Engine>, code: KnownCode, closer: Closer) -> Self {
        Self { inner: Arc::new(Inner { client, engine, code, closer }) }
    }

    /// Starts a workflow or task.
    pub fn start<C: Code>(&self, _code: C, input: C::Input) -> Start<C> {
        Start::new(self, input)
    }

    /// Starts a workflow or task and waits for its result.
    pub fn run<C: Code>(&self, _code: C, input: C::Input) -> Run<C> {
        Run::new(self, input)
    }

    /// Starts the workflow or task that is registered under `name`, for programs that learn the
    /// name at run time.
    ///
    /// If the code is linked into this program, the call refuses an input that the code cannot
    /// read. A client without the code looks in the store for a worker that has registered the
    /// name. Only that worker reads the input then, and an input that it cannot read blocks the
    /// execution.
    pub async fn start_named<I: Serialize, T>(
        &self,
        id: &str,
        name: &str,
        input: &I,
    ) -> Result<Handle<T>, ClientError> {
        let client = &self.inner.client;
        let id = ExecutionId::new(id)?;
        let wanted = Name::of_field("workflow name", name)?;
        let input = Input::written(input).map_err(|error| ClientError::Data {
            message: format!("the input of {name:?} does not serialize: {error}"),
        })?;
        let names = match self.inner.code.find(&wanted) {
            Some(code) => {
                let unreadable = |block: Block| ClientError::Data { message: block.to_string() };
                code.check(&input.payload).or_else(|block| match planted(Bug::NamedInputUnchecked) {
                    true => Ok(()),
                    false => Err(unreadable(block)),
                })?;
                CodeNames::checked(code.kind, code.name, code.old_names)?
            }
            None => {
                let kind = client.kind_of(&wanted).await;
                let kind = kind.map_err(|error| ClientError::of(id.as_str(), error))?;
                let unknown = || ClientError::UnknownCode { name: name.to_owned() };
                CodeNames::checked(kind.ok_or_else(unknown)?, name, &[])?
            }
        };
        let start = StartOptions::default().start(names, input, || client.now())?;
        let begun =
            client.start(&id, start.into()).await.map_err(|error| ClientError::of(id.as_str(), error))?;
        Ok(Handle::begun(client.clone(), id, begun))
    }

    /// Returns a handle on the execution with this id, whose result is a `T`.
    pub fn handle<T: Recorded>(&self, id: &str) -> Handle<T> {
        Handle::new(self.inner.client.clone(), ExecutionId::new(id))
    }

    /// Lists the executions that match the filter.
    pub async fn list(&self, filter: Filter) -> Result<Vec<Listed>, ClientError> {
        let client = &self.inner.client;
        let mut list = filter.list(client.namespace())?;
        let mut found = Vec::new();
        loop {
            let page = client.store().list(list.clone()).await.map_err(|error| ClientError::of("", error))?;
            // Users did not start abide's own executions and have no use for them.
            let items = page.items.into_iter().filter(|item| item.kind != Kind::Builtin);
            found.extend(items.map(|item| Listed::at(client.now(), item)));
            list.after = page.next;
            list.limit = filter.wanted_count().saturating_sub(found.len());
            if list.after.is_none() || list.limit == 0 {
                return Ok(found);
            }
        }
    }

    /// Stops working: takes nothing new, lets running steps finish within a grace period, releases
    /// every execution to other workers at once, and closes the store. An interrupted attempt is
    /// not counted.
    pub async fn shutdown(&self) {
        if let Some(engine) = &self.inner.engine {
            engine.shutdown().await;
        }
        self.inner.closer.close();
    }

    /// Whether this process can run a workflow or task of this name.
    pub(crate) fn has(&self, kind: Kind, name: &Name) -> bool {
        self.inner.code.has(kind, name)
    }

    pub(crate) fn client_part(&self) -> &Client {
        &self.inner.client
    }
}

impl std::fmt::Debug for Abide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Abide").field("namespace", self.inner.client.namespace()).finish_non_exhaustive()
    }
}
