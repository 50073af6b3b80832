//! The turns of an idle runner: commit, wait, leave memory.

use super::*;
use crate::alarm::ring;
use abide_core::{Summary, WaitSites, Waiting, Waits};
use smallvec::smallvec;

impl Runner {
    /// Takes the last turn: sends decided entries, ends a finished run, or waits.
    pub(super) fn rest(&mut self, cx: &mut Context<'_>) -> TurnResult {
        // This check precedes everything that sends a commit, the last one of the run included.
        if self.seat.is_busy() {
            return TurnResult::Idle;
        }
        let may_run = self.seat.may_run();
        if may_run && !self.run.stage.is_live() {
            // A page of the journal is on its way.
            return TurnResult::Idle;
        }
        if may_run && let Some(result) = self.take_result() {
            return self.finish(result, cx);
        }
        if may_run && let Some(next) = self.next_input() {
            return self.continue_as_new(next, cx);
        }
        let is_running = self.running_count() > 0;
        let order = self.seat.order();
        if order == Order::Leave || (order == Order::Drain && !is_running) {
            return self.release(Hold::Yield);
        }
        if !may_run && planted(Bug::AnswerLostWhilePaused) {
            self.take_mail();
        }
        if !may_run && !is_running {
            return self.park();
        }
        if self.seat.has_news() {
            return self.commit_news(cx, is_running);
        }
        self.wait(cx, is_running)
    }

    /// Takes one turn of a run that goes no further here: running closures end and are recorded,
    /// and then the run leaves memory.
    pub(super) fn wind_down(&mut self, cx: &mut Context<'_>) -> TurnResult {
        // Ended closures are recorded before an unblock lets others begin anew.
        if self.record_finished() || self.obey() {
            return TurnResult::Progress;
        }
        if self.fire_timeouts() {
            return TurnResult::Progress;
        }
        if self.seat.is_busy() {
            return if self.poll_code() { TurnResult::Progress } else { TurnResult::Idle };
        }
        let order = self.seat.order();
        if order == Order::Leave || self.running_count() == 0 {
            let is_free = order >= Order::Drain || self.seat.may_run();
            return if is_free { self.release(Hold::Yield) } else { self.park() };
        }
        if self.seat.has_news() {
            self.send(Hold::Keep, None);
            return TurnResult::Progress;
        }
        if self.poll_code() { TurnResult::Progress } else { self.wait(cx, true) }
    }

    fn take_result(&mut self) -> Option<Result<Payload, Failure>> {
        self.run.stage.active_mut()?.result.take()
    }

    /// Commits decided entries. A run that sleeps for long leaves memory with the same commit.
    fn commit_news(&mut self, cx: &mut Context<'_>, is_running: bool) -> TurnResult {
        if !is_running && self.has_nothing_to_start() && self.sleeps_long() && self.may_leave() {
            return self.park();
        }
        self.send(Hold::Keep, None);
        // Only its answer makes anything else possible, and everything else that comes wakes us.
        match self.seat.poll_commit(cx) {
            Poll::Ready(seated) => self.seated(seated),
            Poll::Pending => TurnResult::Idle,
        }
    }

    /// Waits for the next event. After a while the runner publishes the waits of the code, and
    /// after a longer while the run leaves memory.
    fn wait(&mut self, cx: &mut Context<'_>, is_running: bool) -> TurnResult {
        let now = self.seat.engine.runtime.moment();
        let idle_since = *self.idle_since.get_or_insert(now);
        let mut ring_at = self.next_timeout();
        if !is_running && self.has_nothing_to_start() {
            let is_in_the_way = self.seat.keeps_others_out() && !planted(Bug::IdleSuspectStays);
            let options = &self.seat.engine.options;
            let (publish_at, park_at) =
                (idle_since.after(options.announce_after), idle_since.after(options.park_after));
            let is_to_leave = self.sleeps_long() || park_at <= now;
            let patience_end = park_at.after(options.foreign_patience);
            let may_leave = is_to_leave && (patience_end <= now || self.may_leave());
            if may_leave || (is_in_the_way && self.stands_still()) {
                return self.park();
            }
            let is_published =
                self.run.announced.as_ref().is_some_and(|announced| *announced == self.waiting().0);
            if !is_published && publish_at <= now {
                self.send(Hold::Keep, None);
                return TurnResult::Progress;
            }
            let park_at = if is_to_leave { patience_end } else { park_at };
            let next = if is_published { park_at } else { publish_at };
            ring_at = Some(ring_at.map_or(next, |at| at.min(next)));
        }
        // A due timer that is held back for mail would ring again and again.
        let is_held_back = self.run.stage.active().is_some_and(|active| active.is_held_back);
        let wake_at = if is_held_back { self.seat.expires_at() } else { self.next_timer() };
        let runtime = self.seat.engine.runtime.clone();
        let sleep = |at: Moment| match planted(Bug::WaitOnWallClock) {
            true => runtime.sleep_until(runtime.now().after(at.since(now))),
            false => runtime.sleep(at.since(now)),
        };
        // A ring is not progress: the idle time goes on.
        ring(&mut self.alarm, wake_at, |at| runtime.sleep_until(at), cx);
        ring(&mut self.bell, ring_at, sleep, cx);
        TurnResult::Idle
    }

    /// Whether nothing is forgotten when the run leaves memory. A timer of another library would
    /// be: the run stays until it wakes the code, which is then blocked with a message that says
    /// so. A lock or channel between two branches of the code looks the same, and is harmless. So
    /// the run stays only for a while.
    fn may_leave(&mut self) -> bool {
        let Some(active) = self.run.stage.active_mut() else { return true };
        if !active.waker.is_held_elsewhere() || planted(Bug::ForeignForgotten) {
            return true;
        }
        // If it can be renewed, the next turn polls the code and comes here again.
        active.waker.renew();
        false
    }

