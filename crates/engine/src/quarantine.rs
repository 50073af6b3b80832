//! Keeps possible poison apart from everything else.
//!
//! A suspect is an execution with which several sessions in a row died before it made progress.
//! Nobody can see from outside whether it killed them or was merely in the same process, so it runs
//! alone: if it kills the process again, it takes no other execution with it, and if it makes
//! progress, it is no longer a suspect (see [`abide_core::Proof`]). The steps are:
//!
//! 1. It waits aside, leased but not begun, while the others go on, and follows orders and its
//!    deadline. A poison that went first in every life of a process would kill each of them before
//!    any other execution had a turn.
//! 2. When its patience is over, memory is cleared for it: no execution comes in, and the others
//!    leave when their running closures have ended. Other suspects leave last. Closures are not
//!    interrupted: if they last, everything goes on, and the suspect tries again with twice the
//!    patience, so that neither waits for the other forever.
//! 3. When nothing else is in memory, it runs alone until it makes progress, leaves, or has been
//!    alone for long enough. It leaves as soon as its code stands still, at waits with no closure
//!    behind them. Its driver is asked to record that others come in, and they do when that is
//!    durable; if the driver does not commit, they come in after as long again.
//!
//! On a worker that has nothing else to do, it reaches the third step at once.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use abide_core::planted::{Bug, planted};
use abide_store::{ExecutionKey, Hold, Leased};

use crate::alarm::ring;
use crate::driver::End;
use crate::engine::Inner;
use crate::ledger::Ledger;
use crate::mailbox::{Mailbox, Order};
use crate::residents::Residents;
use crate::runtime::BoxFuture;
use crate::seat::{Leave, Seat};
use crate::suspect::Record;

/// The number of takeovers in a row that makes an execution a suspect, unless the options say
/// otherwise.
pub(crate) const SUSPECT_TAKEOVER_COUNT: u32 = 2;

/// How often further takeovers double the patience of a suspect. Not more, because deaths that
/// happened while it waited count too.
const DOUBLED_COUNT_MAX: u32 = 5;

/// The limit up to which patience is doubled.
const PATIENCE_MAX: Duration = Duration::from_secs(3_600);

/// The decision about which executions may be in memory. Pure: it learns what happens and returns
/// what follows.
#[derive(Debug, Default)]
pub(crate) struct Quarantine {
    gate: Gate,
    /// The suspects that wait aside, each with its number of takeovers.
    waiting: BTreeMap<ExecutionKey, u32>,
    /// The suspects whose record is being read: whether they may wait is not known yet.
    expected: BTreeSet<ExecutionKey>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Gate {
    /// Every execution comes in; suspects wait.
    #[default]
    Open,
    /// No execution comes in, and the running ones leave for this suspect.
    Clearing(ExecutionKey),
    /// No execution comes in, and the other suspects leave too. They leave last: if the running
    /// executions did not leave in time, the suspects would have left for nothing.
    Emptying(ExecutionKey),
    /// No execution comes in: this suspect runs.
    Alone(ExecutionKey),
}

/// The decision about a leased execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// The execution begins.
    Begin,
    /// The execution waits aside until it may run alone.
    Wait,
    /// The lease goes back at once: another execution runs alone here.
    GiveBack,
}

/// The next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    /// The running executions are to leave.
    Clear,
    /// The waiting executions are to leave, except this suspect.
    Empty(ExecutionKey),
    /// This suspect is alone and begins.
    Begin(ExecutionKey),
}

impl Quarantine {
    /// Records that a suspect is in memory, and that its record is being read.
    pub(crate) fn expect(&mut self, key: ExecutionKey) {
        self.expected.insert(key);
    }

