//! Says in one sentence why an execution is where it is. Pure: facts in, words out.

use std::fmt::Write as _;

use abide_core::{
    Body, By, Entry, Event, ExecutionId, Kind, Message, Phase, Route, Stand, Status, StepRemedy, Summary,
    Timestamp, Waiting, care,
};
use abide_store::{Snapshot, Trouble, WorkerRow};

use abide_core::text;

use super::waits::waits;
use crate::quarantine::SUSPECT_TAKEOVER_COUNT;

/// The maximum number of characters of a result, error or reason.
const EXCERPT_CHARS: usize = 200;
/// The maximum number of workers whose objection is named.
const OBJECTION_COUNT_MAX: usize = 3;

/// The facts about an execution at one moment.
pub(super) struct Facts {
    /// Its state and its unread messages.
    pub(super) snapshot: Snapshot,
    /// The last entries of its journal.
    pub(super) tail: Vec<Entry>,
    /// The live workers of its namespace, and the one that holds it.
    pub(super) workers: Vec<WorkerRow>,
    /// Whether its holder runs it; `None` when that cannot be seen from here.
    pub(super) is_seated: Option<bool>,
    /// The executions that are claimed before it.
    pub(super) ahead: Ahead,
    /// The suspect because of which no worker lets it in.
    pub(super) suspect: Option<Suspect>,
    /// The child that is described, of those that it waits for.
    pub(super) followed: Option<ExecutionId>,
    /// The facts about that child.
    pub(super) child: Option<Child>,
    /// The reason why the store cannot write.
    pub(super) trouble: Option<Held>,
    /// The time of these facts.
    pub(super) now: Timestamp,
}

/// The number of executions that go first.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ahead {
    /// The number found.
    pub(super) count: u64,
    /// Whether executions remain that were not looked at.
    pub(super) is_more: bool,
}

/// An execution that runs alone, or is to: its worker lets no other in.
pub(super) struct Suspect {
    pub(super) id: ExecutionId,
    pub(super) takeover_count: u32,
    /// Whether it runs. Otherwise the executions in memory are to leave first.
    pub(super) is_alone: bool,
    /// The worker that holds it.
    pub(super) worker: String,
}

impl Suspect {
    /// Returns the held execution as a suspect, if it is one and lets no other in.
    pub(super) fn of(held: &Snapshot, row: &WorkerRow) -> Option<Self> {
        let takeover_count = held.takeover_count;
        let stand = stand(held);
        (takeover_count >= SUSPECT_TAKEOVER_COUNT && stand != Stand::Beside).then(|| Self {
            id: held.execution.address().id.clone(),
            takeover_count,
            is_alone: matches!(stand, Stand::Alone { .. }),
            worker: worker_name(row),
        })
    }
}

impl Facts {
    /// Whether it waits for a worker to take it.
    pub(super) fn is_queued(&self) -> bool {
        let is_active = |status| !matches!(status, Status::Paused | Status::Blocked | Status::Damaged);
        let status = self.snapshot.summary.status;
        let may_run = is_active(status) && !status.is_terminal();
        may_run && self.snapshot.lease.session.is_none() && ready_since(self).is_some()
    }

    /// Returns the live workers that can run it and take more executions.
    pub(super) fn able(&self, route: &Route) -> impl Iterator<Item = &WorkerRow> {
        self.workers.iter().filter(move |row| row.takes_more(self.now) && row.worker.ability.serves(route))
    }

    /// Whether a worker exists that applies orders which need no code. A worker that shuts down
    /// looks after nothing.
    fn has_caretaker(&self) -> bool {
        self.workers.iter().any(|row| row.takes_more(self.now))
    }
}

/// A child that an execution waits for.
pub(super) enum Child {
    /// The facts about it.
    Known(Box<Facts>),
    /// No such execution exists.
    Missing,
    /// It is damaged, for this reason.
    Damaged(String),
    /// A newer version of abide wrote it.
    Newer,
    /// It cannot be read now, for this reason.
    Unread(String),
    /// The chain is too long to be followed.
    TooDeep,
}

/// The reason why a store cannot write, as the sentence states it.
pub(super) enum Held {
    /// The store or its disk.
    Up(Trouble),
    /// A transaction step, of this execution if it can be read, since this time.
    By(Option<ExecutionId>, Timestamp),
}

