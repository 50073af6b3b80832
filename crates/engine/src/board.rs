//! The state that a workflow's code shares with the runner that polls it.
//!
//! The code opens operations and waits for them; the runner decides their outcomes. Both take turns
//! on one thread at a time, inside the runner's poll, so the lock is never contended. Only wakers
//! come from elsewhere.

mod closure;
mod hints;
mod identity;
mod inside;
mod interrupt;
mod patch;
mod root;
mod site;
mod slots;
mod wanted;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll, Waker};

use abide_core::planted::{Bug, planted};
use abide_core::{
    Address, Block, Execution, ExecutionId, Op, OpIndex, OpUse, Origin, Outcome, Payload, Timestamp, Uses,
};

use crate::line::Line;
use crate::mailbox::Mailbox;
use crate::registry::WorkflowCode;
pub(crate) use closure::timed_out;
use closure::{StepWaker, Woken};
use hints::Hints;
pub use identity::run_key;
pub use inside::Inside;
pub use interrupt::Interrupt;
use patch::{Behind, Patches};
pub(crate) use root::RootWaker;
pub use site::Site;
pub(crate) use site::written as site_text;
use slots::Slots;
pub use wanted::{CheckSignal, Predicate, Rejection, Request, RetryIf, StepOptions, UserTransaction};

/// The code's side of an execution.
#[derive(Clone)]
pub struct Board(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) address: Address,
    pub(crate) run: u32,
    code: Arc<dyn WorkflowCode>,
    state: Mutex<BoardState>,
    /// The mailbox through which the runner's own task is woken.
    mailbox: Arc<Mailbox>,
    /// Operations whose closures asked to be polled.
    woken: Woken,
    /// Whether something other than an operation woke the workflow.
    foreign: AtomicBool,
    /// Whether the workflow's own future asked to be polled again.
    again: AtomicBool,
    hints: Hints,
    behind: Behind,
    /// The thread that polls the workflow now; 0 for none.
    polling_thread: AtomicU64,
}

pub(crate) struct BoardState {
    pub(crate) slots: Slots,
    pub(crate) opened: Line<u64>,
    pub(crate) dropped: Vec<OpenOp>,
    pub(crate) finished: Line<u64>,
    pub(crate) block: Option<Block>,
    /// Why the code winds down, if it does.
    pub(crate) interrupt: Option<Interrupt>,
    pub(crate) evicting: bool,
    pub(crate) running_count: usize,
    pub(crate) now: Timestamp,
    uses: Uses,
    patches: Patches,
    next_slot: u64,
    random_count: u64,
    shield_depth: u32,
    /// The next run, if the code wants one.
    next: Option<Box<Next>>,
    /// The last operation that the code has the answer of, and where it asked for it.
    last: Option<(Op, Site)>,
}

/// The wish for a next run, and the waker of the future that waits for it.
struct Next {
    input: Payload,
    site: Site,
    waker: Waker,
}

impl BoardState {
    fn new(execution: &Execution, now: Timestamp) -> Self {
        Self {
            slots: Slots::default(),
            opened: Line::default(),
            dropped: Vec::new(),
            finished: Line::default(),
            block: None,
            interrupt: None,
            evicting: false,
            running_count: 0,
            now,
            uses: Uses::expecting(execution.entry_count()),
            patches: Patches::of(execution),
            next_slot: 0,
            random_count: 0,
            shield_depth: 0,
            next: None,
            last: None,
        }
    }

    /// Returns the names that the code has used.
    pub(crate) fn uses(&self) -> &Uses {
        &self.uses
    }

    /// Returns the input of the next run and where the code asks for it, if it wants one.
    pub(crate) fn next_input(&self) -> Option<(Payload, Site)> {
        self.next.as_ref().map(|next| (next.input.clone(), next.site))
    }

