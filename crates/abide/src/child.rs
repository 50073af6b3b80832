//! `ctx.start` and `ctx.run`: children.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::code::Recorded;
use abide_core::{Block, ExecutionId, Op, OpKind};
use abide_engine::{Delivery, OpHandle, Request, Site, Standing};

use crate::canonical::Input;
use crate::code::{Code, CodeNames};
use crate::ctx::{Ctx, Opened, gone};
use crate::error::{Error, Result};
use crate::op_name::{OpName, op_options};
use crate::slot::LazyOp;
use crate::start::{StartOptions, start_options};
use crate::step::delivered;
use crate::upgrade::{Upgrade, upgrade_option};

/// The builder methods of children.
macro_rules! child_options {
    () => {
        /// Continues with a child that earlier code started with another input. Without this option
        /// the execution is blocked, because the recorded result belongs to that other input.
        pub fn any_input(mut self) -> Self {
            self.options.any_input = true;
            self
        }
    };
}

/// A child that is about to be started. Await it to get a [`Child`]; options come first.
///
/// It resolves as soon as the start of the child is recorded. If the store then refuses the child
/// because its id is taken, [`Child::result`] returns an error that says so.
#[must_use = "no child is started unless it is awaited"]
pub struct StartChild<C: Code> {
    ctx: Ctx,
    name: OpName,
    input: Option<C::Input>,
    options: StartOptions,
    upgrade: Upgrade<C::Output>,
    slot: LazyOp,
}

// The input is never pinned.
impl<C: Code> Unpin for StartChild<C> {}

impl<C: Code> StartChild<C> {
    #[track_caller]
    pub(crate) fn new(ctx: Ctx, _code: C, input: C::Input) -> Self {
        let (name, options) = (OpName::of_code::<C>(), StartOptions::default());
        Self { ctx, name, input: Some(input), options, upgrade: Upgrade::default(), slot: LazyOp::New }
    }

    start_options!();
    op_options!();
    child_options!();

    upgrade_option! {
        /// Reads a recorded result as the older type `V`, and converts it, if it cannot be read as
        /// the type that this code expects. The journal stays as it is. An error blocks the
        /// execution, as an unreadable result does.
        C::Output
    }

    /// Returns the request to the runner, or says which option is invalid.
    fn request(
        ctx: &Ctx,
        options: &StartOptions,
        input: Option<C::Input>,
    ) -> std::result::Result<Request, String> {
        let input = input.expect("it is opened once");
        let input = Input::of(&input)
            .map_err(|error| format!("the input of child {:?} does not serialize: {error}", C::NAME))?;
        let start = CodeNames::of::<C>()
            .and_then(|code| options.start(code, input, || ctx.now()))
            .map_err(|error| error.to_string())?;
        let id = options.id.as_ref().map(ExecutionId::new).transpose().map_err(|error| error.to_string())?;
        let (delay, deadline) = (options.delay, options.deadline);
        Ok(Request::Child { start: Arc::new(start), delay, deadline, id, any_input: options.any_input })
    }

    /// Opens the operation. An invalid option blocks the execution, because only a change of its
    /// code can fix it.
    fn open(ctx: &Ctx, name: &OpName, request: std::result::Result<Request, String>) -> Opened {
        match request {
            Ok(request) => ctx.open(OpKind::Child, name, request),
            Err(reason) => match ctx.board() {
                Some(board) => {
                    board.block(Block::Limit { reason: format!("{reason} (at {})", name.site) });
                    Opened::Blocked
                }
                None => Opened::Refused(Error::refusal(reason).arising_at(name.site)),
            },
        }
    }
}

impl<C: Code> Future for StartChild<C> {
    type Output = Result<Child<C::Output>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let (ctx, name, options, input) = (&this.ctx, &this.name, &this.options, &mut this.input);
        let open = || Self::open(ctx, name, Self::request(ctx, options, input.take()));
        let op = match this.slot.open(open) {
            Ok(op) => op,
            Err(answer) => return answer,
        };
        match op.poll(cx) {
            Standing::Delivered(Delivery::Started(id)) => {
                let (ctx, start, upgrade) = (this.ctx.clone(), op.op().clone(), this.upgrade.clone());
                let child = Child { ctx, start, id, upgrade };
                this.slot = LazyOp::Closed;
                Poll::Ready(Ok(child))
            }
            Standing::Delivered(Delivery::Interrupted(interrupt)) => {
                let error = Error::interrupted(interrupt).located(|| op.place());
                this.slot = LazyOp::Closed;
                Poll::Ready(Err(error))
            }
            Standing::Delivered(other) => unreachable!("a start gives no {other:?}"),
            Standing::Wait | Standing::Go(_) | Standing::Running(_) => Poll::Pending,
        }
    }
}

