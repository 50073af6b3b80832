//! What can be done from outside: start, send, watch.

use std::sync::Arc;
use std::time::Duration;

use abide_core::{
    Address, Body, Event, ExecutionId, Message, MessageId, Name, Namespace, Payload, Refusal, Start, Status,
};
use abide_store::{Error, Read, Result, Snapshot, Store, Submit, Submitted, Target};

use crate::engine::Engine;
use crate::runtime::Runtime;
use crate::watch::{Place, Watchers};

/// Starts and watches executions of one namespace. With an engine beside it, what it starts runs there if it can.
#[derive(Clone)]
pub struct Client {
    store: Arc<dyn Store>,
    runtime: Arc<dyn Runtime>,
    namespace: Namespace,
    watchers: Arc<Watchers>,
    engine: Option<Engine>,
}

/// How often a client without an engine, to whom nobody tells anything, looks whether an execution has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);

impl Client {
    /// A client whose starts are offered to `engine`.
    pub fn beside(engine: &Engine) -> Self {
        let inner = &engine.0;
        Self {
            store: inner.store.clone(),
            runtime: inner.runtime.clone(),
            namespace: inner.options.namespace.clone(),
            watchers: inner.watchers.clone(),
            engine: Some(engine.clone()),
        }
    }

    /// A client that runs nothing.
    pub fn alone(store: Arc<dyn Store>, runtime: Arc<dyn Runtime>, namespace: Namespace) -> Self {
        Self { store, runtime, namespace, watchers: Arc::default(), engine: None }
    }

    /// The store behind it.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Its tenant.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The time.
    pub fn now(&self) -> abide_core::Timestamp {
        self.runtime.now()
    }

    /// A new id that sorts by the time it was made.
    pub fn fresh_id(&self) -> ExecutionId {
        let (micros, random) = (self.runtime.now().as_micros(), self.runtime.random());
        ExecutionId::new(format!("{micros:013x}-{random:016x}")).expect("hexadecimal digits are a name")
    }

    /// Where an id of this namespace lives.
    pub fn address(&self, id: &ExecutionId) -> Address {
        Address { namespace: self.namespace.clone(), id: id.clone() }
    }

    /// Starts an execution, or attaches to the one that began the same way.
    pub async fn start(&self, id: &ExecutionId, start: Arc<Start>) -> Result<()> {
        self.begin(id, start).await.map(|_| ())
    }

    /// Starts an execution, and says whether the engine beside this client runs it.
    async fn begin(&self, id: &ExecutionId, start: Arc<Start>) -> Result<Place> {
        self.submit(|| {
            let body = Body::Start(start.clone());
            Message { id: MessageId::new("start"), to: self.address(id), body }
        })
        .await
    }

    /// Starts an execution, or attaches to it, and waits until it has ended.
    pub async fn run(&self, id: &ExecutionId, start: Arc<Start>) -> Result<Event> {
        // Watched before it exists: what is new here needs no look into the store to see whether it has ended already.
        let watch = self.watchers.watch(id, Place::Here);
        if self.begin(id, start).await? == Place::Here
            && let Ok(Some(event)) = watch.await
        {
            return Ok(event);
        }
        // Rarely needed, so it takes no room in the future of every caller.
        Box::pin(self.ended(id)).await
    }

    /// Sends a message under an id of its own: sent again after a lost answer, it arrives once.
    pub async fn send(&self, id: &ExecutionId, body: Body) -> Result<()> {
        let name = MessageId::new(format!("{:016x}{:016x}", self.runtime.random(), self.runtime.random()));
        let message = Message { id: name, to: self.address(id), body };
        self.submit(|| message.clone()).await.map(|_| ())
    }

    /// Sends a signal.
    pub async fn signal(&self, id: &ExecutionId, name: Name, payload: Payload) -> Result<()> {
        self.send(id, Body::Signal { name, payload }).await
    }