    /// Returns the block of code that awaits something foreign, with the operation that it asked
    /// for last.
    pub(crate) fn foreign_await(&self, workflow: &str) -> Block {
        let open = self.slots.iter().max_by_key(|(id, _)| **id);
        let open = open.map(|(_, slot)| format!("beside {} (at {})", slot.op, slot.site));
        let last = || self.last.as_ref().map(|(op, site)| format!("after {op} (at {site})"));
        Block::ForeignAwait { workflow: workflow.to_owned(), last: open.or_else(last) }
    }

    /// Refuses the next run to code that winds down, and returns the waker of the waiting future.
    pub(crate) fn refuse_next(&mut self) -> Option<Waker> {
        self.next.take().map(|next| next.waker)
    }
}

/// One open operation.
pub(crate) struct OpenOp {
    pub(crate) op: Op,
    /// The index of `op`. The runner asks for it several times.
    pub(crate) key: OpIndex,
    /// The same operation under its other names.
    pub(crate) others: Vec<Op>,
    /// Where the code asked for it.
    pub(crate) site: Site,
    pub(crate) request: Request,
    pub(crate) state: OpState,
    pub(crate) shielded: bool,
    pub(crate) waker: Option<Waker>,
    pub(crate) attempt_count: u32,
    /// When the first attempt began.
    pub(crate) first_at: Option<Timestamp>,
    /// The waker that its closure is polled with, once it has been polled.
    closure: Option<Weak<StepWaker>>,
}

impl OpenOp {
    /// Returns the operation under each of its names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &Op> {
        std::iter::once(&self.op).chain(&self.others)
    }

    /// Checks that this is the operation `op`, which was found by its [index](Op::index): an index
    /// is a hash. Nothing of one operation may reach another. Fails with the one that was found.
    pub(crate) fn know(&self, op: &Op) -> Result<(), String> {
        let is_known = self.op == *op || self.others.contains(op) || planted(Bug::IndexIsIdentity);
        if is_known { Ok(()) } else { Err(format!("{} (at {})", self.op, self.site)) }
    }
}

/// The state of an operation.
pub(crate) enum OpState {
    /// The runner has not looked at it, or waits for something on its behalf.
    Waiting,
    /// Its closure may start.
    Go { attempt: u32 },
    /// Its closure runs.
    Running { attempt: u32 },
    /// Its closure has ended; the runner will record it.
    Done { attempt: u32, outcome: Outcome },
    /// It has an outcome for the code.
    Delivered(Delivery),
    /// The code is to wind down.
    Interrupted,
}

/// The answer that an operation has for the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// A result, error or signal.
    Outcome(Outcome),
    /// The result that a person supplied for a step whose own result could not be recorded. No code
    /// has gone on with it yet.
    Edited(Payload),
    /// A time has come: the end of a sleep, or of the patience for a signal.
    Due,
    /// A child was started under this id.
    Started(ExecutionId),
    /// It has no outcome: the code is to wind down.
    Interrupted(Interrupt),
}

/// The answer to an operation that asks how it stands.
#[derive(Debug)]
pub enum Standing {
    /// Start the closure for the attempt with this number.
    Go(u32),
    /// Go on polling the closure of this attempt if it runs; drop the closure of another attempt.
    Running(u32),
    /// Wait, and drop the closure if one runs.
    Wait,
    /// It is over.
    Delivered(Delivery),
}

impl Board {
    pub(crate) fn new(
        code: &Arc<dyn WorkflowCode>,
        execution: &Execution,
        now: Timestamp,
        mailbox: Arc<Mailbox>,
    ) -> Self {
        // Made where it stays: it is large. Nobody needs the weak reference.
        Self(Arc::new_cyclic(|_| Shared {
            code: code.clone(),
            address: execution.address().clone(),
            run: execution.run(),
            state: Mutex::new(BoardState::new(execution, now)),
            mailbox,
            woken: Woken::default(),
            foreign: AtomicBool::new(false),
            again: AtomicBool::new(true),
            hints: Hints::default(),
            behind: Behind::default(),
            polling_thread: AtomicU64::new(0),
        }))
    }

    /// Returns the address of the execution.
    pub fn address(&self) -> &Address {
        &self.0.address
    }

