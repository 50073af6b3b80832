//! One execution, from outside.

use std::marker::PhantomData;
use std::sync::Arc;

use abide_core::{Body, By, Event, ExecutionId, InvalidName, Status, text};
use abide_engine::{Begun, Client};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::await_result::AwaitResult;
use crate::client_error::ClientError;
use crate::data;
use crate::error::Error;
use crate::send_signal::SendSignal;
use crate::unblock::Unblock;

/// A handle on one execution: watch it and steer it. Cheap to clone; dropping it changes nothing.
pub struct Handle<T> {
    client: Client,
    id: Result<ExecutionId, InvalidName>,
    /// What a start asked for in vain, if it attached.
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

    /// The id of the execution; empty when the one that was given is no id.
    pub fn id(&self) -> &str {
        self.id.as_ref().map(ExecutionId::as_str).unwrap_or_default()
    }

    /// Whether the start that this handle came from found the execution there already, begun with the same workflow and input. It is not so for a handle
    /// that came from no start.
    ///
    /// Where the answer to a start was lost, it was sent again: it may then have attached to what it had created itself.
    pub fn is_attached(&self) -> bool {
        self.attached.is_some()
    }

    /// The options of a start that attached which differ from those that the execution was started with, by their names: `"lane"`, `"requires"`,
    /// `"priority"`, `"delay"`, `"deadline"`, `"retry"`, `"tags"`. They stay as they were. A delay or deadline differs if it does by more than a second.
    pub fn differences(&self) -> &[&'static str] {
        self.attached.as_deref().unwrap_or_default()
    }

    fn checked_id(&self) -> Result<&ExecutionId, ClientError> {
        self.id.as_ref().map_err(|invalid| invalid.clone().into())
    }

    /// Where it stands.
    pub async fn status(&self) -> Result<Status, ClientError> {
        let id = self.checked_id()?;
        self.client.status(id).await.map_err(|error| ClientError::of(id.as_str(), error))
    }

    /// Why it is where it is, in one sentence: what it waits for, who paused it, what blocks it, why no worker takes it.
    pub async fn why(&self) -> Result<String, ClientError> {
        let id = self.checked_id()?;
        self.client.why(id).await.map_err(|error| ClientError::of(id.as_str(), error))
    }

    /// Sends a signal, for `ctx.recv` of the same name. Refused for an unknown or finished execution. What nobody receives, as of a task, stays
    /// unread, and [`why`](Self::why) tells it. Await it; a key to repeat it under comes first.
    pub fn signal<S: Serialize + ?Sized>(&self, name: &str, value: &S) -> SendSignal {
        SendSignal::new(self.client.clone(), self.id.clone(), (name, data::encode(&value)))
    }

    /// Asks it to wind down: its code sees the cancellation as an error of what it awaits.
    pub async fn cancel(&self, reason: impl Into<String>) -> Result<(), ClientError> {
        let reason = checked_reason(reason.into())?;
        self.send(Body::Cancel { reason }).await
    }

    /// Ends it at once, without its code.
    pub async fn terminate(&self, reason: impl Into<String>) -> Result<(), ClientError> {
        let reason = checked_reason(reason.into())?;
        self.send(Body::Terminate { reason }).await
    }

    /// Lets it start nothing new; closures that run are recorded.
    pub async fn pause(&self) -> Result<(), ClientError> {
        self.send(Body::Pause { reason: String::new() }).await
    }

    /// Lets it go on after a pause.
    pub async fn resume(&self) -> Result<(), ClientError> {
        self.send(Body::Resume).await
    }

    /// Has it tried again after it was blocked. Await it; a decision about the step that blocks comes first.
    pub fn unblock(&self) -> Unblock {
        Unblock::new(self.client.clone(), self.id.clone())
    }

    /// Opens the next run of what failed or was cancelled, with the same input; this handle shows that run from then on. Signals that
    /// nobody has read are there for it. A parent that waited has been told how the execution ended, and is not told again.
    pub async fn retry(&self) -> Result<(), ClientError> {
        self.send(Body::Retry).await
    }

    async fn send(&self, body: Body) -> Result<(), ClientError> {
        let id = self.checked_id()?;
        self.client.send(id, By::client(), body).await.map_err(|error| ClientError::of(id.as_str(), error))
    }
}

impl<T: DeserializeOwned> Handle<T> {
    /// Waits until it has ended, and returns its result or its error. Dropping the future changes
    /// nothing.
    ///
    /// An execution that is blocked ends the wait with [`ClientError::Blocked`], once every live
    /// build that serves it has tried, or none is live;
    /// [`through_blocks`](AwaitResult::through_blocks) waits on.
    pub fn result(&self) -> AwaitResult<T> {
        AwaitResult::new(self.client.clone(), self.id.clone())
    }
}

/// What the event that ended an execution means to whoever waited for it.
pub(crate) fn result_of<T: DeserializeOwned>(id: &ExecutionId, event: Event) -> Result<T, ClientError> {
    match event {
        Event::Completed { result, .. } => data::decode(&result).map_err(|error| ClientError::Data {
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
