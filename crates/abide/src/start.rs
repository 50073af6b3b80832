//! `abide.start` and `abide.run`.

use std::cell::LazyCell;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use abide_core::{ExecutionId, InvalidName, Name, Retry, Tag, Timestamp};

use abide_engine::{Begun, Client};

use crate::abide::Abide;
use crate::canonical::Input;
use crate::client_error::ClientError;
use crate::code::{Code, CodeNames};
use crate::enqueue::{EnqueueIn, Row};
use crate::handle::{Handle, result_of};
use crate::recent;

/// The options of a start, wherever it is made.
#[derive(Clone, Debug, Default)]
pub(crate) struct StartOptions {
    pub(crate) id: Option<String>,
    lane: Option<String>,
    requires: Vec<String>,
    priority: i16,
    pub(crate) delay: Option<Duration>,
    pub(crate) deadline: Option<Duration>,
    retry: Option<Retry>,
    tags: Vec<(String, String)>,
    /// Of a child: whether one that was started with another input is accepted.
    pub(crate) any_input: bool,
}

/// The builder methods of everything that starts an execution.
macro_rules! start_options {
    () => {
        /// Sets the id of the execution, unique in its namespace. Another start of the same id with
        /// the same input attaches to it, as [`Handle::is_attached`](crate::Handle::is_attached)
        /// reports.
        ///
        /// A child differs: it belongs to one start in one run of its parent. Another start that
        /// asks for the same id is refused, also in a later run of the same parent (a retry,
        /// [`continue_as_new`](crate::Ctx::continue_as_new)). Without an id of its own a child has
        /// a new one in each run. The refusal is the result of the child, not of its start, which
        /// was recorded before.
        pub fn id(mut self, id: impl Into<String>) -> Self {
            self.options.id = Some(id.into());
            self
        }

        /// Sets the named queue that it waits in; `default` if unset.
        pub fn lane(mut self, lane: impl Into<String>) -> Self {
            self.options.set_lane(lane.into());
            self
        }

        /// Sets the capabilities that a worker must have to take it.
        pub fn requires<R: Into<String>>(mut self, capabilities: impl IntoIterator<Item = R>) -> Self {
            self.options.add_requires(capabilities.into_iter().map(Into::into));
            self
        }

        /// Sets the priority: higher goes first within a lane.
        pub fn priority(mut self, priority: i16) -> Self {
            self.options.set_priority(priority);
            self
        }

        /// Delays the start by this long.
        pub fn delay(mut self, delay: std::time::Duration) -> Self {
            self.options.set_delay(delay);
            self
        }

        /// Sets a deadline from now: the execution fails if it has not ended by then.
        pub fn deadline(mut self, deadline: std::time::Duration) -> Self {
            self.options.set_deadline(deadline);
            self
        }

        /// Sets the retry policy of a task. A workflow has none: its steps have, and a retry of one
        /// step keeps the results of the others.
        pub fn retry(mut self, retry: abide_core::Retry) -> Self
        where
            C: $crate::code::Retried,
        {
            self.options.set_retry(retry);
            self
        }

        /// Adds a tag that the execution can be found by.
        pub fn tag(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
            self.options.add_tag(key.into(), value.into());
            self
        }
    };
}
pub(crate) use start_options;

impl StartOptions {
    pub(crate) fn set_lane(&mut self, lane: String) {
        self.lane = Some(lane);
    }
    pub(crate) fn add_requires(&mut self, capabilities: impl Iterator<Item = String>) {
        self.requires.extend(capabilities);
    }
    pub(crate) fn set_priority(&mut self, priority: i16) {
        self.priority = priority;
    }
    pub(crate) fn set_delay(&mut self, delay: Duration) {
        self.delay = Some(delay);
    }
    pub(crate) fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = Some(deadline);
    }
    pub(crate) fn set_retry(&mut self, retry: Retry) {
        self.retry = Some(retry);
    }
    pub(crate) fn add_tag(&mut self, key: String, value: String) {
        self.tags.push((key, value));
    }

    /// Returns the start that these options describe. The clock is read only for a delay.
    pub(crate) fn start(
        &self,
        code: CodeNames,
        input: Input,
        now: impl FnOnce() -> Timestamp,
    ) -> Result<abide_core::Start, InvalidName> {
        let now = LazyCell::new(now);
        let tags = tags(&self.tags)?;
        Tag::check_keys(&tags)?;
        let capability = |text: &String| Name::of_field("capability", text);
        Ok(abide_core::Start {
            kind: code.kind,
            name: code.name,
            input_hash: input.hash,
            input: input.payload,
            lane: recent::name("lane", self.lane.as_deref().unwrap_or("default"))?,
            requires: match self.requires.as_slice() {
                [] => Vec::new(),
                names => names.iter().map(capability).collect::<Result<_, _>>()?,
            },
            priority: self.priority,
            start_at: self.delay.map(|delay| now.after(delay)),
            deadline_at: self.deadline.map(|deadline| now.after(deadline)),
            retry: self.retry.clone(),
            tags,
            parent: None,
            discarded_at: None,
            old_names: Some(code.old_names).filter(|names| !names.is_empty()),
        })
    }
}

