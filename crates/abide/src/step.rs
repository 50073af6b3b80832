//! `ctx.step`.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use abide_core::planted::{Bug, planted};
use abide_core::{Block, Failure, Fingerprint, OpKind, Outcome, Retry};
use abide_engine::{Delivery, Inside, Request, RetryIf, Standing, StepOptions, panics};
use pin_project_lite::pin_project;
use serde::Serialize;

use crate::canonical::Input;
use crate::code::{Recorded, Value};
use crate::ctx::Ctx;
use crate::data;
use crate::error::{Error, Result};
use crate::op_name::{OpName, op_options};
use crate::probe::Stead;
use crate::slot::LazyOp;
use crate::upgrade::{Upgrade, upgrade_option};

pin_project! {
    /// A step's closure, and the future of its running attempt, in one place: a step that has run
    /// once has taken memory once.
    struct Closure<F, Fut> {
        run: F,
        #[pin]
        future: Option<Fut>,
    }
}

/// A step's closure, without its type.
trait Attempts<T>: Send {
    /// Begins an attempt, in the place of the last one.
    fn begin(self: Pin<&mut Self>);
    /// Polls the attempt that has begun.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>>;
    /// Drops the attempt.
    fn stop(self: Pin<&mut Self>);
}

impl<T, F, Fut> Attempts<T> for Closure<F, Fut>
where
    F: FnMut() -> Fut + Send,
    Fut: Future<Output = Result<T>> + Send,
{
    fn begin(self: Pin<&mut Self>) {
        let mut this = self.project();
        let future = (this.run)();
        this.future.set(Some(future));
    }

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        self.project().future.as_pin_mut().map_or(Poll::Pending, |future| future.poll(cx))
    }

    fn stop(self: Pin<&mut Self>) {
        self.project().future.set(None);
    }
}

/// A step that is about to run. Await it; options come first.
///
/// Dropping it cancels a running closure. Steps with different closures have one type, so that one
/// collection can hold them. Besides, a type that named its closure could not be joined with others
/// if the closure borrows.
#[must_use = "a step does nothing unless it is awaited"]
pub struct Step<'a, T> {
    ctx: Ctx,
    name: OpName,
    closure: Pin<Box<dyn Attempts<T> + 'a>>,
    options: StepOptions,
    upgrade: Upgrade<T>,
    slot: LazyOp,
    running: Option<Running>,
    /// The value of the attempt that ended, as it was read back from its recorded form.
    given: Option<T>,
}

/// A running attempt of a step's closure.
struct Running {
    attempt: u32,
    inside: Arc<Inside>,
}

impl<T> Drop for Step<'_, T> {
    fn drop(&mut self) {
        stop(&mut self.running, &mut self.closure);
    }
}

// The closure's future is pinned in the closure's box; nothing else here is ever pinned.
impl<T> Unpin for Step<'_, T> {}

impl<'a, T> Step<'a, T> {
    #[track_caller]
    pub(crate) fn new<F, Fut>(ctx: Ctx, name: &str, run: F) -> Self
    where
        F: FnMut() -> Fut + Send + 'a,
        Fut: Future<Output = Result<T>> + Send + 'a,
    {
        let closure = Box::pin(Closure { run, future: None });
        let (name, options, slot) = (OpName::new(name), StepOptions::default(), LazyOp::New);
        Self { ctx, name, closure, options, upgrade: Upgrade::default(), slot, running: None, given: None }
    }

    op_options!();

    /// Sets the retry policy after an error.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.options.retry = Some(retry);
        self
    }

    /// Asks before another attempt whether one makes sense; without it, the policy decides alone.
    /// It is not called for a fatal error. `false` ends the step with the error as it is. A panic
    /// ends it too, with the error as its cause.
    ///
    /// ```
    /// # use abide::prelude::*;
    /// # async fn call() -> Result<u32> { Ok(1) }
    /// #[workflow]
    /// async fn ask(ctx: Ctx) -> Result<u32> {
    ///     let policy = Retry::exponential(secs(1)).max_elapsed(minutes(10));
    ///     ctx.step("ask", call).retry(policy).retry_if(|error| error.is_timeout()).await
    /// }
    /// ```
    ///
    /// It belongs to the step and not to [`Retry`], because the policy of a task is recorded and
    /// outlives the code. A task declares itself which errors are final, with
    /// [`or_fatal`](crate::ResultExt::or_fatal).
    pub fn retry_if(mut self, is_worth_it: impl Fn(&Error) -> bool + Send + Sync + 'static) -> Self {
        let ask = move |failure: &Failure| {
            let error = Error::from_failure(failure.clone());
            catch_unwind(AssertUnwindSafe(|| is_worth_it(&error))).map_err(panics::failure)
        };
        self.options.retry_if = Some(RetryIf(Arc::new(ask)));
        self
    }

    /// Sets how long one attempt may take. With a timeout of zero the attempt does not begin, and
    /// fails with an error for which [`Error::is_timeout`](crate::Error::is_timeout) holds.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = Some(timeout);
        self
    }

    upgrade_option! {
        /// Reads a recorded result as the older type `V`, and converts it, if it cannot be read as
        /// the type that this code expects. The journal stays as it is. An error blocks the
        /// execution, as an unreadable result does.
        T
    }

    /// Records a hash of `input` with the result: if the code later asks for this step with another
    /// input, the execution is blocked instead of receiving the result for the first input. An
    /// input that does not serialize blocks it too, because it could not be compared.
    pub fn input<I: Serialize>(mut self, input: &I) -> Self {
        match Input::written(input) {
            Ok(input) => self.options.input = Some(Box::new(Fingerprint::new(input.hash, &input.payload))),
            Err(_) if planted(Bug::UnwrittenInputIgnored) => {}
            Err(error) => self.name.refuse_input(&error),
        }
        self
    }
}

