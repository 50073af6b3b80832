//! How far a run is in memory, and what it has there.

use super::*;
use crate::board::{Site, Slot};

/// How far a run is. Each stage has only what it needs.
pub(super) enum Stage {
    /// Its code is not in memory: it has not been called, or the run is over.
    Absent,
    /// What was recorded is delivered.
    Replaying(Active),
    /// New things are done.
    Live(Active),
    /// A transaction of this operation is being committed. Closures go on, and nothing is numbered until its entry has its number.
    Transacting(Active, OpIndex),
    /// Its code goes no further here, because something is in the way. Closures that run end and are recorded, and then it leaves memory.
    Halted(Active),
}

impl Stage {
    pub(super) fn active(&self) -> Option<&Active> {
        match self {
            Self::Absent => None,
            Self::Replaying(active)
            | Self::Live(active)
            | Self::Transacting(active, _)
            | Self::Halted(active) => Some(active),
        }
    }

    pub(super) fn active_mut(&mut self) -> Option<&mut Active> {
        match self {
            Self::Absent => None,
            Self::Replaying(active)
            | Self::Live(active)
            | Self::Transacting(active, _)
            | Self::Halted(active) => Some(active),
        }
    }

    pub(super) fn take(&mut self) -> Option<Active> {
        match std::mem::replace(self, Self::Absent) {
            Self::Absent => None,
            Self::Replaying(active)
            | Self::Live(active)
            | Self::Transacting(active, _)
            | Self::Halted(active) => Some(active),
        }
    }

    pub(super) fn is_live(&self) -> bool {
        matches!(self, Self::Live(_))
    }

    /// What was recorded has been delivered, or the transaction is over.
    pub(super) fn go_live(&mut self) {
        if let Some(active) = self.take() {
            *self = Self::Live(active);
        }
    }

    pub(super) fn is_halted(&self) -> bool {
        matches!(self, Self::Halted(_))
    }

    /// Something is in the way: what runs may end.
    pub(super) fn halt(&mut self) {
        if let Some(active) = self.take() {
            active.hold_back();
            *self = Self::Halted(active);
        }
    }

    pub(super) fn transact(&mut self, op: OpIndex) {
        if let Some(active) = self.take() {
            *self = Self::Transacting(active, op);
        }
    }
}

/// The code of a run in memory, and what it waits for.
pub(super) struct Active {
    pub(super) board: Board,
    /// Nothing when it has returned.
    pub(super) future: Option<CodeFuture>,
    pub(super) waker: Waker,
    /// What it returned.
    pub(super) result: Option<Result<Payload, Failure>>,
    /// Open operations.
    pub(super) slots: HashMap<OpIndex, u64, KeyHasher>,
    /// Opened operations that the journal knows nothing of, to be started.
    pub(super) unsettled: VecDeque<u64>,
    /// Those of them that start children.
    pub(super) unstarted: VecDeque<u64>,
    /// Closures that may start as soon as everything before them is durable.
    pub(super) startable: VecDeque<u64>,
    pub(super) timers: BinaryHeap<Reverse<Timer>>,
    /// The last look at the inbox on behalf of timers that are due.
    pub(super) look: Option<Look>,
    /// A timer is due that waits for mail: whatever it waits for wakes the runner.
    pub(super) is_held_back: bool,
    /// When attempts take too long: the slot and the number of the attempt.
    pub(super) timeouts: BinaryHeap<Reverse<(Moment, u64, u32)>>,
    pub(super) signal_waiters: BTreeMap<Name, VecDeque<u64>>,
    /// The last slot that was opened before everything recorded was delivered.
    pub(super) replayed_to: Option<u64>,
    /// Of what is suspected, the closures that were open when the last holder died, as far as they may have run: the slot, and how many attempts have
    /// failed.
    unproven: Vec<(u64, u32)>,
    /// Results of children that the code gave up waiting for.
    pub(super) given_up: Vec<(Op, ExecutionId)>,
}

/// A timer of a slot. The first that is due is the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Timer {
    pub(super) due_at: Timestamp,
    pub(super) id: u64,
    pub(super) kind: TimerKind,
    /// The number of the newest message that was there when it was set; 0 for a timer that does not
    /// count from then on, and for one whose setting nobody here remembers.
    pub(super) known: u64,
}

impl Timer {
    pub(super) fn of_retry(id: u64, due_at: Timestamp) -> Self {
        Self { due_at, id, kind: TimerKind::Retry, known: 0 }
    }
}

/// A look at the inbox: all mail is known that was there when these timers were due.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    due_to: Timestamp,
    /// The newest slot of that moment.
    last_id: u64,
}

