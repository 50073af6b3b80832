//! Mutants of the evidence: each one breaks a sound history in the way that one rule forbids, and
//! exactly this rule has to complain. A rule that never complains is no rule.

use std::sync::Arc;

use abide_core::{By, Entry, Event, Name, Op, OpKind, Outcome, Payload, Remedied, Remedy, StepRecord};

use super::{Evidence, Happened, Past};
use crate::ask::CANCEL_REASON;
use crate::program::Program;
use crate::run::evidence;
use crate::scenario::Scenario;
use crate::{generate, quiet_panics};

mod family;
mod firsts;
mod history;
mod renamed;
mod times;

use family::{
    begins_paused, cancel_of_nobody, cancelled_by_care, child_untold, decision_lost, decision_twice,
    terminate_as_cancel,
};
use firsts::{message_was_earlier, message_was_later, messages_swapped, wait_overtaken};
use history::{
    another_set_aside, begins_late, begins_twice, closure_after_record, closure_too_early, commit_after_end,
    end_untold, ends_twice, epoch_twice, foreign_session, function_twice, left_behind, name_twice,
    odd_signal_received, older_left_behind, other_acknowledged, other_next_acknowledged, result_of_nobody,
    set_aside_for_nothing, signal_lost, signal_not_taken, signal_refused, signals_swapped, stale_epoch,
    start_of_nothing, version_twice, wrote_nothing, wrote_twice,
};

use times::{
    attempt_behind_deadline, begun_before_timeout, begun_long_ago, child_later, child_moved, deadline_early,
    end_too_late, failed_early, grace_longer, next_delayed, other_options, other_policy, other_priority,
    other_tags, root_later, root_moved, timeout_of_nobody, timer_early, timer_moved, wait_longer,
    work_too_late,
};

/// Falsifies the n-th place that can be falsified in this way; `None` when no such place is left.
type Falsify = fn(&mut Evidence, &Scenario, usize) -> Option<()>;

