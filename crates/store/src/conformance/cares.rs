//! Leases for sessions that lack the code.

use abide_core::{Epoch, Fence, Lease, Message, Namespace, Start, Status, Timestamp, care};

use super::held::Held;
use super::make::{cancel, complete, flow, name, pause, resume, signal, step, terminate, worker};
use super::subject::{Seat, serving};
use super::{Subject, block_on, bounds, table};
use crate::{Aside, Claim, Claimed, List, NEWER_PAUSE, Notice, Unreadable};

table![
    order_to_what_nobody_serves_is_for_anybody,
    whoever_has_the_code_goes_first,
    care_is_for_sessions_of_the_same_namespace,
    cancel_of_what_was_held_is_left_to_its_code,
    cancel_of_what_nobody_ever_held_needs_no_code,
    cancel_of_what_only_caretakers_held_needs_no_code,
    other_mail_needs_no_care,
    terminate_is_left_to_its_holder_for_a_while,
    look_for_something_else_leaves_a_young_terminate_to_its_holder,
    terminate_is_taken_from_the_same_session_too,
    other_orders_are_left_to_their_holder,
    new_holder_has_its_time_for_an_old_terminate,
    unread_orders_outlive_their_holder,
    order_that_a_holder_has_not_seen_is_for_anybody,
    terminate_that_its_holder_has_seen_to_needs_no_look,
    passed_deadline_is_for_anybody_after_a_grace,
    deadline_is_left_to_a_live_holder,
    deadline_before_a_delayed_start_is_seen_to,
    care_is_bounded_by_its_slots,
    repeated_claim_gives_the_same_care,
    care_that_is_done_is_not_given_again,
    what_has_ended_needs_no_care,
    everybody_of_the_namespace_is_told,
    what_its_holder_cannot_read_is_for_caretakers_only,
    what_its_holder_is_too_old_for_is_ready_again_later,
    order_to_what_is_put_off_needs_nobody_who_can_read_it,
    what_is_paused_is_put_off_and_offered_once,
    deadline_of_what_is_put_off_is_seen_to,
];

/// Registers a session that can run none of the executions that the cases start.
fn stranger(subject: &Subject) -> Seat<'_> {
    subject.seat(serving(name("elsewhere")))
}

fn look_after(seat: &mut Seat<'_>) -> Claimed {
    let claim = Claim { care_slots: 9, ..seat.next_claim(9) };
    seat.send(&claim)
}

fn care_ids(seat: &mut Seat<'_>) -> Vec<String> {
    look_after(seat).care.iter().map(|leased| leased.address().id.as_str().to_owned()).collect()
}

fn after_order(subject: &Subject) -> Timestamp {
    subject.now().after(care::ORDER_GRACE)
}

fn pass_order_grace(subject: &Subject) {
    subject.advance_ms(u64::try_from(care::ORDER_GRACE.as_millis()).expect("a short time"));
}

fn pass_deadline_grace(subject: &Subject) {
    subject.advance_ms(u64::try_from(care::DEADLINE_PATIENCE.as_millis()).expect("a short time"));
}

fn due_in(subject: &Subject, millis: u64) -> Start {
    Start { deadline_at: Some(subject.later_ms(millis)), ..flow() }
}

/// Starts an execution, claims it and parks it.
fn parked(subject: &Subject, id: &str) {
    let (_seat, mut held) = subject.held(id);
    subject.commit(&subject.draft(&held).then(step("one")).park(), &mut held);
}

