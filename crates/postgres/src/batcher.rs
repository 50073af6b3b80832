//! Submits and commits that arrive together travel together.
//!
//! While a batch waits for the disk, the next operations line up, so a batch grows with the load
//! and one operation alone waits for nobody. A batch of one is written by the same code.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use abide_core::Timestamp;
use abide_store::{Commit, CommitOutcome, Error, Result, Submissions, Submit};
use tokio::sync::{Notify, oneshot};

use crate::apply::{self, Asked, Decided, Desk, Item};
use crate::board::News;
use crate::connection::Connection;
use crate::error::{Kind, Stop};
use crate::facts::{Facts, Questions};
use crate::gate::start;
use crate::shared::Shared;
use crate::sheet::Sheet;

/// An operation, and who waits for its answer.
pub(crate) enum Job {
    Submit(Submit, oneshot::Sender<Result<Submissions>>),
    Commit(Box<Commit>, oneshot::Sender<Result<CommitOutcome>>),
}

#[derive(Default)]
pub(crate) struct Batcher {
    queue: Mutex<VecDeque<Job>>,
    rung: Notify,
}

impl Job {
    fn item(&self) -> Item<'_> {
        match self {
            Self::Submit(submit, _) => Item::Submit(submit),
            Self::Commit(commit, _) => Item::Commit(commit),
        }
    }

    fn what(&self) -> &'static str {
        match self {
            Self::Submit(..) => "submit",
            Self::Commit(..) => "commit",
        }
    }

    fn order(&self) -> u64 {
        match self {
            Self::Submit(..) => 0,
            Self::Commit(commit, _) => commit.key.0,
        }
    }

    /// Answers. Nobody may wait for it any longer.
    fn fail(self, error: Error) {
        match self {
            Self::Submit(_, tell) => drop(tell.send(Err(error))),
            Self::Commit(_, tell) => drop(tell.send(Err(error))),
        }
    }

    fn tell(self, decided: Decided) {
        match (self, decided) {
            (Self::Submit(_, tell), Decided::Put(put)) => {
                let submitted = [put.into_submitted()].into_iter().collect();
                drop(tell.send(Ok(submitted)));
            }
            (Self::Commit(_, tell), Decided::Outcome(outcome)) => drop(tell.send(Ok(outcome))),
            (Self::Commit(_, tell), Decided::Committed(_, committed)) => {
                drop(tell.send(Ok(CommitOutcome::Committed(committed))));
            }
            (job, _) => {
                let what = "an operation got the answer of another".to_owned();
                job.fail(Error::Corrupt { what });
            }
        }
    }
}

/// What operations of one batch must not share.
#[derive(Default)]
struct Taken {
    keys: HashSet<u64>,
    messages: HashSet<(abide_core::Address, abide_core::MessageId)>,
}

impl Taken {
    /// Whether an operation can be added to the batch: it changes other rows and sends other
    /// messages, so that the written rows name the written operations.
    fn adds(&mut self, job: &Job) -> bool {
        let item = job.item();
        let named = |message: &abide_core::Message| (message.to.clone(), message.id.clone());
        if let Job::Commit(commit, _) = job
            && self.keys.contains(&commit.key.0)
        {
            return false;
        }
        if item.messages().iter().any(|message| self.messages.contains(&named(message))) {
            return false;
        }
        if let Job::Commit(commit, _) = job {
            self.keys.insert(commit.key.0);
        }
        self.messages.extend(item.messages().iter().map(named));
        true
    }
}

