//! Starting executions.

use abide_core::{Epoch, Event, Namespace, Payload, Start, Status, Version};

use super::make::{address, complete, delayed, flow, name, signal, start_of, tag, worker};
use super::{Subject, table};
use crate::Submitted;

table![
    start_creates_a_ready_execution,
    start_records_one_entry,
    same_start_attaches,
    start_that_differs_in_routing_attaches,
    other_start_is_refused_with_both_sides_in_the_message,
    p4_start_of_a_finished_execution_attaches_and_revives_nothing,
    p4_other_start_of_a_finished_execution_is_refused,
    p6_submit_with_a_refused_second_message_writes_nothing,
    p6_submit_with_a_refused_first_message_writes_nothing,
    p6_conflicting_starts_in_one_submit_write_nothing,
    start_and_signal_are_one,
    signal_before_its_start_in_one_submit_is_refused,
    start_twice_in_one_submit_attaches,
    empty_submit_does_nothing,
    ids_are_separate_by_namespace,
    ids_with_odd_characters_are_kept_apart,
    start_id_is_no_message_id,
    tags_are_kept,
    start_in_the_past_is_ready_now,
];

fn start_creates_a_ready_execution(subject: &Subject) {
    let key = subject.start("a", flow());
    let found = subject.look("a");
    assert_eq!(found.key, key);
    assert_eq!(found.execution.address(), &address("a"));
    assert_eq!(found.summary.status, Status::Running);
    assert_eq!((found.lease.epoch, found.lease.version), (Epoch(0), Version(0)));
    assert_eq!(found.lease.session, None);
    assert_eq!((found.created_at, found.ready_at), (subject.now(), Some(subject.now())));
    assert_eq!(found.takeover_count, 0);
    assert!(found.inbox.messages.is_empty(), "a start never goes into an inbox");
}

fn start_records_one_entry(subject: &Subject) {
    subject.start("a", flow());
    let journal = subject.look("a").journal;
    assert_eq!(journal.len(), 1);
    let entry = journal[0].entry().expect("it can be read");
    assert_eq!((entry.seq, entry.at), (1, subject.now()));
    assert_eq!(entry.event, Event::Started(flow().into()));
}

fn same_start_attaches(subject: &Subject) {
    let key = subject.start("a", flow());
    let before = subject.picture();
    let again = subject.send(start_of("a", flow()));
    assert!(matches!(again, Submitted::Attached(found) if found == key), "{again:?}");
    assert_eq!(subject.picture(), before, "attaching changes nothing");
}

fn start_that_differs_in_routing_attaches(subject: &Subject) {
    let key = subject.start("a", flow());
    let start_at = Some(subject.later_ms(9));
    let other = Start { lane: name("slow"), priority: 9, tags: vec![tag("k", "v")], start_at, ..flow() };
    let again = subject.send(start_of("a", other));
    assert!(matches!(again, Submitted::Attached(found) if found == key), "{again:?}");
    assert_eq!(subject.look("a").execution.priority(), 0);
}

fn other_start_is_refused_with_both_sides_in_the_message(subject: &Subject) {
    subject.start("a", flow());
    let before = subject.picture();
    let other = Start { name: name("other"), input: Payload::from("2"), ..flow() };
    let refusal = subject.refusal(vec![start_of("a", other)]);
    for side in [r#""a""#, r#"workflow "flow" with input 1"#, r#"workflow "other" with input 2"#] {
        assert!(refusal.contains(side), "{refusal} names {side}");
    }
    assert_eq!(subject.picture(), before, "a refusal leaves no trace");
}

fn p4_start_of_a_finished_execution_attaches_and_revives_nothing(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    subject.record(&mut held, complete());
    let before = subject.picture();
    let again = subject.send(start_of("a", flow()));
    assert!(matches!(again, Submitted::Attached(found) if found == held.key), "{again:?}");
    assert_eq!(subject.picture(), before);
    assert!(seat.claim_ids(9).is_empty(), "nothing is ready");
}

fn p4_other_start_of_a_finished_execution_is_refused(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    subject.record(&mut held, complete());
    let before = subject.picture();
    subject.refusal(vec![start_of("a", flow().with_input(Payload::from("2")))]);
    assert_eq!(subject.picture(), before);
}

