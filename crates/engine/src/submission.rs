//! A message on its way into the store.
//!
//! A caller may drop its future at any await: a timeout around it, a client that hung up. The store
//! carries out the request all the same, and its answer may be a lease. A submission that is
//! dropped halfway is handed over to the runtime, which sees it through.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use abide_core::planted::{Bug, planted};
use abide_core::{Address, Body, Message};
use abide_store::{Answer, Error, Leased, Result, Submit, Submitted};
use tokio::sync::OwnedSemaphorePermit;

use crate::client::Client;
use crate::engine::Inner;
use crate::runtime::BoxFuture;
use crate::watch::Whereabouts;

/// A message on its way into the store.
pub(crate) struct Submission {
    message: Message,
    tried_count: u32,
    /// The error of an attempt whose outcome is unknown.
    unknown: Option<Error>,
    stage: Asking,
    /// Its place among the requests under way.
    _permit: OwnedSemaphorePermit,
}

enum Asking {
    Next,
    Asked(Answer<Vec<Submitted>>),
    Paused(BoxFuture<()>),
}

impl Submission {
    pub(crate) fn new(message: Message, permit: OwnedSemaphorePermit) -> Self {
        Self { message, tried_count: 0, unknown: None, stage: Asking::Next, _permit: permit }
    }

    /// Asks until there is an answer.
    fn poll(&mut self, client: &Client, cx: &mut Context<'_>) -> Poll<Result<Taken>> {
        loop {
            if let Poll::Ready(answer) = std::task::ready!(self.poll_once(client, cx)) {
                return Poll::Ready(answer);
            }
        }
    }

    /// Asks once, and pauses if the outcome is unknown. Resolves with the answer, or pending if
    /// there is none.
    fn poll_once(&mut self, client: &Client, cx: &mut Context<'_>) -> Poll<Poll<Result<Taken>>> {
        loop {
            match &mut self.stage {
                Asking::Next => self.stage = Asking::Asked(client.store.submit(self.submit(client))),
                Asking::Asked(answer) => {
                    let answer = std::task::ready!(answer.as_mut().poll(cx));
                    if let Some(answer) = self.judged(client, answer) {
                        return Poll::Ready(Poll::Ready(answer));
                    }
                    self.tried_count += 1;
                    let pause = Duration::from_millis(10) * self.tried_count.min(100);
                    self.stage = Asking::Paused(client.runtime.sleep(pause));
                }
                Asking::Paused(pause) => {
                    std::task::ready!(pause.as_mut().poll(cx));
                    self.stage = Asking::Next;
                    return Poll::Ready(Poll::Pending);
                }
            }
        }
    }

    /// Takes the error of an attempt whose outcome is unknown, once a caller was kept waiting for
    /// long enough.
    fn give_up(&mut self) -> Option<Error> {
        const TRY_COUNT_MAX: u32 = 5;
        let is_late = self.tried_count > TRY_COUNT_MAX && matches!(self.stage, Asking::Next);
        self.unknown.take_if(|_| is_late)
    }

    fn submit(&self, client: &Client) -> Submit {
        let (born_to, alone) = match &client.engine {
            Some(engine) if engine.0.free_slots() > 0 => (Some(engine.0.session()), engine.0.is_idle()),
            Some(engine) => (None, engine.0.is_idle()),
            None => (None, true),
        };
        Submit { messages: vec![self.message.clone()], born_to, alone }
    }

    /// Returns the answer to the caller; `None` if the outcome is unknown. A typed refusal such as
    /// full or busy is an answer, unless an earlier attempt may have happened.
    fn judged(&mut self, client: &Client, answer: Result<Vec<Submitted>>) -> Option<Result<Taken>> {
        match answer {
            Ok(submitted) => {
                self.tell_start(&submitted);
                return Some(Ok(taken(client, submitted, self.tried_count > 0)));
            }
            Err(Error::Indeterminate { what, source }) if planted(Bug::UnknownSubmitFailed) => {
                return Some(Err(Error::Unavailable { what, source }));
            }
            Err(error @ Error::Indeterminate { .. }) => self.unknown = Some(error),
            // The failure of this attempt says nothing about the one before it. Only a refusal
            // does: a message that was taken before is not refused.
            Err(error) if self.tried_count > 0 && error.is_transient() => {}
            Err(error @ Error::Refused(_)) => return Some(Err(error)),
            Err(error) => return Some(Err(self.unknown.take().unwrap_or(error))),
        }
        let tried_count = self.tried_count;
        tracing::debug!(tried_count, "a submit is repeated: nobody knows what became of it");
        None
    }

