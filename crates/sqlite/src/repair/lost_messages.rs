//! Answers and orders that were lost between a parent and its children.
//!
//! Both are sent once, with the commit that causes them. If damage hides the target at that moment,
//! the message is gone: the parent would wait for ever, or the child would outlive it. Both ends
//! are on record, so the loss can be detected and the message sent again.

use std::collections::HashSet;
use std::ops::ControlFlow;

use abide_core::{Address, Body, Execution, ExecutionId, Message, Op, Parent, TreeOrder, awaited_children};
use abide_store::not_started;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::discard::discarded_by;
use super::truth::{run_before, run_to};
use crate::apply::each_unread;
use crate::error::Stop;
use crate::gaps::walk;
use crate::interned::Interned;
use crate::legible::LegibleRow;
use crate::rows::{Target, count};
use crate::sheet::Base;
use crate::sql;
use crate::view::address;

/// A message that an execution should have received.
pub(crate) struct LostMessage {
    pub(crate) problem: String,
    /// The sentence for the report when the message was sent again.
    pub(crate) remedy: String,
    /// The message, if its content can be derived.
    pub(crate) message: Option<Message>,
}

/// Finds executions after number `after` that miss a message, at most `count_max` of them, and
/// returns the number to continue after.
pub(crate) fn search(
    connection: &Connection,
    (after, count_max): (i64, usize),
) -> Result<(Vec<i64>, Option<i64>), Stop> {
    let interned = Interned::load(connection)?;
    let (mut keys, mut next) = (Vec::new(), None);
    walk(connection, (sql::EXECUTION_ROWS_AFTER, after), |row| {
        let key = row.get(0)?;
        if !lost_messages(connection, &interned, row)?.is_empty() {
            keys.push(key);
        }
        next = (keys.len() >= count_max).then_some(key);
        Ok(if next.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok((keys, next))
}

/// Returns the messages that the execution with this number should have received and has not.
pub(crate) fn lost_to(
    connection: &Connection,
    interned: &Interned,
    key: i64,
) -> Result<Vec<LostMessage>, Stop> {
    let mut statement = connection.prepare_cached(sql::EXECUTION_ROWS_AFTER)?;
    let mut rows = statement.query([key - 1, 1])?;
    match rows.next()? {
        Some(row) if row.get::<_, i64>(0)? == key => lost_messages(connection, interned, row),
        _ => Ok(Vec::new()),
    }
}

/// Returns the messages that the execution in a row of [`sql::EXECUTION_ROWS_AFTER`] should have
/// received and has not. Damaged and unreadable executions are reported elsewhere, and are judged
/// after their repair.
pub(crate) fn lost_messages(
    connection: &Connection,
    interned: &Interned,
    row: &Row<'_>,
) -> Result<Vec<LostMessage>, Stop> {
    let Some(found) = unless_damaged(Known::read(interned, row))? else { return Ok(Vec::new()) };
    if found.execution.is_finished() {
        return Ok(Vec::new());
    }
    let mut lost = unless_damaged(lost_answers(connection, &found))?.unwrap_or_default();
    lost.extend(unless_damaged(lost_order(connection, interned, &found))?.flatten());
    Ok(lost)
}

/// Whether the execution with this number waits for a child whose answer it has not received.
pub(super) fn waits_for(
    connection: &Connection,
    interned: &Interned,
    (key, child): (i64, &str),
) -> Result<bool, Stop> {
    let mut statement = connection.prepare_cached(sql::EXECUTION_ROWS_AFTER)?;
    let mut rows = statement.query([key - 1, 1])?;
    let Some(row) = rows.next()? else { return Ok(false) };
    let Some(found) = unless_damaged(Known::read(interned, row))? else { return Ok(false) };
    if found.key != key || found.execution.is_finished() {
        return Ok(false);
    }
    let waits = unless_damaged(unanswered(connection, &found))?.unwrap_or_default();
    Ok(waits.iter().any(|(_, awaited)| awaited.as_str() == child))
}

pub(super) fn unless_damaged<T>(read: Result<T, Stop>) -> Result<Option<T>, Stop> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(stop) if stop.damage().is_some() || stop.is_newer() || stop.is_unread() => Ok(None),
        Err(stop) => Err(stop),
    }
}

/// An execution that can be read.
struct Known {
    key: i64,
    namespace: i64,
    parent: Option<i64>,
    head: i64,
    execution: Execution,
}

impl Known {
    fn read(interned: &Interned, row: &Row<'_>) -> Result<Self, Stop> {
        let base = Base::read(row)?;
        let address = address(interned, base.namespace, base.id)?;
        let execution = base.sheet()?.execution()?.at(address);
        let (key, namespace, parent, head) = (base.key, base.namespace, base.parent, base.anchor.head);
        Ok(Self { key, namespace, parent, head, execution })
    }

    /// Returns the address of another execution in the same namespace.
    fn beside(&self, id: &ExecutionId) -> Address {
        Address { namespace: self.execution.address().namespace.clone(), id: id.clone() }
    }
}

/// Returns the lost answers of an execution: it waits for them, they are not in its inbox, and its
/// children will not send them any more.
fn lost_answers(connection: &Connection, found: &Known) -> Result<Vec<LostMessage>, Stop> {
    let mut lost = Vec::new();
    for (op, child) in &unanswered(connection, found)? {
        lost.extend(unless_damaged(lost_answer(connection, found, (op, child)))?.flatten());
    }
    Ok(lost)
}

/// Returns the waits of an execution whose answers are not in its inbox, and their children.
fn unanswered(connection: &Connection, found: &Known) -> Result<Vec<(Op, ExecutionId)>, Stop> {
    if found.execution.open_child_count() == 0 {
        return Ok(Vec::new());
    }
    let (_, journal) = run_to(connection, found.key, found.head)?;
    let mut answered = HashSet::new();
    each_unread(connection, found.key, |message| match message.body {
        Body::ChildDone { run, op, .. } if run == found.execution.run() => {
            answered.insert(op);
        }
        _ => {}
    })?;
    let awaited = awaited_children(&journal).into_iter();
    Ok(awaited.filter(|(op, _)| !answered.contains(&op.child_result())).collect())
}

fn lost_answer(
    connection: &Connection,
    found: &Known,
    (op, child): (&Op, &ExecutionId),
) -> Result<Option<LostMessage>, Stop> {
    let lost = |what: &str, message| LostMessage {
        problem: format!("it waits for child {child:?}, {what}"),
        remedy: format!("the lost answer of its child {child:?} was given again"),
        message,
    };
    let Some(target) = Target::read(connection, found.namespace, &found.beside(child))? else {
        return Ok(Some(lost("which is not there, and has no answer of it", None)));
    };
    let state = target.execution(connection)?;
    if !state.is_finished() && state.was_started_by(&found.execution, op) {
        return Ok(None);
    }
    Ok(match end_of_child(connection, found, (op, &target))? {
        ChildEnd::Answered(None) => None,
        ChildEnd::Answered(answer) => Some(lost("which has ended, and the answer is lost", answer)),
        ChildEnd::NotOurs => {
            let wait = (found.execution.run(), &op.child_result());
            let refused = not_started(found.execution.address(), child, wait, &"something else has its id");
            Some(lost("whose id something else has, and was not told that", Some(refused)))
        }
    })
}

/// The end of a child, according to its journal.
enum ChildEnd {
    /// The answer of the run that was the child; nothing while that run goes on.
    Answered(Option<Message>),
    /// The start found another execution under its id.
    NotOurs,
}

/// Returns the end of a child. It may have been retried since; the run that was the child is then
/// an earlier one.
fn end_of_child(
    connection: &Connection,
    found: &Known,
    (op, target): (&Op, &Target),
) -> Result<ChildEnd, Stop> {
    let state = target.execution(connection)?;
    let head = LegibleRow::find(connection, target.key)?.and_then(|legible| legible.head);
    let mut head = head.ok_or_else(|| Stop::corrupt("its head is damaged"))?;
    for run in (1..=state.run()).rev() {
        let (chain, journal) = run_to(connection, target.key, head)?;
        let ended = Execution::fold(state.address().clone(), run, &journal);
        let ended = ended.ok_or_else(|| Stop::corrupt("its journal does not begin with a start"))?;
        if ended.was_started_by(&found.execution, op) {
            return Ok(ChildEnd::Answered(journal.last().and_then(|last| ended.answer(&last.event))));
        }
        match run_before(connection, chain)? {
            Some(before) => head = before.head,
            None => break,
        }
    }
    Ok(ChildEnd::NotOurs)
}

/// Returns the order to wind down that a child should have received when its parent's run ended.
fn lost_order(
    connection: &Connection,
    interned: &Interned,
    found: &Known,
) -> Result<Option<LostMessage>, Stop> {
    let (Some(key), Some(parent)) = (found.parent, found.execution.parent()) else { return Ok(None) };
    if found.execution.winds_down() {
        return Ok(None);
    }
    let Some(number) = last_entry(connection, interned, (key, parent))? else { return Ok(None) };
    let order = TreeOrder::at_end((parent.id.clone(), parent.run), number);
    let mut seen = connection.prepare_cached(sql::INBOX_SEEN)?;
    for id in order.heard_by().into_iter().chain([discarded_by(&parent.id)]) {
        if seen.exists(params![found.key, id.as_str()])? {
            return Ok(None);
        }
    }
    let delegate = Target::read(connection, found.namespace, &found.beside(&order.delegate()))?;
    if delegate.is_some_and(|delegate| !delegate.standing.status.is_terminal()) {
        return Ok(None);
    }
    let parent = &parent.id;
    Ok(Some(LostMessage {
        problem: format!("its parent {parent:?} has ended, and the order to wind down is lost"),
        remedy: format!("the lost order of its parent {parent:?} to wind down was given again"),
        message: Some(order.message(found.execution.address().clone())),
    }))
}

/// Returns the number of the last entry of the run that was the parent, if that run has ended.
fn last_entry(
    connection: &Connection,
    interned: &Interned,
    (key, parent): (i64, &Parent),
) -> Result<Option<u64>, Stop> {
    let mut statement = connection.prepare_cached(sql::EXECUTION_ROWS_AFTER)?;
    let mut rows = statement.query([key - 1, 1])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let found = Known::read(interned, row)?;
    let execution = &found.execution;
    if found.key != key || execution.address().id != parent.id || execution.run() < parent.run {
        return Ok(None);
    }
    if execution.run() == parent.run {
        return Ok(execution.is_finished().then(|| execution.entry_count()));
    }
    let mut ended = connection.prepare_cached(sql::RUN_CHAIN)?;
    Ok(ended.query_row(params![key, parent.run], |row| count(row, 2)).optional()?)
}