/// Returns the sentence about an execution.
pub(super) fn of(facts: &Facts) -> String {
    let execution = &facts.snapshot.execution;
    let subject = format!("{} {:?}", execution.kind().word(), execution.address().id);
    let unclaimed = facts.snapshot.summary.unclaimed.as_ref();
    let unclaimed = unclaimed.map(|unclaimed| format!("; {unclaimed}")).unwrap_or_default();
    text::clean(&format!("{subject} {}{unclaimed}{}.", predicate(facts), trouble(facts))).into_owned()
}

/// Says why nothing that has to write goes on. An execution that has ended wants nothing more.
fn trouble(facts: &Facts) -> String {
    if facts.snapshot.summary.status.is_terminal() {
        return String::new();
    }
    let when = |since: &Timestamp| text::when(*since, facts.now);
    match &facts.trouble {
        None => String::new(),
        Some(Held::Up(Trouble::Full { free_bytes })) => {
            format!(
                "; the disk of the store is full ({free_bytes} bytes are free), and all goes on when there is room"
            )
        }
        Some(Held::Up(Trouble::Failing { since, complaint })) => format!(
            "; since {} writes to the store fail, and are tried again: {}",
            when(since),
            excerpt(complaint)
        ),
        Some(Held::Up(Trouble::Occupied { since, .. }) | Held::By(None, since)) => {
            format!("; since {} a transaction step keeps the writer of the store", when(since))
        }
        Some(Held::By(Some(id), since)) if *id == facts.snapshot.execution.address().id => {
            format!("; since {} its transaction step runs, and keeps the writer of the store", when(since))
        }
        Some(Held::By(Some(id), since)) => {
            format!("; since {} a transaction step of {id:?} keeps the writer of the store", when(since))
        }
    }
}

pub(super) fn predicate(facts: &Facts) -> String {
    let mut words = match facts.snapshot.summary.status {
        Status::Completed | Status::Failed | Status::Cancelled => return ended(facts),
        Status::Paused => paused(facts),
        Status::Blocked => blocked(facts),
        Status::Damaged => {
            let ways_out = text::ways_out(&facts.snapshot.execution.address().id);
            return format!(
                "is damaged and was set aside: abide verify says what is wrong with it, {ways_out}"
            );
        }
        Status::Scheduled | Status::Running | Status::Sleeping | Status::Waiting => active(facts),
    };
    words.push_str(&deadline(facts));
    words.push_str(&deaths(facts));
    words.push_str(&unread(facts));
    words
}

fn ended(facts: &Facts) -> String {
    let Some(Entry { at, event, .. }) = facts.tail.last() else {
        return format!("is {}", facts.snapshot.summary.status);
    };
    let at = text::when(*at, facts.now);
    match event {
        Event::Completed { result, .. } => format!("completed at {at} with the result {}", result.excerpt()),
        Event::Failed(failure) => {
            let place = failure.at.as_ref().map(|place| format!(" ({place})")).unwrap_or_default();
            format!("failed at {at}: {}{place}", excerpt(&failure.to_string()))
        }
        Event::Cancelled { by, reason } => format!("was cancelled at {at} {}", by_whom(by, reason)),
        other => format!("ended at {at} with {}", other.word()),
    }
}

fn paused(facts: &Facts) -> String {
    let since =
        since(facts, |event| matches!(event, Event::Paused { .. } | Event::Inherited { pause: Some(_), .. }));
    match facts.snapshot.execution.phase() {
        Phase::Paused { by, reason, .. } => format!("is paused{since} {}", by_whom(by, reason)),
        _ => format!("is paused{since}"),
    }
}

