//! Answers of children that take no row of the inbox are messages like all others.

use std::sync::Arc;
use std::time::Duration;

use abide_core::{
    Body, Command, Failure, FailureKind, Message, MessageId, Op, Parent, Payload, Start, Timestamp,
};
use abide_sqlite::SqliteStore;
use abide_store::conformance::block_on;
use abide_store::{
    Changes, Clock, Commit, CommitOutcome, Committed, Hold, InboxRead, Prune, Store, Submitted, View,
};

use crate::aside::park;
use crate::fixture::{
    Fixture, Held, Seat, address, complete, flow, kid, look, message, signal, start, step, submit,
};

/// A parent that is held, and its children.
pub(crate) struct Family {
    pub(crate) fixture: Fixture,
    pub(crate) store: Arc<SqliteStore>,
    seat: Seat,
    parent: Held,
    kids: Vec<Held>,
}

pub(crate) fn family(count: u32) -> Family {
    let fixture = Fixture::new();
    let store = fixture.open();
    let seat = fixture.seat(&store);
    let parent = seat.born("p");
    let mut family = Family { fixture, store, seat, parent, kids: Vec::new() };
    family.bear(0..count);
    family
}

fn start_of_kid(nth: u32) -> Message {
    let op = Op { nth, ..kid() }.child_result();
    let parent = Parent::new(address("p").id, 1, op, 2);
    message("start", &format!("k{nth}"), Body::Start(Start { parent: Some(parent), ..flow() }.into()))
}

pub(crate) fn done(nth: u32) -> String {
    format!("done:k{nth}:1")
}

fn fail() -> Command {
    Command::Fail(Failure::new(FailureKind::Error, "no"))
}

pub(crate) fn unread(store: &Arc<SqliteStore>) -> Vec<String> {
    look(store, "p").inbox.messages.iter().map(|message| message.id.as_str().to_owned()).collect()
}

pub(crate) fn committed(store: &Arc<SqliteStore>, commit: Commit) -> Committed {
    match block_on(store.commit(commit)).expect("it is answered") {
        CommitOutcome::Committed(committed) => committed,
        CommitOutcome::Fenced(fence) => panic!("fenced: {fence}"),
    }
}

impl Family {
    /// Starts children with a commit that keeps the lease.
    fn bear(&mut self, nths: impl Iterator<Item = u32>) {
        self.start(nths.map(start_of_kid).collect(), vec![]);
    }

    pub(crate) fn start(&mut self, outgoing: Vec<Message>, commands: Vec<Command>) {
        let commit = self.seat.draft(&mut self.parent, commands);
        let changes = Changes { outgoing, ..(*commit.changes).clone() };
        let commit = Commit { changes: Arc::new(changes), born_slots: 1_000, ..commit };
        let born = committed(&self.store, commit).born;
        self.kids.extend(born.into_iter().map(|leased| Held::from(*leased)));
    }

    /// Ends a child with its answer.
    fn end(&mut self, nth: usize, command: Command) {
        let kid = &mut self.kids[nth];
        let now: Timestamp = self.fixture.clock.now();
        let decision = kid.execution.decide(command.clone(), now).expect("it may end");
        let outgoing = vec![decision.outgoing.expect("the answer")];
        let commit = self.seat.draft(kid, vec![command]);
        let changes = Changes { outgoing, ..(*commit.changes).clone() };
        committed(&self.store, Commit { changes: Arc::new(changes), ..commit });
    }

    pub(crate) fn complete(&mut self, nths: &[usize]) {
        nths.iter().for_each(|nth| self.end(*nth, complete()));
    }

    pub(crate) fn reading(&mut self, ids: &[String], commands: Vec<Command>) -> Commit {
        let commit = self.seat.draft(&mut self.parent, commands);
        let consumed = ids.iter().map(|id| MessageId::new(id.as_str())).collect();
        let changes = Changes { consumed, ..(*commit.changes).clone() };
        Commit { changes: Arc::new(changes), ..commit }
    }

    /// Reads messages with a commit that keeps the lease.
    fn read(&mut self, ids: &[String]) {
        let commit = self.reading(ids, vec![]);
        committed(&self.store, commit);
    }