    fn tell_start(&self, submitted: &[Submitted]) {
        if let (Body::Start(start), [Submitted::Started(..)], false) =
            (&self.message.body, submitted, planted(Bug::StartUnlogged))
        {
            let Address { namespace, id } = &self.message.to;
            let (namespace, execution, name) = (namespace.as_str(), id.as_str(), start.name.as_str());
            tracing::debug!(namespace, execution, kind = start.kind.word(), name, "an execution was started");
        }
    }

    /// Sees to the answer: it may be a lease, which somebody has to take. No caller waits for it
    /// any longer.
    fn go_on(mut self, client: &Client) {
        let (client, runtime) = (client.clone(), client.runtime.clone());
        runtime.spawn(Box::pin(poll_fn(move |cx| {
            // An engine that closes goes on with nothing; an attempt under way is answered.
            match matches!(self.stage, Asking::Paused(_)) && client.is_closed() {
                true => Poll::Ready(()),
                false => self.poll(&client, cx).map(drop),
            }
        })));
    }
}

/// A caller that waits for the answer to a submission. It hands the submission over if it is
/// dropped halfway, or was kept waiting for too long.
pub(crate) struct Submitting<'a> {
    client: &'a Client,
    submission: Option<Submission>,
}

impl<'a> Submitting<'a> {
    pub(crate) fn new(client: &'a Client, submission: Submission) -> Self {
        Self { client, submission: Some(submission) }
    }
}

impl Future for Submitting<'_> {
    type Output = Result<Taken>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Taken>> {
        let client = self.client;
        let submission = self.submission.as_mut().expect("a request that has ended is not polled again");
        loop {
            if let Poll::Ready(answer) = std::task::ready!(submission.poll_once(client, cx)) {
                match &answer {
                    // An attempt before the last one may have happened, and be a lease.
                    Err(Error::Indeterminate { .. }) => submission.stage = Asking::Next,
                    _ => self.submission = None,
                }
                return Poll::Ready(answer);
            }
            if let Some(error) = submission.give_up() {
                return Poll::Ready(Err(error));
            }
        }
    }
}

impl Drop for Submitting<'_> {
    fn drop(&mut self) {
        if let Some(submission) = self.submission.take().filter(|_| !planted(Bug::StartStranded)) {
            submission.go_on(self.client);
        }
    }
}

/// What the store did with a message.
pub(crate) struct Taken {
    pub(crate) born: Born,
    pub(crate) is_attached: bool,
    /// Whether a message of this id had arrived before.
    pub(crate) is_known: bool,
}

impl Taken {
    /// Returns the place where the started execution runs.
    pub(crate) fn place(&self) -> Whereabouts {
        if self.born.leased.is_some() { Whereabouts::Here } else { Whereabouts::Elsewhere }
    }
}

/// An execution that was born to the engine. Unless its caller takes it, the engine runs it on a
/// task of its own when this is dropped.
#[derive(Default)]
pub(crate) struct Born {
    leased: Option<Box<Leased>>,
    engine: Option<Arc<Inner>>,
}

impl Born {
    /// Takes the execution: the caller runs it.
    pub(crate) fn take(&mut self) -> Option<Box<Leased>> {
        self.leased.take()
    }
}

impl Drop for Born {
    fn drop(&mut self) {
        if let (Some(leased), Some(engine)) = (self.leased.take(), &self.engine) {
            engine.adopt([leased]);
        }
    }
}

/// Returns the executions that were born to the engine. After a lost answer, one may have been
/// born without our knowing.
fn taken(client: &Client, submitted: Vec<Submitted>, was_repeated: bool) -> Taken {
    let mut taken = Taken { born: Born::default(), is_attached: false, is_known: false };
    for one in submitted {
        match (one, &client.engine) {
            (Submitted::Started(_, Some(leased)), Some(engine)) => {
                taken.born = Born { leased: Some(leased), engine: Some(engine.0.clone()) };
            }
            (Submitted::Attached(key), engine) => {
                taken.is_attached = true;
                if let Some(engine) = engine.as_ref().filter(|_| was_repeated)
                    && !engine.0.is_resident(key)
                {
                    // In a task of its own: the caller need not wait until it can be read.
                    let inner = engine.0.clone();
                    client.runtime.spawn(Box::pin(async move { inner.recover(key, None).await }));
                }
            }
            // After a lost answer, it may be our own.
            (Submitted::Duplicate(_), _) => taken.is_known = !was_repeated,
            _ => {}
        }
    }
    taken
}