    /// Returns the number of the run.
    pub fn run(&self) -> u32 {
        self.0.run
    }

    /// Returns the time of the last delivered entry.
    pub fn now(&self) -> Timestamp {
        self.0.lock().now
    }

    /// Whether the code of this board is gone: its run has ended, or has left memory. A context
    /// that was kept beyond that waits for nothing.
    pub fn is_gone(&self) -> bool {
        self.0.lock().evicting
    }

    /// Stops the execution until a person changes its code or data. The caller stays pending.
    pub fn block(&self, reason: Block) {
        let mut state = self.0.lock();
        state.block.get_or_insert(reason);
    }

    /// Opens an operation. Returns `None` if it is refused: the execution is blocked, and the
    /// caller stays pending.
    pub fn open(&self, wanted: OpUse<'_>, request: Request, site: Site) -> Option<OpHandle> {
        let mut state = self.0.lock();
        if let Some(place) = self.misplaced() {
            let op = format!("{} {:?} (at {site})", wanted.kind.word(), wanted.name);
            self.misplace(&mut state, op, place);
            return None;
        }
        let op = match state.uses.next(wanted) {
            Ok(op) => op,
            Err(clash) => {
                state.block.get_or_insert_with(|| Block::NameClash { clash, site: site.to_string() });
                return None;
            }
        };
        let others = match wanted.old_names {
            [] => Vec::new(),
            names => names.iter().map(|name| op.under(name)).collect(),
        };
        Some(self.insert(&mut state, (op, others, site), request))
    }

    /// Opens the wait for the result of a child that `start` started. Returns `None` as
    /// [`open`](Self::open) does.
    pub fn open_result(&self, start: &Op, child: ExecutionId, site: Site) -> Option<OpHandle> {
        let mut state = self.0.lock();
        if let Some(place) = self.misplaced() {
            self.misplace(&mut state, format!("{} (at {site})", start.child_result()), place);
            return None;
        }
        let named = (start.child_result(), Vec::new(), site);
        Some(self.insert(&mut state, named, Request::ChildResult { child }))
    }

    fn insert(
        &self,
        state: &mut BoardState,
        (op, others, site): (Op, Vec<Op>, Site),
        request: Request,
    ) -> OpHandle {
        let shielded = state.shield_depth > 0;
        let is_interrupted = state.interrupt.is_some() && !shielded;
        let slot = if is_interrupted { OpState::Interrupted } else { OpState::Waiting };
        let id = state.next_slot;
        state.next_slot += 1;
        let (key, op_of_slot, waker, closure) = (op.index(), op.clone(), None, None);
        let slot = OpenOp {
            op: op_of_slot,
            key,
            others,
            site,
            request,
            state: slot,
            shielded,
            waker,
            attempt_count: 0,
            first_at: None,
            closure,
        };
        state.slots.insert(id, slot);
        if !is_interrupted {
            state.opened.push_back(id);
        }
        OpHandle { board: self.clone(), id, op, site, is_open: true, waker: None }
    }

    /// Blocks, and ends the closure that uses the operation, if one does: it would wait for the
    /// operation forever. Its attempt is not recorded, so the step runs once more when the code is
    /// mended.
    fn misplace(&self, state: &mut BoardState, op: String, (place, inside): (String, Option<Arc<Inside>>)) {
        state.block.get_or_insert(Block::Misplaced { op, place });
        let outer = inside.as_ref().map(|inside| inside.op());
        let outer = state.slots.iter_mut().find(|(_, slot)| outer == Some(&slot.op));
        if let Some((id, slot)) = outer
            && matches!(slot.state, OpState::Running { .. })
        {
            slot.state = OpState::Waiting;
            state.running_count -= 1;
            // When it is polled once more, the step drops its closure.
            self.0.woken.add(*id);
            // On a thread of the pool nothing polls, so the runner has to be woken.
            self.0.mailbox.task.wake();
        }
    }

