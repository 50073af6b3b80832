//! The step whose closure runs on the current thread.
//!
//! A closure is polled on the thread of its workflow, or runs on a thread of the blocking pool or
//! inside the store's transaction. Each of these marks its thread while the closure runs. A task
//! that the closure spawns has no mark, because nothing says which step it belongs to.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use abide_core::planted::{Bug, planted};
use abide_core::{Address, Op, Payload};

use super::{Board, Shared, run_key, this_thread};

/// One run of a step's closure: its board, its step, and its count of random numbers.
pub struct Inside {
    board: Board,
    op: Op,
    /// Starts at 0 with each run of the closure, so every attempt draws the same numbers.
    random_count: AtomicU64,
}

thread_local! {
    static INSIDE: RefCell<Option<Arc<Inside>>> = const { RefCell::new(None) };
}

impl Inside {
    /// Creates a new run of the closure of this operation.
    pub fn new(board: &Board, op: &Op) -> Arc<Self> {
        Arc::new(Self { board: board.clone(), op: op.clone(), random_count: AtomicU64::new(0) })
    }

    /// Returns the closure that runs on this thread, if any.
    pub fn current() -> Option<Arc<Self>> {
        INSIDE.with_borrow(Clone::clone)
    }

    /// Marks this thread as inside the closure while `run` runs.
    pub fn enter<T>(self: &Arc<Self>, run: impl FnOnce() -> T) -> T {
        // The mark is put back after a panic too: the thread goes on with other code.
        struct Mark(Option<Arc<Inside>>);
        impl Drop for Mark {
            fn drop(&mut self) {
                INSIDE.replace(self.0.take());
            }
        }
        let _mark = Mark(INSIDE.replace(Some(self.clone())));
        run()
    }
}

/// The place of code that uses its board.
enum Caller {
    /// In the closure of a step.
    Step(Arc<Inside>),
    /// In the workflow's own code.
    Workflow,
    /// On any other task or thread.
    Elsewhere,
}

impl Board {
    fn caller(&self) -> Caller {
        let is_here = |inside: &Arc<Inside>| Arc::ptr_eq(&inside.board.0, &self.0);
        match Inside::current().filter(is_here) {
            Some(inside) => Caller::Step(inside),
            None if self.0.polling_thread.load(Ordering::Relaxed) == this_thread() => Caller::Workflow,
            None => Caller::Elsewhere,
        }
    }

    /// Returns a number that is random across executions and the same in every replay of this one.
    /// Inside a step it comes from the step's own sequence, which every attempt begins anew: a
    /// replay does not run the closure, and the workflow's sequence must not depend on it.
    ///
    /// # Panics
    /// On a task or thread that belongs neither to the workflow nor to a step: a number drawn there
    /// would change the numbers that the workflow draws.
    pub fn random(&self) -> u64 {
        let Shared { address: Address { namespace, id }, run, .. } = &*self.0;
        let seed = match self.caller() {
            Caller::Step(inside) if !planted(Bug::ChanceInStepShifts) => {
                let nth = inside.random_count.fetch_add(1, Ordering::Relaxed) + 1;
                let (kind, path) = (inside.op.kind.word(), inside.op.path());
                // One part more than a workflow's seed, and no part contains a zero byte.
                format!("{namespace}\u{0}{id}\u{0}{run}\u{0}{kind} {path}\u{0}{nth}")
            }
            Caller::Step(_) | Caller::Workflow => {
                let mut state = self.0.lock();
                state.random_count += 1;
                format!("{namespace}\u{0}{id}\u{0}{run}\u{0}{}", state.random_count)
            }
            Caller::Elsewhere => panic!("{}", self.astray("random")),
        };
        Payload::from(seed.as_str()).hash()
    }

    /// Returns, inside a step, a name for that step: the same in every attempt and replay, and
    /// different from the name of every other step. In the workflow's own code, returns a name for
    /// the run.
    ///
    /// # Panics
    /// On a task or thread that belongs neither to the workflow nor to a step: a wrong name would
    /// be worse than none.
    pub fn idempotency_key(&self) -> String {
        let home = run_key(&self.0.address, self.0.run);
        match self.caller() {
            Caller::Step(inside) => format!("{home}/{}", inside.op.path()),
            Caller::Workflow => home,
            Caller::Elsewhere if planted(Bug::KeyOffThread) => home,
            Caller::Elsewhere => panic!("{}", self.astray("idempotency_key")),
        }
    }

    fn astray(&self, what: &str) -> String {
        let id = &self.0.address.id;
        format!(
            "ctx.{what}() is called on another task or thread than the code of {id:?}, where its step is not known; \
             call it inside the closure, and move what it returns there"
        )
    }

    /// Returns the place of the caller if durable operations are not allowed there, and the step if
    /// the caller is inside a closure.
    pub(super) fn misplaced(&self) -> Option<(String, Option<Arc<Inside>>)> {
        match self.caller() {
            Caller::Step(_) if planted(Bug::OperationInsideStep) => None,
            Caller::Elsewhere if planted(Bug::OperationElsewhere) => None,
            Caller::Step(inside) => Some((format!("inside {}", inside.op), Some(inside))),
            Caller::Workflow => None,
            Caller::Elsewhere => Some(("outside of its workflow's own code".to_owned(), None)),
        }
    }
}

impl Inside {
    /// Returns the step whose closure runs.
    pub(super) fn op(&self) -> &Op {
        &self.op
    }
}