impl Look {
    pub(super) fn new(now: Timestamp, active: &Active) -> Self {
        let last_id = active.timers.iter().map(|Reverse(timer)| timer.id).max().unwrap_or_default();
        Self { due_to: now, last_id }
    }

    /// Whether this timer was set and due when the look began.
    pub(super) fn covers(self, timer: Timer) -> bool {
        timer.id <= self.last_id && timer.due_at <= self.due_to
    }
}

/// What a timer of a slot means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TimerKind {
    /// The next attempt of a step may start.
    Retry,
    /// A sleep is over, or the patience for a signal.
    Due,
}

impl Active {
    pub(super) fn new(board: Board, called: Result<CodeFuture, Failure>) -> Self {
        let waker = board.0.root_waker();
        let (future, result) = match called {
            Ok(future) => (Some(future), None),
            Err(failure) => (None, Some(Err(failure))),
        };
        Self {
            board,
            future,
            waker,
            result,
            slots: HashMap::default(),
            unsettled: VecDeque::new(),
            unstarted: VecDeque::new(),
            startable: VecDeque::new(),
            timers: BinaryHeap::new(),
            look: None,
            is_held_back: false,
            timeouts: BinaryHeap::new(),
            signal_waiters: BTreeMap::new(),
            replayed_to: None,
            unproven: Vec::new(),
            given_up: Vec::new(),
        }
    }

    /// A closure is to begin that may have run before: a replay knows which were open, because everything before them was recorded.
    pub(super) fn doubt(&mut self, id: u64, attempt_count: u32) {
        if self.replayed_to.is_some_and(|last| id <= last) {
            self.unproven.push((id, attempt_count));
        }
    }

    /// Whether a closure that was open when the last holder died is open again, apart from this operation.
    pub(super) fn has_unproven(&mut self, apart_from: Option<OpIndex>) -> bool {
        let state = self.board.0.lock();
        self.unproven.retain(|(id, attempt_count)| {
            let slot = state.slots.get(id).filter(|slot| slot.attempt_count == *attempt_count);
            slot.is_some_and(|slot| !matches!(slot.state, SlotState::Delivered(_) | SlotState::Interrupted))
        });
        let is_other = |(id, _): &(u64, u32)| {
            apart_from.is_none_or(|key| state.slots.get(id).is_some_and(|slot| slot.op.index() != key))
        };
        self.unproven.iter().any(is_other)
    }

    /// The operation in a slot, while it waits.
    pub(super) fn open_op(&self, id: u64) -> Option<Op> {
        let state = self.board.0.lock();
        let slot = state.slots.get(&id)?;
        matches!(slot.state, SlotState::Waiting).then(|| slot.op.clone())
    }

    /// The operation in a slot, under each of its names.
    pub(super) fn names(&self, id: u64) -> Vec<Op> {
        let state = self.board.0.lock();
        let names = |slot: &Slot| [&slot.op].into_iter().chain(&slot.others).cloned().collect();
        state.slots.get(&id).map(|slot| names(slot)).unwrap_or_default()
    }

    /// Lets a receipt stand in line for signals, of each of its names.
    pub(super) fn wait_for_signal(&mut self, id: u64) {
        for op in self.names(id) {
            self.signal_waiters.entry(op.name).or_default().push_back(id);
        }
    }

    /// Takes a receipt out of every line.
    pub(super) fn leave_lines(&mut self, id: u64) {
        for op in self.names(id) {
            forget_waiter(&mut self.signal_waiters, &op.name, |waiter| waiter == id);
        }
    }

    /// Where the code asked for an open operation.
    pub(super) fn site(&self, op: &Op) -> Option<Site> {
        let id = self.slots.get(&op.index())?;
        self.board.0.lock().slots.get(id).map(|slot| slot.site)
    }

    /// Why nobody can go on from what the code did, if that is so.
    pub(super) fn fault(&self, workflow: &str) -> Option<Block> {
        let shared = &self.board.0;
        let state = shared.lock();
        let waits_for_nothing = state.slots.is_empty() && !state.wants_next() && !shared.is_to_be_polled();
        let is_foreign = self.future.is_some() && waits_for_nothing;
        let foreign = || Block::ForeignAwait { workflow: workflow.to_owned() };
        state.block.clone().or_else(|| is_foreign.then(foreign))
    }

    /// Lets no closure begin that was to be polled for the first time next.
    fn hold_back(&self) {
        for slot in self.board.0.lock().slots.values_mut() {
            if let SlotState::Go { .. } = slot.state {
                slot.state = SlotState::Waiting;
            }
        }
    }

