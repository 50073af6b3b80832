//! Makes a new build of the program try blocked executions.

use std::sync::Weak;
use std::time::Duration;

use abide_core::planted::{Bug, planted};
use abide_core::{Body, By, Message, MessageId, Name, Status};
use abide_store::{Error, List, ListCursor, Listed, Read, Result, Snapshot, Submit, Target};

use crate::engine::Inner;
use crate::pauses::Pauses;
use crate::runtime::BoxFuture;

/// The number of blocked executions in one page, after which others get their turn at the store.
const PAGE_COUNT: usize = 1_000;

/// The number of executions that are asked at once to try again.
const TRY_COUNT_MAX: usize = 100;

/// The pause after each page, which leaves the store to others.
const PAGE_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause before executions are asked again: another build may have taken them, and been
/// blocked.
const ROUND_PAUSE_MAX: Duration = Duration::from_secs(300);

/// The part of a pause that each query of the round before it adds: an idle worker costs next to
/// nothing, however many executions are blocked.
const PAUSE_PER_QUERY: Duration = Duration::from_secs(2);

/// The longest pause for the sake of the costs: another build may have blocked an execution
/// meanwhile, and callers wait until this one has tried it.
const COST_PAUSE_MAX: Duration = Duration::from_secs(3_600);

/// The success and the costs of a round.
#[derive(Clone, Copy, Default)]
struct Round {
    /// How many executions were asked.
    asked_count: usize,
    query_count: u32,
}

impl Round {
    /// Returns the pause before the next round, after one with the pause `former` before it.
    fn pause(self, former: Duration, every: Duration) -> Pause {
        let query_count = if planted(Bug::BlockedReadOften) { 0 } else { self.query_count };
        let for_success = match self.asked_count {
            0 => every,
            _ => (former * 2).clamp(every, ROUND_PAUSE_MAX.max(every)),
        };
        Pause { for_success, for_cost: PAUSE_PER_QUERY.saturating_mul(query_count).min(COST_PAUSE_MAX) }
    }
}

/// The reasons for a pause between two rounds: the longer one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pause {
    for_success: Duration,
    for_cost: Duration,
}

/// How far the asking has got.
#[derive(Default)]
struct Asking {
    /// Where the next page begins.
    after: Option<ListCursor>,
    round: Round,
    /// The pause for the success of the last round.
    pause: Duration,
    failures: Pauses,
}

/// Asks, now and then, every blocked execution that this worker could run and that its build has
/// not tried to try again: another build may block one at any time. Two workers of one build ask
/// once. Until the build has tried, callers that wait for a result go on waiting.
pub(crate) async fn try_blocked(engine: Weak<Inner>) {
    let mut asking = Asking::default();
    // The engine is held only while there is something to do: this task must not keep a dropped
    // engine alive.
    while let Some(held) = engine.upgrade().filter(|engine| !engine.is_closing()) {
        let pause = asking.go_on(&held).await;
        drop(held);
        pause.await;
    }
}

impl Asking {
    /// Goes through the next page, and returns the pause after it.
    async fn go_on(&mut self, engine: &Inner) -> BoxFuture<()> {
        self.after = match try_page(engine, self.after, &mut self.round).await {
            Ok(next) => next,
            Err(error) => {
                if self.failures.is_first() {
                    tracing::error!(%error, "what is blocked cannot be asked to try again; this is repeated, less and less often");
                }
                return engine.runtime.sleep(self.failures.next(&error));
            }
        };
        self.failures = Pauses::default();
        if self.after.is_some() {
            return engine.runtime.sleep(PAGE_PAUSE);
        }
        let round = std::mem::take(&mut self.round);
        let Pause { for_success, for_cost } = round.pause(self.pause, engine.options.look_again_every);
        self.pause = for_success;
        engine.runtime.rest(for_success.max(for_cost))
    }
}

/// Goes through one page of blocked executions, and returns where the next one begins.
async fn try_page(
    engine: &Inner,
    after: Option<ListCursor>,
    round: &mut Round,
) -> Result<Option<ListCursor>> {
    let list = List {
        statuses: vec![Status::Blocked],
        after,
        ..List::of(engine.options.namespace.clone(), PAGE_COUNT)
    };
    round.query_count = round.query_count.saturating_add(1);
    let page = engine.store.list(list).await?;
    let (build, ability) = (engine.build(), engine.ability());
    let mut messages = Vec::new();
    for item in page.items.iter().filter(|item| engine.has_code(item)) {
        let read = Read { target: Target::Key(item.key), run: None, from: 0, limit: 0, with_inbox: false };
        round.query_count = round.query_count.saturating_add(1);
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
    Ok(page.next)
}

/// Returns the message that asks an execution to try again. Its id names the build and the block:
/// it is taken once, even if several workers send it.
fn wish(build: &Name, snapshot: &Snapshot) -> Option<Message> {
    let execution = &snapshot.execution;
    execution.is_worth_trying(build).then(|| {
        let id = MessageId::new(format!("try:{}:{}:{build}", execution.run(), execution.entry_count()));
        let by = By(format!("build {build}").into());
        Message::new(id, execution.address().clone(), by, Body::Unblock { step: None })
    })
}

/// Submits the messages together; an execution that moved on meanwhile must not stop the others.
async fn submit(engine: &Inner, messages: Vec<Message>) -> Result<()> {
    if messages.is_empty() {
        return Ok(());
    }
    let together = Submit { messages: messages.clone(), born_to: None, alone: false, stretch: None };
    match engine.store.submit(together).await {
        Err(Error::Refused(_)) => {}
        other => return other.map(drop),
    }
    for message in messages {
        match engine
            .store
            .submit(Submit { messages: vec![message], born_to: None, alone: false, stretch: None })
            .await
        {
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

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(5);

    #[track_caller]
    fn check((asked_count, query_count): (usize, u32), former_secs: u64, expected_secs: (u64, u64)) {
        let pause = Round { asked_count, query_count }.pause(Duration::from_secs(former_secs), EVERY);
        assert_eq!((pause.for_success.as_secs(), pause.for_cost.as_secs()), expected_secs);
    }

    #[test]
    fn a_round_that_asked_somebody_is_followed_by_a_longer_pause_up_to_a_bound() {
        check((0, 0), 80, (5, 0));
        check((1, 0), 0, (5, 0));
        check((1, 0), 5, (10, 0));
        check((1, 0), 200, (300, 0));
    }

    #[test]
    fn a_dear_round_is_followed_by_a_longer_pause_up_to_an_hour() {
        check((0, 1), 5, (5, 2));
        check((0, 1_001), 5, (5, 2_002));
        check((0, 1_801), 5, (5, 3_600));
        check((0, u32::MAX), 5, (5, 3_600));
    }
}
