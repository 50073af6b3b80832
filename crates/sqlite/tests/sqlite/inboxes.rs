//! Inboxes of any length.

use abide_core::MessageId;

use crate::fixture::{Fixture, signal, start, submit};

#[test]
fn a_claim_tells_what_is_unread_of_what_is_held_and_of_nothing_else() {
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
        let inboxes = seat.claim(false).inboxes;
        let told: Vec<_> = inboxes.iter().filter(|(key, _)| *key == held.key).collect();
        let [(_, messages)] = told.as_slice() else { panic!("{} inboxes", told.len()) };
        let expected = (0..count).map(|nth| MessageId::new(format!("{count}-{nth:04}")));
        let newest: Vec<_> =
            messages.iter().skip(messages.len() - count).map(|message| message.id.clone()).collect();
        assert_eq!(newest, expected.collect::<Vec<_>>());
        assert!(inboxes.len() <= 2, "what another session holds is not told");
    }
}
