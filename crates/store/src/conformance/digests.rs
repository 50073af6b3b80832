//! The leases that a session believes it holds, compared with those that it holds.

use abide_core::{Epoch, SessionId};

use super::held::Held;
use super::make::{child_of, complete, flow, name, start_of, step, terminate, worker};
use super::subject::{Seat, serving};
use super::{Subject, block_on, bounds, table};
use crate::{Agreement, Claim, ExecutionKey, Heartbeat, HeldLease, Leased, Leases, Submit};

table![
    a_session_that_holds_nothing_agrees,
    a_lease_takes_part_from_the_third_heartbeat_on,
    a_lease_that_the_session_does_not_know_makes_a_difference,
    a_lease_that_the_store_does_not_have_makes_a_difference,
    another_epoch_is_another_lease,
    born_leases_are_compared,
    born_children_are_compared,
    each_way_to_give_a_lease_back_is_counted,
    a_repeated_request_counts_once,
    a_refused_submit_counts_nothing,
    a_lease_that_a_caretaker_took_makes_a_difference,
    a_lease_that_a_caretaker_took_from_its_own_session_is_another,
    a_sign_of_life_compares_nothing,
    what_others_hold_makes_no_difference,
    leases_are_told_in_pages,
    leases_end_with_their_session,
];

fn pair(leased: &Leased) -> (ExecutionKey, Epoch) {
    (leased.key, leased.lease.epoch)
}

fn pair_of(held: &Held) -> (ExecutionKey, Epoch) {
    (held.key, held.lease.epoch)
}

/// Lets a session hold `a` for long enough to be compared at the next heartbeat.
fn settled(subject: &Subject) -> (Seat<'_>, Held) {
    let (seat, held) = subject.held("a");
    while_young(&seat, &[]);
    (seat, held)
}

/// Sends the heartbeats for which the newest leases are too young. Everything else is `known`.
fn while_young(seat: &Seat<'_>, known: &[(ExecutionKey, Epoch)]) {
    for _ in 0..2 {
        assert_eq!(seat.believe(known), Agreement::Agreed, "the newest leases are too young");
    }
}

fn differs(agreement: Agreement) -> bool {
    matches!(agreement, Agreement::Differs { .. })
}

fn a_session_that_holds_nothing_agrees(subject: &Subject) {
    let seat = subject.seat(worker());
    for _ in 0..3 {
        assert_eq!(seat.believe(&[]), Agreement::Agreed);
    }
    assert_eq!(seat.believe(&[(ExecutionKey(1), Epoch(1))]), Agreement::Differs { young_from: 2 });
}

fn a_lease_takes_part_from_the_third_heartbeat_on(subject: &Subject) {
    let (mut seat, first) = subject.held("a");
    let first = pair_of(&first);
    assert_eq!(seat.believe(&[]), Agreement::Agreed, "it is too young");
    subject.start("b", flow());
    let second = pair(&seat.claim(1).leased[0]);
    assert_eq!(seat.believe(&[]), Agreement::Agreed, "both are younger than two heartbeats");
    assert_eq!(seat.believe(&[first]), Agreement::Agreed, "only the other one is too young");
    assert_eq!(seat.believe(&[second, first]), Agreement::Agreed);
    assert_eq!(seat.believe(&[first, second]), Agreement::Agreed);
}

fn a_lease_that_the_session_does_not_know_makes_a_difference(subject: &Subject) {
    let (seat, held) = settled(subject);
    assert_eq!(seat.believe(&[]), Agreement::Differs { young_from: 1 });
    let lease = HeldLease { key: held.key, epoch: held.lease.epoch, given_beat: 0 };
    assert_eq!(subject.leases(seat.session), [lease]);
    assert!(differs(seat.believe(&[])), "it is told until it is so no longer");
    assert_eq!(seat.believe(&[pair_of(&held)]), Agreement::Agreed);
}

fn a_lease_that_the_store_does_not_have_makes_a_difference(subject: &Subject) {
    let (seat, mut held) = settled(subject);
    let lease = pair_of(&held);
    assert_eq!(seat.believe(&[lease]), Agreement::Agreed);
    subject.commit(&subject.draft(&held).park(), &mut held);
    assert!(differs(seat.believe(&[lease])));
    assert!(subject.leases(seat.session).is_empty());
    assert_eq!(seat.believe(&[]), Agreement::Agreed);
}

