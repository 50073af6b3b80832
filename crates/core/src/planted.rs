//! Bugs that are planted on purpose.
//!
//! A test that has never failed proves little. Each bug here is one line of the product behind a
//! question ([`planted`]) that only builds with the feature `planted` ask. `cargo xtask planted`
//! chooses one after the other and checks that a test fails. `docs/planted.md` says which test.
//!
//! In every other build the answer is a constant, and nothing is left of the line. So the one
//! environment variable that this crate reads does not harm its purity: released builds read none.

macro_rules! bugs {
    ($(#[doc = $breaks:literal] $bug:ident = $name:literal,)*) => {
        /// A bug that can be planted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug {
            $(#[doc = $breaks] $bug,)*
        }

        impl Bug {
            /// Every bug.
            pub const ALL: &[Self] = &[$(Self::$bug,)*];

            /// Returns the name of the bug.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$bug => $name,)*
                }
            }

            /// Returns the fault that the bug causes, in one sentence.
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
    /// A closure begins before the start of its execution is durable.
    ClosureBeforeStart = "closure-before-start",
    /// The first stretch of an execution and its replay see two times.
    StretchAtOtherTime = "stretch-at-other-time",
    /// The first stretch of a start that attaches is written to the execution that was there.
    StretchOfAttached = "stretch-of-attached",
    /// A workflow goes on from a first stretch that was not recorded.
    StretchUnrecorded = "stretch-unrecorded",
    /// The children of a first stretch that another seat goes on from are looked for much later.
    StretchOfKnownStrands = "stretch-of-known-strands",
    /// An execution whose first stretch ends during a shutdown begins closures.
    StretchUndrained = "stretch-undrained",
    /// The children of a first stretch with a lost answer are looked for much later.
    StretchStrands = "stretch-strands",
    /// A worker that shuts down begins closures.
    ClosuresWhileDraining = "closures-while-draining",
    /// A worker that shuts down reads no orders to the executions that still run on it.
    DrainIsDeaf = "drain-is-deaf",
    /// A message that arrives for a paused or blocked workflow is read and thrown away.
    AnswerLostWhilePaused = "answer-lost-while-paused",
    /// The answer of a child that its parent has given up stays unread for ever.
    LateAnswerUnread = "late-answer-unread",
    /// A received signal stays unread, and is received again after a crash.
    SignalReadTwice = "signal-read-twice",
    /// A retried step counts its attempts anew after a crash.
    AttemptsForgotten = "attempts-forgotten",
    /// The longest time for attempts begins anew after a crash.
    FirstAttemptForgotten = "first-attempt-forgotten",
    /// Chance does not shorten the pauses between attempts.
    JitterIgnored = "jitter-ignored",
    /// Another attempt follows although the code said that none makes sense.
    RetryIfIgnored = "retry-if-ignored",
    /// A sleep begins anew after a crash.
    TimerSetAgain = "timer-set-again",
    /// A step that ends beside a transaction is recorded under the number of the transaction.
    EntryNumberTwice = "entry-number-twice",
    /// A journal at entry_count_max is blocked before its run can end.
    EndAtBoundBlocked = "end-at-bound-blocked",
    /// A cancellation hides results that were recorded before it.
    ResultHiddenByCancel = "result-hidden-by-cancel",
    /// A result that an operator set and the code cannot read is delivered again and again.
    EditNotEditable = "edit-not-editable",
    /// A timeout lasts longer if the clock is set back meanwhile.
    WaitOnWallClock = "wait-on-wall-clock",
    /// A text and the number that reads like it are one key.
    KeysLoseTypes = "keys-lose-types",
    /// A seat takes its lease for lost while a commit that keeps or ends it is under way.
    DoubtWhileCommitting = "doubt-while-committing",
    /// A cancellation during the first operation of a workflow is not shown to its code.
    FirstCancelUnseen = "first-cancel-unseen",
    /// The deadline of a running task is ignored.
    TaskDeadlineIgnored = "task-deadline-ignored",
    /// A task that receives a signal begins again.
    TaskRestartsOnMail = "task-restarts-on-mail",
    /// A running task does not learn that it is paused.
    TaskPauseUntold = "task-pause-untold",
    /// Progress does not reset the count of commits that failed for good.
    FailureCountKept = "failure-count-kept",
    /// A suspect whose commits fail for good runs again without end, because its mark is progress.
    VersionIsProgress = "version-is-progress",
    /// A step whose commit fails for good runs again without end.
    FailuresUnbounded = "failures-unbounded",
    /// When too many notices wait, the worker does not learn that it must read the inbox.
    OverflowForgetsMore = "overflow-forgets-more",
    /// A message is taken from its notice although an earlier one is still unknown.
    SignalsOutOfOrder = "signals-out-of-order",
    /// A seat that takes in an answer of the store leaves the news that came with it.
    NewsBesideAnswer = "news-beside-answer",
    /// A due timer goes before a deadline that passed earlier, while a commit is under way.
    TimerBeforeDeadline = "timer-before-deadline",
    /// A due timer goes before a message that arrived earlier.
    TimerBeforeMessage = "timer-before-message",
    /// A timer fires before the store was asked for messages that arrived earlier.
    TimerWithoutLook = "timer-without-look",
    /// A message goes before a timer that was due earlier.
    MessageBeforeTimer = "message-before-timer",
    /// Of several awaited signals, the one with the first name is received first.
    SignalsByName = "signals-by-name",
    /// Strict code is blocked by the outcome of an operation that it has given up.
    GivenUpDemanded = "given-up-demanded",
    /// Strict code that no longer asks for a recorded timer is not blocked.
    TimerNotDemanded = "timer-not-demanded",
    /// A step with a timeout of zero begins.
    ZeroTimeoutBegins = "zero-timeout-begins",
    /// A notice that overtakes the answer with its lease is forgotten.
    EarlyMailDropped = "early-mail-dropped",
    /// A lease whose answer is still on its way counts as lost with the first heartbeat.
    YoungLeasesTaken = "young-leases-taken",
    /// A worker does not react when a heartbeat shows that it holds other leases than it knows.
    DifferenceIgnored = "difference-ignored",
    /// A worker that shuts down sends no heartbeat.
    HeartStopsAtShutdown = "heart-stops-at-shutdown",
    /// A second shutdown does not wait for the first.
    SecondShutdownHurries = "second-shutdown-hurries",
    /// A start whose future is dropped strands its execution.
    StartStranded = "start-stranded",
    /// A run whose future is dropped strands the execution that it hosts.
    HostStrands = "host-strands",
    /// A caller of runs that need no waiting leaves no other task a turn.
    HostHogs = "host-hogs",
    /// A shutdown during the poll of a hosted execution does not move it.
    HostUnasked = "host-unasked",
    /// A caller that does not poll keeps the execution that it hosts.
    HostKeeps = "host-keeps",
    /// Callers whose executions leave their tasks at a shutdown are told nothing of their ends.
    DrainDeserts = "drain-deserts",
    /// Nobody misses a start whose caller does not come back for the answer.
    AnswerUnmissed = "answer-unmissed",
    /// A request of unknown outcome is reported as failed.
    UnknownSubmitFailed = "unknown-submit-failed",
    /// Callers that gave up are kept in memory for ever.
    WatchersKept = "watchers-kept",
    /// A client learns that a blocked execution is given up while a worker still holds it.
    GivenUpWhileHeld = "given-up-while-held",
    /// An execution that kills its worker keeps the application in a crash loop.
    SuspectNeverRests = "suspect-never-rests",
    /// Progress beside a step that kills its worker resets the count of deaths.
    ProgressClearsPoison = "progress-clears-poison",
    /// A pause and a resume reset the count of deaths of an execution that kills its worker.
    OrdersClearSuspicion = "orders-clear-suspicion",
    /// The children of a run that has ended do not learn of its end.
    ChildrenOutliveRun = "children-outlive-run",
    /// The children of a paused execution go on.
    PauseSkipsTree = "pause-skips-tree",
    /// A cancellation of a paused workflow is not shown to its code.
    PausedCancelUnseen = "paused-cancel-unseen",
    /// A blocked build does not try again although the execution has made progress since.
    TriedKept = "tried-kept",
    /// Each start of a worker tries every blocked execution, and writes two entries to each.
    EachStartTries = "each-start-tries",
    /// A terminate waits for a worker that has the code.
    TerminateNeedsCode = "terminate-needs-code",
    /// An error of any size is recorded.
    ErrorsUnbounded = "errors-unbounded",
    /// An urgent execution is claimed no sooner than any other.
    PriorityIgnored = "priority-ignored",
    /// A worker writes under a lease that another worker has taken over.
    StaleEpochWrites = "stale-epoch-writes",
    /// A worker whose session has expired goes on writing until another takes over.
    DeadSessionWrites = "dead-session-writes",
    /// A session whose lock file is missing counts as dead at once.
    MissingLockFileIsDeath = "missing-lock-file-is-death",
    /// A reopened connection does not notice writes that others made while the disk failed.
    NewsLostAfterReopen = "news-lost-after-reopen",
    /// A transaction fails because another one in its batch does.
    NeighbourFails = "neighbour-fails",
    /// The counts of held leases are trusted after a COMMIT of unknown outcome.
    TalliesAfterUnknownCommit = "tallies-after-unknown-commit",
    /// Sessions end and notices are sent before COMMIT is known to have happened.
    EffectiveBeforeCommit = "effective-before-commit",
    /// A transaction on a full disk fails its workflow for good.
    FullDiskFailsStep = "full-disk-fails-step",
    /// A COMMIT of unknown outcome is reported as failed.
    UnknownCommitFailed = "unknown-commit-failed",
    /// One damaged row keeps every execution of a worker from being claimed.
    DamageStarvesOthers = "damage-starves-others",
    /// A worker keeps asking the store for a message that was read meanwhile.
    MailFetchedAfterRead = "mail-fetched-after-read",
    /// A blocked build does not try again after a decision about a step.
    DecisionLeavesTried = "decision-leaves-tried",
    /// Code that awaits a child which earlier code gave up waits for ever.
    GivenUpAwaited = "given-up-awaited",
    /// A recorded result that the code cannot read becomes an error of its step.
    UnreadableResultFails = "unreadable-result-fails",
    /// A suspect whose code stands still keeps every other execution out.
    IdleSuspectStays = "idle-suspect-stays",
    /// A suspect that waits aside follows neither orders nor its deadline.
    AsideDeaf = "aside-deaf",
    /// Deaths after others came in beside a suspect count as its own.
    JoinedDeathsCount = "joined-deaths-count",
    /// An execution that its holder finds damaged is not set aside.
    SetAsideUndone = "set-aside-undone",
    /// A start under an id that another execution has attaches to that execution.
    TakenIdAttached = "taken-id-attached",
    /// A late order of a parent reaches children that were started after it.
    OrderReachesYounger = "order-reaches-younger",
    /// The end of a cancelled parent ends a child that is blocked in its clean-up.
    CleanUpGivenUp = "clean-up-given-up",
    /// An execution is moved under an epoch that is not its own.
    MoveIgnoresEpoch = "move-ignores-epoch",
    /// A claim carries journals and messages of any size.
    ClaimUnbounded = "claim-unbounded",
    /// A signal with a key arrives as often as it is sent.
    SignalKeyIgnored = "signal-key-ignored",
    /// A child or a step with a declared input takes the result of another input.
    OtherInputTaken = "other-input-taken",
    /// An accepted input is forgotten behind an edited step.
    AcceptForgotten = "accept-forgotten",
    /// Operations of one name are counted together, whatever their keys are.
    KeyIgnored = "key-ignored",
    /// The late answer of a repeated commit begins a child that has ended since.
    RepeatedCommitBegins = "repeated-commit-begins",
    /// A worker rebuilds an index that leads to a page of a table, and destroys that page.
    SharedPageGivenBack = "shared-page-given-back",
    /// A terminate of a parent reaches its children as a cancellation.
    TerminateGoesDownAsCancel = "terminate-goes-down-as-cancel",
    /// A caretaker takes a cancellation that the code must see.
    CareTakesCancel = "care-takes-cancel",
    /// A parent that resumes lifts a pause that somebody else put on its child.
    ResumeLiftsOwnPause = "resume-lifts-own-pause",
    /// A pause of the parent reaches the children of a blocked clean-up, and the resume does not.
    CleanUpStaysPaused = "clean-up-stays-paused",
    /// A decision about a step is acknowledged behind an unread unblock, and lost.
    DecisionBehindUnblock = "decision-behind-unblock",
    /// A run that continues as new leaves its children running.
    ContinuedKeepsChildren = "continued-keeps-children",
    /// A run whose code wants the next run receives signals, which are lost with it.
    OldRunReceives = "old-run-receives",
    /// A blocking closure that waits for a thread begins although its step was given up.
    QueuedJobRuns = "queued-job-runs",
    /// A transaction step creates views, triggers and foreign keys on the tables of abide.
    ClosureNamesOwnTables = "closure-names-own-tables",
    /// A wait through blocks ends with the first one.
    BlockEndsEveryWait = "block-ends-every-wait",
    /// A store that cannot be written does not report it.
    TroubleUntold = "trouble-untold",
    /// A renamed operation runs again although the journal has it under its old name.
    RenamedRunsAgain = "renamed-runs-again",
    /// A replay takes a change of the code that the run has not taken.
    PatchedFlips = "patched-flips",
    /// A recorded result is read as the old type although it can be read as the new one.
    UpgradeFirst = "upgrade-first",
    /// A signal of another type than the code waits for blocks its execution for good.
    BadSignalBlocks = "bad-signal-blocks",
    /// A float that is not finite is recorded as `null`.
    NanRecorded = "nan-recorded",
    /// A random number drawn inside a step changes those that the workflow draws later.
    ChanceInStepShifts = "chance-in-step-shifts",
    /// A closure on its own thread receives the idempotency key of the whole run.
    KeyOffThread = "key-off-thread",
    /// Of two children that differ by a key alone, one never hears that its id is taken.
    RefusalIgnoresKey = "refusal-ignores-key",
    /// A delayed execution begins at once when a pause of it is lifted.
    ResumeStartsEarly = "resume-starts-early",
    /// A deadline before a delayed start is not enforced.
    DeadlineAwaitsStart = "deadline-awaits-start",
    /// Names and ids with a separator give two steps the same idempotency key.
    KeysAmbiguous = "keys-ambiguous",
    /// A client that waits for a blocked execution never learns that it is blocked.
    BlockedUntold = "blocked-untold",
    /// The end of a run does not list the recorded operations that its code no longer asks for.
    UnusedUntold = "unused-untold",
    /// Two inputs differ because the members of a map came in another order.
    InputOrderCounts = "input-order-counts",
    /// A signal to a task ends the pause before its next attempt.
    SignalEndsBackOff = "signal-ends-back-off",
    /// A deferred foreign key that stays broken makes the outcome of its transaction unknown.
    DeferredKeyUnknown = "deferred-key-unknown",
    /// A suspect begins before it is durable that it runs alone, and its deaths count as nobody's.
    SuspectBeginsUnmarked = "suspect-begins-unmarked",
    /// Others come in beside a suspect before that is durable, and a death counts as its own.
    JoinedUnrecorded = "joined-unrecorded",
    /// A timeout that is over before its closure was polled is lost, and the step hangs.
    EarlyTimeoutLost = "early-timeout-lost",
    /// The time limit of a transaction step does not interrupt a statement.
    SqlNotInterrupted = "sql-not-interrupted",
    /// The sentence about a parent does not say that the child it waits for is blocked.
    BlockedChildUnnamed = "blocked-child-unnamed",
    /// The answer of a child goes before a signal that arrived earlier.
    AnswersFirst = "answers-first",
    /// A timer fires before the store was asked for answers of children that arrived earlier.
    ChildrenWithoutLook = "children-without-look",
    /// The decision that follows directly on the last delivered entry is overlooked.
    DecisionPassLate = "decision-pass-late",
    /// A place in the code counts as named although its entry was not recorded.
    PlaceNamedEarly = "place-named-early",
    /// A suspect that waits aside parks before it knows its mail, and is leased again and again.
    SuspectParksEarly = "suspect-parks-early",
    /// A build that was blocked goes on with an execution that another build has not tried.
    TriedTakesOn = "tried-takes-on",
    /// A start that is repeated with the same delay is reported as a start with another one.
    DelayFromZero = "delay-from-zero",
    /// The commit of a transaction step forgets where the code waits.
    PlacesLostByTransaction = "places-lost-by-transaction",
    /// A field that a newer program has written is ignored, and lost with the next write.
    UnknownFieldIgnored = "unknown-field-ignored",
    /// A store that only reads does not hear of the writes of others.
    ReaderDeaf = "reader-deaf",
    /// The input of a lost result binds code although somebody let its step run again.
    LostInputBinds = "lost-input-binds",
    /// A caretaker that put off its look while a holder lived is reported as damage.
    LateLookDamaged = "late-look-damaged",
    /// An execution whose driver panics each time is begun again without end.
    PanicsUncounted = "panics-uncounted",
    /// An await that is not recorded is forgotten when its execution leaves memory.
    ForeignForgotten = "foreign-forgotten",
    /// A second pause does not reach a child that was resumed on its own.
    SecondPauseStops = "second-pause-stops",
    /// Strict code goes on without the timeout of a wait for a signal.
    TimeoutDropped = "timeout-dropped",
    /// A result that somebody set is taken for any input, if the code asks for it late.
    EditForAnyInput = "edit-for-any-input",
    /// After a panic, a driver begins anew while the commit of the last one is under way.
    CommitLeftBehind = "commit-left-behind",
    /// An execution begins anew when a page of its journal cannot be read at once.
    ReadNotRepeated = "read-not-repeated",
    /// An execution whose records stay unreadable is asked for without end, and nobody is told.
    RecoveryUnbounded = "recovery-unbounded",
    /// A worker whose lock file cannot be made anew ends its own session, and goes on in its name.
    OwnLockFileMissed = "own-lock-file-missed",
    /// The end of a session leaves its newborn executions leased to it.
    NewbornsNotReleased = "newborns-not-released",
    /// A heartbeat forgets that its session has newborns below the next key.
    NewbornsPassedOver = "newborns-passed-over",
    /// `verify` does not see that the end of a session would not find its newborns.
    NewbornSearchUnchecked = "newborn-search-unchecked",
    /// A newborn stays out of the index when a message comes.
    NewbornUnsettled = "newborn-unsettled",
    /// The newborns of a transaction that is undone stay known.
    NewbornsNotUndone = "newborns-not-undone",
    /// The answers that are kept for an execution are not found when another worker takes it over.
    AnswersForgotten = "answers-forgotten",
    /// Kept answers that were read are found again when another worker takes the execution over.
    AnswersReadTwice = "answers-read-twice",
    /// The answers that are kept for an execution are not found after it was parked.
    AnswersLostAtPark = "answers-lost-at-park",
    /// A message of another process goes before the answers that are kept.
    AnswersUnseen = "answers-unseen",
    /// A worker that has missed a notice is not told of answers that are kept.
    AnswersUntold = "answers-untold",
    /// The next holder of an execution does not look for the tail of its journal.
    TailUnread = "tail-unread",
    /// A row of a tail that has lost its owner is passed over.
    TailPassedOver = "tail-passed-over",
    /// A tail goes on behind the rows that its readers look at.
    TailTooLong = "tail-too-long",
    /// A commit that changes a time leaves the row of its execution as it is.
    TailChangesTimes = "tail-changes-times",
    /// The id of a kept answer is forgotten with the child that gave it.
    AnswerIdForgotten = "answer-id-forgotten",
    /// The unread answer to a parent that cannot be read is lost with the child that gave it.
    AnswerOfDamagedLost = "answer-of-damaged-lost",
    /// The row of a damaged parent, which says where answers are kept, is written over.
    DamagedParentWrittenOver = "damaged-parent-written-over",
    /// A kept answer that is unread is lost when the damaged child that gave it is discarded.
    AnswerDiscarded = "answer-discarded",
    /// A damaged child that has ended cannot be discarded although its answer cannot be read.
    AnswerAwaitedForEver = "answer-awaited-for-ever",
    /// The answer that an undone commit has kept counts as given when it is applied again.
    AnswerOfEarlierAttempt = "answer-of-earlier-attempt",
    /// A savepoint is begun before the journal rows of earlier operations are in the table.
    SheafBehindSavepoint = "sheaf-behind-savepoint",
    /// The rows behind the last one in the journal's table have no numbers.
    SheafNumberedAgain = "sheaf-numbered-again",
    /// A row that is removed takes those behind it along.
    SheafThrownAway = "sheaf-thrown-away",
    /// A row joins a sheaf whatever its number is, and gets that of the row before it.
    SheafTakesAny = "sheaf-takes-any",
    /// A damaged row of a sheaf is taken for one of any execution.
    SheafBlamesNeighbours = "sheaf-blames-neighbours",
    /// A row whose columns are damaged is taken for one of the execution that they name.
    SheafBelievesColumns = "sheaf-believes-columns",
    /// A log without its database is deleted, or applied to the next file of its name.
    LogTakenOver = "log-taken-over",
    /// A file is opened although it has a second name.
    SecondNameOpened = "second-name-opened",
    /// A database that another process keeps locked is no trouble.
    BusyUntold = "busy-untold",
    /// With many read messages, all their ids are forgotten, also those that a page under way has.
    ReadForgotten = "read-forgotten",
    /// A session expires while a closure of its own keeps the writer.
    ExpiredByOwnClosure = "expired-by-own-closure",
    /// Two operations whose names have the same hash are taken for one.
    IndexIsIdentity = "index-is-identity",
    /// An idle worker reads every blocked execution once a minute.
    BlockedReadOften = "blocked-read-often",
    /// A step begins its next attempt although the session of its worker has expired.
    ExpiredBegins = "expired-begins",
    /// Strict code is blocked by the outcome of a renamed operation that it has given up.
    RenamedDemanded = "renamed-demanded",
    /// A shutdown waits for a journal that is being read.
    PageHoldsShutdown = "page-holds-shutdown",
    /// A suspect that its worker released in good order is blamed for a later death beside it.
    LeftStaysAlone = "left-stays-alone",
    /// A blocking closure that waits for a thread begins although its timeout was recorded.
    JobOutlivesTimeout = "job-outlives-timeout",
    /// A timer that is due again after the clock was set back fires without a new look.
    StaleLookKept = "stale-look-kept",
    /// A timer that was set after a look at the inbox fires without one of its own.
    LookCoversLater = "look-covers-later",
    /// A timer fires after a page of mail that is older than the look at the inbox.
    OldPageIsLook = "old-page-is-look",
    /// An operation that the code asks for under its new name is reported as no longer asked for.
    OldNameUnused = "old-name-unused",
    /// A client does not learn of an end between its own look and the first one of its follower.
    FirstPlaceUnseen = "first-place-unseen",
    /// A seat stays although its session holds the execution under a newer lease.
    OtherEpochKept = "other-epoch-kept",
    /// When too many notices wait for a session, it does not learn that there were any.
    FullMailboxSilent = "full-mailbox-silent",
    /// A heartbeat waits behind all other writes.
    HeartbeatInLine = "heartbeat-in-line",
    /// After an order that an execution sent to itself, a caretaker looks too early.
    OwnOrderUnread = "own-order-unread",
    /// After a write to the log, the next question for news comes a second after the first.
    NewsAskedOnce = "news-asked-once",
    /// A store that only reads stays deaf after its connection broke.
    BrokenOnlookerKept = "broken-onlooker-kept",
    /// A log that was left behind counts as durable although its last sync may be missing.
    LogTrusted = "log-trusted",
    /// An abandoned connection lets the index of the log die, and unsynced frames are read.
    IndexLetGo = "index-let-go",
    /// The log does not tell of the start of an execution.
    StartUnlogged = "start-unlogged",
    /// The log does not tell of a failed attempt.
    AttemptUnlogged = "attempt-unlogged",
    /// The log does not tell that an execution was taken over from a worker that died.
    TakeoverUnlogged = "takeover-unlogged",
    /// The log does not tell that an execution is blocked.
    BlockUnlogged = "block-unlogged",
    /// The log does not tell of the end of an execution.
    EndUnlogged = "end-unlogged",
    /// The log does not tell that a worker lost its session.
    SessionLossUnlogged = "session-loss-unlogged",
    /// A panic because of missing state points at a line of abide.
    StatePanicElsewhere = "state-panic-elsewhere",
    /// An operation of an execution that has ended never resolves.
    LateCtxWaits = "late-ctx-waits",
    /// A start that attached to an execution is reported as one that created it.
    AttachUntold = "attach-untold",
    /// A start that attached does not say that its tags or priority have no effect.
    DifferencesUntold = "differences-untold",
    /// A client creates the store that a mistyped path names.
    ClientCreatesStore = "client-creates-store",
    /// The parameters of a URL become part of the name of the file.
    ParametersInPath = "parameters-in-path",
    /// A list without a bound overflows.
    TakeOverflows = "take-overflows",
    /// A start by name takes an input that its code cannot read.
    NamedInputUnchecked = "named-input-unchecked",
    /// A start takes the same tag key twice.
    TagTwiceTaken = "tag-twice-taken",
    /// A name may have invisible characters.
    InvisibleNameTaken = "invisible-name-taken",
    /// A name may be all spaces.
    BlankNameTaken = "blank-name-taken",
    /// An error about a lane or a tag does not say which field is wrong.
    FieldUnnamed = "field-unnamed",
    /// Every user of the machine can read the files of a store.
    FilesForAll = "files-for-all",
    /// A command line without a command lists the hidden commands.
    HiddenCommandListed = "hidden-command-listed",
    /// A signal from a shell arrives as often as it is sent, whatever its key.
    ShellKeyIgnored = "shell-key-ignored",
    /// A start from a shell does not attach because of white space in its input.
    ShellInputRaw = "shell-input-raw",
    /// A list that was cut does not say so.
    CutUntold = "cut-untold",
    /// A list does not show tags.
    TagsUnlisted = "tags-unlisted",
    /// A list is wider than its terminal.
    ListTooWide = "list-too-wide",
    /// The latest run is shown, whichever was asked for.
    ShownRunIgnored = "shown-run-ignored",
    /// A command that is to wait for a result does not wait.
    ResultNotAwaited = "result-not-awaited",
    /// The virtual clock overtakes a step that takes real time.
    ClockOvertakesStep = "clock-overtakes-step",
    /// A lab hardly skips idle time, and simulated days take minutes.
    RestsBarelySkipped = "rests-barely-skipped",
    /// A test in which nothing can happen any more waits for a minute.
    StillnessAwaited = "stillness-awaited",
    /// A test in which nothing can happen any more does not say why.
    StillnessUnexplained = "stillness-unexplained",
    /// A lab fails before a worker has taken over what a machine held that is gone.
    DeadSessionUnawaited = "dead-session-unawaited",
    /// A test does not have the state that it was given.
    TestStateLost = "test-state-lost",
    /// A test that is to crash at every position crashes at none.
    CrashesNowhere = "crashes-nowhere",
    /// A test that crashes at every position does not compare the journals.
    CrashUncompared = "crash-uncompared",
    /// A replay fits although the code left recorded operations out.
    ReplayUnusedUntold = "replay-unused-untold",
    /// A replay fits although the code ends in another way.
    ReplayEndUncompared = "replay-end-uncompared",
    /// A replay runs the closures of steps.
    ReplayRunsSteps = "replay-runs-steps",
    /// The closure of a mocked step runs.
    MockedStepRuns = "mocked-step-runs",
    /// A mocked task runs.
    MockedTaskRuns = "mocked-task-runs",
    /// A mock that no step used is not reported.
    UnusedMockPasses = "unused-mock-passes",
    /// A transaction step creates temporary objects.
    TemporaryAllowed = "temporary-allowed",
    /// A transaction step reads and changes the tables of abide.
    OwnNamesAllowed = "own-names-allowed",
    /// A transaction step may break a foreign key.
    ForeignKeysOff = "foreign-keys-off",
    /// A transaction step that took too long is committed.
    OverrunCommitted = "overrun-committed",
    /// A transaction step may take longer than the session of its worker lives.
    TransactionOutlivesSession = "transaction-outlives-session",
    /// Nobody learns which transaction step keeps the writer.
    SlowClosureUntold = "slow-closure-untold",
    /// The log does not tell that a transaction step keeps the writer.
    SlowClosureUnlogged = "slow-closure-unlogged",
    /// The log does not tell that writes fail.
    TroubleUnlogged = "trouble-unlogged",
    /// A session may live for no time at all.
    SessionOfZero = "session-of-zero",
    /// Code that accepts any input of a child is blocked by another one.
    AnyInputIgnored = "any-input-ignored",
    /// A new optional field makes another input.
    NullMembersCount = "null-members-count",
    /// Variants that hold nothing are one input.
    NullVariantsEqual = "null-variants-equal",
    /// An integer that is written as a float is another input.
    NumbersByText = "numbers-by-text",
    /// A step with an input that does not serialize is compared with nothing.
    UnwrittenInputIgnored = "unwritten-input-ignored",
    /// An empty value inside of an option is recorded, and read back as none.
    SomeNoneRecorded = "some-none-recorded",
    /// Live code sees another value than a replay does.
    ValueNotReadBack = "value-not-read-back",
    /// A type that panics when its record is read fails the run for good.
    ReadingPanics = "reading-panics",
    /// A start of a renamed workflow does not attach to one under its old name.
    OldCodeNameForgotten = "old-code-name-forgotten",
    /// An error does not say where it was.
    PlaceUntold = "place-untold",
    /// Control characters of users reach the terminal of the reader.
    UnseenShown = "unseen-shown",
    /// A retry without a last attempt has one.
    ForeverEnds = "forever-ends",
    /// A durable operation inside a step is recorded.
    OperationInsideStep = "operation-inside-step",
    /// A durable operation on another thread is recorded.
    OperationElsewhere = "operation-elsewhere",
    /// A request on a full disk is reported as one of unknown outcome.
    FullDiskUnknown = "full-disk-unknown",
    /// Nobody learns that a renamed step ran again and left its entry unused.
    UnclaimedUntold = "unclaimed-untold",
    /// The log of a store grows without a bound.
    LogUnbounded = "log-unbounded",
    /// Two claims at a time lease one execution.
    ClaimWithoutLock = "claim-without-lock",
    /// The lease is checked by one statement, and the next one writes whatever has come in between.
    FenceBeforeStatement = "fence-before-statement",
    /// A commit removes wakes of messages that its holder has not seen.
    UnseenWakesRemoved = "unseen-wakes-removed",
    /// The feed passes a writer that has drawn its place and has not committed.
    FeedPassesOpenWriter = "feed-passes-open-writer",
}

impl Bug {
    /// Returns the bug of this name.
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

    /// The environment variable with the name of the planted bug.
    const VARIABLE: &str = "ABIDE_PLANTED";

    static CHOSEN: OnceLock<Option<Bug>> = OnceLock::new();

    /// Whether a bug is planted, by [`choose`] or by the environment variable.
    pub fn planted(bug: Bug) -> bool {
        *CHOSEN.get_or_init(from_environment) == Some(bug)
    }

    /// Plants a bug in this process. It must come before the first question: earlier ones would
    /// have had another answer.
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