fn blocked(facts: &Facts) -> String {
    let since = since(facts, |event| matches!(event, Event::Blocked { .. }));
    let execution = &facts.snapshot.execution;
    let Phase::Blocked { reason, paused, cancelling } = execution.phase() else {
        return format!("is blocked{since}");
    };
    let cancelling = cancelling.as_ref().map_or_else(String::new, |(by, reason)| {
        let by_whom = by_whom(by, reason);
        format!("; it is being cancelled {by_whom}, and a second cancel, or a terminate, ends it as it is")
    });
    let paused = paused.as_ref().map_or_else(String::new, |(by, reason)| {
        format!("; it was paused {} and stays so when it is unblocked", by_whom(by, reason))
    });
    // A cancelled execution goes on to clean up, whatever became of its parent's pause.
    let inherited = execution.inherited_pause().filter(|_| cancelling.is_empty());
    let inherited = inherited.map_or_else(String::new, |(by, reason)| {
        format!("; it was paused {}, and stays so until its parent goes on", by_whom(by, reason))
    });
    let paused = paused + &inherited;
    let tried = match execution.tried() {
        // Either somebody has to decide, or the only build is the one that is blocked.
        _ if reason.lost().is_some() => String::new(),
        [] | [_] => String::new(),
        builds => format!("; builds {} have tried", text::names(builds)),
    };
    let ways_on = text::ways_on(&execution.address().id, reason);
    let ways_on = ways_on.map_or_else(String::new, |ways_on| format!("; to go on: {ways_on}"));
    format!("is blocked{since}: {reason}{tried}{ways_on}{cancelling}{paused}")
}

fn active(facts: &Facts) -> String {
    let ending = match facts.snapshot.execution.phase() {
        Phase::Cancelling { by, reason } => format!("is being cancelled {} and ", by_whom(by, reason)),
        Phase::Expiring { until } => {
            format!("is past its deadline, ends at {} at the latest and ", text::when(*until, facts.now))
        }
        _ => String::new(),
    };
    let rest = match facts.snapshot.lease.session {
        Some(_) => held(facts),
        None => match ready_since(facts) {
            Some(since) if !is_ready_for_mail(facts) => queued(facts, since),
            Some(since) if objections(facts).is_none() => {
                format!("{}; for its unread mail it {}", resting(facts), queued(facts, since))
            }
            _ => resting(facts),
        },
    };
    format!("{ending}{rest}")
}

/// Returns since when any worker may take it. A due timer makes it ready, although only the next
/// claim writes that down.
fn ready_since(facts: &Facts) -> Option<Timestamp> {
    let due_at = facts.snapshot.summary.wake_at.filter(|at| *at <= facts.now);
    facts.snapshot.ready_at.or(due_at)
}

/// Whether it is ready only so that its mail is read: its time has not come, and no unread message
/// ends one of its waits. It then rests on, as its status says.
fn is_ready_for_mail(facts: &Facts) -> bool {
    let Snapshot { summary, inbox, .. } = &facts.snapshot;
    let ends_wait = |message: &Message| {
        summary.waiting.iter().any(|wait| match (&message.body, wait) {
            (Body::Signal { name, .. }, Waiting::Signal { name: awaited, .. }) => name == awaited,
            (Body::ChildDone { .. }, Waiting::Child { .. }) => true,
            _ => false,
        })
    };
    let is_due = summary.wake_at.is_some_and(|at| at <= facts.now);
    // Otherwise a wait or a message may be missing here.
    let is_whole = summary.waiting.len() < Summary::WAITING_COUNT_MAX && inbox.next.is_none();
    let wakes = |message: &&Message| summary.listens.to(message.body.sort());
    matches!(summary.status, Status::Scheduled | Status::Sleeping | Status::Waiting)
        && !is_due
        && is_whole
        && inbox.messages.iter().any(|message| wakes(&message))
        && !inbox.messages.iter().filter(wakes).any(ends_wait)
}

fn queued(facts: &Facts, since: Timestamp) -> String {
    let since = text::when(since, facts.now);
    if let Some(objections) = objections(facts) {
        return format!("is ready since {since}, but no live worker can run it: {objections}");
    }
    if let Some(Suspect { id, takeover_count, is_alone, worker }) = &facts.suspect {
        let what = if *is_alone { "runs" } else { "is to run" };
        return format!(
            "is ready since {since}, and waits for {id:?}, which {what} alone on {worker}, because {takeover_count} workers in a row died while holding it"
        );
    }
    let route = facts.snapshot.execution.route();
    let able = facts.able(&route).next().map(worker_name).unwrap_or_default();
    match facts.ahead {
        Ahead { count: 0, is_more: false } => {
            format!("is ready since {since} and next in its queue for {able}")
        }
        Ahead { count, is_more } => {
            let others = if count == 1 { "other" } else { "others" };
            let least = if is_more { "at least " } else { "" };
            format!("is queued since {since} behind {least}{count} {others} for {able}")
        }
    }
}

