//! The visible state of an execution without its journal.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::grow::growable;
use crate::planted::{Bug, planted};
use crate::{Epoch, Execution, ExecutionId, Name, Phase, Sort, Suspicion, Timestamp, Unclaimed, codec};

/// The status of an execution. The numbers are written to disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Status {
    /// It will start at a later time.
    Scheduled = 0,
    /// It runs, or is ready to.
    Running = 1,
    /// It waits for a time.
    Sleeping = 2,
    /// It waits for a signal, a child or a promise.
    Waiting = 3,
    /// Somebody paused it.
    Paused = 4,
    /// It cannot go on until something about its code or data changes.
    Blocked = 5,
    /// It ended with a result.
    Completed = 6,
    /// It ended with an error.
    Failed = 7,
    /// It was cancelled.
    Cancelled = 8,
    /// A part of it cannot be read, and it was set aside.
    Damaged = 9,
}

impl Status {
    /// Every status, in the order of their numbers.
    pub const ALL: [Self; 10] = [
        Self::Scheduled,
        Self::Running,
        Self::Sleeping,
        Self::Waiting,
        Self::Paused,
        Self::Blocked,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::Damaged,
    ];

    /// Returns the status with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Whether the execution has ended.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }

    /// Returns the word for this status, the same everywhere.
    pub fn word(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Running => "running",
            Self::Sleeping => "sleeping",
            Self::Waiting => "waiting",
            Self::Paused => "paused",
            Self::Blocked => "blocked",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Damaged => "damaged",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// The messages that make an unheld execution worth a look. The order of the variants is written to
/// disk: new ones go last.
///
/// Every message is kept until it is read, whether the execution listens to it or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Listens {
    /// All of them.
    Everything,
    /// Only [control](crate::Body::is_control): it is paused or blocked, or its time has not come.
    /// Any other message would be looked at, put back and looked at again for ever.
    Control,
    /// None: it has ended, or nothing may end its rest.
    Nothing,
}

impl Listens {
    /// Whether a message of this sort is worth a look.
    pub fn to(self, sort: Sort) -> bool {
        match self {
            Self::Everything => true,
            Self::Control => sort == Sort::Order,
            Self::Nothing => false,
        }
    }
}

/// One wait of an execution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Waiting {
    /// A closure that runs.
    Step {
        /// Its name.
        name: Name,
        /// The number of the attempt, from 1.
        attempt: u32,
    },
    /// The next attempt of a failed step or task.
    Retry {
        /// Its name.
        name: Name,
        /// The number of the next attempt.
        attempt: u32,
        /// When it is due.
        at: Timestamp,
    },
    /// A time.
    Sleep {
        /// When.
        until: Timestamp,
    },
    /// A signal.
    Signal {
        /// Its name.
        name: Name,
        /// When the wait is given up.
        until: Option<Timestamp>,
    },
    /// A child.
    Child {
        /// Its id.
        id: ExecutionId,
    },
    /// Its next turn, or the end of this one: it may have killed its worker, so it runs alone.
    Suspect {
        /// When its worker was found dead after it ran alone, oldest first.
        died_at: Vec<Timestamp>,
        /// When it may begin again; `None` while it runs.
        until: Option<Timestamp>,
    },
    /// Another build of the program: the last build that held it was blocked there before.
    Build {
        /// When any build may take it again.
        until: Timestamp,
    },
}

impl Waiting {
    /// Returns when this wait ends on its own.
    pub fn wake_at(&self) -> Option<Timestamp> {
        match self {
            Self::Retry { at, .. } => Some(*at),
            Self::Sleep { until } | Self::Build { until } => Some(*until),
            Self::Signal { until, .. } | Self::Suspect { until, .. } => *until,
            Self::Step { .. } | Self::Child { .. } => None,
        }
    }

    /// Whether a time, a signal or a child ends this wait, and no closure is behind it.
    pub fn is_still(&self) -> bool {
        matches!(self, Self::Sleep { .. } | Self::Signal { .. } | Self::Child { .. })
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step { name, attempt: 1 } => write!(f, "running step {name:?}"),
            Self::Step { name, attempt } => write!(f, "running step {name:?}, attempt {attempt}"),
            Self::Retry { name, attempt, at } => {
                write!(f, "waiting until {at} for attempt {attempt} of {name:?}")
            }
            Self::Sleep { until } => write!(f, "sleeping until {until}"),
            Self::Signal { name, until: None } => write!(f, "waiting for signal {name:?}"),
            Self::Signal { name, until: Some(until) } => {
                write!(f, "waiting for signal {name:?} until {until}")
            }
            Self::Child { id } => write!(f, "waiting for child {id:?}"),
            Self::Suspect { died_at, until: Some(until) } => {
                write!(f, "resting until {until} after {} of its worker", deaths(died_at.len()))
            }
            Self::Suspect { died_at, until: None } if died_at.is_empty() => f.write_str("running alone"),
            Self::Suspect { died_at, until: None } => {
                write!(f, "running alone after {} of its worker", deaths(died_at.len()))
            }
            Self::Build { until } => write!(f, "left to another build until {until}"),
        }
    }
}

