//! Damaged executions that cannot be rebuilt are discarded.

use std::sync::Arc;
use std::time::Duration;

use abide_core::{Body, By, Command, Outcome, Parent, Payload, Start, Status};
use abide_sqlite::{Discarded, SqliteStore};
use abide_store::Error;
use abide_store::conformance::block_on;

use crate::aside::{six, with_status};
use crate::fixture::{
    Fixture, Held, address, complete, damaged, flow, kid, look, message, signal, start, step, submit,
};

/// Returns a store with a child, whose parent waits for it in its second run, and its own child.
fn family() -> (Fixture, Arc<SqliteStore>) {
    let fixture = Fixture::new();
    let store = fixture.open();
    let child_of = |of: &str, run| {
        let parent = Some(Parent::new(address(of).id, run, kid().child_result(), 3));
        Arc::new(Start { parent, ..flow() })
    };
    let seat = fixture.seat(&store);
    let mut boss = seat.born("boss");
    seat.continue_as_new(&mut boss, vec![step(1)]);
    let begin = Command::StartChild { op: kid(), child: address("bad").id, start: child_of("boss", 2) };
    seat.record(&mut boss, vec![step(1), begin, step(2)]);
    seat.retire();
    let child = |id: &str, start| message("start", id, Body::Start(start));
    let messages = vec![
        child("bad", child_of("boss", 2)),
        signal("s", "bad"),
        child("grand", child_of("bad", 1)),
        start("q"),
    ];
    submit(&store, messages).expect("they are taken");
    (fixture, store)
}

fn discard(store: &Arc<SqliteStore>, id: &str) -> Discarded {
    let by = By("ann".into());
    block_on(store.discard(&address(id), by, "beyond repair".to_owned())).expect("it is looked at")
}

#[test]
fn what_cannot_be_rebuilt_can_be_ended() {
    let state = "UPDATE abide_executions SET state = x'00' WHERE id = 'bad'; ";
    let journal = "UPDATE abide_journal SET body = x'00' WHERE execution = 2; ";
    let queue = "UPDATE abide_executions SET queue = 999 << 16 WHERE id = 'bad'; ";
    let inbox = "UPDATE abide_inbox SET body = x'00' WHERE execution = 2; ";
    let damages = [
        journal.to_owned(),
        inbox.to_owned(),
        format!("{state}{inbox}"),
        format!("{queue}{inbox}"),
        // Only the parent's journal says what the parent waits for.
        format!("{state}{journal}"),
    ];
    for damage in damages {
        let (fixture, store) = family();
        let store = damaged(&fixture, &store, &damage);
        assert_eq!(discard(&store, "bad"), Discarded::Ended, "{damage}");
        let found = store.verify().expect("it is looked at");
        assert!(found.is_sound(), "{damage}: {:?}", found.problems);
        assert_eq!(with_status(&store, Status::Cancelled), ["bad"], "{damage}");
        let told = look(&store, "boss").inbox.messages;
        let is_answer = |body: &Body| match body {
            Body::ChildDone { run, op, outcome: Outcome::Failure(_) } => {
                *run == 2 && *op == kid().child_result()
            }
            _ => false,
        };
        assert!(told.iter().any(|message| is_answer(&message.body)), "{damage}: {told:?}");
        let parent = look(&store, "bad").execution.parent().cloned();
        assert_eq!(parent.map(|parent| parent.id), Some(address("boss").id), "{damage}");
        let grand = look(&store, "grand").inbox.messages;
        let reason = r#"its parent "bad" was discarded: beyond repair"#.to_owned();
        assert_eq!(grand[0].body, Body::Terminate { reason }, "{damage}");
        assert_eq!(fixture.seat(&store).claim(true).leased.len(), 3, "{damage}: the others go on");
    }
}