fn another_epoch_is_another_lease(subject: &Subject) {
    let (mut seat, mut held) = settled(subject);
    let old = pair_of(&held);
    subject.commit(&subject.draft(&held).yielded(), &mut held);
    let new = pair(&seat.claim(1).leased[0]);
    assert_eq!((old.0, old.1.next()), new);
    while_young(&seat, &[]);
    assert!(differs(seat.believe(&[old])));
    assert_eq!(seat.believe(&[new]), Agreement::Agreed);
}

fn born_leases_are_compared(subject: &Subject) {
    let seat = subject.seat(worker());
    seat.believe(&[]);
    subject.start_born(&seat, vec![start_of("a", flow()), start_of("b", flow())]);
    let leases = subject.leases(seat.session);
    assert_eq!(leases.iter().map(|lease| lease.given_beat).collect::<Vec<_>>(), [1, 1]);
    let pairs: Vec<_> = leases.iter().map(|lease| (lease.key, lease.epoch)).collect();
    while_young(&seat, &[]);
    assert!(differs(seat.believe(&pairs[..1])));
    assert_eq!(seat.believe(&pairs), Agreement::Agreed);
}

fn born_children_are_compared(subject: &Subject) {
    let (seat, mut held) = settled(subject);
    let draft = subject.draft(&held).then(step("one"));
    let draft = draft.emitting(start_of("b", child_of("a", "child"))).born_slots(1);
    let child = pair(&subject.commit(&draft, &mut held).born[0]);
    while_young(&seat, &[pair_of(&held)]);
    assert_eq!(seat.believe(&[pair_of(&held), child]), Agreement::Agreed);
}

fn each_way_to_give_a_lease_back_is_counted(subject: &Subject) {
    let mut seat = subject.seat(worker());
    for (round, beat_count) in (0..12).zip([0, 1, 3].into_iter().cycle()) {
        let id = format!("id {round}");
        subject.start(&id, flow());
        let mut held = seat.claim_one();
        for beat in 0..beat_count {
            let believed: &[_] = if beat < 2 { &[] } else { &[pair_of(&held)] };
            assert_eq!(seat.believe(believed), Agreement::Agreed, "{id}");
        }
        let draft = subject.draft(&held).then(step("one"));
        let draft = match round / 3 {
            0 => draft.park(),
            1 => draft.then(complete()),
            // Its messages go out before its lease is released.
            2 => draft.emitting(start_of(&format!("child of {id}"), child_of(&id, "child"))).park(),
            _ => draft.emitting(start_of(&format!("child of {id}"), child_of(&id, "child"))).then(complete()),
        };
        subject.commit(&draft, &mut held);
        for _ in 0..3 {
            assert_eq!(seat.believe(&[]), Agreement::Agreed, "{id}");
        }
        // Nobody holds the children yet.
        while let Some(leased) = seat.claim(1).leased.pop() {
            let mut child = Held::of(leased);
            subject.commit(&subject.draft(&child).then(complete()), &mut child);
        }
    }
}

fn a_repeated_request_counts_once(subject: &Subject) {
    subject.start("a", flow());
    let mut seat = subject.seat(worker());
    let claim = seat.next_claim(1);
    seat.send(&claim);
    let mut held = Held::of(seat.send(&claim).leased.remove(0));
    let born = start_of("b", flow());
    for _ in 0..2 {
        subject.start_born(&seat, vec![born.clone()]);
    }
    while_young(&seat, &[]);
    let child = (subject.look("b").key, Epoch(1));
    assert_eq!(seat.believe(&[pair_of(&held), child]), Agreement::Agreed);
    let draft = subject.draft(&held).then(step("one")).park();
    subject.commit(&draft, &mut held);
    subject.attempt(&draft);
    assert_eq!(seat.believe(&[child]), Agreement::Agreed);
}

