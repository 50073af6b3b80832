//! A repair loses nothing that was sent: messages stay for whoever may still read them, and a lost answer is given again.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use abide_core::{By, Command, Failure, FailureKind, Timestamp, Waiting};
use abide_sqlite::{Options, SqliteStore};
use abide_store::conformance::block_on;
use abide_store::{Changes, Clock, Commit, Hold, Store};

use crate::fixture::{
    Fixture, Held, Seat, address, complete, damaged, look, name, signal, start, step, submit,
};

/// A clock that tells another time whenever it is asked.
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

/// A retry opens a run that reads what the last one left unread.
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

/// It is whole, and says itself whose it is.
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
                      UPDATE abide_executions SET place = 0, rank = 0, since = 0 WHERE id = 'waiting'";
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
