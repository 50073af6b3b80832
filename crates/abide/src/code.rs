//! Functions that can be run durably.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use abide_core::planted::{Bug, planted};
use abide_core::{Block, ContentHash, InvalidName, Kind, Name, Payload};
use abide_engine::{Board, CodeFuture, Registry, TaskAttempt, TaskCode, WorkflowCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::canonical;
use crate::client_error::ClientError;
use crate::ctx::{Ctx, State};
use crate::{data, recent};

/// A value that can be read from its recorded form: it deserializes and owns its data.
///
/// Serde's traits are not supertraits here and of [`Value`]. The compiler would name them first,
/// and not say what to do.
#[diagnostic::on_unimplemented(
    message = "say which type is read, `recv::<Decision>(..)`, and derive `Deserialize` for it: `{Self}` cannot be read",
    label = "no type is given, or it cannot be read"
)]
pub trait Recorded: Sized {
    /// Reads the value.
    #[doc(hidden)]
    fn from_payload(payload: &Payload) -> Result<Self, serde_json::Error>;
}

#[diagnostic::do_not_recommend]
impl<T: DeserializeOwned> Recorded for T {
    fn from_payload(payload: &Payload) -> Result<Self, serde_json::Error> {
        data::decode(payload)
    }
}

/// A value that can be recorded and read again: it serializes, deserializes and owns its data.
#[diagnostic::on_unimplemented(
    message = "derive `Serialize` and `Deserialize` for `{Self}`: it is recorded, and read again in a replay",
    label = "this cannot be recorded",
    note = "`#[derive(serde::Serialize, serde::Deserialize)]` does it for most types; what borrows or is not `Send` cannot be recorded"
)]
pub trait Value: Recorded + Send {
    /// Writes the value, unless it would be read back as another one.
    #[doc(hidden)]
    fn to_payload(&self) -> Result<Payload, serde_json::Error>;

    /// Returns the hash by which the value is compared, which has this payload.
    #[doc(hidden)]
    fn input_hash(&self, payload: &Payload) -> ContentHash;
}

#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned + Send> Value for T {
    fn to_payload(&self) -> Result<Payload, serde_json::Error> {
        data::encode(self)
    }

    fn input_hash(&self, payload: &Payload) -> ContentHash {
        canonical::hash_of(self, payload)
    }
}

/// A closure that the engine may run again: everything that it captures can be cloned.
#[diagnostic::on_unimplemented(
    message = "clone before the closure, or share by `Arc`, what it captures: it may run again, as a clone",
    label = "this captures something that is not `Clone`"
)]
pub trait Again: Clone + Send {}

#[diagnostic::do_not_recommend]
impl<F: Clone + Send> Again for F {}

/// A registered async function. The attributes [`workflow`](macro@crate::workflow) and
/// [`task`](macro@crate::task) implement this trait.
#[diagnostic::on_unimplemented(
    message = "give the name of a function that has `#[workflow]` or `#[task]`: `{Self}` is none",
    label = "this is no workflow and no task"
)]
pub trait Code: Send + Sync + 'static {
    /// The input of the function.
    type Input: Value + 'static;
    /// The result of the function.
    type Output: Value + 'static;
    /// The name it is registered under.
    const NAME: &'static str;
    /// The names it was registered under before.
    const RENAMED_FROM: &'static [&'static str] = &[];
    /// Workflow or task.
    const KIND: Kind;
    /// Whether a replay demands the recorded order and every entry.
    const STRICT: bool;

    /// The function itself.
    fn call(ctx: Ctx, input: Self::Input) -> impl Future<Output = crate::Result<Self::Output>> + Send;
}

/// A function whose progress is journalled and replayed.
pub trait Workflow: Code {}

/// A function without a journal of its own: runs whole, retried whole.
pub trait Task: Code {}

/// Code that is retried as a whole, by the policy of its start: every [`Task`].
///
/// A trait of its own, because the compiler's message is about `.retry(..)` and not about tasks.
#[diagnostic::on_unimplemented(
    message = "set `.retry(..)` on the steps of `{Self}`: a workflow is not retried as a whole, only a task is",
    label = "this starts a workflow, which has no retry policy"
)]
pub trait Retried: Task {}

#[diagnostic::do_not_recommend]
impl<T: Task> Retried for T {}