fn deaths(count: usize) -> String {
    if count == 1 { "1 death".to_owned() } else { format!("{count} deaths") }
}

/// The waits of an execution. Most have one.
pub type Waits = SmallVec<[Waiting; 1]>;

/// For each wait, where the code asked for it, if that is known.
pub type WaitSites = Option<SmallVec<[Option<Arc<str>>; 1]>>;

/// The indexed row that a store keeps of an execution, beside its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The status.
    pub status: Status,
    /// The messages that wake it when nobody holds it.
    pub listens: Listens,
    /// When a worker must look at it again, if nothing arrives before.
    pub wake_at: Option<Timestamp>,
    /// When a caretaker, which needs none of its code, must [look](crate::care::look) at it, if
    /// nothing arrives before. A commit has the time that the execution itself asks for; a store
    /// adds its own knowledge. It may be too early, never too late.
    pub care_at: Option<Timestamp>,
    /// A bounded excerpt of its waits. An excerpt that leaves some out has at least one wait with a
    /// closure behind it, if any exists.
    pub waiting: Waits,
    /// The lease of the caretaker that wrote this, if only caretakers held the execution until
    /// then: its code was never called.
    pub cared_epoch: Option<Epoch>,
    /// Set if the execution is still suspected of killing its workers after this commit. Otherwise
    /// a store counts the deaths of its holders from zero.
    pub suspicion: Option<Suspicion>,
    /// Set if the code began an operation anew while the journal has one of the same kind that the
    /// code has not asked for.
    pub unclaimed: Option<Unclaimed>,
    /// For each of `waiting`, in its order, where the code asked for it.
    pub sites: WaitSites,
}

growable!(Summary {
    fields: status, listens, wake_at, care_at, waiting;
    gained: 1 => cared_epoch, 2 => suspicion, 3 => unclaimed, 4 => sites;
});

impl Summary {
    /// The most waits that a summary has.
    pub const WAITING_COUNT_MAX: usize = 8;

    /// Returns the waits, each with the place where the code asked for it, if that is known.
    pub fn waits(&self) -> impl Iterator<Item = (&Waiting, Option<&str>)> {
        let sites = self.sites.iter().flatten().map(Option::as_deref);
        self.waiting.iter().zip(sites.chain(std::iter::repeat(None)))
    }

    /// Returns its status at `now`. An execution that slept until then is ready, or runs: no entry
    /// records that the next attempt of a step begins.
    pub fn status_at(&self, now: Timestamp) -> Status {
        let is_due = self.wake_at.is_some_and(|at| at <= now);
        if is_due && self.status == Status::Sleeping { Status::Running } else { self.status }
    }

    /// Whether code stands at waits with no closure behind them. A worker that parks it there has
    /// replayed it and survived, so it is no longer a suspect. An execution that rests, or waits
    /// for its next attempt, still is.
    pub fn stands_still(&self) -> bool {
        !self.waiting.is_empty() && self.waiting.iter().all(Waiting::is_still)
    }

    /// Returns the beginning of an encoded summary. A store may call it: it does not read the rest.
    pub fn beginning_of(bytes: &[u8]) -> Option<(Status, Listens)> {
        Some(postcard::take_from_bytes(codec::body(bytes)?).ok()?.0)
    }
}

/// The visible state of an execution.
impl Execution {
    /// Returns the summary of a new execution that no worker has taken yet.
    pub fn summary_at_start(&self, now: Timestamp) -> Summary {
        if self.is_delayed(now) { self.summary_at_rest() } else { self.summary(&[]) }
    }

