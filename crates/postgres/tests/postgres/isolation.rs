//! Operations of two processes on one database, interleaved on real connections. A third connection
//! holds a lock in between, so that each order happens every time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use abide_core::{
    Ability, Address, Body, By, Command, Entry, Execution, ExecutionId, Fence, Kind, Message, MessageId,
    Name, Namespace, Payload, SessionId, Summary, codec,
};
use abide_postgres::{Options, PostgresStore};
use abide_store::conformance::{TestClock, block_on, bounds};
use abide_store::{
    Answer, Changes, Claim, Claimed, Clock, Commit, CommitOutcome, Error, ExecutionKey, Feed, FeedCursor,
    FeedFrom, Hold, Leased, Read, Record, Store, Submit, Target, View, Worker,
};

use crate::fixture::{Raw, Schema, options};

/// Two processes on one schema.
struct Pair {
    schema: Schema,
    clock: Arc<TestClock>,
    one: Arc<PostgresStore>,
    two: Arc<PostgresStore>,
    session: SessionId,
    request: u64,
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).expect("tests use good names")
}

pub(crate) fn message(id: &str, body: Body) -> Message {
    let to = Address { namespace: Namespace::default(), id: ExecutionId::new("a").expect("a good id") };
    Message::new(MessageId::new(id), to, By("ann".into()), body)
}

pub(crate) fn signal(id: &str) -> Message {
    message(id, Body::Signal { name: name("note"), payload: Payload::from("1") })
}

pub(crate) fn submit(messages: Vec<Message>) -> Submit {
    Submit { messages, born_to: None, alone: false, stretch: None }
}

impl Pair {
    /// Opens two stores. The second one serves what the tests start.
    fn new() -> Self {
        Self::with(options(bounds()))
    }

    fn with(options: Options) -> Self {
        let (schema, clock) = (Schema::new(), TestClock::new());
        let [one, two] = [(); 2].map(|()| schema.open(clock.clone(), options.clone()));
        let start = abide_core::fixture::flow();
        let ability = Ability {
            namespace: Namespace::default(),
            lanes: [start.lane.clone()].into(),
            runs: [(Kind::Workflow, start.name.clone())].into(),
            capabilities: BTreeSet::new(),
            build: None,
        };
        let worker = Worker { name: name("worker"), ability, ttl: Duration::from_secs(10) };
        let session = block_on(two.register(worker)).expect("a worker is registered").session;
        let pair = Self { schema, clock, one, two, session, request: 0 };
        pair.send(message("start", Body::Start(start.into())));
        pair
    }

    fn send(&self, message: Message) {
        block_on(self.one.submit(submit(vec![message]))).expect("the message is taken");
    }

    fn claim(&mut self) -> Claimed {
        self.request += 1;
        let claim = Claim {
            session: self.session,
            request: self.request,
            slots: 9,
            care_slots: 0,
            with_mail: false,
            sweep: false,
        };
        block_on(self.two.claim(claim)).expect("a live session may claim")
    }

    fn claim_one(&mut self) -> Leased {
        let mut leased = self.claim().leased;
        assert_eq!(leased.len(), 1, "it is ready");
        leased.remove(0)
    }

    /// Holds `lock`, and does `meanwhile` when the operation waits for it.
    fn while_blocked<T: Send>(
        &mut self,
        lock: &str,
        operation: impl FnOnce(&Self) -> Answer<T>,
        meanwhile: impl FnOnce(&mut Self, &mut Raw),
    ) -> abide_store::Result<T> {
        let mut raw = Raw::of(&self.schema);
        raw.run("BEGIN");
        raw.run(lock);
        let answer = operation(self);
        raw.until_somebody_waits(&self.schema);
        meanwhile(self, &mut raw);
        block_on(answer)
    }
}

/// Returns a commit of these commands, which parks.
pub(crate) fn parking(
    leased: &Leased,
    clock: &TestClock,
    (consumed, commands): (&[&str], Vec<Command>),
) -> Commit {
    let (mut after, mut records) = (leased.execution.clone(), Vec::new());
    for command in commands {
        let decision = after.decide(command, clock.now()).expect("it is possible");
        let (entries, _) = decision.record(&mut after, clock.now());
        records.extend(entries.iter().map(Record::of));
    }
    commit(leased, (records, &after), consumed)
}

