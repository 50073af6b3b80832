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
use abide_store::{Answer, Error, ExecutionKey, Leased, Result, Submissions, Submit, Submitted};
use tokio::sync::OwnedSemaphorePermit;

use crate::birth::Begun;
use crate::client::Client;
use crate::engine::{Engine, Inner};
use crate::hosts::Host;
use crate::residents::Source;
use crate::runtime::BoxFuture;
use crate::unanswered::{Expected, Unanswered};
use crate::watch::Whereabouts;

/// A message on its way into the store.
pub(crate) struct Submission {
    message: Message,
    tried_count: u32,
    /// The error of an attempt whose outcome is unknown.
    unknown: Option<Error>,
    stage: Asking,
    /// The execution that the request under way starts, if it has begun already.
    begun: Option<Box<Begun>>,
    /// Whether the execution is not to begin before it exists.
    is_plain: bool,
    /// The children of a beginning that was thrown away although it may have happened.
    stranded: Vec<Address>,
    /// Whether its answer may be a lease, which nobody must have to wait for.
    expected: Option<Expected>,
    /// Its place among the requests under way.
    _permit: OwnedSemaphorePermit,
}

enum Asking {
    Next,
    Asked(Answer<Submissions>),
    Paused(BoxFuture<()>),
}

impl Submission {
    pub(crate) fn new(message: Message, permit: OwnedSemaphorePermit) -> Self {
        Self {
            message,
            tried_count: 0,
            unknown: None,
            stage: Asking::Next,
            begun: None,
            is_plain: false,
            stranded: Vec::new(),
            expected: None,
            _permit: permit,
        }
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
                Asking::Next => {
                    let submit = self.submit(client, cx);
                    self.stage = Asking::Asked(client.store.submit(submit));
                }
                Asking::Asked(answer) => {
                    let answer = std::task::ready!(answer.as_mut().poll(cx));
                    if self.is_to_begin_later(&answer) {
                        self.stage = Asking::Next;
                        continue;
                    }
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

    /// Makes the request. The first time, the execution that it starts may begin before that, if
    /// nothing else is going on. After a lost answer it begins from its records.
    fn submit(&mut self, client: &Client, cx: &mut Context<'_>) -> Submit {
        let (born_to, is_idle) = match &client.engine {
            Some(engine) if engine.0.free_slots() > 0 => (Some(engine.0.session()), engine.0.is_idle()),
            Some(engine) => (None, engine.0.is_idle()),
            None => (None, true),
        };
        if let (Body::Start(_), None, Some(engine)) = (&self.message.body, &self.expected, &client.engine)
            && born_to.is_some()
        {
            self.expected = Some(Unanswered::expect(&engine.0, &self.message.to));
        }
        // The executions of a burst are runnable only when the first answers come.
        let is_calm = is_idle && client.requests.count() <= 1 && !client.runtime.has_waiting_tasks();
        let is_first = is_calm && self.tried_count == 0 && !self.is_plain;
        let engine = client.engine.as_ref().filter(|_| is_first && born_to.is_some());
        self.begun = engine.and_then(|engine| Begun::begin(&engine.0, &self.message, cx));
        let stretch = self.begun.as_ref().map(|begun| begun.stretch());
        let alone = is_calm && client.runtime.has_several_threads();
        Submit { messages: vec![self.message.clone()], born_to, alone, stretch }
    }

    /// Whether the execution is to be started once more without its beginning, which may be to
    /// blame for this answer. If it is not, the next answer is the same.
    fn is_to_begin_later(&mut self, answer: &Result<Submissions>) -> bool {
        let (Some(begun), Err(error)) = (&self.begun, answer) else { return false };
        let may_have_happened = match error {
            Error::Refused(_) if begun.has_transaction() => false,
            Error::Refused(_) | Error::Closed => return false,
            error if error.is_transient() => return false,
            _ => true,
        };
        self.throw_away();
        (self.is_plain, self.tried_count) = (true, self.tried_count + u32::from(may_have_happened));
        true
    }

    /// Throws the beginning away. It may have happened all the same: then the execution goes on
    /// from its records.
    fn throw_away(&mut self) {
        self.stranded.extend(self.begun.take().iter().flat_map(|begun| begun.children()));
    }

    /// Returns the answer to the caller; `None` if the outcome is unknown. A typed refusal such as
    /// full or busy is an answer, unless an earlier attempt may have happened.
    fn judged(&mut self, client: &Client, answer: Result<Submissions>) -> Option<Result<Taken>> {
        match answer {
            Ok(submitted) => {
                self.tell_start(&submitted);
                if let Some(engine) = &client.engine {
                    engine.0.recover_all(std::mem::take(&mut self.stranded));
                }
                let begun = self.begun.take();
                return Some(Ok(taken(client, (submitted, begun), self.tried_count > 0)));
            }
            Err(Error::Indeterminate { what, source }) if planted(Bug::UnknownSubmitFailed) => {
                return Some(Err(Error::Unavailable { what, source }));
            }
            Err(error @ Error::Indeterminate { .. }) => {
                self.throw_away();
                self.unknown = Some(error);
            }
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
        if let (Body::Start(start), [Submitted::Started(..) | Submitted::Begun(..)], false) =
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
        if self.born.newborn.is_some() { Whereabouts::Here } else { Whereabouts::Elsewhere }
    }
}

/// An execution that was born to the engine. Unless its caller takes it, the engine runs it on a
/// task of its own when this is dropped.
#[derive(Default)]
pub(crate) struct Born {
    newborn: Option<Newborn>,
    engine: Option<Arc<Inner>>,
}

/// An execution that was just created and leased.
pub(crate) enum Newborn {
    Leased(Box<Leased>),
    /// Its code has begun, and its first commit has happened.
    Begun(ExecutionKey, Box<Begun>),
}

impl Newborn {
    /// Takes the execution into memory, where this host polls it. Returns the future that runs it
    /// until it leaves, if it was not there before.
    pub(crate) fn seated(self, engine: &Arc<Inner>, host: Option<Arc<Host>>) -> Option<BoxFuture<()>> {
        match self {
            Self::Leased(leased) => engine.seated(leased, Source::Told, host),
            Self::Begun(key, begun) => engine.seated_begun((key, *begun), host),
        }
    }
}

impl Born {
    fn of(newborn: Newborn, engine: &Engine) -> Self {
        Self { newborn: Some(newborn), engine: Some(engine.0.clone()) }
    }

    /// Takes the execution: the caller runs it.
    pub(crate) fn take(&mut self) -> Option<Newborn> {
        self.newborn.take()
    }
}

impl Drop for Born {
    fn drop(&mut self) {
        if let (Some(newborn), Some(engine)) = (self.newborn.take(), &self.engine) {
            newborn.seated(engine, None).into_iter().for_each(|running| engine.runtime.spawn(running));
        }
    }
}

/// Returns the executions that were born to the engine. After a lost answer, one may have been
/// born without our knowing. A beginning is dropped here, unless the store has taken it.
fn taken(
    client: &Client,
    (submitted, mut begun): (Submissions, Option<Box<Begun>>),
    was_repeated: bool,
) -> Taken {
    let mut taken = Taken { born: Born::default(), is_attached: false, is_known: false };
    for one in submitted {
        match (one, &client.engine) {
            (Submitted::Started(key, Some(leased)), Some(engine)) => {
                let newborn = match begun.take().filter(|_| planted(Bug::StretchUnrecorded)) {
                    Some(begun) => begun.born(key, Ok(Box::default())),
                    None => Newborn::Leased(leased),
                };
                taken.born = Born::of(newborn, engine);
            }
            (Submitted::Begun(key, committed), Some(engine)) => {
                let begun = begun.take().expect("only a beginning that was sent may happen");
                taken.born = Born::of(begun.born(key, committed), engine);
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
