//! Pages of inboxes, and the bounds of a claim.

use abide_core::{Body, Command, Message, MessageId, Name, Outcome, Payload, StepRecord};

use super::make::{flow, pause, signal, step, worker};
use super::{Subject, bounds, page_bounds, table};
use crate::{InboxPage, InboxRead, Notice};

table![
    pages_of_an_inbox_give_every_message_once_in_order,
    page_of_an_inbox_is_no_larger_than_asked_for,
    p8_page_of_an_inbox_is_bounded_in_count,
    p8_page_of_an_inbox_is_bounded_in_bytes,
    message_that_is_read_between_two_pages_shifts_nothing,
    inbox_of_what_does_not_exist_is_empty,
    p8_lease_brings_the_first_page_of_its_inbox,
    p8_claim_is_bounded_in_bytes_and_the_next_one_takes_the_rest,
    claim_takes_one_that_is_too_large_alone,
    notice_names_the_newest_unread_message_before_it,
    notice_names_none_when_everything_before_it_was_read,
    notice_after_an_unread_message_that_is_not_the_newest_names_it,
];

/// Returns a message of about `bytes` bytes.
fn large(id: &str, to: &str, bytes: usize) -> Message {
    let name = Name::new("large").expect("a literal name");
    let payload = Payload::from("x".repeat(bytes).as_str());
    Message { body: Body::Signal { name, payload }, ..signal(id, to) }
}

fn numbered(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("s{n}")).collect()
}

fn send_all<T: AsRef<str>>(subject: &Subject, ids: &[T]) {
    for id in ids {
        subject.send(signal(id.as_ref(), "a"));
    }
}

fn ids(page: &InboxPage) -> Vec<&str> {
    page.messages.iter().map(|message| message.id.as_str()).collect()
}

fn pages_of_an_inbox_give_every_message_once_in_order(subject: &Subject) {
    let key = subject.start("a", flow());
    let names: Vec<_> = (0..50).map(|n| format!("s{}", (n * 7) % 50)).collect();
    send_all(subject, &names);
    for limit in [1, 3, 1_000] {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = subject.inbox_page(InboxRead { key, after, limit });
            assert!(!page.messages.is_empty(), "a page that others follow has something in it");
            found.extend(page.messages.iter().map(|message| message.id.as_str().to_owned()));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(found, names);
    }
}

fn page_of_an_inbox_is_no_larger_than_asked_for(subject: &Subject) {
    let key = subject.start("a", flow());
    send_all(subject, &["s1", "s2", "s3"]);
    let first = subject.inbox_page(InboxRead { key, after: None, limit: 2 });
    assert_eq!(ids(&first), ["s1", "s2"]);
    let rest = subject.inbox_page(InboxRead { key, after: first.next, limit: 2 });
    assert_eq!((ids(&rest), rest.next), (vec!["s3"], None));
}

fn p8_page_of_an_inbox_is_bounded_in_count(subject: &Subject) {
    let key = subject.start("a", flow());
    let max = page_bounds().inbox_page_count_max;
    send_all(subject, &numbered(max + 1));
    let page = subject.inbox_page(InboxRead { key, after: None, limit: usize::MAX });
    assert_eq!(page.messages.len(), max);
    assert!(page.next.is_some());
}

fn p8_page_of_an_inbox_is_bounded_in_bytes(subject: &Subject) {
    let key = subject.start("a", flow());
    let max = page_bounds().inbox_page_bytes_max;
    for id in ["s1", "s2", "s3"] {
        subject.send(large(id, "a", max * 2 / 5));
    }
    let page = subject.inbox_page(InboxRead { key, after: None, limit: 9 });
    assert_eq!(ids(&page), ["s1", "s2"]);
    let rest = subject.inbox_page(InboxRead { key, after: page.next, limit: 9 });
    assert_eq!((ids(&rest), rest.next), (vec!["s3"], None));
}

fn message_that_is_read_between_two_pages_shifts_nothing(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    send_all(subject, &["s1", "s2", "s3", "s4"]);
    let page = subject.inbox_page(InboxRead { key: held.key, after: None, limit: 2 });
    subject.commit(&subject.draft(&held).consuming(&["s1", "s2"]), &mut held);
    let rest = subject.inbox_page(InboxRead { key: held.key, after: page.next, limit: 2 });
    assert_eq!(ids(&rest), ["s3", "s4"]);
    let all = subject.inbox_page(InboxRead { key: held.key, after: None, limit: 9 });
    assert_eq!(ids(&all), ["s3", "s4"], "what was read is gone");
}

