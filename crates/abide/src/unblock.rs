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
/// Without a decision, workers try the execution again, which helps if its code or its limits have
/// changed. The order is refused if a step has run and its result could not be recorded: then only
/// [`rerun`](Self::rerun) or [`edit`](Self::edit) of that step continues the execution. Steps have
/// the names that `abide show` and `abide why` print: `charge`, or `charge#2` for the second use of
/// that name. A recorded result never changes; an order that names such a step is refused. If the
/// code asks for a child or step with another input than the recorded one, [`accept`](Self::accept)
/// continues with the recorded outcome.
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

    /// Runs this step again, whose result could not be recorded, and records its new result. Its
    /// effect may happen a second time.
    pub fn rerun(mut self, step: impl Into<String>) -> Self {
        self.decision = Some(Ok(StepRemedy { step: step.into(), remedy: Remedy::Rerun }));
        self
    }

    /// Sets the result of this step, whose own could not be recorded; the step does not run again.
    /// A value that the code cannot read as the step's result blocks the execution anew, and can be
    /// replaced. Once the code has continued with it, it is a recorded result.
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

    /// Continues with the recorded outcome of this operation, though the code has another input for
    /// it now. Another change of the input needs another decision.
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
