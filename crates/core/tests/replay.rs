//! The replay cursor: which entry comes next, for unchanged and for changed code.

use abide_core::{
    Block, By, Cursor, Entry, Event, Failure, FailureKind, Mismatch, Name, Next, Op, OpKind, Outcome,
    Payload, Remedied, Remedy, StepRecord, Timestamp, Unrecordable,
};
use proptest::prelude::*;

fn op(name: &str) -> Op {
    Op { kind: OpKind::Step, name: Name::new(name).expect("a name"), key: None, nth: 1 }
}

fn recorded(names: &[&str]) -> Vec<Entry> {
    let number = |(index, name): (usize, &&str)| {
        let event = Event::StepRecorded(StepRecord {
            op: op(name),
            outcome: Outcome::Success(Payload::from("1")),
            attempt: 1,
            input: None,
        });
        Entry::new(index as u64 + 1, Timestamp::from_millis(index as i64), event)
    };
    names.iter().enumerate().map(number).collect()
}

/// Replays code that asks for `asked`, one operation after the other, and returns what happened.
fn replayed(journal: &[Entry], asked: &[&str]) -> String {
    let mut cursor = Cursor::new(false);
    let mut story = Vec::new();
    for name in asked {
        cursor.open(op(name).index());
        let delivered = loop {
            match cursor.next() {
                Next::Fetch(seq) => {
                    cursor.fetched(&journal[seq as usize - 1]);
                    break true;
                }
                Next::Offer(seq) if seq as usize > journal.len() => break false,
                Next::Offer(seq) => {
                    if cursor.offer(&journal[seq as usize - 1]).expect("not strict") {
                        break true;
                    }
                }
            }
        };
        story.push(format!("{name} {}", if delivered { "replayed" } else { "runs" }));
        cursor.close(op(name).index());
    }
    let unused: Vec<_> = cursor.unused(9, &abide_core::Uses::default()).iter().map(u64::to_string).collect();
    format!(
        "{}; unused {}",
        story.join(", "),
        if unused.is_empty() { "-".to_owned() } else { unused.join(",") }
    )
}

#[test]
fn changed_code_continues_by_name() {
    let journal = recorded(&["a", "b", "c"]);
    let rows = [
        (vec!["a", "b", "c", "d"], "a replayed, b replayed, c replayed, d runs; unused -"),
        (vec!["a", "x", "b", "c"], "a replayed, x runs, b replayed, c replayed; unused -"),
        (vec!["c", "a", "b"], "c replayed, a replayed, b replayed; unused -"),
        (vec!["a", "c"], "a replayed, c replayed; unused 2"),
        (vec!["a", "bb", "c"], "a replayed, bb runs, c replayed; unused 2"),
    ];
    for (asked, story) in rows {
        assert_eq!(replayed(&journal, &asked), story);
    }
}

/// Replays code that asks for `asked`, where each may have had another name before: `new<old`.
/// Returns the records that it takes from the journal, and their names.
fn renamed(journal: &[Entry], asked: &[&str]) -> String {
    let mut cursor = Cursor::new(false);
    let mut story = Vec::new();
    // A replay looks through the rest of the journal once.
    let mut has_looked = false;
    let mut look = |cursor: &mut Cursor| {
        let rest = journal.iter().skip(cursor.passed() as usize).filter(|_| !has_looked);
        rest.for_each(|entry| cursor.look_ahead(entry));
        has_looked = true;
    };
    for asked in asked {
        let (own, olds) = asked.split_once('<').unwrap_or((asked, ""));
        let olds: Vec<_> = olds.split('<').filter(|old| !old.is_empty()).map(|old| op(old).index()).collect();
        cursor.open_renamed(op(own).index(), &olds);
        let mut known_as = op(own).index();
        let taken = loop {
            if let Some(renamed) = cursor.renamed() {
                look(&mut cursor);
                known_as = if cursor.adopt(renamed) { renamed.old } else { known_as };
                continue;
            }
            let (entry, is_fetch) = match cursor.next() {
                Next::Fetch(seq) => (&journal[seq as usize - 1], true),
                Next::Offer(seq) if seq as usize > journal.len() => break None,
                Next::Offer(seq) => (&journal[seq as usize - 1], false),
            };
            if is_fetch {
                cursor.fetched(entry);
                break Some(entry);
            }
            if let Some(renamed) = cursor.renamed_by(entry) {
                look(&mut cursor);
                known_as = if cursor.adopt(renamed) { renamed.old } else { known_as };
            }
            if cursor.offer(entry).expect("not strict") {
                break Some(entry);
            }
        };
        story.push(match taken {
            Some(entry) => format!("{own} is {}", entry.event.op().expect("a step").name),
            None => format!("{own} runs"),
        });
        cursor.close(known_as);
    }
    let unused: Vec<_> = cursor.unused(9, &abide_core::Uses::default()).iter().map(u64::to_string).collect();
    format!("{}; unused [{}]", story.join(", "), unused.join(","))
}