    /// Decides about an entering execution; `suspicion` is the takeover count of a suspect.
    pub(crate) fn admit(&mut self, key: ExecutionKey, suspicion: Option<u32>) -> Admission {
        if suspicion.is_some() {
            self.expected.remove(&key);
        }
        match (self.gate, suspicion) {
            (Gate::Open, None) => Admission::Begin,
            (Gate::Open, Some(takeover_count)) => {
                self.waiting.insert(key, takeover_count);
                Admission::Wait
            }
            (Gate::Clearing(_) | Gate::Emptying(_) | Gate::Alone(_), _) => Admission::GiveBack,
        }
    }

    /// Records that an execution left. Returns `true` if every execution may come in again.
    fn left(&mut self, key: ExecutionKey) -> bool {
        self.waiting.remove(&key);
        self.expected.remove(&key);
        self.reopen(key)
    }

    /// Opens the gate again that this suspect shut. Returns `false` if it had shut none.
    fn reopen(&mut self, key: ExecutionKey) -> bool {
        match self.gate {
            Gate::Clearing(of) | Gate::Emptying(of) | Gate::Alone(of) if of == key => {
                self.gate = Gate::Open;
                true
            }
            _ => false,
        }
    }

    /// Returns what follows when this many executions are in memory, including the waiting ones.
    fn settle(&mut self, resident_count: usize) -> Option<Move> {
        match self.gate {
            Gate::Open if resident_count == self.waiting.len() => self.clear(resident_count),
            Gate::Clearing(key) if resident_count == self.waiting.len() => {
                self.gate = Gate::Emptying(key);
                self.settle(resident_count).or(Some(Move::Empty(key)))
            }
            Gate::Emptying(key) if resident_count == 1 => {
                self.waiting.remove(&key);
                self.gate = Gate::Alone(key);
                Some(Move::Begin(key))
            }
            _ => None,
        }
    }

    /// Clears memory when a suspect has waited for long enough. The suspect with the fewest
    /// takeovers goes first: poison has the most, so it comes after every execution that it made a
    /// suspect.
    fn clear(&mut self, resident_count: usize) -> Option<Move> {
        if self.gate != Gate::Open {
            return None;
        }
        let first = self.waiting.iter().min_by_key(|(key, takeover_count)| (**takeover_count, **key));
        let key = *first?.0;
        self.gate = Gate::Clearing(key);
        self.settle(resident_count).or(Some(Move::Clear))
    }

    /// Whether the gate is shut.
    fn is_shut(&self) -> bool {
        self.gate != Gate::Open
    }

    /// Whether there is a suspect: one that runs alone, waits aside, or is about to come.
    pub(crate) fn has_suspects(&self) -> bool {
        self.is_shut() || !self.waiting.is_empty() || !self.expected.is_empty()
    }

    /// Whether this suspect runs alone.
    pub(crate) fn is_turn_of(&self, key: ExecutionKey) -> bool {
        self.gate == Gate::Alone(key)
    }
}

impl Inner {
    /// Returns how many sessions in a row died with this execution, if that makes it a suspect.
    pub(crate) fn suspicion(&self, leased: &Leased) -> Option<u32> {
        let count = leased.takeover_count;
        (count >= self.options.suspect_takeover_count).then_some(count)
    }

    /// Whether the gate is shut, because a suspect runs alone or is about to.
    pub(crate) fn is_shut(&self) -> bool {
        self.is_shut.load(Ordering::Relaxed)
    }

    /// Returns how many suspects wait aside, or may do so in a moment.
    pub(crate) fn waiting_count(&self) -> usize {
        let quarantine = &self.residents().quarantine;
        quarantine.waiting.len() + quarantine.expected.len()
    }

    /// Lets a suspect wait for its turn to run alone.
    pub(crate) fn admit_suspect(&self, leased: &Leased) -> Admission {
        let suspicion = Some(leased.takeover_count);
        let mut residents = self.residents();
        let admission = residents.quarantine.admit(leased.key, suspicion);
        self.settle(residents);
        admission
    }

