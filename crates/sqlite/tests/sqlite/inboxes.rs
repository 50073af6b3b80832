//! Inboxes of any length.

use std::sync::Arc;

use abide_core::{Body, By, Command, Failure, FailureKind, MessageId, Payload, Status};
use abide_sqlite::SqliteStore;
use abide_store::conformance::block_on;
use abide_store::{Commit, Hold, Store};

use crate::aside::with_status;
use crate::fixture::{Fixture, address, damaged, message, name, signal, start, step, submit};
use crate::pages::{PAGE_BYTES, change};

#[test]
fn a_claim_tells_which_of_what_is_held_has_mail_and_nothing_else() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let mut seat = fixture.seat(&store);
    let held = seat.born("held");
    // Another session holds this one, so no claim of the first session gets it.
    fixture.seat(&store).born("elsewhere");
    submit(&store, vec![start("ready")]).expect("it is started");
    // A few messages, and more than can be scanned one by one.
    for count in [3, 2_000] {
        for to in ["held", "elsewhere", "ready"] {
            let messages = (0..count).map(|nth| signal(&format!("{count}-{nth:04}"), to)).collect();
            submit(&store, messages).expect("they are sent");
        }
        let mail = seat.claim(false).mail;
        let told: Vec<_> =
            mail.iter().filter(|(key, _)| *key == held.key).map(|(_, newest)| newest).collect();
        assert_eq!(told, [&MessageId::new(format!("{count}-{:04}", count - 1))]);
        assert!(mail.len() <= 2, "what another session holds is not told");
    }
}

/// Each message is sent by a program whose caches are empty.
#[test]
fn what_comes_beside_a_damaged_message_has_a_place_of_its_own() {
    for damage in [
        "UPDATE abide_inbox SET arrived = -7 WHERE id = 'bad'",
        "UPDATE abide_inbox SET arrived = 9223372036854775807 WHERE id = 'bad'",
        "UPDATE abide_inbox SET arrived = 4611686018427387903 WHERE id = 'bad'",
        "UPDATE abide_inbox SET arrived = 1e300 WHERE id = 'bad'",
        "UPDATE abide_inbox SET arrived = 'x' WHERE id = 'bad'",
    ] {
        let fixture = Fixture::new();
        let mut store = fixture.open();
        submit(&store, vec![start("a"), signal("first", "a"), signal("bad", "a")]).expect("they are taken");
        store = damaged(&fixture, &store, damage);
        let ids = ["third", "second", "1st"];
        for id in ids {
            submit(&store, vec![signal(id, "a")]).expect("it is taken");
            store.close();
            store = fixture.open();
        }
        let mut seat = fixture.seat(&store);
        assert!(seat.claim(true).leased.is_empty(), "{damage}: whoever claims it meets the damaged one");
        assert_eq!(with_status(&store, Status::Damaged), ["a"], "{damage}");
        block_on(store.drop_messages(&address("a"), By::client())).expect("it is looked at");
        block_on(store.repair()).expect("it is repaired");
        assert_eq!(store.verify().expect("it is looked at").problems, Vec::<String>::new(), "{damage}");
        let leased = seat.claim(true).leased.remove(0);
        let unread: Vec<_> = leased.inbox.messages.iter().map(|message| message.id.as_str()).collect();
        assert_eq!(unread, ["first", "third", "second", "1st"], "{damage}");
    }
}

/// Adds signals of which only the ids and places are readable: their payloads' pages are cut off.
fn with_bodies_cut_off(fixture: &Fixture, store: Arc<SqliteStore>, count: usize) -> Arc<SqliteStore> {
    let payload = Payload::from("Z".repeat(100_000).as_str());
    let large = |nth| {
        let body = Body::Signal { name: name("go"), payload: payload.clone() };
        message(&format!("large-{nth}"), "a", body)
    };
    submit(&store, (0..count).map(large).collect()).expect("they are taken");
    store.close();
    change(&fixture.path(), |bytes| {
        let is_cut = |page: &&mut [u8]| page[4..].iter().all(|byte| *byte == b'Z');
        let pages: Vec<_> = bytes.chunks_exact_mut(PAGE_BYTES).filter(is_cut).collect();
        assert!(pages.len() > 20 * count);
        // The number of the next page.
        pages.into_iter().for_each(|page| page[..4].fill(0xff));
    });
    fixture.open()
}

/// A reader of the payloads would delay the other operations in its commit.
#[test]
fn p8_nobody_reads_what_unread_messages_carry_but_the_one_who_receives_them() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let mut seat = fixture.seat(&store);
    let mut held = seat.born("a");
    seat.store = with_bodies_cut_off(&fixture, store, 50);
    let store = Arc::clone(&seat.store);
    let order = |id: &str, body| submit(&store, vec![message(id, "a", body)]);
    submit(&store, vec![signal("small", "a"), signal("large-7", "a")]).expect("they are taken");
    order("early", Body::Resume).expect_err("it is not paused");
    order("pause", Body::Pause { reason: String::new() }).expect("it is taken");
    order("resume", Body::Resume).expect("it is taken behind the pause");
    assert!(seat.claim(false).mail.iter().any(|(_, newest)| newest.as_str() == "resume"));
    let seen = (0..50).map(|nth| MessageId::new(format!("large-{nth}"))).collect();
    let park = Commit { hold: Hold::Park { seen }, ..seat.draft(&mut held, vec![step(1)]) };
    block_on(store.commit(park)).expect("it is parked");
    let is_ready = "SELECT place % 4 = 1 FROM abide_executions";
    let is_ready: bool = fixture.raw().query_row(is_ready, [], |row| row.get(0)).expect("it can be read");
    assert!(is_ready, "orders are not among what was seen");
}

#[test]
fn p8_a_retry_does_not_read_what_unread_signals_carry() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let mut seat = fixture.seat(&store);
    let mut held = seat.born("a");
    submit(&store, vec![message("late", "a", Body::Cancel { reason: String::new() })]).expect("it is taken");
    seat.store = with_bodies_cut_off(&fixture, store, 5);
    seat.record(&mut held, vec![Command::Fail(Failure::new(FailureKind::Fatal, "no"))]);
    submit(&seat.store, vec![message("retry", "a", Body::Retry)]).expect("it is taken");
    let unread = "SELECT group_concat(id) FROM abide_inbox WHERE body IS NOT NULL ORDER BY arrived";
    let unread: String = fixture.raw().query_row(unread, [], |row| row.get(0)).expect("it can be read");
    assert_eq!(
        unread, "large-0,large-1,large-2,large-3,large-4",
        "the cancellation was for the run that failed"
    );
}
