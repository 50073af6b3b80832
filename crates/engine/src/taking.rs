//! Takes rows out of the intake table, beside everything else that the dispatcher does: a long
//! table delays no claim and no mail.

use std::time::Duration;

use abide_store::{Answer, Error, Result, TakeIn, TakenIn};

use crate::engine::Inner;
use crate::pauses::{LONGEST_OF_STORE, Pauses};

/// How many rows are taken in one transaction.
const ROW_COUNT: usize = 256;

#[derive(Default)]
pub(crate) struct Taking {
    /// Whether there may be rows that the one under way does not take.
    is_wanted: bool,
    under_way: Option<Answer<TakenIn>>,
    failures: Pauses,
    /// How long to wait before the next one, if the last one failed.
    pause: Option<Duration>,
}

impl Taking {
    /// Says that there are rows.
    pub(crate) fn want(&mut self) {
        self.is_wanted = true;
    }

    /// Begins to take rows, if there are any and nobody does.
    pub(crate) fn begin(&mut self, engine: &Inner) {
        if self.under_way.is_some() || !std::mem::take(&mut self.is_wanted) {
            return;
        }
        let (store, runtime, pause) = (engine.store.clone(), engine.runtime.clone(), self.pause);
        self.under_way = Some(Answer::new(async move {
            if let Some(pause) = pause {
                runtime.sleep(pause).await;
            }
            store.take_in(TakeIn { limit: ROW_COUNT }).await
        }));
    }

    /// Resolves when rows were taken.
    pub(crate) async fn taken(&mut self) -> Result<TakenIn> {
        match &mut self.under_way {
            Some(under_way) => under_way.await,
            None => std::future::pending().await,
        }
    }

    /// Goes on after rows were taken. The log has one warning for failures in a row.
    pub(crate) fn end(&mut self, taken: Result<TakenIn>) {
        self.under_way = None;
        match taken {
            Ok(TakenIn { refused_count, more, .. }) => {
                (self.failures, self.pause) = (Pauses::default(), None);
                self.is_wanted |= more;
                if refused_count > 0 {
                    tracing::warn!(refused_count, "rows of the intake table were refused; the feed says why");
                }
            }
            Err(Error::Closed) => {}
            Err(error) => {
                if self.failures.is_first() {
                    tracing::warn!(%error, "no rows could be taken from the intake table; it is tried again");
                }
                self.pause = Some(self.failures.next(&error).min(LONGEST_OF_STORE));
                self.is_wanted = true;
            }
        }
    }
}
