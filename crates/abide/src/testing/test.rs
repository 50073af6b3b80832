//! A test with options.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use abide_core::planted::{Bug, planted};
use abide_core::{Kind, Name, Namespace, Payload};
use abide_engine::sim::{Sim, Still};
use abide_engine::{TaskCode, why};
use abide_store::{Clock, List, Store};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{outside, tokio_for_steps};
use crate::code::{MockTask, Registered, Task, Workflow};
use crate::ctx::State;
use crate::open::TestParts;
use crate::probe::{MockCall, Probe, StepMock};
use crate::{Abide, Builder, Result, data};

/// A test with options: state of the application, mocks, another builder. End with
/// [`run`](Test::run), [`crash_everywhere`](Test::crash_everywhere) or [`replay`](Test::replay).
#[must_use = "nothing is tested until `run` is called"]
pub struct Test {
    state: State,
    explicit: Vec<Registered>,
    options: Vec<Box<dyn Fn(Builder) -> Builder>>,
    steps: BTreeMap<String, StepMock>,
    tasks: BTreeMap<String, Arc<dyn TaskCode>>,
    pub(super) signals: Vec<(Name, Payload)>,
    patience: Duration,
}

impl Default for Test {
    fn default() -> Self {
        Self::new()
    }
}

impl Test {
    /// How long, in real time, the virtual clock waits for steps that wait for the outside world.
    pub(super) const PATIENCE: Duration = Duration::from_secs(60);

    /// A test without options.
    pub fn new() -> Self {
        Self {
            state: State::default(),
            explicit: Vec::new(),
            options: Vec::new(),
            steps: BTreeMap::new(),
            tasks: BTreeMap::new(),
            signals: Vec::new(),
            patience: Self::PATIENCE,
        }
    }

    /// Shares a value with every workflow and task: `ctx.state::<S>()`.
    pub fn state<S: Send + Sync + 'static>(mut self, value: S) -> Self {
        self.state = self.state.with(value);
        self
    }

    /// Registers a workflow by hand; it takes the place of a linked one of the same name.
    pub fn workflow<W: Workflow>(mut self, _workflow: W) -> Self {
        self.explicit.push(Registered::of::<W>("the test"));
        self
    }

    /// Registers a task by hand; it takes the place of a linked one of the same name.
    pub fn task<T: Task>(mut self, _task: T) -> Self {
        self.explicit.push(Registered::of::<T>("the test"));
        self
    }

    /// Sets any other option of the [`Builder`].
    pub fn with(mut self, options: impl Fn(Builder) -> Builder + 'static) -> Self {
        self.options.push(Box::new(options));
        self
    }

    /// Records the return value of `mock` as the result of every step, blocking step or transaction
    /// of this name. The closure in the workflow does not run. A mock that no step has used by the
    /// end of the test is an error.
    pub fn mock_step<T: Serialize>(
        mut self,
        name: &str,
        mock: impl Fn(MockCall) -> Result<T> + Send + Sync + 'static,
    ) -> Self {
        self.steps.insert(name.to_owned(), Arc::new(move |call| data::written(mock(call))));
        self
    }

    /// Runs `mock` in place of the task of this name. A name that no task has is an error.
    pub fn mock_task<I, T>(
        mut self,
        name: &str,
        mock: impl Fn(I) -> Result<T> + Send + Sync + 'static,
    ) -> Self
    where
        I: DeserializeOwned + Send + 'static,
        T: Serialize + 'static,
    {
        self.tasks.insert(name.to_owned(), Arc::new(MockTask::new(name, mock)));
        self
    }

    /// Sends a signal to the workflow of [`crash_everywhere`](Test::crash_everywhere), right after
    /// its start.
    ///
    /// # Panics
    /// If `name` is not a valid name, or `value` does not serialize.
    #[track_caller]
    pub fn signal<S: Serialize + ?Sized>(mut self, name: &str, value: &S) -> Self {
        let checked = Name::new(name).map_err(|invalid| invalid.to_string());
        let encoded =
            data::encode(&value).map_err(|error| format!("signal {name:?} does not serialize: {error}"));
        self.signals.push((or_panic(checked), or_panic(encoded)));
        self
    }

    /// Sets how long, in real time, the virtual clock waits for a step that waits for the outside
    /// world (60 seconds). Then it jumps to the next timer.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Runs `test` on a new engine in memory whose clock jumps to the next timer whenever nothing
    /// else can be done.
    ///
    /// # Panics
    /// If the engine cannot be opened, the test panics, a mock was never used, or nothing can
    /// happen any more while the test still waits.
    #[track_caller]
    pub fn run<F, Fut>(self, test: F) -> Fut::Output
    where
        F: FnOnce(Abide) -> Fut,
        Fut: Future,
    {
        or_panic(self.ran(test))
    }

    fn ran<F, Fut>(&self, test: F) -> Result<Fut::Output, String>
    where
        F: FnOnce(Abide) -> Fut,
        Fut: Future,
    {
        let probe = self.probe(false);
        let output = self.inside(|sim| {
            let builder = self.builder(&probe).simulated(sim.process(1), None);
            let store = OnceLock::new();
            let mut body = pin!(async {
                let abide = opened(builder).await?;
                let client = abide.client_part();
                let _ = store.set((client.store().clone(), client.namespace().clone()));
                Ok(test(abide).await)
            });
            sim.try_block_on(body.as_mut()).unwrap_or_else(|Still| match store.get() {
                Some((store, namespace)) => Err(stands_still(sim, &**store, [namespace])),
                None => Err("the engine of the test does not open".to_owned()),
            })
        })?;
        probe.unused().map_or(Ok(output), Err)
    }

    /// Returns the part of the test that watches operations and replaces closures.
    pub(super) fn probe(&self, is_replay: bool) -> Arc<Probe> {
        Arc::new(Probe::new(self.steps.clone(), is_replay))
    }

    pub(super) fn builder(&self, probe: &Arc<Probe>) -> Builder {
        let parts = TestParts {
            state: if planted(Bug::TestStateLost) { State::default() } else { self.state.clone() }
                .probed(probe),
            explicit: self.explicit.clone(),
            tasks: self.tasks.clone(),
        };
        let builder = Abide::builder("sqlite::memory:").for_test(parts);
        self.options.iter().fold(builder, |builder, options| options(builder))
    }

    /// Runs `body` beside a new simulated world.
    pub(super) fn inside<T>(&self, body: impl FnOnce(&Sim) -> T) -> T {
        let tokio = tokio_for_steps();
        let _inside = tokio.enter();
        body(&Sim::beside(0, outside(&tokio, self.patience)))
    }
}

