//! Requests from outside, made through the public client API only.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use abide::prelude::*;

use crate::api::{ApiName, called};
use crate::code::{self, Witness, with_options};
use crate::history::Answer;
use crate::program::{Code, Expr, Program};
use crate::scenario::{Action, Ask, Root, Scenario};

/// The reason with which a client cancels.
pub(crate) const CANCEL_REASON: &str = "enough";

/// The reason with which a client terminates.
pub(crate) const TERMINATE_REASON: &str = "now";

/// Performs an action and returns the answer. `id` is the execution that the action targets, if one
/// exists yet.
pub(crate) async fn perform(
    abide: &Abide,
    action: &Action,
    scenario: &Scenario,
    id: Option<String>,
    witness: &dyn Witness,
) -> Answer {
    let mut calls = Vec::new();
    let answer = match &action.what {
        Ask::Start(root) => start(abide, &scenario.roots[*root], &mut calls).await,
        Ask::Run(root) => run(abide, &scenario.roots[*root], &mut calls).await,
        Ask::Named(root) => start_named(abide, &scenario.roots[*root], &mut calls).await,
        Ask::Conflict(root) => {
            let other = Program { carry: u64::MAX, body: Expr::Value(1), next: None, held: None };
            done(abide.start(code::program, other).id(&scenario.roots[*root].id).await)
        }
        Ask::List => {
            calls.push(("Abide", "list"));
            done(abide.list(Filter::all()).await)
        }
        Ask::Shutdown | Ask::Deploy(_) => {
            abide.shutdown().await;
            calls.push(("Abide", "shutdown"));
            Answer::Done
        }
        _ => match id {
            Some(id) => steer(&abide.handle(&id), action, &mut calls).await,
            None => Answer::Refused("there is nothing".to_owned()),
        },
    };
    if let Answer::Done | Answer::Told(_) | Answer::Result(_) | Answer::Failed(_) | Answer::Cancelled = answer
    {
        witness.came(&calls);
    }
    answer
}

async fn steer(handle: &Handle<u64>, action: &Action, calls: &mut Vec<ApiName>) -> Answer {
    macro_rules! asked {
        ($method:ident($($argument:expr),*)) => {{
            calls.extend([("Abide", "handle"), ("Handle", stringify!($method))]);
            handle.$method($($argument),*).await
        }};
    }
    match &action.what {
        Ask::Result(_) if action.number.is_multiple_of(2) => {
            calls.push(("Handle", "result"));
            let mut awaited = handle.result();
            called!(calls, awaited = AwaitResult::through_blocks());
            result(awaited.await)
        }
        Ask::Result(_) => result(asked!(result())),
        Ask::Signal(_, name) if action.is_text => done(asked!(signal(name, &action.number.to_string()))),
        Ask::Signal(_, name) if action.number.is_multiple_of(2) => {
            done(repeated_signal(handle, name, action.number, calls).await)
        }
        Ask::Signal(_, name) => done(asked!(signal(name, &action.number))),
        Ask::Pause(_) => done(asked!(pause())),
        Ask::Resume(_) => done(asked!(resume())),
        Ask::Cancel(_) => done(asked!(cancel(CANCEL_REASON))),
        Ask::Terminate(_) => done(asked!(terminate(TERMINATE_REASON))),
        Ask::Retry(_) => done(asked!(retry())),
        Ask::Unblock(_) => done(asked!(unblock())),
        Ask::Rerun(_) | Ask::Edit(_) | Ask::Accept(_) => match decide(handle, action, calls).await {
            Ok(Some(())) => Answer::Done,
            Ok(None) => Answer::Refused("there is nothing to decide".to_owned()),
            Err(error) => refusal(&error),
        },
        Ask::Status(_) => done(asked!(status())),
        _ => match asked!(why()) {
            // The store was briefly out of reach.
            Ok(sentence) if sentence.contains(" cannot be read now") => Answer::Unavailable,
            Ok(sentence) => Answer::Told(sentence),
            Err(error) => refusal(&error),
        },
    }
}

/// Sends a signal twice under one key: it arrives once.
async fn repeated_signal(
    handle: &Handle<u64>,
    name: &str,
    number: u64,
    calls: &mut Vec<ApiName>,
) -> Result<(), ClientError> {
    calls.push(("Handle", "signal"));
    let mut signal = handle.signal(name, &number);
    called!(calls, signal = SendSignal::idempotency_key(number.to_string()));
    signal.await?;
    // The answer to the second signal does not matter: the store has already taken the signal.
    let _ = handle.signal(name, &number).idempotency_key(number.to_string()).await;
    Ok(())
}

