//! One execution, from outside.

use std::marker::PhantomData;
use std::sync::Arc;

use crate::code::Recorded;
use abide_core::{Body, By, Event, ExecutionId, InvalidName, Status, text};
use abide_engine::{Begun, Client};
use serde::Serialize;

use crate::await_result::AwaitResult;
use crate::client_error::ClientError;
use crate::data;
use crate::error::Error;
use crate::send_signal::SendSignal;
use crate::unblock::Unblock;

/// A handle on one execution: watch it and steer it. Cheap to clone. Dropping it changes nothing in
/// the execution. It keeps its worker alive: the worker stops when the last [`Abide`](crate::Abide)
/// and the last handle of it are gone.
pub struct Handle<T> {
    client: Client,
    id: Result<ExecutionId, InvalidName>,
    /// The options that an attached start asked for and did not get. `None` if the start did not
    /// attach.
    attached: Option<Arc<[&'static str]>>,
    output: PhantomData<fn() -> T>,
}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        let (client, id, attached) = (self.client.clone(), self.id.clone(), self.attached.clone());
        Self { client, id, attached, output: PhantomData }
    }
}

impl<T> std::fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Handle").field(&self.id()).finish()
    }
}

impl<T> Handle<T> {
    pub(crate) fn new(client: Client, id: Result<ExecutionId, InvalidName>) -> Self {
        Self { client, id, attached: None, output: PhantomData }
    }

    pub(crate) fn begun(client: Client, id: ExecutionId, begun: Begun) -> Self {
        let attached = match begun {
            Begun::Created => None,
            Begun::Attached { differences } => Some(differences.into()),
        };
        Self { attached, ..Self::new(client, Ok(id)) }
    }

    /// Returns the id of the execution; empty if the handle was made with an invalid one.
    pub fn id(&self) -> &str {
        self.id.as_ref().map(ExecutionId::as_str).unwrap_or_default()
    }

    /// Whether the start that returned this handle found an existing execution with the same
    /// workflow and input. `false` for a handle that no start returned.
    ///
    /// If the answer to a start is lost, the start is sent again: it may then have attached to an
    /// execution that it created itself.
    pub fn is_attached(&self) -> bool {
        self.attached.is_some()
    }

    /// Returns the names of the options of an attached start that differ from those of the
    /// execution: `"lane"`, `"requires"`, `"priority"`, `"delay"`, `"deadline"`, `"retry"`,
    /// `"tags"`. The execution keeps its own. A delay or deadline differs if it does by more than a
    /// second.
    pub fn differences(&self) -> &[&'static str] {
        self.attached.as_deref().unwrap_or_default()
    }

    fn checked_id(&self) -> Result<&ExecutionId, ClientError> {
        self.id.as_ref().map_err(|invalid| invalid.clone().into())
    }

    /// Returns the status of the execution.
    pub async fn status(&self) -> Result<Status, ClientError> {
        let id = self.checked_id()?;
        self.client.status(id).await.map_err(|error| ClientError::of(id.as_str(), error))
    }

    /// Explains the status in one sentence: the operations that it waits for, the author of a
    /// pause, the reason of a block, or why no worker takes it.
    pub async fn why(&self) -> Result<String, ClientError> {
        let id = self.checked_id()?;
        self.client.why(id).await.map_err(|error| ClientError::of(id.as_str(), error))
    }

    /// Sends a signal, for `ctx.recv` of the same name. Refused for an unknown or ended execution.
    /// A signal that the code never receives, such as one to a task, stays unread, and
    /// [`why`](Self::why) reports it. Await it; a key for repetitions comes first.
    pub fn signal<S: Serialize + ?Sized>(&self, name: &str, value: &S) -> SendSignal {
        SendSignal::new(self.client.clone(), self.id.clone(), (name, data::encode(&value)))
    }

    /// Asks the execution to wind down: its code sees the cancellation as an error of the operation
    /// that it awaits.
    pub async fn cancel(&self, reason: impl Into<String>) -> Result<(), ClientError> {
        let reason = checked_reason(reason.into())?;
        self.send(Body::Cancel { reason }).await
    }

    /// Ends the execution at once, without its code.
    pub async fn terminate(&self, reason: impl Into<String>) -> Result<(), ClientError> {
        let reason = checked_reason(reason.into())?;
        self.send(Body::Terminate { reason }).await
    }

    /// Lets the execution start nothing new; results of running closures are recorded.
    pub async fn pause(&self) -> Result<(), ClientError> {
        self.send(Body::Pause { reason: String::new() }).await
    }

    /// Lets the execution continue after a pause.
    pub async fn resume(&self) -> Result<(), ClientError> {
        self.send(Body::Resume).await
    }

    /// Lets workers try a blocked execution again. Await it; a decision about the blocking step
    /// comes first.
    pub fn unblock(&self) -> Unblock {
        Unblock::new(self.client.clone(), self.id.clone())
    }

    /// Opens the next run of a failed or cancelled execution, with the same input; this handle
    /// shows that run from then on. The run finds signals that nobody has read. A parent that
    /// waited has received the first outcome, and receives no other.
    pub async fn retry(&self) -> Result<(), ClientError> {
        self.send(Body::Retry).await
    }

    async fn send(&self, body: Body) -> Result<(), ClientError> {
        let id = self.checked_id()?;
        self.client.send(id, By::client(), body).await.map_err(|error| ClientError::of(id.as_str(), error))
    }
}

impl<T: Recorded> Handle<T> {
    /// Waits until the execution has ended, and returns its result or its error. Dropping the
    /// future changes nothing.
    ///
    /// A blocked execution ends the wait with [`ClientError::Blocked`], once every live build that
    /// serves it has tried, or none is live; [`through_blocks`](AwaitResult::through_blocks) waits
    /// on.
    pub fn result(&self) -> AwaitResult<T> {
        AwaitResult::new(self.client.clone(), self.id.clone())
    }
}

/// Converts the event that ended an execution into the result for waiting clients.
pub(crate) fn result_of<T: Recorded>(id: &ExecutionId, event: Event) -> Result<T, ClientError> {
    match event {
        Event::Completed { result, .. } => T::from_payload(&result).map_err(|error| ClientError::Data {
            message: format!(
                "the result of execution {id:?} is no {}: {} ({error})",
                std::any::type_name::<T>(),
                result.excerpt()
            ),
        }),
        Event::Failed(failure) => {
            Err(ClientError::Failed { id: id.to_string(), error: Error::from_failure(failure) })
        }
        Event::Cancelled { by, reason } => {
            Err(ClientError::Cancelled { id: id.to_string(), reason: text::by_whom(&by, &reason) })
        }
        other => Err(ClientError::Data { message: format!("execution {id:?} ended with {}", other.word()) }),
    }
}

fn checked_reason(reason: String) -> Result<String, ClientError> {
    abide_core::check_reason("reason", &reason)?;
    Ok(reason)
}