/// The rules: a name, a part of the complaint, and the function that provokes it.
const RULES: &[(&str, &str, Falsify)] = &[
    ("a key of two steps", "belongs to two steps", key_of_two_steps),
    ("another number in a replay", "gave another number", drew_another),
    ("a wrong number", "has the number", wrong_number),
    ("an end after the end", "ends it, but 1 follow", second_end),
    ("an attempt too many", "is recorded with attempt", attempt_too_many),
    ("a rerun of nothing", "was to run again, but had not run", rerun_of_nothing),
    ("an attempt that follows none", "attempt 2 of", attempt_of_nothing),
    ("attempts that began twice", "have several beginnings", begun_again),
    ("an attempt too late", "tried again", attempt_too_late),
    ("an attempt that is not made", "was the last, but no policy says so", given_up_early),
    ("a timer that is set twice", "was set twice", timer_twice),
    ("a timer that fires early", "fired before it was due", timer_early),
    ("a timer at another time", "is not due as asked", timer_moved),
    ("a wait that takes longer", "is not due as asked", wait_longer),
    ("a child with another delay", "with another delay than asked for", child_moved),
    ("a child with a longer delay", "with another delay than asked for", child_later),
    ("a start with another delay", "with another delay than asked for", root_moved),
    ("a start with a longer delay", "with another delay than asked for", root_later),
    ("a start with another policy", "with another policy than asked for", other_policy),
    ("a next run with a delay", "has other options than the run before it", next_delayed),
    ("a next run with other options", "has other options than the run before it", other_options),
    ("a priority that nobody asked for", "waits in the queue with other options", other_priority),
    ("a tag that is not listed", "is listed with other tags", other_tags),
    ("a deadline that is shown early", "shows a deadline that has not passed", deadline_early),
    ("a deadline that strikes early", "is what its journal adds up to", failed_early),
    ("a longer time to wind down", "gives a time to wind down that nobody set", grace_longer),
    ("work behind the deadline", "but its time was over", work_too_late),
    ("an attempt behind the deadline", "but its time was over", attempt_behind_deadline),
    ("a timeout of a step that has none", "though it has no timeout", timeout_of_nobody),
    ("a step that times out early", "timed out too early", begun_before_timeout),
    ("a step that ends late", "ended behind its timeout", begun_long_ago),
    ("a result twice", "is recorded twice", result_twice),
    ("a signal that also timed out", "has two outcomes", two_outcomes),
    ("no start", "does not begin with its start", no_start),
    ("an answer that nobody gave", "but did not end so", foreign_answer),
    ("the answer of somebody else", "but somebody else has its id", answer_of_another),
    ("a child that is not there", "never existed", child_gone),
    ("a child under another id", "is waited for", child_renamed),
    ("the id of somebody else's child", "is its child", foreign_name),
    ("an orphan", "has ended, but its child", orphan),
    ("an input that is no program", "its input is no program", no_program),
    ("a result that no closure gave", "no run of the closure gave", foreign_result),
    ("a result before its step", "was recorded before its operation was asked for", result_too_early),
    ("a result of no step", "belongs to nothing in the program", result_of_nothing),
    ("a transaction that happened twice", "a transaction happened 2 times", transaction_twice),
    ("another end", "is what its journal adds up to", another_end),
    ("a used step that is told as unused", "is told as unused, but was used", used_as_unused),
    ("a decided step that is told as unused", "is told as unused, but was used", decided_as_unused),
    ("another next run", "is what its journal adds up to", another_next),
    ("a next run of something else", "has another input than it ended with", foreign_next),
    ("a cancellation that nobody saw", "was cancelled without its code", cancel_unseen),
    ("an end long after the deadline", "after its deadline", end_too_late),
    ("a function that began twice", "began twice under one lease", function_twice),
    ("a result that no function gave", "its function cannot end so", foreign_task_result),
    ("an order that nobody gave", "by a parent that gave it no such order", foreign_order),
    ("a terminate that went down as a cancel", "by a parent that gave it no such order", terminate_as_cancel),
    ("a child that was not told", "was not told", child_untold),
    ("a cancellation that nobody sent", "which nobody has sent", cancel_of_nobody),
    ("a cancellation without the code", "a caretaker took a cancellation", cancelled_by_care),
    ("a closure of what is paused", "was paused", begins_paused),
    ("a decision behind another", "and another one behind it", decision_twice),
    ("a decision that is lost", "taken and never followed", decision_lost),
    ("somebody urgent who is left behind", "although it has the higher priority", left_behind),
    ("somebody older who is left behind", "although it has been ready for longer", older_left_behind),
    ("a signal that was not taken", "the signal was never taken", signal_not_taken),
    ("a signal that was refused and taken", "the signal was taken", signal_refused),
    ("a start that left nothing", "it does not exist", start_of_nothing),
    ("a result that nothing has", "nothing ended with that", result_of_nobody),
    ("an epoch of two sessions", "was given to two sessions", epoch_twice),
    ("a stale epoch", "was taken after one of", stale_epoch),
    ("a version twice", "a commit at version", version_twice),
    ("a commit of somebody else", "wrote in an epoch that is not its own", foreign_session),
    ("a result that was acknowledged and is not kept", ACKNOWLEDGED, other_acknowledged),
    ("a next run that was acknowledged and is not kept", ACKNOWLEDGED, other_next_acknowledged),
    ("another commit of the same name", "two commits of epoch", name_twice),
    ("a commit after the end", "was written after its end", commit_after_end),
    ("a closure after its record", "after its result was recorded", closure_after_record),
    ("signals out of order", "is what came", signals_swapped),
    ("a signal of another type that is received", "received a signal of another type", odd_signal_received),
    ("a signal that is set aside without a reason", "set aside what it can read", set_aside_for_nothing),
    ("a signal that is set aside and was not sent", "is what came", another_set_aside),
    ("a signal that nobody sent", "is what came", signal_lost),
    ("a message behind a later one", "came before it", messages_swapped),
    ("a timer before an earlier message", "came earlier", message_was_earlier),
    ("a message before an earlier timer", "was due earlier", message_was_later),
    ("a wait that a later one overtakes", "waited before it", wait_overtaken),
    ("a closure before its cause", "before what led there was durable", closure_too_early),
    ("somebody who was born and begins late", "was born leased, but nobody began it", begins_late),
    ("a run that begins twice in the feed", "the feed tells 2 times", begins_twice),
    ("a run that ends twice in the feed", "the feed tells [", ends_twice),
    ("an end that the feed lacks", "the feed tells []", end_untold),
    ("a transaction that wrote twice", "transactions wrote [", wrote_twice),
    ("a transaction that wrote nothing", "transactions wrote [", wrote_nothing),
];

/// The complaint that a journal differs from what the store acknowledged.
const ACKNOWLEDGED: &str = "was acknowledged, but the journal has another";

