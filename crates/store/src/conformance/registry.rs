//! The worker registry.

use std::time::Duration;

use abide_core::{Bounds, Namespace, SessionId};

use super::make::{TTL, flow, name, worker};
use super::{Subject, block_on, table};
use crate::{Agreement, Beat, Error, Heartbeat, Retire, Worker, WorkerRow, Workers};

table![
    registered_worker_is_listed,
    registration_expires_after_its_ttl,
    sessions_are_numbered_anew,
    heartbeat_lengthens_a_session,
    heartbeat_after_the_clock_was_set_back_does_not_shorten_a_session,
    session_that_drains_says_so_until_it_ends,
    heartbeat_of_a_retired_session_is_not_registered,
    heartbeat_of_an_unknown_session_is_not_registered,
    leases_are_counted,
    retiring_twice_keeps_the_first_reason,
    retiring_an_unknown_session_changes_nothing,
    reason_of_retirement_is_checked,
    workers_are_listed_by_namespace,
    workers_are_listed_in_pages,
];

fn workers(subject: &Subject, workers: Workers) -> Vec<WorkerRow> {
    block_on(subject.store.workers(workers)).expect("workers are listed")
}

fn all(subject: &Subject) -> Vec<WorkerRow> {
    workers(subject, Workers { namespace: Namespace::default(), after: None, limit: 100 })
}

fn beat_of(subject: &Subject, session: SessionId) -> Heartbeat {
    block_on(subject.store.heartbeat(Beat::of(session))).expect("a heartbeat is answered")
}

fn registered_worker_is_listed(subject: &Subject) {
    let mut worker = super::make::capable(&["p,q", "r"]);
    worker.name = name("host-1, rack 2");
    worker.ability.lanes = super::make::names(&["a,b", "c"]);
    let seat = subject.seat(worker.clone());
    let expected = WorkerRow {
        session: seat.session,
        worker,
        registered_at: subject.now(),
        expires_at: subject.now().after(TTL),
        retired: None,
        is_draining: false,
        lease_count: 0,
        damage: None,
    };
    assert_eq!(all(subject), [expected]);
}

fn registration_expires_after_its_ttl(subject: &Subject) {
    let short = Worker { ttl: Duration::from_millis(500), ..worker() };
    let registered = block_on(subject.store.register(short)).expect("a worker is registered");
    assert_eq!(registered.expires_at, subject.later_ms(500));
    subject.advance_ms(499);
    assert!(all(subject)[0].is_live(subject.now()));
    subject.advance_ms(1);
    assert!(!all(subject)[0].is_live(subject.now()));
    assert_eq!(beat_of(subject, registered.session), Heartbeat::NotRegistered);
}

fn sessions_are_numbered_anew(subject: &Subject) {
    let first = subject.seat(worker());
    first.retire();
    let second = subject.seat(worker());
    assert!(second.session > first.session, "the same worker gets another session");
}

fn heartbeat_lengthens_a_session(subject: &Subject) {
    let seat = subject.seat(worker());
    subject.advance_ms(4_000);
    let expires_at = subject.now().after(TTL);
    assert_eq!(seat.heartbeat(), Heartbeat::Refreshed { expires_at, leases: Agreement::Agreed });
    assert_eq!(all(subject)[0].expires_at, expires_at);
    subject.advance_ms(9_999);
    assert!(matches!(seat.heartbeat(), Heartbeat::Refreshed { .. }));
}

fn heartbeat_after_the_clock_was_set_back_does_not_shorten_a_session(subject: &Subject) {
    let seat = subject.seat(worker());
    let promised = subject.now().after(TTL);
    subject.clock.set_back(TTL / 2);
    let kept = Heartbeat::Refreshed { expires_at: promised, leases: Agreement::Agreed };
    assert_eq!(seat.heartbeat(), kept);
    assert_eq!(all(subject)[0].expires_at, promised);
    subject.clock.advance(TTL);
    assert!(matches!(seat.heartbeat(), Heartbeat::Refreshed { .. }), "it lives for as long as promised");
}

