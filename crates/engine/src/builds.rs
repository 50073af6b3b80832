//! Makes a new build of the program try blocked executions.

use std::sync::Weak;
use std::time::Duration;

use abide_core::planted::{Bug, planted};
use abide_core::{Body, By, Message, MessageId, Name, Status};
use abide_store::{Error, List, ListCursor, Listed, Read, Result, Snapshot, Submit, Target};

use crate::engine::Inner;

/// The number of blocked executions in one page, after which others get their turn at the store.
const PAGE_COUNT: usize = 1_000;

/// The number of executions that are asked at once to try again.
const TRY_COUNT_MAX: usize = 100;

/// The pause before a page that failed is tried again.
const PAUSE: Duration = Duration::from_millis(500);

/// The pause after each page, which leaves the store to others.
const PAGE_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause before executions are asked again: another build may have taken them, and been
/// blocked.
const ROUND_PAUSE_MAX: Duration = Duration::from_secs(300);

/// The shortest pause for each query of a round: an idle worker costs next to nothing, however many
/// executions are blocked.
const QUERY_PAUSE: Duration = Duration::from_secs(2);

/// The longest such pause: another build may have blocked an execution meanwhile, and callers wait
/// until this one has tried it.
const DEAR_PAUSE_MAX: Duration = Duration::from_secs(3_600);

/// The success and the costs of a round, or of one page of it.
#[derive(Clone, Copy, Default)]
struct Round {
    /// How many executions were asked.
    asked_count: usize,
    query_count: u32,
}

/// Asks, now and then, every blocked execution that this worker could run and that its build has
/// not tried to try again: another build may block one at any time. Two workers of one build ask
/// once. Until the build has tried, callers that wait for a result go on waiting.
pub(crate) async fn try_blocked(engine: Weak<Inner>) {
    let mut pause = Duration::ZERO;
    // The engine is held only while there is something to do: this task must not keep a dropped
    // engine alive.
    while let Some(held) = engine.upgrade().filter(|engine| !engine.is_closing()) {
        let every = held.options.look_again_every;
        let Round { asked_count, query_count } = try_all(&held).await;
        pause = match asked_count {
            0 => every,
            _ => (pause * 2).clamp(every, ROUND_PAUSE_MAX.max(every)),
        };
        let query_count = if planted(Bug::BlockedReadOften) { 0 } else { query_count };
        let dear = QUERY_PAUSE.saturating_mul(query_count).min(DEAR_PAUSE_MAX);
        let sleep = held.runtime.rest(pause.max(dear));
        drop(held);
        sleep.await;
    }
}

async fn try_all(engine: &Inner) -> Round {
    let (mut after, mut round) = (None, Round::default());
    while !engine.is_closing() {
        match try_page(engine, after).await {
            Ok((page, next)) => {
                round.asked_count += page.asked_count;
                round.query_count = round.query_count.saturating_add(page.query_count);
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
    round
}

/// Goes through one page of blocked executions, and returns where the next one begins.
async fn try_page(engine: &Inner, after: Option<ListCursor>) -> Result<(Round, Option<ListCursor>)> {
    let list = List {
        statuses: vec![Status::Blocked],
        after,
        ..List::of(engine.options.namespace.clone(), PAGE_COUNT)
    };
    let mut round = Round { asked_count: 0, query_count: 1 };
    let page = engine.store.list(list).await?;
    let (build, ability) = (engine.build(), engine.ability());
    let mut messages = Vec::new();
    for item in page.items.iter().filter(|item| engine.has_code(item)) {
        let read = Read { target: Target::Key(item.key), run: None, from: 0, limit: 0, with_inbox: false };
        round.query_count += 1;
        match engine.store.read(read).await {
            Ok(Some(snapshot)) if ability.serves(&snapshot.execution.route()) => {
                messages.extend(wish(build, &snapshot));
            }
            Ok(_) => {}
            // It is damaged, or a newer program wrote it, or it cannot be read now: that holds up
            // no other execution.
            Err(error) if error.is_of_one() => {
                tracing::debug!(%error, execution = %item.address, "what is blocked cannot be read");
            }
            Err(error) => return Err(error),
        }
        if messages.len() == TRY_COUNT_MAX {
            round.asked_count += messages.len();
            submit(engine, std::mem::take(&mut messages)).await?;
        }
    }
    round.asked_count += messages.len();
    submit(engine, messages).await?;
    Ok((round, page.next))
}

/// Returns the message that asks an execution to try again. Its id names the build and the block:
/// it is taken once, even if several workers send it.
fn wish(build: &Name, snapshot: &Snapshot) -> Option<Message> {
    let execution = &snapshot.execution;
    execution.is_worth_trying(build).then(|| {
        let id = MessageId::new(format!("try:{}:{}:{build}", execution.run(), execution.entry_count()));
        let by = By(format!("build {build}"));
        Message::new(id, execution.address().clone(), by, Body::Unblock { step: None })
    })
}

/// Submits the messages together; an execution that moved on meanwhile must not stop the others.
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

impl Inner {
    /// Returns the version of the program.
    pub(crate) fn build(&self) -> &Name {
        &self.options.build
    }

    fn has_code(&self, item: &Listed) -> bool {
        self.has_code_of(item.kind, &item.name)
    }
}
