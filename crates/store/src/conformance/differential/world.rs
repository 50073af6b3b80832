//! A store and the knowledge of its workers. It carries out steps, and puts the answers into words
//! that can be compared.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use abide_core::{
    Block, Body, Command, Digest, Failure, FailureKind, Kind, Message, MessageId, Namespace, Parent,
    SessionId, Start, Timestamp, Waiting,
};

use super::step::{Act, Extent, Keeping, Send, Step};
use super::tell::{self, Names};
use crate::conformance::held::{Draft, Held};
use crate::conformance::stretches::held;
use crate::conformance::transactions::transaction;
use crate::conformance::{Subject, UserTable, block_on, make};
use crate::{
    Agreement, Beat, Claim, Claimed, CommitOutcome, Heartbeat, Leased, Stretch, Submit, Submitted, Target,
    Worker, Workers,
};

pub(super) struct World {
    subject: Subject,
    seats: Vec<Seat>,
    held: Vec<Holding>,
    last: Option<Last>,
}

struct Seat {
    session: SessionId,
    request: u64,
    beat_count: u64,
}

/// A lease that a worker has or had.
struct Holding {
    held: Held,
    /// A commit whose answer was lost. The worker repeats it before the next one, as every worker
    /// must.
    lost: Option<Draft>,
}

/// The last operation, for repetition.
#[derive(Clone)]
enum Last {
    Submit(Submit),
    Claim(Claim),
    Commit(usize, Box<Draft>),
}

impl World {
    pub(super) fn new(subject: Subject) -> Self {
        Self { subject, seats: Vec::new(), held: Vec::new(), last: None }
    }

    pub(super) fn extent(&self) -> Extent {
        let open = (0..).zip(&self.held).filter(|(_, holding)| !holding.held.execution.is_finished());
        let open = open.map(|(index, _)| index).collect();
        Extent { session_count: self.seats.len(), held_count: self.held.len(), open }
    }

    /// Carries out a step and describes the answer.
    pub(super) fn apply(&mut self, step: &Step) -> Vec<String> {
        if matches!(step, Step::Look) {
            return self.everything();
        }
        vec![self.answer(step)]
    }

    fn answer(&mut self, step: &Step) -> String {
        match step {
            Step::Register { variant } => self.register(*variant),
            Step::Submit { sends, born_to } => {
                let messages = sends.iter().map(|send| self.message(send, None)).collect();
                let born_to = born_to.map(|index| self.seats[index].session);
                self.submit(Submit { messages, born_to, alone: false, stretch: None })
            }
            Step::Begin { .. } => self.begin(step),
            Step::Claim { session, slots, care_slots, with_mail, sweep } => {
                let seat = &mut self.seats[*session];
                seat.request += 1;
                let (session, request) = (seat.session, seat.request);
                let (slots, care_slots, with_mail, sweep) = (*slots, *care_slots, *with_mail, *sweep);
                self.claim(Claim { session, request, slots, care_slots, with_mail, sweep })
            }
            Step::Commit { .. } | Step::Transact { .. } | Step::Read { .. } if self.held.is_empty() => {
                "no lease was given yet".to_owned()
            }
            Step::Commit { held, .. } => self.commit(*held, step),
            Step::Transact { held, key, keep, lost } => self.transact(*held, *key, *keep, *lost),
            Step::Read { held } => self.read(*held),
            Step::Repeat => self.repeat(),
            Step::Heartbeat { session } => self.heartbeat(*session),
            Step::Retire { session } => {
                let retire =
                    crate::Retire { session: self.seats[*session].session, reason: "chance".to_owned() };
                format!("{:?}", block_on(self.subject.store.retire(retire)).is_ok())
            }
            Step::Advance { millis } => {
                self.subject.advance_ms(*millis);
                self.subject.now().to_string()
            }
            Step::Prune { age_ms, limit } => {
                let micros = self.subject.now().as_micros() - i64::try_from(*age_ms).unwrap_or(0) * 1_000;
                format!("pruned {}", self.subject.prune(Timestamp::from_micros(micros), *limit))
            }
            Step::Look => "it is told elsewhere".to_owned(),
        }
    }

    fn register(&mut self, variant: usize) -> String {
        let registered =
            block_on(self.subject.store.register(worker(variant))).expect("a worker is registered");
        self.seats.push(Seat { session: registered.session, request: 0, beat_count: 0 });
        format!("until {}", registered.expires_at)
    }

