//! The stage that a run has reached in memory, and its state there.

use super::*;
use crate::board::Site;

/// The stage of a run, with the code and its open operations, which stay where they are from one
/// stage to the next: they are large.
#[derive(Default)]
pub(super) struct Stage {
    /// `None`: the code is not in memory. It has not been called, or the run is over.
    active: Option<Active>,
    at: At,
}

/// The stage of code in memory.
#[derive(Clone, Copy, Default)]
enum At {
    /// Recorded entries are delivered.
    #[default]
    Replaying,
    /// New entries are recorded.
    Live,
    /// A transaction of this operation is being committed. Closures go on, and no entry is numbered
    /// until the transaction's entry has its number.
    Transacting(OpIndex),
    /// The code goes no further here, because something is in the way. Running closures end and are
    /// recorded, and then the run leaves memory.
    Halted,
}

impl Stage {
    pub(super) fn active(&self) -> Option<&Active> {
        self.active.as_ref()
    }

    pub(super) fn active_mut(&mut self) -> Option<&mut Active> {
        self.active.as_mut()
    }

    /// Begins the replay of code that was just called.
    pub(super) fn replay(&mut self, active: Active) {
        (self.active, self.at) = (Some(active), At::Replaying);
    }

    /// Drops the code without treating the drop as the code's own act.
    pub(super) fn evict(&mut self) {
        if let Some(active) = &mut self.active {
            active.evict();
            self.active = None;
        }
    }

    pub(super) fn is_absent(&self) -> bool {
        self.active.is_none()
    }

    pub(super) fn is_replaying(&self) -> bool {
        matches!((&self.active, self.at), (Some(_), At::Replaying))
    }

    pub(super) fn is_live(&self) -> bool {
        matches!((&self.active, self.at), (Some(_), At::Live))
    }

    /// Goes live: all recorded entries have been delivered, or the transaction is over.
    pub(super) fn go_live(&mut self) {
        self.at = At::Live;
    }

    pub(super) fn is_halted(&self) -> bool {
        matches!((&self.active, self.at), (Some(_), At::Halted))
    }

    /// Halts the code, because something is in the way. Running closures may end.
    pub(super) fn halt(&mut self) {
        if let Some(active) = &self.active {
            active.hold_back();
            self.at = At::Halted;
        }
    }

    /// Returns the operation whose transaction is being committed, with the code.
    pub(super) fn transacting(&self) -> Option<(&Active, OpIndex)> {
        match (&self.active, self.at) {
            (Some(active), At::Transacting(op)) => Some((active, op)),
            _ => None,
        }
    }

    pub(super) fn transact(&mut self, op: OpIndex) {
        self.at = At::Transacting(op);
    }
}

/// The code of a run in memory, and its open operations.
pub(super) struct Active {
    pub(super) board: Board,
    /// `None` when the code has returned.
    pub(super) future: Option<CodeFuture>,
    pub(super) waker: RootWaker,
    /// The result that the code returned.
    pub(super) result: Option<Result<Payload, Failure>>,
    /// Open operations.
    pub(super) slots: Few<OpIndex, u64>,
    /// Those of them that wait for the result of a child.
    pub(super) result_waits: HashSet<OpIndex, KeyHasher>,
    /// Open operations that the journal does not have, to be started.
    pub(super) unsettled: Line<u64>,
    /// The same for operations that start children.
    pub(super) unstarted: Line<u64>,
    /// Closures that may start as soon as everything before them is durable.
    pub(super) startable: Line<u64>,
    pub(super) timers: BinaryHeap<Reverse<Timer>>,
    /// The last look at the inbox on behalf of timers that are due.
    pub(super) look: Option<Look>,
    /// Whether a due timer waits for mail. The mail wakes the runner.
    pub(super) is_held_back: bool,
    /// The moments at which attempts time out, each with the slot and the number of the attempt.
    pub(super) timeouts: BinaryHeap<Reverse<(Moment, u64, u32)>>,
    pub(super) signal_waiters: BTreeMap<Name, VecDeque<u64>>,
    /// The last slot that was opened before all recorded entries were delivered.
    pub(super) replayed_to: Option<u64>,
    /// The closures of a suspect that were open when its last holder died and may have run: the
    /// slot, and the number of failed attempts.
    unproven: Vec<(u64, u32)>,
    /// Waits for results of children that the code gave up, and where it asked for them.
    pub(super) given_up: Vec<(Op, ExecutionId, Site)>,
}

