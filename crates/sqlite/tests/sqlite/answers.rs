//! A repair loses no message: messages stay for the runs that may still read them, and lost answers
//! are sent again.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use abide_core::{
    Body, By, Command, Failure, FailureKind, Kind, Message, Outcome, Parent, Payload, Start, Status,
    Timestamp, TreeOrder, Waiting,
};
use abide_sqlite::{Options, SqliteStore};
use abide_store::conformance::block_on;
use abide_store::{Changes, Clock, Commit, Hold, Store};

use crate::aside::{emit, park, with_status};
use crate::fixture::{
    Fixture, Held, Seat, address, complete, damaged, flow, kid, look, message, name, signal, start, step,
    submit, worker,
};

/// A clock that returns another time at each call.
struct Ticking(AtomicI64);

impl Clock for Ticking {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.fetch_add(1, Ordering::SeqCst))
    }
}

fn problems(store: &Arc<SqliteStore>) -> Vec<String> {
    store.verify().expect("it is looked at").problems
}

fn unread(store: &Arc<SqliteStore>, id: &str) -> Vec<String> {
    look(store, id).inbox.messages.iter().map(|message| message.id.as_str().to_owned()).collect()
}

fn claimed(seat: &mut Seat, id: &str) -> Held {
    let leased = seat.claim(true).leased.into_iter().map(Held::from);
    leased.into_iter().find(|held| held.execution.address().id.as_str() == id).expect("it is ready")
}

/// Records a command with the messages that follow from it.
fn decide(seat: &Seat, held: &mut Held, command: Command, now: Timestamp) {
    let decision = held.execution.decide(command.clone(), now).expect("it may be decided");
    let outgoing = decision.outgoing.into_iter().collect();
    let commit = seat.draft(held, vec![command]);
    let changes = Changes { outgoing, ..(*commit.changes).clone() };
    block_on(seat.store.commit(Commit { changes: Arc::new(changes), ..commit })).expect("it is recorded");
}

