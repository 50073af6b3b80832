//! The operations from outside: start, send, watch.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use abide_core::planted::{Bug, planted};
use abide_core::{
    Address, Body, By, Entry, Event, ExecutionId, Kind, Message, MessageId, Name, Namespace, Payload, Phase,
    Refusal, Start, Status, start_differences, text,
};
use abide_store::{Error, Read, Record, Result, Snapshot, Store, Target, Workers};

use crate::engine::Engine;
use crate::follower::{Pace, follow};
use crate::hosts::Hosting;
use crate::options::Options;
use crate::request::Requests;
use crate::runtime::Runtime;
use crate::submission::{Submission, Submitting, Taken};
use crate::watch::{Watchers, Whereabouts};
use crate::{turns, why};

/// Starts and watches executions of one namespace. With an engine beside it, its executions run
/// there if they can.
#[derive(Clone)]
pub struct Client {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) runtime: Arc<dyn Runtime>,
    namespace: Namespace,
    pub(crate) watchers: Arc<Watchers>,
    pub(crate) requests: Requests,
    pace: Pace,
    pub(crate) engine: Option<Engine>,
}

impl Client {
    /// Makes a client whose starts are offered to `engine`.
    pub fn beside(engine: &Engine) -> Self {
        let inner = &engine.0;
        Self {
            store: inner.store.clone(),
            runtime: inner.runtime.clone(),
            namespace: inner.options.namespace.clone(),
            watchers: inner.watchers.clone(),
            requests: inner.requests.clone(),
            pace: pace(&inner.options),
            engine: Some(engine.clone()),
        }
    }

    /// Makes a client that runs nothing.
    pub fn alone(store: Arc<dyn Store>, runtime: Arc<dyn Runtime>, namespace: Namespace) -> Self {
        let options = Options::default();
        let (requests, pace) = (Requests::new(options.request_count_max), pace(&options));
        Self { store, runtime, namespace, watchers: Arc::default(), requests, pace, engine: None }
    }

    /// Returns the store behind it.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns its tenant.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Returns the time.
    pub fn now(&self) -> abide_core::Timestamp {
        self.runtime.now()
    }

    /// Returns a new id that sorts by the time of its creation.
    pub fn fresh_id(&self) -> ExecutionId {
        ExecutionId::fresh(self.runtime.now(), self.runtime.random())
    }

    /// Returns the address of an id in this namespace.
    pub fn address(&self, id: &ExecutionId) -> Address {
        Address { namespace: self.namespace.clone(), id: id.clone() }
    }

    /// Starts an execution, or attaches to the one that began the same way.
    ///
    /// If an answer was lost and the start sent again, an execution that the first try may have
    /// created counts as attached to.
    pub async fn start(&self, id: &ExecutionId, start: Arc<Start>) -> Result<Begun> {
        let requested_at = self.requested_at(&start);
        match self.begin(id, start.clone()).await? {
            Taken { is_attached: true, .. } if !planted(Bug::AttachUntold) => {
                Ok(Begun::Attached { differences: self.differences(id, (&start, requested_at)).await })
            }
            Taken { .. } => Ok(Begun::Created),
        }
    }

    /// Returns the time from which the delays of a start count. It is taken before the store is
    /// asked, whose time is no part of a delay. The clock is read only for starts with a delay.
    fn requested_at(&self, start: &Start) -> abide_core::Timestamp {
        let has_delay = start.start_at.is_some() || start.deadline_at.is_some();
        if has_delay && !planted(Bug::DelayFromZero) { self.now() } else { abide_core::Timestamp::default() }
    }

