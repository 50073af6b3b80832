//! Which step's closure runs, on whatever thread it does.
//!
//! A closure is polled on the thread of its workflow, runs on a thread of the blocking pool, or inside the store's transaction. Each of these
//! marks its thread for so long. A task that the closure spawns has no mark, because nothing tells whose it is.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use abide_core::planted::{Bug, planted};
use abide_core::{Address, Op, Payload};

use super::{Board, Shared, run_key, this_thread};

/// One run of a step's closure: its board, the step, and what it has drawn by chance.
pub struct Inside {
    board: Board,
    op: Op,
    /// Begins anew with each run of the closure, so that every attempt draws the same.
    random_count: AtomicU64,
}

thread_local! {
    static INSIDE: RefCell<Option<Arc<Inside>>> = const { RefCell::new(None) };
}

impl Inside {
    /// A new run of the closure of this operation.
    pub fn new(board: &Board, op: &Op) -> Arc<Self> {
        Arc::new(Self { board: board.clone(), op: op.clone(), random_count: AtomicU64::new(0) })
    }

    /// The closure that runs on this thread, if one does.
    pub fn current() -> Option<Arc<Self>> {
        INSIDE.with_borrow(Clone::clone)
    }

    /// Marks this thread as inside of the closure while `run` runs.
    pub fn enter<T>(self: &Arc<Self>, run: impl FnOnce() -> T) -> T {
        // Put back in a panic too: the thread goes on with somebody else.
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

/// Where code is that uses its board.
enum Place {
    /// In the closure of a step.
    Step(Arc<Inside>),
    /// In the workflow's own code.
    Workflow,
    /// On a task or thread that is neither.
    Elsewhere,
}

impl Board {
    fn place(&self) -> Place {
        let is_here = |inside: &Arc<Inside>| Arc::ptr_eq(&inside.board.0, &self.0);
        match Inside::current().filter(is_here) {
            Some(inside) => Place::Step(inside),
            None if self.0.polling_thread.load(Ordering::Relaxed) == this_thread() => Place::Workflow,
            None => Place::Elsewhere,
        }
    }

    /// A number that is random across executions and the same in every replay of this one. Inside a step it is of the step's own sequence, which
    /// every attempt begins anew: a replay does not run the closure, and the workflow's sequence must not depend on it.
    ///
    /// # Panics
    /// On a task or thread that is neither the workflow's nor of a step: what it draws would change what the workflow draws.
    pub fn random(&self) -> u64 {
        let Shared { address: Address { namespace, id }, run, .. } = &*self.0;
        let seed = match self.place() {
            Place::Step(inside) if !planted(Bug::ChanceInStepShifts) => {
                let nth = inside.random_count.fetch_add(1, Ordering::Relaxed) + 1;
                let (kind, path) = (inside.op.kind.word(), inside.op.path());
                // One part more than a workflow's seed has, and no part has a byte of zero.
                format!("{namespace}\u{0}{id}\u{0}{run}\u{0}{kind} {path}\u{0}{nth}")
            }
            Place::Step(_) | Place::Workflow => {
                let mut state = self.0.lock();
                state.random_count += 1;
                format!("{namespace}\u{0}{id}\u{0}{run}\u{0}{}", state.random_count)
            }
            Place::Elsewhere => panic!("{}", self.astray("random")),
        };
        Payload::from(seed.as_str()).hash()
    }

    /// Inside a step: a name for that step that is the same in every attempt and replay, and different from that of every
    /// other step. In the workflow's own code: a name for the run.
    ///
    /// # Panics
    /// On a task or thread that is neither the workflow's nor of a step: the name of another one would be worse than none.
    pub fn idempotency_key(&self) -> String {
        let home = run_key(&self.0.address, self.0.run);
        match self.place() {
            Place::Step(inside) => format!("{home}/{}", inside.op.path()),
            Place::Workflow => home,
            Place::Elsewhere if planted(Bug::KeyOffThread) => home,
            Place::Elsewhere => panic!("{}", self.astray("idempotency_key")),
        }
    }

    fn astray(&self, what: &str) -> String {
        let id = &self.0.address.id;
        format!(
            "ctx.{what}() is called on another task or thread than the code of {id:?}, where its step is not known; \
             call it inside the closure, and move what it returns there"
        )
    }

    /// Where the caller is, if that is no place for a durable operation; and the step whose closure it is in.
    pub(super) fn misplaced(&self) -> Option<(String, Option<Arc<Inside>>)> {
        match self.place() {
            Place::Step(inside) => Some((format!("inside {}", inside.op), Some(inside))),
            Place::Workflow => None,
            Place::Elsewhere => Some(("outside of its workflow's own code".to_owned(), None)),
        }
    }
}

impl Inside {
    /// The step.
    pub(super) fn op(&self) -> &Op {
        &self.op
    }
}
