//! Which session runs which execution.

use abide_core::{Epoch, Kind, MessageId, Namespace, SessionId, Start, Version};

use super::held::Held;
use super::make::{capable, flow, name, names, requiring, signal, start_of, step, worker};
use super::subject::{Seat, ids, serving};
use super::{Subject, table};
use crate::{Claim, Error, Submitted};

table![
    claim_is_by_priority_then_age,
    equally_old_ones_are_claimed_in_order_of_creation,
    claim_is_bounded_by_slots_and_tells_of_more,
    claim_of_no_slots_gives_nothing_and_tells_of_more,
    claim_leases_what_it_gives,
    claim_respects_lanes,
    claim_respects_kind_and_name,
    claim_respects_namespaces,
    wildcards_serve_every_lane_and_every_name,
    claim_respects_capabilities,
    compatible_execution_is_not_hidden_behind_incompatible_ones,
    many_routes_are_claimed_in_one_order,
    names_with_commas_are_one_name,
    p3_executions_are_not_given_to_two_sessions,
    repeated_claim_gives_the_same_leases_and_no_more,
    repeated_claim_tells_the_newest_state,
    repeated_claim_leaves_out_what_was_given_back,
    older_claim_gives_nothing,
    requests_are_counted_by_session,
    p3_dead_session_claims_nothing,
    unknown_session_claims_nothing,
    claim_with_mail_tells_the_newest_unread_message_of_what_was_held,
];

fn claim_is_by_priority_then_age(subject: &Subject) {
    for (id, priority) in [("low", -5), ("old", 0), ("young", 0), ("high", 7), ("top", i16::MAX)] {
        subject.start(id, Start { priority, ..flow() });
        subject.advance_ms(1);
    }
    let mut seat = subject.seat(worker());
    assert_eq!(seat.claim_ids(2), ["top", "high"]);
    assert_eq!(seat.claim_ids(9), ["old", "young", "low"]);
}

fn equally_old_ones_are_claimed_in_order_of_creation(subject: &Subject) {
    let all = ["c", "a", "b", "d"];
    for id in all {
        subject.start(id, flow());
    }
    assert_eq!(subject.seat(worker()).claim_ids(9), all);
}

fn claim_is_bounded_by_slots_and_tells_of_more(subject: &Subject) {
    for id in ["a", "b", "c"] {
        subject.start(id, flow());
    }
    let mut seat = subject.seat(worker());
    let first = seat.claim(2);
    assert_eq!((ids(&first).len(), first.more), (2, true));
    let second = seat.claim(2);
    assert_eq!((ids(&second).len(), second.more), (1, false));
}

fn claim_of_no_slots_gives_nothing_and_tells_of_more(subject: &Subject) {
    subject.start("a", flow());
    let claimed = subject.seat(worker()).claim(0);
    assert_eq!((claimed.leased.len(), claimed.more), (0, true));
    let incapable = subject.seat(serving(name("elsewhere"))).claim(0);
    assert!(!incapable.more, "what the session cannot run is no more for it");
}

fn claim_leases_what_it_gives(subject: &Subject) {
    let key = subject.start("a", flow());
    let mut seat = subject.seat(worker());
    let claimed = seat.claim(1);
    let leased = &claimed.leased[0];
    assert_eq!((leased.key, leased.lease.session), (key, seat.session));
    assert_eq!((leased.lease.epoch, leased.version, leased.takeover_count), (Epoch(1), Version(0), 0));
    let found = subject.look("a");
    assert_eq!((found.lease.session, found.lease.epoch), (Some(seat.session), Epoch(1)));
    assert_eq!(found.ready_at, None, "what is held is not ready");
    assert_eq!((&leased.execution, leased.opening.clone().into_records()), (&found.execution, found.journal));
    assert_eq!(seat.lease_count(), 1);
}

fn claim_respects_lanes(subject: &Subject) {
    subject.start("a", Start { lane: name("gpu"), ..flow() });
    subject.start("b", flow());
    assert_eq!(subject.seat(serving(name("gpu"))).claim_ids(9), ["a"]);
    assert_eq!(subject.seat(worker()).claim_ids(9), ["b"]);
}

fn claim_respects_kind_and_name(subject: &Subject) {
    subject.start("task", Start { kind: Kind::Task, ..flow() });
    subject.start("other", Start { name: name("other"), ..flow() });
    subject.start("flow", flow());
    let mut tasks = worker();
    tasks.ability.runs = [(Kind::Task, name("flow"))].into();
    assert_eq!(subject.seat(tasks).claim_ids(9), ["task"]);
    assert_eq!(subject.seat(worker()).claim_ids(9), ["flow"]);
}