#[test]
fn a_renamed_operation_takes_what_is_recorded_under_its_newest_name() {
    let rows = [
        (vec!["a", "b"], vec!["a", "c<b"], "a is a, c is b; unused []"),
        (vec!["a", "b"], vec!["c<b", "a"], "c is b, a is a; unused []"),
        (vec!["a", "b"], vec!["c<b<d", "d2<d"], "c is b, d2 runs; unused [1]"),
        // It ran again, under its new name.
        (vec!["b", "c"], vec!["c<b"], "c is c; unused [1]"),
        (vec!["b", "a", "c"], vec!["x", "c<b", "a"], "x runs, c is c, a is a; unused [1]"),
        // It ran again under another old one.
        (vec!["b", "d"], vec!["c<b<d"], "c is d; unused [1]"),
        (vec!["d", "b"], vec!["c<b<d"], "c is b; unused [1]"),
        (vec!["d", "b"], vec!["x", "c<b<d"], "x runs, c is b; unused [1]"),
        (vec!["a"], vec!["c<b"], "c runs; unused [1]"),
    ];
    for (journal, asked, story) in rows {
        assert_eq!(renamed(&recorded(&journal), &asked), story, "{journal:?} {asked:?}");
    }
}

#[test]
fn a_record_that_is_passed_or_made_anew_takes_no_precedence_over_an_old_name() {
    let rerun = |name| decided(name, Remedy::Rerun);
    let rows = [
        // The result under the new name was lost and is made anew, and then the step ran under its
        // old name.
        (vec![success("a", "1"), lost("c"), rerun("c"), success("b", "2")], "x is a, c is b; unused []"),
        (vec![success("a", "1"), lost("c"), rerun("c"), lost("b"), edited("b")], "x is a, c is b; unused []"),
        (vec![success("a", "1"), lost("b"), rerun("b"), success("c", "2")], "x is a, c is c; unused []"),
        (vec![success("a", "1"), success("b", "2"), success("c", "3")], "x is a, c is c; unused [2]"),
    ];
    for (events, story) in rows {
        let entries = events
            .iter()
            .zip(1..)
            .map(|(event, seq)| Entry::new(seq, Timestamp::from_millis(seq as i64), event.clone()));
        assert_eq!(renamed(&entries.collect::<Vec<_>>(), &["x<a", "c<b"]), story, "{events:?}");
    }
}

#[test]
fn the_earliest_recorded_entry_of_an_open_operation_comes_first() {
    let journal = recorded(&["b", "a"]);
    let mut cursor = Cursor::new(false);
    cursor.open(op("a").index());
    cursor.open(op("b").index());
    assert_eq!(cursor.next(), Next::Offer(1));
    assert_eq!(cursor.offer(&journal[0]), Ok(true));
    assert_eq!(cursor.offer(&journal[1]), Ok(true));
}