/// The most histories to falsify. A rule that applies to few histories needs many of them.
const HISTORY_COUNT_MAX: u64 = 400;

#[test]
fn each_rule_complains_of_what_it_is_about_and_of_nothing_else() {
    quiet_panics();
    let mut left: Vec<_> = RULES.to_vec();
    let mut others: Vec<String> = Vec::new();
    for seed in 0..HISTORY_COUNT_MAX {
        if left.is_empty() {
            break;
        }
        let scenario = generate::on_memory(generate::scenario(seed));
        let sound = evidence(&scenario);
        assert_eq!(sound.clone().check(&scenario), Vec::<String>::new(), "seed {seed}");
        left.retain(|(name, complaint, falsify)| {
            let mut places = (0..).map_while(|nth| {
                let mut false_one = sound.clone();
                falsify(&mut false_one, &scenario, nth)?;
                let is_kept = !is_journal_changed(&sound, &false_one);
                // The last finding only prints the journals.
                let mut found = rebuilt(false_one).check(&scenario);
                found.pop();
                // A falsified journal always differs from what the store acknowledged.
                found.retain(|found| is_kept || !found.contains(ACKNOWLEDGED));
                Some(found)
            });
            let is_caught = places.any(|found| {
                let is_alone = !found.is_empty() && found.iter().all(|found| found.contains(complaint));
                if !is_alone {
                    others.push(format!("{name}: {found:?}"));
                }
                is_alone
            });
            !is_caught
        });
    }
    // Restores the panic hook: a reader of a failed test wants to know the reason.
    drop(std::panic::take_hook());
    std::panic::set_hook(abide_engine::panics::noting(std::panic::take_hook()));
    let left: Vec<_> = left.into_iter().map(|(name, ..)| name).collect();
    others.retain(|other| left.iter().any(|name| other.starts_with(name)));
    assert!(left.is_empty(), "nobody complains, or others too: {left:#?}; seen: {others:#?}");
}

fn is_journal_changed(sound: &Evidence, false_one: &Evidence) -> bool {
    let is_same = |past: &Past| sound.pasts.get(&past.id).is_some_and(|before| before.runs == past.runs);
    !false_one.pasts.values().all(is_same)
}

/// Parses the programs of falsified journals again.
fn rebuilt(mut evidence: Evidence) -> Evidence {
    for past in evidence.pasts.values_mut() {
        *past = Past::new(past.id.clone(), past.status, past.runs.clone());
    }
    evidence
}

/// Returns the n-th entry that `find` accepts, as its journal and index.
fn nth_entry(
    evidence: &mut Evidence,
    nth: usize,
    find: impl Fn(&Past, &[Entry], &Entry) -> bool,
) -> Option<(&mut Vec<Entry>, usize)> {
    let mut places = Vec::new();
    for (id, past) in &evidence.pasts {
        for (run, journal) in past.runs.iter().enumerate() {
            let found = journal.iter().enumerate().filter(|(_, entry)| find(past, journal, entry));
            places.extend(found.map(|(index, _)| (id.clone(), run, index)));
        }
    }
    let (id, run, index) = places.into_iter().nth(nth)?;
    Some((&mut evidence.pasts.get_mut(&id)?.runs[run], index))
}

/// Returns the journal of the n-th run that has ended.
fn nth_ended(evidence: &mut Evidence, nth: usize) -> Option<&mut Vec<Entry>> {
    nth_entry(evidence, nth, |_, _, entry| entry.event.is_terminal()).map(|(journal, _)| journal)
}

/// Inserts an event before the end of a run.
fn insert_before_end(journal: &mut Vec<Entry>, event: Event) {
    let Some(mut end) = journal.pop() else { return };
    journal.push(Entry::new(end.seq, end.at, event));
    end.seq += 1;
    journal.push(end);
}

/// Returns the index of the n-th item that `find` accepts.
fn nth_item(evidence: &Evidence, nth: usize, find: impl Fn(&Happened) -> bool) -> Option<usize> {
    evidence.items.iter().enumerate().filter(|(_, item)| find(item)).nth(nth).map(|(index, _)| index)
}

fn nothing_like_it() -> Op {
    Op { kind: OpKind::Step, name: Name::new("nothing-like-it").expect("a name"), key: None, nth: 1 }
}

fn payload(value: u64) -> Payload {
    Payload::from(value.to_string().as_str())
}

