//! Submits and commits that arrive together travel together.
//!
//! While a batch waits for the disk, the next operations line up, so a batch grows with the load
//! and one operation alone waits for nobody. A batch of one is written by the same code.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use abide_core::{Body, Message, Timestamp};
use abide_store::{Commit, CommitOutcome, Error, Hold, Result, Submissions, Submit};
use tokio::sync::{Notify, oneshot};

use crate::apply::{self, Asked, Decided, Desk, Item};
use crate::board::News;
use crate::connection::Connection;
use crate::error::{Kind, Stop};
use crate::facts::{Facts, Haste, Questions};
use crate::gate::{Visit, start};
use crate::shared::Shared;
use crate::sheet::Sheet;

/// Who waits for an answer.
pub(crate) struct Reply<T> {
    tell: oneshot::Sender<Result<T>>,
    /// Sees the answer first, whether or not somebody still waits for it.
    count: Counting<T>,
    /// The store is not closed before the answer is there.
    _visit: Visit,
}

type Counting<T> = Box<dyn FnOnce(&Result<T>) + Send + Sync>;

impl<T> Reply<T> {
    pub(crate) fn new(visit: Visit, count: Counting<T>) -> (Self, oneshot::Receiver<Result<T>>) {
        let (tell, told) = oneshot::channel();
        (Self { tell, count, _visit: visit }, told)
    }

    /// Answers. Nobody may wait for it any longer.
    fn send(self, answer: Result<T>) {
        (self.count)(&answer);
        drop(self.tell.send(answer));
    }
}

/// An operation, and who waits for its answer.
pub(crate) enum Job {
    Submit(Submit, Reply<Submissions>),
    Commit(Box<Commit>, Reply<CommitOutcome>),
}

/// What batches are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    /// One start that stands alone.
    Start,
    /// A commit that only appends, or ends its execution.
    Append,
    Other,
}

const SORT_COUNT: usize = 3;

#[derive(Default)]
pub(crate) struct Batcher {
    queues: Mutex<Queues>,
    rung: Notify,
}

#[derive(Default)]
struct Queues {
    arrived_count: u64,
    /// The operations of each sort, with the numbers in which they arrived.
    waiting: [VecDeque<(u64, Job)>; SORT_COUNT],
}

impl Queues {
    fn put(&mut self, job: Job) {
        self.arrived_count += 1;
        self.waiting[job.sort() as usize].push_back((self.arrived_count, job));
    }

    /// Returns the queue whose first operation has waited longest.
    fn longest(&mut self) -> Option<&mut VecDeque<(u64, Job)>> {
        let waiting = self.waiting.iter_mut().filter(|queue| !queue.is_empty());
        waiting.min_by_key(|queue| queue.front().map(|(number, _)| *number))
    }

    fn is_empty(&self) -> bool {
        self.waiting.iter().all(VecDeque::is_empty)
    }
}