    /// Does what follows when an execution has left.
    pub(crate) fn left(&self, key: ExecutionKey, mut residents: MutexGuard<'_, Residents>) {
        let is_open_again = residents.quarantine.left(key);
        self.settle(residents);
        if is_open_again {
            self.kick.notify_one();
        }
    }

    /// Does what follows when the set of executions in memory has changed.
    pub(crate) fn settle(&self, mut residents: MutexGuard<'_, Residents>) {
        let resident_count = residents.count();
        let next = residents.quarantine.settle(resident_count);
        self.make_room(residents, next);
    }

    /// Opens the gate again that this suspect shut. Returns `false` if it had shut none.
    pub(crate) fn reopen(&self, key: ExecutionKey) -> bool {
        let mut residents = self.residents();
        let is_open_again = residents.quarantine.reopen(key);
        if is_open_again {
            self.settle(residents);
            self.kick.notify_one();
        }
        is_open_again
    }

    fn clear(&self) {
        let mut residents = self.residents();
        let resident_count = residents.count();
        let next = residents.quarantine.clear(resident_count);
        self.make_room(residents, next);
    }

    fn make_room(&self, residents: MutexGuard<'_, Residents>, next: Option<Move>) {
        self.is_shut.store(residents.quarantine.is_shut(), Ordering::Relaxed);
        let Some(next) = next else { return };
        let is_told = |key: &ExecutionKey| match next {
            Move::Clear => !residents.quarantine.waiting.contains_key(key),
            Move::Empty(suspect) => *key != suspect,
            Move::Begin(suspect) => *key == suspect,
        };
        let told = residents.mailboxes().filter(|(key, _)| is_told(key));
        let told: Vec<Arc<Mailbox>> = told.map(|(_, mailbox)| mailbox.clone()).collect();
        // A woken runner may leave at once, which takes the same lock.
        drop(residents);
        for mailbox in told {
            match next {
                Move::Clear | Move::Empty(_) => mailbox.order(Order::Drain),
                Move::Begin(_) => mailbox.task.wake(),
            }
        }
    }
}

/// Runs a suspect: aside at first, then alone, then like any other execution.
pub(crate) async fn run_suspect(
    engine: Arc<Inner>,
    mailbox: Arc<Mailbox>,
    (mut leased, record): (Box<Leased>, Record),
) -> End {
    let (key, address, takeover_count) = (leased.key, leased.address().clone(), leased.takeover_count);
    let opening = std::mem::take(&mut leased.opening);
    let seat = Seat::new(engine.clone(), mailbox.clone(), leased);
    let mut aside = Aside { seat, record, takeover_count, is_marked: false };
    if let AsideEnd::End(end) = aside.turn().await {
        return end;
    }
    tracing::warn!(%address, takeover_count, "a suspect runs alone");
    let mut running = engine.begin_seated(aside.seat, opening);
    let ended = async |running: &mut BoxFuture<End>| {
        let alone_max = engine.runtime.sleep(engine.options.suspect_alone_max);
        tokio::select! {
            biased;
            end = running => Some(end),
            () = alone_max => None,
        }
    };
    if let Some(end) = ended(&mut running).await {
        return end;
    }
    // It did no harm for long, or does harm too rarely to stop all other executions for it. Its
    // seat lets them in when it is recorded that deaths are not its own any longer.
    mailbox.join();
    loop {
        if let Some(end) = ended(&mut running).await {
            return end;
        }
        // A commit under way is waited for, as long as it takes: its answer lets them in.
        if !mailbox.is_committing() {
            break;
        }
    }
    // Its driver does not commit. A death may be counted as its own from now on although others are
    // there. The alternative is a worker that does nothing else for as long as the suspect lasts.
    if engine.reopen(key) {
        tracing::warn!(%address, "others come in beside a suspect, and its driver did not record it");
    }
    running.await
}