    fn row_count(&self) -> u32 {
        let count = "SELECT COUNT(*) FROM abide_inbox";
        self.fixture.raw().query_row(count, [], |row| row.get(0)).expect("rows are counted")
    }

    pub(crate) fn check_sound(&self) {
        assert_eq!(self.store.verify().expect("it is looked at").problems, Vec::<String>::new());
    }

    /// Returns what another process finds unread when it takes the parent over.
    fn taken_over(&self) -> Vec<String> {
        let theirs = self.fixture.open();
        self.fixture.clock.advance(Duration::from_secs(60));
        claimed(&mut self.fixture.seat(&theirs))
    }
}

/// Claims the parent, and returns its inbox.
pub(crate) fn claimed(seat: &mut Seat) -> Vec<String> {
    let leased = seat.claim(true).leased;
    let parent = leased.iter().find(|leased| leased.address().id.as_str() == "p").expect("it is ready");
    parent.inbox.messages.iter().map(|message| message.id.as_str().to_owned()).collect()
}

#[test]
fn an_answer_that_is_read_soon_takes_no_row() {
    let mut family = family(3);
    family.complete(&[0, 1]);
    assert_eq!(unread(&family.store), [done(0), done(1)]);
    assert_eq!(unread(&family.fixture.open()), [done(0), done(1)], "another process sees the same");
    family.check_sound();
    family.read(&[done(0)]);
    assert_eq!(unread(&family.store), [done(1)]);
    family.complete(&[2]);
    family.read(&[done(2), done(1)]);
    assert_eq!((unread(&family.store), family.row_count()), (vec![], 0));
    family.check_sound();
}

#[test]
fn answers_and_other_messages_are_in_order_of_arrival() {
    let mut family = family(3);
    family.complete(&[1]);
    submit(&family.store, vec![signal("s", "p")]).expect("it is taken");
    family.complete(&[0]);
    submit(&family.store, vec![signal("t", "p")]).expect("it is taken");
    family.complete(&[2]);
    let expected = [done(1), "s".to_owned(), done(0), "t".to_owned(), done(2)];
    assert_eq!(unread(&family.store), expected);
    for limit in [1, 2, 3] {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let read = InboxRead { key: family.parent.key, after, limit };
            let page = block_on(family.store.inbox(read)).expect("it is read");
            assert!(page.messages.len() <= limit);
            found.extend(page.messages.iter().map(|message| message.id.as_str().to_owned()));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(found, expected, "pages of {limit}");
    }
    assert_eq!(family.taken_over(), expected);
}

#[test]
fn an_answer_is_found_by_who_takes_the_parent_over() {
    let mut family = family(4);
    family.complete(&[2, 0, 1]);
    assert_eq!(family.row_count(), 0);
    assert_eq!(family.taken_over(), [done(2), done(0), done(1)]);
    family.check_sound();
}

#[test]
fn an_answer_that_was_read_is_not_read_again_after_a_takeover() {
    for read in [[0, 1], [2, 3], [0, 3], [3, 1]] {
        let mut family = family(5);
        family.complete(&[2, 0, 3, 1]);
        family.read(&read.map(done));
        let left: Vec<_> = [2, 0, 3, 1].into_iter().filter(|nth| !read.contains(nth)).map(done).collect();
        assert_eq!(unread(&family.store), left);
        assert_eq!(family.taken_over(), left, "after {read:?}");
    }
}

#[test]
fn an_answer_that_the_parent_has_not_seen_wakes_it_after_it_was_parked() {
    let mut family = family(3);
    family.complete(&[0, 1]);
    let commit = family.reading(&[done(0)], vec![step(1)]);
    park(&family.seat, commit);
    assert_eq!(unread(&family.store), [done(1)]);
    family.check_sound();
    assert_eq!(claimed(&mut family.seat), [done(1)]);
}