    /// Returns the summary of an execution whose code does not run: it is paused or blocked, or its
    /// time has not come. No clock is read: an execution whose time comes at this very moment must
    /// be woken too.
    pub fn summary_at_rest(&self) -> Summary {
        let Some(at) = self.start_at().filter(|_| *self.phase() == Phase::Running) else {
            return self.summary(&[]);
        };
        // It begins when it is due, not when the first signal comes.
        let is_planted = planted(Bug::SignalEndsBackOff);
        let listens = if is_planted { Listens::Everything } else { Listens::Control };
        if self.attempt_count() > 0 {
            let (name, attempt) = (self.name().clone(), self.attempt_count().saturating_add(1));
            return Summary { listens, ..self.summary(&[Waiting::Retry { name, attempt, at }]) };
        }
        let wake_at = self.deadline_at().map_or(at, |deadline_at| deadline_at.min(at));
        Summary {
            status: Status::Scheduled,
            listens,
            wake_at: Some(wake_at),
            care_at: self.care_at(),
            waiting: Waits::new(),
            cared_epoch: None,
            suspicion: None,
            unclaimed: None,
            sites: None,
        }
    }

    /// Returns the indexed row for an execution with these waits.
    pub fn summary(&self, waiting: &[Waiting]) -> Summary {
        let active = self.phase().is_active();
        let timers = waiting.iter().filter(|_| active).filter_map(Waiting::wake_at);
        Summary {
            status: if active { status_of(waiting) } else { self.status() },
            listens: self.listens(waiting),
            wake_at: timers.chain(self.expires_at()).min(),
            care_at: self.care_at(),
            waiting: if active { excerpt(waiting) } else { Waits::new() },
            cared_epoch: None,
            suspicion: None,
            unclaimed: None,
            sites: None,
        }
    }

    fn listens(&self, waiting: &[Waiting]) -> Listens {
        match self.phase() {
            phase if phase.is_active() && !rests(waiting) => Listens::Everything,
            Phase::Paused { .. } | Phase::Blocked { .. } => Listens::Control,
            _ => Listens::Nothing,
        }
    }
}

/// Returns at most as many waits as a summary holds. If there are more, waits that are not still go
/// first, so that the excerpt [stands still](Summary::stands_still) only if all waits do.
fn excerpt(waiting: &[Waiting]) -> Waits {
    if waiting.len() <= Summary::WAITING_COUNT_MAX {
        return waiting.iter().cloned().collect();
    }
    let restless = waiting.iter().filter(|wait| !wait.is_still());
    let still = waiting.iter().filter(|wait| wait.is_still());
    restless.chain(still).take(Summary::WAITING_COUNT_MAX).cloned().collect()
}

/// Whether it rests, and neither message nor order ends the rest.
fn rests(waiting: &[Waiting]) -> bool {
    waiting.iter().any(|wait| matches!(wait, Waiting::Suspect { until: Some(_), .. } | Waiting::Build { .. }))
}

/// Returns the status for these waits. An execution sleeps when only time can wake it, waits when
/// something else can, and runs otherwise.
fn status_of(waiting: &[Waiting]) -> Status {
    let is_step = |wait: &Waiting| matches!(wait, Waiting::Step { .. } | Waiting::Suspect { .. });
    if rests(waiting) {
        return Status::Sleeping;
    }
    let is_time = |wait: &Waiting| matches!(wait, Waiting::Sleep { .. } | Waiting::Retry { .. });
    if waiting.is_empty() || waiting.iter().any(is_step) {
        Status::Running
    } else if waiting.iter().all(is_time) {
        Status::Sleeping
    } else {
        Status::Waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Address, Kind, Namespace, Payload, Start};

    #[test]
    fn code_stands_still_at_waits_with_no_closure_behind_them() {
        let name = || Name::new("x").unwrap();
        let at = Timestamp::from_millis(1_000_000);
        let signal = || Waiting::Signal { name: name(), until: None };
        let retry = || Waiting::Retry { name: name(), attempt: 2, at };
        let start = Start::of(Kind::Workflow, name(), Payload::from("1"));
        let address = Address { namespace: Namespace::default(), id: ExecutionId::new("a").unwrap() };
        let (execution, _) = Execution::start(address, start, Timestamp::from_millis(1));
        // The last is beyond the bound of a summary.
        let mut many = vec![signal(); Summary::WAITING_COUNT_MAX];
        many.push(retry());
        let cases: [(&[Waiting], bool); 9] = [
            (&many, false),
            (&[signal()], true),
            (&[Waiting::Sleep { until: at }], true),
            (&[Waiting::Child { id: ExecutionId::new("c").unwrap() }, Waiting::Sleep { until: at }], true),
            (&[], false),
            (&[Waiting::Sleep { until: at }, retry()], false),
            (&[signal(), Waiting::Step { name: name(), attempt: 1 }], false),
            (&[Waiting::Suspect { died_at: Vec::new(), until: Some(at) }], false),
            (&[Waiting::Build { until: at }], false),
        ];
        for (waiting, expected) in cases {
            assert_eq!(execution.summary(waiting).stands_still(), expected, "{waiting:?}");
        }
    }
}
