//! Decides when an execution is looked after without its code.
//!
//! A store keeps one time for each execution, `care_at`: before it, nobody has to look. It may be
//! too early, never too late. An engine that [looks](look) takes the lease or learns when to look
//! next. So each change costs a comparison, and nothing is looked at twice for the same reason.

use std::time::Duration;

use crate::planted::{Bug, planted};
use crate::{Body, Command, Epoch, Execution, LeaseRow, Message, Timestamp};

/// How long a passed deadline is left to a worker with the code.
pub const DEADLINE_PATIENCE: Duration = Duration::from_secs(2);

/// How long an order to an execution without a holder is left to a worker with the code.
pub const ORDER_GRACE: Duration = Duration::from_millis(200);

/// The result of a look at an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// A caretaker has something to do: it takes the lease.
    Take,
    /// There is nothing to do before this time, if ever.
    Later(Option<Timestamp>),
}

/// Whether an order can be applied without code to an execution that nobody holds.
///
/// A cancellation is for the code to see, unless it [ends](Execution::ends_unseen) an execution
/// whose code could not see it.
pub fn applies(order: &Body, ends_unseen: bool) -> bool {
    match order {
        Body::Terminate { .. } if planted(Bug::TerminateNeedsCode) => false,
        Body::Pause { .. }
        | Body::Resume
        | Body::Inherit { .. }
        | Body::Terminate { .. }
        | Body::Unblock { .. } => true,
        Body::Cancel { .. } => ends_unseen || planted(Bug::CareTakesCancel),
        Body::Start(_) | Body::Signal { .. } | Body::ChildDone { .. } | Body::Retry => false,
    }
}

/// Returns the meaning of an order where no code can see it: a cancellation without a clean-up is
/// an end.
pub fn without_code(order: Command) -> Command {
    match order {
        Command::Cancel { by, reason } => Command::Terminate { by, reason },
        other => other,
    }
}

/// Returns when to look after a message has arrived. The holder of the execution reads the message;
/// only a terminate is not left to it forever. A cancellation is worth a look, which shows whether
/// it needs the code.
pub fn after_arrival(
    care_at: Option<Timestamp>,
    lease: &LeaseRow,
    message: &Message,
    terminate_grace: Duration,
) -> Option<Timestamp> {
    let grace = match &message.body {
        Body::Terminate { .. } if lease.session.is_some() => terminate_grace,
        order if lease.session.is_none() && applies(order, true) => ORDER_GRACE,
        _ => return care_at,
    };
    Timestamp::sooner(care_at, Some(message.arrived_at.after(grace)))
}

/// Returns when to look after a lease was granted: the holder gets its time, whatever was due
/// before.
pub fn after_lease(
    care_at: Option<Timestamp>,
    now: Timestamp,
    terminate_grace: Duration,
) -> Option<Timestamp> {
    care_at.map(|at| at.max(now.after(terminate_grace)))
}

/// Returns when to look after a lease was returned or lost. `care_at` is the time that the
/// execution itself asks for; `has_unseen` says that there may be mail that the holder has not
/// seen.
pub fn after_release(care_at: Option<Timestamp>, has_unseen: bool, now: Timestamp) -> Option<Timestamp> {
    Timestamp::sooner(care_at, has_unseen.then(|| now.after(ORDER_GRACE)))
}

/// Decides what a caretaker has to do at `now`, given the unread `orders`.
pub fn look<'a>(
    execution: &Execution,
    (lease, cared_epoch): (&LeaseRow, Option<Epoch>),
    orders: impl IntoIterator<Item = &'a Message>,
    now: Timestamp,
    terminate_grace: Duration,
) -> Look {
    if execution.is_finished() {
        return Look::Later(None);
    }
    let ends_unseen = execution.ends_unseen(lease.is_untouched(cared_epoch));
    let mut orders = orders.into_iter().filter(|order| execution.is_meant_by(order));
    let at = if lease.session.is_some() {
        let is_terminate = |message: &&Message| matches!(message.body, Body::Terminate { .. });
        let terminate = orders.find(is_terminate).map(|message| message.arrived_at.after(terminate_grace));
        // The holder applies the deadline. A later look is due because the holder may be lost.
        let deadline = execution.care_at().map(|at| at.max(now.after(DEADLINE_PATIENCE)));
        Timestamp::sooner(terminate, deadline)
    } else if orders.any(|message| applies(&message.body, ends_unseen)) {
        Some(now)
    } else {
        execution.care_at()
    };
    match at {
        Some(at) if at <= now => Look::Take,
        later => Look::Later(later),
    }
}
