//! Brings work to the engine: notices, timers, claims, the search for dead sessions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use abide_core::{SessionId, Timestamp};
use abide_store::{Answer, Claim, Error, ExecutionKey, Leased, Notice};

use crate::engine::Inner;
use crate::idle::Idleness;
use crate::inbox::Arrival;
use crate::pauses::{LONGEST_OF_STORE, Pauses};
use crate::runtime::{BoxFuture, Moment};
use crate::taking::Taking;

/// How many executions a claim takes while there may be suspects. Not one: of these, the least
/// suspected goes first.
const FEW: usize = 8;

/// How many executions are looked after at once.
const CARE_COUNT: usize = 64;

/// Dispatches until the engine closes. While it drains, only mail is dispatched.
pub(crate) async fn run(engine: Arc<Inner>) {
    let mut dispatcher = Dispatcher::new(engine);
    while !dispatcher.engine.is_closing() || dispatcher.engine.is_draining() {
        dispatcher.turn().await;
    }
}

struct Dispatcher {
    engine: Arc<Inner>,
    session: SessionId,
    wait: Answer<Vec<Notice>>,
    request: u64,
    /// Whether the next claim also asks for mail.
    with_mail: bool,
    wants_claim: bool,
    /// The most to claim at once. It grows from a few, and again from a few after a claim that
    /// returned suspects: there may be more of them, all but one have to be returned, and if this
    /// process is killed they are blamed for nothing.
    pace: usize,
    sweep_at: Moment,
    look_again_at: Moment,
    next_wake_at: Option<Timestamp>,
    /// When the next execution that perhaps no worker serves has to be looked after.
    next_care_at: Option<Timestamp>,
    /// The earliest time to ask the store again for executions that it believes not to be due: its
    /// clock may be behind ours.
    ask_again_at: Moment,
    /// Whether the last wait for notices brought some.
    has_notices: bool,
    /// The earliest time for a claim after one that failed.
    claim_after: Moment,
    /// The failures of claims since the last one that went through.
    failures: Pauses,
    idleness: Idleness,
    taking: Taking,
}

/// How long to wait before the store is asked again for executions that it believes not to be due.
const PAUSE: Duration = Duration::from_millis(100);

fn never() -> BoxFuture<()> {
    Box::pin(std::future::pending())
}

impl Dispatcher {
    fn new(engine: Arc<Inner>) -> Self {
        let session = engine.session();
        Self {
            wait: engine.store.wait(session),
            session,
            request: 0,
            with_mail: false,
            wants_claim: true,
            pace: FEW,
            sweep_at: engine.runtime.moment(),
            look_again_at: engine.runtime.moment().after(engine.options.look_again_every),
            next_wake_at: None,
            next_care_at: None,
            ask_again_at: engine.runtime.moment(),
            has_notices: true,
            claim_after: engine.runtime.moment(),
            failures: Pauses::default(),
            idleness: Idleness::default(),
            taking: Taking::default(),
            engine,
        }
    }

    async fn turn(&mut self) {
        self.follow_session();
        let moment = self.engine.runtime.moment();
        let is_woken = self.is_due() && self.ask_again_at <= moment;
        let is_wanted = if self.engine.is_closing() { self.with_mail } else { self.wants_claim };
        let is_claim_due = is_wanted || self.sweep_at <= moment || is_woken;
        if is_claim_due && self.claim_after <= moment {
            self.claim().await;
            return;
        }
        if self.look_again_at <= moment {
            self.look_again_at = moment.after(self.engine.options.look_again_every);
            self.engine.watchers.look_again();
        }
        let idle_look_at = self.look_for_idleness(moment);
        let runtime = &self.engine.runtime;
        // After a claim that failed, notices are taken until the next one.
        let (recurring, alarm) = match is_claim_due {
            true => (runtime.sleep(self.claim_after.since(moment)), never()),
            false => {
                let looks = [Some(self.sweep_at), Some(self.look_again_at), idle_look_at];
                let next = looks.into_iter().flatten().min().unwrap_or(moment);
                (runtime.rest(next.since(moment)), self.alarm())
            }
        };
        if !self.engine.is_closing() {
            self.taking.begin(&self.engine);
        }
        let kicked = self.engine.kick.notified();
        tokio::select! {
            biased;
            notices = &mut self.wait => {
                self.wait = self.engine.store.wait(self.session);
                match notices {
                    Ok(notices) => {
                        self.has_notices = true;
                        self.take(notices);
                    }
                    Err(error) => {
                        if std::mem::take(&mut self.has_notices) && !self.engine.is_closing() {
                            tracing::warn!(%error, "notices do not come; they are asked for again");
                        }
                        // Notices may be lost. Their messages are in the inboxes.
                        (self.wants_claim, self.with_mail) = (true, true);
                        self.engine.runtime.sleep(PAUSE).await;
                    }
                }
            }
            taken = self.taking.taken() => self.taking.end(taken),
            () = kicked => self.wants_claim = true,
            () = recurring => {}
            () = alarm => {}
        }
    }

    /// Calls the application's hook once after the engine has become idle. Returns when to look
    /// again, if that cannot wait for the next sweep.
    fn look_for_idleness(&mut self, moment: Moment) -> Option<Moment> {
        let hook = self.engine.options.on_idle.as_ref()?;
        if self.idleness.look(self.engine.activity(), moment) {
            self.engine.residents().shrink();
            self.engine.store.idle(hook);
            self.engine.runtime.on_each_thread(hook.clone());
        }
        self.idleness.look_at()
    }