fn order_to_what_nobody_serves_is_for_anybody(subject: &Subject) {
    let orders: [fn(&str) -> Message; 3] = [pause, resume, terminate];
    for (order, id) in orders.into_iter().zip(["pause", "resume", "terminate"]) {
        parked(subject, id);
        if id == "resume" {
            let mut seat = subject.seat(worker());
            subject.send(pause(id));
            let mut held = seat.claim_one();
            let draft = subject.draft(&held).consuming(&["pause"]);
            let pause = held.inbox[0].control().expect("a pause is an order");
            subject.commit(&draft.then(pause).park(), &mut held);
        }
        subject.send(order(id));
        let mut seat = stranger(subject);
        let claimed = look_after(&mut seat);
        assert_eq!((claimed.care.len(), claimed.next_care_at), (0, Some(after_order(subject))), "{id}");
        pass_order_grace(subject);
        let claimed = look_after(&mut seat);
        assert!(claimed.leased.is_empty(), "it is not to be run here");
        let leased = &claimed.care[0];
        assert_eq!((leased.address().id.as_str(), leased.lease.session), (id, seat.session));
        assert_eq!(leased.inbox.messages, [order(id).arrived(leased.inbox.messages[0].arrived_at)]);
        let mut held = Held::of(claimed.care.into_iter().next().expect("one is given"));
        let order = held.inbox[0].control().expect("it is an order");
        let draft = subject.draft(&held).consuming(&[id]).then(order);
        subject.commit(&draft.park(), &mut held);
        assert!(care_ids(&mut seat).is_empty(), "once is enough");
    }
}

fn whoever_has_the_code_goes_first(subject: &Subject) {
    parked(subject, "a");
    subject.send(pause("a"));
    pass_order_grace(subject);
    let mut seat = subject.seat(worker());
    let claimed = look_after(&mut seat);
    assert_eq!((claimed.leased.len(), claimed.care.len()), (1, 0));
}

fn care_is_for_sessions_of_the_same_namespace(subject: &Subject) {
    parked(subject, "a");
    subject.send(terminate("a"));
    pass_order_grace(subject);
    let mut worker = worker();
    worker.ability.namespace = Namespace::new("other").expect("a name");
    let claimed = look_after(&mut subject.seat(worker));
    assert_eq!((claimed.care.len(), claimed.next_care_at), (0, None));
}

fn cancel_of_what_was_held_is_left_to_its_code(subject: &Subject) {
    parked(subject, "a");
    subject.send(cancel("a"));
    pass_order_grace(subject);
    let claimed = look_after(&mut stranger(subject));
    assert_eq!((claimed.care.len(), claimed.next_care_at), (0, None));
    assert_eq!(subject.unread("a"), ["cancel"]);
    assert_eq!(subject.seat(worker()).claim_ids(9), ["a"], "whoever has the code finds it");
}

fn cancel_of_what_nobody_ever_held_needs_no_code(subject: &Subject) {
    subject.start("a", flow());
    subject.send(cancel("a"));
    pass_order_grace(subject);
    let claimed = look_after(&mut stranger(subject));
    assert_eq!(claimed.care[0].lease.epoch, Epoch(1));
}

fn cancel_of_what_only_caretakers_held_needs_no_code(subject: &Subject) {
    subject.start("a", flow());
    subject.send(pause("a"));
    pass_order_grace(subject);
    let mut seat = stranger(subject);
    let leased = look_after(&mut seat).care.remove(0);
    assert!(leased.is_first);
    let mut held = Held::of(leased);
    let pause = held.inbox[0].control().expect("a pause is an order");
    let draft = subject.draft(&held).consuming(&["pause"]).then(pause);
    subject.commit(&draft.untouched().park(), &mut held);
    subject.send(cancel("a"));
    pass_order_grace(subject);
    let leased = look_after(&mut seat).care.remove(0);
    assert!(leased.is_first && leased.lease.epoch == Epoch(2));
}

fn other_mail_needs_no_care(subject: &Subject) {
    parked(subject, "a");
    subject.send(signal("one", "a"));
    subject.advance_ms(60_000);
    let claimed = look_after(&mut stranger(subject));
    assert_eq!((claimed.care.len(), claimed.next_care_at), (0, None));
}

