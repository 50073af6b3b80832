//! Answers in words that are the same for every store: no keys, no session numbers, no page sizes.

use abide_core::{Fence, Refusal, SessionId, Timestamp};

use crate::{Claimed, CommitOutcome, Committed, Error, ExecutionKey, HeldLease, Leased, Snapshot, Submitted};

/// Translates a store's numbers into names.
pub(super) trait Names {
    fn session(&self, session: SessionId) -> String;
    fn execution(&self, key: ExecutionKey) -> String;
    fn now(&self) -> Timestamp;
}

pub(super) fn error(error: &Error) -> String {
    match error {
        Error::Refused(Refusal::TooLarge(large)) => format!("refused by {}", large.limit),
        // The text of this refusal names the session.
        Error::Refused(Refusal::Unsupported { .. }) => "refused".to_owned(),
        Error::Refused(refusal) => format!("refused: {refusal}"),
        other => format!("{other:?}"),
    }
}

pub(super) fn submitted(names: &impl Names, submitted: &Submitted) -> String {
    let target = names.execution(submitted.key());
    match submitted {
        Submitted::Started(_, None) => format!("{target} started"),
        Submitted::Started(_, Some(leased)) => format!("{target} born as {}", self::leased(names, leased)),
        Submitted::Begun(_, Ok(committed)) => format!("{target} began: {}", done(names, committed)),
        Submitted::Begun(_, Err(refusal)) => format!("{target} began, refused: {refusal}"),
        Submitted::Attached(_) => format!("{target} attached"),
        Submitted::Delivered(_) => format!("{target} delivered"),
        Submitted::Duplicate(_) => format!("{target} duplicate"),
    }
}

fn leased(names: &impl Names, leased: &Leased) -> String {
    let ids: Vec<_> = leased.inbox.messages.iter().map(|message| message.id.as_str()).collect();
    format!(
        "{} by {} epoch {} version {} takeovers {} {:?} state {:?} first {:?} inbox {ids:?}",
        leased.address(),
        names.session(leased.lease.session),
        leased.lease.epoch,
        leased.version,
        leased.takeover_count,
        leased.suspicion,
        leased.execution,
        leased.opening.first_entry(),
    )
}

/// Describes a claim. Leases are sorted: the order of repeated leases is open, and the conformance
/// table checks the order of the first answer.
pub(super) fn claimed(names: &impl Names, claimed: &Claimed) -> String {
    let told = |leased: &[Leased]| {
        let mut told: Vec<_> = leased.iter().map(|leased| self::leased(names, leased)).collect();
        told.sort();
        told
    };
    let (leases, care) = (told(&claimed.leased), told(&claimed.care));
    let is_new =
        |key: &ExecutionKey| claimed.leased.iter().chain(&claimed.care).any(|leased| leased.key == *key);
    let mail = claimed.mail.iter().filter(|(key, _)| !is_new(key));
    let mut mail: Vec<_> =
        mail.map(|(key, newest)| format!("{} has {newest:?}", names.execution(*key))).collect();
    mail.sort();
    // When more is ready, nobody looks at the timers.
    let next_wake_at = claimed.next_wake_at.filter(|_| !claimed.more);
    let (more, next_care_at) = (claimed.more, claimed.next_care_at);
    format!(
        "leased {leases:?} care {care:?} mail {mail:?} more {more} next {next_wake_at:?} next care {next_care_at:?}"
    )
}

/// Describes leases. They are sorted, because each store has its own order.
pub(super) fn leases(names: &impl Names, leases: &[HeldLease]) -> String {
    let told = |lease: &HeldLease| {
        format!("{} epoch {} beat {}", names.execution(lease.key), lease.epoch, lease.given_beat)
    };
    let mut told: Vec<_> = leases.iter().map(told).collect();
    told.sort();
    format!("holds {told:?}")
}

pub(super) fn word(outcome: &CommitOutcome) -> &'static str {
    match outcome {
        CommitOutcome::Committed(_) => "committed",
        CommitOutcome::Fenced(Fence::StaleEpoch { .. }) => "fenced: stale epoch",
        CommitOutcome::Fenced(Fence::StaleVersion { .. }) => "fenced: stale version",
        CommitOutcome::Fenced(Fence::Released) => "fenced: released",
        CommitOutcome::Fenced(Fence::DeadSession(_)) => "fenced: dead session",
        CommitOutcome::Fenced(Fence::Open | Fence::Applied) => "fenced for no reason",
    }
}

pub(super) fn outcome(names: &impl Names, outcome: &CommitOutcome, exists: bool) -> String {
    match outcome {
        CommitOutcome::Committed(committed) => done(names, committed),
        // The reason is left out: stores may differ in how they fence a commit of a pruned
        // execution.
        CommitOutcome::Fenced(_) if !exists => "fenced: gone".to_owned(),
        fenced @ CommitOutcome::Fenced(_) => word(fenced).to_owned(),
    }
}

fn done(names: &impl Names, committed: &Committed) -> String {
    let born: Vec<_> = committed.born.iter().map(|born| leased(names, born)).collect();
    format!("committed, dropped {}, born {born:?}", committed.dropped_count)
}

pub(super) fn snapshot(names: &impl Names, found: &Snapshot) -> String {
    let mut tags: Vec<_> = found.tags.iter().map(|tag| (&tag.key, &tag.value)).collect();
    tags.sort();
    tags.dedup();
    let holder = found.lease.session.map(|session| names.session(session));
    // A store may forget a timer that has gone off.
    let (wake_at, due_at) = match found.summary.wake_at {
        Some(wake_at) if wake_at <= names.now() => (None, Some(wake_at)),
        wake_at => (wake_at, None),
    };
    // Nor does it have to say that such a timer made it ready.
    let ready_at = Timestamp::sooner(found.ready_at, due_at.filter(|_| holder.is_none()));
    format!(
        "{} {:?} wake {wake_at:?} care {:?} waiting {:?} holder {holder:?} epoch {} version {} created {:?} ready {:?} \
         takeovers {} tags {tags:?} state {:?} journal {:?} inbox {:?}",
        found.execution.address(),
        found.summary.status,
        found.summary.care_at,
        found.summary.waiting,
        found.lease.epoch,
        found.lease.version,
        found.created_at,
        ready_at,
        found.takeover_count,
        found.execution,
        found.journal,
        found.inbox,
    )
}