fn a_refused_submit_counts_nothing(subject: &Subject) {
    subject.start("a", flow());
    let seat = subject.seat(worker());
    let mut other = subject.seat(worker());
    other.claim(1);
    let conflict = start_of("a", flow().with_input("other".into()));
    let messages = vec![start_of("b", flow()), conflict];
    let submit = Submit { messages, born_to: Some(seat.session), alone: false, stretch: None };
    block_on(subject.store.submit(submit)).expect_err("an id that is taken refuses all of them");
    for _ in 0..3 {
        assert_eq!(seat.believe(&[]), Agreement::Agreed);
    }
}

/// Takes from its holder an execution that has an unread terminate.
fn take_care(subject: &Subject, seat: &mut Seat<'_>) -> Leased {
    subject.send(terminate("a"));
    let grace = bounds().terminate_grace();
    subject.advance_ms(u64::try_from(grace.as_millis()).expect("a short time"));
    let claim = Claim { care_slots: 9, ..seat.next_claim(0) };
    seat.send(&claim).care.remove(0)
}

fn a_lease_that_a_caretaker_took_makes_a_difference(subject: &Subject) {
    let (seat, held) = settled(subject);
    let mut caretaker = subject.seat(serving(name("elsewhere")));
    let taken = pair(&take_care(subject, &mut caretaker));
    assert!(differs(seat.believe(&[pair_of(&held)])));
    assert_eq!(seat.believe(&[]), Agreement::Agreed);
    while_young(&caretaker, &[]);
    assert_eq!(caretaker.believe(&[taken]), Agreement::Agreed);
}

fn a_lease_that_a_caretaker_took_from_its_own_session_is_another(subject: &Subject) {
    let (mut seat, held) = settled(subject);
    let taken = pair(&take_care(subject, &mut seat));
    while_young(&seat, &[]);
    assert!(differs(seat.believe(&[pair_of(&held)])));
    assert_eq!(seat.believe(&[taken]), Agreement::Agreed);
}

fn a_sign_of_life_compares_nothing(subject: &Subject) {
    let (seat, held) = subject.held("a");
    // No lease grows older by these.
    for _ in 0..3 {
        assert!(matches!(seat.heartbeat(), Heartbeat::Refreshed { leases: Agreement::Agreed, .. }));
    }
    while_young(&seat, &[]);
    assert_eq!(seat.believe(&[pair_of(&held)]), Agreement::Agreed);
}

fn what_others_hold_makes_no_difference(subject: &Subject) {
    let (seat, held) = settled(subject);
    subject.start("b", flow());
    let mut other = subject.seat(worker());
    other.claim(1);
    while_young(&other, &[]);
    assert_eq!(seat.believe(&[pair_of(&held)]), Agreement::Agreed);
    assert!(differs(other.believe(&[])));
}

fn leases_are_told_in_pages(subject: &Subject) {
    let mut seat = subject.seat(worker());
    let ids: Vec<_> = (0..7).map(|number| format!("id {number}")).collect();
    for (id, is_born) in ids.iter().zip([true, false].into_iter().cycle()) {
        if is_born {
            subject.start_born(&seat, vec![start_of(id, flow())]);
        } else {
            subject.start(id, flow());
            seat.claim(1);
        }
        seat.believe(&[]);
    }
    let mut expected: Vec<_> = ids.iter().map(|id| subject.look(id).key).collect();
    expected.sort();
    let mut told: Vec<_> = subject.leases(seat.session).iter().map(|lease| lease.key).collect();
    told.sort();
    assert_eq!(told, expected, "each is told once");
    let page = block_on(subject.store.leases(Leases { session: seat.session, after: None, limit: 1 }));
    let page = page.expect("leases are told");
    assert_eq!((page.leases.len(), page.next.is_some()), (1, true));
    assert!(subject.leases(SessionId(77)).is_empty(), "nobody holds nothing");
}

fn leases_end_with_their_session(subject: &Subject) {
    let (seat, _) = settled(subject);
    seat.retire();
    assert!(subject.leases(seat.session).is_empty());
    let mut next = subject.seat(worker());
    let taken = pair(&next.claim(1).leased[0]);
    while_young(&next, &[]);
    assert_eq!(next.believe(&[taken]), Agreement::Agreed);
}