#[test]
fn a_strict_cursor_names_what_it_expected() {
    let journal = recorded(&["a", "b"]);
    let mut cursor = Cursor::new(true);
    cursor.open(op("b").index());
    let mismatch = cursor.offer(&journal[0]).expect_err("a was not asked for");
    assert_eq!(mismatch.to_string(), r#"the journal has step "a""#);
}

#[test]
fn notes_tell_what_is_recorded_of_an_operation_without_an_outcome() {
    let failure = Failure::new(FailureKind::Error, "no");
    let event = Event::AttemptFailed {
        op: op("a"),
        attempt: 3,
        failure: failure.clone(),
        retry_at: Timestamp::from_millis(7),
        first_at: Timestamp::from_millis(2),
    };
    let mut cursor = Cursor::new(false);
    assert_eq!(cursor.offer(&Entry::new(1, Timestamp::default(), event)), Ok(false));
    let note = cursor.take_note(&op("a")).unwrap();
    assert_eq!(
        (note.attempt_count, note.failure, note.due_at),
        (3, Some(failure), Some(Timestamp::from_millis(7)))
    );
    assert_eq!(note.first_at, Some(Timestamp::from_millis(2)));
}

#[test]
fn a_note_is_for_its_own_operation_only() {
    let [ann, bob] = ["prkutov6nb81", "wg5sjoq23rc4"]
        .map(|key| Op { key: Some(Name::new(key).expect("a name")), ..op("pay") });
    assert_eq!(ann.index(), bob.index());
    let timer = |seq: u32, op: &Op| {
        let event = Event::TimerSet { op: op.clone(), due_at: Timestamp::from_millis(seq.into()) };
        Entry::new(seq.into(), Timestamp::default(), event)
    };
    let mut cursor = Cursor::new(false);
    assert_eq!(cursor.offer(&timer(1, &ann)), Ok(false));
    assert_eq!(cursor.take_note(&bob), Err(Mismatch { expected: ann.clone() }));
    assert_eq!(cursor.unclaimed(), std::slice::from_ref(&ann));
    assert_eq!(cursor.take_note(&ann).unwrap().due_at, Some(Timestamp::from_millis(1)));
    // The newer note stays.
    assert_eq!((cursor.offer(&timer(2, &ann)), cursor.offer(&timer(3, &bob))), (Ok(false), Ok(false)));
    assert_eq!(cursor.take_note(&ann), Err(Mismatch { expected: bob.clone() }));
    assert_eq!(cursor.take_note(&bob).unwrap().due_at, Some(Timestamp::from_millis(3)));
}

/// Numbers the events as the entries of a journal.
fn journal(events: Vec<Event>) -> Vec<Entry> {
    let number = |(event, seq)| Entry::new(seq, Timestamp::default(), event);
    events.into_iter().zip(1..).map(number).collect()
}

fn success(name: &str, result: &str) -> Event {
    let outcome = Outcome::Success(Payload::from(result));
    Event::StepRecorded(StepRecord { op: op(name), outcome, attempt: 1, input: None })
}

fn lost(name: &str) -> Event {
    let outcome = Outcome::Unrecordable(Unrecordable { reason: "large".to_owned() });
    Event::StepRecorded(StepRecord { op: op(name), outcome, attempt: 1, input: None })
}

fn decided(name: &str, remedy: Remedy) -> Event {
    Event::Unblocked {
        by: By("ann".into()),
        remedied: Some(Remedied { op: op(name), remedy, declared: None }),
    }
}

fn edited(name: &str) -> Event {
    decided(name, Remedy::Edit(Payload::from("edited")))
}

/// Replays code that asks for all of `asked` at once. Returns the delivered events and the block.
fn joined(journal: &[Entry], asked: &[&str]) -> (Vec<Event>, Option<Block>) {
    let mut cursor = Cursor::new(true);
    asked.iter().for_each(|name| cursor.open(op(name).index()));
    let is_delivered = |entry: &&Entry| cursor.offer(entry).expect("everything is asked for");
    let delivered = journal.iter().filter(is_delivered).map(|entry| entry.event.clone()).collect();
    (delivered, cursor.obstacle())
}

#[test]
fn a_lost_result_blocks_until_somebody_has_decided() {
    let blocked = Some(Block::Unrecordable { op: op("a"), reason: "large".to_owned() });
    let rerun = || decided("a", Remedy::Rerun);
    let rows = [
        (vec![lost("a")], vec![], blocked.clone()),
        (vec![lost("a"), success("b", "1")], vec![success("b", "1")], blocked.clone()),
        (vec![lost("a"), rerun()], vec![], None),
        (vec![lost("a"), rerun(), success("a", "2")], vec![success("a", "2")], None),
        (vec![lost("a"), rerun(), lost("a")], vec![], blocked),
        (vec![lost("a"), rerun(), lost("a"), edited("a")], vec![edited("a")], None),
        (
            vec![lost("a"), success("b", "1"), edited("a"), success("c", "3")],
            vec![success("b", "1"), edited("a"), success("c", "3")],
            None,
        ),
    ];
    for (events, delivered, obstacle) in rows {
        assert_eq!(joined(&journal(events), &["a", "b", "c"]), (delivered, obstacle));
    }
}

#[test]
fn a_lost_result_that_nobody_asks_for_is_unused() {
    let events = journal(vec![lost("a"), success("b", "1")]);
    assert_eq!(replayed(&events, &["b"]), "b replayed; unused 1");
    let decided = journal(vec![lost("a"), decided("a", Remedy::Rerun), success("a", "2")]);
    assert_eq!(replayed(&decided, &["b", "a"]), "b runs, a replayed; unused -");
    let edited = journal(vec![lost("a"), edited("a")]);
    assert_eq!(replayed(&edited, &["b", "a"]), "b runs, a replayed; unused -");
}

#[test]
fn a_lost_result_blocks_who_asks_for_it_late() {
    let mut cursor = Cursor::new(false);
    assert_eq!(cursor.offer(&journal(vec![lost("a")])[0]), Ok(false));
    assert!(cursor.obstacle().is_none() && cursor.is_skipped(op("a").index()));
    cursor.open(op("a").index());
    assert!(cursor.obstacle().is_some());
}

/// The waiting code saw the cancellation when it was recorded, and sees it in every replay.
#[test]
fn a_cancellation_takes_the_place_of_a_lost_result() {
    let mut cursor = Cursor::new(false);
    cursor.open(op("a").index());
    let cancel = Event::CancelRequested { by: By("ann".into()), reason: String::new() };
    let events = journal(vec![lost("a"), cancel]);
    assert_eq!(cursor.offer(&events[0]), Ok(false));
    assert!(cursor.obstacle().is_some());
    assert_eq!(cursor.offer(&events[1]), Ok(true));
    cursor.close(op("a").index());
    assert!(cursor.obstacle().is_none());
}

#[test]
fn a_rerun_begins_with_the_first_attempt() {
    let failure = Failure::new(FailureKind::Error, "no");
    let retry_at = Timestamp::from_millis(7);
    let failed = Event::AttemptFailed { op: op("a"), attempt: 3, failure, retry_at, first_at: retry_at };
    let mut cursor = Cursor::new(false);
    for entry in journal(vec![failed, lost("a"), decided("a", Remedy::Rerun)]) {
        assert_eq!(cursor.offer(&entry), Ok(false));
    }
    assert_eq!(cursor.take_note(&op("a")), Ok(abide_core::Note::default()));
}

/// The way in which a step came to its outcome.
#[derive(Clone, Debug)]
struct Story {
    /// The number of times that its result was lost and it ran again.
    rerun_count: usize,
    end: usize,
}

impl Story {
    fn events(&self, name: &str) -> Vec<Event> {
        let mut events: Vec<_> =
            (0..self.rerun_count).flat_map(|_| [lost(name), decided(name, Remedy::Rerun)]).collect();
        match self.end {
            0 => events.push(success(name, "1")),
            1 => events.extend([lost(name), edited(name)]),
            2 => events.push(lost(name)),
            _ => {}
        }
        events
    }
}

proptest! {
    /// Steps run side by side, each with its own story. In whatever order all that was recorded,
    /// each step gets its last outcome, in recorded order, and exactly the steps without a decision
    /// block.
    #[test]
    fn decisions_are_honoured_in_recorded_order(
        stories in prop::collection::vec((0_usize..3, 0_usize..4), 1..5),
        order in prop::collection::vec(any::<prop::sample::Index>(), 64),
    ) {
        let names = &["a", "b", "c", "d"][..stories.len()];
        let stories: Vec<_> =
            stories.into_iter().map(|(rerun_count, end)| Story { rerun_count, end }).collect();
        let mut parts: Vec<_> =
            stories.iter().zip(names).map(|(story, name)| story.events(name).into_iter().peekable()).collect();
        let mut events = Vec::new();
        for index in order {
            let left: Vec<_> = (0..parts.len()).filter(|part| parts[*part].peek().is_some()).collect();
            if left.is_empty() {
                break;
            }
            events.extend(parts[*index.get(&left)].next());
        }
        let is_outcome = |event: &&Event| {
            let is_success = matches!(
                event,
                Event::StepRecorded(StepRecord { outcome: Outcome::Success(_), .. })
            );
            is_success || (matches!(event, Event::Unblocked { .. }) && event.is_delivery())
        };
        let expected: Vec<_> = events.iter().filter(is_outcome).cloned().collect();
        let (delivered, obstacle) = joined(&journal(events.clone()), names);
        prop_assert_eq!(delivered, expected);
        prop_assert_eq!(obstacle.is_some(), stories.iter().any(|story| story.end == 2));
        // Code that asks for the steps one after the other, the last first, gets the same outcomes.
        let asked: Vec<_> = names.iter().rev().copied().collect();
        let mut told: Vec<_> = stories.iter().zip(names).rev().map(|(story, name)| {
            format!("{name} {}", if story.end < 2 { "replayed" } else { "runs" })
        }).collect();
        let story = replayed(&journal(events), &asked);
        told.retain(|part| !story.contains(part.as_str()));
        prop_assert!(told.is_empty(), "{} without {:?}", story, told);
    }
}

/// The journal might also come from code that had both from the beginning.
#[test]
fn what_is_added_beside_something_recorded_is_noticed_by_the_entry_after_both() {
    let journal = recorded(&["a", "c"]);
    let mut strict = Cursor::new(true);
    strict.open(op("b").index());
    strict.open(op("a").index());
    assert_eq!(strict.offer(&journal[0]), Ok(true), "b may not have ended");
    let mismatch = strict.offer(&journal[1]).expect_err("c came after both");
    assert_eq!(mismatch.expected, op("c"));
}