    /// Sends a heartbeat of a session that knows its leases. Whatever happened before, the store
    /// must have counted the same leases.
    fn heartbeat(&mut self, index: usize) -> String {
        let Seat { session, beat_count, .. } = self.seats[index];
        let leases = self.subject.leases(session);
        let old = leases.iter().filter(|lease| lease.given_beat + 2 <= beat_count);
        let digest = old.fold(Digest::default(), |sum, lease| sum.plus(Digest::of(lease.key.0, lease.epoch)));
        let beat = block_on(self.subject.store.heartbeat(Beat { digest: Some(digest), ..Beat::of(session) }));
        let beat = beat.expect("a heartbeat is answered");
        if let Heartbeat::Refreshed { leases, .. } = &beat {
            self.seats[index].beat_count += 1;
            assert_eq!(*leases, Agreement::Agreed, "session {session} holds what can be read");
        }
        format!("{beat:?}, {}", tell::leases(self, &leases))
    }

    fn submit(&mut self, submit: Submit) -> String {
        self.last = Some(Last::Submit(submit.clone()));
        match block_on(self.subject.store.submit(submit)) {
            Err(error) => tell::error(&error),
            Ok(submitted) => {
                let told: Vec<_> = submitted.iter().map(|one| tell::submitted(self, one)).collect();
                for one in submitted {
                    if let Submitted::Started(_, Some(leased)) = one {
                        self.adopt(*leased);
                    }
                }
                told.join("; ")
            }
        }
    }

    /// Starts an execution together with its first commit.
    fn begin(&mut self, step: &Step) -> String {
        let Step::Begin { session, to, variant, lag_ms, act, hold, outgoing, plain } = step else {
            return String::new();
        };
        let (session, now) = (self.seats[*session].session, self.subject.now());
        let at = Timestamp::from_micros(now.as_micros() - i64::try_from(*lag_ms).unwrap_or(0) * 1_000);
        let (id, start) = (format!("id {to}"), self.start(*variant, *to, None));
        let held = held(make::address(&id), (&start, at), session);
        let (draft, _) = acted(held.draft(now), &held, *act);
        let draft = self.keeping(draft, *hold, Vec::new()).born_slots(2);
        let draft =
            outgoing.iter().fold(draft, |draft, send| draft.emitting(self.message(send, Some(&held))));
        let stretch = Stretch { at, commit: (!plain).then(|| draft.commit()) };
        let messages = vec![make::start_of(&id, start)];
        let submit =
            Submit { messages, born_to: Some(session), alone: false, stretch: Some(Box::new(stretch)) };
        self.last = Some(Last::Submit(submit.clone()));
        let submitted = match block_on(self.subject.store.submit(submit)) {
            Err(error) => return tell::error(&error),
            Ok(mut submitted) => submitted.remove(0),
        };
        let told = tell::submitted(self, &submitted);
        match submitted {
            Submitted::Begun(key, Ok(committed)) => {
                let mut held = Held { key, ..held };
                if !plain {
                    held.follow(&draft);
                }
                self.held.push(Holding { held, lost: None });
                committed.born.into_iter().for_each(|leased| self.adopt(*leased));
            }
            Submitted::Started(_, Some(leased)) => self.adopt(*leased),
            _ => {}
        }
        told
    }

    fn claim(&mut self, claim: Claim) -> String {
        let last = Last::Claim(claim.clone());
        match block_on(self.subject.store.claim(claim)) {
            Err(error) => tell::error(&error),
            Ok(claimed) => {
                // A claim that leased nothing need not be remembered by a store, and may lease
                // something when it is repeated.
                self.last = Some(last).filter(|_| !claimed.leased.is_empty() || !claimed.care.is_empty());
                let told = tell::claimed(self, &claimed);
                self.learn(claimed);
                told
            }
        }
    }

    fn learn(&mut self, claimed: Claimed) {
        for (key, _) in claimed.mail {
            let inbox = self.subject.inbox(key);
            let newest = self.held.iter_mut().rev().find(|holding| holding.held.key == key);
            if let Some(holding) = newest {
                holding.held.inbox = inbox;
            }
        }
        let mut leased = claimed.leased;
        leased.extend(claimed.care);
        leased.sort_by(|a, b| a.address().cmp(b.address()));
        leased.into_iter().for_each(|leased| self.adopt(leased));
    }

    /// Takes over a lease: a new one, or one that the worker knows already.
    fn adopt(&mut self, leased: Leased) {
        let (key, lease) = (leased.key, leased.lease);
        let held = Held::of(leased);
        let known = self.held.iter_mut().find(|known| known.held.key == key && known.held.lease == lease);
        match known {
            Some(known) => *known = Holding { held, lost: None },
            None => self.held.push(Holding { held, lost: None }),
        }
    }