/// Returns the value, or panics at the line of the test: its caller has the line of its own caller.
/// In a closure, or a task, a panic would name a line of abide.
#[track_caller]
pub(super) fn or_panic<T>(made: Result<T, String>) -> T {
    match made {
        Ok(value) => value,
        Err(reason) => panic!("{reason}"),
    }
}

/// Opens a worker.
pub(super) async fn opened(builder: Builder) -> Result<Abide, String> {
    builder.open().await.map_err(|error| format!("the engine of the test does not open: {error}"))
}

/// Explains why the test stands still: the sentence of every open execution.
pub(super) fn stands_still<'a>(
    sim: &Sim,
    store: &dyn Store,
    namespaces: impl IntoIterator<Item = &'a Namespace>,
) -> String {
    const SENTENCE_COUNT_MAX: usize = 20;
    let sentences = sim.block_on(async {
        let mut items = Vec::new();
        for namespace in namespaces {
            let list = List::of(namespace.clone(), 1_000);
            items.extend(store.list(list).await.map(|listing| listing.items).unwrap_or_default());
        }
        let open = items.into_iter().filter(|item| item.kind != Kind::Builtin);
        let mut sentences = Vec::new();
        for item in
            open.filter(|item| !item.summary.status.is_terminal() && !planted(Bug::StillnessUnexplained))
        {
            let said = why::explain(store, &item.address, sim.now()).await;
            sentences.push(said.map_or_else(|error| error.to_string(), |(_, sentence)| sentence));
        }
        sentences
    });
    let more = sentences.len().saturating_sub(SENTENCE_COUNT_MAX);
    let mut lines = vec!["nothing can happen any more, and the test still waits".to_owned()];
    lines.extend(sentences.iter().take(SENTENCE_COUNT_MAX).map(|sentence| format!("  {sentence}")));
    match (sentences.is_empty(), more) {
        (true, _) => lines.push("  No execution is open: the test waits for something else.".to_owned()),
        (false, 0) => {}
        (false, more) => lines.push(format!("  … and {more} more")),
    }
    lines.join("\n")
}
