//! A step whose database writes and record commit together.

use std::any::Any;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use abide_core::{OpKind, Outcome};
use abide_engine::{Standing, UserTransaction, panics};

use crate::code::Value;
use crate::ctx::Ctx;
use crate::data;
use crate::error::{Error, Result};
use crate::op_name::{OpName, op_options};
use crate::slot::LazyOp;
use crate::step::delivered;
use crate::upgrade::{Upgrade, upgrade_option};

/// A transaction step that is about to run. Await it.
#[must_use = "a transaction does nothing unless it is awaited"]
pub struct Transact<T> {
    ctx: Ctx,
    name: OpName,
    run: UserTransaction,
    upgrade: Upgrade<T>,
    slot: LazyOp,
    result: PhantomData<fn() -> T>,
}

impl<T: Value + 'static> Transact<T> {
    op_options!();

    upgrade_option! {
        /// Reads a recorded result as the older type `V`, and converts it, if it cannot be read as
        /// the type that this code expects. The journal stays as it is. An error blocks the
        /// execution, as an unreadable result does.
        T
    }

    /// Returns a transaction step whose closure receives the connection of any store.
    #[track_caller]
    pub(crate) fn on_any<F>(ctx: Ctx, name: &str, run: F) -> Self
    where
        F: FnOnce(&dyn Any) -> Result<T> + Clone + Send + 'static,
    {
        // The store may run the closure on any thread, and more than once: each time a clone of the
        // original.
        let original = Mutex::new(run);
        let clone = move || original.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let run: UserTransaction = Arc::new(move |connection| outcome_of(|| clone()(connection)));
        let (name, upgrade) = (OpName::new(name), Upgrade::default());
        Self { ctx, name, run, upgrade, slot: LazyOp::New, result: PhantomData }
    }
}

/// Runs the closure; returns whether its writes are kept, and its outcome.
fn outcome_of<T: Value>(run: impl FnOnce() -> Result<T>) -> (bool, Outcome) {
    let outcome = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => data::outcome_of(result).0,
        Err(panic) => Outcome::Failure(panics::failure(panic)),
    };
    match outcome {
        // Unlike a step's effects, these writes are undone, so the step can simply fail.
        Outcome::Unrecordable(lost) => (false, Outcome::Failure(Error::refusal(lost.reason).into_failure())),
        outcome => (matches!(outcome, Outcome::Success(_)), outcome),
    }
}

impl<T: Value> Future for Transact<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let this = self.get_mut();
        let (ctx, name, run) = (&this.ctx, &this.name, &this.run);
        let op = match this.slot.open(|| ctx.open(OpKind::Transaction, name, ctx.transaction(name, run))) {
            Ok(op) => op,
            Err(answer) => return answer,
        };
        match op.poll(cx) {
            Standing::Delivered(delivery) => delivered(&this.ctx, (&mut this.slot, &this.upgrade), delivery),
            Standing::Wait | Standing::Go(_) | Standing::Running(_) => Poll::Pending,
        }
    }
}