    /// Returns and logs the requested options that have no effect, because the execution was
    /// started with others.
    async fn differences(
        &self,
        id: &ExecutionId,
        requested: (&Start, abide_core::Timestamp),
    ) -> Vec<&'static str> {
        let (namespace, execution) = (self.namespace.as_str(), id.as_str());
        let target = Target::Address(self.address(id));
        let read = Read { target, run: Some(1), from: 1, limit: 1, with_inbox: false };
        let first = match self.store.read(read).await {
            Ok(Some(snapshot)) => snapshot.journal.first().map(Record::entry).transpose(),
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        };
        let differences = match first {
            Ok(Some(Entry { at, event: Event::Started(existing), .. }))
                if !planted(Bug::DifferencesUntold) =>
            {
                start_differences((&existing, at), requested)
            }
            Ok(_) => Vec::new(),
            Err(error) => {
                tracing::debug!(namespace, execution, %error, "how an execution was started cannot be read");
                Vec::new()
            }
        };
        if differences.is_empty() {
            tracing::debug!(namespace, execution, "a start attached to an execution that was there");
        } else {
            let differences = differences.join(", ");
            tracing::warn!(
                namespace,
                execution,
                differences,
                "a start attached to an execution that was started with other options, which stay as they are"
            );
        }
        differences
    }

    /// Starts an execution, and reports whether the engine beside this client runs it.
    async fn begin(&self, id: &ExecutionId, start: Arc<Start>) -> Result<Taken> {
        let body = Body::Start(start);
        self.submit(Message::new(MessageId::of_start(), self.address(id), By::client(), body)).await
    }

    /// Starts an execution, or attaches to it, and waits until it has ended.
    pub async fn run(&self, id: &ExecutionId, start: Arc<Start>) -> Result<Event> {
        if let Some(hosting) = poll_fn(|cx| Poll::Ready(self.hosting(cx.waker()))).await {
            return self.run_here(hosting, id, start).await;
        }
        // Watched before it exists: for a new execution, no look into the store is needed to see
        // whether it has already ended.
        let watch = self.watchers.watch(id, Whereabouts::Here);
        let requested_at = self.requested_at(&start);
        let taken = self.begin(id, start.clone()).await?;
        let (place, is_attached) = (taken.place(), taken.is_attached);
        drop(taken);
        if place == Whereabouts::Here
            && let Some(event) = watch.told(&*self.runtime).await
        {
            return Ok(event);
        }
        // Rarely needed, so it takes no room in the future of every caller.
        Box::pin(self.ended_after(id, (&start, requested_at), is_attached)).await
    }

    /// Makes the task that polls with this waker the host of a run, if it may be one.
    fn hosting(&self, waker: &Waker) -> Option<Hosting> {
        let engine = &self.engine.as_ref()?.0;
        engine.hosts.enter(engine, waker)
    }

    /// Does the same, and runs the execution on the task of the caller, if it is born here.
    async fn run_here(&self, hosting: Hosting, id: &ExecutionId, start: Arc<Start>) -> Result<Event> {
        let requested_at = self.requested_at(&start);
        let mut taken = self.begin(id, start.clone()).await?;
        if let Some(newborn) = taken.born.take() {
            let mut hosted = hosting.run(newborn);
            let event = (&mut hosted).await;
            if !hosted.has_waited() && !planted(Bug::HostHogs) {
                yield_once().await;
            }
            drop(hosted);
            if let Some(event) = event {
                return Ok(event);
            }
        }
        drop(hosting);
        Box::pin(self.ended_after(id, (&start, requested_at), taken.is_attached)).await
    }

    /// Waits for the end of an execution that was started or attached to.
    async fn ended_after(
        &self,
        id: &ExecutionId,
        requested: (&Start, abide_core::Timestamp),
        is_attached: bool,
    ) -> Result<Event> {
        if is_attached {
            self.differences(id, requested).await;
        }
        self.ended(id, Blocks::End).await
    }

    /// Returns which kind of code a worker of this namespace has registered under `name`: a
    /// workflow, or else a task. A worker that is not live at the moment counts too, as long as the
    /// store knows of it.
    pub async fn kind_of(&self, name: &Name) -> Result<Option<Kind>> {
        const PAGE_COUNT: usize = 1_000;
        let (mut after, mut found) = (None, None);
        loop {
            let workers = Workers { namespace: self.namespace.clone(), after, limit: PAGE_COUNT };
            let page = self.store.workers(workers).await?;
            for (kind, known) in page.iter().flat_map(|row| &row.worker.ability.runs) {
                match kind {
                    Kind::Workflow if known == name => return Ok(Some(Kind::Workflow)),
                    Kind::Task if known == name => found = Some(Kind::Task),
                    _ => {}
                }
            }
            after = page.last().map(|row| row.session);
            if page.len() < PAGE_COUNT {
                return Ok(found);
            }
        }
    }

    /// Sends a message under an id of its own: if it is sent again after a lost answer, it arrives
    /// once.
    pub async fn send(&self, id: &ExecutionId, by: By, body: Body) -> Result<()> {
        let name = MessageId::new(format!("{:016x}{:016x}", self.runtime.random(), self.runtime.random()));
        self.send_as(name, id, (by, body)).await.map(|_| ())
    }

    /// Sends a message under an id that its sender knows: it arrives once, however often it is
    /// sent. Its value is not compared with that of the first one.
    pub async fn send_as(&self, name: MessageId, id: &ExecutionId, (by, body): (By, Body)) -> Result<Sent> {
        let message = Message::new(name, self.address(id), by, body);
        let taken = self.submit(message).await?;
        Ok(if taken.is_known { Sent::Known } else { Sent::New })
    }

    /// Sends a signal.
    pub async fn signal(&self, id: &ExecutionId, name: Name, payload: Payload) -> Result<()> {
        self.send(id, By::client(), Body::Signal { name, payload }).await
    }

    /// Submits a message. The request to the store is seen through even if the caller's future is
    /// dropped.
    ///
    /// While the store cannot say what became of the message, it is submitted again: a repetition
    /// changes nothing. A caller does not wait forever; after it got the answer that the outcome is
    /// unknown, the engine goes on asking.
    async fn submit(&self, message: Message) -> Result<Taken> {
        let permit = self.requests.enter().await?;
        Submitting::new(self, Submission::new(message, permit)).await
    }

    /// Returns the execution and the entries of its journal from number `from` on, at most `limit`.
    pub async fn read(&self, id: &ExecutionId, from: u64, limit: usize) -> Result<Snapshot> {
        let read =
            Read { target: Target::Address(self.address(id)), run: None, from, limit, with_inbox: false };
        let snapshot = self.store.read(read).await?;
        snapshot.ok_or_else(|| Refusal::Unknown { id: id.clone() }.into())
    }

    /// Waits until the execution has ended, and returns how. A run that continues as new is no end.
    pub async fn ended(&self, id: &ExecutionId, blocks: Blocks) -> Result<Event> {
        let mut place = Whereabouts::Elsewhere;
        loop {
            // Watched before it is looked at, so that nothing can happen in between.
            let watch = self.watchers.watch(id, place);
            let snapshot = self.read(id, 0, 0).await?;
            if snapshot.summary.status.is_terminal() {
                match self.last_event(id, &snapshot).await? {
                    Some(event) => return Ok(event),
                    None => continue,
                }
            }
            if snapshot.summary.status == Status::Damaged {
                let what = format!("execution {:?} was set aside; `why` says what is damaged", id.as_str());
                return Err(Error::Corrupt { what });
            }
            if let Phase::Blocked { reason, .. } = snapshot.execution.phase()
                && (blocks == Blocks::End || planted(Bug::BlockEndsEveryWait))
                && !planted(Bug::BlockedUntold)
                && turns::is_given_up(&*self.store, &snapshot, self.now()).await?
            {
                let ways_on = text::ways_on(id, reason).map(|ways_on| format!("; to go on: {ways_on}"));
                let reason = format!("{reason}{}", ways_on.unwrap_or_default());
                return Err(Refusal::GivenUp { reason }.into());
            }
            let found = self.place(&snapshot);
            if found != place {
                place = found;
                continue;
            }
            if self.is_left_alone(place) {
                return Err(Error::Closed);
            }
            if place == Whereabouts::Elsewhere && self.watchers.wants_follower() {
                let (store, namespace) = (self.store.clone(), self.namespace.clone());
                follow(&self.watchers, store, &self.runtime, namespace, self.pace);
            }
            if let Some(event) = watch.told(&*self.runtime).await {
                return Ok(event);
            }
        }
    }

    /// Whether the engine closes, so that no caller waits for the store's answers any longer.
    pub(crate) fn is_closed(&self) -> bool {
        self.engine.as_ref().is_some_and(|engine| engine.0.is_closing())
    }

    /// Whether no caller learns any more how an execution ends. An engine that shuts down still
    /// knows that of those in memory.
    fn is_left_alone(&self, place: Whereabouts) -> bool {
        self.engine.as_ref().is_some_and(|engine| match place {
            Whereabouts::Here if !planted(Bug::DrainDeserts) => engine.0.is_closed(),
            _ => engine.0.is_closing(),
        })
    }

    /// Returns where an execution runs.
    fn place(&self, snapshot: &Snapshot) -> Whereabouts {
        match &self.engine {
            Some(engine) if engine.0.is_resident(snapshot.key) => Whereabouts::Here,
            _ => Whereabouts::Elsewhere,
        }
    }

    /// Returns the event that ended the run; `None` if a retry has since opened the next one.
    async fn last_event(&self, id: &ExecutionId, snapshot: &Snapshot) -> Result<Option<Event>> {
        let last = snapshot.execution.entry_count();
        let page = self.read(id, last, 1).await?;
        if page.execution.run() != snapshot.execution.run() {
            return Ok(None);
        }
        let record = page.journal.first().ok_or_else(|| Error::Corrupt {
            what: format!("execution {id:?} is {} but has no entry {last}", snapshot.summary.status),
        })?;
        Ok(Some(record.entry()?.event))
    }

    /// Explains in one sentence why the execution is where it is.
    pub async fn why(&self, id: &ExecutionId) -> Result<String> {
        let engine = self.engine.as_ref().map(|engine| &*engine.0);
        let (_, sentence) = why::explain_beside(&*self.store, engine, &self.address(id), self.now()).await?;
        Ok(sentence)
    }

    /// Returns the status of the execution.
    pub async fn status(&self, id: &ExecutionId) -> Result<Status> {
        Ok(self.read(id, 0, 0).await?.summary.status_at(self.now()))
    }
}

/// The meaning of a block to a caller that waits for a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// The wait is over once every live build that serves the execution has tried, or none is live.
    End,
    /// The wait goes on: somebody will unblock the execution, or deploy a fixed build.
    Pass,
}

/// The outcome of a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// The execution was created.
    Created,
    /// The execution existed, and began with the same workflow and input.
    Attached {
        /// The options of the execution that differ from those of this start. They stay as they
        /// are.
        differences: Vec<&'static str>,
    },
}

/// The result of sending a message under an id that its sender knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It has arrived.
    New,
    /// A message of this id had arrived before: nothing was sent.
    Known,
}

/// Lets other tasks have a turn: a store may answer at once, and a caller that starts one execution
/// after the other would keep its thread for ever.
async fn yield_once() {
    let mut has_yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

fn pace(options: &Options) -> Pace {
    Pace { follow_every: options.follow_every, look_again_every: options.look_again_every }
}
