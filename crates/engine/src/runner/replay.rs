//! The part of a run that is already recorded.

use super::*;
use abide_core::{EditFates, Next, OtherInput, Renamed, Unclaimed, text};
use abide_store::Error;

/// People's decisions about operations. Those in entries that the replay passes are collected on
/// the way. The first entry that depends on a decision starts one pass over the rest of the
/// journal.
#[derive(Default)]
pub(super) struct Edits {
    fates: EditFates,
    /// The last entry that was looked at; `None` until the replay comes to an entry that depends on
    /// a decision.
    looked_to: Option<u64>,
}

impl Edits {
    /// Returns the number of the entry to look at next, in a journal of `end` entries.
    fn next(&self, end: u64) -> Option<u64> {
        self.looked_to.filter(|looked_to| *looked_to < end).map(|looked_to| looked_to + 1)
    }

    fn look_at(&mut self, entry: &Entry) {
        self.fates.look_at(entry);
        self.looked_to = Some(entry.seq);
    }

    /// Takes an entry that the replay passes, unless the whole journal was looked through.
    fn pass(&mut self, entry: &Entry) {
        if self.looked_to.is_none() && !planted(Bug::AcceptForgotten) {
            self.fates.look_at(entry);
        }
    }

    /// Notes that the replay, which has passed the entries up to `passed`, has come to an entry
    /// whose treatment depends on all the others. Returns `true` the first time: then the rest of
    /// the journal is to be looked through now.
    fn begin_after(&mut self, passed: u64) -> bool {
        let is_first = self.looked_to.is_none();
        self.looked_to.get_or_insert(passed + u64::from(planted(Bug::DecisionPassLate)));
        is_first
    }
}

/// The number of entries that one turn delivers. Between two turns the runner looks at its mail,
/// and between two polls other tasks get their turns. Both cost as much as a few entries.
const REPLAYED_COUNT_MAX: usize = 8;

impl Runner {
    /// Delivers recorded entries, and lets the code see each before the next. Returns `None` when
    /// the rest of this turn belongs to the code.
    pub(super) fn replay_on(&mut self, cx: &mut Context<'_>) -> Option<TurnResult> {
        for _ in 1..REPLAYED_COUNT_MAX {
            match self.replay(cx) {
                Some(TurnResult::Progress) if self.is_replaying() => {}
                turn => return turn,
            }
            // Whatever else the code has done is for the next turn.
            if !self.is_code_ready() || !self.poll_code() || !self.is_replaying() {
                return Some(TurnResult::Progress);
            }
        }
        self.replay(cx)
    }

    /// Whether the code is to see more of the journal, as far as this turn goes.
    fn is_replaying(&self) -> bool {
        self.run.stage.is_replaying() && self.seat.may_run()
    }

