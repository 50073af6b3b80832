//! `ctx.sleep` and `ctx.sleep_until`.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use abide_core::OpKind;
use abide_engine::{Delivery, Request, Standing};

use crate::ctx::Ctx;
use crate::error::{Error, Result};
use crate::op_name::{OpName, op_options};
use crate::slot::LazyOp;

/// A sleep that is about to begin. Await it. Dropping it ends it.
#[must_use = "a sleep does nothing unless it is awaited"]
pub struct Sleep {
    ctx: Ctx,
    name: OpName,
    request: Option<Request>,
    slot: LazyOp,
}

impl Sleep {
    #[track_caller]
    pub(crate) fn new(ctx: Ctx, request: Request) -> Self {
        Self { ctx, name: OpName::new("(sleep)"), request: Some(request), slot: LazyOp::New }
    }

    /// Sets a name for this sleep, so that other sleeps can be added or removed before it.
    pub fn named(mut self, name: impl AsRef<str>) -> Self {
        self.name.rename(name);
        self
    }

    op_options!();
}

impl Future for Sleep {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let this = self.get_mut();
        let (ctx, name, request) = (&this.ctx, &this.name, &mut this.request);
        let mut open = || {
            let request = request.take().expect("it is opened once");
            ctx.open(OpKind::Timer, name, request)
        };
        let op = match this.slot.open(&mut open) {
            Ok(op) => op,
            Err(answer) => return answer,
        };
        match op.poll(cx) {
            Standing::Delivered(delivery) => {
                let slept = match delivery {
                    Delivery::Interrupted(interrupt) => {
                        Err(Error::interrupted(interrupt).located(|| op.place()))
                    }
                    _ => Ok(()),
                };
                this.slot = LazyOp::Closed;
                Poll::Ready(slept)
            }
            Standing::Wait | Standing::Go(_) | Standing::Running(_) => Poll::Pending,
        }
    }
}