/// The messages of both have to be in order of arrival.
#[test]
fn a_message_of_another_process_comes_behind_the_answers() {
    let mut family = family(3);
    family.complete(&[0, 1]);
    let theirs = family.fixture.open();
    submit(&theirs, vec![signal("s", "p")]).expect("it is taken");
    assert_eq!(unread(&theirs), [done(0), done(1), "s".to_owned()]);
    family.complete(&[2]);
    assert_eq!(unread(&family.store), [done(0), done(1), "s".to_owned(), done(2)]);
    family.read(&[done(1), done(2)]);
    assert_eq!(unread(&family.store), [done(0), "s".to_owned()]);
    // The next children are kept again.
    family.bear(3..5);
    let row_count = family.row_count();
    family.complete(&[3]);
    assert_eq!((family.row_count(), unread(&family.store).len()), (row_count, 3));
    family.check_sound();
}

/// A write of another process, which has nothing to do with the family, makes the writer forget.
#[test]
fn answers_are_read_although_the_writer_has_forgotten_them() {
    for is_started in [false, true] {
        let mut family = family(3);
        family.complete(&[0, 1]);
        submit(&family.fixture.open(), vec![start("other")]).expect("it is taken");
        if is_started {
            family.bear(3..4);
        }
        family.complete(&[2]);
        family.read(&[done(1)]);
        assert_eq!(unread(&family.store), [done(0), done(2)]);
        family.read(&[done(2), done(0)]);
        assert_eq!(unread(&family.store), Vec::<String>::new());
        family.check_sound();
    }
}

#[test]
fn a_child_that_ends_in_another_process_answers_in_order() {
    let mut family = family(3);
    family.complete(&[0]);
    let theirs = family.fixture.open();
    let ours = std::mem::replace(&mut family.store, theirs);
    family.complete(&[1]);
    family.store = ours;
    family.complete(&[2]);
    assert_eq!(unread(&family.store), [done(0), done(1), done(2)]);
    family.read(&[done(0), done(1), done(2)]);
    assert_eq!(unread(&family.store), Vec::<String>::new());
}

#[test]
fn who_has_missed_a_notice_is_told_of_an_answer() {
    for is_forgotten in [false, true] {
        let mut family = family(2);
        family.complete(&[0, 1]);
        if is_forgotten {
            submit(&family.fixture.open(), vec![start("other")]).expect("it is taken");
        }
        let mail = family.seat.claim(false).mail;
        assert_eq!(mail, [(family.parent.key, MessageId::new(done(1)))], "forgotten: {is_forgotten}");
    }
}

/// What a refused operation has written is undone.
#[test]
fn who_has_missed_a_notice_is_told_of_an_answer_after_a_refusal() {
    let mut family = family(2);
    family.complete(&[0, 1]);
    submit(&family.fixture.open(), vec![start("other")]).expect("it is taken");
    let refused = vec![signal("s", "p"), signal("t", "unknown")];
    submit(&family.store, refused).expect_err("one of them is refused");
    let mail = family.seat.claim(false).mail;
    assert_eq!(mail, [(family.parent.key, MessageId::new(done(1)))]);
}

#[test]
fn an_answer_is_taken_once() {
    let mut family = family(3);
    family.complete(&[0, 1]);
    family.read(&[done(0)]);
    let answers = look(&family.store, "p").inbox.messages;
    let again = |id: String| Message { id: MessageId::new(id), ..answers[0].clone() };
    for id in [done(0), done(1)] {
        let submitted = submit(&family.store, vec![again(id)]).expect("it is answered");
        assert!(matches!(submitted[..], [Submitted::Duplicate(_)]), "{submitted:?}");
    }
    assert_eq!(unread(&family.store), [done(1)]);
    // One that is there before its child ends is the answer.
    submit(&family.store, vec![again(done(2))]).expect("it is taken");
    family.complete(&[2]);
    assert_eq!(unread(&family.store), [done(1), done(2)]);
}

#[test]
fn the_answer_of_a_child_outlives_it() {
    let mut family = family(3);
    family.complete(&[0, 1]);
    let answer = look(&family.store, "p").inbox.messages.remove(0);
    family.read(&[done(0)]);
    family.fixture.clock.advance(Duration::from_secs(1));
    let prune = Prune { finished_before: family.fixture.clock.now(), limit: 10 };
    assert_eq!(block_on(family.store.prune(prune)).expect("it is pruned"), 2);
    assert_eq!(unread(&family.store), [done(1)]);
    let submitted = submit(&family.store, vec![answer]).expect("it is answered");
    assert!(matches!(submitted[..], [Submitted::Duplicate(_)]), "{submitted:?}");
    family.read(&[done(1)]);
    family.check_sound();
}

