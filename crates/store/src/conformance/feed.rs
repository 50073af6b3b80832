//! Beginnings, ends and changes of executions, in order.

use abide_core::{Block, Body, Command, Happening};

use super::block_on::both;
use super::make::{cancel, child_of, complete, flow, message, pause, resume, signal, start_of, step, worker};
use super::{Subject, block_on, table};
use crate::{FeedFrom, FeedItem};

table![
    feed_tells_lives_in_the_order_of_commits,
    feed_tells_how_runs_end_and_which_run_it_was,
    feed_tells_what_is_blocked_and_what_goes_on,
    feed_says_nothing_of_steps,
    feed_is_read_by_cursor,
    feed_from_the_end_tells_only_what_follows,
    feed_after_the_end_is_empty,
    p4_feed_has_one_end_for_each_run,
    children_are_in_the_feed,
    p6_what_was_refused_is_not_in_the_feed,
    p7_follower_is_told_of_what_comes_after_it_asked,
];

fn told(items: &[FeedItem]) -> Vec<(&str, u32, Happening)> {
    items.iter().map(|item| (item.address.id.as_str(), item.run, item.happening)).collect()
}

fn feed_tells_lives_in_the_order_of_commits(subject: &Subject) {
    let (_one, mut a) = subject.held("a");
    let (_two, mut b) = subject.held("b");
    subject.advance_ms(3);
    let now = subject.now();
    subject.record(&mut b, complete());
    subject.commit(&subject.draft(&a).then(step("one")).then(complete()), &mut a);
    let items = subject.feed();
    let expected = [
        ("a", 1, Happening::Began),
        ("b", 1, Happening::Began),
        ("b", 1, Happening::Completed),
        ("a", 1, Happening::Completed),
    ];
    assert_eq!(told(&items), expected);
    assert_eq!((items[0].at < now, items[3].at), (true, now), "with the time at which it was decided");
}

fn feed_tells_how_runs_end_and_which_run_it_was(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    subject.commit(&subject.draft(&held).then(step("one")).continued("2"), &mut held);
    subject.commit(&subject.draft(&held).continued("3"), &mut held);
    let failure = abide_core::Failure::new(abide_core::FailureKind::Fatal, "no");
    subject.record(&mut held, Command::Fail(failure));
    subject.send(message("again", "a", Body::Retry));
    let expected = [
        ("a", 1, Happening::Began),
        ("a", 1, Happening::Continued),
        ("a", 2, Happening::Began),
        ("a", 2, Happening::Continued),
        ("a", 3, Happening::Began),
        ("a", 3, Happening::Failed),
        ("a", 4, Happening::Began),
    ];
    assert_eq!(told(&subject.feed()), expected);
}

fn feed_tells_what_is_blocked_and_what_goes_on(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    let obey = |held: &mut super::held::Held, message: abide_core::Message| {
        let id = message.id.clone();
        let command = message.control().expect("it is control");
        subject.send(message);
        subject.commit(&subject.draft(held).consuming(&[id.as_str()]).then(command), held);
    };
    obey(&mut held, pause("a"));
    obey(&mut held, resume("a"));
    subject.record(&mut held, Command::block(Block::Limit { reason: "too long".to_owned() }));
    obey(&mut held, message("unblock", "a", Body::Unblock { step: None }));
    obey(&mut held, cancel("a"));
    let happenings: Vec<_> = subject.feed().iter().map(|item| item.happening).collect();
    let expected = [
        Happening::Began,
        Happening::Paused,
        Happening::Resumed,
        Happening::Blocked,
        Happening::Unblocked,
        Happening::CancelRequested,
    ];
    assert_eq!(happenings, expected);
}

fn feed_says_nothing_of_steps(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    for n in 0..300 {
        subject.record(&mut held, step(&format!("{n}")));
    }
    subject.send(signal("s", "a"));
    assert_eq!(subject.feed().len(), 1);
}

fn feed_is_read_by_cursor(subject: &Subject) {
    for n in 0..50 {
        subject.start(&format!("{n}"), flow());
    }
    let all = subject.feed();
    assert_eq!(all.len(), 50);
    for limit in [1, 7, 50] {
        let (mut found, mut from) = (Vec::new(), FeedFrom::Beginning);
        loop {
            let page = subject.feed_page(from, limit);
            assert!(page.items.len() <= limit);
            from = FeedFrom::After(page.next);
            found.extend(page.items);
            if page.is_end {
                break;
            }
        }
        assert_eq!(found, all, "in pages of {limit}");
    }
}

fn feed_from_the_end_tells_only_what_follows(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    let end = subject.feed_page(FeedFrom::End, 10);
    assert_eq!((end.items.as_slice(), end.is_end), (&[][..], true));
    subject.record(&mut held, step("one"));
    let after_step = subject.feed_page(FeedFrom::After(end.next), 10);
    assert_eq!(after_step.items, []);
    subject.start("b", flow());
    for from in [end.next, after_step.next] {
        assert_eq!(told(&subject.feed_page(FeedFrom::After(from), 10).items), [("b", 1, Happening::Began)]);
    }
}

fn feed_after_the_end_is_empty(subject: &Subject) {
    let empty = subject.feed_page(FeedFrom::Beginning, 10);
    assert_eq!((empty.items.as_slice(), empty.is_end), (&[][..], true));
    subject.start("a", flow());
    let page = subject.feed_page(FeedFrom::After(empty.next), 10);
    assert_eq!((page.items.len(), page.is_end), (1, true), "whoever stood at the end sees what follows");
    let rest = subject.feed_page(FeedFrom::After(page.next), 10);
    assert_eq!((rest.items.as_slice(), rest.next), (&[][..], page.next), "and stays where it is");
    assert_eq!(subject.feed_page(FeedFrom::Beginning, 0).items, []);
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
    let feed = subject.feed();
    let ends: Vec<_> = feed.iter().filter(|item| item.happening.is_end()).collect();
    assert_eq!(ends.iter().map(|item| item.address.id.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
}

fn children_are_in_the_feed(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    let child = start_of("child", child_of("a", "child"));
    subject.commit(&subject.draft(&held).then(step("one")).emitting(child), &mut held);
    assert_eq!(told(&subject.feed()), [("a", 1, Happening::Began), ("child", 1, Happening::Began)]);
}

fn p6_what_was_refused_is_not_in_the_feed(subject: &Subject) {
    subject.refusal(vec![start_of("a", flow()), signal("s", "nobody")]);
    let (_seat, held) = subject.held("b");
    let mut stale = held.clone();
    stale.version = stale.version.next();
    subject.fenced(&subject.draft(&stale).then(complete()));
    assert_eq!(told(&subject.feed()), [("b", 1, Happening::Began)]);
}

fn p7_follower_is_told_of_what_comes_after_it_asked(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    let changed = subject.store.changed();
    subject.start("b", flow());
    block_on(changed).expect("it is told, although it was asked before");
    let (one, two) = (subject.store.changed(), subject.store.changed());
    subject.record(&mut held, complete());
    block_on(one).expect("it is told");
    block_on(two).expect("and so is everybody else");
    drop(subject.store.changed());
    let waiting = subject.store.changed();
    let started = async { subject.start("c", flow()) };
    block_on(both(waiting, started)).0.expect("it is told while it waits");
}