/// `verify` reports each of them, so each can be ended.
#[test]
fn whatever_the_damage_is_it_can_be_ended() {
    let damages = [
        "UPDATE abide_executions SET queue = 999 << 16 WHERE id = 'bad'",
        "UPDATE abide_executions SET queue = 'x' WHERE id = 'bad'",
        "UPDATE abide_executions SET epoch = x'00' WHERE id = 'bad'",
        "UPDATE abide_executions SET version = 'x' WHERE id = 'bad'",
        "UPDATE abide_executions SET head = 'x' WHERE id = 'bad'",
        "UPDATE abide_executions SET place = 'x' WHERE id = 'bad'",
        "UPDATE abide_executions SET care_at = 'x' WHERE id = 'bad'",
        "UPDATE abide_executions SET parent = 'x' WHERE id = 'bad'",
        "UPDATE abide_executions SET parent_run = 'x' WHERE id = 'grand'; DELETE FROM abide_journal WHERE execution = 2",
        "DELETE FROM abide_routes WHERE id = 1; UPDATE abide_journal SET body = x'00' WHERE execution = 3",
    ];
    for damage in damages {
        let (fixture, store) = family();
        let store = damaged(&fixture, &store, damage);
        assert_eq!(discard(&store, "bad"), Discarded::Ended, "{damage}");
        assert_eq!(with_status(&store, Status::Cancelled), ["bad"], "{damage}");
    }
    let (fixture, store) = family();
    let store = damaged(&fixture, &store, "UPDATE abide_executions SET id = x'00' WHERE id = 'bad'");
    assert_eq!(discard(&store, "abide:damaged/2"), Discarded::Ended);
    assert_eq!(with_status(&store, Status::Cancelled), ["bad"]);
}

/// The execution may be in that namespace, so the store must not call it unknown.
#[test]
fn nothing_is_said_of_a_namespace_whose_name_is_damaged() {
    let (fixture, store) = family();
    let store = damaged(&fixture, &store, "UPDATE abide_names SET name = 'defbult'");
    let told = block_on(store.discard(&address("bad"), By::client(), String::new()));
    assert!(matches!(told, Err(Error::Corrupt { .. })), "{told:?}");
}

#[test]
fn a_child_is_discarded_also_when_its_parent_is_damaged_too() {
    let (fixture, store) = family();
    let damage = "UPDATE abide_journal SET body = x'00' WHERE execution < 3;
                  UPDATE abide_executions SET state = x'00' WHERE id IN ('bad', 'boss')";
    let store = damaged(&fixture, &store, damage);
    for id in ["bad", "boss"] {
        assert_eq!(discard(&store, id), Discarded::Ended, "{id}");
    }
    let found = store.verify().expect("it is looked at");
    assert!(found.is_sound(), "{:?}", found.problems);
}

/// Its runs would be counted from the start, and would reuse the keys and ids of the lost ones.
#[test]
fn what_was_discarded_with_its_input_is_not_retried_either() {
    let (fixture, store) = six();
    let store = damaged(&fixture, &store, "UPDATE abide_inbox SET body = x'00' WHERE execution = 1");
    assert_eq!(discard(&store, "bad"), Discarded::Ended);
    let refused = submit(&store, vec![message("again", "bad", Body::Retry)]).expect_err("it is refused");
    assert_eq!(refused.to_string(), "it was damaged, and was discarded");
}

#[test]
fn p4_what_has_ended_is_not_discarded() {
    let (fixture, store) = six();
    let mut seat = fixture.seat(&store);
    let mut held = seat.claim(true).leased.into_iter().map(Held::from);
    let mut bad = held.find(|held| held.execution.address().id.as_str() == "bad").expect("it is held");
    seat.record(&mut bad, vec![step(1)]);
    seat.record(&mut bad, vec![complete()]);
    seat.retire();
    let store =
        damaged(&fixture, &store, "UPDATE abide_journal SET body = x'00' WHERE execution = 1 AND seq = 2");
    assert_eq!(discard(&store, "bad"), Discarded::Over);
    assert_eq!(with_status(&store, Status::Completed), ["bad"]);
}

