//! `handle.signal`.

use std::future::{Future, IntoFuture};
use std::pin::Pin;

use abide_core::planted::{Bug, planted};
use abide_core::{Body, By, ExecutionId, InvalidName, MessageId, Name, Payload};
use abide_engine::Client;

use crate::client_error::ClientError;
use crate::enqueue::{EnqueueIn, Row};

/// A signal that is about to be sent. Await it; its key comes first.
///
/// ```no_run
/// # async fn run(abide: abide::Abide) -> Result<(), abide::ClientError> {
/// let order = abide.handle::<String>("order-42");
/// order.signal("paid", &1_200).idempotency_key("webhook-7f3a").await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is sent unless it is awaited"]
pub struct SendSignal {
    client: Client,
    id: Result<ExecutionId, InvalidName>,
    signal: Result<(Name, Payload), ClientError>,
    key: Option<Result<Name, InvalidName>>,
}

impl SendSignal {
    pub(crate) fn new(
        client: Client,
        id: Result<ExecutionId, InvalidName>,
        (name, value): (&str, Result<Payload, serde_json::Error>),
    ) -> Self {
        let signal = Name::of_field("signal name", name).map_err(ClientError::from).and_then(|name| {
            let describe = |error| format!("signal {name:?} does not serialize: {error}");
            let payload = value.map_err(|error| ClientError::Data { message: describe(error) })?;
            Ok((name, payload))
        });
        Self { client, id, signal, key: None }
    }

    /// Sends the signal under a key: the execution receives one signal of this name and key,
    /// however often it is sent, by any sender and with any value. That holds also after the signal
    /// was received, in every run of the execution, and after its end: sending it again is no error
    /// then.
    ///
    /// For senders that may crash between a signal and their own note of it, such as webhooks and
    /// queues.
    pub fn idempotency_key(mut self, key: impl AsRef<str>) -> Self {
        self.key = Some(Name::of_field("idempotency key", key));
        self
    }

    /// Writes the signal down in a transaction of the caller's own. It is sent if and only if that
    /// transaction commits, when an engine takes the row. If it is refused then, that is in
    /// the feed.
    pub fn enqueue_in<E: EnqueueIn>(self, transaction: E) -> E::Answer<()> {
        let Self { client, id, signal, key } = self;
        let row = || {
            let (id, (name, payload), key) = (id?, signal?, key.transpose()?);
            Ok((Row::signal(&client, &id, (&name, &payload, key.as_ref())), ()))
        };
        transaction.put(row())
    }

    async fn send(self) -> Result<(), ClientError> {
        let id = self.id?;
        let (name, payload) = self.signal?;
        let key = self.key.transpose()?.filter(|_| !planted(Bug::SignalKeyIgnored));
        let message = key.map(|key| MessageId::of_signal(&name, &key));
        let body = Body::Signal { name, payload };
        let sent = match message {
            Some(message) => self.client.send_as(message, &id, (By::client(), body)).await.map(|_| ()),
            None => self.client.send(&id, By::client(), body).await,
        };
        sent.map_err(|error| ClientError::of(id.as_str(), error))
    }
}

impl IntoFuture for SendSignal {
    type Output = Result<(), ClientError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}