/// The success type of a `Result`, for the macros.
#[diagnostic::on_unimplemented(
    message = "return a `Result`: a workflow or task returns `Result<T>`, or `Result<T, E>` with an error that `?` takes",
    label = "this is no `Result`"
)]
pub trait Returns {
    /// The success type.
    type Ok;

    /// Converts the error into an [`Error`](crate::Error).
    #[track_caller]
    fn into_result(self) -> crate::Result<Self::Ok>;
}

impl<T, E: Returned> Returns for Result<T, E> {
    type Ok = T;

    #[track_caller]
    fn into_result(self) -> crate::Result<T> {
        match self {
            Ok(value) => Ok(value),
            // Not in a closure: its line would be this one.
            Err(error) => Err(error.into()),
        }
    }
}

/// The error of such a `Result`: every type that `?` takes.
///
/// A trait of its own, because the compiler's message is about the error and not about the
/// `Result`.
#[diagnostic::on_unimplemented(
    message = "return an error that is `std::error::Error + Send + Sync`: `{Self}` is not",
    label = "`?` does not take the error of this `Result`",
    note = "`abide::Error`, `anyhow::Error`, `Box<dyn Error + Send + Sync>` and `String` are taken too"
)]
pub trait Returned: Into<crate::Error> {}

#[diagnostic::do_not_recommend]
impl<E: Into<crate::Error>> Returned for E {}

/// A function that was registered at link time.
#[derive(Clone, Copy)]
pub struct Registered {
    pub(crate) name: &'static str,
    pub(crate) old_names: &'static [&'static str],
    pub(crate) kind: Kind,
    pub(crate) module: &'static str,
    workflow: fn(&State) -> Arc<dyn WorkflowCode>,
    task: fn(&State) -> Arc<dyn TaskCode>,
    check: fn(&Payload) -> Result<(), Block>,
}

inventory::collect!(Registered);

impl Registered {
    /// Returns the registration of `C`, which is defined in `module`.
    pub const fn of<C: Code>(module: &'static str) -> Self {
        Self {
            name: C::NAME,
            old_names: C::RENAMED_FROM,
            kind: C::KIND,
            module,
            workflow: |state| Arc::new(Native::<C>::new(state)),
            task: |state| Arc::new(Native::<C>::new(state)),
            check: |input| Native::<C>::input(input).map(drop),
        }
    }

    /// Checks that the function can read this input.
    pub(crate) fn check(&self, input: &Payload) -> Result<(), Block> {
        (self.check)(input)
    }
}

/// The names of a workflow or task, checked.
pub(crate) struct CodeNames {
    pub(crate) kind: Kind,
    pub(crate) name: Name,
    pub(crate) old_names: Vec<Name>,
}

impl CodeNames {
    pub(crate) fn of<C: Code>() -> Result<Self, InvalidName> {
        Self::checked(C::KIND, C::NAME, C::RENAMED_FROM)
    }

    /// Checks the names of a workflow or task, whether its code is registered here or not.
    pub(crate) fn checked(kind: Kind, name: &str, old_names: &[&str]) -> Result<Self, InvalidName> {
        let old_names = if planted(Bug::OldCodeNameForgotten) { &[] } else { old_names };
        let old_names = match old_names {
            [] => Vec::new(),
            names => names.iter().map(|old| code_name(kind, old)).collect::<Result<_, _>>()?,
        };
        Ok(Self { kind, name: code_name(kind, name)?, old_names })
    }
}

fn code_name(kind: Kind, name: &str) -> Result<Name, InvalidName> {
    recent::name(if kind == Kind::Task { "task name" } else { "workflow name" }, name)
}

/// The workflows and tasks that this process knows, whether it runs them or not, under each of
/// their names.
#[derive(Clone, Default)]
pub(crate) struct KnownCode(Vec<(Name, Registered)>);