fn inbox_of_what_does_not_exist_is_empty(subject: &Subject) {
    let key = crate::ExecutionKey(subject.start("a", flow()).0 + 1_000);
    assert_eq!(subject.inbox_page(InboxRead { key, after: None, limit: 9 }), InboxPage::default());
}

fn p8_lease_brings_the_first_page_of_its_inbox(subject: &Subject) {
    let key = subject.start("a", flow());
    send_all(subject, &numbered(50));
    let mut seat = subject.seat(worker());
    let leased = seat.claim(1).leased.remove(0);
    assert_eq!(leased.inbox, subject.inbox_page(InboxRead { key, after: None, limit: usize::MAX }));
    assert!(leased.inbox.next.is_some());
}

fn p8_claim_is_bounded_in_bytes_and_the_next_one_takes_the_rest(subject: &Subject) {
    let (count, bytes) = (24, page_bounds().inbox_page_bytes_max * 3 / 4);
    for n in 0..count {
        let id = format!("{n:02}");
        subject.start(&id, flow());
        subject.send(large("s", &id, bytes));
    }
    let mut seat = subject.seat(worker());
    let mut taken = Vec::new();
    while taken.len() < count {
        let claimed = seat.claim(1_000);
        let new = super::subject::ids(&claimed);
        assert!(!new.is_empty(), "what is left is ready");
        assert!((new.len() - 1) * bytes < page_bounds().claim_bytes_max, "{} at once", new.len());
        taken.extend(new);
        assert_eq!(claimed.more, taken.len() < count, "it says that there is more");
    }
    assert_eq!(taken, (0..count).map(|n| format!("{n:02}")).collect::<Vec<_>>(), "the order stays");
}

fn claim_takes_one_that_is_too_large_alone(subject: &Subject) {
    let bytes = bounds().payload_bytes_max * 9 / 10;
    let held = ["a", "b"].map(|id| subject.held(id).1);
    for mut one in held {
        let entry_count = page_bounds().claim_bytes_max / bytes + 1;
        let steps = (0..entry_count).map(|n| made(&format!("step {n}"), bytes));
        let draft = steps.fold(subject.draft(&one), super::held::Draft::then);
        subject.commit(&draft.yielded(), &mut one);
        subject.advance_ms(1);
    }
    let mut seat = subject.seat(worker());
    assert_eq!(seat.claim_ids(9), ["a"]);
    assert_eq!(seat.claim_ids(9), ["b"]);
}

/// Returns a step whose result has `bytes` bytes.
fn made(name: &str, bytes: usize) -> Command {
    match step(name) {
        Command::RecordStep(record) => {
            let outcome = Outcome::Success(Payload::from("x".repeat(bytes).as_str()));
            Command::RecordStep(StepRecord { outcome, ..record })
        }
        other => other,
    }
}

fn previous_of(notice: &Notice, id: &str) -> Option<Option<MessageId>> {
    match notice {
        Notice::Message { message, previous, .. } if message.id.as_str() == id => Some(previous.clone()),
        _ => None,
    }
}

/// Checks the predecessor that the notice of `id` names. A store that only says that something
/// changed names none.
fn check_previous(seat: &super::subject::Seat<'_>, id: &str, expected: Option<&str>) {
    let expected = expected.map(MessageId::new);
    seat.wait_for(|notice| match previous_of(notice, id) {
        Some(previous) => {
            assert_eq!(previous, expected, "what came before {id}");
            true
        }
        None => *notice == Notice::Changed,
    });
}

fn notice_names_the_newest_unread_message_before_it(subject: &Subject) {
    let (seat, _held) = subject.held("a");
    subject.send(signal("s1", "a"));
    check_previous(&seat, "s1", None);
    subject.send(signal("s2", "a"));
    check_previous(&seat, "s2", Some("s1"));
    subject.send(signal("s2", "a"));
    subject.send(pause("a"));
    check_previous(&seat, pause("a").id.as_str(), Some("s2"));
}

fn notice_names_none_when_everything_before_it_was_read(subject: &Subject) {
    let (seat, mut held) = subject.held("a");
    subject.send(signal("s1", "a"));
    subject.send(signal("s2", "a"));
    subject.commit(&subject.draft(&held).consuming(&["s1", "s2"]), &mut held);
    subject.send(signal("s3", "a"));
    check_previous(&seat, "s3", None);
}

fn notice_after_an_unread_message_that_is_not_the_newest_names_it(subject: &Subject) {
    let (seat, mut held) = subject.held("a");
    send_all(subject, &["s1", "s2", "s3"]);
    subject.commit(&subject.draft(&held).consuming(&["s3", "s1"]), &mut held);
    subject.send(signal("s4", "a"));
    check_previous(&seat, "s4", Some("s2"));
}
