//! The part of a run that was recorded before.

use super::*;
use abide_core::Next;
use abide_store::Error;

impl Runner {
    /// One turn of the replay; `None` when this turn belongs to the code.
    pub(super) fn replay(&mut self, cx: &mut Context<'_>) -> Option<Turn> {
        let Some(active) = self.run.stage.active() else { return self.begin(cx) };
        if active.board.0.is_to_be_polled() {
            return None;
        }
        loop {
            let (seq, is_fetch) = match self.run.cursor.next() {
                Next::Fetch(seq) => (seq, true),
                Next::Offer(seq) if seq > self.run.journal.end() => {
                    self.run.stage.go_live();
                    if let Some(reason) = self.run.cursor.obstacle() {
                        self.block(reason);
                    }
                    return Some(Turn::Progress);
                }
                Next::Offer(seq) => (seq, false),
            };
            let entry = match self.run.journal.poll_entry(seq, cx) {
                Poll::Pending => return Some(Turn::Idle),
                Poll::Ready(Ok(entry)) => entry,
                Poll::Ready(Err(error)) => return Some(Turn::End(End::from(error))),
            };
            match self.poll_edit_fate(&entry, is_fetch, cx) {
                Poll::Pending => return Some(Turn::Idle),
                Poll::Ready(Ok(Some(EditFate::Refuted))) => self.run.cursor.refute(&entry),
                Poll::Ready(Ok(fate)) if self.pass(&entry, is_fetch, fate) => return Some(Turn::Progress),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Some(Turn::End(End::from(error))),
            }
        }
    }

    /// What became of a result that somebody gave to a step, if this is one and later entries say it. One that the code could not read, given to
    /// it again, would block it before it came to the decision that followed.
    fn poll_edit_fate(
        &mut self,
        entry: &Entry,
        is_fetch: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<EditFate>, Error>> {
        let Event::Unblocked { remedied: Some(Remedied { op, remedy: Remedy::Edit(_) }), .. } = &entry.event
        else {
            return Poll::Ready(Ok(None));
        };
        let mut fate = None;
        for seq in entry.seq + 1..=self.run.journal.end() {
            let later = std::task::ready!(self.run.journal.poll_entry(seq, cx))?;
            fate = later.event.tells_of_edit(op).or(fate);
            if fate == Some(EditFate::Refuted) {
                return Poll::Ready(Ok(fate.filter(|_| !planted(Bug::EditNotEditable))));
            }
        }
        // Code that asks for it later than it came: nobody knows whether code before it went on with it.
        Poll::Ready(Ok(fate.filter(|_| !is_fetch)))
    }

    /// Reads the first entry, which has the input, and calls the code.
    fn begin(&mut self, cx: &mut Context<'_>) -> Option<Turn> {
        let entry = match self.run.journal.poll_begin(cx) {
            Poll::Pending => return Some(Turn::Idle),
            Poll::Ready(Ok(entry)) => entry,
            Poll::Ready(Err(error)) => return Some(Turn::End(End::from(error))),
        };
        let Event::Started(start) = &entry.event else {
            let what = format!("the journal begins with {}", entry.event.word());
            return Some(Turn::End(End::damaged(what)));
        };
        let passed = self.run.cursor.offer(&entry);
        debug_assert_eq!(passed, Ok(false), "nobody waits for the start");
        let board = Board::new(self.seat.execution(), entry.at, self.seat.mailbox().clone());
        let called = board
            .0
            .as_polling(|| catch_unwind(AssertUnwindSafe(|| self.code.call(board.clone(), &start.input))));
        let called = match called {
            Ok(Ok(future)) => Ok(future),
            Ok(Err(reason)) => {
                self.block(reason);
                return Some(Turn::Progress);
            }
            Err(panic) => Err(panics::failure(panic.as_ref())),
        };
        self.run.stage = Stage::Replaying(Active::new(board, called));
        Some(Turn::Progress)
    }

    /// Passes one entry: delivers it, or keeps in mind what it says. `true`: the code has something to do.
    fn pass(&mut self, entry: &Entry, is_fetch: bool, fate: Option<EditFate>) -> bool {
        if is_fetch {
            self.run.cursor.fetched(entry);
            return self.deliver(entry, fate);
        }
        match self.run.cursor.offer(entry) {
            Ok(is_wanted) => {
                self.run.follow(entry);
                match Interrupt::of(&entry.event) {
                    Some(interrupt) => self.interrupt(interrupt, entry.at),
                    None => is_wanted && self.deliver(entry, fate),
                }
            }
            Err(mismatch) => {
                let found = self.asked_for();
                self.block(Block::Mismatch { expected: mismatch.expected.to_string(), found })
            }
        }
    }

    /// What the code asks for now, for messages.
    fn asked_for(&self) -> String {
        let Some(active) = self.run.stage.active() else { return "nothing".to_owned() };
        let state = active.board.0.lock();
        let mut ops: Vec<_> = state.slots.values().map(|slot| slot.op.to_string()).take(3).collect();
        if ops.is_empty() {
            ops.push(if active.result.is_some() { "the end of the workflow" } else { "nothing" }.to_owned());
        }
        ops.join(" and ")
    }

    /// Recorded operations that the finished code never asked for, the first of them. They may lie any number of pages back.
    pub(super) fn poll_unused(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<Op>, Error>> {
        const UNUSED_COUNT_MAX: usize = 32;
        let seqs = self.run.cursor.unused(UNUSED_COUNT_MAX);
        // What was read stays read: the journal has only one of the pages at hand.
        while let Some(seq) = seqs.get(self.run.unused.len()) {
            let entry = std::task::ready!(self.run.journal.poll_entry(*seq, cx))?;
            self.run.unused.push(entry.event.op().cloned().expect("only outcomes of operations are skipped"));
        }
        Poll::Ready(Ok(std::mem::take(&mut self.run.unused)))
    }
}