fn commit(leased: &Leased, (records, after): (Vec<Record>, &Execution), consumed: &[&str]) -> Commit {
    let summary: Summary = after.summary(&[]);
    Commit {
        key: leased.key,
        lease: leased.lease,
        expected: leased.version,
        changes: Arc::new(Changes {
            records: records.into_iter().collect(),
            next: None,
            state: codec::encode(after),
            summary,
            consumed: consumed.iter().map(|id| MessageId::new(*id)).collect(),
            outgoing: Vec::new(),
        }),
        born_slots: 0,
        hold: Hold::Park { seen: Vec::new() },
        transaction: None,
        alone: false,
    }
}

fn committed(outcome: abide_store::Result<CommitOutcome>) {
    assert!(matches!(outcome, Ok(CommitOutcome::Committed(_))), "{outcome:?}");
}

/// Another submit of the same message, which has not committed.
const SAME_MESSAGE: &str = "
INSERT INTO inbox (execution, id, sort, body)
SELECT key, 'm', 0, NULL
FROM executions";

/// Somebody who has locked the row.
const ROW: &str = "SELECT key FROM executions FOR UPDATE";

/// A submit has read what it finds, and its statement has begun. Then a claim takes the execution,
/// and its holder parks it. Neither has seen the message.
#[test]
fn a_message_that_is_committed_after_a_claim_and_a_park_wakes() {
    let mut pair = Pair::new();
    let sent = |pair: &Pair| pair.one.submit(submit(vec![signal("m")]));
    let outcome = pair.while_blocked(SAME_MESSAGE, sent, |pair, raw| {
        let leased = pair.claim_one();
        assert!(leased.inbox.messages.is_empty(), "nobody can read it yet");
        let park = parking(&leased, &pair.clock, (&[], Vec::new()));
        committed(block_on(pair.two.commit(park)));
        assert!(pair.claim().leased.is_empty(), "it waits");
        raw.run("ROLLBACK");
    });
    outcome.expect("the message is taken");
    let leased = pair.claim_one();
    assert_eq!(leased.inbox.messages.len(), 1);
}

/// A park has read what its holder leaves behind, and waits for the row. Then a message comes. It
/// does not wait for the row.
#[test]
fn a_message_that_is_committed_during_a_park_wakes() {
    let mut pair = Pair::new();
    let leased = pair.claim_one();
    let park = |pair: &Pair| pair.two.commit(parking(&leased, &pair.clock, (&[], Vec::new())));
    let outcome = pair.while_blocked(ROW, park, |pair, raw| {
        pair.send(signal("m"));
        raw.run("ROLLBACK");
    });
    committed(outcome);
    assert_eq!(pair.claim_one().inbox.messages.len(), 1);
}

/// A submit finds an execution that is paused, and that no signal wakes. Before the signal is
/// there, the execution goes on, and waits for it.
#[test]
fn a_message_to_what_was_paused_wakes_what_goes_on() {
    let mut pair = Pair::new();
    pair.send(message("pause", Body::Pause { reason: "lunch".to_owned() }));
    let leased = pair.claim_one();
    let pause = Command::Pause { by: By("ann".into()), reason: "lunch".to_owned() };
    committed(block_on(pair.two.commit(parking(&leased, &pair.clock, (&["pause"], vec![pause])))));
    let sent = |pair: &Pair| pair.one.submit(submit(vec![signal("m")]));
    let outcome = pair.while_blocked(SAME_MESSAGE, sent, |pair, raw| {
        block_on(pair.two.submit(submit(vec![message("resume", Body::Resume)]))).expect("it is taken");
        let leased = pair.claim_one();
        let resume = Command::Resume { by: By("ann".into()) };
        committed(block_on(pair.two.commit(parking(&leased, &pair.clock, (&["resume"], vec![resume])))));
        assert!(pair.claim().leased.is_empty(), "it waits");
        raw.run("ROLLBACK");
    });
    outcome.expect("the message is taken");
    assert_eq!(pair.claim_one().inbox.messages.len(), 1);
}

/// A commit waits for the row. When it has it, another lease was granted.
#[test]
fn p3_a_commit_that_waited_for_a_takeover_is_fenced() {
    let mut pair = Pair::new();
    let leased = pair.claim_one();
    let stale = |pair: &Pair| pair.two.commit(parking(&leased, &pair.clock, (&[], Vec::new())));
    let outcome = pair.while_blocked(ROW, stale, |_, raw| {
        raw.run("UPDATE executions SET epoch = epoch + 1");
        raw.run("COMMIT");
    });
    let epoch = leased.lease.epoch;
    let fence = Fence::StaleEpoch { found: epoch, current: epoch.next() };
    assert!(matches!(outcome, Ok(CommitOutcome::Fenced(found)) if found == fence), "{outcome:?}");
    let mut raw = Raw::of(&pair.schema);
    let row = &raw.query("SELECT version, session IS NOT NULL FROM executions", &[])[0];
    assert_eq!((row.get::<_, i64>(0), row.get::<_, bool>(1)), (0, true), "nothing was written");
}