/// Returns a lease without running anything.
pub(crate) async fn give_back(engine: Arc<Inner>, leased: Box<Leased>) -> End {
    let summary = leased.execution.summary_at_rest();
    Ledger::new(&engine, leased).leave(summary, Hold::Yield).await
}

/// A waiting suspect. It has its seat: orders and its deadline are seen to although its code does
/// not run.
struct Aside {
    seat: Seat,
    record: Record,
    takeover_count: u32,
    /// Whether its last commit says that it runs alone.
    is_marked: bool,
}

/// The end of a suspect's wait.
enum AsideEnd {
    /// It is recorded that the suspect runs alone: its code begins.
    Begin,
    /// The suspect has left.
    End(End),
}

impl Aside {
    async fn turn(&mut self) -> AsideEnd {
        let engine = self.seat.engine.clone();
        let options = &engine.options;
        // The more sessions have died with it, the more the others get done before the next one
        // does.
        let more_count = self.takeover_count.saturating_sub(options.suspect_takeover_count);
        let mut patience = options.suspect_wait.saturating_mul(1 << more_count.min(DOUBLED_COUNT_MAX));
        loop {
            if let Some(turn) = self.wait(patience).await {
                return turn;
            }
            engine.clear();
            if let Some(turn) = self.wait(patience).await {
                return turn;
            }
            engine.reopen(self.seat.key());
            patience = patience.saturating_mul(2).min(PATIENCE_MAX);
        }
    }

    /// Waits for this long; returns `None` if its turn did not come. A commit under way is waited
    /// for: it says that the suspect runs alone, or leaves.
    async fn wait(&mut self, patience: Duration) -> Option<AsideEnd> {
        let runtime = self.seat.engine.runtime.clone();
        let mut is_over = runtime.sleep(patience);
        let mut alarm = None;
        poll_fn(|cx| {
            if let Poll::Ready(turn) = self.look(cx) {
                return Poll::Ready(Some(turn));
            }
            if self.seat.is_busy() {
                return Poll::Pending;
            }
            ring(&mut alarm, self.seat.expires_at(), |at| runtime.sleep_until(at), cx);
            is_over.as_mut().poll(cx).map(|()| None)
        })
        .await
    }