impl Batcher {
    pub(crate) fn put(&self, job: Job) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(job);
        self.rung.notify_one();
    }

    /// Takes the operations that can travel together. The others keep their order.
    fn take(&self, count_max: usize) -> Vec<Job> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut taken, mut batch, mut left) = (Taken::default(), Vec::new(), VecDeque::new());
        while batch.len() < count_max
            && let Some(job) = queue.pop_front()
        {
            if taken.adds(&job) {
                batch.push(job);
            } else {
                left.push_back(job);
            }
        }
        left.append(&mut queue);
        *queue = left;
        if !queue.is_empty() {
            self.rung.notify_one();
        }
        batch
    }

    /// Writes batches until the store is closed.
    pub(crate) async fn serve(self: Arc<Self>, shared: Arc<Shared>) {
        loop {
            let batch = self.take(shared.options.batch_count_max);
            if batch.is_empty() {
                self.rung.notified().await;
                continue;
            }
            let (alone, mut together): (Vec<Job>, Vec<Job>) =
                batch.into_iter().partition(|job| apply::needs_own_transaction(&job.item()));
            alone.into_iter().for_each(|job| start_alone(&shared, job));
            // Rows are locked in the order of their keys.
            together.sort_by_key(Job::order);
            run(&shared, together).await;
        }
    }
}

/// Carries out an operation in a transaction of its own, beside the batches.
fn start_alone(shared: &Arc<Shared>, job: Job) {
    let shared = Arc::clone(shared);
    start(async move {
        let attempt_count_max = shared.options.attempt_count_max;
        let what = job.what();
        match job {
            Job::Submit(submit, tell) => {
                let answer =
                    repeated(attempt_count_max, what, || apply::submit_alone(&shared, &submit)).await;
                let _ = tell.send(answer);
            }
            Job::Commit(commit, tell) => {
                let answer =
                    repeated(attempt_count_max, what, || apply::commit_alone(&shared, &commit)).await;
                let _ = tell.send(answer);
            }
        }
    });
}

/// Tries an operation that changes something until nobody disturbs it, a bounded number of times.
pub(crate) async fn repeated<T, F: Future<Output = std::result::Result<T, Stop>>>(
    attempt_count_max: u32,
    what: &'static str,
    operation: impl Fn() -> F,
) -> Result<T> {
    let mut attempt = 1;
    loop {
        match operation().await {
            Ok(answer) => return Ok(answer),
            Err(stop) if stop.is_race() && attempt < attempt_count_max => attempt += 1,
            Err(stop) => return Err(stop.told(what, Kind::Writes)),
        }
    }
}

/// Carries out a batch. When something in it is disturbed as a whole, each operation is tried on
/// its own, so that none harms its neighbours.
async fn run(shared: &Arc<Shared>, jobs: Vec<Job>) {
    match attempt(shared, jobs, false).await {
        Attempted { left, stop: None } => {
            for job in left {
                run_one(shared, job).await;
            }
        }
        Attempted { left, stop: Some(stop) } => {
            let is_hopeless = !stop.is_race() && !stop.is_unreadable();
            if is_hopeless {
                fail_all(left, stop);
            } else {
                for job in left {
                    run_one(shared, job).await;
                }
            }
        }
    }
}

async fn run_one(shared: &Arc<Shared>, job: Job) {
    let mut jobs = vec![job];
    for _ in 1..shared.options.attempt_count_max {
        let Attempted { left, stop } = attempt(shared, jobs, true).await;
        match stop {
            Some(stop) if !stop.is_race() => return fail_all(left, stop),
            _ if left.is_empty() => return,
            _ => jobs = left,
        }
    }
    fail_all(jobs, Stop::Raced);
}

fn fail_all(jobs: Vec<Job>, stop: Stop) {
    let mut stop = Some(stop);
    let mut first: Option<Error> = None;
    for job in jobs {
        let what = job.what();
        let error = match (stop.take(), &first) {
            (Some(stop), _) => stop.told(what, Kind::Writes),
            (None, Some(Error::Indeterminate { source, .. })) => {
                Error::Indeterminate { what, source: source.to_string().into() }
            }
            (None, Some(Error::Unavailable { source, .. })) => {
                Error::Unavailable { what, source: source.to_string().into() }
            }
            (None, Some(Error::Closed)) => Error::Closed,
            (None, _) => Error::Busy { what },
        };
        first = first.or_else(|| Some(copy(&error)));
        job.fail(error);
    }
}

