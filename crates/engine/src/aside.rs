//! Abandons executions that cannot be read.

use std::sync::PoisonError;
use std::time::Duration;

use abide_core::planted::{Bug, planted};
use abide_store::{Aside, ExecutionKey, Unreadable};

use crate::engine::Inner;
use crate::recover::RECOVER_PAUSE;

/// The least time between two warnings that an execution needs a newer version of abide.
const NEWER_SAID_PAUSE: Duration = Duration::from_secs(60);

impl Inner {
    /// Abandons the lease of an execution that cannot be read. A lease that is no longer ours stays
    /// as it is. During a shutdown this is tried once: the session ends soon, and the next holder
    /// meets the same problem.
    pub(crate) async fn set_aside(&self, aside: Aside) {
        if let Unreadable::Newer(what) = &aside.unreadable {
            self.say_newer(aside.key, what);
        }
        if planted(Bug::SetAsideUndone) {
            return;
        }
        loop {
            match self.store.set_aside(aside.clone()).await {
                Ok(()) => return,
                Err(error) if error.is_transient() && !self.is_closing() => {
                    self.runtime.sleep(RECOVER_PAUSE).await;
                }
                Err(error) => return tracing::error!(%error, ?aside, "an execution cannot be set aside"),
            }
        }
    }

    /// Warns that this program is too old, but only now and then: there may be many such
    /// executions, and each comes back until another program takes it.
    fn say_newer(&self, key: ExecutionKey, what: &str) {
        let now = self.runtime.now();
        let mut said_at = self.newer_said_at.lock().unwrap_or_else(PoisonError::into_inner);
        if said_at.is_none_or(|said_at| now >= said_at.after(NEWER_SAID_PAUSE)) {
            *said_at = Some(now);
            tracing::warn!(key = key.0, what, "an execution needs a newer version of abide");
        }
    }
}