fn p6_submit_with_a_refused_second_message_writes_nothing(subject: &Subject) {
    subject.start("old", flow());
    let before = subject.picture();
    let messages = vec![start_of("a", flow()), signal("s1", "old"), signal("s2", "nobody")];
    let refusal = subject.refusal(messages);
    assert!(refusal.contains(r#""nobody""#), "{refusal}");
    assert_eq!(subject.picture(), before, "neither the start nor the signal happened");
    subject.start("a", flow());
}

fn p6_submit_with_a_refused_first_message_writes_nothing(subject: &Subject) {
    subject.refusal(vec![signal("s", "nobody"), start_of("a", flow())]);
    assert!(!subject.exists("a"));
    assert!(subject.feed().is_empty());
}

fn p6_conflicting_starts_in_one_submit_write_nothing(subject: &Subject) {
    let other = flow().with_input(Payload::from("2"));
    subject.refusal(vec![start_of("a", flow()), start_of("a", other)]);
    assert!(!subject.exists("a"));
}

fn start_and_signal_are_one(subject: &Subject) {
    let submitted = subject.submit(vec![start_of("a", flow()), signal("s", "a")]).expect("both are taken");
    let [Submitted::Started(started, None), Submitted::Delivered(delivered)] = submitted.as_slice() else {
        panic!("expected a start and a delivery, found {submitted:?}");
    };
    assert_eq!(started, delivered);
    assert_eq!(subject.unread("a"), ["s"]);
    let again = subject.submit(vec![start_of("a", flow()), signal("s", "a")]).expect("repeating is harmless");
    assert!(matches!(again.as_slice(), [Submitted::Attached(_), Submitted::Duplicate(_)]), "{again:?}");
    assert_eq!(subject.unread("a"), ["s"]);
}

fn signal_before_its_start_in_one_submit_is_refused(subject: &Subject) {
    subject.refusal(vec![signal("s", "a"), start_of("a", flow())]);
    assert!(!subject.exists("a"));
}

fn start_twice_in_one_submit_attaches(subject: &Subject) {
    let submitted =
        subject.submit(vec![start_of("a", flow()), start_of("a", flow())]).expect("both are taken");
    assert!(
        matches!(submitted.as_slice(), [Submitted::Started(..), Submitted::Attached(_)]),
        "{submitted:?}"
    );
    assert_eq!(submitted[0].key(), submitted[1].key());
    assert_eq!(subject.feed().len(), 1);
}

fn empty_submit_does_nothing(subject: &Subject) {
    let submitted = subject.submit(Vec::new()).expect("nothing is possible");
    assert!(submitted.is_empty());
}

fn ids_are_separate_by_namespace(subject: &Subject) {
    let key = subject.start("a", flow());
    let mut other = start_of("a", flow().with_input(Payload::from("2")));
    other.to.namespace = Namespace::new("tenant").expect("a name");
    let submitted = subject.send(other);
    assert!(matches!(submitted, Submitted::Started(found, None) if found != key), "{submitted:?}");
    assert_eq!(subject.seat(worker()).claim_ids(9), ["a"], "a worker takes its own tenant's work only");
}

fn ids_with_odd_characters_are_kept_apart(subject: &Subject) {
    let long = "é".repeat(127);
    let odd = ["a,b", "a", "b", "'; DROP TABLE x; --", "%", "_", "A", "größe", " a ", "\"q\"", &long];
    for id in odd {
        subject.start(id, flow());
    }
    let listed = subject.list(super::make::everything()).items;
    let found: Vec<_> = listed.iter().map(|item| item.address.id.as_str()).collect();
    assert_eq!(found, odd);
    for id in odd {
        assert_eq!(subject.look(id).execution.address(), &address(id));
    }
}

fn start_id_is_no_message_id(subject: &Subject) {
    let mut start = start_of("a", flow());
    let signal = signal("same", "a");
    start.id = signal.id.clone();
    subject.send(start);
    assert!(
        matches!(subject.send(signal), Submitted::Delivered(_)),
        "the execution id is a start's identity"
    );
}

fn tags_are_kept(subject: &Subject) {
    let tags = vec![tag("customer", "c7"), tag("region", "c8"), tag("x,y", "1")];
    subject.start("a", Start { tags: tags.clone(), ..flow() });
    let mut found = subject.look("a").tags;
    found.sort_by(|a, b| (&a.key, &a.value).cmp(&(&b.key, &b.value)));
    assert_eq!(found, tags);
}

fn start_in_the_past_is_ready_now(subject: &Subject) {
    let start_at = subject.now();
    subject.advance_ms(5);
    subject.start("a", delayed(start_at));
    let found = subject.look("a");
    assert_eq!((found.summary.status, found.ready_at), (Status::Running, Some(subject.now())));
}