fn held(facts: &Facts) -> String {
    let session = facts.snapshot.lease.session.unwrap_or_default();
    let Some(row) = facts.workers.iter().find(|row| row.session == session) else {
        return format!("is held by session {session}, of which nothing is known");
    };
    let name = worker_name(row);
    if !row.is_live(facts.now) {
        let end = match &row.retired {
            Some(reason) => format!("ended: {reason}"),
            None => {
                format!("has given no sign of life and expired at {}", text::when(row.expires_at, facts.now))
            }
        };
        let next = match objections(facts) {
            Some(objections) => format!("no live worker can take it over: {objections}"),
            None => "it is about to be taken over".to_owned(),
        };
        return format!("is held by {name}, which {end}; {next}");
    }
    if facts.is_seated == Some(false) {
        // Three heartbeats fit into one life, and a lease takes part in the third. One of them may
        // fail, or come late.
        let within = text::duration(row.worker.ttl * 4 / 3);
        return format!(
            "is held by {name}, where nobody runs it; it is taken up or given back within {within}"
        );
    }
    // The announced waits may be from an earlier life: a suspect waits aside, and nobody here knows
    // whether an execution that is held elsewhere was taken up.
    let is_step = |wait: &Waiting| matches!(wait, Waiting::Step { .. });
    let is_running = facts.is_seated == Some(true) || !facts.snapshot.summary.waiting.iter().any(is_step);
    match waits(facts) {
        // The words about a child end with the child's holder.
        Some(waits) if is_running && !is_suspect(facts) && facts.child.is_some() => {
            format!("is held by {name}, {waits}")
        }
        Some(waits) if is_running && !is_suspect(facts) => format!("is {waits}, held by {name}"),
        Some(waits) => format!("is held by {name}, last seen {waits}"),
        None if is_suspect(facts) => format!("is held by {name}"),
        None if facts.is_seated == Some(true) => format!("is running on {name} since {}", last_entry(facts)),
        None => {
            let last_entry = last_entry(facts);
            format!(
                "is held by {name}: its code runs there, or is about to, and has recorded nothing since {last_entry}"
            )
        }
    }
}

fn resting(facts: &Facts) -> String {
    let summary = &facts.snapshot.summary;
    let mut words = match (waits(facts), summary.wake_at) {
        (Some(waits), _) => format!("is {waits}"),
        (None, Some(at)) if summary.status == Status::Scheduled => {
            let at = facts.snapshot.execution.start_at().unwrap_or(at);
            format!("is scheduled to start at {}", text::when(at, facts.now))
        }
        (None, Some(at)) => format!("rests until {}", text::when(at, facts.now)),
        (None, None) => format!("is {} but nobody holds it and it waits for nothing", summary.status),
    };
    // Some worker will have to run it when its time comes. If it waits for others, that cannot be
    // said yet.
    if waits_for_time(facts)
        && let Some(objections) = objections(facts)
    {
        let _ = write!(words, ", and no live worker can run it then: {objections}");
    }
    words
}

fn waits_for_time(facts: &Facts) -> bool {
    let is_time = |wait: &Waiting| matches!(wait, Waiting::Sleep { .. } | Waiting::Retry { .. });
    facts.snapshot.summary.waiting.iter().all(is_time)
}

/// Describes the last sign of progress of code that has not announced its waits.
fn last_entry(facts: &Facts) -> String {
    let Some(Entry { seq, at, event, .. }) = facts.tail.last() else { return "it began".to_owned() };
    let op = event.op().map(|op| format!(" of {op}")).unwrap_or_default();
    format!("entry {seq} ({}{op}) at {}", event.word(), text::when(*at, facts.now))
}

/// Says since when: the time of the last entry of this kind.
pub(super) fn since(facts: &Facts, is_it: impl Fn(&Event) -> bool) -> String {
    let entry = facts.tail.iter().rev().find(|entry| is_it(&entry.event));
    entry.map(|entry| format!(" since {}", text::when(entry.at, facts.now))).unwrap_or_default()
}

fn by_whom(by: &By, reason: &str) -> String {
    text::by_whom(by, &excerpt(reason))
}

