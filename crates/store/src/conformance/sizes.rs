//! Requests that exceed a limit.

use abide_core::{Block, Body, Bounds, By, Command, Message, Op, OpKind, Payload, Remedy, Start, StepRemedy};

use super::make::{flow, message, name, signal, start_of, tag, terminate};
use super::{Subject, bounds, table};
use crate::Submitted;

table![
    p8_oversize_input_is_refused_by_name,
    p8_largest_input_is_accepted,
    p8_oversize_signal_is_refused_by_name,
    p8_oversize_edit_is_refused_by_name,
    p8_oversize_reason_is_refused_by_name,
    p8_too_many_tags_are_refused_by_name,
    tag_key_given_twice_is_refused_by_name,
    p8_too_many_capabilities_are_refused_by_name,
    p8_full_inbox_refuses_by_name,
    p8_full_inbox_can_still_be_ended,
    p8_full_inbox_accepts_again_after_it_was_read,
    p8_full_inbox_still_knows_duplicates,
    p8_one_submit_cannot_overfill_an_inbox,
];

/// Checks that `messages` are refused because of `limit`, and that nothing happened.
fn check_refused(subject: &Subject, messages: Vec<Message>, limit: &str) {
    let before = subject.picture();
    let refusal = subject.refusal(messages);
    assert!(refusal.contains(limit), "{refusal} names {limit}");
    assert_eq!(subject.picture(), before, "a refusal leaves no trace");
}

fn payload(bytes: usize) -> Payload {
    Payload::from(vec![b'1'; bytes])
}

fn p8_oversize_input_is_refused_by_name(subject: &Subject) {
    let start = flow().with_input(payload(bounds().payload_bytes_max + 1));
    check_refused(subject, vec![start_of("a", start)], "payload_bytes_max");
}

fn p8_largest_input_is_accepted(subject: &Subject) {
    let input = payload(bounds().payload_bytes_max);
    subject.start("a", flow().with_input(input.clone()));
    let entry = subject.look("a").journal[0].entry().expect("it can be read");
    assert_eq!(entry.event, abide_core::Event::Started(flow().with_input(input).into()));
}

fn p8_oversize_signal_is_refused_by_name(subject: &Subject) {
    subject.start("a", flow());
    let of = |bytes| Body::Signal { name: name("note"), payload: payload(bytes) };
    let over = message("s", "a", of(bounds().payload_bytes_max + 1));
    check_refused(subject, vec![over], "payload_bytes_max");
    let most = message("s", "a", of(bounds().payload_bytes_max));
    assert!(matches!(subject.send(most), Submitted::Delivered(_)));
}

fn p8_oversize_edit_is_refused_by_name(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    let op = Op { kind: OpKind::Step, name: name("report"), key: None, nth: 1 };
    let block = Command::block(Block::Unrecordable { op, reason: "large".to_owned() });
    subject.commit(&subject.draft(&held).then(block).park(), &mut held);
    let edit = |bytes| {
        let remedy = Remedy::Edit(payload(bytes));
        message("e", "a", Body::Unblock { step: Some(StepRemedy { step: "report".to_owned(), remedy }) })
    };
    check_refused(subject, vec![edit(bounds().payload_bytes_max + 1)], "payload_bytes_max");
    assert!(matches!(subject.send(edit(bounds().payload_bytes_max)), Submitted::Delivered(_)));
}

fn p8_oversize_reason_is_refused_by_name(subject: &Subject) {
    subject.start("a", flow());
    let text = |bytes| "x".repeat(bytes);
    let max = Bounds::REASON_BYTES_MAX;
    let cancel = |by, reason| {
        let message = message("c", "a", Body::Cancel { reason: text(reason) });
        Message { by: By(text(by).into()), ..message }
    };
    let nameless = Message { by: By(text(max + 1).into()), ..signal("s", "a") };
    for over in [cancel(1, max + 1), cancel(max + 1, 1), nameless] {
        check_refused(subject, vec![over], "REASON_BYTES_MAX");
    }
    assert!(matches!(subject.send(cancel(max, max)), Submitted::Delivered(_)));
}

fn p8_too_many_tags_are_refused_by_name(subject: &Subject) {
    let tags = |count| (0..count).map(|n| tag(&format!("{n}"), "v")).collect();
    let over = Start { tags: tags(10_000), ..flow() };
    check_refused(subject, vec![start_of("a", over)], "tag_count_max");
    subject.start("a", Start { tags: tags(bounds().tag_count_max), ..flow() });
    assert_eq!(subject.look("a").tags.len(), bounds().tag_count_max);
}

fn tag_key_given_twice_is_refused_by_name(subject: &Subject) {
    let tags = vec![tag("customer", "c7"), tag("region", "eu"), tag("customer", "c8")];
    check_refused(
        subject,
        vec![start_of("a", Start { tags, ..flow() })],
        r#"tag key "customer" is given twice"#,
    );
}

fn p8_too_many_capabilities_are_refused_by_name(subject: &Subject) {
    let requires = (0..=bounds().requires_count_max).map(|n| name(&format!("{n}"))).collect();
    check_refused(subject, vec![start_of("a", Start { requires, ..flow() })], "requires_count_max");
}

fn fill(subject: &Subject, id: &str) {
    for n in 0..bounds().inbox_count_max {
        subject.send(signal(&format!("{n}"), id));
    }
}

fn p8_full_inbox_refuses_by_name(subject: &Subject) {
    subject.start("a", flow());
    subject.start("b", flow());
    fill(subject, "a");
    check_refused(subject, vec![signal("over", "a")], "inbox_count_max");
    check_refused(subject, vec![signal("fits", "b"), signal("over", "a")], "inbox_count_max");
    assert!(matches!(subject.send(signal("fits", "b")), Submitted::Delivered(_)));
}

fn p8_full_inbox_can_still_be_ended(subject: &Subject) {
    subject.start("a", flow());
    fill(subject, "a");
    assert!(matches!(subject.send(terminate("a")), Submitted::Delivered(_)));
}

fn p8_full_inbox_accepts_again_after_it_was_read(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    fill(subject, "a");
    subject.commit(&subject.draft(&held).consuming(&["0"]), &mut held);
    assert!(matches!(subject.send(signal("fits", "a")), Submitted::Delivered(_)));
    check_refused(subject, vec![signal("over", "a")], "inbox_count_max");
}

fn p8_full_inbox_still_knows_duplicates(subject: &Subject) {
    subject.start("a", flow());
    fill(subject, "a");
    assert!(matches!(subject.send(signal("7", "a")), Submitted::Duplicate(_)));
}

fn p8_one_submit_cannot_overfill_an_inbox(subject: &Subject) {
    let count = bounds().inbox_count_max + 1;
    let mut messages = vec![start_of("a", flow())];
    messages.extend((0..count).map(|n| signal(&format!("{n}"), "a")));
    check_refused(subject, messages, "inbox_count_max");
}
