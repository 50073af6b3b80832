//! `ctx.continue_as_new`.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use abide_core::{Block, Payload};
use abide_engine::{Board, Site};

use crate::ctx::gone;
use crate::error::{Error, Result};

/// A request to continue in another run. Await it as the last thing of a workflow; it resolves only
/// if the execution is being cancelled, or its deadline has passed. Dropping it withdraws the
/// request.
#[must_use = "the run goes on unless it is awaited"]
pub struct ContinueAsNew<T> {
    /// `None` in a task.
    board: Option<Board>,
    input: std::result::Result<Payload, serde_json::Error>,
    site: Site,
    is_wanted: bool,
    result: PhantomData<fn() -> T>,
}

impl<T> ContinueAsNew<T> {
    #[track_caller]
    pub(crate) fn new(board: Option<Board>, input: std::result::Result<Payload, serde_json::Error>) -> Self {
        Self { board, input, site: Site::caller(), is_wanted: false, result: PhantomData }
    }
}

impl<T> Future for ContinueAsNew<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let this = self.get_mut();
        let Some(board) = &this.board else {
            let error = Error::refusal("continue_as_new needs a workflow: a task has no journal");
            return Poll::Ready(Err(error.arising_at(this.site)));
        };
        let input = match &this.input {
            Ok(input) => input,
            Err(error) => {
                let site = this.site;
                let reason = format!("the input of the next run does not serialize: {error} (at {site})");
                board.block(Block::Limit { reason });
                return Poll::Pending;
            }
        };
        if board.is_gone() {
            return Poll::Ready(Err(gone(board, "continue_as_new").arising_at(this.site)));
        }
        let wanted = board.want_next((input, this.site), cx.waker());
        this.is_wanted = wanted.is_ok();
        match wanted {
            Ok(()) => Poll::Pending,
            Err(interrupt) => Poll::Ready(Err(Error::interrupted(interrupt).arising_at(this.site))),
        }
    }
}

impl<T> Drop for ContinueAsNew<T> {
    fn drop(&mut self) {
        if let Some(board) = self.board.as_ref().filter(|_| self.is_wanted) {
            board.give_up_next();
        }
    }
}
