//! Bugs that are planted on purpose.
//!
//! A test that has never failed proves little. Each bug here is one line of the product, behind a question ([`planted`]) that is asked only in builds
//! with the feature `planted`; `cargo xtask planted` chooses one after the other and sees that a test fails. `docs/planted.md` says which.
//!
//! In every other build the answer is a constant, and nothing is left of the line. This is also why the one variable of the environment that this
//! crate reads harms no purity: what ships reads none.

macro_rules! bugs {
    ($(#[doc = $breaks:literal] $bug:ident = $name:literal,)*) => {
        /// A bug that can be planted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug {
            $(#[doc = $breaks] $bug,)*
        }

        impl Bug {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$bug,)*];

            /// What it is called.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$bug => $name,)*
                }
            }

            /// What goes wrong, in a sentence.
            pub fn breaks(self) -> &'static str {
                match self {
                    $(Self::$bug => $breaks.trim_ascii(),)*
                }
            }
        }
    };
}

bugs! {
    /// A closure begins before the results before it are durable.
    EffectBeforeDurable = "effect-before-durable",
    /// A worker that shuts down begins closures.
    ClosuresWhileDraining = "closures-while-draining",
    /// What arrives for a workflow that is paused or blocked is read, and thrown away.
    AnswerLostWhilePaused = "answer-lost-while-paused",
    /// The answer of a child that nobody waits for any longer stays unread for ever.
    LateAnswerUnread = "late-answer-unread",
    /// A signal that was received stays unread, and is received again after a crash.
    SignalReadTwice = "signal-read-twice",
    /// A step that is retried counts its attempts anew after a crash.
    AttemptsForgotten = "attempts-forgotten",
    /// The longest time for attempts counts anew after a crash.
    FirstAttemptForgotten = "first-attempt-forgotten",
    /// A pause between attempts is not left to chance.
    JitterIgnored = "jitter-ignored",
    /// An attempt follows although the code said that none makes sense.
    RetryIfIgnored = "retry-if-ignored",
    /// A sleep begins anew after a crash.
    TimerSetAgain = "timer-set-again",
    /// A step that ends beside a transaction is recorded under the number of that transaction.
    EntryNumberTwice = "entry-number-twice",
    /// A journal at entry_count_max is blocked before its run can end.
    EndAtBoundBlocked = "end-at-bound-blocked",
    /// A cancellation hides results that were recorded before it.
    ResultHiddenByCancel = "result-hidden-by-cancel",
    /// A result that somebody gave to a step and that the code cannot read is given to it again and again.
    EditNotEditable = "edit-not-editable",
    /// A timeout lasts longer by what the clock is set back meanwhile.
    WaitOnWallClock = "wait-on-wall-clock",
    /// A seat takes its lease for lost while the commit that gives it back, or keeps it, is under way.
    DoubtWhileCommitting = "doubt-while-committing",
    /// A cancellation during the first operation of a workflow is not shown to its code.
    FirstCancelUnseen = "first-cancel-unseen",
    /// The deadline of a task that runs is ignored.
    TaskDeadlineIgnored = "task-deadline-ignored",
    /// A task that gets a signal begins again.
    TaskRestartsOnMail = "task-restarts-on-mail",
    /// Nobody sees that a task which runs is paused.
    TaskPauseUntold = "task-pause-untold",
    /// Commits that failed for good are counted on, though the execution made progress between them.
    FailureCountKept = "failure-count-kept",
    /// A step whose commit fails for good runs again without end.
    FailuresUnbounded = "failures-unbounded",
    /// When too many notices wait, nobody is told to read the inbox.
    OverflowForgetsMore = "overflow-forgets-more",
    /// A message is taken from its notice, although the one before it is not known.
    SignalsOutOfOrder = "signals-out-of-order",
    /// A timer that is due goes before a message that arrived earlier.
    TimerBeforeMessage = "timer-before-message",
    /// A timer fires though nobody has asked the store what arrived before it.
    TimerWithoutLook = "timer-without-look",
    /// A message goes before a timer that was due earlier.
    MessageBeforeTimer = "message-before-timer",
    /// Of several signals that open operations wait for, the one with the first name is received first.
    SignalsByName = "signals-by-name",
    /// Strict code is blocked by the outcome of an operation that it has given up.
    GivenUpDemanded = "given-up-demanded",
    /// Strict code is not blocked when it no longer asks for a timer that was set.
    TimerNotDemanded = "timer-not-demanded",
    /// A step with a timeout of zero begins.
    ZeroTimeoutBegins = "zero-timeout-begins",
    /// A notice that comes before the answer which tells of its lease is forgotten.
    EarlyMailDropped = "early-mail-dropped",
    /// A lease whose answer is on its way is taken for lost with the first heartbeat.
    YoungLeasesTaken = "young-leases-taken",
    /// Nobody looks when a heartbeat says that the worker does not hold what it believes it holds.
    DifferenceIgnored = "difference-ignored",
    /// A worker that shuts down sends no heartbeat.
    HeartStopsAtShutdown = "heart-stops-at-shutdown",
    /// A second shutdown does not wait for the first.
    SecondShutdownHurries = "second-shutdown-hurries",
    /// A start whose future is dropped strands its execution.
    StartStranded = "start-stranded",
    /// A request of unknown outcome is said to have failed.
    UnknownSubmitFailed = "unknown-submit-failed",
    /// Callers that gave up are kept in memory for ever.
    WatchersKept = "watchers-kept",
    /// Whoever waits for a blocked execution is told that nobody goes on with it, while somebody looks at it.
    GivenUpWhileHeld = "given-up-while-held",
    /// An execution that kills its worker keeps the application in a crash loop.
    SuspectNeverRests = "suspect-never-rests",
    /// Progress beside a step that kills its worker clears the count of the deaths.
    ProgressClearsPoison = "progress-clears-poison",
    /// A pause and a resume clear the count of the deaths of an execution that kills its worker.
    OrdersClearSuspicion = "orders-clear-suspicion",
    /// The children of a run that has ended are not told.
    ChildrenOutliveRun = "children-outlive-run",
    /// The children of what is paused go on.
    PauseSkipsTree = "pause-skips-tree",
    /// A cancellation of a paused workflow is not shown to its code.
    PausedCancelUnseen = "paused-cancel-unseen",
    /// A build that was blocked does not try again, though the execution made progress since.
    TriedKept = "tried-kept",
    /// Each start of a worker tries everything that is blocked, and writes two entries to it.
    EachStartTries = "each-start-tries",
    /// A terminate waits for somebody who has the code.
    TerminateNeedsCode = "terminate-needs-code",
    /// An error is recorded however large it is.
    ErrorsUnbounded = "errors-unbounded",
    /// What is urgent is claimed no sooner than everything else.
    PriorityIgnored = "priority-ignored",
    /// A worker writes under a lease that was given to another.
    StaleEpochWrites = "stale-epoch-writes",
    /// A worker whose session has expired writes on until somebody takes over.
    DeadSessionWrites = "dead-session-writes",
    /// A session whose lock file is missing is dead at once.
    MissingLockFileIsDeath = "missing-lock-file-is-death",
    /// What others wrote while the disk failed is no news to a connection that is opened anew.
    NewsLostAfterReopen = "news-lost-after-reopen",
    /// A transaction fails because another one in its batch does.
    NeighbourFails = "neighbour-fails",
    /// What a worker holds is counted on after a COMMIT of unknown outcome.
    TalliesAfterUnknownCommit = "tallies-after-unknown-commit",
    /// Sessions end and notices are told before COMMIT is known to have happened.
    EffectiveBeforeCommit = "effective-before-commit",
    /// A transaction on a full disk fails its workflow for good.
    FullDiskFailsStep = "full-disk-fails-step",
    /// A COMMIT of unknown outcome is said to have failed.
    UnknownCommitFailed = "unknown-commit-failed",
    /// One damaged row keeps every execution of a worker from being claimed.
    DamageStarvesOthers = "damage-starves-others",
    /// A message that is read while the store is asked for it is looked for on, and is nowhere.
    MailFetchedAfterRead = "mail-fetched-after-read",
    /// A build that was blocked does not try again after a decision about a step.
    DecisionLeavesTried = "decision-leaves-tried",
    /// Code that waits for a child which the code before it gave up waits for ever.
    GivenUpAwaited = "given-up-awaited",
    /// A recorded result that the code cannot read is an error of its step.
    UnreadableResultFails = "unreadable-result-fails",
    /// A suspect whose code stands still keeps everybody else out.
    IdleSuspectStays = "idle-suspect-stays",
    /// What its holder finds damaged is not set aside.
    SetAsideUndone = "set-aside-undone",
    /// A start under an id that somebody else has is taken for a start of that.
    TakenIdAttached = "taken-id-attached",
    /// A parent's order that is late reaches children which it started after it.
    OrderReachesYounger = "order-reaches-younger",
    /// The end of a cancelled parent ends a child that is blocked in its clean-up.
    CleanUpGivenUp = "clean-up-given-up",
    /// An execution is moved under an epoch that is not its own.
    MoveIgnoresEpoch = "move-ignores-epoch",
    /// A claim carries journals and messages however large they are.
    ClaimUnbounded = "claim-unbounded",
    /// A signal with a key arrives as often as it is sent.
    SignalKeyIgnored = "signal-key-ignored",
    /// A child, or a step with a declared input, is given the result that was recorded for another input.
    OtherInputTaken = "other-input-taken",
    /// Operations of one name are counted, whatever their keys are.
    KeyIgnored = "key-ignored",
    /// A child that a repeated commit had started is begun by the late answer, though it has ended since.
    RepeatedCommitBegins = "repeated-commit-begins",
    /// A worker makes an index anew that leads to a page of a table, and destroys what stands there.
    SharedPageGivenBack = "shared-page-given-back",
    /// A terminate of a parent reaches its children as a cancellation.
    TerminateGoesDownAsCancel = "terminate-goes-down-as-cancel",
    /// A caretaker takes a cancellation that is for the code to see.
    CareTakesCancel = "care-takes-cancel",
    /// A parent that goes on lifts the pause of its child which somebody else had put on it.
    ResumeLiftsOwnPause = "resume-lifts-own-pause",
    /// A decision about a step is acknowledged behind an unblock that is unread, and lost.
    DecisionBehindUnblock = "decision-behind-unblock",
    /// A run that continues as new leaves its children running.
    ContinuedKeepsChildren = "continued-keeps-children",
    /// A run whose code wants the next one receives signals, which are lost with it.
    OldRunReceives = "old-run-receives",
    /// A blocking closure that waits for a thread begins although its step was given up.
    QueuedJobRuns = "queued-job-runs",
    /// A transaction step makes views, triggers and foreign keys that lead to the tables of abide.
    ClosureNamesOwnTables = "closure-names-own-tables",
    /// A wait through blocks ends with the first one.
    BlockEndsEveryWait = "block-ends-every-wait",
    /// A store that cannot be written says nothing of it.
    TroubleUntold = "trouble-untold",
    /// A renamed operation runs again although the journal has it under its old name.
    RenamedRunsAgain = "renamed-runs-again",
    /// A change of the code that a run has not taken is taken when the run is replayed.
    PatchedFlips = "patched-flips",
    /// A recorded result is read as the old type although it can be read as the new one.
    UpgradeFirst = "upgrade-first",
    /// A signal of another type than the code waits for blocks its execution for good.
    BadSignalBlocks = "bad-signal-blocks",
    /// A float that is not finite is recorded as `null`.
    NanRecorded = "nan-recorded",
    /// A random number that is drawn inside of a step changes those that the workflow draws after it.
    ChanceInStepShifts = "chance-in-step-shifts",
    /// A closure on a thread of its own is given the idempotency key of the whole run.
    KeyOffThread = "key-off-thread",
}

