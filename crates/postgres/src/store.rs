//! The store itself: the part behind each of its methods, and the thread that it owns.

use std::future::Future;
use std::sync::Arc;

use abide_core::{Enqueued, SessionId};
use abide_store::{
    Answer, Aside, Beat, Claim, Claimed, Clock, Commit, CommitOutcome, Error, Feed, FeedPage, Heartbeat,
    Import, Imported, InboxPage, InboxRead, IntakeLook, LeasePage, Leases, List, Listing, Notice, Prune,
    Read, Registered, Retire, Snapshot, Store, Submissions, Submit, TakeIn, TakenIn, Trouble, Verification,
    View, Worker, WorkerRow, Workers,
};
use tokio::sync::Semaphore;
use tokio_postgres::GenericClient;

use crate::batcher::{Batcher, Job, Reply, repeated};
use crate::board::Board;
use crate::error::{Kind, Stop};
use crate::gate::Gate;
use crate::horizon::Horizon;
use crate::pool::Pool;
use crate::routes::Routes;
use crate::shared::Shared;
use crate::stash::Stash;
use crate::tallies::{Asked, Tallies};
use crate::url::Place;
use crate::{Intake, Migration, OpenError, Options, apply, follower, schema, server_clock, verify, view};

/// A [`Store`] in a PostgreSQL database.
pub struct PostgresStore {
    shared: Arc<Shared>,
    batcher: Arc<Batcher>,
    gate: Gate,
}

impl PostgresStore {
    /// Opens a schema of a database, creating it and bringing it to the current version if need be.
    /// The URL is one of PostgreSQL, with two parameters more: `schema` names the schema (`abide`),
    /// and `listen=off` says that the server's notices do not come through.
    ///
    /// It blocks until the schema is ready. Call it where that is allowed.
    pub fn open(url: &str, clock: Arc<dyn Clock>, options: Options) -> Result<Arc<Self>, OpenError> {
        let place = Place::parse(url, options.connect_ms_max)?;
        let gate = Gate::open().map_err(OpenError::Thread)?;
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let (opening, told_clock) = (options.clone(), Arc::clone(&clock));
        gate.start(async move {
            let opened = prepare(&place, &opening, &*told_clock).await;
            // Nobody may wait for it any longer.
            let _ = tell.send((place, opened));
        });
        let gone = |_| OpenError::Thread(std::io::Error::other("it has ended"));
        let (place, opened) = told.recv().map_err(gone)?;
        if let Err(error) = opened {
            gate.end();
            return Err(error);
        }
        let listens = place.listens;
        let shared = Arc::new(Shared {
            pool: Pool::new(place, options.connection_count_max, Arc::clone(&clock)),
            clock,
            routes: Routes::default(),
            board: Arc::new(Board::new(options.notice_count_max)),
            horizon: Horizon::default(),
            steps: Semaphore::new(options.transaction_count()),
            stash: Stash::default(),
            looks: follower::Looks::default(),
            tallies: Tallies::default(),
            options,
        });
        let batcher = Arc::new(Batcher::default());
        for _ in 0..shared.options.writer_count_max.max(1) {
            gate.start(Arc::clone(&batcher).serve(Arc::clone(&shared)));
        }
        gate.start(follower::look(Arc::clone(&shared)));
        if listens {
            gate.start(follower::listen(Arc::clone(&shared)));
        }
        Ok(Arc::new(Self { shared, batcher, gate }))
    }

    /// Brings the schema that a URL names to the version of this program, and makes it if there is
    /// none; if it is dry, only says what would be done. It blocks. Call it where that is allowed.
    pub fn migrate(url: &str, is_dry: bool) -> Result<Migration, OpenError> {
        let place = Place::parse(url, Options::default().connect_ms_max)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(OpenError::Thread)?.block_on(schema::bring(&place, is_dry))
    }

    /// Returns up to so many rows that stand in the intake table, and of those that were refused.
    pub fn intake(&self, limit: usize) -> Answer<IntakeLook> {
        self.read("intake", move |shared| async move { apply::look_into_intake(&shared, limit).await })
    }