impl Job {
    fn item(&self) -> Item<'_> {
        match self {
            Self::Submit(submit, _) => Item::Submit(submit),
            Self::Commit(commit, _) => Item::Commit(commit),
        }
    }

    fn sort(&self) -> Sort {
        match self {
            Self::Submit(submit, _) => match submit.messages.as_slice() {
                [one] if submit.stretch.is_none() && is_lone_start(one) => Sort::Start,
                _ => Sort::Other,
            },
            Self::Commit(commit, _) => {
                let changes = &commit.changes;
                let is_short = changes.outgoing.is_empty()
                    && changes.consumed.is_empty()
                    && changes.next.is_none()
                    && commit.transaction.is_none();
                let stays = commit.hold == Hold::Keep || changes.summary.status.is_terminal();
                if is_short && stays { Sort::Append } else { Sort::Other }
            }
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

    fn fail(self, error: Error) {
        match self {
            Self::Submit(_, reply) => reply.send(Err(error)),
            Self::Commit(_, reply) => reply.send(Err(error)),
        }
    }

    fn tell(self, decided: Decided) {
        match (self, decided) {
            (Self::Submit(_, reply), Decided::Put(put)) => {
                let submitted = [put.into_submitted()].into_iter().collect();
                reply.send(Ok(submitted));
            }
            (Self::Commit(_, reply), Decided::Outcome(outcome)) => reply.send(Ok(outcome)),
            (Self::Commit(_, reply), Decided::Committed(_, committed)) => {
                reply.send(Ok(CommitOutcome::Committed(committed)));
            }
            (job, _) => {
                let what = "an operation got the answer of another".to_owned();
                job.fail(Error::Corrupt { what });
            }
        }
    }
}

/// Whether a message is a start that touches nothing but its own rows.
fn is_lone_start(message: &Message) -> bool {
    matches!(&message.body, Body::Start(start) if start.parent.is_none() && start.tags.is_empty())
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
        if job.sort() == Sort::Start {
            // Of two starts of one id, one is written, and the other one is decided anew.
            return true;
        }
        let item = job.item();
        let named = |message: &Message| (message.to.clone(), message.id.clone());
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
        self.queues.lock().unwrap_or_else(PoisonError::into_inner).put(job);
        self.rung.notify_one();
    }

    /// Takes the operations that can travel together. The others keep their order.
    fn take(&self, count_max: usize) -> Vec<Job> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut taken, mut batch, mut left) = (Taken::default(), Vec::new(), VecDeque::new());
        if let Some(queue) = queues.longest() {
            while batch.len() < count_max
                && let Some((number, job)) = queue.pop_front()
            {
                if taken.adds(&job) {
                    batch.push(job);
                } else {
                    left.push_back((number, job));
                }
            }
            left.append(queue);
            *queue = left;
        }
        if !queues.is_empty() {
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
            Job::Submit(submit, reply) => {
                let answer =
                    repeated(attempt_count_max, what, || apply::submit_alone(&shared, &submit)).await;
                reply.send(answer);
            }
            Job::Commit(commit, reply) => {
                let answer =
                    repeated(attempt_count_max, what, || apply::commit_alone(&shared, &commit)).await;
                reply.send(answer);
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

/// Carries out a batch. At first most of what it finds is guessed. Operations with a wrong guess
/// are decided anew with everything that they depend on. When something disturbs the whole batch,
/// each operation is tried on its own, so that none harms its neighbours.
async fn run(shared: &Arc<Shared>, mut jobs: Vec<Job>) {
    let first = match jobs.as_slice() {
        [one] if one.sort() == Sort::Start => Haste::Alone,
        _ => Haste::Swift,
    };
    for haste in [first, Haste::Plain] {
        let Attempted { left, stop } = attempt(shared, jobs, haste).await;
        match stop {
            Some(stop) if !stop.is_race() && !stop.is_unreadable() => return fail_all(left, stop),
            _ if left.is_empty() => return,
            _ => jobs = left,
        }
    }
    for job in jobs {
        run_one(shared, job).await;
    }
}

async fn run_one(shared: &Arc<Shared>, job: Job) {
    let mut jobs = vec![job];
    for _ in 1..shared.options.attempt_count_max {
        let Attempted { left, stop } = attempt(shared, jobs, Haste::Careful).await;
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

async fn attempt(shared: &Arc<Shared>, jobs: Vec<Job>, haste: Haste) -> Attempted {
    let connection = match shared.pool.take().await {
        Ok(connection) => connection,
        Err(stop) => return Attempted { left: jobs, stop: Some(stop) },
    };
    let now = shared.now();
    let (mut facts, asked) = match asked(shared, &connection, &jobs, (haste, now)).await {
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
        let is_unseen = haste == Haste::Alone;
        let (mut own, mut news) = (Sheet { is_unseen, ..Sheet::default() }, Vec::new());
        let mut desk = Desk { shared, facts: &mut facts, sheet: &mut own, news: &mut news, now };
        match job.item().decide(&mut desk, asked, haste) {
            Ok(decided) => {
                sheet.append(own);
                drafts.push(Draft { job, decided, news });
            }
            Err(Stop::Alone) => start_alone(shared, job),
            Err(stop) if stop.is_race() || asked.iter().any(Asked::is_guess) => left.push(job),
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
    (haste, now): (Haste, Timestamp),
) -> std::result::Result<(Facts, Vec<Vec<Asked>>), Stop> {
    let mut questions = Questions::default();
    questions.haste = haste;
    let mut asked = Vec::new();
    for job in jobs {
        let item = job.item();
        apply::intern(shared, connection, apply::routes_of(shared, item.messages())).await?;
        asked.push(item.ask(shared, &mut questions));
    }
    Ok((questions.answer(shared, connection, now).await?, asked))
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
        // A commit that was fenced is no less an answer.
        if let (Job::Commit(commit, _), Decided::Committed(..)) = (&draft.job, &draft.decided) {
            shared.pool.witness.note(commit);
        }
        draft.job.tell(draft.decided);
    }
    shared.board.tell(told);
    match apply::fenced_of(shared, connection, &missed.iter().map(Job::item).collect::<Vec<_>>(), now).await {
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