/// A fenced commit of a batch writes nothing, and its neighbours are written.
#[test]
fn p6_a_fenced_commit_does_not_harm_its_neighbours() {
    let mut pair = Pair::new();
    let leased = pair.claim_one();
    let good = parking(&leased, &pair.clock, (&[], Vec::new()));
    let stale = Commit { key: ExecutionKey(leased.key.0 + 1_000), ..good.clone() };
    let [fenced, good] = [stale, good].map(|commit| pair.two.commit(commit)).map(block_on);
    assert!(matches!(fenced, Ok(CommitOutcome::Fenced(Fence::Released))), "{fenced:?}");
    committed(good);
}

fn feed(store: &PostgresStore, from: FeedFrom) -> (usize, FeedCursor, bool) {
    let page = block_on(store.feed(Feed { from, limit: 100 })).expect("it is fed");
    (page.items.len(), page.next, page.is_end)
}

/// Somebody has drawn a place in the feed and has not committed. The next writer draws a higher
/// one.
#[test]
fn the_feed_does_not_pass_a_writer_that_is_still_open() {
    let pair = Pair::new();
    let (count, start, is_end) = feed(&pair.one, FeedFrom::Beginning);
    assert_eq!((count, is_end), (1, true));
    let mut raw = Raw::of(&pair.schema);
    raw.run("BEGIN");
    raw.run(
        "INSERT INTO feed (execution, run, at, happening, is_end) SELECT key, 1, 0, 8, FALSE FROM executions",
    );
    let later =
        Message { to: Address { id: ExecutionId::new("b").unwrap(), ..signal("").to }, ..start_of_flow() };
    pair.send(later);
    let (count, next, is_end) = feed(&pair.two, FeedFrom::After(start));
    assert_eq!((count, is_end), (0, false), "what is later is not told before");
    raw.run("COMMIT");
    let (count, _, is_end) = feed(&pair.two, FeedFrom::After(next));
    assert_eq!((count, is_end), (2, true));
}

/// A claim that waited for a second connection would wait for itself.
#[test]
fn a_claim_sets_damage_aside_on_its_only_connection() {
    for other_count in [0, 2] {
        let mut pair = Pair::with(Options { connection_count_max: 1, ..options(bounds()) });
        Raw::of(&pair.schema).run("UPDATE executions SET state = 'x'");
        for nth in 0..other_count {
            let id = ExecutionId::new(["other ", &nth.to_string()].concat()).expect("a good id");
            let to = Address { namespace: Namespace::default(), id };
            pair.send(Message { to, ..start_of_flow() });
        }
        assert_eq!(pair.claim().leased.len(), other_count);
        let read = Read {
            target: Target::Address(message("", Body::Resume).to),
            run: None,
            from: 1,
            limit: 0,
            with_inbox: false,
        };
        let found = block_on(pair.one.read(read));
        assert!(matches!(found, Err(Error::Corrupt { .. })), "{found:?}");
        assert!(pair.claim().leased.is_empty(), "it is not leased again");
    }
}

fn start_of_flow() -> Message {
    message("start b", Body::Start(abide_core::fixture::flow().into()))
}

#[test]
fn the_feed_is_not_stalled_by_what_writes_elsewhere() {
    let pair = Pair::new();
    let mut raw = Raw::of(&pair.schema);
    raw.run("BEGIN");
    raw.run("UPDATE executions SET takeovers = takeovers");
    let (count, _, is_end) = feed(&pair.one, FeedFrom::Beginning);
    assert_eq!((count, is_end), (1, true));
    raw.run("ROLLBACK");
}

#[test]
fn one_start_of_two_processes_creates_and_the_other_attaches() {
    let pair = Pair::new();
    for n in 0..20 {
        let id = ExecutionId::new(["raced ", &n.to_string()].concat()).expect("a good id");
        let start = || Message { to: Address { id: id.clone(), ..signal("").to }, ..start_of_flow() };
        let answers = [&pair.one, &pair.two].map(|store| store.submit(submit(vec![start()])));
        let keys = answers.map(|answer| block_on(answer).expect("it is taken")[0].key());
        assert_eq!(keys[0], keys[1], "both name one execution");
    }
}

/// The entries of tests are real ones.
#[test]
fn what_one_process_has_written_the_other_reads() {
    let mut pair = Pair::new();
    let leased = pair.claim_one();
    let first: Entry = leased.opening.first_entry().expect("it can be read");
    assert!(first.began().is_some());
}