    /// Puts a row into the intake table, in the transaction of this client of the same database.
    pub async fn enqueue_in(
        &self,
        client: &(impl GenericClient + Sync),
        row: &Enqueued,
    ) -> Result<(), Error> {
        Intake::named(&self.shared.pool.place.schema).put(client, row).await
    }

    /// Carries out an operation that changes something.
    fn write<T, F>(
        &self,
        what: &'static str,
        operation: impl Fn(Arc<Shared>) -> F + Send + Sync + 'static,
    ) -> Answer<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Stop>> + Send + 'static,
    {
        self.counted(what, operation, |_, _| {})
    }

    /// The same, and counts the leases that it has granted or ended before anybody has the answer.
    fn counted<T, F>(
        &self,
        what: &'static str,
        operation: impl Fn(Arc<Shared>) -> F + Send + Sync + 'static,
        count: impl FnOnce(&Tallies, &abide_store::Result<T>) + Send + 'static,
    ) -> Answer<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Stop>> + Send + 'static,
    {
        let shared = Arc::clone(&self.shared);
        let attempt_count_max = shared.options.attempt_count_max;
        self.gate.answer(async move {
            let answer = repeated(attempt_count_max, what, || operation(Arc::clone(&shared))).await;
            count(&shared.tallies, &answer);
            answer
        })
    }

    /// Carries out an operation that only reads.
    fn read<T, F>(&self, what: &'static str, operation: impl FnOnce(Arc<Shared>) -> F) -> Answer<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Stop>> + Send + 'static,
    {
        let answer = operation(Arc::clone(&self.shared));
        self.gate.answer(async move { answer.await.map_err(|stop| stop.told(what, Kind::Reads)) })
    }

    /// Lines an operation up behind the others, on the thread of its caller. Its answer is counted
    /// before anybody has it.
    fn queue<T: Send + 'static>(
        &self,
        count: impl FnOnce(&Tallies, &abide_store::Result<T>) + Send + Sync + 'static,
        job: impl FnOnce(Reply<T>) -> Job,
    ) -> Answer<T> {
        let Some(visit) = self.gate.enter() else { return Answer::ready(Err(Error::Closed)) };
        let shared = Arc::clone(&self.shared);
        let (reply, told) = Reply::new(visit, Box::new(move |answer| count(&shared.tallies, answer)));
        self.batcher.put(job(reply));
        Answer::new(async move {
            told.await.unwrap_or_else(|source| {
                Err(Error::Indeterminate { what: "operation", source: source.into() })
            })
        })
    }

    /// Verifies everything: every journal, every state against the fold of its journal, every
    /// message, and that whatever has to wake an execution would. It reads some executions at a
    /// time, as they are at one moment, and blocks nobody.
    pub fn verify(&self) -> Answer<Verification> {
        self.read("verify", |shared| async move { verify::verify(&shared).await })
    }

    /// Closes the store. Operations that are under way are still answered, later ones are refused.
    pub fn close(&self) {
        self.shared.board.close();
        self.gate.close();
        self.shared.pool.close();
        self.gate.end();
    }
}

/// Prepares the schema, and the clock.
async fn prepare(place: &Place, options: &Options, clock: &dyn Clock) -> Result<(), OpenError> {
    let connection = schema::open(place, options).await?;
    // What cannot be asked now is asked again while the store works.
    let _ = server_clock::set(clock, &connection).await;
    Ok(())
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.close();
    }
}

impl Store for PostgresStore {
    fn submit(&self, submit: Submit) -> Answer<Submissions> {
        if submit.messages.is_empty() {
            return self.gate.answer(async { Ok(Submissions::new()) });
        }
        let asked = Asked::by_submit(&submit);
        let count = move |tallies: &Tallies, answer: &_| tallies.submitted(&asked, answer);
        self.queue(count, |reply| Job::Submit(submit, reply))
    }