#[test]
fn a_state_is_sealed_with_the_version_that_is_written() {
    let fixture = Fixture::new();
    let store = fixture.open();
    submit(&store, vec![start("a")]).expect("it is taken");
    store.close();
    let damage = "UPDATE abide_executions SET version = 'x'";
    fixture.raw().execute_batch(damage).expect("the damage can be done");
    let clock = Arc::new(Ticking(fixture.clock.now().as_micros().into()));
    let store = SqliteStore::open(&fixture.path(), clock, Options::default()).expect("it can be opened");
    let repairs = block_on(store.repair()).expect("it is repaired");
    assert_eq!(repairs.rebuilt, [r#"execution "a": its state was rebuilt"#]);
    assert_eq!((repairs.left, problems(&store)), (Vec::new(), Vec::new()));
}

fn fail() -> Command {
    Command::Fail(Failure::new(FailureKind::Error, "no"))
}

/// A retry opens a run that reads the messages that the last one left unread.
#[test]
fn p4_a_damaged_message_of_what_may_be_retried_is_dropped_by_nobody_unasked() {
    let terminate = Command::Terminate { by: By::client(), reason: "enough".to_owned() };
    for end in [fail(), terminate] {
        let fixture = Fixture::new();
        let store = fixture.open();
        let seat = fixture.seat(&store);
        let mut held = seat.born("a");
        submit(&store, vec![signal("later", "a")]).expect("it is taken");
        seat.record(&mut held, vec![end]);
        let store = damaged(&fixture, &store, "UPDATE abide_inbox SET body = x'00' WHERE id = 'later'");
        let repairs = block_on(store.repair()).expect("it is looked at");
        assert_eq!(repairs.rebuilt, Vec::<String>::new());
        assert_eq!(repairs.left.len(), 1, "{repairs:?}");
        assert_eq!(problems(&store).len(), 1);
        block_on(store.drop_messages(&address("a"), By::client())).expect("somebody asks for it");
        assert_eq!(problems(&store), Vec::<String>::new());
    }
}

/// The message is intact, and names its addressee.
#[test]
fn p2_a_message_that_stands_under_another_is_put_back() {
    for end in [None, Some(fail()), Some(complete())] {
        let fixture = Fixture::new();
        let store = fixture.open();
        let mut seat = fixture.seat(&store);
        let mut other = seat.born("other");
        if let Some(end) = end {
            seat.record(&mut other, vec![end]);
        }
        let mut waiting = seat.born("waiting");
        let commit = seat.draft(&mut waiting, vec![step(1)]);
        let go = Waiting::Signal { name: name("s"), until: None };
        let changes = Changes { summary: waiting.execution.summary(&[go]), ..(*commit.changes).clone() };
        let hold = Hold::Park { seen: Vec::new() };
        block_on(store.commit(Commit { changes: Arc::new(changes), hold, ..commit })).expect("it is parked");
        seat.retire();
        submit(&store, vec![signal("go", "waiting")]).expect("it is taken");
        let damage = "UPDATE abide_inbox SET execution = 1;
                      UPDATE abide_executions SET place = 0, rank = 0, place_at = 0 WHERE id = 'waiting'";
        let store = damaged(&fixture, &store, damage);
        block_on(store.drop_messages(&address("other"), By::client())).expect("it is not other's to drop");
        let repairs = block_on(store.repair()).expect("it is repaired");
        assert_eq!(repairs.left, Vec::<String>::new());
        assert_eq!(problems(&store), Vec::<String>::new());
        assert_eq!(unread(&store, "waiting"), ["go"]);
        seat = fixture.seat(&store);
        claimed(&mut seat, "waiting");
    }
}

/// Returns a store with a parent that waits for its running child.
fn family(fixture: &Fixture) -> Arc<SqliteStore> {
    let store = fixture.open();
    let seat = fixture.seat(&store);
    let mut boss = seat.born("boss");
    let parent = Parent::new(address("boss").id, 1, kid().child_result(), 2);
    let begin = Arc::new(Start { parent: Some(parent), ..flow() });
    let start = Command::StartChild { op: kid(), child: address("kid").id, start: begin.clone() };
    let commit = seat.draft(&mut boss, vec![start]);
    let waiting = boss.execution.summary(&[Waiting::Child { id: address("kid").id }]);
    let outgoing = vec![message("start", "kid", Body::Start(begin))];
    let changes = Changes { summary: waiting, outgoing, ..(*commit.changes).clone() };
    let hold = Hold::Park { seen: Vec::new() };
    block_on(store.commit(Commit { changes: Arc::new(changes), hold, ..commit })).expect("it is parked");
    seat.retire();
    store
}

fn kid_ends(fixture: &Fixture, store: &Arc<SqliteStore>, end: Command) {
    let mut seat = fixture.seat(store);
    let mut held = claimed(&mut seat, "kid");
    decide(&seat, &mut held, end, fixture.clock.now());
    seat.retire();
}

#[test]
fn p5_a_lost_answer_of_a_child_is_told_and_given_again() {
    let ends = [complete(), fail(), Command::Terminate { by: By("ann".into()), reason: "enough".to_owned() }];
    let lost = r#"execution "boss": it waits for child "kid", which has ended, and the answer is lost"#;
    for end in ends {
        let whole = Fixture::new();
        let store = family(&whole);
        kid_ends(&whole, &store, end.clone());
        assert_eq!(problems(&store), Vec::<String>::new(), "its answer is there");
        let [expected] = &look(&store, "boss").inbox.messages[..] else { panic!("it has its answer") };
        for damage in ["namespace = x'01'", "namespace = 2", "id = 'bosz'"] {
            let fixture = Fixture::new();
            let store = family(&fixture);
            let damage = ["UPDATE abide_executions SET ", damage, " WHERE id = 'boss'"].concat();
            let store = damaged(&fixture, &store, &damage);
            kid_ends(&fixture, &store, end.clone());
            let repairs = block_on(store.repair()).expect("it is repaired");
            assert_eq!(repairs.left, Vec::<String>::new(), "{damage}");
            assert_eq!(repairs.rebuilt.len(), 2, "{damage}: {repairs:?}");
            assert_eq!(problems(&store), Vec::<String>::new(), "{damage}");
            assert_eq!(look(&store, "boss").inbox.messages, std::slice::from_ref(expected), "{damage}");
            claimed(&mut fixture.seat(&store), "boss");
        }
        let store = damaged(&whole, &store, "DELETE FROM abide_inbox WHERE execution = 1");
        assert_eq!(problems(&store), [lost]);
        let repairs = block_on(store.repair()).expect("it is repaired");
        let again = r#"execution "boss": the lost answer of its child "kid" was given again"#;
        assert_eq!((repairs.rebuilt, repairs.left), (vec![again.to_owned()], Vec::new()));
        assert_eq!(problems(&store), Vec::<String>::new());
    }
}

/// The drop was requested. The child's end is recorded, so its answer is not lost with the message.
#[test]
fn p5_an_answer_that_was_dropped_is_given_again() {
    let fixture = Fixture::new();
    let store = family(&fixture);
    kid_ends(&fixture, &store, complete());
    let store = damaged(&fixture, &store, "UPDATE abide_inbox SET body = x'00' WHERE execution = 1");
    block_on(store.drop_messages(&address("boss"), By::client())).expect("it is dropped");
    assert_eq!(problems(&store).len(), 1);
    block_on(store.repair()).expect("it is repaired");
    assert_eq!(problems(&store), Vec::<String>::new());
    let [answer] = &look(&store, "boss").inbox.messages[..] else { panic!("it has its answer") };
    let outcome = Outcome::Success(Payload::from("4"));
    assert_eq!(answer.body, Body::ChildDone { run: 1, op: kid().child_result(), outcome });
}

/// The holder took the answer from the inbox, and recorded nothing of it.
#[test]
fn p5_an_answer_that_was_read_and_left_no_trace_is_given_again() {
    let fixture = Fixture::new();
    let store = family(&fixture);
    kid_ends(&fixture, &store, complete());
    let [answer] = &look(&store, "boss").inbox.messages[..] else { panic!("it has its answer") };
    let mut seat = fixture.seat(&store);
    let mut boss = claimed(&mut seat, "boss");
    let mut commit = seat.draft(&mut boss, Vec::new());
    Arc::get_mut(&mut commit.changes).expect("it was not sent yet").consumed.push(answer.id.clone());
    park(&seat, commit);
    assert_eq!((unread(&store, "boss"), problems(&store).len()), (Vec::new(), 1));
    let repairs = block_on(store.repair()).expect("it is repaired");
    let again = r#"execution "boss": the lost answer of its child "kid" was given again"#;
    assert_eq!((repairs.rebuilt, repairs.left), (vec![again.to_owned()], Vec::new()));
    assert_eq!(problems(&store), Vec::<String>::new());
    let [found] = &look(&store, "boss").inbox.messages[..] else { panic!("it has its answer again") };
    assert_eq!((&found.id, &found.body), (&answer.id, &answer.body));
    claimed(&mut seat, "boss");
}

/// The child was retried since: the answer comes from the run that was the child.
#[test]
fn p5_the_answer_of_what_was_retried_since_is_given_again() {
    let fixture = Fixture::new();
    let store = family(&fixture);
    kid_ends(&fixture, &store, fail());
    submit(&store, vec![message("again", "kid", Body::Retry)]).expect("it is retried");
    assert_eq!(problems(&store), Vec::<String>::new());
    let store = damaged(&fixture, &store, "DELETE FROM abide_inbox WHERE execution = 1");
    assert_eq!(problems(&store).len(), 1);
    block_on(store.repair()).expect("it is repaired");
    assert_eq!(problems(&store), Vec::<String>::new());
    assert_eq!(unread(&store, "boss"), ["done:kid:1"]);
}

#[test]
fn p5_a_child_that_is_gone_is_told() {
    let fixture = Fixture::new();
    let store = family(&fixture);
    let gone = "DELETE FROM abide_executions WHERE id = 'kid';
                DELETE FROM abide_journal WHERE execution = 2; DELETE FROM abide_inbox WHERE execution = 2";
    let store = damaged(&fixture, &store, gone);
    let told = r#"execution "boss": it waits for child "kid", which is not there, and has no answer of it"#;
    assert_eq!(problems(&store), [told]);
    let repairs = block_on(store.repair()).expect("it is looked at");
    assert_eq!((repairs.rebuilt, repairs.left), (Vec::new(), vec![told.to_owned()]));
    assert_eq!(with_status(&store, Status::Waiting), ["boss"]);
}

/// Ends the parent, in a commit that informs its child.
fn boss_ends(fixture: &Fixture, store: &Arc<SqliteStore>) {
    boss_ends_with(fixture, store, |order| order.message(address("kid")));
}

/// Ends the parent, in a commit that sends this message.
fn boss_ends_with(fixture: &Fixture, store: &Arc<SqliteStore>, sent: fn(&TreeOrder) -> Message) {
    submit(store, vec![signal("wake", "boss")]).expect("it is taken");
    let mut seat = fixture.seat(store);
    let mut boss = claimed(&mut seat, "boss");
    let tree = boss.execution.decide(complete(), fixture.clock.now()).expect("it may be decided").tree;
    let sent = sent(&tree.expect("it has a child"));
    let commit = seat.draft(&mut boss, vec![complete()]);
    let changes = Changes { outgoing: vec![sent], ..(*commit.changes).clone() };
    block_on(store.commit(Commit { changes: Arc::new(changes), ..commit })).expect("it has ended");
    seat.retire();
}

#[test]
fn p5_a_lost_order_of_a_parent_is_told_and_given_again() {
    let whole = Fixture::new();
    let store = family(&whole);
    boss_ends(&whole, &store);
    assert_eq!(problems(&store), Vec::<String>::new(), "its order is there");
    let [expected] = &look(&store, "kid").inbox.messages[..] else { panic!("it has its order") };
    let fixture = Fixture::new();
    let store = family(&fixture);
    let store = damaged(&fixture, &store, "UPDATE abide_executions SET id = 'kie' WHERE id = 'kid'");
    boss_ends(&fixture, &store);
    let repairs = block_on(store.repair()).expect("it is repaired");
    let again = r#"execution "kid": the lost order of its parent "boss" to wind down was given again"#;
    assert_eq!(repairs.rebuilt, [r#"execution "kie": its row was put right: id, place"#, again]);
    assert_eq!((repairs.left, problems(&store)), (Vec::new(), Vec::new()));
    assert_eq!(look(&store, "kid").inbox.messages, std::slice::from_ref(expected));
    let store = damaged(&fixture, &store, "DELETE FROM abide_inbox WHERE execution = 2");
    let lost = r#"execution "kid": its parent "boss" has ended, and the order to wind down is lost"#;
    assert_eq!(problems(&store), [lost]);
}

/// An execution of abide's own informs the children if there are many. While it is under way, none
/// of them has missed anything.
#[test]
fn p5_an_order_is_lost_only_when_whoever_was_to_tell_it_has_ended() {
    let fixture = Fixture::new();
    let store = family(&fixture);
    boss_ends_with(&fixture, &store, |order| {
        let start = Start { kind: Kind::Builtin, ..flow() };
        message("start", order.delegate().as_str(), Body::Start(start.into()))
    });
    assert_eq!(problems(&store), Vec::<String>::new(), "it is yet to be told");
    let repairs = block_on(store.repair()).expect("it is looked at");
    assert_eq!((repairs.rebuilt, unread(&store, "kid")), (Vec::new(), Vec::new()));
    let mut teller = worker();
    teller.ability.runs = [(Kind::Builtin, name("flow"))].into();
    let mut seat = fixture.seat_of(&store, teller);
    let mut delegate = Held::from(seat.claim(true).leased.remove(0));
    seat.record(&mut delegate, vec![complete()]);
    let lost = r#"execution "kid": its parent "boss" has ended, and the order to wind down is lost"#;
    assert_eq!(problems(&store), [lost]);
}

/// Continues the parent as a new run.
fn boss_continues(fixture: &Fixture, store: &Arc<SqliteStore>) {
    submit(store, vec![signal("wake", "boss")]).expect("it is taken");
    let mut seat = fixture.seat(store);
    let mut boss = claimed(&mut seat, "boss");
    seat.continue_as_new(&mut boss, Vec::new());
    seat.retire();
}

/// The run that waited for the answer is over, with or without a repair before that.
#[test]
fn p4_no_answer_is_given_again_to_a_run_that_never_waited() {
    for is_repaired_before in [false, true] {
        let fixture = Fixture::new();
        let store = family(&fixture);
        kid_ends(&fixture, &store, complete());
        let store = damaged(&fixture, &store, "DELETE FROM abide_inbox WHERE execution = 1");
        assert_eq!(problems(&store).len(), 1);
        let mut expected = vec!["wake"];
        if is_repaired_before {
            block_on(store.repair()).expect("it is repaired");
            expected.insert(0, "done:kid:1");
        }
        boss_continues(&fixture, &store);
        assert_eq!(problems(&store), Vec::<String>::new());
        let repairs = block_on(store.repair()).expect("it is looked at");
        assert_eq!((repairs.rebuilt, repairs.left), (Vec::new(), Vec::new()));
        assert_eq!(unread(&store, "boss"), expected);
    }
}

/// The parent's run has ended, though the parent goes on.
#[test]
fn p5_a_lost_order_of_a_run_that_continued_is_told_and_given_again() {
    let fixture = Fixture::new();
    let store = family(&fixture);
    boss_continues(&fixture, &store);
    let lost = r#"execution "kid": its parent "boss" has ended, and the order to wind down is lost"#;
    assert_eq!(problems(&store), [lost]);
    let repairs = block_on(store.repair()).expect("it is repaired");
    assert_eq!((repairs.rebuilt.len(), repairs.left), (1, Vec::new()));
    assert_eq!(problems(&store), Vec::<String>::new());
    let kid = look(&store, "kid");
    let [order] = &kid.inbox.messages[..] else { panic!("it has its order") };
    assert!(matches!(order.body, Body::Cancel { .. }) && kid.execution.is_meant_by(order), "{order:?}");
}

/// The order cannot be judged on arrival, and when it can be, the sender is already in another run.
#[test]
fn p5_an_order_to_what_is_damaged_outlives_the_run_that_gave_it() {
    let fixture = Fixture::new();
    let store = family(&fixture);
    let store = damaged(&fixture, &store, "UPDATE abide_executions SET state = x'00' WHERE id = 'kid'");
    submit(&store, vec![signal("wake", "boss")]).expect("it is taken");
    let mut seat = fixture.seat(&store);
    let mut boss = claimed(&mut seat, "boss");
    // The order is sent with a step before it: the fixture sends nothing with the end of a run.
    let (now, mut later) = (fixture.clock.now(), boss.execution.clone());
    later.decide(step(1), now).expect("it may be decided").record(&mut later, now);
    let next = Command::ContinueAsNew { input: Payload::from("next") };
    let tree = later.decide(next, now).expect("it may be decided").tree;
    let order = tree.expect("it has a child").message(address("kid"));
    assert_eq!(emit(&seat, &mut boss, order.clone()), 0);
    seat.continue_as_new(&mut boss, Vec::new());
    seat.retire();
    assert_eq!(block_on(store.repair()).expect("it is repaired").left, Vec::<String>::new());
    let kid = look(&store, "kid");
    let [found] = &kid.inbox.messages[..] else { panic!("it has its order: {:?}", kid.inbox) };
    assert_eq!((&found.id, &found.body, &found.descent), (&order.id, &order.body, &order.descent));
    assert!(kid.execution.is_meant_by(found));
    assert_eq!(problems(&store), Vec::<String>::new());
}