fn claim_respects_namespaces(subject: &Subject) {
    subject.start("a", flow());
    let mut foreign = worker();
    foreign.ability.namespace = Namespace::new("tenant").expect("a name");
    assert!(subject.seat(foreign).claim_ids(9).is_empty());
}

fn wildcards_serve_every_lane_and_every_name(subject: &Subject) {
    let any = |lane: &str, text: &str| {
        let mut worker = worker();
        worker.ability.lanes = names(&[lane]);
        worker.ability.runs = [(Kind::Workflow, name(text))].into();
        worker
    };
    let mut any_name = subject.seat(any("gpu", "*"));
    // Executions that are started after the worker registered count too, and so do those that are
    // born leased.
    subject.start("gpu", Start { lane: name("gpu"), name: name("one"), ..flow() });
    subject.start("task", Start { lane: name("gpu"), kind: Kind::Task, ..flow() });
    subject.start("main", Start { name: name("two"), ..flow() });
    assert_eq!(any_name.claim_ids(9), ["gpu"]);
    let born = start_of("born", Start { lane: name("gpu"), name: name("three"), ..flow() });
    let born = subject.start_born(&any_name, vec![born]);
    assert!(matches!(born[0], Submitted::Started(_, Some(_))), "{born:?}");
    assert!(subject.seat(any("*", "one")).claim_ids(9).is_empty());
    assert_eq!(subject.seat(any("*", "*")).claim_ids(9), ["main"]);
}

fn claim_respects_capabilities(subject: &Subject) {
    subject.start("both", requiring(&["cuda", "disk"]));
    subject.start("cuda", requiring(&["cuda"]));
    subject.start("none", flow());
    assert_eq!(subject.seat(worker()).claim_ids(9), ["none"]);
    assert_eq!(subject.seat(capable(&["cuda"])).claim_ids(9), ["cuda"]);
    assert_eq!(subject.seat(capable(&["disk", "cuda", "more"])).claim_ids(9), ["both"]);
}

fn compatible_execution_is_not_hidden_behind_incompatible_ones(subject: &Subject) {
    for n in 0..100 {
        let needs = format!("capability {}", n % 50);
        subject.start(&format!("hard {n}"), Start { priority: 9, ..requiring(&[&needs]) });
        subject.advance_ms(1);
    }
    subject.start("easy", flow());
    assert_eq!(subject.seat(worker()).claim_ids(1), ["easy"]);
}

fn many_routes_are_claimed_in_one_order(subject: &Subject) {
    let lanes = ["c", "a", "b"];
    for n in 0..30 {
        let start = Start { lane: name(lanes[n % 3]), name: name(["flow", "other"][n % 2]), ..flow() };
        subject.start(&format!("{n:02}"), start);
        subject.advance_ms(1);
    }
    let mut all = worker();
    all.ability.lanes = names(&lanes);
    all.ability.runs.insert((Kind::Workflow, name("other")));
    let mut seat = subject.seat(all);
    let claimed = [seat.claim_ids(7), seat.claim_ids(30)].concat();
    assert_eq!(claimed, (0..30).map(|n| format!("{n:02}")).collect::<Vec<_>>());
}

fn names_with_commas_are_one_name(subject: &Subject) {
    subject.start("a", Start { lane: name("x,y"), ..requiring(&["p,q"]) });
    let split = |mut worker: crate::Worker| {
        worker.ability.lanes = names(&["x", "y", "x,y"]);
        worker
    };
    assert!(subject.seat(split(capable(&["p", "q"]))).claim_ids(9).is_empty());
    let mut other_lanes = capable(&["p,q"]);
    other_lanes.ability.lanes = names(&["x", "y"]);
    assert!(subject.seat(other_lanes).claim_ids(9).is_empty());
    assert_eq!(subject.seat(split(capable(&["p,q"]))).claim_ids(9), ["a"]);
}

fn p3_executions_are_not_given_to_two_sessions(subject: &Subject) {
    for n in 0..20 {
        subject.start(&format!("{n}"), flow());
    }
    let (mut one, mut two) = (subject.seat(worker()), subject.seat(worker()));
    let mut all: Vec<_> =
        (0..5).flat_map(|_| [one.claim_ids(3), two.claim_ids(3)]).collect::<Vec<_>>().concat();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 20);
    assert_eq!(one.lease_count() + two.lease_count(), 20);
}

fn sorted(mut ids: Vec<String>) -> Vec<String> {
    ids.sort();
    ids
}