impl KnownCode {
    pub(crate) fn of<'a>(all: impl Iterator<Item = (&'a str, &'a Registered)>) -> Result<Self, ClientError> {
        let checked = |(name, one): (&str, &Registered)| -> Result<_, InvalidName> {
            Ok((code_name(one.kind, name)?, *one))
        };
        Ok(Self(all.map(checked).collect::<Result<_, _>>()?))
    }

    /// Returns the code of this name.
    pub(crate) fn find(&self, name: &Name) -> Option<&Registered> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, code)| code)
    }

    /// Whether code of this kind and name is known.
    pub(crate) fn has(&self, kind: Kind, name: &Name) -> bool {
        self.0.iter().any(|(known, code)| (known, code.kind) == (name, kind))
    }

    /// Returns all of the code in the form that an engine runs, with mocks in place of some tasks.
    pub(crate) fn registry(&self, state: &State, mocks: &BTreeMap<String, Arc<dyn TaskCode>>) -> Registry {
        let mut registry = Registry::default();
        for (name, code) in &self.0 {
            match code.kind {
                Kind::Workflow => registry.add_workflow(name.clone(), (code.workflow)(state)),
                Kind::Task => {
                    let mock = mocks.get(code.name).filter(|_| !planted(Bug::MockedTaskRuns)).cloned();
                    registry.add_task(name.clone(), mock.unwrap_or_else(|| (code.task)(state)))
                }
                Kind::Builtin => unreachable!("users register workflows and tasks"),
            };
        }
        registry
    }
}

/// A replacement for a task in a test.
pub(crate) struct MockTask<F, I> {
    name: String,
    mock: F,
    input: std::marker::PhantomData<fn(I)>,
}

impl<F, I> MockTask<F, I> {
    pub(crate) fn new(name: &str, mock: F) -> Self {
        Self { name: name.to_owned(), mock, input: std::marker::PhantomData }
    }
}

impl<F, I, T> TaskCode for MockTask<F, I>
where
    F: Fn(I) -> crate::Result<T> + Send + Sync + 'static,
    I: DeserializeOwned + Send + 'static,
    T: Serialize + 'static,
{
    fn name(&self) -> &str {
        &self.name
    }

    fn call(&self, _attempt: TaskAttempt, input: &Payload) -> Result<CodeFuture, Block> {
        let what = format!("the input of the mock of task {:?}", self.name);
        let input: I = data::decode(input).map_err(|error| data::undecodable::<I>(&what, input, &error))?;
        let encoded = (self.mock)(input).map_err(crate::Error::into_failure).and_then(|output| {
            let describe =
                |error| format!("the result of the mock of task {:?} does not serialize: {error}", self.name);
            data::encode(&output).map_err(|error| crate::Error::refusal(describe(error)).into_failure())
        });
        Ok(Box::pin(std::future::ready(encoded)))
    }
}

/// A Rust function in the form that the engine calls.
struct Native<C> {
    state: State,
    code: std::marker::PhantomData<fn() -> C>,
}

impl<C: Code> Native<C> {
    fn new(state: &State) -> Self {
        Self { state: state.clone(), code: std::marker::PhantomData }
    }

    fn input(input: &Payload) -> Result<C::Input, Block> {
        let what = || format!("the input of {} {:?}", C::KIND.word(), C::NAME);
        C::Input::from_payload(input).map_err(|error| data::undecodable::<C::Input>(&what(), input, &error))
    }
}

impl<C: Code> WorkflowCode for Native<C> {
    fn name(&self) -> &str {
        C::NAME
    }

    fn is_strict(&self) -> bool {
        C::STRICT
    }

    fn call(&self, board: Board, input: &Payload) -> Result<CodeFuture, Block> {
        let input = Self::input(input)?;
        let ctx = Ctx::of_workflow(board.clone(), self.state.clone());
        // Unconstrained: tokio's own fairness would wake the workflow from outside after a long
        // poll, and the engine could not distinguish that from an unrecorded await.
        Ok(Box::pin(tokio::task::unconstrained(async move {
            let output = C::call(ctx, input).await.map_err(crate::Error::into_failure)?;
            match data::round_trip(&output) {
                Ok((payload, _)) => Ok(payload),
                Err(error) => {
                    let reason = format!("the result of workflow {:?} does not serialize: {error}", C::NAME);
                    board.block(Block::Limit { reason });
                    std::future::pending().await
                }
            }
        })))
    }
}

impl<C: Code> TaskCode for Native<C> {
    fn name(&self) -> &str {
        C::NAME
    }

    fn call(&self, attempt: TaskAttempt, input: &Payload) -> Result<CodeFuture, Block> {
        let input = Self::input(input)?;
        let ctx = Ctx::of_task(attempt, self.state.clone());
        Ok(Box::pin(async move {
            let output = C::call(ctx, input).await.map_err(crate::Error::into_failure)?;
            let describe = |error| format!("the result of task {:?} does not serialize: {error}", C::NAME);
            let written = data::round_trip(&output).map(|(payload, _)| payload);
            written.map_err(|error| crate::Error::refusal(describe(error)).into_failure())
        }))
    }
}
