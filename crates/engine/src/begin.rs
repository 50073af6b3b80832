//! Begins the code of an execution, unless it is not to run here.

use std::sync::Arc;

use abide_core::Block;
use abide_store::Leased;

use crate::driver::{End, Opening};
use crate::engine::Inner;
use crate::mailbox::Mailbox;
use crate::runtime::BoxFuture;
use crate::seat::Seat;
use crate::{failures, turns};

impl Inner {
    /// Returns an execution that may run here. Otherwise it was blocked, or left to another build.
    pub(crate) async fn fit(self: &Arc<Self>, leased: Leased) -> Result<Leased, End> {
        if let Some(reason) = self.failures.verdict(&leased, self.options.commit_failure_count_max) {
            return Err(failures::block(self.clone(), leased, Block::Limit { reason }).await);
        }
        if self.has_tried(&leased) { turns::leave(self, leased).await } else { Ok(leased) }
    }

    /// Returns the runner of an execution.
    pub(crate) fn begin(self: &Arc<Self>, mailbox: Arc<Mailbox>, leased: Leased) -> BoxFuture<End> {
        if let Some(reason) = self.failures.verdict(&leased, self.options.commit_failure_count_max) {
            return Box::pin(failures::block(self.clone(), leased, Block::Limit { reason }));
        }
        if self.has_tried(&leased) {
            return Box::pin(turns::take(self.clone(), mailbox, leased));
        }
        self.begin_code(mailbox, leased)
    }

    /// Returns the runner of an execution's code.
    pub(crate) fn begin_code(self: &Arc<Self>, mailbox: Arc<Mailbox>, leased: Leased) -> BoxFuture<End> {
        let (seat, opening) = Seat::new(self.clone(), mailbox, leased);
        self.begin_seated(seat, opening)
    }

    /// Returns the runner of the code of an execution that has its seat.
    pub(crate) fn begin_seated(&self, seat: Seat, opening: Opening) -> BoxFuture<End> {
        let (kind, name) = (seat.execution().kind(), seat.execution().name());
        let Some(driver) = self.registry.driver(kind, name).cloned() else {
            let why = format!("there is no {} {name:?} here", kind.word());
            return Box::pin(std::future::ready(End::Lost(why)));
        };
        driver.begin(seat, opening)
    }
}
