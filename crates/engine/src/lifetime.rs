//! The time for which the worker's session is surely alive.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use abide_core::planted::{Bug, planted};

use crate::engine::Inner;
use crate::mailbox::Order;
use crate::runtime::Moment;

/// The end of the session's life as far as this process knows, on the clock of its rests.
///
/// The store alone decides who may write. But a process that was stopped for longer than its
/// session lives does not know yet that others have gone on with its executions, and would begin a
/// step that they have recorded. So no closure begins before the next sign of life is answered.
/// This does not help a process that is stopped between the check and the first effect of the
/// closure.
#[derive(Default)]
pub(crate) struct Lifetime(AtomicU64);

impl Lifetime {
    fn until(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Acquire))
    }
}

impl Inner {
    /// Notes that the store has answered a sign of life that was sent at `asked_at`. The session
    /// lives for its time from then on, and perhaps longer.
    pub(crate) fn has_lived(&self, asked_at: Moment) {
        let until = asked_at.after(self.options.session_ttl).since(Moment::new(Duration::ZERO));
        let micros = u64::try_from(until.as_micros()).unwrap_or(u64::MAX);
        let before = Duration::from_micros(self.lifetime.0.fetch_max(micros, Ordering::AcqRel));
        // The clock is read after that. Closures that wait because the life was over have read an
        // earlier time, which was too late for them, so this one is too.
        if self.runtime.rest_moment() >= Moment::new(before) {
            self.order_all(Order::Run);
        }
    }

    /// Whether the session is surely alive.
    pub(crate) fn is_alive(&self) -> bool {
        self.runtime.rest_moment() < Moment::new(self.lifetime.until()) || planted(Bug::ExpiredBegins)
    }
}
