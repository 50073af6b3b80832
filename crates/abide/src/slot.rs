//! Operations of the code that are not open yet, open or over.

use std::task::Poll;

use abide_engine::OpHandle;

use crate::ctx::Opened;
use crate::error::Result;

/// An operation that is opened at its first poll.
pub(crate) enum LazyOp {
    New,
    Open(OpHandle),
    /// The execution is blocked or has ended.
    Closed,
}

impl LazyOp {
    /// Returns the operation, opening it first if needed. An `Err` is the answer to the caller.
    pub(crate) fn open<T>(
        &mut self,
        open: impl FnOnce() -> Opened,
    ) -> std::result::Result<&mut OpHandle, Poll<Result<T>>> {
        if let Self::New = self {
            match open() {
                Opened::Open(handle) => *self = Self::Open(handle),
                Opened::Blocked => *self = Self::Closed,
                Opened::Refused(error) => {
                    *self = Self::Closed;
                    return Err(Poll::Ready(Err(error)));
                }
            }
        }
        match self {
            Self::Open(handle) => Ok(handle),
            Self::New | Self::Closed => Err(Poll::Pending),
        }
    }
}