    fn claim(&self, claim: Claim) -> Answer<Claimed> {
        let claim = Arc::new(claim);
        let operation = move |shared: Arc<Shared>| {
            let claim = Arc::clone(&claim);
            async move { apply::claim(&shared, &claim).await }
        };
        self.counted("claim", operation, Tallies::claimed)
    }

    fn commit(&self, commit: Commit) -> Answer<CommitOutcome> {
        let (key, asked) = (commit.key, Asked::by_commit(&commit));
        let count = move |tallies: &Tallies, answer: &_| tallies.committed(key, &asked, answer);
        self.queue(count, |reply| Job::Commit(Box::new(commit), reply))
    }

    fn set_aside(&self, aside: Aside) -> Answer<()> {
        let aside = Arc::new(aside);
        let ended = Arc::clone(&aside);
        let operation = move |shared: Arc<Shared>| {
            let aside = Arc::clone(&aside);
            async move { apply::set_aside(&shared, &aside).await }
        };
        self.counted("set aside", operation, move |tallies, answer| tallies.set_aside(&ended, answer))
    }

    fn register(&self, worker: Worker) -> Answer<Registered> {
        let worker = Arc::new(worker);
        self.write("register", move |shared| {
            let worker = Arc::clone(&worker);
            async move { apply::register(&shared, &worker).await }
        })
    }

    fn heartbeat(&self, beat: Beat) -> Answer<Heartbeat> {
        self.write("heartbeat", move |shared| async move { apply::heartbeat(&shared, &beat).await })
    }

    fn retire(&self, retire: Retire) -> Answer<()> {
        let retire = Arc::new(retire);
        self.write("retire", move |shared| {
            let retire = Arc::clone(&retire);
            async move { apply::retire(&shared, &retire).await }
        })
    }

    fn prune(&self, prune: Prune) -> Answer<u64> {
        self.write("prune", move |shared| async move { apply::prune(&shared, &prune).await })
    }

    fn import(&self, import: Import) -> Answer<Imported> {
        let import = Arc::new(import);
        self.write("import", move |shared| {
            let import = Arc::clone(&import);
            async move { apply::import(&shared, &import).await }
        })
    }

    fn take_in(&self, take_in: TakeIn) -> Answer<TakenIn> {
        self.write("take in", move |shared| async move { apply::take_in(&shared, take_in).await })
    }

    fn wait(&self, session: SessionId) -> Answer<Vec<Notice>> {
        Answer::new(self.shared.board.wait(session))
    }

    fn close(&self) {
        Self::close(self);
    }
}

impl View for PostgresStore {
    fn read(&self, read: Read) -> Answer<Option<Snapshot>> {
        Self::read(self, "read", |shared| async move { view::read(&shared, &read).await })
    }

    fn inbox(&self, inbox: InboxRead) -> Answer<InboxPage> {
        Self::read(self, "inbox", |shared| async move { view::inbox(&shared, &inbox).await })
    }

    fn list(&self, list: List) -> Answer<Listing> {
        Self::read(self, "list", |shared| async move { view::list(&shared, &list).await })
    }

    fn feed(&self, feed: Feed) -> Answer<FeedPage> {
        Self::read(self, "feed", |shared| async move { view::feed(&shared, &feed).await })
    }

    fn changed(&self) -> Answer<()> {
        Answer::new(self.shared.board.changed())
    }

    fn workers(&self, workers: Workers) -> Answer<Vec<WorkerRow>> {
        Self::read(self, "workers", |shared| async move { view::workers(&shared, &workers).await })
    }

    fn leases(&self, leases: Leases) -> Answer<LeasePage> {
        Self::read(self, "leases", |shared| async move { view::leases(&shared, &leases).await })
    }

    /// Nothing else is known before an operation fails, and then the server says why.
    fn trouble(&self) -> Answer<Option<Trouble>> {
        let since = self.shared.now();
        let lost = self.shared.pool.witness.lost().map(ToOwned::to_owned);
        let trouble = lost.map(|complaint| Trouble::Failing { since, complaint });
        self.gate.answer(async { Ok(trouble) })
    }
}