fn terminate_is_left_to_its_holder_for_a_while(subject: &Subject) {
    let (_holder, held) = subject.held("a");
    subject.send(terminate("a"));
    let mut seat = stranger(subject);
    let taken_at = subject.later_ms(bounds().terminate_grace_ms);
    subject.advance_ms(bounds().terminate_grace_ms - 1);
    let claimed = look_after(&mut seat);
    assert_eq!((claimed.care.len(), claimed.next_care_at), (0, Some(taken_at)));
    subject.advance_ms(1);
    let claimed = look_after(&mut seat);
    assert_eq!((claimed.care[0].lease.session, claimed.care[0].lease.epoch), (seat.session, Epoch(2)));
    let fence = subject.fenced(&subject.draft(&held).then(step("late")));
    assert_eq!(fence, Fence::StaleEpoch { found: Epoch(1), current: Epoch(2) });
}

fn look_for_something_else_leaves_a_young_terminate_to_its_holder(subject: &Subject) {
    let grace = bounds().terminate_grace_ms;
    subject.start("a", due_in(subject, 100));
    subject.seat(worker()).claim_one();
    let mut stranger = stranger(subject);
    pass_deadline_grace(subject);
    subject.send(terminate("a"));
    let taken_at = subject.later_ms(grace);
    // The deadline that has passed brings a caretaker sooner.
    subject.advance_ms(100);
    let claimed = look_after(&mut stranger);
    assert_eq!((claimed.care.len(), claimed.next_care_at), (0, Some(taken_at)));
    subject.advance_ms(grace - 100);
    assert_eq!(care_ids(&mut stranger), ["a"]);
}

fn terminate_is_taken_from_the_same_session_too(subject: &Subject) {
    let (mut seat, held) = subject.held("a");
    subject.send(terminate("a"));
    subject.advance_ms(bounds().terminate_grace_ms);
    let claimed = look_after(&mut seat);
    assert_eq!((claimed.care[0].lease.session, claimed.care[0].lease.epoch), (seat.session, Epoch(2)));
    assert_eq!(claimed.care[0].takeover_count, 0, "nobody died of it");
    let fence = subject.fenced(&subject.draft(&held).then(complete()));
    assert_eq!(fence, Fence::StaleEpoch { found: Epoch(1), current: Epoch(2) });
    let mut taken = Held::of(claimed.care.into_iter().next().expect("one is given"));
    let order = taken.inbox[0].control().expect("it is an order");
    subject.commit(&subject.draft(&taken).consuming(&["terminate"]).then(order), &mut taken);
    assert_eq!(seat.lease_count(), 0);
}

fn other_orders_are_left_to_their_holder(subject: &Subject) {
    let (_holder, mut held) = subject.held("a");
    subject.send(pause("a"));
    subject.send(cancel("a"));
    subject.advance_ms(9_000);
    let claimed = look_after(&mut stranger(subject));
    assert_eq!((claimed.care.len(), claimed.next_care_at), (0, None));
    subject.record(&mut held, step("mine"));
}

fn new_holder_has_its_time_for_an_old_terminate(subject: &Subject) {
    parked(subject, "a");
    subject.send(terminate("a"));
    subject.advance_ms(3_600_000);
    let mut seat = subject.seat(worker());
    let claimed = look_after(&mut seat);
    assert_eq!((claimed.leased.len(), claimed.care.len()), (1, 0));
    assert_eq!(claimed.next_care_at, Some(subject.later_ms(bounds().terminate_grace_ms)));
    subject.advance_ms(bounds().terminate_grace_ms);
    assert_eq!(care_ids(&mut seat), ["a"]);
}

fn unread_orders_outlive_their_holder(subject: &Subject) {
    subject.held("a");
    subject.held("b");
    subject.send(pause("a"));
    subject.advance_ms(10_000);
    let mut seat = stranger(subject);
    assert_eq!(seat.sweep(9).next_care_at, Some(after_order(subject)));
    pass_order_grace(subject);
    assert_eq!(care_ids(&mut seat), ["a"]);
}

