//! `handle.unblock`.

use std::future::{Future, IntoFuture};
use std::pin::Pin;

use abide_core::{Body, By, ExecutionId, InvalidName, Remedy, StepRemedy};
use abide_engine::Client;
use serde::Serialize;

use crate::client_error::ClientError;
use crate::data;

/// An order to a blocked execution that is about to be sent. Await it.
///
/// Alone it has the execution tried again, which is of use when something about the code or its limits has changed. Where a step has run
/// and its result could not be recorded, that is refused: only [`rerun`](Self::rerun) or [`edit`](Self::edit) of that step goes on. Steps are
/// named as `abide show` and `abide why` name them: `charge`, or `charge#2` for the second use of that name. A result that is recorded
/// never changes; whoever names such a step is refused. Where the code asks for a child or step with another input than it was recorded
/// with, [`accept`](Self::accept) goes on with what was recorded.
///
/// ```no_run
/// # async fn run(abide: abide::Abide) -> Result<(), abide::ClientError> {
/// let order = abide.handle::<String>("order-42");
/// order.unblock().rerun("report").await?;
/// order.unblock().edit("report#2", &"too long to be kept").await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is sent unless it is awaited"]
pub struct Unblock {
    client: Client,
    id: Result<ExecutionId, InvalidName>,
    decision: Option<Result<StepRemedy, ClientError>>,
}

impl Unblock {
    pub(crate) fn new(client: Client, id: Result<ExecutionId, InvalidName>) -> Self {
        Self { client, id, decision: None }
    }

    /// Runs this step again, whose result could not be recorded, and records what it gives then. Its effect may happen a second time.
    pub fn rerun(mut self, step: impl Into<String>) -> Self {
        self.decision = Some(Ok(StepRemedy { step: step.into(), remedy: Remedy::Rerun }));
        self
    }

    /// Gives the result of this step, which could not be recorded; it does not run again. What the code cannot read as the step's result
    /// blocks it anew, and can be given again; once the code has gone on with it, it is a recorded result.
    pub fn edit<T: Serialize + ?Sized>(mut self, step: impl Into<String>, result: &T) -> Self {
        let step = step.into();
        self.decision = Some(match data::encode(&result) {
            Ok(payload) => Ok(StepRemedy { step, remedy: Remedy::Edit(payload) }),
            Err(error) => {
                let message = format!("the result of step {step:?} does not serialize: {error}");
                Err(ClientError::Data { message })
            }
        });
        self
    }

    /// Goes on with the recorded outcome of this operation, though the code has another input for it now. Should its input change once more,
    /// that is another decision.
    pub fn accept(mut self, op: impl Into<String>) -> Self {
        self.decision = Some(Ok(StepRemedy { step: op.into(), remedy: Remedy::Accept }));
        self
    }

    async fn send(self) -> Result<(), ClientError> {
        let id = self.id?;
        let body = Body::Unblock { step: self.decision.transpose()? };
        self.client.send(&id, By::client(), body).await.map_err(|error| ClientError::of(id.as_str(), error))
    }
}

impl IntoFuture for Unblock {
    type Output = Result<(), ClientError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}
