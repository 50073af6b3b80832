//! Answers of children that take no row of the inbox, and repairs.

use std::sync::Arc;
use std::time::Duration;

use abide_core::{Body, By, Command, Message, Op, Outcome, Parent, Start};
use abide_sqlite::{Discarded, SqliteStore};
use abide_store::Submitted;
use abide_store::conformance::block_on;

use crate::fixture::{address, flow, kid, look, message, submit};
use crate::kept::{Family, claimed, committed, done, family, unread};

/// Returns a parent whose journal says that it has started children.
fn recorded(count: u32) -> Family {
    let mut family = family(0);
    let (starts, records) = (0..count).map(start_of_kid).unzip();
    family.start(starts, records);
    family
}

/// Returns the start of a child, and its record in the journal of its parent.
fn start_of_kid(nth: u32) -> (Message, Command) {
    let (op, child) = (Op { nth: nth + 1, ..kid() }, address(&format!("k{nth}")).id);
    let parent = Parent::new(address("p").id, 1, op.child_result(), 2 + u64::from(nth));
    let start = Arc::new(Start { parent: Some(parent), ..flow() });
    let sent = message("start", child.as_str(), Body::Start(Arc::clone(&start)));
    (sent, Command::StartChild { op, child, start })
}

impl Family {
    /// Reads the first unread answer, and records its outcome.
    fn finish_first(&mut self) -> Message {
        let answer = look(&self.store, "p").inbox.messages.remove(0);
        let Body::ChildDone { op, outcome, .. } = answer.body.clone() else {
            panic!("no answer: {answer:?}")
        };
        let commit =
            self.reading(&[answer.id.as_str().to_owned()], vec![Command::FinishChild { op, outcome }]);
        committed(&self.store, commit);
        answer
    }

    /// Damages the file while its worker is dead, and opens it again.
    fn damage(&mut self, damage: &str) {
        self.store.close();
        abide_sqlite::flaw::unbind(&self.fixture.raw());
        self.fixture.raw().execute_batch(damage).expect("the damage can be done");
        self.fixture.clock.advance(Duration::from_secs(60));
        self.store = self.fixture.open();
    }

    fn repair(&self) {
        let repairs = block_on(self.store.repair()).expect("it is repaired");
        assert_eq!(repairs.left, Vec::<String>::new());
        self.check_sound();
    }
}

fn is_duplicate(store: &Arc<SqliteStore>, message: &Message) -> bool {
    let submitted = submit(store, vec![message.clone()]).expect("it is answered");
    matches!(submitted[..], [Submitted::Duplicate(_)])
}

/// Its journal does not tell where answers are, or which are read.
#[test]
fn the_answers_to_a_parent_outlive_its_damage() {
    for column in
        ["state = x'00'", "queue = 'x'", "epoch = 'x'", "parent = 7", "care_at = 'x'", "place = 'x'"]
    {
        for is_set_aside in [false, true] {
            let case = format!("{column}, set aside: {is_set_aside}");
            let mut family = recorded(3);
            family.complete(&[0, 1]);
            let read = family.finish_first();
            family.damage(&["UPDATE abide_executions SET ", column, " WHERE id = 'p'"].concat());
            if is_set_aside {
                family.fixture.seat(&family.store).claim(true);
            }
            family.repair();
            assert_eq!(unread(&family.store), [done(1)], "{case}");
            assert!(is_duplicate(&family.store, &read), "{case}");
            family.fixture.clock.advance(Duration::from_secs(60));
            assert_eq!(claimed(&mut family.fixture.seat(&family.store)), [done(1)], "{case}");
        }
    }
}

/// A child that has ended and cannot be rebuilt.
#[test]
fn the_answer_of_a_child_outlives_its_discard() {
    let lost = "UPDATE abide_executions SET state = x'00', place = 'x' WHERE id = 'k0';
                DELETE FROM abide_journal WHERE row = (SELECT MIN(row) FROM abide_journal WHERE execution = 2)";
    for is_read in [false, true] {
        let mut family = recorded(2);
        family.complete(&[0]);
        let answer = look(&family.store, "p").inbox.messages.remove(0);
        if is_read {
            family.finish_first();
        }
        family.damage(lost);
        let discarded = block_on(family.store.discard(&address("k0"), By("ann".into()), String::new()));
        assert_eq!(discarded.expect("it is looked at"), Discarded::Ended);
        let left: Vec<_> = (!is_read).then(|| done(0)).into_iter().collect();
        assert_eq!(unread(&family.store), left);
        assert!(is_duplicate(&family.store, &answer));
        let found = look(&family.store, "p").inbox.messages.pop().map(|found| found.body);
        assert_eq!(found, (!is_read).then(|| answer.body.clone()));
        assert_eq!(claimed(&mut family.fixture.seat(&family.store)), left);
    }
}

/// Its parent would wait for ever: it has ended, and cannot be ended again.
#[test]
fn p5_a_child_that_has_ended_and_whose_answer_is_lost_can_be_discarded() {
    let lost = "UPDATE abide_journal SET body = x'00' WHERE row = (SELECT head FROM abide_executions WHERE id = 'k0')";
    let discard = |family: &Family| {
        let discarded = block_on(family.store.discard(&address("k0"), By("ann".into()), String::new()));
        discarded.expect("it is looked at")
    };
    let mut unanswered = recorded(2);
    unanswered.complete(&[0]);
    unanswered.damage(lost);
    assert_eq!(unread(&unanswered.store), Vec::<String>::new());
    assert_eq!(discard(&unanswered), Discarded::Ended);
    unanswered.check_sound();
    let [answer] = &look(&unanswered.store, "p").inbox.messages[..] else { panic!("it has an answer") };
    assert!(matches!(&answer.body, Body::ChildDone { outcome: Outcome::Failure(_), .. }), "{answer:?}");
    assert_eq!(claimed(&mut unanswered.fixture.seat(&unanswered.store)), [done(0)]);
    // Nobody waits for it any more.
    let mut answered = recorded(2);
    answered.complete(&[0]);
    answered.finish_first();
    answered.damage(lost);
    assert_eq!(discard(&answered), Discarded::Over);
}
