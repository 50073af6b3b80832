//! Follows the store's feed for all callers in this process that wait for executions elsewhere.
//!
//! A hint of the store says that something may have happened, the feed says what, and the callers
//! that wait for it look. Hints may fail, so the feed is also read now and then without one; it
//! skips nothing, so that is enough. The follower exists only while a caller waits.

use std::sync::{Arc, Weak};
use std::time::Duration;

use abide_core::Namespace;
use abide_core::planted::{Bug, planted};
use abide_store::{Error, Feed, FeedCursor, FeedFrom, List, ListCursor, Result, Store};
use tokio::sync::Notify;

use crate::runtime::{Moment, Runtime};
use crate::watch::{Watchers, Whereabouts};

/// The least time between two looks at the feed: a busy store is not asked at each of its commits.
const PAUSE: Duration = Duration::from_millis(20);

/// The pause after the feed could not be read.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The most damaged executions that one query lists.
const DAMAGED_COUNT_MAX: usize = 256;

/// The most items of the feed that are read at once.
const ITEM_COUNT_MAX: usize = 1_024;

/// The pace of the follower.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// The interval at which it reads the feed without a hint.
    pub(crate) follow_every: Duration,
    /// The interval at which it makes all callers look: the entry that ended an execution may have
    /// been pruned before it was read.
    pub(crate) look_again_every: Duration,
}

/// Follows the feed until no caller waits any longer, or the store is closed.
pub(crate) fn follow(
    watchers: &Arc<Watchers>,
    store: Arc<dyn Store>,
    runtime: &Arc<dyn Runtime>,
    namespace: Namespace,
    pace: Pace,
) {
    let (dropped, watchers) = (watchers.dropped.clone(), Arc::downgrade(watchers));
    let moment = runtime.moment();
    let follower = Follower {
        store,
        runtime: runtime.clone(),
        namespace,
        watchers,
        cursor: None,
        pace,
        look_again_at: moment.after(pace.look_again_every),
        go_round_at: moment.after(pace.follow_every),
        damaged_after: None,
        was_unwanted: false,
    };
    runtime.spawn(Box::pin(follower.run(dropped)));
}

struct Follower {
    store: Arc<dyn Store>,
    runtime: Arc<dyn Runtime>,
    namespace: Namespace,
    watchers: Weak<Watchers>,
    cursor: Option<FeedCursor>,
    pace: Pace,
    look_again_at: Moment,
    /// When to do the next round of work that the clock triggers. Waiting for a quiet moment would
    /// not do: a busy store has none.
    go_round_at: Moment,
    /// Where the next look for damaged executions begins; `None` for the first one.
    damaged_after: Option<ListCursor>,
    /// Whether no caller waited at the last check.
    was_unwanted: bool,
}

impl Follower {
    async fn run(mut self, dropped: Arc<Notify>) {
        loop {
            // The hint is requested before the feed is read, so nothing can happen in between
            // unseen.
            let changed = self.store.changed();
            match self.read().await {
                Ok(()) => {}
                Err(Error::Closed) => break,
                Err(error) => {
                    tracing::debug!(%error, "the feed cannot be read");
                    self.runtime.sleep(RETRY_PAUSE).await;
                    continue;
                }
            }
            let told = async {
                let told = changed.await;
                self.runtime.sleep(PAUSE).await;
                told
            };
            let is_over = tokio::select! {
                biased;
                () = dropped.notified() => true,
                told = told => matches!(told, Err(Error::Closed)),
                () = self.runtime.rest(self.pace.follow_every) => false,
            };
            if is_over {
                break;
            }
            let Some(watchers) = self.watchers.upgrade() else { return };
            let goes_round = self.goes_round();
            if goes_round && self.is_unwanted(&watchers) {
                return;
            }
            self.look_again(&watchers);
            drop(watchers);
            if goes_round && let Err(error) = self.look_at_damaged().await {
                tracing::debug!(%error, "what is damaged cannot be listed");
            }
        }
        if let Some(watchers) = self.watchers.upgrade() {
            watchers.follower_ended();
        }
    }

    /// Whether it is time for the work that is done as often as the feed is read without a hint.
    fn goes_round(&mut self) -> bool {
        let moment = self.runtime.moment();
        let is_time = self.go_round_at <= moment;
        if is_time {
            self.go_round_at = moment.after(self.pace.follow_every);
        }
        is_time
    }

    /// Whether no caller waits any longer.
    fn is_unwanted(&mut self, watchers: &Watchers) -> bool {
        // A caller that was woken to look comes back in a moment: only one that stays away no
        // longer waits.
        let was_unwanted = self.was_unwanted;
        self.was_unwanted = !watchers.goes_on(was_unwanted);
        was_unwanted && self.was_unwanted
    }

    fn look_again(&mut self, watchers: &Watchers) {
        let moment = self.runtime.moment();
        if self.look_again_at <= moment {
            self.look_again_at = moment.after(self.pace.look_again_every);
            watchers.look_elsewhere();
        }
    }

    /// Wakes the callers whose executions were set aside, which no feed reports. One query serves
    /// all of them, and costs nothing if nothing was set aside. If there are many, the next query
    /// continues behind this one.
    async fn look_at_damaged(&mut self) -> Result<()> {
        let list = List {
            set_aside: true,
            after: self.damaged_after.take(),
            ..List::of(self.namespace.clone(), DAMAGED_COUNT_MAX)
        };
        let listing = self.store.list(list).await?;
        self.damaged_after = listing.next;
        let Some(watchers) = self.watchers.upgrade() else { return Ok(()) };
        for item in &listing.items {
            watchers.look(&item.address.id, Whereabouts::Elsewhere);
        }
        Ok(())
    }

    /// Reads the new items of the feed.
    async fn read(&mut self) -> Result<()> {
        loop {
            let (from, limit) = match self.cursor {
                Some(cursor) => (FeedFrom::After(cursor), ITEM_COUNT_MAX),
                None => (FeedFrom::End, 0),
            };
            let page = self.store.feed(Feed { from, limit }).await?;
            let Some(watchers) = self.watchers.upgrade() else { return Ok(()) };
            for item in page.items.iter().filter(|item| item.address.namespace == self.namespace) {
                watchers.look(&item.address.id, Whereabouts::Elsewhere);
            }
            if self.cursor.replace(page.next).is_none() && !planted(Bug::FirstPlaceUnseen) {
                // The callers' last looks may be older than this place in the feed.
                watchers.look_elsewhere();
            }
            if page.is_end {
                return Ok(());
            }
        }
    }
}