/// Checks tags.
pub(crate) fn tags(given: &[(String, String)]) -> Result<Vec<Tag>, InvalidName> {
    if given.is_empty() {
        return Ok(Vec::new());
    }
    let tag = |(key, value): &(String, String)| {
        Ok(Tag { key: Name::of_field("tag key", key)?, value: Name::of_field("tag value", value)? })
    };
    given.iter().map(tag).collect()
}

/// A start that is about to be made. Await it to get a [`Handle`]; options come first.
#[must_use = "nothing is started unless it is awaited"]
pub struct Start<C: Code> {
    pub(crate) abide: Abide,
    pub(crate) input: Result<Input, ClientError>,
    pub(crate) options: StartOptions,
    code: std::marker::PhantomData<fn() -> C>,
}

impl<C: Code> Start<C> {
    pub(crate) fn new(abide: &Abide, input: C::Input) -> Self {
        let input = Input::of(&input).map_err(|error| ClientError::Data {
            message: format!("the input of {} {:?} does not serialize: {error}", C::KIND.word(), C::NAME),
        });
        Self { abide: abide.clone(), input, options: StartOptions::default(), code: std::marker::PhantomData }
    }

    start_options!();

    /// Returns the id and the start itself.
    fn prepared(self) -> Result<(Client, ExecutionId, Arc<abide_core::Start>), ClientError> {
        let client = self.abide.client_part().clone();
        let id = match &self.options.id {
            Some(id) => ExecutionId::new(id)?,
            None => client.fresh_id(),
        };
        let start = self.options.start(CodeNames::of::<C>()?, self.input?, || client.now())?;
        Ok((client, id, Arc::new(start)))
    }

    /// Writes the start down in a transaction of the caller's own. The execution exists if and only
    /// if that transaction commits, from the moment in which an engine takes the row: until then,
    /// the handle says that there is none.
    ///
    /// ```no_run
    /// # use abide::prelude::*;
    /// # #[workflow]
    /// # async fn checkout(ctx: Ctx, order: u64) -> Result<()> { let _ = order; Ok(()) }
    /// # async fn run(abide: abide::Abide) -> Result<()> {
    /// let mut database = abide::rusqlite::Connection::open("app.db")?;
    /// let tx = database.transaction()?;
    /// tx.execute("INSERT INTO orders (number) VALUES (42)", [])?;
    /// let handle = abide.start(checkout, 42).id("order-42").enqueue_in(&tx).await?;
    /// tx.commit()?;
    /// # let _ = handle;
    /// # Ok(())
    /// # }
    /// ```
    pub fn enqueue_in<E: EnqueueIn>(self, transaction: E) -> E::Answer<Handle<C::Output>> {
        transaction.put(self.prepared().map(|(client, id, start)| {
            let row = Row::start(&client, &id, &start);
            (row, Handle::new(client, Ok(id)))
        }))
    }

    async fn send(self) -> Result<Handle<C::Output>, ClientError> {
        let is_fresh = self.options.id.is_none();
        let (client, id, start) = self.prepared()?;
        let begun = client.start(&id, start).await.map_err(|error| ClientError::of(id.as_str(), error))?;
        // Nobody else has an id that was made here. An execution found under it is this start's
        // own, created before an answer was lost.
        Ok(Handle::begun(client, id, if is_fresh { Begun::Created } else { begun }))
    }
}

impl<C: Code> IntoFuture for Start<C> {
    type Output = Result<Handle<C::Output>, ClientError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// A start whose result is awaited. Await it; options come first. Dropping it leaves the execution
/// running.
///
/// On a task of the runtime that abide was opened in, the future itself polls the workflow: a step
/// that blocks its thread blocks the task, sees the task's locals, and may not block in place on a
/// task of a `LocalSet`. If the future was woken and is not polled for a while
/// ([`host_patience`](crate::Builder::host_patience)), the workflow goes on elsewhere. Until then,
/// a future that is held and not polled keeps its workflow waiting, with its timeouts and orders.
#[must_use = "nothing is started unless it is awaited"]
pub struct Run<C: Code> {
    abide: Abide,
    input: Result<Input, ClientError>,
    options: StartOptions,
    code: std::marker::PhantomData<fn() -> C>,
}

impl<C: Code> Run<C> {
    pub(crate) fn new(abide: &Abide, input: C::Input) -> Self {
        let Start { abide, input, options, code } = Start::<C>::new(abide, input);
        Self { abide, input, options, code }
    }

    start_options!();
}

impl<C: Code> IntoFuture for Run<C> {
    type Output = Result<C::Output, ClientError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { abide, input, options, code } = self;
        // Prepared here: the options would take up space in the future of every caller that awaits
        // a result.
        let prepared = Start::<C> { abide, input, options, code }.prepared();
        Box::pin(async move {
            let (client, id, start) = prepared?;
            let event = client.run(&id, start).await.map_err(|error| ClientError::of(id.as_str(), error))?;
            result_of(&id, event)
        })
    }
}
