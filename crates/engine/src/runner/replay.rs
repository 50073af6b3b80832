//! The part of a run that was recorded before.

use super::*;
use abide_core::{EditFates, Next, OtherInput, Renamed, Unclaimed};
use abide_store::Error;

/// The look at what somebody decided about operations. The journal is gone through once for all decisions, from the first entry that
/// depends on one, and not at all where there is none.
#[derive(Default)]
pub(super) struct Edits {
    fates: EditFates,
    /// The last entry that was looked at, if the replay has come to one that depends on a decision.
    looked_to: Option<u64>,
}

impl Edits {
    /// The entry to look at next, in a journal of so many.
    fn next(&self, end: u64) -> Option<u64> {
        self.looked_to.filter(|looked_to| *looked_to < end).map(|looked_to| looked_to + 1)
    }

    fn look_at(&mut self, entry: &Entry) {
        self.fates.look_at(entry);
        self.looked_to = Some(entry.seq);
    }

    /// The replay has come to this entry, and what is to be done depends on what was recorded later. `true`: that is so for the first time,
    /// and the journal is to be looked through now.
    fn begin_at(&mut self, seq: u64) -> bool {
        let is_first = self.looked_to.is_none();
        self.looked_to.get_or_insert(seq);
        is_first
    }
}

impl Runner {
    /// One turn of the replay; `None` when this turn belongs to the code.
    pub(super) fn replay(&mut self, cx: &mut Context<'_>) -> Option<Turn> {
        let Some(active) = self.run.stage.active() else { return self.begin(cx) };
        if active.board.0.is_to_be_polled() {
            return None;
        }
        loop {
            if let Some(seq) = self.run.edits.next(self.run.journal.end()) {
                return Some(match self.entry(seq, cx) {
                    Ok(entry) => {
                        self.run.edits.look_at(&entry);
                        self.run.cursor.look_ahead(&entry);
                        Turn::Progress
                    }
                    Err(turn) => turn,
                });
            }
            if let Some(renamed) = self.run.cursor.renamed() {
                if self.run.edits.begin_at(self.run.cursor.passed()) {
                    continue;
                }
                self.adopt(renamed);
                return Some(Turn::Progress);
            }
            let (seq, is_fetch) = match self.run.cursor.next() {
                Next::Fetch(seq) => (seq, true),
                Next::Offer(seq) if seq > self.run.journal.end() => {
                    if let Some(active) = self.run.stage.active_mut() {
                        active.replayed_to = active.unsettled.back().copied();
                    }
                    self.run.stage.go_live();
                    if let Some(reason) = self.run.cursor.obstacle() {
                        self.block(reason);
                    }
                    return Some(Turn::Progress);
                }
                Next::Offer(seq) => (seq, false),
            };
            let entry = match self.entry(seq, cx) {
                Ok(entry) => entry,
                Err(turn) => return Some(turn),
            };
            let renamed = self.run.cursor.renamed_by(&entry).filter(|_| !is_fetch);
            if renamed.is_some() && self.run.edits.begin_at(seq) {
                continue;
            }
            renamed.into_iter().for_each(|renamed| self.adopt(renamed));
            let contradiction = self.contradiction(&entry);
            let depends = entry.event.is_edit() || contradiction.is_some();
            if depends && self.run.edits.begin_at(seq) {
                continue;
            }
            if let Some(reason) = contradiction {
                self.block(reason);
                return Some(Turn::Progress);
            }
            if self.pass(&entry, is_fetch) {
                return Some(Turn::Progress);
            }
        }
    }

    /// Knows an open operation by an old name, if the journal knows it by no newer one.
    fn adopt(&mut self, renamed: Renamed) {
        if self.run.cursor.adopt(renamed)
            && let Some(active) = self.run.stage.active_mut()
        {
            active.adopt(renamed.own, renamed.old);
        }
    }

    /// A recorded entry, or the turn that this one is without it.
    #[expect(
        clippy::result_large_err,
        reason = "it is returned to the caller of this turn and goes no further"
    )]
    fn entry(&mut self, seq: u64, cx: &mut Context<'_>) -> Result<Entry, Turn> {
        match self.run.journal.poll_entry(seq, cx) {
            Poll::Pending => Err(Turn::Idle),
            Poll::Ready(entry) => entry.map_err(|error| Turn::End(End::from(error))),
        }
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
        // Orders may have been recorded since the journal was read.
        self.run.seen_to = self.seat.execution().seen_count().min(self.run.journal.end());
        self.run.stage = Stage::Replaying(Active::new(board, called));
        Some(Turn::Progress)
    }

    /// Passes one entry: delivers it, or keeps in mind what it says. `true`: the code has something to do.
    fn pass(&mut self, entry: &Entry, is_fetch: bool) -> bool {
        if is_fetch {
            self.run.cursor.fetched(entry);
            // Code that asks for it later than it came: nobody knows whether code before it went on with it.
            return self.deliver(entry, None);
        }
        let fate = self.run.edits.fates.of(entry);
        if fate == Some(EditFate::Refuted) && !planted(Bug::EditNotEditable) {
            // Given to the code again, it would block it before it came to the decision that followed.
            self.run.cursor.refute(entry);
            return false;
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

    /// Why this entry is not for the open operation that it belongs to: the code has another input for it, and nobody has accepted that.
    fn contradiction(&self, entry: &Entry) -> Option<Block> {
        let recorded = entry.event.input()?;
        let (op, active) = (entry.event.op()?, self.run.stage.active()?);
        let id = active.slots.get(&op.index())?;
        let state = active.board.0.lock();
        let slot = state.slots.get(id)?;
        let declared = slot.input_hash().filter(|declared| *declared != recorded.hash)?;
        if self.run.edits.fates.is_accepted(op, declared) || planted(Bug::OtherInputTaken) {
            return None;
        }
        let (op, recorded, declared) = (op.clone(), recorded.clone(), slot.input()?);
        Some(Block::OtherInput(Box::new(OtherInput { op, recorded, declared })))
    }

    /// What the code asks for now, for messages.
    fn asked_for(&self) -> String {
        let Some(active) = self.run.stage.active() else { return "nothing".to_owned() };
        let state = active.board.0.lock();
        let mut ops: Vec<_> =
            state.slots.values().map(|slot| format!("{} (at {})", slot.op, slot.site)).take(3).collect();
        if ops.is_empty() {
            ops.push(if active.result.is_some() { "the end of the workflow" } else { "nothing" }.to_owned());
        }
        ops.join(" and ")
    }

    /// What the code began anew that is perhaps recorded under another name.
    pub(super) fn unclaimed(&self) -> Option<Unclaimed> {
        let active = self.run.stage.active().filter(|_| !self.run.begun.is_empty())?;
        let state = active.board.0.lock();
        Unclaimed::first(&self.run.begun, &self.run.cursor.unclaimed(), |op| state.has_used(op))
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