impl<T> Future for Step<'_, T>
where
    T: Value,
{
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let this = self.get_mut();
        let (ctx, options) = (&this.ctx, &this.options);
        let open = || ctx.open(OpKind::Step, &this.name, Request::Step(options.clone()));
        let op = match this.slot.open(open) {
            Ok(op) => op,
            Err(answer) => return answer,
        };
        let attempt = match op.poll(cx) {
            Standing::Wait => {
                stop(&mut this.running, &mut this.closure);
                return Poll::Pending;
            }
            Standing::Delivered(Delivery::Outcome(Outcome::Success(_))) if this.given.is_some() => {
                this.slot = LazyOp::Closed;
                return this.given.take().map_or(Poll::Pending, |given| Poll::Ready(Ok(given)));
            }
            Standing::Delivered(delivery) => {
                stop(&mut this.running, &mut this.closure);
                return delivered(&this.ctx, (&mut this.slot, &this.upgrade), delivery);
            }
            Standing::Running(attempt) => attempt,
            Standing::Go(attempt) => {
                if let Some(stead) = ctx.stead(op.op(), attempt) {
                    if let Stead::Outcome(outcome) = stead {
                        op.finish(attempt, outcome);
                    }
                    return Poll::Pending;
                }
                stop(&mut this.running, &mut this.closure);
                let inside = op.inside();
                let begin = AssertUnwindSafe(|| this.closure.as_mut().begin());
                match op.poll_closure(&inside, |_| Poll::Ready(catch_unwind(begin))) {
                    Poll::Ready(Ok(())) => this.running = Some(Running { attempt, inside }),
                    Poll::Ready(Err(panic)) => {
                        op.finish(attempt, Outcome::Failure(panics::failure(panic)));
                    }
                    Poll::Pending => {}
                }
                attempt
            }
        };
        let running = this.running.as_mut().filter(|running| running.attempt == attempt);
        let Some(Running { inside, .. }) = running else { return Poll::Pending };
        let closure = &mut this.closure;
        let polled = op.poll_closure(inside, |cx| {
            match catch_unwind(AssertUnwindSafe(|| closure.as_mut().poll(cx))) {
                Ok(polled) => polled.map(data::outcome_of),
                Err(panic) => Poll::Ready((Outcome::Failure(panics::failure(panic)), None)),
            }
        });
        if let Poll::Ready((outcome, given)) = polled {
            stop(&mut this.running, &mut this.closure);
            this.given = given;
            op.finish(attempt, outcome);
        }
        Poll::Pending
    }
}

/// Drops the running attempt. Destructors of a half-finished closure run as part of its step.
fn stop<T>(running: &mut Option<Running>, closure: &mut Pin<Box<dyn Attempts<T> + '_>>) {
    if let Some(Running { inside, .. }) = running.take() {
        inside.enter(|| closure.as_mut().stop());
    }
}

/// Converts the delivery of an operation into the result that the code sees.
pub(crate) fn delivered<T: Recorded>(
    ctx: &Ctx,
    (slot, upgrade): (&mut LazyOp, &Upgrade<T>),
    delivery: Delivery,
) -> Poll<Result<T>> {
    let LazyOp::Open(handle) = std::mem::replace(slot, LazyOp::Closed) else { return Poll::Pending };
    match delivery {
        Delivery::Interrupted(interrupt) => {
            Poll::Ready(Err(Error::interrupted(interrupt).located(|| handle.place())))
        }
        Delivery::Outcome(Outcome::Failure(failure)) => {
            Poll::Ready(Err(Error::from_failure(failure.located(|| handle.place()))))
        }
        Delivery::Outcome(Outcome::Success(payload))
            if planted(Bug::UnreadableResultFails) && T::from_payload(&payload).is_err() =>
        {
            Poll::Ready(Err(Error::refusal("the recorded result cannot be read")))
        }
        Delivery::Outcome(Outcome::Success(payload)) => {
            let board = ctx.board().expect("only workflows open operations");
            match upgrade.read(format_args!("the recorded result of {}", handle.op()), &payload) {
                Ok(value) => Poll::Ready(Ok(value)),
                Err(reason) => {
                    board.block(reason);
                    Poll::Pending
                }
            }
        }
        Delivery::Edited(payload) => match upgrade.read("the result that was given", &payload) {
            Ok(value) => Poll::Ready(Ok(value)),
            Err(unreadable) => {
                let reason = match unreadable {
                    Block::Undecodable { what, expected, found } => {
                        format!("{what} is no {expected}: {found}")
                    }
                    other => other.to_string(),
                };
                let board = ctx.board().expect("only workflows open operations");
                board.block(Block::Unrecordable { op: handle.op().clone(), reason });
                Poll::Pending
            }
        },
        Delivery::Outcome(Outcome::Unrecordable(_)) | Delivery::Due | Delivery::Started(_) => {
            unreachable!("the runner delivers what the operation waits for")
        }
    }
}