    fn commit(&mut self, index: usize, step: &Step) -> String {
        let Step::Commit { act, hold, outgoing, born_slots, lost, .. } = step else { return String::new() };
        if let Some(draft) = self.held[index].lost.take() {
            return format!("first the lost one: {}", self.resend(index, &draft));
        }
        let held = &self.held[index].held;
        let (draft, taken_count) = acted(held.draft(self.subject.now()), held, *act);
        let seen = held.inbox.iter().skip(taken_count).map(|message| message.id.clone()).collect();
        let draft = self.keeping(draft, *hold, seen).born_slots(*born_slots);
        let emitter = held.clone();
        let draft =
            outgoing.iter().fold(draft, |draft, send| draft.emitting(self.message(send, Some(&emitter))));
        self.last = Some(Last::Commit(index, Box::new(draft.clone())));
        if *lost {
            let outcome = self.subject.attempt(&draft);
            self.held[index].lost = matches!(outcome, CommitOutcome::Committed(_)).then_some(draft);
            return "lost".to_owned();
        }
        self.send(index, &draft)
    }

    /// Commits a transaction step that appends to a key of the user's table. Describes the value
    /// that the step saw there.
    fn transact(&mut self, index: usize, key: usize, keep: bool, lost: bool) -> String {
        if let Some(draft) = self.held[index].lost.take() {
            return format!("first the lost one: {}", self.resend(index, &draft));
        }
        let held = self.held[index].held.clone();
        if held.execution.decide(make::step("tx"), self.subject.now()).is_err() {
            return "it may not be recorded".to_owned();
        }
        let (UserTable { put, get }, key) = (self.subject.table, format!("key {key}"));
        let seen = Arc::new(Mutex::new(None));
        let told = seen.clone();
        let commit = transaction(&self.subject, &held, move |table| {
            let found = get(table, &key).unwrap_or_default();
            put(table, &key, &format!("{found}+"));
            *told.lock().expect("nobody panics with it") = Some(found);
            keep
        });
        let send = || block_on(self.subject.store.commit(commit.clone())).expect("a commit is answered");
        let first = send();
        let outcome = if lost { send() } else { first };
        self.last = None;
        let seen = seen.lock().expect("nobody panics with it").take();
        let CommitOutcome::Committed(committed) = outcome else {
            return format!("{} saw {seen:?}", tell::word(&outcome));
        };
        let record = committed.transacted.expect("the answer has the record");
        self.held[index].held.follow_transaction(&record);
        format!("{record:?} saw {seen:?}")
    }

    fn keeping(&self, draft: Draft, keeping: Keeping, seen: Vec<MessageId>) -> Draft {
        match keeping {
            Keeping::Keep => draft,
            Keeping::Yield => draft.yielded(),
            Keeping::Park { sleep_ms, blind } => {
                let sleep = sleep_ms.map(|millis| Waiting::Sleep { until: self.subject.later_ms(millis) });
                let draft = sleep.into_iter().fold(draft, Draft::waiting);
                draft.park_after(if blind { Vec::new() } else { seen })
            }
        }
    }

    fn send(&mut self, index: usize, draft: &Draft) -> String {
        let outcome = self.subject.attempt(draft);
        let exists = self.subject.find(&Target::Key(self.held[index].held.key)).is_some();
        let told = tell::outcome(self, &outcome, exists);
        if let CommitOutcome::Committed(committed) = outcome {
            self.held[index].held.follow(draft);
            committed.born.into_iter().for_each(|leased| self.adopt(*leased));
        }
        told
    }

    fn read(&mut self, index: usize) -> String {
        let held = &mut self.held[index].held;
        held.inbox = self.subject.inbox(held.key);
        let ids: Vec<_> = held.inbox.iter().map(|message| message.id.as_str()).collect();
        format!("unread: {ids:?}")
    }

    fn repeat(&mut self) -> String {
        match self.last.clone() {
            None => "nothing to repeat".to_owned(),
            Some(Last::Submit(submit)) => self.submit(submit),
            Some(Last::Claim(claim)) => self.claim(claim),
            Some(Last::Commit(index, draft)) => {
                self.held[index].lost = None;
                self.resend(index, &draft)
            }
        }
    }

    /// Sends a commit again. The answer may or may not repeat the leases of born executions; both
    /// are right, so the worker ignores them.
    fn resend(&mut self, index: usize, draft: &Draft) -> String {
        let outcome = self.subject.attempt(draft);
        let is_news = self.held[index].held.version == draft.version();
        if is_news && matches!(outcome, CommitOutcome::Committed(_)) {
            self.held[index].held.follow(draft);
        }
        tell::word(&outcome).to_owned()
    }