fn is_suspect(facts: &Facts) -> bool {
    facts.snapshot.takeover_count >= SUSPECT_TAKEOVER_COUNT
}

/// Describes a deadline that comes before its waits end, or that has passed and nobody has applied.
/// Any live worker applies it, even one without the code.
fn deadline(facts: &Facts) -> String {
    let execution = &facts.snapshot.execution;
    let Some(at) = execution.deadline_at().filter(|_| !matches!(execution.phase(), Phase::Expiring { .. }))
    else {
        return String::new();
    };
    let when = text::when(at, facts.now);
    if at > facts.now {
        return if is_cut_short(facts, at) { format!("; its deadline is at {when}") } else { String::new() };
    }
    let is_applied = facts.has_caretaker() || is_held_live(facts);
    let nobody = if is_applied { "" } else { ", and no worker is live to apply it" };
    format!("; its deadline passed at {when}{nobody}")
}

/// Whether none of its waits ends before this deadline, as far as that is known. A pause, a block
/// and a step last for nobody knows how long.
fn is_cut_short(facts: &Facts, deadline_at: Timestamp) -> bool {
    let Snapshot { summary, execution, .. } = &facts.snapshot;
    let ends_at = match summary.status {
        Status::Scheduled => execution.start_at(),
        Status::Sleeping | Status::Waiting => summary.waiting.iter().filter_map(Waiting::wake_at).min(),
        _ => None,
    };
    ends_at.is_none_or(|at| deadline_at < at)
}

/// Whether its holder lives, and so applies a passed deadline.
fn is_held_live(facts: &Facts) -> bool {
    let holder = facts.snapshot.lease.session;
    facts.workers.iter().any(|row| Some(row.session) == holder && row.is_live(facts.now))
}

/// Returns how a suspect was last restricted.
fn stand(snapshot: &Snapshot) -> Stand {
    snapshot.summary.suspicion.as_ref().map(|suspicion| suspicion.stand).unwrap_or_default()
}

fn deaths(facts: &Facts) -> String {
    let alone = if is_suspect(facts) { alone(facts) } else { "" };
    match facts.snapshot.takeover_count {
        0 => String::new(),
        1 => format!("; a worker died while holding it{alone}"),
        count => format!("; {count} workers in a row died while holding it{alone}"),
    }
}

/// Describes what follows for a suspect.
fn alone(facts: &Facts) -> &'static str {
    let is_resting = matches!(facts.snapshot.summary.status, Status::Paused | Status::Blocked);
    match stand(&facts.snapshot) {
        _ if is_resting => ", so it is to run alone when it goes on",
        _ if !is_held_live(facts) => ", so it is to run alone",
        Stand::Alone { .. } => ", so it runs alone",
        Stand::Beside => ", so it ran alone for a while, and others run beside it now",
        Stand::Aside | Stand::Resting(_) => ", so it waits aside to run alone",
    }
}

/// Lists unread messages: orders still to be followed, and signals that no code has asked for.
fn unread(facts: &Facts) -> String {
    let mut told: Vec<(String, usize)> = Vec::new();
    let is_task = facts.snapshot.execution.kind() == Kind::Task;
    for message in &facts.snapshot.inbox.messages {
        let by = &message.by;
        let words = match &message.body {
            Body::Signal { name, .. } if is_task => format!("signal {name:?} that a task never reads"),
            Body::Signal { name, .. } => format!("signal {name:?}"),
            Body::Pause { reason } | Body::Cancel { reason } | Body::Terminate { reason } => {
                format!("{} {}", message.body.word(), by_whom(by, reason))
            }
            Body::Inherit { pause: Some(reason), .. } => format!("pause {}", by_whom(by, reason)),
            Body::Inherit { pause: None, .. } | Body::Resume | Body::Unblock { step: None } | Body::Retry => {
                format!("{} by {by}", message.body.word())
            }
            Body::Unblock { step: Some(StepRemedy { step, remedy }) } => {
                format!("{} of {step:?} {remedy} by {by}", message.body.word())
            }
            // The code asks for these when it comes to them.
            Body::ChildDone { .. } | Body::Start(_) => continue,
        };
        match told.iter_mut().find(|(known, _)| *known == words) {
            Some((_, count)) => *count += 1,
            None => told.push((words, 1)),
        }
    }
    if told.is_empty() {
        return String::new();
    }
    let words =
        told.into_iter().map(|(words, count)| if count > 1 { format!("{words} ({count})") } else { words });
    let words = words.collect::<Vec<_>>().join(", ");
    let more = if facts.snapshot.inbox.next.is_some() { " and more" } else { "" };
    format!("; unread: {words}{more}{}", who_reads(facts))
}

