//! Answers of children that take no row of the inbox, and repairs.

use std::sync::Arc;
use std::time::Duration;

use abide_core::{Body, Command, Message, Op, Parent, Start};
use abide_sqlite::SqliteStore;
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
