//! Orders and time, which reach a run from outside.

use super::*;
use crate::board::timed_out;

impl Runner {
    /// Applies an order or a passed deadline, either of which may end the run or change its phase.
    /// Returns `true` if something changed.
    pub(super) fn obey(&mut self) -> bool {
        let has_begun = self.run.stage.active().is_some();
        // An unblocked run begins anew, and must not meet closures that still run.
        let is_waiting = self.run.stage.is_halted() && self.running_count() > 0;
        let obeyed = if is_waiting { self.seat.obey_but_unblock() } else { self.seat.obey(has_begun) };
        let Some(entry) = obeyed.or_else(|| self.seat.expire(has_begun)) else {
            return false;
        };
        if let Some(entry) = entry {
            self.run.follow(&entry);
            match entry.event {
                // Entries that were recorded earlier are delivered earlier.
                Event::CancelRequested { .. } | Event::DeadlinePassed { .. } => {
                    let is_first = planted(Bug::ResultHiddenByCancel);
                    match is_first {
                        true => self.run.undelivered.push_front(entry),
                        false => self.run.undelivered.push_back(entry),
                    }
                }
                event if event.is_terminal() => self.end(event),
                // The run begins anew from its journal as it then is: this runner may have
                // delivered a part of it to code that is gone.
                Event::Unblocked { .. } => self.send(Hold::Yield, Some(End::Released)),
                _ => {}
            }
        }
        true
    }

    /// Lets the code see that it is to wind down.
    pub(super) fn interrupt(&mut self, interrupt: Interrupt, at: Timestamp) -> bool {
        let Run { stage, cursor, .. } = &mut self.run;
        let Some(active) = stage.active_mut() else { return false };
        active.interrupt(cursor, (interrupt, at));
        true
    }

    /// Ends the first attempt that takes too long. Returns `true` if something changed.
    pub(super) fn fire_timeouts(&mut self) -> bool {
        let Some(active) = self.run.stage.active_mut() else { return false };
        let Some(Reverse((at, id, attempt))) = active.timeouts.peek().copied() else { return false };
        if at > self.seat.engine.runtime.moment() {
            return false;
        }
        // However short its timeout is, a closure is polled once before the timeout ends it.
        let is_about_to_start = {
            let state = active.board.0.lock();
            state.slots.get(&id).is_some_and(|slot| matches!(slot.state, OpState::Go { .. }))
        };
        if is_about_to_start && !planted(Bug::EarlyTimeoutLost) {
            return false;
        }
        active.timeouts.pop();
        end_attempt(active, id, attempt);
        // The closure is dropped before its end is recorded: its job may still wait for a thread.
        if !planted(Bug::JobOutlivesTimeout) {
            self.poll_code();
        }
        true
    }

    /// Returns the operation in a slot while it waits, and its index.
    pub(super) fn open_with_index(&self, id: u64) -> Option<(Op, OpIndex)> {
        self.run.stage.active()?.open_with_index(id)
    }

    /// Sends decided orders to the children. Only a runner that has passed the whole journal knows
    /// all of them.
    pub(super) fn tell_children(&mut self) {
        let Run { children, given_up, stage, .. } = &self.run;
        if self.seat.has_tree_orders() && stage.is_live() && !given_up.is_more {
            let mut children: Vec<_> = children.iter().collect();
            // A hash table promises no order, and a simulation is to be the same each time.
            children.sort_unstable_by_key(|(key, _)| **key);
            let children = children.into_iter().map(|(_, child)| child);
            self.seat.tell(&children.chain(given_up.known.values()).collect::<Vec<_>>());
        }
    }
}

fn end_attempt(active: &Active, id: u64, attempt: u32) {
    let shared = active.board.0.clone();
    {
        let mut guard = shared.lock();
        let state = &mut *guard;
        let Some(slot) = state.slots.get_mut(&id) else { return };
        let Request::Step(options) = &slot.request else { return };
        if !matches!(slot.state, OpState::Running { attempt: running } if running == attempt) {
            return;
        }
        let failure = timed_out(options.timeout.unwrap_or_default());
        slot.state = OpState::Done { attempt, outcome: Outcome::Failure(failure) };
        state.running_count -= 1;
        shared.add_finished(state, id);
    }
    // Polled once more, the step drops its closure.
    shared.wake_slot(id);
}
