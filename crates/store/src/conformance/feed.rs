//! What happened, in order.

use std::collections::BTreeMap;

use super::make::{child_of, complete, flow, signal, start_of, step, worker};
use super::{Subject, table};
use crate::FeedItem;

table![
    feed_tells_entries_in_the_order_of_commits,
    feed_is_read_by_cursor,
    feed_after_the_end_is_empty,
    feed_has_whole_entries,
    p4_feed_has_one_end_for_each_run,
    children_are_in_the_feed,
];

fn told(items: &[FeedItem]) -> Vec<(String, u64)> {
    items.iter().map(|item| (item.address.id.as_str().to_owned(), item.record.seq)).collect()
}

fn feed_tells_entries_in_the_order_of_commits(subject: &Subject) {
    let (_one, mut a) = subject.held("a");
    let (_two, mut b) = subject.held("b");
    subject.commit(&subject.draft(&a).then(step("one")).then(step("two")), &mut a);
    subject.record(&mut b, step("one"));
    subject.send(signal("s", "a"));
    subject.record(&mut a, complete());
    let items = subject.feed(0, 100);
    let expected = [("a", 1), ("b", 1), ("a", 2), ("a", 3), ("b", 2), ("a", 4)];
    assert_eq!(told(&items), expected.map(|(id, seq)| (id.to_owned(), seq)));
    assert!(items.is_sorted_by(|a, b| a.position < b.position), "positions grow");
    assert!(items[0].position > 0, "0 is before the beginning");
}

fn feed_is_read_by_cursor(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    for n in 0..50 {
        subject.record(&mut held, step(&format!("{n}")));
    }
    let all = subject.feed(0, 1_000);
    assert_eq!(all.len(), 51);
    for limit in [1, 7, 51] {
        let (mut found, mut after) = (Vec::new(), 0);
        loop {
            let page = subject.feed(after, limit);
            assert!(page.len() <= limit);
            let Some(last) = page.last() else { break };
            after = last.position;
            found.extend(page);
        }
        assert_eq!(found, all, "in pages of {limit}");
    }
}

fn feed_after_the_end_is_empty(subject: &Subject) {
    assert!(subject.feed(0, 10).is_empty());
    subject.start("a", flow());
    let last = subject.feed(0, 10)[0].position;
    assert!(subject.feed(last, 10).is_empty());
    assert!(subject.feed(last + 1_000_000, 10).is_empty());
    assert!(subject.feed(0, 0).is_empty());
}

fn feed_has_whole_entries(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    subject.record(&mut held, step("one"));
    let records: Vec<_> = subject.feed(0, 10).into_iter().map(|item| item.record).collect();
    assert_eq!(records, subject.look("a").journal);
}

fn p4_feed_has_one_end_for_each_run(subject: &Subject) {
    let mut seat = subject.seat(worker());
    for id in ["a", "b", "c"] {
        subject.start(id, flow());
        let mut held = seat.claim_one();
        let mut believer = held.clone();
        let draft = subject.draft(&held).then(complete());
        subject.commit(&draft, &mut held);
        subject.attempt(&draft);
        believer.version = held.version;
        subject.attempt(&subject.draft(&believer).then(complete()));
        subject.send(start_of(id, flow()));
    }
    let mut ends = BTreeMap::new();
    for item in subject.feed(0, 100) {
        let is_end = item.record.entry().expect("it can be read").event.is_terminal();
        *ends.entry(item.address.id.as_str().to_owned()).or_insert(0) += u32::from(is_end);
    }
    assert_eq!(ends.into_values().collect::<Vec<_>>(), [1, 1, 1]);
}

fn children_are_in_the_feed(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    let child = start_of("child", child_of("a", "child"));
    subject.commit(&subject.draft(&held).then(step("one")).emitting(child), &mut held);
    let mut found = told(&subject.feed(0, 10));
    found.sort();
    assert_eq!(found, [("a", 1), ("a", 2), ("child", 1)].map(|(id, seq)| (id.to_owned(), seq)));
}
