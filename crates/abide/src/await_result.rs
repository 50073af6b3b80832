//! `handle.result`.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::code::Recorded;
use abide_core::{ExecutionId, InvalidName};
use abide_engine::{Blocks, Client};

use crate::client_error::ClientError;
use crate::handle::result_of;

/// A result that is about to be waited for. Await it; the handling of blocks comes first.
///
/// ```no_run
/// # async fn run(abide: abide::Abide) -> Result<(), abide::ClientError> {
/// let order = abide.handle::<String>("order-42");
/// let receipt = order.result().through_blocks().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is waited for unless it is awaited"]
pub struct AwaitResult<T>(Stage<T>);

enum Stage<T> {
    New { client: Client, id: Result<ExecutionId, InvalidName>, blocks: Blocks },
    Waiting(Pin<Box<dyn Future<Output = Result<T, ClientError>> + Send>>),
}

impl<T> AwaitResult<T> {
    pub(crate) fn new(client: Client, id: Result<ExecutionId, InvalidName>) -> Self {
        Self(Stage::New { client, id, blocks: Blocks::End })
    }

    /// Continues to wait while the execution is blocked: until a fixed build has continued it, or
    /// somebody has unblocked or ended it. A parent waits in this way for its children.
    pub fn through_blocks(mut self) -> Self {
        if let Stage::New { blocks, .. } = &mut self.0 {
            *blocks = Blocks::Pass;
        }
        self
    }
}

/// Nothing is pinned inside: the waiting future has a box of its own.
impl<T> Unpin for AwaitResult<T> {}

impl<T: Recorded> Future for AwaitResult<T>
where
    T: 'static,
{
    type Output = Result<T, ClientError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match &mut self.0 {
                Stage::Waiting(waiting) => return waiting.as_mut().poll(cx),
                Stage::New { client, id, blocks } => {
                    let waiting = ended(client.clone(), id.clone(), *blocks);
                    self.0 = Stage::Waiting(Box::pin(waiting));
                }
            }
        }
    }
}

async fn ended<T: Recorded>(
    client: Client,
    id: Result<ExecutionId, InvalidName>,
    blocks: Blocks,
) -> Result<T, ClientError> {
    let id = id?;
    let event = client.ended(&id, blocks).await.map_err(|error| ClientError::of(id.as_str(), error))?;
    result_of(&id, event)
}