/// Says who reads the unread messages, where the sentence does not say so already. Any live worker
/// applies most orders; a cancellation is for the code to see.
fn who_reads(facts: &Facts) -> String {
    let Snapshot { lease, summary, inbox, .. } = &facts.snapshot;
    if lease.session.is_some() {
        let is_terminate = |message: &Message| matches!(message.body, Body::Terminate { .. });
        let care_at = summary.care_at.filter(|_| inbox.messages.iter().any(is_terminate));
        if let Some(at) = care_at {
            let from = match facts.has_caretaker() {
                true => format!("from {} on", text::when(at, facts.now)),
                false => "when a worker is live that takes more".to_owned(),
            };
            return format!(", which is applied without its holder {from}");
        }
        // Otherwise its holder would have read it.
        let is_unblock = |message: &Message| matches!(message.body, Body::Unblock { .. });
        let is_waiting = summary.status == Status::Blocked && inbox.messages.iter().any(is_unblock);
        return if is_waiting { ", which waits until the steps that run have ended" } else { "" }.to_owned();
    }
    let Some(objections) = objections(facts) else { return String::new() };
    let ends_unseen = facts.snapshot.execution.ends_unseen(lease.is_untouched(summary.cared_epoch));
    let is_for_code =
        |message: &Message| message.body.is_control() && !care::applies(&message.body, ends_unseen);
    let is_for_code = inbox.messages.iter().any(is_for_code);
    let is_resting = ready_since(facts).is_some() && is_ready_for_mail(facts);
    // The words about a paused or blocked execution, and about one that waits for others, name no
    // worker, yet one must read the message.
    let is_stopped =
        matches!(summary.status, Status::Paused | Status::Blocked) || is_resting && !waits_for_time(facts);
    let is_order = inbox.messages.iter().any(|message| message.body.is_control());
    match (is_for_code, is_stopped) {
        (true, true) => {
            format!(", which is for its code to see, and no live worker can run it: {objections}")
        }
        (true, false) => ", which is for its code to see".to_owned(),
        (false, _) if facts.has_caretaker() => String::new(),
        (false, true) => format!(", and no live worker can read it: {objections}"),
        (false, false) if is_resting && is_order => ", which waits for a worker to apply it".to_owned(),
        (false, false) => String::new(),
    }
}

/// Says why no live worker can run it; `None` when one can.
fn objections(facts: &Facts) -> Option<String> {
    let route = facts.snapshot.execution.route();
    if facts.able(&route).next().is_some() {
        return None;
    }
    let live: Vec<_> = facts.workers.iter().filter(|row| row.is_live(facts.now)).collect();
    if live.is_empty() {
        return Some("there is none".to_owned());
    }
    let told = live.iter().take(OBJECTION_COUNT_MAX).map(|row| {
        if let Some(damage) = &row.damage {
            return format!("what session {} offers cannot be told: {damage}", row.session);
        }
        let objection = row.worker.ability.objection(&route).or_else(|| draining(row));
        format!("{} {}", worker_name(row), objection.unwrap_or_else(|| "serves another namespace".to_owned()))
    });
    let mut words = told.collect::<Vec<_>>().join(", ");
    if live.len() > OBJECTION_COUNT_MAX {
        let _ = write!(words, " and {} more", live.len() - OBJECTION_COUNT_MAX);
    }
    Some(words)
}

fn draining(row: &WorkerRow) -> Option<String> {
    row.is_draining.then(|| "is shutting down".to_owned())
}

fn worker_name(row: &WorkerRow) -> String {
    format!("worker {:?} (session {})", row.worker.name, row.session)
}

pub(super) fn excerpt(words: &str) -> String {
    text::excerpt(words, EXCERPT_CHARS)
}

#[cfg(test)]
#[path = "sentence_tests.rs"]
mod tests;
