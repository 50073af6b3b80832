//! What reaches a run from outside: messages, orders and time.

use super::*;
use crate::board::timed_out;

impl Runner {
    /// Takes what the mailbox has.
    pub(super) fn take_mail(&mut self) {
        let (arrivals, order) = self.mailbox.take();
        self.order = self.order.max(order);
        self.inbox.arrive(arrivals);
    }

    /// Sorts one message. `true`: it changed something.
    pub(super) fn control(&mut self) -> bool {
        // What may end the run waits for the commit under way: the end is sent at once, and there is one commit at a time.
        if self.ledger.is_busy() && self.inbox.peek().is_some_and(|message| message.body.is_control()) {
            return false;
        }
        let Some(message) = self.inbox.next() else { return false };
        let command = message.control();
        let id = message.id.clone();
        match message.body {
            Body::Signal { name, payload } => {
                self.signals.entry(name).or_default().push_back((id, payload));
            }
            Body::ChildDone { run, ref op, .. } => {
                let key = op.key();
                let is_for_this_run = run == self.ledger.execution().run();
                if is_for_this_run && self.children.contains_key(&key) {
                    self.results.push_back((key, message));
                } else {
                    // Nobody waits for it any longer; left unread it would be looked at for ever.
                    self.ledger.consume(id);
                }
            }
            Body::Start(_) => self.ledger.consume(id),
            _ => {
                self.ledger.consume(id);
                if let Some(command) = command {
                    self.obey(command);
                }
            }
        }
        true
    }

    /// Applies control. A refusal is no fault: the phase changed since the message was accepted.
    fn obey(&mut self, command: Command) {
        match self.decide(command) {
            Err(refusal) => {
                let address = self.ledger.execution().address();
                tracing::debug!(%address, %refusal, "a control message came too late");
            }
            Ok(entries) => self.follow_control(&entries),
        }
    }

    fn follow_control(&mut self, entries: &[Entry]) {
        for entry in entries {
            match &entry.event {
                Event::CancelRequested { .. } if !self.is_replaying => drop(self.interrupt(entry.at)),
                event if event.is_terminal() => {
                    self.cancel_children();
                    self.evict();
                    self.send(Hold::Keep, Some(End::Finished(event.clone())));
                }
                // It begins anew, as its journal then is: this runner may have handed out a part of it to code that is gone.
                Event::Unblocked { .. } => {
                    self.send(Hold::Yield, Some(End::Released));
                }
                _ => {}
            }
        }
    }

    /// A cancellation that was recorded while the code did not run is seen when the replay is over.
    pub(super) fn interrupt_late(&mut self) {
        let is_seen = self.active.as_ref().is_none_or(|active| active.board.0.lock().cancelled);
        if let (false, Some(at)) = (is_seen, self.cancelled_at) {
            self.interrupt(at);
        }
    }

    /// Lets the code see a cancellation: every open operation that is not shielded ends with it.
    pub(super) fn interrupt(&mut self, at: Timestamp) -> bool {
        let Some(active) = &self.active else { return false };
        let shared = active.board.0.clone();
        let (ids, next) = {
            let mut guard = shared.lock();
            let state = &mut *guard;
            state.cancelled = true;
            state.now = at;
            let mut ids = Vec::new();
            for (id, slot) in &mut state.slots {
                if slot.shielded || matches!(slot.state, SlotState::Delivered(_)) {
                    continue;
                }
                if matches!(slot.state, SlotState::Running { .. }) {
                    state.running_count -= 1;
                }
                slot.state = SlotState::Cancelled;
                ids.push(*id);
                let key = slot.op.key();
                self.slots.remove(&key);
                self.cursor.close(key);
            }
            state.finished.retain(|id| !ids.contains(id));
            (ids, state.refuse_next())
        };
        self.startable.retain(|id| !ids.contains(id));
        self.unsettled.retain(|id| !ids.contains(id));
        self.undelivered.clear();
        shared.as_polling(|| next.into_iter().for_each(Waker::wake));
        ids.iter().for_each(|id| shared.wake_slot(*id));
        true
    }

    /// Fires what is due. `true`: something changed.
    pub(super) fn fire_timers(&mut self) -> bool {
        let Some(Reverse((at, id, kind))) = self.timers.peek().copied() else { return false };
        if at > self.ledger.now() || (kind == TimerKind::Deadline && self.ledger.is_busy()) {
            return false;
        }
        self.timers.pop();
        if kind == TimerKind::Due && !self.may_run() {
            self.held_timers.push((at, id, kind));
            return true;
        }
        match kind {
            TimerKind::Deadline => self.expire(),
            TimerKind::Retry => self.startable.push_back(id),
            TimerKind::Due => self.fire_due(id),
        }
        true
    }

    fn expire(&mut self) {
        if let Ok(entries) = self.decide(Command::ExpireDeadline) {
            self.follow_control(&entries);
        }
    }

    /// A sleep is over, or the patience for a signal, if the operation is still open.
    fn fire_due(&mut self, id: u64) {
        let Some(op) = self.open_op(id) else { return };
        if let Ok(entries) = self.decide(Command::FireTimer { op: op.clone() }) {
            if let Some(waiters) = self.signal_waiters.get_mut(&op.name) {
                waiters.retain(|waiter| *waiter != id);
            }
            self.deliver_later(entries);
        }
    }

    /// Ends the first attempt that takes too long. `true`: something changed.
    pub(super) fn fire_timeouts(&mut self) -> bool {
        let Some(Reverse((at, id, attempt))) = self.timeouts.peek().copied() else { return false };
        if at > self.engine.runtime.moment() {
            return false;
        }
        // However short its time is, a closure is polled once before it is over.
        if self.is_about_to_start(id) {
            return false;
        }
        self.timeouts.pop();
        self.end_attempt(id, attempt);
        true
    }

    fn is_about_to_start(&self, id: u64) -> bool {
        let Some(active) = &self.active else { return false };
        let state = active.board.0.lock();
        state.slots.get(&id).is_some_and(|slot| matches!(slot.state, SlotState::Go { .. }))
    }

    fn end_attempt(&mut self, id: u64, attempt: u32) {
        let Some(active) = &self.active else { return };
        let shared = active.board.0.clone();
        {
            let mut guard = shared.lock();
            let state = &mut *guard;
            let Some(slot) = state.slots.get_mut(&id) else { return };
            let Request::Step(options) = &slot.request else { return };
            if !matches!(slot.state, SlotState::Running { attempt: running } if running == attempt) {
                return;
            }
            let failure = timed_out(options.timeout.unwrap_or_default());
            slot.state = SlotState::Done { attempt, outcome: abide_core::Outcome::Failure(failure) };
            state.running_count -= 1;
            state.finished.push_back(id);
        }
        // Polled once more, the step drops its closure.
        shared.wake_slot(id);
    }

    /// The operation in a slot, while it waits.
    pub(super) fn open_op(&self, id: u64) -> Option<Op> {
        let state = self.active.as_ref()?.board.0.lock();
        let slot = state.slots.get(&id)?;
        matches!(slot.state, SlotState::Waiting).then(|| slot.op.clone())
    }
}