/// Decides about a step whose result could not be recorded, or about an operation that has another
/// input now, if the execution is blocked by one.
async fn decide(
    handle: &Handle<u64>,
    action: &Action,
    calls: &mut Vec<ApiName>,
) -> Result<Option<()>, ClientError> {
    let why = handle.why().await?;
    let mut unblock = handle.unblock();
    match (&action.what, undecided_step(&why), changed_operation(&why)) {
        (_, _, Some(op)) => {
            called!(calls, unblock = Unblock::accept(op));
        }
        (Ask::Rerun(_), Some(step), _) => {
            called!(calls, unblock = Unblock::rerun(step));
        }
        (_, Some(step), _) => {
            called!(calls, unblock = Unblock::edit(step, &action.number));
        }
        (_, None, None) => return Ok(None),
    }
    calls.push(("Handle", "unblock"));
    unblock.await.map(Some)
}

/// Returns the undecided step that `why` names in the command it advises.
pub(crate) fn undecided_step(why: &str) -> Option<String> {
    advised(why, " --rerun ")
}

/// Returns the operation with another input that `why` names in the command it advises.
pub(crate) fn changed_operation(why: &str) -> Option<String> {
    advised(why, " --accept ")
}

/// Returns the operation after an option of the command that `why` advises. It is quoted where a
/// shell needs quotes, and a remark may follow.
fn advised(why: &str, option: &str) -> Option<String> {
    let (_, rest) = why.split_once(option)?;
    let (op, _) = rest.split_once(", or ")?;
    let op = op.split_once(" (").map_or(op, |(op, _)| op);
    Some(op.trim_matches('\'').to_owned())
}

async fn start(abide: &Abide, root: &Root, calls: &mut Vec<ApiName>) -> Answer {
    calls.push(("Abide", "start"));
    macro_rules! started {
        ($sort:ident $code:expr, $input:expr) => {{
            let mut start = abide.start($code, $input);
            called!(calls, start = Start::id(&root.id));
            let answer = with_options!(calls, $sort Start = start, root.options).await;
            if let Ok(handle) = &answer {
                assert_eq!(handle.id(), root.id, "a handle has the id of what was started");
                assert!(
                    handle.is_attached() || handle.differences().is_empty(),
                    "only what attached differs"
                );
                calls.extend([("Handle", "id"), ("Handle", "is_attached"), ("Handle", "differences")]);
            }
            done(answer)
        }};
    }
    match &root.code {
        Code::Workflow(input) => started!(workflow code::program, (**input).clone()),
        Code::Task(input) => started!(task code::job, *input),
    }
}

async fn run(abide: &Abide, root: &Root, calls: &mut Vec<ApiName>) -> Answer {
    calls.push(("Abide", "run"));
    macro_rules! ran {
        ($sort:ident $code:expr, $input:expr) => {{
            let mut run = abide.run($code, $input);
            called!(calls, run = Run::id(&root.id));
            result(with_options!(calls, $sort Run = run, root.options).await)
        }};
    }
    match &root.code {
        Code::Workflow(input) => ran!(workflow code::program, (**input).clone()),
        Code::Task(input) => ran!(task code::job, *input),
    }
}

async fn start_named(abide: &Abide, root: &Root, calls: &mut Vec<ApiName>) -> Answer {
    calls.push(("Abide", "start_named"));
    match &root.code {
        Code::Workflow(input) => done(abide.start_named::<_, u64>(&root.id, "program", input).await),
        Code::Task(input) => done(abide.start_named::<_, u64>(&root.id, "job", input).await),
    }
}

fn done<T>(answer: Result<T, ClientError>) -> Answer {
    answer.map_or_else(|error| refusal(&error), |_| Answer::Done)
}

fn result(answer: Result<u64, ClientError>) -> Answer {
    answer.map_or_else(|error| refusal(&error), Answer::Result)
}

fn refusal(error: &ClientError) -> Answer {
    match error {
        ClientError::Failed { error, .. } => Answer::Failed(error.message().to_owned()),
        ClientError::Cancelled { .. } => Answer::Cancelled,
        ClientError::Unavailable { .. } => Answer::Unavailable,
        ClientError::Indeterminate { .. } => Answer::Unknown,
        other => Answer::Refused(other.to_string()),
    }
}

/// A future that its caller drops at a given poll.
pub(crate) struct DropAt<F> {
    future: Option<Pin<Box<F>>>,
    polls_left: Option<u32>,
}

impl<F> DropAt<F> {
    pub(crate) fn new(future: F, polls_left: Option<u32>) -> Self {
        Self { future: Some(Box::pin(future)), polls_left }
    }
}

impl<F: Future<Output = Answer>> Future for DropAt<F> {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        let this = &mut *self;
        match &mut this.polls_left {
            Some(0) => this.future = None,
            Some(left) => *left -= 1,
            None => {}
        }
        match &mut this.future {
            Some(future) => future.as_mut().poll(cx),
            None => Poll::Ready(Answer::Dropped),
        }
    }
}