/// Returns an error that says the same to the next operation.
fn copy(error: &Error) -> Error {
    match error {
        Error::Indeterminate { what, source } => {
            Error::Indeterminate { what, source: source.to_string().into() }
        }
        Error::Unavailable { what, source } => Error::Unavailable { what, source: source.to_string().into() },
        Error::Closed => Error::Closed,
        _ => Error::Busy { what: "batch" },
    }
}

/// The operations that an attempt has not answered.
struct Attempted {
    left: Vec<Job>,
    stop: Option<Stop>,
}

/// An operation of a batch that was decided.
struct Draft {
    job: Job,
    decided: Decided,
    news: Vec<News>,
}

async fn attempt(shared: &Arc<Shared>, jobs: Vec<Job>, is_careful: bool) -> Attempted {
    let connection = match shared.pool.take().await {
        Ok(connection) => connection,
        Err(stop) => return Attempted { left: jobs, stop: Some(stop) },
    };
    let now = shared.now();
    let (mut facts, asked) = match asked(shared, &connection, &jobs, (is_careful, now)).await {
        Ok(known) => known,
        Err(stop) => {
            // Nothing was written yet.
            let is_kept = stop.is_race() || stop.is_unreadable();
            let stop = if is_kept { stop } else { Stop::Told(stop.told("facts", Kind::Reads)) };
            return Attempted { left: jobs, stop: Some(stop) };
        }
    };
    let (mut sheet, mut drafts, mut left) = (Sheet::default(), Vec::new(), Vec::new());
    for (job, asked) in jobs.into_iter().zip(&asked) {
        let (mut own, mut news) = (Sheet::default(), Vec::new());
        let mut desk = Desk { shared, facts: &mut facts, sheet: &mut own, news: &mut news, now };
        match job.item().decide(&mut desk, asked, is_careful) {
            Ok(decided) => {
                sheet.append(own);
                drafts.push(Draft { job, decided, news });
            }
            Err(Stop::Alone) => start_alone(shared, job),
            Err(stop) if stop.is_race() => left.push(job),
            Err(stop) => {
                let error = stop.told(job.what(), Kind::Reads);
                job.fail(error);
            }
        }
    }
    write(shared, &connection, (sheet, drafts, now), left).await
}

async fn asked(
    shared: &Shared,
    connection: &Connection,
    jobs: &[Job],
    (is_careful, now): (bool, Timestamp),
) -> std::result::Result<(Facts, Vec<Vec<Asked>>), Stop> {
    let mut questions = Questions::default();
    let mut asked = Vec::new();
    for job in jobs {
        let item = job.item();
        apply::intern(shared, connection, apply::routes_of(shared, item.messages())).await?;
        asked.push(item.ask(shared, &mut questions, is_careful));
    }
    Ok((questions.answer(connection, now).await?, asked))
}

async fn write(
    shared: &Arc<Shared>,
    connection: &Connection,
    (sheet, drafts, now): (Sheet, Vec<Draft>, Timestamp),
    mut left: Vec<Job>,
) -> Attempted {
    let written = match sheet.write(connection, now.as_micros()).await {
        Ok(written) => written,
        Err(stop) => {
            left.extend(drafts.into_iter().map(|draft| draft.job));
            return Attempted { left, stop: Some(stop) };
        }
    };
    let mut missed = Vec::new();
    let mut told = Vec::new();
    for draft in drafts {
        if !draft.decided.is_written(&written) {
            missed.push(draft.job);
            continue;
        }
        told.extend(draft.news);
        draft.job.tell(draft.decided);
    }
    shared.board.tell(told);
    match apply::fenced_of(connection, &missed.iter().map(Job::item).collect::<Vec<_>>(), now).await {
        Ok(mut outcomes) => {
            for job in missed {
                let key = job.order();
                match outcomes.remove(&key) {
                    Some(outcome) => job.tell(Decided::Outcome(outcome)),
                    None => left.push(job),
                }
            }
            Attempted { left, stop: None }
        }
        Err(stop) => {
            left.extend(missed);
            let stop = if stop.is_race() { stop } else { Stop::Told(stop.told("facts", Kind::Reads)) };
            Attempted { left, stop: Some(stop) }
        }
    }
}