#[test]
fn the_answer_of_a_child_outlives_its_run() {
    for is_read in [false, true] {
        let mut family = family(2);
        family.end(0, fail());
        let answer = look(&family.store, "p").inbox.messages.remove(0);
        if is_read {
            family.read(&[done(0)]);
        }
        submit(&family.store, vec![message("again", "k0", Body::Retry)]).expect("it is retried");
        let left: Vec<_> = (!is_read).then(|| done(0)).into_iter().collect();
        assert_eq!(unread(&family.store), left);
        let submitted = submit(&family.store, vec![answer]).expect("it is answered");
        assert!(matches!(submitted[..], [Submitted::Duplicate(_)]), "{submitted:?}");
        assert_eq!(family.taken_over(), left);
    }
}

#[test]
fn p6_a_retry_that_was_refused_for_damage_can_be_repeated() {
    let mut family = family(2);
    family.end(0, fail());
    let raw = family.fixture.raw();
    let read = "SELECT row, body FROM abide_journal JOIN abide_executions ON row = head WHERE id = 'k0'";
    let found = raw.query_row(read, [], |row| Ok((row.get(0)?, row.get(1)?)));
    let (head, body): (i64, Vec<u8>) = found.expect("it is there");
    let write = "UPDATE abide_journal SET body = ?2 WHERE row = ?1";
    let retry = || submit(&family.store, vec![message("again", "k0", Body::Retry)]);
    raw.execute(write, (head, b"damage, damage")).expect("the damage can be done");
    retry().expect_err("it is damaged");
    raw.execute(write, (head, body)).expect("it can be mended");
    let submitted = retry().expect("it is retried");
    assert!(matches!(submitted[..], [Submitted::Delivered(_)]), "{submitted:?}");
    assert_eq!(unread(&family.store), [done(0)]);
}

/// It is damaged, or a newer program wrote it.
#[test]
fn an_unread_answer_outlives_its_child_although_the_parent_cannot_be_read() {
    for is_pruned in [false, true] {
        let mut family = family(3);
        family.end(0, fail());
        family.complete(&[1]);
        let raw = family.fixture.raw();
        let read = "SELECT state FROM abide_executions WHERE id = 'p'";
        let state: Vec<u8> = raw.query_row(read, [], |row| row.get(0)).expect("it is there");
        let write = "UPDATE abide_executions SET state = ?1 WHERE id = 'p'";
        raw.execute(write, [vec![0]]).expect("the damage can be done");
        family.fixture.clock.advance(Duration::from_secs(1));
        if is_pruned {
            let prune = Prune { finished_before: family.fixture.clock.now(), limit: 10 };
            assert_eq!(block_on(family.store.prune(prune)).expect("it is pruned"), 2);
        } else {
            submit(&family.store, vec![message("again", "k0", Body::Retry)]).expect("it is retried");
        }
        raw.execute(write, [state]).expect("it can be mended");
        assert_eq!(unread(&family.store), [done(0), done(1)], "pruned: {is_pruned}");
        family.complete(&[2]);
        assert_eq!(unread(&family.store), [done(0), done(1), done(2)], "pruned: {is_pruned}");
        family.read(&[done(1)]);
        family.check_sound();
        assert_eq!(family.taken_over(), [done(0), done(2)], "pruned: {is_pruned}");
    }
}

#[test]
fn unread_answers_outlive_the_run_of_the_parent() {
    let mut family = family(2);
    family.complete(&[0]);
    let commit = family.reading(&[], vec![complete()]);
    committed(&family.store, commit);
    assert_eq!((unread(&family.store), family.row_count()), (vec![done(0)], 1));
    family.complete(&[1]);
    assert_eq!(unread(&family.store), [done(0)], "it came too late");
    family.check_sound();
    let mut family = self::family(2);
    family.complete(&[0]);
    family.seat.continue_as_new(&mut family.parent, vec![]);
    assert_eq!(unread(&family.store), [done(0)]);
    family.complete(&[1]);
    assert_eq!(unread(&family.store), [done(0)], "it is for another run");
}

