//! `ctx.recv`.

use std::future::Future;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use abide_core::{Failure, FailureKind, OpKind, Payload, text};
use abide_engine::{Delivery, Rejection, Request, Standing, panics};

use crate::code::Recorded;
use crate::ctx::Ctx;
use crate::error::{Error, Result};
use crate::op_name::{OpName, op_options};
use crate::slot::LazyOp;
use crate::step::delivered;
use crate::upgrade::{Upgrade, upgrade_option};

/// A wait for a signal that is about to begin. Await it. Dropping it leaves the signal for the next
/// wait.
#[must_use = "nothing is received unless it is awaited"]
pub struct Receive<T> {
    ctx: Ctx,
    name: OpName,
    timeout: Option<Duration>,
    upgrade: Upgrade<T>,
    slot: LazyOp,
    result: PhantomData<fn() -> T>,
}

impl<T> Receive<T> {
    #[track_caller]
    pub(crate) fn new(ctx: Ctx, name: &str) -> Self {
        let (name, upgrade) = (OpName::new(name), Upgrade::default());
        Self { ctx, name, timeout: None, upgrade, slot: LazyOp::New, result: PhantomData }
    }

    op_options!();

    upgrade_option! {
        /// Reads a signal as the older type `V`, and converts it, if it cannot be read as the type
        /// that this code expects. The journal stays as it is. A signal that neither type can read,
        /// or that cannot be converted, is set aside, and the wait continues.
        T
    }

    /// Ends the wait after this long, with an error for which [`Error::is_timeout`] holds.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

/// Checks that the payload can be read as a `T`. A panic of the reading code is an error like any
/// other: a sender must not harm other executions.
fn check<T: Recorded>(upgrade: &Upgrade<T>, payload: &Payload) -> std::result::Result<(), Rejection> {
    let complaint = match catch_unwind(AssertUnwindSafe(|| upgrade.try_read(payload).map(drop))) {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(complaint)) => complaint,
        Err(panic) => panics::failure(panic).message.clone(),
    };
    Err(Rejection { expected: std::any::type_name::<T>().to_owned(), complaint })
}

impl<T: Recorded + 'static> Future for Receive<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let this = self.get_mut();
        let (ctx, name, timeout) = (&this.ctx, &this.name, this.timeout);
        let upgrade = &this.upgrade;
        let request = || {
            let upgrade = upgrade.clone();
            Request::Signal { timeout, check: Arc::new(move |payload| check(&upgrade, payload)) }
        };
        let op = match this.slot.open(|| ctx.open(OpKind::Signal, name, request())) {
            Ok(op) => op,
            Err(answer) => return answer,
        };
        match op.poll(cx) {
            Standing::Delivered(Delivery::Due) => {
                let name = &op.op().name;
                let message = match timeout {
                    Some(timeout) => format!("no signal {name:?} came within {}", text::duration(timeout)),
                    // Earlier code had a timeout, which was over.
                    None => format!("no signal {name:?} came in time"),
                };
                let failure = Failure::new(FailureKind::Timeout, message).located(|| op.place());
                this.slot = LazyOp::Closed;
                Poll::Ready(Err(Error::from_failure(failure)))
            }
            Standing::Delivered(delivery) => delivered(&this.ctx, (&mut this.slot, &this.upgrade), delivery),
            Standing::Wait | Standing::Go(_) | Standing::Running(_) => Poll::Pending,
        }
    }
}