fn order_that_a_holder_has_not_seen_is_for_anybody(subject: &Subject) {
    let (mut first, mut held) = subject.held("a");
    subject.send(pause("a"));
    subject.commit(&subject.draft(&held).then(step("one")).yielded(), &mut held);
    assert_eq!(subject.look("a").summary.care_at, Some(after_order(subject)));
    let mut held = first.claim_one();
    subject.commit(&subject.draft(&held).then(step("two")).park(), &mut held);
    assert_eq!(subject.look("a").summary.care_at, Some(after_order(subject)));
    let mut held = first.claim_one();
    subject.commit(&subject.draft(&held).then(step("three")).park_seen(&["pause"]), &mut held);
    assert_eq!(subject.look("a").summary.care_at, None, "whoever parks has seen to what it knows");
}

/// A look was due because the terminate arrived while somebody held the execution.
fn terminate_that_its_holder_has_seen_to_needs_no_look(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    subject.record(&mut held, step("one"));
    subject.send(terminate("a"));
    assert_eq!(subject.look("a").summary.care_at, Some(subject.now().after(bounds().terminate_grace())));
    subject.commit(&subject.draft(&held).then(step("two")).park_seen(&["terminate"]), &mut held);
    assert_eq!(subject.look("a").summary.care_at, None);
}

fn passed_deadline_is_for_anybody_after_a_grace(subject: &Subject) {
    subject.start("a", due_in(subject, 1_000));
    let mut seat = stranger(subject);
    let care_at = subject.later_ms(1_000).after(care::DEADLINE_PATIENCE);
    assert_eq!(look_after(&mut seat).next_care_at, Some(care_at));
    subject.advance_ms(1_000);
    assert!(care_ids(&mut seat).is_empty());
    pass_deadline_grace(subject);
    assert_eq!(care_ids(&mut seat), ["a"]);
}

fn deadline_is_left_to_a_live_holder(subject: &Subject) {
    subject.start("a", due_in(subject, 1_000));
    let mut holder = subject.seat(worker());
    let mut held = holder.claim_one();
    let mut seat = stranger(subject);
    subject.advance_ms(4_000);
    let claimed = look_after(&mut seat);
    assert_eq!(claimed.care.len(), 0);
    assert!(claimed.next_care_at.is_some_and(|at| at > subject.now()), "it is not asked for all the time");
    subject.commit(&subject.draft(&held).then(step("one")).park(), &mut held);
    assert_eq!(care_ids(&mut seat), ["a"], "nobody holds it any longer");
}

fn deadline_before_a_delayed_start_is_seen_to(subject: &Subject) {
    let start_at = Some(subject.later_ms(60_000));
    subject.start("a", Start { start_at, ..due_in(subject, 1_000) });
    subject.advance_ms(1_000);
    pass_deadline_grace(subject);
    assert_eq!(care_ids(&mut stranger(subject)), ["a"]);
}

fn care_is_bounded_by_its_slots(subject: &Subject) {
    for id in ["a", "b", "c"] {
        subject.start(id, flow());
        subject.send(terminate(id));
        subject.advance_ms(1);
    }
    pass_order_grace(subject);
    let mut seat = stranger(subject);
    let claim = Claim { care_slots: 2, ..seat.next_claim(0) };
    let claimed = seat.send(&claim);
    let ids: Vec<_> = claimed.care.iter().map(|leased| leased.address().id.as_str()).collect();
    assert_eq!(ids, ["a", "b"], "what has waited for longest goes first");
    assert!(claimed.next_care_at.is_some_and(|at| at <= subject.now()), "there is more to do");
    let claim = Claim { care_slots: 0, ..seat.next_claim(0) };
    assert!(seat.send(&claim).care.is_empty());
    assert_eq!(care_ids(&mut seat), ["c"]);
}

fn repeated_claim_gives_the_same_care(subject: &Subject) {
    parked(subject, "care");
    subject.start("run", flow());
    subject.advance_ms(1);
    subject.send(terminate("care"));
    pass_order_grace(subject);
    let mut seat = subject.seat(worker());
    let claim = Claim { care_slots: 9, ..seat.next_claim(1) };
    let first = seat.send(&claim);
    let again = seat.send(&claim);
    let told = |claimed: &Claimed| {
        let ids = |leased: &[crate::Leased]| leased.iter().map(|one| one.key).collect::<Vec<_>>();
        (ids(&claimed.leased), ids(&claimed.care))
    };
    assert_eq!(told(&again), told(&first));
    assert_eq!((first.leased.len(), first.care.len()), (1, 1));
}

