//! Decides what happened first, among everything that the open operations of the code wait for.
//!
//! Timers, by their due times, and messages, in the store's order, are merged as [`Arrived`] says.
//! The runner has to know two things before it delivers anything.
//!
//! *Which operations are open*: every operation that the code asked for in its last poll is settled
//! first.
//!
//! *Which messages exist*: no message that goes before a firing timer may be unknown. The known
//! messages are always the first of the unread ones, so one known message behind the timer
//! suffices: every unknown one comes behind that message. Without such a message the runner asks
//! the store once, after the timer was due, because notices may be late or lost. One look serves
//! all timers that were set and due when it began, so a late timer costs one read, and each look is
//! followed by an outcome. Where no open operation waits for a message, the runner does not look.
//!
//! Due times come from the clock of the worker that set the timer, arrivals from the clock of the
//! store. Where the two clocks differ, the meaning of "first" differs by as much. A timer never
//! fires before it is due by the clock of the worker that fires it, whatever time a message
//! carries.

use super::*;
use abide_core::Arrived;

/// The first message that an open operation waits for.
struct First {
    /// Its number in the store's order.
    number: u64,
    arrived_at: Timestamp,
    found: Found,
}

enum Found {
    /// A signal of this name.
    Signal(Name),
    /// The answer of a child, by its number in the store's order.
    Answer(u64),
}

impl First {
    fn goes_before(&self, timer: Timer) -> bool {
        if planted(Bug::TimerBeforeMessage) || planted(Bug::MessageBeforeTimer) {
            return planted(Bug::MessageBeforeTimer);
        }
        let arrived = Arrived { at: self.arrived_at, was_there: self.number <= timer.known };
        arrived.goes_before(timer.due_at)
    }
}

impl Runner {
    /// Lets the code see the first thing that happened. Returns `true` if there may be more.
    pub(super) fn take_outcome(&mut self) -> bool {
        let (timer, first) = (self.due_timer(), self.first_message());
        let is_fired = match (timer, first) {
            (None, None) => false,
            (Some(timer), None) => self.may_fire(timer) && self.fire(timer),
            (Some(timer), Some(first)) if !first.goes_before(timer) => self.fire(timer),
            (_, Some(first)) => self.receive(first.found),
        };
        if let Some(active) = self.run.stage.active_mut() {
            active.is_held_back = timer.is_some() && !is_fired;
        }
        is_fired
    }

    /// Returns the first timer that is due and whose operation is open. Steps whose next attempt is
    /// due may start.
    fn due_timer(&mut self) -> Option<Timer> {
        let active = self.run.stage.active_mut()?;
        // The clock is read only when a timer could be due, because every turn comes through here.
        active.timers.peek()?;
        let now = self.seat.now();
        while let Some(Reverse(timer)) = active.timers.peek().copied() {
            if timer.due_at > now {
                // A look that was not used before the clock was set back is too old when the timer
                // is due again.
                active.look = active.look.filter(|_| planted(Bug::StaleLookKept));
                return None;
            }
            match timer.kind {
                TimerKind::Due if active.is_open(timer.id) => return Some(timer),
                TimerKind::Due => {}
                TimerKind::Retry => active.startable.push_back(timer.id),
            }
            active.timers.pop();
        }
        None
    }

    /// Returns the first message in the store's order that an open operation waits for.
    fn first_message(&self) -> Option<First> {
        let active = self.run.stage.active()?;
        let signals = active.signal_waiters.iter().filter_map(|(name, waiters)| {
            waiters.front()?;
            Some((name, self.signals.get(name)?.front()?))
        });
        let is_by_name = planted(Bug::SignalsByName);
        let signal = signals.min_by_key(|(_, signal)| if is_by_name { 0 } else { signal.number });
        let waits = &active.result_waits;
        let answer = self.run.answers.first(waits.iter().copied(), |key| waits.contains(key));
        let goes_first = |signal: &Signal, number| signal.number <= number && !planted(Bug::AnswersFirst);
        match (signal, answer) {
            (Some((name, signal)), answer)
                if is_by_name || answer.is_none_or(|(number, _)| goes_first(signal, number)) =>
            {
                let (number, arrived_at) = (signal.number, signal.arrived_at);
                Some(First { number, arrived_at, found: Found::Signal(name.clone()) })
            }
            (_, answer) => answer.map(|(number, letter)| {
                let arrived_at = letter.message.arrived_at;
                First { number, arrived_at, found: Found::Answer(number) }
            }),
        }
    }

    /// Whether no message that goes before this timer can be unknown.
    fn may_fire(&mut self, timer: Timer) -> bool {
        if !self.waits_for_message() || planted(Bug::TimerWithoutLook) {
            return true;
        }
        let now = self.seat.now();
        let Some(active) = self.run.stage.active_mut() else { return false };
        if active.look.is_some_and(|look| look.covers(timer)) {
            return self.seat.has_looked();
        }
        active.look = Some(Look::new(now, active));
        self.seat.look();
        false
    }

    /// Whether an open operation waits for a signal or the answer of a child.
    fn waits_for_message(&self) -> bool {
        let Some(active) = self.run.stage.active() else { return false };
        let is_looked_for = !planted(Bug::ChildrenWithoutLook);
        let is_child_open = |key: &OpIndex| is_looked_for && self.run.children.contains_key(key);
        !active.signal_waiters.is_empty() || active.result_waits.iter().any(is_child_open)
    }

    /// Ends a sleep that is over, or a wait for a signal that did not come in time.
    fn fire(&mut self, Timer { id, .. }: Timer) -> bool {
        let Some(active) = self.run.stage.active_mut() else { return false };
        active.timers.pop();
        let Some(op) = active.open_op(id) else { return true };
        active.leave_lines(id);
        let site = active.site_of(id);
        if let Ok(entry) = self.decide_from(site, Command::FireTimer { op }) {
            self.deliver_new(entry);
        }
        true
    }

    /// Delivers a message to the operation that waits for it. Returns `false` while its payload is
    /// on its way.
    fn receive(&mut self, found: Found) -> bool {
        match found {
            Found::Signal(name) => self.receive_signal(&name),
            Found::Answer(number) => self.receive_answer(number),
        }
    }

    fn receive_answer(&mut self, number: u64) -> bool {
        let Some(Letter { message, left, .. }) = self.run.answers.get(number) else { return false };
        let fetched = match left {
            None => None,
            Some(left) => {
                let (id, left) = (message.id.clone(), *left);
                match self.seat.fetch(&id, left) {
                    Some(message) => Some(message),
                    None => return false,
                }
            }
        };
        let Some((key, letter)) = self.run.answers.remove(number) else { return false };
        let Message { id, body: Body::ChildDone { op, outcome, .. }, .. } = fetched.unwrap_or(letter.message)
        else {
            return false;
        };
        self.seat.consume(id);
        let slot = self.run.stage.active().and_then(|active| active.slots.get(&key).copied());
        let site = slot.and_then(|id| self.site_of(id));
        if let Ok(Some(entry)) = self.decide_from(site, Command::FinishChild { op, outcome })
            && let Some(op) = entry.event.op()
        {
            self.deliver_to((op, key), &entry, None);
        }
        true
    }
}