#[test]
fn a_copy_has_the_answers() {
    let mut family = family(3);
    family.complete(&[1, 0]);
    family.read(&[done(1)]);
    let [copy, restored] = ["copy.db", "restored.db"].map(|name| family.fixture.folder.path().join(name));
    family.store.backup(&copy).expect("it is copied");
    SqliteStore::restore(&copy, &restored, &*family.fixture.clock).expect("it is restored");
    for path in [copy, restored] {
        let clock = family.fixture.clock.clone();
        let store = SqliteStore::open(&path, clock, Default::default()).expect("it can be opened");
        assert_eq!(unread(&store), [done(0)]);
        family.fixture.clock.advance(Duration::from_secs(60));
        assert_eq!(claimed(&mut family.fixture.seat(&store)), [done(0)]);
    }
}

/// The answer stands in its journal.
#[test]
fn the_answer_of_a_child_whose_state_is_damaged_is_found() {
    let mut family = family(2);
    family.complete(&[0]);
    let damage = "UPDATE abide_executions SET state = x'00' WHERE id = 'k0'";
    abide_sqlite::flaw::unbind(&family.fixture.raw());
    family.fixture.raw().execute_batch(damage).expect("the damage can be done");
    assert_eq!(unread(&family.store), [done(0)], "its journal is sound");
    assert_eq!(family.taken_over(), [done(0)]);
}

/// Another message of the same commit arrives first.
#[test]
fn what_a_child_sends_before_its_answer_arrives_before_it() {
    let mut family = family(1);
    let kid = &mut family.kids[0];
    let now = family.fixture.clock.now();
    let mut outgoing = vec![signal("last words", "p")];
    outgoing.extend(kid.execution.decide(complete(), now).expect("it may end").outgoing);
    let commit = family.seat.draft(kid, vec![complete()]);
    let changes = Changes { outgoing, ..(*commit.changes).clone() };
    committed(&family.store, Commit { changes: Arc::new(changes), ..commit });
    assert_eq!(unread(&family.store), ["last words".to_owned(), done(0)]);
}

/// Several messages are taken together or not at all.
#[test]
fn answers_outlive_what_is_undone() {
    let mut family = family(3);
    family.complete(&[0, 1]);
    let refused = vec![signal("s", "p"), signal("t", "unknown")];
    submit(&family.store, refused).expect_err("one of them is refused");
    assert_eq!(unread(&family.store), [done(0), done(1)]);
    family.read(&[done(1)]);
    family.complete(&[2]);
    assert_eq!(unread(&family.store), [done(0), done(2)]);
    let yielded = Commit { hold: Hold::Yield, ..family.reading(&[done(2)], vec![step(1)]) };
    committed(&family.store, yielded);
    assert_eq!(claimed(&mut family.seat), [done(0)]);
}

#[test]
fn p8_a_large_answer_takes_a_row() {
    for (size, row_count) in [(3_500, 0), (4_500, 1)] {
        let mut family = family(2);
        let result = Payload::from("x".repeat(size).as_str());
        family.end(0, Command::Complete { result, unused: Vec::new() });
        assert_eq!((unread(&family.store), family.row_count()), (vec![done(0)], row_count));
        assert_eq!(family.taken_over(), [done(0)]);
    }
}

/// The parent is the first execution, and its first child the second one. There are 2,048 marks.
#[test]
fn p8_the_answer_of_a_child_that_is_far_from_the_first_takes_a_row() {
    let mut family = family(1);
    // They do not wait before the next children.
    let start_at = Some(family.fixture.clock.now().after(Duration::from_secs(3_600)));
    let other = Arc::new(Start { start_at, ..flow() });
    let other = |nth| message("start", &format!("other {nth}"), Body::Start(Arc::clone(&other)));
    submit(&family.store, (0..2_045).map(other).collect()).expect("they are taken");
    family.bear(1..4);
    assert_eq!(family.kids.len(), 4);
    family.complete(&[1, 2, 3]);
    assert_eq!((unread(&family.store).len(), family.row_count()), (3, 1));
    family.read(&[done(2), done(3)]);
    assert_eq!(unread(&family.store), [done(1)]);
    assert_eq!(family.taken_over(), [done(1)]);
}