fn care_that_is_done_is_not_given_again(subject: &Subject) {
    subject.start("a", due_in(subject, 60_000));
    subject.send(pause("a"));
    pass_order_grace(subject);
    let mut seat = stranger(subject);
    let claimed = look_after(&mut seat);
    let mut held = Held::of(claimed.care.into_iter().next().expect("one is given"));
    let order = held.inbox[0].control().expect("it is an order");
    subject.commit(&subject.draft(&held).consuming(&["pause"]).then(order).park(), &mut held);
    let deadline = subject.look("a").execution.care_at();
    assert_eq!(look_after(&mut seat).next_care_at, deadline, "the deadline is still to be seen to");
}

fn what_has_ended_needs_no_care(subject: &Subject) {
    subject.start("a", due_in(subject, 1_000));
    let mut held = subject.seat(worker()).claim_one();
    subject.send(terminate("a"));
    subject.record(&mut held, complete());
    assert_eq!(subject.look("a").summary.care_at, None);
    assert_eq!(look_after(&mut stranger(subject)).next_care_at, None);
}

fn everybody_of_the_namespace_is_told(subject: &Subject) {
    parked(subject, "a");
    let seat = stranger(subject);
    subject.send(terminate("a"));
    seat.wait_for(|notice| *notice == Notice::Ready);
    subject.start("b", due_in(subject, 1_000));
    seat.wait_for(|notice| *notice == Notice::Ready);
}

fn what_its_holder_cannot_read_is_for_caretakers_only(subject: &Subject) {
    let (mut seat, held) = subject.held("a");
    let draft = subject.draft(&held).then(step("one")).sleeping(subject.later_ms(10));
    let mut held = held;
    subject.commit(&draft, &mut held);
    let Lease { session, epoch } = held.lease;
    let aside = |epoch| {
        let aside = Aside {
            key: held.key,
            lease: Lease { session, epoch },
            unreadable: Unreadable::Damaged("a hole".to_owned()),
        };
        block_on(subject.store.set_aside(aside)).expect("it is answered");
    };
    aside(Epoch(epoch.0 + 1));
    assert_eq!(subject.look("a").summary.status, Status::Sleeping, "another lease changes nothing");
    aside(epoch);
    assert_eq!(subject.fenced(&subject.draft(&held).then(step("late"))), Fence::Released);
    assert!(subject.leases(session).is_empty());
    subject.send(signal("s", "a"));
    subject.advance_ms(20);
    assert!(look_after(&mut seat).leased.is_empty(), "neither a message nor its time makes it ready");
    assert_eq!(subject.look("a").summary.status, Status::Damaged);
    let list = List { statuses: vec![Status::Damaged], ..List::of(Namespace::default(), 9) };
    assert_eq!(subject.list(list).items.len(), 1);
    subject.send(terminate("a"));
    pass_order_grace(subject);
    let taken = look_after(&mut seat).care.remove(0);
    assert_eq!(taken.lease.epoch, epoch.next());
    aside(epoch);
    assert_eq!(subject.leases(session).len(), 1, "who repeats it takes nothing from the next holder");
}