    /// Describes everything that can be read, one line for each item.
    pub(super) fn everything(&self) -> Vec<String> {
        let listed = self.subject.list(make::everything()).items;
        let find = |key| self.subject.find(&Target::Key(key)).expect("what is listed exists");
        let snapshots = listed.iter().map(|item| tell::snapshot(self, &find(item.key)));
        let feed = self.subject.feed();
        let items = feed.iter().map(|item| format!("feed {item:?}"));
        let histories =
            listed.iter().map(|item| format!("{:?}", self.subject.history(&Target::Key(item.key))));
        let workers = Workers { namespace: Namespace::default(), after: None, limit: 10_000 };
        let workers = block_on(self.subject.store.workers(workers)).expect("workers are listed");
        let live = workers.iter().filter(|row| row.is_live(self.subject.now()));
        let live = live.map(|row| format!("session until {} holds {}", row.expires_at, row.lease_count));
        snapshots.chain(histories).chain(items).chain(live).collect()
    }

    fn message(&self, send: &Send, emitter: Option<&Held>) -> Message {
        let id = |to: &usize| format!("id {to}");
        let message = |word: &str, number: &usize, to: &usize, body| {
            make::message(&format!("{word} {number}"), &id(to), body)
        };
        let reason = String::new();
        match send {
            Send::Start { to, variant } => make::start_of(&id(to), self.start(*variant, *to, emitter)),
            Send::Signal { to, id: number } => make::signal(&format!("signal {number}"), &id(to)),
            Send::Pause { to, id } => message("pause", id, to, Body::Pause { reason }),
            Send::Resume { to, id } => message("resume", id, to, Body::Resume),
            Send::Cancel { to, id } => message("cancel", id, to, Body::Cancel { reason }),
            Send::Terminate { to, id } => message("terminate", id, to, Body::Terminate { reason }),
            Send::Retry { to, id } => message("retry", id, to, Body::Retry),
        }
    }

    fn start(&self, variant: usize, to: usize, emitter: Option<&Held>) -> Start {
        let plain = match emitter.filter(|_| variant.is_multiple_of(2)) {
            Some(parent) => {
                let child = make::child_of(parent.id(), &format!("child {to}"));
                let run = parent.execution.run();
                Start { parent: child.parent.map(|parent| Parent { run, ..parent }), ..child }
            }
            None => make::flow(),
        };
        match variant {
            0..3 => plain,
            3 => Start { priority: 5, tags: vec![make::tag("k", "v")], ..plain },
            4 => Start { requires: vec![make::name("cuda")], ..plain },
            5 => Start { start_at: Some(self.subject.later_ms(40)), ..plain },
            6 => Start { lane: make::name("gpu"), deadline_at: Some(self.subject.later_ms(3_000)), ..plain },
            _ => Start { kind: Kind::Task, input: "other".into(), ..plain },
        }
    }
}

impl Names for World {
    fn session(&self, session: SessionId) -> String {
        let index = self.seats.iter().position(|seat| seat.session == session);
        index.map_or_else(|| "nobody".to_owned(), |index| format!("session {index}"))
    }

    fn execution(&self, key: crate::ExecutionKey) -> String {
        let found = self.subject.find(&Target::Key(key));
        found.map_or_else(|| "nothing".to_owned(), |found| found.execution.address().to_string())
    }

    fn now(&self) -> Timestamp {
        self.subject.now()
    }
}

fn worker(variant: usize) -> Worker {
    let mut worker = make::capable(if variant == 1 { &["cuda"] } else { &[] });
    if variant >= 2 {
        worker.ability.lanes = make::names(&["main", "gpu"]);
    }
    if variant == 3 {
        worker.ability.runs.insert((Kind::Task, make::name("flow")));
        worker.ttl = Duration::from_secs(3);
    }
    worker
}

/// Returns the draft with the commands of `act`, as far as they are possible, and the number of
/// messages that it takes.
fn acted(draft: Draft, held: &Held, act: Act) -> (Draft, usize) {
    match act {
        Act::Nothing => (draft, 0),
        Act::Steps(count) => {
            let steps = (0..count).map(|n| make::step(&format!("step {n}")));
            (steps.fold(draft, Draft::then_if_possible), 0)
        }
        Act::Block => {
            let block = Command::block(Block::Limit { reason: "by chance".to_owned() });
            (draft.then_if_possible(block), 0)
        }
        Act::Complete => (draft.then_if_possible(make::complete()), 0),
        Act::Fail => {
            (draft.then_if_possible(Command::Fail(Failure::new(FailureKind::Fatal, "by chance"))), 0)
        }
        Act::Continue(count) => {
            let (draft, taken_count) = acted(draft, held, Act::Steps(count));
            (draft.continued_if_possible("continued"), taken_count)
        }
        Act::Obey(count) => {
            let taken = held.inbox.iter().take(count);
            let taken_count = taken.len();
            let obeyed = taken.fold(draft, |draft, message| {
                let draft = draft.consuming(&[message.id.as_str()]);
                draft.then_if_possible(message.control().unwrap_or_else(|| make::step("received")))
            });
            (obeyed, taken_count)
        }
    }
}