    /// Whether only time can wake the code, and not soon.
    fn sleeps_long(&self) -> bool {
        let Some(active) = self.run.stage.active() else { return false };
        let only_timers = {
            let state = active.board.0.lock();
            state.slots.values().all(|slot| {
                let is_timer =
                    matches!(slot.request, Request::Sleep(_) | Request::SleepUntil(_) | Request::Step(_));
                is_timer && matches!(slot.state, OpState::Waiting)
            })
        };
        let soon = self.seat.now().after(self.seat.engine.options.park_after);
        only_timers && self.next_timer().is_some_and(|at| at > soon)
    }

    /// Whether the code waits only for times, signals or children. A suspect that has come so far
    /// has harmed nobody, and nobody has to wait for it any longer.
    fn stands_still(&self) -> bool {
        let Some(active) = self.run.stage.active() else { return false };
        let state = active.board.0.lock();
        let mut waits = state.slots.iter().map(|(id, slot)| active.wait_of(*id, slot));
        waits.all(|wait| wait.is_some_and(|wait| wait.is_still()))
    }

    fn park(&mut self) -> TurnResult {
        // An unread message that is not known here would wake the execution at once.
        if !self.seat.has_all_mail() {
            return TurnResult::Idle;
        }
        self.release(self.seat.parked())
    }

    pub(super) fn release(&mut self, hold: Hold) -> TurnResult {
        self.send(hold, Some(End::Released));
        TurnResult::Progress
    }

    pub(super) fn running_count(&self) -> usize {
        self.run.stage.active().map_or(0, Active::running_count)
    }

    /// Whether a closure waits for the outside world, if the runtime minds that.
    pub(super) fn waits_outside(&self) -> bool {
        let runtime = &*self.seat.engine.runtime;
        let waits = |active: &Active| active.running_count() > 0 && active.board.0.waits_outside(runtime);
        runtime.minds_outside() && self.run.stage.active().is_some_and(waits)
    }

    fn has_nothing_to_start(&self) -> bool {
        self.run.stage.active().is_none_or(|active| active.startable.is_empty())
    }

    /// Returns when the next timer of the code is due, or the deadline is to be applied. Due timers
    /// wait while the code goes no further.
    pub(super) fn next_timer(&self) -> Option<Timestamp> {
        let may_fire = self.seat.may_run() && !self.run.stage.is_halted();
        let active = self.run.stage.active().filter(|_| may_fire);
        let timer = active.and_then(|active| active.timers.peek().map(|Reverse(timer)| timer.due_at));
        [timer, self.seat.expires_at()].into_iter().flatten().min()
    }

    fn next_timeout(&self) -> Option<Moment> {
        self.run.stage.active()?.timeouts.peek().map(|Reverse((at, _, _))| *at)
    }

    /// Returns the waits of the code and their places, for people; a bounded excerpt.
    pub(super) fn waiting(&self) -> (Waits, WaitSites) {
        let Some(active) = self.run.stage.active() else { return (Waits::new(), None) };
        let state = active.board.0.lock();
        active.waits_of(state.slots.iter())
    }

    /// Returns the waits for a park, which records whether the execution [stands
    /// still](Summary::stands_still). Closures, which do not stand still, go first. Other commits
    /// do without this order: there may be many children to go through.
    pub(super) fn waiting_at_rest(&self) -> (Waits, WaitSites) {
        let Some(active) = self.run.stage.active() else { return (Waits::new(), None) };
        let state = active.board.0.lock();
        let has_closure =
            |slot: &crate::board::OpenOp| matches!(slot.request, Request::Step(_) | Request::Transaction(_));
        let restless = state.slots.iter().filter(|(_, slot)| has_closure(slot));
        let still = state.slots.iter().filter(|(_, slot)| !has_closure(slot));
        active.waits_of(restless.chain(still))
    }
}

impl Active {
    /// Returns the first waits in these slots, and where the code asked for them.
    fn waits_of<'a>(
        &self,
        slots: impl Iterator<Item = (&'a u64, &'a crate::board::OpenOp)>,
    ) -> (Waits, WaitSites) {
        let waits = slots.filter_map(|(id, slot)| Some((self.wait_of(*id, slot)?, Some(slot.site.text()))));
        let mut waits = waits.take(Summary::WAITING_COUNT_MAX);
        let Some((first, site)) = waits.next() else { return (Waits::new(), None) };
        let (mut found, mut sites) = (Waits::from([first]), smallvec![site]);
        for (wait, site) in waits {
            found.push(wait);
            sites.push(site);
        }
        (found, Some(sites))
    }

    fn wait_of(&self, id: u64, slot: &crate::board::OpenOp) -> Option<Waiting> {
        let name = slot.op.name.clone();
        let attempt = slot.attempt_count + 1;
        let due_at = || {
            let of_slot = |Reverse(timer): &Reverse<Timer>| (timer.id == id).then_some(timer.due_at);
            self.timers.iter().find_map(of_slot)
        };
        Some(match &slot.request {
            Request::Step(_) | Request::Transaction(_) => match (&slot.state, due_at()) {
                (OpState::Waiting, Some(at)) if slot.attempt_count > 0 => {
                    Waiting::Retry { name, attempt, at }
                }
                // The closure runs, or has an outcome that the code will see next.
                _ => Waiting::Step { name, attempt },
            },
            Request::Sleep(_) | Request::SleepUntil(_) => Waiting::Sleep { until: due_at()? },
            Request::Signal { timeout, .. } => {
                Waiting::Signal { name, until: timeout.and_then(|_| due_at()) }
            }
            Request::Child { .. } => return None,
            Request::ChildResult { child } => Waiting::Child { id: child.clone() },
        })
    }
}
