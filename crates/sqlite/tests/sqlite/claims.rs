//! Claims that meet an execution that SQLite cannot read continue without it.

use std::sync::Arc;
use std::time::Duration;

use abide_core::{Body, Message, Payload, SessionId};
use abide_sqlite::{Options, SqliteStore};
use abide_store::conformance::block_on;
use abide_store::{Claim, Store};

use crate::fixture::{Fixture, flow, message, name, start, submit, worker};
use crate::pages::{PAGE_BYTES, change};

/// The byte that fills a large input.
const FILL: u8 = b'z';

/// Returns a store with `count` large executions and then `sound`, each with a terminate.
fn large_ones(fixture: &Fixture, count: usize) -> Arc<SqliteStore> {
    let store = fixture.open();
    let input = Payload::from(String::from_utf8(vec![FILL; 20_000]).expect("it is a text").as_str());
    let large = |nth: usize| {
        let start = flow().with_input(input.clone());
        message("start", &format!("large-{nth}"), Body::Start(start.into()))
    };
    for begin in (0..count).map(large).chain([start("sound")]) {
        let end = Body::Terminate { reason: "enough".to_owned() };
        let end = Message { to: begin.to.clone(), ..message("end", "sound", end) };
        submit(&store, vec![begin, end]).expect("they are taken");
        fixture.clock.advance(Duration::from_millis(1));
    }
    store
}

/// Opens the store again, after the journal of each large execution has lost a page.
fn broken(fixture: &Fixture, store: &Arc<SqliteStore>, options: Options) -> Arc<SqliteStore> {
    store.close();
    change(&fixture.path(), |bytes| {
        let is_overflow = |page: &&mut [u8]| page[4..].iter().all(|byte| *byte == FILL);
        bytes.chunks_mut(PAGE_BYTES).filter(is_overflow).for_each(|page| page[..4].fill(0xff));
    });
    fixture.open_with(options)
}

fn before_a_sound_one(count: usize, options: Options) -> (Fixture, Arc<SqliteStore>) {
    let fixture = Fixture::new();
    let store = broken(&fixture, &large_ones(&fixture, count), options);
    (fixture, store)
}

/// Returns the ids that one claim returns, both to run and to take care of.
fn given(
    (store, session): (&Arc<SqliteStore>, SessionId),
    (request, slots, care_slots): (u64, usize, usize),
) -> Vec<String> {
    let claim = Claim { session, request, slots, care_slots, with_mail: true, sweep: false };
    let claimed = block_on(store.claim(claim)).expect("it is answered");
    let given = claimed.leased.iter().chain(&claimed.care);
    given.map(|leased| leased.execution.address().id.to_string()).collect()
}

#[test]
fn what_cannot_be_read_takes_no_place_in_the_queue() {
    let (fixture, store) = before_a_sound_one(3, Options::default());
    let session = fixture.seat(&store).session;
    assert_eq!(given((&store, session), (1, 1, 0)), ["sound"]);
}

#[test]
fn what_cannot_be_read_keeps_no_other_from_being_run_however_much_it_is() {
    for left_out_count_max in 0..5 {
        let (fixture, store) = before_a_sound_one(4, Options { left_out_count_max, ..Options::default() });
        let session = fixture.seat(&store).session;
        assert_eq!(given((&store, session), (1, 9, 0)), ["sound"], "{left_out_count_max}");
        assert_eq!(given((&store, session), (2, 9, 0)), [""; 0], "{left_out_count_max}");
    }
}

#[test]
fn what_cannot_be_read_keeps_no_other_from_being_looked_after() {
    let (fixture, store) = before_a_sound_one(3, Options::default());
    fixture.clock.advance(Duration::from_secs(60));
    let mut worker = worker();
    worker.ability.lanes = [name("other")].into();
    let session = fixture.seat_of(&store, worker).session;
    assert_eq!(given((&store, session), (1, 9, 1)), ["sound"]);
}

#[test]
fn a_repeated_claim_tells_what_can_be_read_of_what_it_gave() {
    let fixture = Fixture::new();
    let store = large_ones(&fixture, 2);
    let session = fixture.seat(&store).session;
    assert_eq!(given((&store, session), (1, 9, 0)).len(), 3);
    let store = broken(&fixture, &store, Options::default());
    assert_eq!(given((&store, session), (1, 9, 0)), ["sound"]);
}