/// A child that was started. Dropping this value does not stop the child; the end of its parent
/// does.
pub struct Child<T> {
    ctx: Ctx,
    start: Op,
    id: ExecutionId,
    upgrade: Upgrade<T>,
}

impl<T: Recorded> Child<T> {
    /// Returns the id of the child.
    pub fn id(&self) -> &str {
        self.id.as_str()
    }

    /// Waits for the result of the child. Dropping the future cancels the child.
    #[track_caller]
    pub fn result(self) -> ChildResult<T> {
        self.result_at(Site::caller())
    }

    fn result_at(self, site: Site) -> ChildResult<T> {
        let board = self.ctx.board().expect("only workflows have children");
        let opened = board.open_result(&self.start, self.id, site);
        opened.iter().for_each(|handle| self.ctx.see(handle, &[]));
        let slot = opened.map_or(LazyOp::Closed, LazyOp::Open);
        ChildResult { ctx: self.ctx, slot, upgrade: self.upgrade }
    }
}

/// A wait for the result of a child. Dropping it cancels the child.
#[must_use = "nothing is waited for unless it is awaited"]
pub struct ChildResult<T> {
    ctx: Ctx,
    slot: LazyOp,
    upgrade: Upgrade<T>,
}

impl<T: Recorded> Future for ChildResult<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let this = self.get_mut();
        let turn = match &mut this.slot {
            LazyOp::Open(op) => OpHandle::poll(op, cx),
            LazyOp::New | LazyOp::Closed => {
                let board = this.ctx.board().filter(|board| board.is_gone());
                return board
                    .map_or(Poll::Pending, |board| Poll::Ready(Err(gone(board, "a child's result"))));
            }
        };
        match turn {
            Standing::Delivered(delivery) => delivered(&this.ctx, (&mut this.slot, &this.upgrade), delivery),
            Standing::Wait | Standing::Go(_) | Standing::Running(_) => Poll::Pending,
        }
    }
}

/// A child that is started and whose result is awaited. Await it; options come first. Dropping it
/// cancels the child.
#[must_use = "no child is started unless it is awaited"]
pub struct RunChild<C: Code> {
    name: OpName,
    options: StartOptions,
    upgrade: Upgrade<C::Output>,
    phase: RunPhase<C>,
}

#[expect(clippy::large_enum_variant, reason = "a box would cost every child an allocation")]
enum RunPhase<C: Code> {
    New(Option<(Ctx, C::Input)>),
    Starting(StartChild<C>),
    Running(ChildResult<C::Output>),
}

// Nothing in here is ever pinned.
impl<C: Code> Unpin for RunChild<C> {}

impl<C: Code> RunChild<C> {
    #[track_caller]
    pub(crate) fn new(ctx: Ctx, _code: C, input: C::Input) -> Self {
        let phase = RunPhase::New(Some((ctx, input)));
        let (name, options) = (OpName::of_code::<C>(), StartOptions::default());
        Self { name, options, upgrade: Upgrade::default(), phase }
    }

    start_options!();
    op_options!();
    child_options!();

    upgrade_option! {
        /// Reads a recorded result as the older type `V`, and converts it, if it cannot be read as
        /// the type that this code expects. The journal stays as it is. An error blocks the
        /// execution, as an unreadable result does.
        C::Output
    }
}

impl<C: Code> Future for RunChild<C> {
    type Output = Result<C::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            this.phase = match &mut this.phase {
                RunPhase::New(parts) => {
                    let (ctx, input) = parts.take().expect("it becomes a start once");
                    let (name, options) = (this.name.clone(), std::mem::take(&mut this.options));
                    let (input, upgrade) = (Some(input), std::mem::take(&mut this.upgrade));
                    RunPhase::Starting(StartChild { ctx, name, input, options, upgrade, slot: LazyOp::New })
                }
                RunPhase::Starting(start) => match std::task::ready!(Pin::new(start).poll(cx)) {
                    Ok(child) => RunPhase::Running(child.result_at(this.name.site)),
                    Err(error) => return Poll::Ready(Err(error)),
                },
                RunPhase::Running(result) => return Pin::new(result).poll(cx),
            };
        }
    }
}
