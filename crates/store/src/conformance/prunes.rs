//! Pruning finished executions.

use abide_core::{Start, Version};

use super::make::{address, child_of, complete, everything, flow, name, signal, start_of, step, tag, worker};
use super::{Subject, table};
use crate::{FeedFrom, List, ParentRun, Submitted, Target};

table![
    prune_deletes_what_ended_long_ago,
    prune_never_deletes_what_is_open,
    prune_spares_what_ended_at_the_horizon,
    prune_is_bounded_and_takes_the_oldest_first,
    pruned_execution_leaves_nothing_behind,
    pruned_id_may_be_used_again,
    p3_commit_to_a_pruned_execution_is_fenced,
    p3_keys_and_positions_are_never_used_again,
    prune_counts_time_since_the_end,
    message_to_a_pruned_execution_is_refused,
    children_of_what_was_pruned_are_not_those_of_what_has_its_id_now,
];

/// Lets an execution with this id begin and end now.
fn finish(subject: &Subject, id: &str) {
    let (_seat, mut held) = subject.held(id);
    subject.send(signal("read", id));
    subject.send(signal("unread", id));
    subject.commit(&subject.draft(&held).consuming(&["read"]).then(step("one")).then(complete()), &mut held);
}

fn prune_deletes_what_ended_long_ago(subject: &Subject) {
    finish(subject, "a");
    subject.advance_ms(1);
    assert_eq!(subject.prune(subject.now(), 10), 1);
    assert!(!subject.exists("a"));
    assert_eq!(subject.prune(subject.now(), 10), 0);
}

fn prune_never_deletes_what_is_open(subject: &Subject) {
    let (_seat, mut parked) = subject.held("parked");
    subject.commit(&subject.draft(&parked).park(), &mut parked);
    subject.held("held");
    subject.start("ready", flow());
    subject.start("scheduled", super::make::delayed(subject.later_ms(1_000)));
    let before = subject.picture();
    subject.advance_ms(1_000_000);
    assert_eq!(subject.prune(subject.now(), 100), 0);
    assert_eq!(subject.picture(), before);
}

fn prune_spares_what_ended_at_the_horizon(subject: &Subject) {
    finish(subject, "a");
    assert_eq!(subject.prune(subject.now(), 10), 0);
    assert!(subject.exists("a"));
}

fn prune_is_bounded_and_takes_the_oldest_first(subject: &Subject) {
    let (_seat, mut late) = subject.held("created first, ended last");
    for id in ["a", "b", "c"] {
        finish(subject, id);
        subject.advance_ms(1);
    }
    subject.record(&mut late, complete());
    subject.advance_ms(1);
    assert_eq!(subject.prune(subject.now(), 2), 2);
    let left: Vec<_> = subject.list(everything()).items.into_iter().map(|item| item.address.id).collect();
    let left: Vec<_> = left.iter().map(abide_core::ExecutionId::as_str).collect();
    assert_eq!(left, ["created first, ended last", "c"]);
    assert_eq!(subject.prune(subject.now(), 0), 0);
}

fn pruned_execution_leaves_nothing_behind(subject: &Subject) {
    subject.start("a", Start { tags: vec![tag("k", "v")], ..flow() });
    let mut held = subject.seat(worker()).claim_one();
    subject.record(&mut held, complete());
    subject.start("b", flow());
    subject.advance_ms(1);
    subject.prune(subject.now(), 10);
    assert_eq!(subject.find(&Target::Key(held.key)), None);
    assert!(subject.list(List { tags: vec![tag("k", "v")], ..everything() }).items.is_empty());
    let feed = subject.feed();
    assert!(feed.iter().all(|item| item.address.id.as_str() == "b"));
    assert_eq!(feed.len(), 1);
}

fn pruned_id_may_be_used_again(subject: &Subject) {
    finish(subject, "a");
    subject.advance_ms(1);
    subject.prune(subject.now(), 10);
    subject.start("a", flow().with_input("another".into()));
    let found = subject.look("a");
    assert_eq!((found.lease.version, found.journal.len(), found.tags.len()), (Version(0), 1, 0));
    for id in ["read", "unread"] {
        assert!(matches!(subject.send(signal(id, "a")), Submitted::Delivered(_)), "message ids go too");
    }
}

fn p3_commit_to_a_pruned_execution_is_fenced(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    let stale = subject.draft(&held).then(step("late"));
    subject.record(&mut held, complete());
    subject.advance_ms(1);
    subject.prune(subject.now(), 10);
    subject.start("a", flow());
    subject.start("b", flow());
    subject.fenced(&stale);
}

fn p3_keys_and_positions_are_never_used_again(subject: &Subject) {
    finish(subject, "a");
    let (key, end) = (subject.look("a").key, subject.feed_page(FeedFrom::End, 9).next);
    subject.advance_ms(1);
    assert_eq!(subject.prune(subject.now(), 10), 1);
    assert!(subject.feed().is_empty());
    assert!(subject.start("b", flow()) > key);
    let rest = subject.feed_page(FeedFrom::After(end), 10).items;
    assert_eq!(rest.len(), 1, "a reader that stood at the end sees what follows");
}

fn prune_counts_time_since_the_end(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    subject.advance_ms(5_000);
    let middle = subject.now();
    subject.advance_ms(1_000);
    subject.record(&mut held, complete());
    subject.advance_ms(1_000);
    assert_eq!(subject.prune(middle, 10), 0, "it began before and ended after");
    assert_eq!(subject.prune(subject.now(), 10), 1);
}

fn message_to_a_pruned_execution_is_refused(subject: &Subject) {
    finish(subject, "a");
    subject.advance_ms(1);
    subject.prune(subject.now(), 10);
    assert!(subject.refusal(vec![signal("read", "a")]).contains("there is no execution"));
    subject.send(start_of("a", flow()));
}

/// A parent is an execution, not an id.
fn children_of_what_was_pruned_are_not_those_of_what_has_its_id_now(subject: &Subject) {
    let children = || {
        let parent = Some(ParentRun { id: address("parent").id, run: 1 });
        let found = subject.list(List { parent, ..everything() }).items;
        found.into_iter().map(|item| item.address.id.as_str().to_owned()).collect::<Vec<_>>()
    };
    let (_seat, mut held) = subject.held("parent");
    let old = start_of("old", Start { lane: name("other"), ..child_of("parent", "old") });
    subject.commit(&subject.draft(&held).emitting(old), &mut held);
    assert_eq!(children(), ["old"]);
    subject.commit(&subject.draft(&held).then(complete()), &mut held);
    subject.advance_ms(1);
    assert_eq!(subject.prune(subject.now(), 10), 1);
    assert!(children().is_empty(), "nobody has this id");
    let (_seat, mut held) = subject.held("parent");
    assert!(children().is_empty(), "it has started nobody yet");
    subject.commit(&subject.draft(&held).emitting(start_of("new", child_of("parent", "new"))), &mut held);
    assert_eq!(children(), ["new"]);
    assert!(subject.exists("old"));
}
