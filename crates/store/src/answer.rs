//! The answer of a store.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::Result;

/// The answer of a store, which comes some time later. Dropping it does not undo the operation.
///
/// It is a type of its own and no boxed future: an answer that a store keeps beside the operation
/// takes no memory of its own.
#[must_use = "the caller learns from it how the operation ended"]
pub struct Answer<T>(Source<T>);

enum Source<T> {
    /// Boxed, because some answers are large, and most come otherwise.
    Ready(Option<Box<Result<T>>>),
    Pending(Arc<dyn Unanswered<T>>),
    Future(Pin<Box<dyn Future<Output = Result<T>> + Send>>),
}

/// An operation that keeps its own answer until somebody asks for it.
pub trait Unanswered<T>: Send + Sync {
    /// Returns the answer once, or remembers whom to wake when it is there.
    fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<T>>;
}

impl<T> Answer<T> {
    /// Returns an answer that is there already.
    pub fn ready(answer: Result<T>) -> Self {
        Self(Source::Ready(Some(Box::new(answer))))
    }

    /// Returns the answer that an operation will keep.
    pub fn of(operation: Arc<dyn Unanswered<T>>) -> Self {
        Self(Source::Pending(operation))
    }

    /// Returns the answer that a future finds.
    pub fn new(future: impl Future<Output = Result<T>> + Send + 'static) -> Self {
        Self(Source::Future(Box::pin(future)))
    }

    /// Returns the answer, to be polled.
    pub fn as_mut(&mut self) -> Pin<&mut Self> {
        Pin::new(self)
    }
}

/// Nothing in it is polled in place: a future that it has is behind a pointer.
impl<T> Unpin for Answer<T> {}

impl<T> Future for Answer<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        match &mut self.get_mut().0 {
            Source::Ready(answer) => Poll::Ready(*answer.take().expect("an answer is taken once")),
            Source::Pending(operation) => operation.poll(cx),
            Source::Future(future) => future.as_mut().poll(cx),
        }
    }
}

impl<T> fmt::Debug for Answer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answer")
    }
}