fn key_of_two_steps(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let index = nth_item(evidence, nth, |item| matches!(item, Happened::Began { .. }))?;
    let mut other = evidence.items[index].clone();
    if let Happened::Began { closure, .. } = &mut other {
        closure.spot.node = u32::MAX;
    }
    evidence.items.insert(index + 1, other);
    Some(())
}

fn drew_another(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let index = nth_item(evidence, nth, |item| matches!(item, Happened::Drew { .. }))?;
    let mut other = evidence.items[index].clone();
    if let Happened::Drew { value, .. } = &mut other {
        *value ^= 1;
    }
    evidence.items.insert(index, other);
    Some(())
}

fn wrong_number(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    nth_ended(evidence, nth)?.last_mut()?.seq += 1;
    Some(())
}

fn second_end(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let journal = nth_ended(evidence, nth)?;
    let end = journal.last()?.event.clone();
    insert_before_end(journal, end);
    Some(())
}

fn attempt_too_many(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let (journal, index) = nth_entry(
        evidence,
        nth,
        |_, _, entry| matches!(&entry.event, Event::StepRecorded(record) if !matches!(record.outcome, Outcome::Unrecordable(_))),
    )?;
    if let Event::StepRecorded(record) = &mut journal[index].event {
        record.attempt += 1;
    }
    Some(())
}

fn rerun_of_nothing(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let remedied = Some(Remedied { op: nothing_like_it(), remedy: Remedy::Rerun, declared: None });
    insert_before_end(nth_ended(evidence, nth)?, Event::Unblocked { by: By("me".into()), remedied });
    Some(())
}

fn attempt_of_nothing(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let (journal, index) =
        nth_entry(evidence, nth, |_, _, entry| matches!(entry.event, Event::AttemptFailed { .. }))?;
    let mut failed = journal[index].event.clone();
    if let Event::AttemptFailed { op, attempt, .. } = &mut failed {
        (*op, *attempt) = (nothing_like_it(), 2);
    }
    insert_before_end(journal, failed);
    Some(())
}

fn begun_again(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let is_second = |entry: &Entry| matches!(entry.event, Event::AttemptFailed { attempt: 2, .. });
    let (journal, index) = nth_entry(evidence, nth, |_, _, entry| is_second(entry))?;
    if let Event::AttemptFailed { first_at, .. } = &mut journal[index].event {
        *first_at = first_at.after(std::time::Duration::from_micros(1));
    }
    Some(())
}

fn attempt_too_late(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let (journal, index) =
        nth_entry(evidence, nth, |_, _, entry| matches!(entry.event, Event::AttemptFailed { .. }))?;
    if let Event::AttemptFailed { retry_at, .. } = &mut journal[index].event {
        *retry_at = retry_at.after(std::time::Duration::from_secs(60));
    }
    Some(())
}

fn given_up_early(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let (journal, index) =
        nth_entry(evidence, nth, |_, _, entry| matches!(entry.event, Event::AttemptFailed { .. }))?;
    if let Event::AttemptFailed { op, attempt, failure, .. } = journal[index].event.clone() {
        let outcome = Outcome::Failure(failure);
        journal[index].event = Event::StepRecorded(StepRecord { op, outcome, attempt, input: None });
    }
    Some(())
}

fn timer_twice(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let (journal, index) =
        nth_entry(evidence, nth, |_, _, entry| matches!(entry.event, Event::TimerSet { .. }))?;
    let set = journal[index].event.clone();
    insert_before_end(journal, set);
    Some(())
}

fn result_twice(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let (journal, index) =
        nth_entry(evidence, nth, |_, _, entry| matches!(entry.event, Event::StepRecorded(_)))?;
    let recorded = journal[index].event.clone();
    insert_before_end(journal, recorded);
    Some(())
}

fn two_outcomes(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let (journal, index) = nth_entry(evidence, nth, |_, journal, entry| {
        let is_set = |other: &Entry| {
            matches!(other.event, Event::TimerSet { .. }) && other.event.op() == entry.event.op()
        };
        matches!(entry.event, Event::SignalReceived { .. }) && journal.iter().any(is_set)
    })?;
    let op = journal[index].event.op()?.clone();
    let due_at = journal.iter().find_map(|entry| match &entry.event {
        Event::TimerSet { op: set, due_at } if *set == op => Some(*due_at),
        _ => None,
    });
    insert_before_end(journal, Event::TimerFired { op });
    let fired = journal.iter_mut().rev().nth(1)?;
    fired.at = fired.at.max(due_at?);
    Some(())
}