fn what_its_holder_is_too_old_for_is_ready_again_later(subject: &Subject) {
    let (_old, held) = subject.held("a");
    let Lease { session, epoch } = held.lease;
    let aside = |epoch| {
        let lease = Lease { session, epoch };
        let aside = Aside { key: held.key, lease, unreadable: Unreadable::Newer("entry 7".to_owned()) };
        block_on(subject.store.set_aside(aside)).expect("it is answered");
    };
    aside(Epoch(epoch.0 + 1));
    assert_eq!(subject.leases(session).len(), 1, "another lease changes nothing");
    subject.send(signal("s", "a"));
    aside(epoch);
    assert!(subject.leases(session).is_empty());
    assert_eq!(subject.fenced(&subject.draft(&held).then(step("late"))), Fence::Released);
    let mut new = subject.seat(worker());
    let first = look_after(&mut new);
    assert!(first.leased.is_empty(), "not at once, also not because of a message");
    assert!(first.next_wake_at.is_some(), "it is told when");
    subject.advance_ms(u64::try_from(NEWER_PAUSE.as_millis()).expect("a short time"));
    let taken = look_after(&mut new).leased.remove(0);
    assert_eq!(taken.lease.epoch, epoch.next());
    assert_eq!(subject.look("a").takeover_count, 0, "nobody died of it");
    aside(epoch);
    assert_eq!(
        subject.leases(taken.lease.session).len(),
        1,
        "who repeats it takes nothing from the next holder"
    );
}

/// Releases an execution that its holder is too old to read.
fn put_off(subject: &Subject, held: &Held) {
    let unreadable = Unreadable::Newer("entry 7".to_owned());
    let aside = Aside { key: held.key, lease: held.lease, unreadable };
    block_on(subject.store.set_aside(aside)).expect("it is answered");
}

fn pass_newer_pause(subject: &Subject) {
    subject.advance_ms(u64::try_from(NEWER_PAUSE.as_millis()).expect("a short time"));
}

fn order_to_what_is_put_off_needs_nobody_who_can_read_it(subject: &Subject) {
    for (id, is_before) in [("before", true), ("after", false)] {
        let (_old, held) = subject.held(id);
        if is_before {
            subject.send(pause(id));
        }
        put_off(subject, &held);
        if !is_before {
            subject.send(pause(id));
        }
        let mut seat = stranger(subject);
        let early = look_after(&mut seat);
        assert_eq!((early.care.len(), early.next_care_at), (0, Some(after_order(subject))), "{id}");
        pass_order_grace(subject);
        let mut held = Held::of(look_after(&mut seat).care.remove(0));
        let order = held.inbox[0].control().expect("a pause is an order");
        subject.commit(&subject.draft(&held).consuming(&["pause"]).then(order).park(), &mut held);
        pass_newer_pause(subject);
        let claimed = look_after(&mut subject.seat(worker()));
        assert_eq!((claimed.leased.len(), claimed.care.len()), (0, 0), "{id}: it is paused, and in order");
    }
}

fn what_is_paused_is_put_off_and_offered_once(subject: &Subject) {
    let (_old, mut held) = subject.held("a");
    subject.send(pause("a"));
    let order = pause("a").control().expect("a pause is an order");
    subject.commit(&subject.draft(&held).consuming(&["pause"]).then(order), &mut held);
    put_off(subject, &held);
    subject.send(signal("s", "a"));
    let mut new = subject.seat(worker());
    assert!(look_after(&mut new).leased.is_empty(), "no signal brings it back earlier: it is paused");
    pass_newer_pause(subject);
    let mut held = Held::of(look_after(&mut new).leased.remove(0));
    assert_eq!(subject.look("a").summary.status, Status::Paused);
    subject.commit(&subject.draft(&held).park(), &mut held);
    pass_newer_pause(subject);
    let claimed = look_after(&mut subject.seat(worker()));
    assert!(claimed.leased.is_empty(), "who can read it leaves it where it is");
}

fn deadline_of_what_is_put_off_is_seen_to(subject: &Subject) {
    subject.start("a", due_in(subject, 1_000));
    let mut old = subject.seat(worker());
    let held = old.claim_one();
    put_off(subject, &held);
    let mut seat = stranger(subject);
    subject.advance_ms(1_000);
    assert!(care_ids(&mut seat).is_empty(), "whoever has the code has its time");
    pass_deadline_grace(subject);
    assert_eq!(care_ids(&mut seat), ["a"], "that is before it is offered again");
}