    fn next_due_at(&self) -> Option<Timestamp> {
        let next = [self.next_wake_at, self.next_care_at].into_iter().flatten().min();
        next.filter(|_| !self.engine.is_closing())
    }

    /// Whether a timer of an execution, or the next look at one, is due by our clock.
    fn is_due(&self) -> bool {
        self.next_due_at().is_some_and(|at| at <= self.engine.runtime.now())
    }

    /// Resolves when the next timer of an execution, or the next look at one, is due.
    fn alarm(&self) -> BoxFuture<()> {
        let runtime = &self.engine.runtime;
        match self.next_due_at() {
            Some(_) if self.is_due() => runtime.sleep(self.ask_again_at.since(runtime.moment())),
            Some(at) => runtime.sleep_until(at),
            None => never(),
        }
    }

    /// Follows the engine to a new session, which has new notices and counts its requests anew.
    fn follow_session(&mut self) {
        let session = self.engine.session();
        if session != self.session {
            self.session = session;
            self.request = 0;
            self.wait = self.engine.store.wait(session);
            self.wants_claim = true;
            self.claim_after = self.engine.runtime.moment();
        }
    }

    fn take(&mut self, notices: Vec<Notice>) {
        let mut mail: BTreeMap<ExecutionKey, Vec<Arrival>> = BTreeMap::new();
        let mut notices = notices.into_iter();
        while let Some(notice) = notices.next() {
            match notice {
                Notice::Message { key, epoch, message, previous } => {
                    let mail = mail.entry(key).or_default();
                    mail.push(Arrival::Message { epoch, message, previous });
                    // The children of one parent answer one after the other.
                    let is_for_it =
                        |next: &&Notice| matches!(next, Notice::Message { key: other, .. } if *other == key);
                    let count = notices.as_slice().iter().take_while(is_for_it).count();
                    mail.reserve(count);
                    for notice in notices.by_ref().take(count) {
                        if let Notice::Message { epoch, message, previous, .. } = notice {
                            mail.push(Arrival::Message { epoch, message, previous });
                        }
                    }
                }
                Notice::Ready => self.wants_claim = true,
                Notice::Changed => {
                    self.wants_claim = true;
                    self.with_mail = true;
                }
                Notice::Intake => self.taking.want(),
            }
        }
        for (key, arrivals) in mail {
            self.engine.deliver(key, arrivals);
        }
    }

    /// Claims as many executions as fit. A claim whose answer was lost is repeated under its old
    /// number, so that it strands no execution. An engine that closes only asks for mail.
    async fn claim(&mut self) {
        let moment = self.engine.runtime.moment();
        let (is_sweep_due, is_closing) = (self.sweep_at <= moment, self.engine.is_closing());
        let sweep = is_sweep_due && !is_closing;
        // A few suspects are enough; behind more of them in the queue there may be other
        // executions, which are looked for now and then.
        let held_back = if sweep { 0 } else { self.engine.waiting_count() };
        let claim = Claim {
            session: self.session,
            request: self.request + 1,
            slots: self.engine.free_slots().min(self.pace.saturating_sub(held_back)),
            care_slots: if is_closing { 0 } else { CARE_COUNT },
            // Now and then in any case: a notice may have been lost silently.
            with_mail: self.with_mail || is_sweep_due,
            sweep,
        };
        match self.engine.store.claim(claim).await {
            Ok(claimed) => {
                self.failures = Pauses::default();
                self.request += 1;
                self.with_mail = false;
                let is_suspect = |leased: &&Leased| self.engine.suspicion(leased).is_some();
                let (count, suspect_count) =
                    (claimed.leased.len(), claimed.leased.iter().filter(is_suspect).count());
                self.pace = match (count, suspect_count) {
                    (0, _) => self.pace,
                    (_, 0) => self.pace.saturating_mul(2),
                    _ => FEW,
                };
                // More suspects are claimed when these have been dealt with.
                let is_enough = suspect_count + held_back > 0 && suspect_count == count;
                let is_full = self.engine.is_full_with(count);
                // A full engine claims again when an execution leaves, which kicks the dispatcher.
                self.wants_claim = claimed.more && !is_full && !is_enough;
                self.next_wake_at = claimed.next_wake_at;
                self.next_care_at = claimed.next_care_at;
                if claimed.intake {
                    self.taking.want();
                }
                if count + claimed.care.len() == 0 && self.is_due() {
                    self.ask_again_at = self.engine.runtime.moment().after(PAUSE);
                }
                for (key, newest) in claimed.mail {
                    self.engine.deliver(key, vec![Arrival::Newest(newest)]);
                }
                self.engine.adopt(claimed.leased.into_iter().map(Box::new));
                self.engine.look_after(claimed.care.into_iter().map(Box::new));
                if is_sweep_due {
                    self.engine.forget_early();
                    self.sweep_at = moment.after(self.engine.options.sweep_every);
                }
            }
            Err(error) => {
                self.wants_claim = true;
                self.failed(&error);
            }
        }
    }

    /// Puts the next claim off, but never for long, because nothing begins before it. The log has
    /// one warning for failures in a row.
    fn failed(&mut self, error: &Error) {
        if self.failures.is_first() {
            tracing::warn!(%error, "a claim did not go through; it is tried again");
        }
        self.claim_after =
            self.engine.runtime.moment().after(self.failures.next(error).min(LONGEST_OF_STORE));
    }
}