/// A timer of a slot. The timer that is due first is the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Timer {
    pub(super) due_at: Timestamp,
    pub(super) id: u64,
    pub(super) kind: TimerKind,
    /// The number of the newest message that had arrived when the timer was set; 0 for a timer that
    /// does not count from then on, and for one whose setting nobody here remembers.
    pub(super) known: u64,
}

impl Timer {
    pub(super) fn of_retry(id: u64, due_at: Timestamp) -> Self {
        Self { due_at, id, kind: TimerKind::Retry, known: 0 }
    }
}

/// A look at the inbox, after which all mail is known that had arrived when these timers were due.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    due_to: Timestamp,
    /// The newest slot at that moment.
    last_id: u64,
}

impl Look {
    pub(super) fn new(now: Timestamp, active: &Active) -> Self {
        let last_id = active.timers.iter().map(|Reverse(timer)| timer.id).max().unwrap_or_default();
        Self { due_to: now, last_id }
    }

    /// Whether this timer was set and due when the look began.
    pub(super) fn covers(self, timer: Timer) -> bool {
        let was_set = timer.id <= self.last_id || planted(Bug::LookCoversLater);
        was_set && timer.due_at <= self.due_to
    }
}

/// The meaning of a slot's timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TimerKind {
    /// The next attempt of a step may start.
    Retry,
    /// A sleep is over, or the timeout of a signal.
    Due,
}

