//! `ctx.shield`.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use abide_engine::Board;

/// Clean-up that is not interrupted. Await it. Dropping it ends the clean-up.
#[must_use = "no clean-up is done unless it is awaited"]
pub struct Shield<F> {
    /// `None` in a task.
    board: Option<Board>,
    cleanup: Pin<Box<F>>,
}

impl<F: Future> Shield<F> {
    pub(crate) fn new(board: Option<Board>, cleanup: F) -> Self {
        Self { board, cleanup: Box::pin(cleanup) }
    }
}

impl<F: Future> Future for Shield<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.get_mut();
        match &this.board {
            Some(board) => board.shielded(|| this.cleanup.as_mut().poll(cx)),
            None => this.cleanup.as_mut().poll(cx),
        }
    }
}
