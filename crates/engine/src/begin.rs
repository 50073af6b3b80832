//! Begins the code of an execution, unless it is not to run here.

use std::sync::Arc;

use abide_core::planted::{Bug, planted};
use abide_core::{Block, Execution};
use abide_store::{Leased, Opening};

use crate::driver::{Driver, End};
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
    fn begin_code(self: &Arc<Self>, mailbox: Arc<Mailbox>, mut leased: Box<Leased>) -> BoxFuture<End> {
        let driver = match self.driver_of(&leased.execution) {
            Ok(driver) => driver,
            Err(end) => return Box::pin(std::future::ready(end)),
        };
        // Not through `begin_seated`: a seat is large.
        let opening = std::mem::take(&mut leased.opening);
        driver.begin(Seat::new(self.clone(), mailbox, leased), opening)
    }

    /// Returns the runner of the code of an execution that has its seat.
    pub(crate) fn begin_seated(&self, seat: Seat, opening: Opening) -> BoxFuture<End> {
        match self.driver_of(seat.execution()) {
            Ok(driver) => driver.clone().begin(seat, opening),
            Err(end) => Box::pin(std::future::ready(end)),
        }
    }

    /// Returns the driver of an execution, or how it ends without one.
    fn driver_of(&self, execution: &Execution) -> Result<&Arc<dyn Driver>, End> {
        let (kind, name) = (execution.kind(), execution.name());
        let lost = || End::Lost(format!("there is no {} {name:?} here", kind.word()));
        self.registry.driver(kind, name).ok_or_else(lost)
    }
}
