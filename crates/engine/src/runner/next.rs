//! From one run to the next.

use super::*;
use abide_core::Start;

impl Runner {
    /// The input of the next run, if the code wants one.
    pub(super) fn next_input(&self) -> Option<Payload> {
        self.active.as_ref()?.board.0.lock().next_input()
    }

    /// Ends the run and begins the next one. Its code runs at once; its first closure waits, like every other, until everything
    /// before it is durable.
    pub(super) fn continue_as_new(&mut self, input: Payload, cx: &mut Context<'_>) -> Turn {
        let limits = &self.engine.options.limits;
        if let Err(large) = limits.check_payload("the input of the next run", &input) {
            self.block(Block::Limit { reason: large.to_string() });
            return Turn::Progress;
        }
        let first = match self.journal.poll_entry(1, cx) {
            Poll::Pending => return Turn::Idle,
            Poll::Ready(Ok(entry)) => entry,
            Poll::Ready(Err(error)) => return Turn::End(End::Lost(error.to_string())),
        };
        let Some(began) = first.began() else {
            return Turn::End(End::Lost(format!("the journal begins with {}", first.event.word())));
        };
        if let Err(refusal) = self.decide(Command::ContinueAsNew { input: input.clone() }) {
            return Turn::End(End::Lost(format!("the next run was refused: {refusal}")));
        }
        self.cancel_children();
        self.evict();
        self.begin_next_run(began.start, input);
        // Whoever shuts down gives the next run to others; one that continues and continues would never be at rest.
        match self.order {
            Order::Run => self.send(Hold::Keep, None),
            _ => self.send(Hold::Yield, Some(End::Released)),
        }
        Turn::Progress
    }

    /// Forgets everything about the run that has ended. What arrived from outside is for the execution and stays.
    fn begin_next_run(&mut self, start: &Start, input: Payload) {
        // All fields, so that a new one is not forgotten here.
        let Self {
            engine,
            code,
            ledger,
            mailbox: _,
            journal,
            active: _,
            result,
            cursor,
            is_replaying,
            unsettled,
            startable,
            undelivered,
            transacting,
            slots,
            timers,
            timeouts,
            inbox,
            signals,
            signal_waiters,
            results,
            children,
            given_up,
            unused,
            held_timers,
            cancelled_at,
            order: _,
            idle_since,
            published,
            alarm,
            bell,
            closing: _,
            presence: _,
        } = self;
        // Nobody waits for these any longer; left unread they would be looked at for ever.
        results.drain(..).for_each(|(_, message)| ledger.consume(message.id));
        let first = ledger.begin_next_run(start, input);
        *journal = Journal::begun(engine.store.clone(), (ledger.key, ledger.execution().run()), first);
        (*result, *cursor, *is_replaying) = (None, Cursor::new(code.is_strict()), true);
        (*transacting, *cancelled_at, *idle_since) = (None, None, None);
        (*published, *alarm, *bell) = (None, None, None);
        unsettled.clear();
        startable.clear();
        undelivered.clear();
        slots.clear();
        signal_waiters.clear();
        children.clear();
        given_up.clear();
        unused.clear();
        held_timers.clear();
        timers.clear();
        timeouts.clear();
        let deadline_at = ledger.execution().deadline_at();
        timers.extend(deadline_at.map(|at| Reverse((at, u64::MAX, TimerKind::Deadline))));
        inbox.forget(signals.values().flatten().map(|(id, _)| id));
    }
}
