//! Tests of the writer.

use abide_store::conformance::block_on;
use abide_store::{Notice, Store};

use super::*;
use crate::fixture::{pair, register, start};

/// Nobody but the poll thread looks here: this store writes nothing.
#[test]
fn what_others_write_while_there_is_no_connection_is_news() {
    let (_folder, ours, theirs) = pair();
    let session = register(&ours, "default");
    let desk = ours.desk().unwrap();
    let mut writer = desk.lock_writer();
    writer.look_up().unwrap();
    writer.give_up();
    start(&theirs, "a");
    drop(writer);
    assert_eq!(block_on(ours.wait(session)).unwrap(), [Notice::Changed]);
}

struct Panics;

impl Operation for Panics {
    type Output = ();
    const WHAT: &'static str = "panic";

    fn apply(&mut self, _: &mut Batch<'_>) -> Result<(), crate::error::Stop> {
        panic!("on purpose")
    }
}

#[test]
fn an_operation_that_panics_is_not_told_as_a_store_that_is_closed() {
    let (_folder, ours, _theirs) = pair();
    for manner in [Manner::Queued, Manner::Alone, Manner::Urgent] {
        let outcome = block_on(ours.write(Panics, manner));
        assert!(matches!(outcome, Err(Error::Corrupt { .. })), "{manner:?}: {outcome:?}");
    }
    start(&ours, "a");
    ours.close();
    assert!(matches!(block_on(ours.write(Panics, Manner::Queued)), Err(Error::Closed)));
}

#[test]
fn after_a_panic_everything_is_news() {
    let (_folder, ours, _theirs) = pair();
    let session = register(&ours, "default");
    let desk = ours.desk().unwrap();
    run(desk.lock_writer(), |writer| {
        writer.begin().unwrap();
        panic!("on purpose");
    });
    assert_eq!(block_on(ours.wait(session)).unwrap(), [Notice::Changed]);
    start(&ours, "a");
}
