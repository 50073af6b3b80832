//! Executions that are leased in the transaction that creates them.

use abide_core::{Epoch, SessionId, Version};

use super::held::Held;
use super::make::{child_of, complete, delayed, flow, requiring, signal, start_of, step, worker};
use super::{Subject, block_on, table};
use crate::{Leased, Submit, Submitted};

table![
    start_is_born_leased_to_who_offers,
    born_execution_runs_without_a_claim,
    start_and_signal_are_born_together,
    start_is_not_born_when_something_of_its_route_is_ready,
    start_is_born_when_only_other_routes_are_ready,
    start_is_not_born_to_a_session_that_cannot_run_it,
    start_is_not_born_to_a_dead_session,
    start_is_not_born_to_an_unknown_session,
    delayed_start_is_not_born,
    attached_start_is_not_born,
    several_starts_are_born_in_one_submit,
    child_is_born_leased,
    children_are_born_up_to_the_slots,
    child_is_not_born_when_something_of_its_route_is_ready,
    child_that_the_session_cannot_run_is_not_born,
    child_is_born_at_the_end_of_its_parent,
    child_and_signal_are_born_together,
    child_of_a_yielding_parent_is_born,
    born_leases_die_with_their_session,
];

fn leased(submitted: &Submitted) -> Option<&Leased> {
    match submitted {
        Submitted::Started(_, leased) => leased.as_deref(),
        other => panic!("expected a start, found {other:?}"),
    }
}

fn start_is_born_leased_to_who_offers(subject: &Subject) {
    let seat = subject.seat(worker());
    let submitted = subject.start_born(&seat, vec![start_of("a", flow())]);
    let leased = leased(&submitted[0]).expect("it is born leased");
    assert_eq!((leased.lease.session, leased.lease.epoch), (seat.session, Epoch(1)));
    assert_eq!((leased.version, leased.takeover_count), (Version(0), 0));
    let found = subject.look("a");
    assert_eq!((found.lease.session, found.lease.epoch), (Some(seat.session), Epoch(1)));
    assert_eq!(found.ready_at, None);
    assert_eq!((&leased.execution, leased.opening.clone().into_records()), (&found.execution, found.journal));
    assert_eq!(seat.lease_count(), 1);
    assert!(subject.seat(worker()).claim_ids(1).is_empty());
}

fn born_execution_runs_without_a_claim(subject: &Subject) {
    let seat = subject.seat(worker());
    let submitted = subject.start_born(&seat, vec![start_of("a", flow())]);
    let mut held = Held::of(leased(&submitted[0]).expect("it is born leased").clone());
    subject.commit(&subject.draft(&held).then(step("one")).then(complete()), &mut held);
    assert_eq!(seat.lease_count(), 0);
}

fn start_and_signal_are_born_together(subject: &Subject) {
    let seat = subject.seat(worker());
    let submitted = subject.start_born(&seat, vec![start_of("a", flow()), signal("s", "a")]);
    let leased = leased(&submitted[0]).expect("it is born leased");
    assert_eq!(
        leased.inbox.messages,
        [subject.arrived(signal("s", "a"))],
        "a lease brings everything that is needed to run"
    );
    assert!(matches!(submitted[1], Submitted::Delivered(_)));
}

fn start_is_not_born_when_something_of_its_route_is_ready(subject: &Subject) {
    subject.start("first", flow());
    let mut seat = subject.seat(worker());
    let submitted = subject.start_born(&seat, vec![start_of("a", flow())]);
    assert!(leased(&submitted[0]).is_none(), "nobody overtakes");
    assert_eq!(seat.claim_ids(9), ["first", "a"]);
}

fn start_is_born_when_only_other_routes_are_ready(subject: &Subject) {
    subject.start("other", requiring(&["cuda"]));
    let seat = subject.seat(worker());
    let submitted = subject.start_born(&seat, vec![start_of("a", flow())]);
    assert!(leased(&submitted[0]).is_some());
}

fn start_is_not_born_to_a_session_that_cannot_run_it(subject: &Subject) {
    let seat = subject.seat(worker());
    let submitted = subject.start_born(&seat, vec![start_of("a", requiring(&["cuda"]))]);
    assert!(leased(&submitted[0]).is_none());
    assert_eq!(subject.look("a").ready_at, Some(subject.now()), "others may claim it");
}

fn start_is_not_born_to_a_dead_session(subject: &Subject) {
    let (retired, expired) = (subject.seat(worker()), subject.seat(worker()));
    retired.retire();
    subject.advance_ms(10_000);
    for (seat, id, waiting) in [(retired, "a", 1), (expired, "b", 2)] {
        let submitted = subject.start_born(&seat, vec![start_of(id, flow())]);
        assert!(leased(&submitted[0]).is_none());
        assert_eq!(subject.look(id).lease.session, None);
        assert_eq!(subject.seat(worker()).claim(0).more, waiting > 0);
    }
}

