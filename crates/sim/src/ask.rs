//! What is asked from outside, through nothing but what clients have.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use abide::prelude::*;

use crate::code::{self, with_options};
use crate::history::Answer;
use crate::program::{Code, Expr, Program};
use crate::scenario::{Action, Ask, Scenario};

/// Asks, and says how that was answered. `id` is the execution that the action is about, if there is any yet.
pub(crate) async fn perform(
    abide: &Abide,
    action: &Action,
    scenario: &Scenario,
    id: Option<String>,
) -> Answer {
    match &action.what {
        Ask::Start(root) => start(abide, scenario, *root).await,
        Ask::Run(root) => run(abide, scenario, *root).await,
        Ask::Conflict(root) => {
            let other = Program { carry: u64::MAX, body: Expr::Value(1), next: None };
            done(abide.start(code::program, other).id(&scenario.roots[*root].id).await)
        }
        Ask::List => done(abide.list(Filter::all()).await),
        Ask::Shutdown => {
            abide.shutdown().await;
            Answer::Done
        }
        _ => match id {
            Some(id) => steer(&abide.handle(&id), action).await,
            None => Answer::Refused("there is nothing".to_owned()),
        },
    }
}

async fn steer(handle: &Handle<u64>, action: &Action) -> Answer {
    match &action.what {
        Ask::Result(_) => result(handle.result().await),
        Ask::Signal(_, name) => done(handle.signal(name, &action.number).await),
        Ask::Pause(_) => done(handle.pause().await),
        Ask::Resume(_) => done(handle.resume().await),
        Ask::Cancel(_) => done(handle.cancel("enough").await),
        Ask::Terminate(_) => done(handle.terminate("now").await),
        Ask::Retry(_) => done(handle.retry().await),
        Ask::Unblock(_) => done(handle.unblock().await),
        Ask::Status(_) => done(handle.status().await),
        _ => done(handle.why().await),
    }
}

async fn start(abide: &Abide, scenario: &Scenario, root: usize) -> Answer {
    let root = &scenario.roots[root];
    match &root.code {
        Code::Workflow(input) => {
            let start = abide.start(code::program, (**input).clone()).id(&root.id);
            done(with_options!(start, root.options).await)
        }
        Code::Task(input) => {
            done(with_options!(abide.start(code::job, *input).id(&root.id), root.options).await)
        }
    }
}

async fn run(abide: &Abide, scenario: &Scenario, root: usize) -> Answer {
    let root = &scenario.roots[root];
    match &root.code {
        Code::Workflow(input) => {
            let run = abide.run(code::program, (**input).clone()).id(&root.id);
            result(with_options!(run, root.options).await)
        }
        Code::Task(input) => {
            result(with_options!(abide.run(code::job, *input).id(&root.id), root.options).await)
        }
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

/// A future that its caller drops at a certain poll.
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