    /// Submits a message; again while the store cannot say what became of it, because a repetition changes nothing.
    async fn submit(&self, message: impl Fn() -> Message) -> Result<Place> {
        const TRY_COUNT_MAX: u32 = 5;
        let mut tried_count = 0;
        let mut unknown = None;
        loop {
            let (born_to, alone) = match &self.engine {
                Some(engine) if engine.0.free_slots() > 0 => (Some(engine.0.session()), engine.0.is_idle()),
                Some(engine) => (None, engine.0.is_idle()),
                None => (None, true),
            };
            let submit = Submit { messages: vec![message()], born_to, alone };
            match self.store.submit(submit).await {
                Ok(submitted) => return Ok(self.adopt(submitted, tried_count > 0).await),
                Err(error @ Error::Indeterminate { .. }) => unknown = Some(error),
                // That this one did not happen says nothing about the one before it.
                Err(error) if unknown.is_some() && error.is_transient() => {}
                Err(error) => return Err(error),
            }
            if let Some(error) = unknown.take_if(|_| tried_count == TRY_COUNT_MAX) {
                return Err(error);
            }
            tracing::debug!(tried_count, "a submit is repeated: nobody knows what became of it");
            tried_count += 1;
            let pause = Duration::from_millis(10) * tried_count;
            self.runtime.sleep(pause).await;
        }
    }

    /// Runs what was born to the engine. After a lost answer it may have been born without our knowing.
    async fn adopt(&self, submitted: Vec<Submitted>, was_repeated: bool) -> Place {
        let Some(engine) = &self.engine else { return Place::Elsewhere };
        let mut place = Place::Elsewhere;
        for one in submitted {
            match one {
                Submitted::Started(_, Some(leased)) => {
                    engine.0.adopt([*leased]);
                    place = Place::Here;
                }
                Submitted::Attached(key) if was_repeated && !engine.0.is_resident(key) => {
                    Box::pin(engine.0.recover(Target::Key(key))).await;
                }
                _ => {}
            }
        }
        place
    }

    /// The execution and the entries of its journal from number `from` on, at most `limit`.
    pub async fn read(&self, id: &ExecutionId, from: u64, limit: usize) -> Result<Snapshot> {
        let read = Read { target: Target::Address(self.address(id)), from, limit, with_inbox: false };
        let snapshot = self.store.read(read).await?;
        snapshot.ok_or_else(|| Refusal::Unknown { id: id.clone() }.into())
    }

    /// Waits until the execution has ended, and says how. A run that continues as new is no end.
    pub async fn ended(&self, id: &ExecutionId) -> Result<Event> {
        let mut place = Place::Elsewhere;
        loop {
            // Watched before it is looked at, so that nothing can happen between.
            let watch = self.watchers.watch(id, place);
            let snapshot = self.read(id, 0, 0).await?;
            if snapshot.summary.status.is_terminal() {
                match self.last_event(id, &snapshot).await? {
                    Some(event) => return Ok(event),
                    None => continue,
                }
            }
            let found = self.place(&snapshot);
            if found != place {
                place = found;
                continue;
            }
            match &self.engine {
                Some(engine) if engine.0.is_closing() => return Err(Error::Closed),
                // The engine's dispatcher tells what it hears, and has everybody look again now and then.
                Some(_) => {
                    if let Ok(Some(event)) = watch.await {
                        return Ok(event);
                    }
                }
                None => self.runtime.sleep(LOOK_EVERY).await,
            }
        }
    }

    /// Where an execution is.
    fn place(&self, snapshot: &Snapshot) -> Place {
        match &self.engine {
            Some(engine) if engine.0.is_resident(snapshot.key) => Place::Here,
            _ => Place::Elsewhere,
        }
    }

    /// What ended the run; `None` when a retry has opened the next one since it was looked at.
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

    /// Where the execution stands.
    pub async fn status(&self, id: &ExecutionId) -> Result<Status> {
        Ok(self.read(id, 0, 0).await?.summary.status)
    }
}