impl Bug {
    /// The bug of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|bug| bug.name() == name)
    }
}

#[cfg(feature = "planted")]
pub use chosen::{choose, planted};

/// Whether a bug is planted: never, in this build.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn planted(_: Bug) -> bool {
    false
}

#[cfg(feature = "planted")]
mod chosen {
    use std::sync::OnceLock;

    use super::Bug;

    /// Names the bug that a process has.
    const VARIABLE: &str = "ABIDE_PLANTED";

    static CHOSEN: OnceLock<Option<Bug>> = OnceLock::new();

    /// Whether a bug is planted: by [`choose`], or by the variable of the environment.
    pub fn planted(bug: Bug) -> bool {
        *CHOSEN.get_or_init(from_environment) == Some(bug)
    }

    /// Plants a bug in this process. Whoever asked before this has had another answer, so it comes first.
    pub fn choose(bug: Bug) {
        assert_eq!(*CHOSEN.get_or_init(|| Some(bug)), Some(bug), "a bug is chosen once");
    }

    fn from_environment() -> Option<Bug> {
        let name = std::env::var(VARIABLE).ok().filter(|name| !name.is_empty())?;
        Some(Bug::named(&name).unwrap_or_else(|| panic!("{VARIABLE}={name}: there is no such bug")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_name_of_its_own() {
        for bug in Bug::ALL {
            assert_eq!(Bug::named(bug.name()), Some(*bug));
        }
        assert_eq!(Bug::named("none"), None);
    }

    #[test]
    fn the_table_in_the_documents_has_every_bug_and_no_other() {
        let table = include_str!("../../../docs/planted.md");
        let rows: Vec<_> = table.lines().filter(|line| line.starts_with("| `")).collect();
        for bug in Bug::ALL {
            let row = format!("| `{}` | {} |", bug.name(), bug.breaks());
            assert!(rows.iter().any(|found| found.starts_with(&row)), "docs/planted.md has no row {row:?}");
        }
        assert_eq!(rows.len(), Bug::ALL.len(), "docs/planted.md has a row of no bug");
    }

    #[test]
    #[cfg(not(feature = "planted"))]
    fn what_ships_has_no_bug() {
        const { assert!(!planted(Bug::EffectBeforeDurable)) };
    }
}