    /// Asks for the run to end and the next one to begin with `input`. Returns an error if the code
    /// is to wind down. Otherwise the caller stays pending, and is woken if an interrupt comes
    /// before the run has ended.
    pub fn want_next(&self, (input, site): (&Payload, Site), waker: &Waker) -> Result<(), Interrupt> {
        let mut state = self.0.lock();
        if let Some(place) = self.misplaced() {
            self.misplace(&mut state, format!("continue_as_new (at {site})"), place);
        } else if let Some(interrupt) = state.interrupt {
            return Err(interrupt);
        } else {
            state.next = Some(Box::new(Next { input: input.clone(), site, waker: waker.clone() }));
            self.0.hints.note_next();
        }
        Ok(())
    }

    /// Withdraws the wish for a next run: the future that wanted it was dropped.
    pub fn give_up_next(&self) {
        self.0.lock().next = None;
    }

    /// Protects the operations that `poll` opens from interruption.
    pub fn shielded<T>(&self, poll: impl FnOnce() -> T) -> T {
        // Lowered after a panic too, which the code may catch.
        struct Raised<'a>(&'a Shared);
        impl Drop for Raised<'_> {
            fn drop(&mut self) {
                self.0.lock().shield_depth -= 1;
            }
        }
        self.0.lock().shield_depth += 1;
        let _raised = Raised(&self.0);
        poll()
    }
}

/// An open operation, held by the future that waits for it. Dropping the handle abandons the
/// operation.
pub struct OpHandle {
    board: Board,
    id: u64,
    op: Op,
    site: Site,
    is_open: bool,
    /// The waker that the closure is polled with.
    waker: Option<Waker>,
}

impl OpHandle {
    /// Returns its identity: its name in the code, or the old name that the journal has for it.
    pub fn op(&self) -> &Op {
        &self.op
    }

    /// Returns the place of an error that the code gets from it.
    pub fn place(&self) -> Origin {
        self.site.place(self.board.0.code.name(), &self.op, None)
    }

    /// Returns how it stands, and registers to be woken when that changes.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Standing {
        let mut state = self.board.0.lock();
        if state.evicting {
            self.is_open = false;
            return Standing::Delivered(Delivery::Interrupted(Interrupt::Gone));
        }
        let slot = state.slots.get_mut(&self.id).expect("an open operation has its slot");
        if !slot.others.is_empty() && slot.op != self.op {
            self.op = slot.op.clone();
        }
        match &slot.waker {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            _ => slot.waker = Some(cx.waker().clone()),
        }
        match slot.state {
            OpState::Waiting | OpState::Done { .. } => Standing::Wait,
            OpState::Running { attempt } => Standing::Running(attempt),
            OpState::Go { attempt } => {
                slot.state = OpState::Running { attempt };
                state.running_count += 1;
                Standing::Go(attempt)
            }
            OpState::Delivered(_) | OpState::Interrupted => {
                let interrupt = state.interrupt;
                let slot = state.slots.remove(&self.id).expect("it was there a moment ago");
                self.is_open = false;
                if !matches!(slot.state, OpState::Delivered(_)) {
                    // A child whose result the code no longer awaits is asked to stop.
                    state.dropped.push(slot);
                    let interrupt = interrupt.expect("an interrupted operation has a reason");
                    return Standing::Delivered(Delivery::Interrupted(interrupt));
                }
                let OpenOp { op, site, request, state: OpState::Delivered(delivery), .. } = slot else {
                    unreachable!("it was delivered a moment ago")
                };
                state.last = Some((op, site));
                // The request holds values of the code, whose destructors may use the board.
                drop(state);
                drop(request);
                Standing::Delivered(delivery)
            }
        }
    }

    /// Returns a new run of the closure of this operation.
    pub fn inside(&self) -> Arc<Inside> {
        Inside::new(&self.board, &self.op)
    }

    /// Polls the closure of this operation with a waker of its own, and marked as being inside a
    /// step.
    pub fn poll_closure<T>(
        &mut self,
        inside: &Arc<Inside>,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let shared = &self.board.0;
        let id = self.id;
        let waker = self.waker.get_or_insert_with(|| {
            let waker = Arc::new(StepWaker { shared: shared.clone(), id });
            if let Some(slot) = shared.lock().slots.get_mut(&id) {
                slot.closure = Some(Arc::downgrade(&waker));
            }
            Waker::from(waker)
        });
        inside.enter(|| poll(&mut Context::from_waker(waker)))
    }

    /// Hands over the outcome of an attempt. The runner records it and decides how to go on.
    pub fn finish(&self, attempt: u32, outcome: Outcome) {
        let mut state = self.board.0.lock();
        // Gone with the code, if the handle outlived it.
        let Some(slot) = state.slots.get_mut(&self.id) else { return };
        if matches!(slot.state, OpState::Running { attempt: running } if running == attempt) {
            slot.state = OpState::Done { attempt, outcome };
            state.running_count -= 1;
            self.board.0.add_finished(&mut state, self.id);
        }
    }
}