#[test]
fn what_was_discarded_without_its_input_is_neither_retried_nor_found_by_a_start() {
    let damage = "UPDATE abide_journal SET body = x'00' WHERE execution = 1;
                  UPDATE abide_executions SET state = x'00' WHERE id = 'bad'";
    let (fixture, store) = six();
    let store = damaged(&fixture, &store, damage);
    assert_eq!(discard(&store, "bad"), Discarded::Ended);
    let refused = |message| match submit(&store, vec![message]) {
        Err(Error::Refused(refusal)) => refusal.to_string(),
        other => panic!("expected a refusal, found {other:?}"),
    };
    assert_eq!(refused(message("again", "bad", Body::Retry)), "it was damaged, and was discarded");
    let null = flow().with_input(Payload::from("null"));
    let asked = refused(message("start", "bad", Body::Start(null.into())));
    let exists = r#""bad" exists as workflow "flow", which was damaged and discarded, the request is for workflow "flow" with input null"#;
    assert_eq!(asked, exists);
}

#[test]
fn only_what_is_damaged_and_held_by_nobody_is_discarded() {
    let (fixture, store) = family();
    assert_eq!(discard(&store, "nobody"), Discarded::Unknown);
    assert_eq!(discard(&store, "bad"), Discarded::Sound);
    let queue = "UPDATE abide_executions SET queue = 999 << 16, state = x'00' WHERE id = 'bad'";
    fixture
        .raw()
        .execute_batch(&format!("{queue}; UPDATE abide_journal SET body = x'00' WHERE execution = 2"))
        .expect("the damage can be done");
    assert_eq!(discard(&store, "bad"), Discarded::Unreadable);
    let mut seat = fixture.seat(&store);
    seat.claim(true);
    fixture
        .raw()
        .execute_batch("UPDATE abide_executions SET state = x'00' WHERE id = 'q'")
        .expect("the damage can be done");
    assert_eq!(discard(&store, "q"), Discarded::Held);
}

/// The sheet is sealed without the column of its place, and is right.
#[test]
fn p4_what_its_state_says_has_ended_is_not_discarded_wherever_it_stands() {
    for damage in ["place = 5", "place = 0", "place = 'x'", "place = 8, rank = 0"] {
        let (fixture, store) = six();
        let mut seat = fixture.seat(&store);
        let mut held = seat.claim(true).leased.into_iter().map(Held::from);
        let mut bad = held.find(|held| held.execution.address().id.as_str() == "bad").expect("it is held");
        seat.record(&mut bad, vec![step(1)]);
        seat.record(&mut bad, vec![complete()]);
        seat.retire();
        let place = ["UPDATE abide_executions SET ", damage, " WHERE id = 'bad'; "].concat();
        let journal = "UPDATE abide_journal SET body = x'00' WHERE execution = 1 AND seq = 2";
        let store = damaged(&fixture, &store, &[&place, journal].concat());
        assert_eq!(discard(&store, "bad"), Discarded::Over, "{damage}");
        assert_eq!(with_status(&store, Status::Cancelled), Vec::<String>::new(), "{damage}");
    }
}

/// Its place says that it has ended, and its state says that it has not. It could neither be
/// rebuilt nor ended.
#[test]
fn what_only_seems_to_have_ended_is_discarded() {
    let (fixture, store) = six();
    let damage = "UPDATE abide_executions SET place = 4, rank = 0, place_at = 7 WHERE id = 'bad';
                  UPDATE abide_journal SET body = x'00' WHERE execution = 1";
    let store = damaged(&fixture, &store, damage);
    assert_eq!(discard(&store, "bad"), Discarded::Ended);
    assert_eq!(with_status(&store, Status::Cancelled), ["bad"]);
}

