//! Reading journals.

use abide_core::{Command, Fingerprint, Op, OpKind, Outcome, Payload, StepRecord};

use super::held::Held;
use super::make::{address, name, step};
use super::{Subject, block_on, table};
use crate::{ExecutionKey, Read, Record, Target};

table![
    journal_of_a_thousand_entries_is_read_in_pages,
    journal_appended_in_large_commits_is_read_in_pages,
    page_starts_where_it_is_wanted,
    page_is_bounded,
    page_after_the_end_is_empty,
    page_of_no_entries_tells_the_execution,
    journals_that_grow_side_by_side_stay_apart,
    lease_brings_the_beginning_of_the_journal,
    large_entry_is_kept,
    unknown_execution_is_none,
    execution_is_found_by_key_and_by_address,
    inbox_is_told_only_if_asked_for,
];

/// Appends steps until the journal has `count` entries, `batch` per commit.
fn grow(subject: &Subject, held: &mut Held, (count, batch): (u64, u64)) {
    while held.execution.entry_count() < count {
        let first = held.execution.entry_count() + 1;
        let last = (first + batch).min(count + 1);
        let draft =
            (first..last).fold(subject.draft(held), |draft, n| draft.then(step(&format!("step {n}"))));
        subject.commit(&draft, held);
    }
}

/// Checks that `page` has entries from number `from` on, each with its own contents.
fn check_page(page: &[Record], from: u64) {
    for (record, seq) in page.iter().zip(from..) {
        assert_eq!(record.seq, seq);
        let entry = record.entry().expect("it can be read");
        let op = entry.event.op().map(|op| op.name.as_str().to_owned());
        assert_eq!(op, (seq > 1).then(|| format!("step {seq}")));
    }
}

/// Reads everything in pages of at most `limit`. A store may return fewer entries, but not none.
fn check_paging(subject: &Subject, id: &str, (count, limit): (u64, usize)) {
    let mut from = 1;
    while from <= count {
        let page = subject.page(id, from, limit);
        assert!(!page.is_empty() && page.len() <= limit, "a page from {from} has {} entries", page.len());
        check_page(&page, from);
        from += page.len() as u64;
    }
    assert_eq!(from, count + 1);
}

fn journal_of_a_thousand_entries_is_read_in_pages(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    grow(subject, &mut held, (1_000, 1));
    for limit in [1, 7, 64, 127, 128, 129, 500, 10_000] {
        check_paging(subject, "a", (1_000, limit));
    }
}

fn journal_appended_in_large_commits_is_read_in_pages(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    grow(subject, &mut held, (1_300, 257));
    for limit in [10, 128, 256, 1_000] {
        check_paging(subject, "a", (1_300, limit));
    }
}

fn page_starts_where_it_is_wanted(subject: &Subject) {
    for count in [127, 128, 129, 256, 257] {
        let id = format!("journal of {count}");
        let (_seat, mut held) = subject.held(&id);
        grow(subject, &mut held, (count, 10));
        let wanted = [1, 2, 126, 127, 128, 129, 130, 255, 256, 257];
        for from in wanted.into_iter().filter(|from| *from <= count) {
            let page = subject.page(&id, from, 3);
            assert!(!page.is_empty(), "entry {from} of {count} exists");
            check_page(&page, from);
        }
    }
}

fn page_is_bounded(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    grow(subject, &mut held, (300, 50));
    for (from, limit) in [(1, 1), (1, 2), (128, 1), (129, 2), (299, 2), (300, 1)] {
        assert!(subject.page("a", from, limit).len() <= limit);
    }
    assert_eq!(subject.page("a", 300, 100).len(), 1);
}

fn page_after_the_end_is_empty(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    grow(subject, &mut held, (128, 50));
    for from in [129, 130, 1_000, u64::MAX] {
        assert!(subject.page("a", from, 10).is_empty(), "there is nothing from {from} on");
    }
}

fn page_of_no_entries_tells_the_execution(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    subject.record(&mut held, step("one"));
    let read = Read { target: Target::Key(held.key), run: None, from: 1, limit: 0, with_inbox: false };
    let found = block_on(subject.store.read(read)).expect("it is read").expect("it exists");
    assert!(found.journal.is_empty());
    assert_eq!(found.execution, held.execution);
}

fn journals_that_grow_side_by_side_stay_apart(subject: &Subject) {
    let (_one, mut a) = subject.held("a");
    let (_two, mut b) = subject.held("b");
    for count in (10..=300).step_by(10) {
        grow(subject, &mut a, (count, 3));
        grow(subject, &mut b, (count, 4));
    }
    for id in ["a", "b"] {
        check_paging(subject, id, (300, 50));
    }
}

fn lease_brings_the_beginning_of_the_journal(subject: &Subject) {
    let (mut seat, mut held) = subject.held("a");
    grow(subject, &mut held, (400, 100));
    subject.commit(&subject.draft(&held).yielded(), &mut held);
    let leased = seat.claim(1).leased.remove(0);
    let page = leased.opening.into_records();
    assert!(!page.is_empty(), "a page is not empty");
    check_page(&page, 1);
    assert_eq!(leased.execution.entry_count(), 400);
}

fn large_entry_is_kept(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    let bytes: Vec<u8> = (0..1_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let op = Op { kind: OpKind::Step, name: name("large"), key: None, nth: 1 };
    let outcome = Outcome::Success(Payload::from(bytes));
    let input = Some(Box::new(Fingerprint::of(&Payload::from("7"))));
    subject.record(&mut held, Command::RecordStep(StepRecord { op, outcome, attempt: 1, input }));
    let draft = subject.draft(&held).then(step("after"));
    subject.commit(&draft, &mut held);
    let journal = subject.look("a").journal;
    assert_eq!(journal.len(), 3);
    assert!(journal[1].bytes.len() > 1_000_000);
    journal[1].entry().expect("it can be read");
}

fn unknown_execution_is_none(subject: &Subject) {
    subject.start("a", super::make::flow());
    for target in [Target::Key(ExecutionKey(77)), Target::Address(address("nobody"))] {
        assert_eq!(subject.find(&target), None);
    }
}

fn execution_is_found_by_key_and_by_address(subject: &Subject) {
    let key = subject.start("a", super::make::flow());
    subject.start("b", super::make::flow());
    assert_eq!(subject.find(&Target::Key(key)), Some(subject.look("a")));
}

fn inbox_is_told_only_if_asked_for(subject: &Subject) {
    let key = subject.start("a", super::make::flow());
    subject.send(super::make::signal("s", "a"));
    for (with_inbox, count) in [(true, 1), (false, 0)] {
        let read = Read { target: Target::Key(key), run: None, from: 1, limit: 9, with_inbox };
        let found = block_on(subject.store.read(read)).expect("it is read").expect("it exists");
        assert_eq!(found.inbox.messages.len(), count);
    }
}