fn session_that_drains_says_so_until_it_ends(subject: &Subject) {
    let (seat, other) = (subject.seat(worker()), subject.seat(worker()));
    let takes_more = || all(subject).iter().map(|row| row.takes_more(subject.now())).collect::<Vec<_>>();
    assert_eq!(takes_more(), [true, true]);
    let drain = Beat { is_draining: true, ..Beat::of(seat.session) };
    let refreshed = Heartbeat::Refreshed { expires_at: subject.now().after(TTL), leases: Agreement::Agreed };
    assert_eq!(block_on(subject.store.heartbeat(drain)).expect("a heartbeat is answered"), refreshed);
    assert_eq!(takes_more(), [false, true]);
    // A heartbeat that was sent earlier arrives later.
    assert_eq!(beat_of(subject, seat.session), refreshed);
    assert_eq!(takes_more(), [false, true]);
    assert!(all(subject)[0].is_live(subject.now()), "it keeps what it holds");
    seat.retire();
    other.retire();
    assert_eq!(takes_more(), [false, false]);
}

fn heartbeat_of_a_retired_session_is_not_registered(subject: &Subject) {
    let seat = subject.seat(worker());
    seat.retire();
    assert_eq!(seat.heartbeat(), Heartbeat::NotRegistered);
}

fn heartbeat_of_an_unknown_session_is_not_registered(subject: &Subject) {
    assert_eq!(beat_of(subject, SessionId(77)), Heartbeat::NotRegistered);
}

fn leases_are_counted(subject: &Subject) {
    for id in ["a", "b", "c"] {
        subject.start(id, flow());
    }
    let mut seat = subject.seat(worker());
    assert_eq!(seat.lease_count(), 0);
    let claimed = seat.claim(2);
    assert_eq!(seat.lease_count(), 2);
    let mut held = super::held::Held::of(claimed.leased[0].clone());
    subject.commit(&subject.draft(&held).park(), &mut held);
    assert_eq!(seat.lease_count(), 1);
}

fn retire(subject: &Subject, session: SessionId, reason: &str) -> crate::Result<()> {
    block_on(subject.store.retire(Retire { session, reason: reason.to_owned() }))
}

fn retiring_twice_keeps_the_first_reason(subject: &Subject) {
    let seat = subject.seat(worker());
    retire(subject, seat.session, "deploy").expect("a session may be retired");
    retire(subject, seat.session, "again").expect("ending an ended one is no error");
    assert_eq!(all(subject)[0].retired.as_deref(), Some("deploy"));
}

fn retiring_an_unknown_session_changes_nothing(subject: &Subject) {
    let (seat, mut held) = subject.held("a");
    retire(subject, SessionId(seat.session.0 + 77), "gone").expect("there is nothing to end");
    subject.record(&mut held, super::make::step("mine"));
}

fn reason_of_retirement_is_checked(subject: &Subject) {
    let seat = subject.seat(worker());
    for bad in ["a\nb", &"x".repeat(Bounds::REASON_BYTES_MAX + 1)] {
        let refused = retire(subject, seat.session, bad);
        assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
    }
    assert_eq!(seat.lease_count(), 0, "a refused retirement ends nothing");
    retire(subject, seat.session, "").expect("a reason may be empty");
    assert!(all(subject)[0].retired.is_some());
}

fn workers_are_listed_by_namespace(subject: &Subject) {
    let tenant = Namespace::new("tenant").expect("a name");
    let mut foreign = worker();
    foreign.ability.namespace = tenant.clone();
    let (own, other) = (subject.seat(worker()), subject.seat(foreign));
    let sessions = |rows: Vec<WorkerRow>| rows.iter().map(|row| row.session).collect::<Vec<_>>();
    assert_eq!(sessions(all(subject)), [own.session]);
    let foreign = workers(subject, Workers { namespace: tenant, after: None, limit: 9 });
    assert_eq!(sessions(foreign), [other.session]);
}

fn workers_are_listed_in_pages(subject: &Subject) {
    let made: Vec<_> = (0..5).map(|_| subject.seat(worker()).session).collect();
    let (mut found, mut after) = (Vec::new(), None);
    for _ in 0..9 {
        let page = workers(subject, Workers { namespace: Namespace::default(), after, limit: 2 });
        assert!(page.len() <= 2);
        let Some(last) = page.last() else { break };
        after = Some(last.session);
        found.extend(page.iter().map(|row| row.session));
    }
    assert_eq!(found, made);
}