    fn look(&mut self, cx: &mut Context<'_>) -> Poll<AsideEnd> {
        self.seat.enter(cx);
        let polled = self.poll(cx);
        match &polled {
            Poll::Pending | Poll::Ready(AsideEnd::Begin) => self.seat.leave(false),
            Poll::Ready(AsideEnd::End(_)) => self.seat.vacate(),
        }
        polled
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<AsideEnd> {
        loop {
            if let Poll::Ready(end) = self.seat.poll_end(cx) {
                return Poll::Ready(AsideEnd::End(end));
            }
            if self.seat.is_busy() {
                return Poll::Pending;
            }
            if self.is_marked {
                return Poll::Ready(AsideEnd::Begin);
            }
            let is_deaf = planted(Bug::AsideDeaf);
            let followed = || self.seat.obey(false).or_else(|| self.seat.expire(false));
            if let Some(entries) = (!is_deaf).then(followed).flatten() {
                if let Some(last) = entries.into_iter().next_back().filter(|last| last.event.is_terminal()) {
                    self.seat.finish(last.event);
                }
                continue;
            }
            if self.seat.has_news() || self.seat.order() >= Order::Drain || !self.seat.may_run() {
                if !self.go() {
                    return Poll::Pending;
                }
            } else if self.seat.keeps_others_out() {
                self.mark();
            } else {
                return Poll::Pending;
            }
        }
    }

    /// Returns the lease: the suspect is to leave, or has followed an order or its deadline, and
    /// comes back if it may run. Returns `false` if mail that is not known here would wake it at
    /// once.
    fn go(&mut self) -> bool {
        let is_free = self.seat.order() >= Order::Drain || self.seat.may_run();
        if !is_free && !self.seat.has_all_mail() && !planted(Bug::SuspectParksEarly) {
            return false;
        }
        let hold = if is_free { Hold::Yield } else { self.seat.parked() };
        let end = Some(End::Released);
        self.seat.send(Leave { hold, waiting: &self.record.waiting, wake_at: None, end });
        true
    }

    /// Records that the suspect runs alone, before it does.
    fn mark(&mut self) {
        self.is_marked = true;
        self.seat.stand_alone(self.takeover_count);
        if !planted(Bug::SuspectBeginsUnmarked) {
            self.seat.send(Leave::keep(&self.record.waiting));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ExecutionKey = ExecutionKey(1);
    const B: ExecutionKey = ExecutionKey(2);
    const C: ExecutionKey = ExecutionKey(3);

    /// Returns a quarantine in which these suspects wait.
    fn with(suspects: &[(ExecutionKey, u32)]) -> Quarantine {
        let mut quarantine = Quarantine::default();
        for (key, takeover_count) in suspects {
            assert_eq!(quarantine.admit(*key, Some(*takeover_count)), Admission::Wait);
        }
        quarantine
    }

    #[test]
    fn suspects_wait_while_others_are_in_memory() {
        let mut quarantine = with(&[(A, 2)]);
        assert_eq!(quarantine.admit(B, None), Admission::Begin);
        assert_eq!(quarantine.settle(2), None);
        assert!(!quarantine.is_shut() && quarantine.has_suspects());
        assert!(!quarantine.left(B), "nobody was kept out");
        assert_eq!(quarantine.settle(1), Some(Move::Begin(A)));
        assert!(quarantine.is_turn_of(A));
    }

    #[test]
    fn nobody_comes_in_until_the_suspect_is_done() {
        let mut quarantine = with(&[(A, 2)]);
        assert_eq!(quarantine.clear(2), Some(Move::Clear));
        assert_eq!(quarantine.admit(C, None), Admission::GiveBack);
        assert_eq!(quarantine.settle(1), Some(Move::Begin(A)));
        assert_eq!(quarantine.admit(C, None), Admission::GiveBack);
        assert_eq!(quarantine.admit(B, Some(2)), Admission::GiveBack, "suspects neither");
        assert!(!quarantine.reopen(B), "only the suspect itself opens the gate");
        assert!(quarantine.is_shut());
        assert!(quarantine.left(A));
        assert!(!quarantine.has_suspects());
        assert_eq!(quarantine.admit(C, None), Admission::Begin);
    }

    #[test]
    fn the_least_suspected_goes_first_and_the_others_leave() {
        let mut quarantine = with(&[(A, 3), (C, 2), (B, 2)]);
        assert_eq!(quarantine.settle(4), None, "somebody runs");
        assert_eq!(quarantine.clear(4), Some(Move::Clear));
        assert_eq!(quarantine.settle(3), Some(Move::Empty(B)), "only suspects are left");
        assert!(!quarantine.left(A));
        assert_eq!(quarantine.settle(2), None);
        assert!(!quarantine.left(C));
        assert_eq!(quarantine.settle(1), Some(Move::Begin(B)));
    }

    #[test]
    fn a_vain_try_lets_the_others_in_again() {
        let mut quarantine = with(&[(A, 2)]);
        assert_eq!(quarantine.clear(5), Some(Move::Clear));
        assert_eq!(quarantine.clear(5), None, "once is enough");
        assert!(quarantine.reopen(A));
        assert_eq!(quarantine.admit(B, None), Admission::Begin);
        assert_eq!(quarantine.clear(5), Some(Move::Clear), "it waits for the next one");
    }

    #[test]
    fn a_suspect_that_is_taken_away_keeps_nobody_out() {
        let mut quarantine = with(&[(A, 2)]);
        quarantine.clear(2);
        assert!(quarantine.left(A));
        assert!(!quarantine.has_suspects());
        assert_eq!(quarantine.settle(0), None);
    }
}