fn no_start(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let (journal, index) = nth_entry(evidence, nth, |_, _, entry| entry.seq == 1)?;
    journal[index].event = Event::Resumed { by: By("me".into()) };
    Some(())
}

fn foreign_answer(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let (journal, index) = nth_entry(evidence, nth, |_, _, entry| {
        matches!(entry.event, Event::ChildFinished { outcome: Outcome::Success(_), .. })
    })?;
    if let Event::ChildFinished { outcome, .. } = &mut journal[index].event {
        *outcome = Outcome::Success(payload(1));
    }
    Some(())
}

fn answer_of_another(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let (journal, index) = nth_entry(evidence, nth, |_, _, entry| {
        matches!(entry.event, Event::ChildFinished { outcome: Outcome::Success(_), .. })
    })?;
    let op = journal[index].event.op()?.clone();
    let id = journal.iter().find_map(|entry| match &entry.event {
        Event::ChildStarted { op: started, child, .. } if started.child_result() == op => {
            Some(child.to_string())
        }
        _ => None,
    })?;
    let first = evidence.pasts.get_mut(&id)?.runs.first_mut()?.first_mut()?;
    if let Event::Started(start) = &mut first.event {
        Arc::make_mut(start).parent = None;
    }
    Some(())
}

fn child_gone(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let (journal, index) =
        nth_entry(evidence, nth, |_, _, entry| matches!(entry.event, Event::ChildStarted { .. }))?;
    let Event::ChildStarted { child, .. } = &journal[index].event else { return None };
    let id = child.to_string();
    evidence.pasts.remove(&id);
    Some(())
}

fn child_renamed(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let id = evidence.pasts.keys().next()?.clone();
    let (journal, index) =
        nth_entry(evidence, nth, |_, _, entry| matches!(entry.event, Event::ChildStarted { .. }))?;
    if let Event::ChildStarted { child, .. } = &mut journal[index].event {
        *child = abide_core::ExecutionId::new(&id).ok()?;
    }
    Some(())
}

fn foreign_name(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let index = nth_item(evidence, nth, |item| matches!(item, Happened::Named { .. }))?;
    if let Happened::Named { parent, child, .. } = &mut evidence.items[index] {
        child.clone_from(parent);
    }
    Some(())
}

fn orphan(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let (journal, index) =
        nth_entry(evidence, nth, |_, _, entry| matches!(entry.event, Event::ChildStarted { .. }))?;
    let Event::ChildStarted { child, .. } = &journal[index].event else { return None };
    let id = child.to_string();
    evidence.pasts.get_mut(&id)?.status = abide::Status::Running;
    Some(())
}

fn no_program(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let (journal, index) = nth_entry(
        evidence,
        nth,
        |_, _, entry| matches!(&entry.event, Event::Started(start) if start.name.as_str() == "program"),
    )?;
    if let Event::Started(start) = &mut journal[index].event {
        Arc::make_mut(start).input = Payload::from("[]");
    }
    Some(())
}

fn change_success(evidence: &mut Evidence, nth: usize, kind: OpKind, value: u64) -> Option<()> {
    let is_meant =
        |record: &StepRecord| record.op.kind == kind && matches!(record.outcome, Outcome::Success(_));
    let (journal, index) = nth_entry(
        evidence,
        nth,
        |_, _, entry| matches!(&entry.event, Event::StepRecorded(record) if is_meant(record)),
    )?;
    if let Event::StepRecorded(record) = &mut journal[index].event {
        record.outcome = Outcome::Success(payload(value));
    }
    Some(())
}

fn foreign_result(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    change_success(evidence, nth, OpKind::Step, 1)
}

fn transaction_twice(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    change_success(evidence, nth, OpKind::Transaction, 2)
}

fn result_too_early(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let is_step = |event: &Event| matches!(event, Event::StepRecorded(_));
    let (journal, index) = nth_entry(evidence, nth, |_, journal, entry| {
        let next = journal.get(usize::try_from(entry.seq).unwrap_or(usize::MAX));
        is_step(&entry.event) && next.is_some_and(|next| is_step(&next.event))
    })?;
    let first = journal[index].event.clone();
    let second = std::mem::replace(&mut journal[index + 1].event, first);
    journal[index].event = second;
    Some(())
}

