//! Has a new build of the program try what is blocked.

use std::sync::{Arc, Weak};
use std::time::Duration;

use abide_core::{Body, By, Message, MessageId, Name, Status, Waiting};
use abide_store::{
    Error, Hold, Leased, List, ListCursor, ListOrder, Listed, Read, Result, Snapshot, Store, Submit, Target,
    WorkerRow,
};

use crate::driver::End;
use crate::engine::Inner;
use crate::ledger::{Ledger, Terms};
use crate::mailbox::Mailbox;

/// How many blocked executions are looked at before others get their turn at the store.
const PAGE_COUNT: usize = 1_000;

/// How many are asked at once to try again.
const TRY_COUNT_MAX: usize = 100;

/// How long to wait before what could not be asked is asked again.
const PAUSE: Duration = Duration::from_millis(500);

/// How long others wait for the store after each page.
const PAGE_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause before what was asked is asked again: somebody else may have taken it, and been blocked.
const ROUND_PAUSE_MAX: Duration = Duration::from_secs(300);

/// How long a build that has tried leaves an execution to the others, before it looks again.
const TURN_PAUSE: Duration = Duration::from_secs(2);

/// Asks everything that is blocked, that this worker could run and that its build has not tried, to try again, now and then: another build may
/// block something at any time. Two workers of one build ask once. Until it has tried, whoever waits for a result goes on waiting.
pub(crate) async fn try_blocked(engine: Weak<Inner>) {
    let mut pause = Duration::ZERO;
    // Held only while there is something to do: it must not keep alive what was dropped.
    while let Some(held) = engine.upgrade().filter(|engine| !engine.is_closing()) {
        let every = held.options.look_again_every;
        pause = match try_all(&held).await {
            0 => every,
            _ => (pause * 2).clamp(every, ROUND_PAUSE_MAX.max(every)),
        };
        let sleep = held.runtime.sleep(pause);
        drop(held);
        sleep.await;
    }
}

/// Gives how many were asked.
async fn try_all(engine: &Inner) -> usize {
    let (mut after, mut asked_count) = (None, 0);
    while !engine.is_closing() {
        match try_page(engine, after).await {
            Ok((count, next)) => {
                asked_count += count;
                after = next;
                if after.is_none() {
                    break;
                }
                engine.runtime.sleep(PAGE_PAUSE).await;
            }
            Err(error) => {
                tracing::warn!(%error, "what is blocked cannot be asked to try again");
                engine.runtime.sleep(PAUSE).await;
            }
        }
    }
    asked_count
}

async fn try_page(engine: &Inner, after: Option<ListCursor>) -> Result<(usize, Option<ListCursor>)> {
    let list = List {
        namespace: engine.options.namespace.clone(),
        statuses: vec![Status::Blocked],
        name: None,
        tags: Vec::new(),
        top_level: false,
        parent: None,
        order: ListOrder::OldestFirst,
        after,
        limit: PAGE_COUNT,
    };
    let page = engine.store.list(list).await?;
    let build = engine.build();
    let (mut messages, mut asked_count) = (Vec::new(), 0);
    for item in page.items.iter().filter(|item| engine.has_code(item)) {
        let read = Read { target: Target::Key(item.key), run: None, from: 0, limit: 0, with_inbox: false };
        match engine.store.read(read).await {
            Ok(Some(snapshot)) => messages.extend(wish(build, &snapshot)),
            Ok(None) => {}
            // It is damaged, or a newer program wrote it: neither holds up the others.
            Err(error @ Error::Corrupt { .. }) => {
                tracing::debug!(%error, execution = %item.address, "what is blocked cannot be read");
            }
            Err(error) => return Err(error),
        }
        if messages.len() == TRY_COUNT_MAX {
            asked_count += messages.len();
            submit(engine, std::mem::take(&mut messages)).await?;
        }
    }
    asked_count += messages.len();
    submit(engine, messages).await?;
    Ok((asked_count, page.next))
}