    /// Takes one step of the replay. Returns `None` when the turn belongs to the code.
    fn replay(&mut self, cx: &mut Context<'_>) -> Option<TurnResult> {
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
                        TurnResult::Progress
                    }
                    Err(turn) => turn,
                });
            }
            if let Some(renamed) = self.run.cursor.renamed() {
                if self.run.edits.begin_after(self.run.cursor.passed()) {
                    continue;
                }
                self.adopt(renamed);
                return Some(TurnResult::Progress);
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
                    return Some(TurnResult::Progress);
                }
                Next::Offer(seq) => (seq, false),
            };
            let entry = match self.entry(seq, cx) {
                Ok(entry) => entry,
                Err(turn) => return Some(turn),
            };
            let renamed = self.run.cursor.renamed_by(&entry).filter(|_| !is_fetch);
            if renamed.is_some() && self.run.edits.begin_after(self.run.cursor.passed()) {
                continue;
            }
            renamed.into_iter().for_each(|renamed| self.adopt(renamed));
            let contradiction = self.contradiction(&entry);
            let depends = entry.event.is_edit() || contradiction.is_some();
            if depends && self.run.edits.begin_after(self.run.cursor.passed()) {
                continue;
            }
            if let Some(reason) = contradiction {
                self.block(reason);
                return Some(TurnResult::Progress);
            }
            if self.pass(&entry, is_fetch) {
                return Some(TurnResult::Progress);
            }
        }
    }

    /// Adopts an old name for an open operation, if the journal has no newer name for it.
    fn adopt(&mut self, renamed: Renamed) {
        if self.run.cursor.adopt(renamed)
            && let Some(active) = self.run.stage.active_mut()
        {
            active.adopt(renamed.own, renamed.old);
        }
    }

    /// Returns a recorded entry, or the turn to take without it.
    fn entry(&mut self, seq: u64, cx: &mut Context<'_>) -> Result<Entry, TurnResult> {
        match self.run.journal.poll_entry(seq, cx) {
            Poll::Pending => Err(self.wait_for_page()),
            Poll::Ready(entry) => entry.map_err(|error| TurnResult::End(End::from(error))),
        }
    }

    /// Waits for a page of the journal, unless the worker shuts down: then others read it.
    fn wait_for_page(&mut self) -> TurnResult {
        let is_to_go = self.seat.order() >= Order::Drain && !self.seat.is_busy();
        if is_to_go && !planted(Bug::PageHoldsShutdown) {
            self.release(Hold::Yield)
        } else {
            TurnResult::Idle
        }
    }

    /// Reads the first entry, which has the input, and calls the code.
    fn begin(&mut self, cx: &mut Context<'_>) -> Option<TurnResult> {
        let entry = match self.run.journal.poll_entry(1, cx) {
            Poll::Pending => return Some(self.wait_for_page()),
            Poll::Ready(Ok(entry)) => entry,
            Poll::Ready(Err(error)) => return Some(TurnResult::End(End::from(error))),
        };
        let Event::Started(start) = &entry.event else {
            let what = format!("the journal begins with {}", entry.event.word());
            return Some(TurnResult::End(End::damaged(what)));
        };
        let passed = self.run.cursor.offer(&entry);
        debug_assert_eq!(passed, Ok(false), "nobody waits for the start");
        let board = Board::new(&self.code, self.seat.execution(), entry.at, self.seat.mailbox().clone());
        let called = board
            .0
            .as_polling(|| catch_unwind(AssertUnwindSafe(|| self.code.call(board.clone(), &start.input))));
        let called = match called {
            Ok(Ok(future)) => Ok(future),
            Ok(Err(reason)) => {
                self.block(reason);
                return Some(TurnResult::Progress);
            }
            Err(panic) => Err(panics::failure(panic)),
        };
        // Orders may have been recorded since the journal was read.
        self.run.seen_to = self.seat.execution().seen_count().min(self.run.journal.end());
        self.run.stage.replay(Active::new(board, called));
        // The rest of this turn belongs to the code.
        None
    }

    /// Passes one entry: delivers it, or keeps its content in mind. Returns `true` if the code has
    /// something to do.
    fn pass(&mut self, entry: &Entry, is_fetch: bool) -> bool {
        if is_fetch {
            self.run.cursor.fetched(entry);
            // The code asks for the entry later than it came. Nobody knows whether earlier code
            // went on with it.
            return self.deliver(entry, None);
        }
        self.run.edits.pass(entry);
        let fate = self.run.edits.fates.of(entry);
        if fate == Some(EditFate::Refuted) && !planted(Bug::EditNotEditable) {
            // Delivered again, it would block the code before the decision that followed.
            self.run.cursor.refute(entry);
            return false;
        }
        let op = entry.event.op().map(|op| (op, op.index()));
        match self.run.cursor.offer_of(entry, op.map(|(_, key)| key)) {
            Ok(is_wanted) => {
                self.run.follow(entry);
                match Interrupt::of(&entry.event) {
                    Some(interrupt) => self.interrupt(interrupt, entry.at),
                    None => is_wanted && op.is_some_and(|op| self.deliver_to(op, entry, fate)),
                }
            }
            Err(mismatch) => {
                let found = self.asked_for();
                self.run.sites.learn(entry);
                let site = self.run.sites.of(entry);
                let expected = format!("{}{}", mismatch.expected, text::at(site.as_deref()));
                self.block(Block::Mismatch { expected, found })
            }
        }
    }

    /// Returns why this entry does not fit the open operation that it belongs to: the code has
    /// another input for the operation, and nobody has decided about that.
    fn contradiction(&self, entry: &Entry) -> Option<Block> {
        let recorded = self.run.edits.fates.input_of(entry)?;
        let (op, active) = (entry.event.op()?, self.run.stage.active()?);
        let id = active.slots.get(&op.index())?;
        let state = active.board.0.lock();
        let slot = state.slots.get(id)?;
        let declared = slot.input_hash().filter(|declared| *declared != recorded.hash)?;
        let fates = &self.run.edits.fates;
        let is_decided = fates.is_accepted(op, declared) || fates.is_made_anew(entry);
        if is_decided || planted(Bug::OtherInputTaken) {
            return None;
        }
        let (op, recorded, declared) = (op.clone(), recorded.clone(), slot.input()?);
        let (recorded_site, site) = (self.run.sites.of(entry), Some(slot.site.to_string()));
        Some(Block::OtherInput(Box::new(OtherInput {
            op,
            recorded,
            declared: *declared,
            recorded_site,
            site,
        })))
    }

    /// Describes the operations that the code asks for now, for messages.
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

    /// Returns the first operation that the code began anew and that may have another name or key
    /// than before. A replay does not begin it again, so one that an earlier holder found counts
    /// until the code asks for the entry that it left unused.
    pub(super) fn unclaimed(&self) -> Option<Unclaimed> {
        let before = self.seat.unclaimed();
        if self.run.begun.is_empty() && before.is_none() || planted(Bug::UnclaimedUntold) {
            return None;
        }
        let Some(active) = self.run.stage.active() else { return before.cloned() };
        let state = active.board.0.lock();
        let left = self.run.cursor.unclaimed();
        let first = Unclaimed::first(&self.run.begun, &left, state.uses());
        let is_left = |before: &&Unclaimed| {
            !self.run.stage.is_live() || (left.contains(&before.recorded) && before.is_left(state.uses()))
        };
        first.or_else(|| before.filter(is_left).cloned())
    }

    /// Returns the first recorded operations that the finished code never asked for. They may lie
    /// any number of pages back.
    pub(super) fn poll_unused(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<Op>, Error>> {
        const UNUSED_COUNT_MAX: usize = 32;
        let count_max = if planted(Bug::UnusedUntold) { 0 } else { UNUSED_COUNT_MAX };
        let Some(active) = self.run.stage.active() else { return Poll::Ready(Ok(Vec::new())) };
        let seqs = self.run.cursor.unused(count_max, active.board.0.lock().uses());
        // Operations that were read are kept: the journal has only one of the pages at hand.
        while let Some(seq) = seqs.get(self.run.unused.len()) {
            let entry = std::task::ready!(self.run.journal.poll_entry(*seq, cx))?;
            self.run.unused.push(entry.event.op().cloned().expect("only entries of operations go unused"));
        }
        Poll::Ready(Ok(std::mem::take(&mut self.run.unused)))
    }
}
