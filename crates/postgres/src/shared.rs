//! Everything that the operations of one store share.

use std::sync::Arc;

use abide_core::{Bounds, Timestamp};
use abide_store::Clock;
use tokio::sync::Semaphore;

use crate::Options;
use crate::board::Board;
use crate::follower::Looks;
use crate::horizon::Horizon;
use crate::pool::Pool;
use crate::routes::Routes;
use crate::stash::Stash;
use crate::tallies::Tallies;

pub(crate) struct Shared {
    pub(crate) pool: Pool,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) options: Options,
    pub(crate) routes: Routes,
    pub(crate) board: Arc<Board>,
    pub(crate) horizon: Horizon,
    /// Leave to run a user's transaction, which keeps a connection for as long as the user wants.
    pub(crate) steps: Semaphore,
    pub(crate) stash: Stash,
    pub(crate) looks: Looks,
    pub(crate) tallies: Tallies,
}

impl Shared {
    /// Reads the clock, when an operation is applied and not when it is asked for.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(crate) fn bounds(&self) -> &Bounds {
        &self.options.bounds
    }
}
