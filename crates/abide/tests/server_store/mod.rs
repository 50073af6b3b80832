//! A store on a PostgreSQL server for tests with virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use abide_core::SessionId;
use abide_postgres::{Options, PostgresStore};
use abide_store::conformance::block_on;
use abide_store::{
    Answer, Aside, Beat, Claim, Claimed, Clock, Commit, CommitOutcome, Feed, FeedPage, Heartbeat, Import,
    Imported, InboxPage, InboxRead, LeasePage, Leases, List, Listing, Notice, Prune, Read, Registered,
    Result, Retire, Snapshot, Store, Submissions, Submit, TakeIn, TakenIn, Trouble, View, Worker, WorkerRow,
    Workers,
};
use tokio_postgres::NoTls;

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Returns a store in a schema of its own, which goes with it.
pub(crate) fn postgres(clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    let missing = "the tests of promises on PostgreSQL need a server: run them as `cargo xtask postgres -- cargo \
                   test …`, or set ABIDE_TEST_POSTGRES to the URL of one";
    let server = std::env::var("ABIDE_TEST_POSTGRES").unwrap_or_else(|_| panic!("{missing}"));
    let number = NUMBER.fetch_add(1, Ordering::Relaxed).to_string();
    let schema = ["abide_promise", &std::process::id().to_string(), &number].join("_");
    let separator = if server.contains('?') { "&" } else { "?" };
    let url = [&server, separator, "schema=", &schema].concat();
    let inner = PostgresStore::open(&url, clock, Options::default()).expect("the store can be opened");
    Arc::new(ServerStore { inner, server, schema })
}

/// Answers in the same moment of virtual time: the world stands still while the server works.
struct ServerStore {
    inner: Arc<PostgresStore>,
    server: String,
    schema: String,
}

fn at_once<T: Send + 'static>(answer: Answer<T>) -> Answer<T> {
    let answered: Result<T> = block_on(answer);
    Answer::ready(answered)
}

impl Drop for ServerStore {
    fn drop(&mut self) {
        self.inner.close();
        let (server, schema) = (self.server.clone(), self.schema.clone());
        // The caller may be on a runtime, where nobody may block.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.expect("a runtime can be made").block_on(forget(&server, &schema));
            });
        });
    }
}

async fn forget(server: &str, schema: &str) {
    let (client, connection) = tokio_postgres::connect(server, NoTls).await.expect("the server is there");
    let work = async {
        client.query("SELECT set_config('abide.schema', $1, FALSE)", &[&schema]).await.expect("a setting");
        let drop = "DO $$ BEGIN EXECUTE pg_catalog.format('DROP SCHEMA %I CASCADE', \
                    current_setting('abide.schema')); END $$";
        client.batch_execute(drop).await.expect("the schema is ours");
    };
    tokio::select! {
        () = work => {}
        _ = connection => panic!("the connection has ended"),
    }
}

impl Store for ServerStore {
    fn submit(&self, submit: Submit) -> Answer<Submissions> {
        at_once(self.inner.submit(submit))
    }

    fn claim(&self, claim: Claim) -> Answer<Claimed> {
        at_once(self.inner.claim(claim))
    }

    fn commit(&self, commit: Commit) -> Answer<CommitOutcome> {
        at_once(self.inner.commit(commit))
    }

    fn set_aside(&self, aside: Aside) -> Answer<()> {
        at_once(self.inner.set_aside(aside))
    }

    fn register(&self, worker: Worker) -> Answer<Registered> {
        at_once(self.inner.register(worker))
    }

    fn heartbeat(&self, beat: Beat) -> Answer<Heartbeat> {
        at_once(self.inner.heartbeat(beat))
    }

    fn retire(&self, retire: Retire) -> Answer<()> {
        at_once(self.inner.retire(retire))
    }

    fn prune(&self, prune: Prune) -> Answer<u64> {
        at_once(self.inner.prune(prune))
    }

    fn import(&self, import: Import) -> Answer<Imported> {
        at_once(self.inner.import(import))
    }

    fn take_in(&self, take_in: TakeIn) -> Answer<TakenIn> {
        at_once(self.inner.take_in(take_in))
    }

    fn wait(&self, session: SessionId) -> Answer<Vec<Notice>> {
        self.inner.wait(session)
    }

    fn close(&self) {
        Store::close(&*self.inner);
    }
}

impl View for ServerStore {
    fn read(&self, read: Read) -> Answer<Option<Snapshot>> {
        at_once(View::read(&*self.inner, read))
    }

    fn inbox(&self, inbox: InboxRead) -> Answer<InboxPage> {
        at_once(self.inner.inbox(inbox))
    }

    fn list(&self, list: List) -> Answer<Listing> {
        at_once(self.inner.list(list))
    }

    fn feed(&self, feed: Feed) -> Answer<FeedPage> {
        at_once(self.inner.feed(feed))
    }

    fn changed(&self) -> Answer<()> {
        self.inner.changed()
    }

    fn workers(&self, workers: Workers) -> Answer<Vec<WorkerRow>> {
        at_once(self.inner.workers(workers))
    }

    fn leases(&self, leases: Leases) -> Answer<LeasePage> {
        at_once(self.inner.leases(leases))
    }

    fn trouble(&self) -> Answer<Option<Trouble>> {
        self.inner.trouble()
    }
}