fn result_of_nothing(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let (journal, index) =
        nth_entry(evidence, nth, |_, _, entry| matches!(entry.event, Event::StepRecorded(_)))?;
    let mut recorded = journal[index].event.clone();
    if let Event::StepRecorded(record) = &mut recorded {
        (record.op, record.attempt) = (nothing_like_it(), 1);
    }
    insert_before_end(journal, recorded);
    Some(())
}

fn another_end(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let (journal, index) =
        nth_entry(evidence, nth, |_, _, entry| matches!(entry.event, Event::Completed { .. }))?;
    if let Event::Completed { result, .. } = &mut journal[index].event {
        *result = payload(1);
    }
    Some(())
}

fn another_next(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let (journal, index) =
        nth_entry(evidence, nth, |_, _, entry| matches!(entry.event, Event::ContinuedAsNew { .. }))?;
    let Event::ContinuedAsNew { input } = &mut journal[index].event else { return None };
    *input = another_input(input)?;
    let input = input.clone();
    let started = evidence.pasts.values_mut().flat_map(|past| &mut past.runs);
    let mut started = started.filter_map(|journal| journal.first_mut());
    let next = started.find_map(|entry| match &mut entry.event {
        Event::Started(start) if another_input(&start.input).as_ref() == Some(&input) => Some(start),
        _ => None,
    })?;
    Arc::make_mut(next).input = input;
    Some(())
}

/// Returns the input of the same program with another number from its earlier runs.
fn another_input(input: &Payload) -> Option<Payload> {
    let mut program: Program = serde_json::from_slice(input.as_bytes()).ok()?;
    program.carry ^= 1;
    Some(Payload::from(serde_json::to_vec(&program).ok()?))
}

fn foreign_next(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let past = evidence.pasts.values_mut().filter(|past| past.runs.len() > 1);
    let start = past.filter_map(|past| past.runs.last_mut()?.first_mut()).nth(nth)?;
    if let Event::Started(start) = &mut start.event {
        let start = Arc::make_mut(start);
        start.input = another_input(&start.input)?;
    }
    Some(())
}

/// Lists the first of these operations as unused in the n-th completed run that has one.
fn tell_as_unused(evidence: &mut Evidence, nth: usize, find: impl Fn(&Event) -> Option<&Op>) -> Option<()> {
    let first = |journal: &[Entry]| journal.iter().find_map(|entry| find(&entry.event)).cloned();
    let (journal, index) = nth_entry(evidence, nth, |_, journal, entry| {
        matches!(entry.event, Event::Completed { .. }) && first(journal).is_some()
    })?;
    let op = first(journal)?;
    if let Event::Completed { unused, .. } = &mut journal[index].event {
        unused.push(op);
    }
    Some(())
}

fn used_as_unused(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    tell_as_unused(evidence, nth, |event| match event {
        Event::StepRecorded(record) => Some(&record.op),
        _ => None,
    })
}

/// Lists a step as unused whose result could not be recorded, but for which an operator supplied
/// one.
fn decided_as_unused(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    tell_as_unused(evidence, nth, |event| match event {
        Event::Unblocked { remedied: Some(Remedied { op, remedy: Remedy::Edit(_), .. }), .. } => Some(op),
        _ => None,
    })
}

fn cancel_unseen(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let (journal, _) = nth_entry(
        evidence,
        nth,
        |_, _, entry| matches!(&entry.event, Event::Cancelled { reason, .. } if reason == CANCEL_REASON),
    )?;
    // The code saw the cancellation, but the journal does not say so.
    for entry in journal.iter_mut() {
        if matches!(entry.event, Event::CancelRequested { .. }) {
            entry.event = Event::Resumed { by: By("me".into()) };
        }
    }
    Some(())
}

fn foreign_task_result(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let is_job = |journal: &[Entry]| match journal.first().map(|entry| &entry.event) {
        Some(Event::Started(start)) => start.name.as_str() == "job" && start.parent.is_none(),
        _ => false,
    };
    let (journal, index) = nth_entry(evidence, nth, |_, journal, entry| {
        is_job(journal) && matches!(entry.event, Event::Completed { .. })
    })?;
    if let Event::Completed { result, .. } = &mut journal[index].event {
        *result = payload(1);
    }
    Some(())
}

fn foreign_order(evidence: &mut Evidence, _: &Scenario, nth: usize) -> Option<()> {
    let (journal, index) =
        nth_entry(evidence, nth, |_, _, entry| matches!(entry.event, Event::Inherited { .. }))?;
    if let Event::Inherited { number, .. } = &mut journal[index].event {
        *number = 1;
    }
    Some(())
}
