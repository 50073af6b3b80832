//! Inboxes of any length.

use abide_core::{By, MessageId, Status};
use abide_store::conformance::block_on;

use crate::aside::with_status;
use crate::fixture::{Fixture, address, damaged, signal, start, submit};

#[test]
fn a_claim_tells_which_of_what_is_held_has_mail_and_nothing_else() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let mut seat = fixture.seat(&store);
    let held = seat.born("held");
    // Of another session, so that no claim of this one gets it.
    fixture.seat(&store).born("elsewhere");
    submit(&store, vec![start("ready")]).expect("it is started");
    // Few, and more than can be gone through one by one.
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

/// Each time by a program that remembers nothing of the inbox.
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
