//! From one run to the next.

use super::*;
use abide_core::Start;

impl Runner {
    /// Returns the input of the next run and where the code asks for it, if it wants one.
    pub(super) fn next_input(&self) -> Option<(Payload, Site)> {
        self.run.stage.active()?.board.0.lock().next_input()
    }

    /// Whether the code wants a next run and may have it now.
    pub(super) fn wants_next(&self) -> bool {
        let is_live = self.run.stage.is_live() && self.seat.may_run() && !planted(Bug::OldRunReceives);
        is_live && self.run.stage.active().is_some_and(|active| active.board.0.wants_next())
    }

    /// Takes one turn of a run whose code wants the next one. Operations may still be open, but no
    /// code will see their outcomes: a signal that one of them received would be lost to the next
    /// run. Recorded outcomes are delivered, because a replay delivers them before it comes to the
    /// end of the journal, and because one of them may be a cancellation, which refuses the next
    /// run.
    pub(super) fn end_for_next(&mut self, cx: &mut Context<'_>) -> TurnResult {
        let is_polled = self.is_code_ready() && self.poll_code();
        if is_polled || self.record_finished() || self.give_up() || self.deliver_recorded() {
            return TurnResult::Progress;
        }
        self.rest(cx)
    }

    /// Ends the run and begins the next one. The code of the next run runs at once; its first
    /// closure waits, like every other, until everything before it is durable.
    pub(super) fn continue_as_new(
        &mut self,
        (input, site): (Payload, Site),
        cx: &mut Context<'_>,
    ) -> TurnResult {
        let bounds = &self.seat.engine.options.bounds;
        if let Err(large) = bounds.check_payload("the input of the next run", &input) {
            self.block(Block::Limit { reason: large.to_string() });
            return TurnResult::Progress;
        }
        let first = match self.run.journal.poll_entry(1, cx) {
            Poll::Pending => return TurnResult::Idle,
            Poll::Ready(Ok(entry)) => entry,
            Poll::Ready(Err(error)) => return TurnResult::End(End::from(error)),
        };
        let Some(began) = first.began() else {
            return TurnResult::End(End::damaged(format!("the journal begins with {}", first.event.word())));
        };
        let command = Command::ContinueAsNew { input: input.clone() };
        if let Err(refusal) = self.decide_from(Some(site), command) {
            return TurnResult::End(End::Lost(format!("the next run was refused: {refusal}")));
        }
        self.tell_children();
        self.evict();
        self.begin_next_run(began.start, input);
        // An engine that shuts down leaves the next run to others: an execution that continues
        // again and again would never be at rest.
        match self.seat.order() {
            Order::Run => self.send(Hold::Keep, None),
            _ => self.send(Hold::Yield, Some(End::Released)),
        }
        TurnResult::Progress
    }

    /// Replaces the ended run. Messages from outside are for the execution and stay.
    fn begin_next_run(&mut self, start: &Start, input: Payload) {
        // Nobody waits for these answers any longer; left unread, they would be looked at for ever.
        for letter in std::mem::take(&mut self.run.answers).into_letters() {
            self.seat.consume(letter.message.id);
        }
        let first = self.seat.begin_next_run(start, input);
        self.run = Run::new(Journal::begun(self.seat.journal_of(), first), self.code.is_strict());
        (self.idle_since, self.alarm, self.bell) = (None, None, None);
    }
}