fn start_is_not_born_to_an_unknown_session(subject: &Subject) {
    let submit = Submit {
        messages: vec![start_of("a", flow())],
        born_to: Some(SessionId(77)),
        alone: false,
        stretch: None,
    };
    let submitted = block_on(subject.store.submit(submit)).expect("an offer is no condition");
    assert!(leased(&submitted[0]).is_none());
}

fn delayed_start_is_not_born(subject: &Subject) {
    let seat = subject.seat(worker());
    let submitted = subject.start_born(&seat, vec![start_of("a", delayed(subject.later_ms(5)))]);
    assert!(leased(&submitted[0]).is_none());
    assert_eq!(subject.look("a").lease.epoch, Epoch(0));
}

fn attached_start_is_not_born(subject: &Subject) {
    subject.start("a", flow());
    let seat = subject.seat(worker());
    let submitted = subject.start_born(&seat, vec![start_of("a", flow())]);
    assert!(matches!(submitted[0], Submitted::Attached(_)));
    assert_eq!(seat.lease_count(), 0);
}

fn several_starts_are_born_in_one_submit(subject: &Subject) {
    let seat = subject.seat(worker());
    let submitted = subject.start_born(&seat, ["a", "b", "c"].map(|id| start_of(id, flow())).into());
    assert!(submitted.iter().all(|submitted| leased(submitted).is_some()));
    assert_eq!(seat.lease_count(), 3);
}

fn child_is_born_leased(subject: &Subject) {
    let (seat, mut held) = subject.held("a");
    let draft = subject.draft(&held).emitting(start_of("child", child_of("a", "child"))).born_slots(1).park();
    let mut born = subject.commit(&draft, &mut held).born;
    assert_eq!(born.len(), 1);
    assert_eq!((born[0].lease.session, born[0].lease.epoch), (seat.session, Epoch(1)));
    assert_eq!(born[0].opening.clone().into_records(), subject.look("child").journal);
    assert_eq!(seat.lease_count(), 1);
    let mut child = Held::of(*born.remove(0));
    subject.record(&mut child, complete());
    assert_eq!(subject.unread("a").len(), 1);
}

fn children_are_born_up_to_the_slots(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    let ids = ["c1", "c2", "c3", "c4"];
    let draft =
        ids.iter().fold(subject.draft(&held), |draft, id| draft.emitting(start_of(id, child_of("a", id))));
    let born = subject.commit(&draft.born_slots(2), &mut held).born;
    let born: Vec<_> = born.iter().map(|leased| leased.address().id.as_str().to_owned()).collect();
    assert_eq!(born, ["c1", "c2"]);
    assert_eq!(seat.claim_ids(9), ["c3", "c4"]);
}

fn child_is_not_born_when_something_of_its_route_is_ready(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    subject.start("first", flow());
    let draft = subject.draft(&held).emitting(start_of("child", child_of("a", "child"))).born_slots(9);
    assert!(subject.commit(&draft, &mut held).born.is_empty());
    assert_eq!(seat.claim_ids(9), ["first", "child"]);
}

fn child_that_the_session_cannot_run_is_not_born(subject: &Subject) {
    let (seat, mut held) = subject.held("a");
    let start = abide_core::Start { parent: child_of("a", "child").parent, ..requiring(&["cuda"]) };
    let draft = subject.draft(&held).emitting(start_of("child", start)).born_slots(9);
    assert!(subject.commit(&draft, &mut held).born.is_empty());
    assert_eq!(seat.lease_count(), 1);
}

fn child_is_born_at_the_end_of_its_parent(subject: &Subject) {
    let (seat, mut held) = subject.held("a");
    let draft = subject.draft(&held).emitting(start_of("next", flow())).then(complete()).born_slots(1);
    assert_eq!(subject.commit(&draft, &mut held).born.len(), 1);
    assert_eq!(seat.lease_count(), 1);
}

fn child_and_signal_are_born_together(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    let child = start_of("child", child_of("a", "child"));
    let draft = subject.draft(&held).emitting(child).emitting(signal("s", "child")).born_slots(1);
    let born = subject.commit(&draft, &mut held).born;
    assert_eq!(
        born[0].inbox.messages,
        [subject.arrived(signal("s", "child"))],
        "a lease brings everything that is needed to run"
    );
}

fn child_of_a_yielding_parent_is_born(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    let draft =
        subject.draft(&held).emitting(start_of("child", child_of("a", "child"))).born_slots(1).yielded();
    assert_eq!(
        subject.commit(&draft, &mut held).born.len(),
        1,
        "the parent lines up after its messages went out"
    );
    assert_eq!(seat.claim_ids(9), ["a"]);
}

fn born_leases_die_with_their_session(subject: &Subject) {
    let seat = subject.seat(worker());
    let submitted = subject.start_born(&seat, vec![start_of("a", flow())]);
    let held = Held::of(leased(&submitted[0]).expect("it is born leased").clone());
    seat.retire();
    subject.fenced(&subject.draft(&held).then(step("late")));
    assert_eq!(subject.seat(worker()).claim_one().lease.epoch, Epoch(2));
}