impl Active {
    pub(super) fn new(board: Board, called: Result<CodeFuture, Failure>) -> Self {
        let waker = RootWaker::new(&board.0);
        let (future, result) = match called {
            Ok(future) => (Some(future), None),
            Err(failure) => (None, Some(Err(failure))),
        };
        Self {
            board,
            future,
            waker,
            result,
            slots: Few::default(),
            result_waits: HashSet::default(),
            unsettled: Line::default(),
            unstarted: Line::default(),
            startable: Line::default(),
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

    /// Notes that a closure is to begin which may have run before. A replay knows which closures
    /// were open, because everything before them was recorded.
    pub(super) fn doubt(&mut self, id: u64, attempt_count: u32) {
        if self.replayed_to.is_some_and(|last| id <= last) {
            self.unproven.push((id, attempt_count));
        }
    }

    /// Whether a closure that was open when the last holder died is open again, not counting this
    /// operation's.
    pub(super) fn has_unproven(&mut self, apart_from: Option<OpIndex>) -> bool {
        let state = self.board.0.lock();
        self.unproven.retain(|(id, attempt_count)| {
            let slot = state.slots.get(id).filter(|slot| slot.attempt_count == *attempt_count);
            slot.is_some_and(|slot| !matches!(slot.state, OpState::Delivered(_) | OpState::Interrupted))
        });
        let is_other = |(id, _): &(u64, u32)| {
            apart_from.is_none_or(|key| state.slots.get(id).is_some_and(|slot| slot.key != key))
        };
        self.unproven.iter().any(is_other)
    }

    /// Returns the operation in a slot while it waits.
    pub(super) fn open_op(&self, id: u64) -> Option<Op> {
        self.open_with_index(id).map(|(op, _)| op)
    }

    /// Returns the operation in a slot while it waits, and its index.
    pub(super) fn open_with_index(&self, id: u64) -> Option<(Op, OpIndex)> {
        let state = self.board.0.lock();
        let slot = state.slots.get(&id)?;
        matches!(slot.state, OpState::Waiting).then(|| (slot.op.clone(), slot.key))
    }

    /// Whether the operation in a slot waits.
    pub(super) fn is_open(&self, id: u64) -> bool {
        let state = self.board.0.lock();
        state.slots.get(&id).is_some_and(|slot| matches!(slot.state, OpState::Waiting))
    }

    /// Checks that an operation is the one in this slot. Fails as [`OpenOp::know`] does.
    pub(super) fn know(&self, id: u64, op: &Op) -> Result<(), String> {
        let state = self.board.0.lock();
        state.slots.get(&id).map_or(Ok(()), |slot| slot.know(op))
    }

    /// Closes an open operation, and returns its slot.
    pub(super) fn close(&mut self, key: OpIndex) -> Option<u64> {
        if !self.result_waits.is_empty() {
            self.result_waits.remove(&key);
        }
        self.slots.remove(&key)
    }

    /// Returns the operation in a slot under each of its names.
    pub(super) fn names(&self, id: u64) -> Vec<Op> {
        let state = self.board.0.lock();
        state.slots.get(&id).map(|slot| slot.names().cloned().collect()).unwrap_or_default()
    }

    /// Puts a wait in line for signals, under each of its names.
    pub(super) fn wait_for_signal(&mut self, id: u64) {
        let state = self.board.0.lock();
        let Some(slot) = state.slots.get(&id) else { return };
        for op in slot.names() {
            self.signal_waiters.entry(op.name.clone()).or_default().push_back(id);
        }
    }

    /// Takes a wait out of every line.
    pub(super) fn leave_lines(&mut self, id: u64) {
        if self.signal_waiters.is_empty() {
            return;
        }
        let state = self.board.0.lock();
        let Some(slot) = state.slots.get(&id) else { return };
        for op in slot.names() {
            forget_waiter(&mut self.signal_waiters, &op.name, |waiter| waiter == id);
        }
    }

    /// Returns where the code asked for an open operation.
    pub(super) fn site(&self, op: &Op) -> Option<Site> {
        self.site_of(*self.slots.get(&op.index())?)
    }

    /// Returns where the code asked for the operation in a slot.
    pub(super) fn site_of(&self, id: u64) -> Option<Site> {
        self.board.0.lock().slots.get(&id).map(|slot| slot.site)
    }

    /// Returns why nobody can go on from the state of the code, if that is so.
    pub(super) fn fault(&self, workflow: &str) -> Option<Block> {
        let shared = &self.board.0;
        let state = shared.lock();
        let waits_for_nothing = state.slots.is_empty() && !state.wants_next() && !shared.is_to_be_polled();
        let is_foreign = self.future.is_some() && waits_for_nothing;
        state.block.clone().or_else(|| is_foreign.then(|| state.foreign_await(workflow)))
    }

    /// Holds back closures that were to be polled for the first time next.
    fn hold_back(&self) {
        for slot in self.board.0.lock().slots.values_mut() {
            if let OpState::Go { .. } = slot.state {
                slot.state = OpState::Waiting;
            }
        }
    }

    /// Returns the number of running closures.
    pub(super) fn running_count(&self) -> usize {
        self.board.0.lock().running_count
    }

    /// Announces to the cursor the operations that the code opened or gave up. Returns whether
    /// there may be a [fault](Self::fault): a glance, as long as the lock is held anyway.
    pub(super) fn take_in(&mut self, cursor: &mut Cursor) -> bool {
        let mut state = self.board.0.lock();
        let BoardState { opened, slots, block, .. } = &mut *state;
        while let Some(id) = opened.pop_front() {
            let Some(slot) = slots.get(&id) else { continue };
            let key = slot.key;
            let before = self.slots.insert(key, id).filter(|_| !planted(Bug::IndexIsIdentity));
            if let Some(before) = before.and_then(|before| slots.get(&before)) {
                let reason = format!(
                    "{} (at {}) and {} (at {}) cannot be told apart: their names have the same hash; \
                     give one of them another name or key",
                    before.op, before.site, slot.op, slot.site
                );
                block.get_or_insert(Block::Limit { reason });
            }
            match slot.others.is_empty() {
                true => cursor.open(key),
                false => cursor.open_renamed(key, &slot.others.iter().map(Op::index).collect::<Vec<_>>()),
            }
            match slot.request {
                Request::Child { .. } => self.unstarted.push_back(id),
                Request::ChildResult { .. } => {
                    self.result_waits.insert(key);
                    self.unsettled.push_back(id);
                }
                _ => self.unsettled.push_back(id),
            }
        }
        let dropped = std::mem::take(&mut state.dropped);
        let may_be_faulty = state.block.is_some() || state.slots.is_empty() || !dropped.is_empty();
        // Values of the code are dropped here, and their destructors may use the board.
        drop(state);
        for slot in dropped {
            let key = slot.key;
            let id = self.close(key);
            cursor.close(key);
            if let Request::Signal { .. } = slot.request {
                for op in slot.names() {
                    forget_waiter(&mut self.signal_waiters, &op.name, |waiter| Some(waiter) == id);
                }
            }
            if let Request::ChildResult { child } = slot.request {
                self.given_up.push((slot.op, child, slot.site));
            }
        }
        may_be_faulty
    }

    /// Adopts the old name that the journal has for an open operation: new entries of the operation
    /// then belong to its old ones.
    pub(super) fn adopt(&mut self, own: OpIndex, old: OpIndex) {
        let Some(id) = self.slots.remove(&own) else { return };
        self.slots.insert(old, id);
        let mut state = self.board.0.lock();
        let Some(slot) = state.slots.get_mut(&id) else { return };
        if let Some(other) = slot.others.iter_mut().find(|other| other.index() == old) {
            std::mem::swap(&mut slot.op, other);
            slot.key = old;
        }
    }

    /// Lets the code see that it is to wind down: every open operation that is not shielded ends
    /// with the interrupt.
    pub(super) fn interrupt(&mut self, cursor: &mut Cursor, (interrupt, at): (Interrupt, Timestamp)) {
        let shared = self.board.0.clone();
        let (ids, next) = {
            let mut guard = shared.lock();
            let state = &mut *guard;
            state.interrupt = Some(interrupt);
            state.now = at;
            let mut ids = Vec::new();
            for (id, slot) in state.slots.iter_mut() {
                if slot.shielded || matches!(slot.state, OpState::Delivered(_)) {
                    continue;
                }
                if matches!(slot.state, OpState::Running { .. }) {
                    state.running_count -= 1;
                }
                slot.state = OpState::Interrupted;
                ids.push(*id);
                let key = slot.key;
                self.result_waits.remove(&key);
                self.slots.remove(&key);
                cursor.close(key);
            }
            state.finished.retain(|id| !ids.contains(id));
            // They are woken in the order in which they were opened, which every replay repeats. A
            // hash table promises no order.
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

    /// Drops the code without treating the drop as the code's own act.
    fn evict(&mut self) {
        self.board.0.lock().evicting = true;
        let future = self.future.take();
        panics::drop_caught(future);
        // A slot's waker leads back to the board: left there, neither would ever be freed. Calling
        // it informs an operation that was kept elsewhere.
        let shared = &self.board.0;
        let mut state = shared.lock();
        if state.slots.is_empty() {
            return;
        }
        let mut slots = std::mem::take(&mut state.slots);
        drop(state);
        shared.as_polling(|| {
            slots.values_mut().filter_map(|slot| slot.waker.take()).for_each(Waker::wake);
        });
        panics::drop_caught(slots);
    }
}

/// Forgets waits for a signal that are gone. A name without waits is forgotten too.
fn forget_waiter(waiters: &mut BTreeMap<Name, VecDeque<u64>>, name: &Name, is_gone: impl Fn(u64) -> bool) {
    let Some(of_name) = waiters.get_mut(name) else { return };
    of_name.retain(|waiter| !is_gone(*waiter));
    if of_name.is_empty() {
        waiters.remove(name);
    }
}
