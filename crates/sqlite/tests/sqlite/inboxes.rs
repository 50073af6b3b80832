//! Inboxes of any length.

use abide_core::MessageId;

use crate::fixture::{Fixture, signal, start, submit};

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