/// The message that asks an execution to try again. Its id names the build and the block: it is taken once, whoever sends it.
fn wish(build: &Name, snapshot: &Snapshot) -> Option<Message> {
    let execution = &snapshot.execution;
    execution.is_worth_trying(build).then(|| {
        let id = MessageId::new(format!("try:{}:{}:{build}", execution.run(), execution.entry_count()));
        let by = By(format!("build {build}"));
        Message::new(id, execution.address().clone(), by, Body::Unblock { step: None })
    })
}

/// Submits them together; one that moved on by itself meanwhile must not stop the others.
async fn submit(engine: &Inner, messages: Vec<Message>) -> Result<()> {
    if messages.is_empty() {
        return Ok(());
    }
    let together = Submit { messages: messages.clone(), born_to: None, alone: false };
    match engine.store.submit(together).await {
        Err(Error::Refused(_)) => {}
        other => return other.map(drop),
    }
    for message in messages {
        match engine.store.submit(Submit { messages: vec![message], born_to: None, alone: false }).await {
            Ok(_) | Err(Error::Refused(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Runs an execution that this build could not go on with, unless a build that may be the fixed one is live: then that one is to take it.
pub(crate) async fn take_turn(engine: Arc<Inner>, mailbox: Arc<Mailbox>, leased: Leased) -> End {
    let address = leased.address().clone();
    match is_wanted_by_others(&engine, &leased).await {
        Ok(false) => return engine.begin_code(mailbox, leased).await,
        Ok(true) => tracing::debug!(%address, "an execution is left to another build"),
        Err(error) => {
            tracing::warn!(%error, %address, "who else may run an execution is not known");
            return engine.begin_code(mailbox, leased).await;
        }
    }
    let until = engine.runtime.now().after(TURN_PAUSE);
    let summary = leased.execution.summary(&[Waiting::Build { until }]);
    // It listens to nothing, and nothing is lost by that: it is woken when its pause is over.
    let hold = Hold::Park { seen: Vec::new() };
    let mut ledger = Ledger::new(&engine, leased);
    ledger.flushed(Terms { summary, hold, born_slots: 0, alone: false }).await.end()
}

async fn is_wanted_by_others(engine: &Inner, leased: &Leased) -> Result<bool> {
    let (execution, route) = (&leased.execution, leased.execution.route());
    let workers =
        crate::why::workers(&*engine.store, execution.address(), None, engine.runtime.now()).await?;
    let wants = |row: &WorkerRow| {
        let build = row.worker.ability.build.as_ref();
        build.is_some_and(|build| !execution.tried().contains(build)) && row.worker.ability.serves(&route)
    };
    Ok(workers.iter().any(wants))
}

/// Whether no live build is left that could go on with an execution that is blocked: each of them has tried, or there is none.
pub(crate) async fn is_given_up(
    store: &dyn Store,
    snapshot: &Snapshot,
    now: abide_core::Timestamp,
) -> Result<bool> {
    let (execution, route) = (&snapshot.execution, snapshot.execution.route());
    let workers = crate::why::workers(store, execution.address(), None, now).await?;
    // Somebody looks at it, or is about to: it may have been unblocked.
    let is_moving = snapshot.lease.session.is_some() || snapshot.ready_at.is_some();
    let may_try = |row: &WorkerRow| {
        let build = row.worker.ability.build.as_ref();
        is_moving || build.is_some_and(|build| execution.is_worth_trying(build))
    };
    Ok(!workers.iter().filter(|row| row.worker.ability.serves(&route)).any(may_try))
}

impl Inner {
    /// The version of the program.
    pub(crate) fn build(&self) -> &Name {
        &self.options.build
    }

    /// Whether this build was blocked where an execution stands that is to go on.
    pub(crate) fn has_tried(&self, leased: &Leased) -> bool {
        let execution = &leased.execution;
        execution.phase().is_active() && execution.tried().contains(self.build())
    }

    fn has_code(&self, item: &Listed) -> bool {
        self.has_code_of(item.kind, &item.name)
    }
}