    /// How many closures run.
    pub(super) fn running_count(&self) -> usize {
        self.board.0.lock().running_count
    }

    /// Announces to the cursor what the code opened and what it gave up.
    pub(super) fn take_in(&mut self, cursor: &mut Cursor) {
        let mut state = self.board.0.lock();
        let State { opened, slots, .. } = &mut *state;
        for id in opened.drain(..) {
            let Some(slot) = slots.get(&id) else { continue };
            let key = slot.op.index();
            self.slots.insert(key, id);
            match slot.others.is_empty() {
                true => cursor.open(key),
                false => cursor.open_renamed(key, &slot.others.iter().map(Op::index).collect::<Vec<_>>()),
            }
            match slot.request {
                Request::Child { .. } => self.unstarted.push_back(id),
                _ => self.unsettled.push_back(id),
            }
        }
        for slot in std::mem::take(&mut state.dropped) {
            let key = slot.op.index();
            let id = self.slots.remove(&key);
            cursor.close(key);
            if let Request::Signal { .. } = slot.request {
                for op in std::iter::once(&slot.op).chain(&slot.others) {
                    forget_waiter(&mut self.signal_waiters, &op.name, |waiter| Some(waiter) == id);
                }
            }
            if let Request::ChildResult { child } = slot.request {
                self.given_up.push((slot.op, child));
            }
        }
    }

    /// Knows an open operation by the old name that the journal has for it: what is recorded of it from now on belongs to what was.
    pub(super) fn adopt(&mut self, own: OpIndex, old: OpIndex) {
        let Some(id) = self.slots.remove(&own) else { return };
        self.slots.insert(old, id);
        let mut state = self.board.0.lock();
        let Some(slot) = state.slots.get_mut(&id) else { return };
        if let Some(other) = slot.others.iter_mut().find(|other| other.index() == old) {
            std::mem::swap(&mut slot.op, other);
        }
    }

    /// Lets the code see that it is to wind down: every open operation that is not shielded ends with that.
    pub(super) fn interrupt(&mut self, cursor: &mut Cursor, (interrupt, at): (Interrupt, Timestamp)) {
        let shared = self.board.0.clone();
        let (ids, next) = {
            let mut guard = shared.lock();
            let state = &mut *guard;
            state.interrupt = Some(interrupt);
            state.now = at;
            let mut ids = Vec::new();
            for (id, slot) in &mut state.slots {
                if slot.shielded || matches!(slot.state, SlotState::Delivered(_)) {
                    continue;
                }
                if matches!(slot.state, SlotState::Running { .. }) {
                    state.running_count -= 1;
                }
                slot.state = SlotState::Interrupted;
                ids.push(*id);
                let key = slot.op.index();
                self.slots.remove(&key);
                cursor.close(key);
            }
            state.finished.retain(|id| !ids.contains(id));
            // They are woken in the order in which they were opened, which every replay repeats; a hash table's own order is nobody's promise.
            ids.sort_unstable();
            (ids, state.refuse_next())
        };
        self.startable.retain(|id| !ids.contains(id));
        self.unsettled.retain(|id| !ids.contains(id));
        self.unstarted.retain(|id| !ids.contains(id));
        self.signal_waiters.retain(|_, waiters| {
            waiters.retain(|id| !ids.contains(id));
            !waiters.is_empty()
        });
        shared.as_polling(|| next.into_iter().for_each(Waker::wake));
        ids.iter().for_each(|id| shared.wake_slot(*id));
    }

    /// Drops the code without treating that as its own doing.
    pub(super) fn evict(self) {
        self.board.0.lock().evicting = true;
        // User code runs in destructors too, and may panic there.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(self.future)));
        // A slot's waker leads back to the board: left there, neither would ever be freed. An operation that somebody kept elsewhere is told.
        let shared = &self.board.0;
        let slots = std::mem::take(&mut shared.lock().slots);
        let wakers = slots.into_values().filter_map(|slot| slot.waker);
        shared.as_polling(|| wakers.for_each(Waker::wake));
    }
}

/// Forgets who waits for a signal no longer. A name for which nobody waits is forgotten too.
fn forget_waiter(waiters: &mut BTreeMap<Name, VecDeque<u64>>, name: &Name, is_gone: impl Fn(u64) -> bool) {
    let Some(of_name) = waiters.get_mut(name) else { return };
    of_name.retain(|waiter| !is_gone(*waiter));
    if of_name.is_empty() {
        waiters.remove(name);
    }
}