/// No worker is running, and none will be before an operator has repaired the store.
#[test]
fn what_a_dead_worker_held_is_repaired_and_discarded() {
    let expired = |fixture: &Fixture| fixture.clock.advance(Duration::from_secs(3_600));
    let killed = |_: &Fixture| {};
    for dies in [&expired as &dyn Fn(&Fixture), &killed] {
        let fixture = Fixture::new();
        let store = fixture.open();
        let seat = fixture.seat(&store);
        let (mut sound, mut bad) = (seat.born("sound"), seat.born("bad"));
        seat.record(&mut sound, vec![step(1)]);
        seat.record(&mut bad, vec![step(1)]);
        drop(seat);
        let damage = "UPDATE abide_executions SET state = x'00';
                      UPDATE abide_journal SET body = x'00' WHERE execution = 2";
        let store = damaged(&fixture, &store, damage);
        dies(&fixture);
        let repairs = block_on(store.repair()).expect("it is repaired");
        assert_eq!(repairs.rebuilt, [r#"execution "sound": its state was rebuilt"#]);
        assert_eq!(repairs.left.len(), 1, "{repairs:?}");
        assert_eq!(discard(&store, "bad"), Discarded::Ended);
        let found = store.verify().expect("it is looked at");
        assert!(found.is_sound(), "{:?}", found.problems);
        let ids: Vec<_> = fixture.seat(&store).claim(true).leased.into_iter().map(Held::from).collect();
        assert_eq!(ids.len(), 1, "it goes on");
    }
}

/// The holder sets the execution aside, and until then nothing is hidden.
#[test]
fn what_a_worker_holds_is_told_and_left_alone() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let seat = fixture.seat(&store);
    seat.born("bad");
    fixture.raw().execute_batch("UPDATE abide_executions SET state = x'00'").expect("the damage can be done");
    let repairs = block_on(store.repair()).expect("it is looked at");
    assert_eq!(repairs.rebuilt, Vec::<String>::new());
    assert_eq!(
        repairs.left,
        [r#"execution "bad" is held by a worker, which sets it aside when it reads it"#]
    );
    assert_eq!(discard(&store, "bad"), Discarded::Held);
}

/// The children of a run are asked to stop when it ends, and may still be running during the next
/// one. All children without a parent end, whatever their run.
#[test]
fn children_of_earlier_runs_end_with_a_discarded_parent() {
    for damage in ["UPDATE abide_inbox SET body = x'00'", "DELETE FROM abide_journal WHERE execution = 1"] {
        let fixture = Fixture::new();
        let store = fixture.open();
        let seat = fixture.seat(&store);
        let mut boss = seat.born("boss");
        seat.continue_as_new(&mut boss, vec![step(1)]);
        seat.continue_as_new(&mut boss, vec![step(1)]);
        seat.retire();
        let child = |id: &str, run| {
            let parent = Some(Parent::new(address("boss").id, run, kid().child_result(), 2));
            message("start", id, Body::Start(Start { parent, ..flow() }.into()))
        };
        let messages = vec![child("first", 1), child("second", 2), child("third", 3), signal("s", "boss")];
        submit(&store, messages).expect("they are taken");
        let store = damaged(&fixture, &store, damage);
        assert_eq!(discard(&store, "boss"), Discarded::Ended, "{damage}");
        for id in ["first", "second", "third"] {
            let told = look(&store, id);
            let [order] = &told.inbox.messages[..] else { panic!("{damage}: {id}: {:?}", told.inbox) };
            assert!(matches!(order.body, Body::Terminate { .. }), "{damage}: {id}: {order:?}");
            assert!(told.execution.is_meant_by(order), "{damage}: {id}: {order:?}");
        }
        assert_eq!(store.verify().expect("it is looked at").problems, Vec::<String>::new(), "{damage}");
        assert_eq!(block_on(store.repair()).expect("it is looked at").rebuilt, Vec::<String>::new());
    }
}

/// Epochs only grow, even if the last one is lost.
#[test]
fn p3_what_was_discarded_has_an_epoch_that_nobody_had() {
    let journal = "UPDATE abide_journal SET body = x'00' WHERE execution = 1";
    for damage in [journal, "UPDATE abide_executions SET epoch = 'x'"] {
        let fixture = Fixture::new();
        let store = fixture.open();
        let seat = fixture.seat(&store);
        let held = seat.born("bad");
        seat.retire();
        let store = damaged(&fixture, &store, damage);
        assert_eq!(discard(&store, "bad"), Discarded::Ended, "{damage}");
        assert!(look(&store, "bad").lease.epoch > held.lease.epoch, "{damage}");
    }
}