impl Drop for OpHandle {
    fn drop(&mut self) {
        if !self.is_open {
            return;
        }
        let mut state = self.board.0.lock();
        if state.evicting {
            return;
        }
        if let Some(slot) = state.slots.remove(&self.id) {
            if matches!(slot.state, OpState::Running { .. }) {
                state.running_count -= 1;
            }
            state.finished.retain(|id| *id != self.id);
            state.dropped.push(slot);
        }
    }
}

/// The runner's side.
impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, BoardState> {
        // Nothing panics while the lock is held; should it happen, the state is still whole.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Takes the reasons to poll the workflow's future, and reports whether there was one.
    pub(crate) fn take_reason_to_poll(&self) -> bool {
        for id in self.woken.take() {
            self.wake_slot(id);
        }
        self.again.swap(false, Ordering::AcqRel)
    }

    /// Whether a closure has asked to be polled.
    pub(crate) fn has_woken(&self) -> bool {
        self.woken.has_any()
    }

    /// Whether the workflow's future has a reason to be polled.
    pub(crate) fn is_to_be_polled(&self) -> bool {
        self.again.load(Ordering::Acquire)
    }

    /// Wakes the waker that an operation left, as if from inside the poll: combinators such as
    /// `FuturesUnordered` poll only the futures that were woken.
    pub(crate) fn wake_slot(&self, id: u64) {
        let waker = self.lock().slots.get_mut(&id).and_then(|slot| slot.waker.take());
        self.as_polling(|| waker.into_iter().for_each(Waker::wake));
        self.again.store(true, Ordering::Release);
    }

    /// Shows the code the outcome of an operation: marks it and wakes the future that waits for it.
    /// Fails, with the operation that was found in its place, as [`know`](OpenOp::know) does.
    pub(crate) fn deliver(
        &self,
        id: u64,
        (op, delivery): (&Op, Delivery),
        at: Timestamp,
    ) -> Result<(), String> {
        let mut state = self.lock();
        let waker = match state.slots.get_mut(&id) {
            Some(slot) => {
                slot.know(op)?;
                slot.state = OpState::Delivered(delivery);
                slot.waker.take()
            }
            None => None,
        };
        state.now = at;
        drop(state);
        self.as_polling(|| waker.into_iter().for_each(Waker::wake));
        self.again.store(true, Ordering::Release);
        Ok(())
    }

    pub(crate) fn as_polling<T>(&self, action: impl FnOnce() -> T) -> T {
        self.polling_thread.store(this_thread(), Ordering::Relaxed);
        let result = action();
        self.polling_thread.store(0, Ordering::Relaxed);
        result
    }

    /// Whether the workflow was woken by something that is not an operation of its `ctx`.
    pub(crate) fn has_foreign_wake(&self) -> bool {
        self.foreign.load(Ordering::Acquire)
    }
}

/// Returns a number for the current thread, never 0.
fn this_thread() -> u64 {
    use std::cell::Cell;
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local!(static ID: Cell<u64> = const { Cell::new(0) });
    ID.with(|id| {
        if id.get() == 0 {
            id.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        id.get()
    })
}