fn repeated_claim_gives_the_same_leases_and_no_more(subject: &Subject) {
    for id in ["a", "b", "c"] {
        subject.start(id, flow());
    }
    let mut seat = subject.seat(worker());
    let claim = seat.next_claim(2);
    let first = seat.send(&claim);
    let again = seat.send(&claim);
    assert_eq!(sorted(ids(&first)), sorted(ids(&again)));
    assert!(again.leased.iter().all(|leased| leased.lease.epoch == Epoch(1)), "no new epochs");
    assert_eq!((seat.lease_count(), again.more), (2, true));
}

fn repeated_claim_tells_the_newest_state(subject: &Subject) {
    subject.start("a", flow());
    let mut seat = subject.seat(worker());
    let claim = seat.next_claim(1);
    let mut held = Held::of(seat.send(&claim).leased.remove(0));
    subject.record(&mut held, step("one"));
    subject.send(signal("s", "a"));
    let again = seat.send(&claim).leased.remove(0);
    let entry_count = again.opening.clone().into_records().len();
    assert_eq!((again.version, entry_count, again.inbox.messages.len()), (Version(1), 2, 1));
    assert_eq!(again.execution, held.execution);
}

fn repeated_claim_leaves_out_what_was_given_back(subject: &Subject) {
    subject.start("a", flow());
    let mut seat = subject.seat(worker());
    let claim = seat.next_claim(1);
    let mut held = Held::of(seat.send(&claim).leased.remove(0));
    subject.commit(&subject.draft(&held).yielded(), &mut held);
    assert!(seat.send(&claim).leased.is_empty(), "the lease of that request is no longer held");
    assert_eq!(subject.look("a").lease.session, None, "and no new one is given");
    assert_eq!(seat.claim_one().lease.epoch, Epoch(2));
    assert!(seat.try_claim(&claim).map_or(true, |claimed| claimed.leased.is_empty()));
}

fn older_claim_gives_nothing(subject: &Subject) {
    for id in ["a", "b", "c"] {
        subject.start(id, flow());
    }
    let mut seat = subject.seat(worker());
    let old = seat.next_claim(1);
    seat.send(&old);
    seat.claim(1);
    match seat.try_claim(&old) {
        // Nobody waits for its answer any more. If it named leases again, a second reader of the
        // answer could run the executions twice.
        Ok(claimed) => assert!(claimed.leased.is_empty(), "{:?}", ids(&claimed)),
        Err(error) => assert!(matches!(error, Error::Refused(_)), "{error}"),
    }
    assert_eq!(seat.lease_count(), 2, "a late copy of an older request leases nothing");
}

fn requests_are_counted_by_session(subject: &Subject) {
    subject.start("a", flow());
    subject.start("b", flow());
    let (mut one, mut two) = (subject.seat(worker()), subject.seat(worker()));
    assert_eq!((one.claim_ids(1), two.claim_ids(1)), (vec!["a".to_owned()], vec!["b".to_owned()]));
}

fn refuses(seat: &Seat<'_>, claim: &Claim) {
    let refused = seat.try_claim(claim);
    assert!(matches!(refused, Err(Error::Refused(_))), "expected a refusal, found {refused:?}");
}

fn p3_dead_session_claims_nothing(subject: &Subject) {
    let (mut expired, _held) = subject.held("held");
    let mut retired = subject.seat(worker());
    retired.retire();
    subject.advance_ms(10_000);
    subject.start("a", flow());
    let before = subject.picture();
    for seat in [&mut expired, &mut retired] {
        let claim = Claim { sweep: true, ..seat.next_claim(1) };
        refuses(seat, &claim);
    }
    assert_eq!(subject.picture(), before, "a refused claim leaves no trace");
}

fn unknown_session_claims_nothing(subject: &Subject) {
    subject.start("a", flow());
    let mut seat = subject.seat(worker());
    let claim = Claim { session: SessionId(seat.session.0 + 1_000), ..seat.next_claim(1) };
    refuses(&seat, &claim);
}

fn claim_with_mail_tells_the_newest_unread_message_of_what_was_held(subject: &Subject) {
    let (mut seat, held) = subject.held("a");
    subject.send(signal("s1", "a"));
    subject.send(signal("s2", "a"));
    subject.submit(vec![start_of("b", flow()), signal("s3", "b")]).expect("both are taken");
    let claim = Claim { with_mail: true, ..seat.next_claim(1) };
    let claimed = seat.send(&claim);
    assert_eq!(claimed.mail, [(held.key, MessageId::new("s2"))]);
    assert_eq!(
        claimed.leased[0].inbox.messages,
        [subject.arrived(signal("s3", "b"))],
        "what is new brings its own"
    );
    assert!(seat.claim(1).mail.is_empty(), "only if asked for");
}
