//! Begins the code of an execution, unless it is not to run here.

use std::sync::Arc;

use abide_core::Block;
use abide_core::planted::{Bug, planted};
use abide_store::Leased;

use crate::driver::{End, Opening};
use crate::engine::Inner;
use crate::mailbox::Mailbox;
use crate::runtime::BoxFuture;
use crate::seat::Seat;
use crate::{failures, turns};

impl Inner {
    /// Returns an execution that may run here. Otherwise returns the work that decides: it blocks
    /// the execution, or leaves it to another build, or finds that it may run after all. Most
    /// executions need no such work, so nothing is allocated for them.
    pub(crate) fn fit(
        self: &Arc<Self>,
        leased: Box<Leased>,
    ) -> Result<Box<Leased>, BoxFuture<Result<Box<Leased>, End>>> {
        self.failures.note_progress(&leased);
        if let Some(reason) = self.failures.reason_to_block(leased.key, self.options.failure_count_max) {
            let (engine, block) = (self.clone(), Block::Limit { reason });
            return Err(Box::pin(async { Err(failures::block(engine, leased, block).await) }));
        }
        if self.has_tried(&leased) && !planted(Bug::TriedTakesOn) {
            let engine = self.clone();
            return Err(Box::pin(async move { turns::leave(&engine, leased).await }));
        }
        Ok(leased)
    }

    /// Returns the runner of an execution.
    pub(crate) fn begin(self: &Arc<Self>, mailbox: Arc<Mailbox>, leased: Box<Leased>) -> BoxFuture<End> {
        let fitting = match self.fit(leased) {
            Ok(leased) => return self.begin_code(mailbox, leased),
            Err(fitting) => fitting,
        };
        let engine = self.clone();
        Box::pin(async move {
            match fitting.await {
                Ok(leased) => engine.begin_code(mailbox, leased).await,
                Err(end) => end,
            }
        })
    }

    /// Returns the runner of an execution's code.
    fn begin_code(self: &Arc<Self>, mailbox: Arc<Mailbox>, leased: Box<Leased>) -> BoxFuture<End> {
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
