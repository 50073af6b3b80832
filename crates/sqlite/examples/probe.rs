//! Measures the speed of this store on this machine, and that of SQLite itself.
//!
//! `cargo run --release -p abide-sqlite --example probe [folder]`

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use abide_core::{
    Ability, Address, Body, By, Command, ExecutionId, Kind, Message, MessageId, Name, Namespace, Op, OpKind,
    Outcome, Payload, SessionId, Start, StepRecord, Timestamp, codec,
};
use abide_sqlite::{Options, SqliteStore};
use abide_store::{
    Answer, Changes, Clock, Commit, CommitOutcome, ExecutionKey, Hold, Leased, Read, Record, Store,
    Submissions, Submit, Submitted, Target, View, Worker,
};

struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "a probe measures real time")]
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "/tmp/abide-probe".to_owned());
    let folder = Path::new(&folder);
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder).expect("the folder can be made");
    let raw = raw_commits(&folder.join("raw.db"));
    println!("raw single-row commits        {raw:>9.0} /s");
    let options = Options { wal_presized_at_open: true, ..Options::default() };
    let store =
        SqliteStore::open(&folder.join("abide.db"), Arc::new(SystemClock), options).expect("it opens");
    println!("resident after open           {:>9.1} MB", resident_mb());
    // The log is sized in the background.
    std::thread::park_timeout(Duration::from_millis(700));
    let session = register(&store).await;
    let single = single_commits(&store, session, 5_000).await;
    println!("single commits, alone         {single:>9.0} /s");
    let raw_after = raw_commits(&folder.join("raw2.db"));
    println!(
        "raw single-row commits, again {raw_after:>9.0} /s   ratio {:.2}",
        2.0 * single / (raw + raw_after)
    );
    for round in 0..3 {
        let before = writer_us();
        let rate = pairs(&store, session, (round, 20)).await;
        let used = (writer_us() - before) / 100_000.0;
        println!("start+finish, 5,000 at once   {rate:>9.0} /s   writer {used:.2} us each");
    }
    if std::env::args().nth(2).is_some_and(|only| only == "pairs") {
        return;
    }
    for (width, depth) in [(100, 100), (100, 5_000), (5_000, 40)] {
        let before = writer_us();
        let rate = grouped(&store, session, (width, depth)).await;
        let used = (writer_us() - before) / (width as f64 * f64::from(depth));
        println!("{width:>5} executions x {depth:>5} steps {rate:>9.0} /s   writer {used:.2} us each");
    }
    for count in [10_000, 1_000_000] {
        let key = long_journal(&store, session, count).await;
        for _ in 0..2 {
            println!("read {count:>9} entries        {:>9.1} ms", read_all(&store, key, count).await);
        }
    }
    let log = std::fs::metadata(folder.join("abide.db-wal")).map_or(0, |file| file.len());
    println!("log {:.0} MB, resident {:.1} MB", log as f64 / 1e6, resident_mb());
}

/// Returns the processor time of the writer's thread, in microseconds. Unlike the wall clock, it
/// does not depend on the other load of the machine.
fn writer_us() -> f64 {
    let mut used = 0.0;
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if name.starts_with("abide-sqlite-wr") {
            let schedule = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            used += schedule.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0);
        }
    }
    used / 1e3
}

fn raw_commits(path: &Path) -> f64 {
    let connection = rusqlite::Connection::open(path).expect("it opens");
    let set_up = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0;
        CREATE TABLE t (id INTEGER PRIMARY KEY, body BLOB);";
    connection.execute_batch(set_up).expect("it is set up");
    let log = path.with_extension("db-wal");
    let mut file = std::fs::OpenOptions::new().append(true).open(log).expect("there is a log");
    std::io::Write::write_all(&mut file, &vec![0; 64 << 20]).expect("it can be sized");
    file.sync_all().expect("it can be synced");
    let mut statement = connection.prepare("INSERT INTO t (body) VALUES (?1)").expect("it is prepared");
    let body = vec![7u8; 120];
    let timer = Timer::start();
    for _ in 0..5_000 {
        statement.execute([&body]).expect("it commits");
    }
    timer.rate(5_000)
}

struct Timer(Instant);

#[expect(clippy::disallowed_methods, reason = "a probe measures real time")]
impl Timer {
    fn start() -> Self {
        Self(Instant::now())
    }

    fn ms(&self) -> f64 {
        self.0.elapsed().as_secs_f64() * 1e3
    }

    fn rate(&self, count: usize) -> f64 {
        count as f64 / self.0.elapsed().as_secs_f64()
    }
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

async fn register(store: &Arc<SqliteStore>) -> SessionId {
    let ability = Ability {
        namespace: Namespace::default(),
        lanes: [name("default")].into(),
        runs: [(Kind::Workflow, name("probe"))].into(),
        capabilities: Default::default(),
        build: None,
    };
    let worker = Worker { name: name("probe"), ability, ttl: Duration::from_secs(600) };
    store.register(worker).await.expect("it registers").session
}

fn submit(store: &Arc<SqliteStore>, session: SessionId, (id, alone): (String, bool)) -> Answer<Submissions> {
    let start = Start::of(Kind::Workflow, name("probe"), Payload::from(vec![b'x'; 20]));
    let to = Address { namespace: Namespace::default(), id: ExecutionId::new(id).expect("an id") };
    let message = Message::new(MessageId::new("start"), to, By::client(), Body::Start(Arc::new(start)));
    store.submit(Submit { messages: vec![message], born_to: Some(session), alone, stretch: None })
}

fn born(mut submitted: Submissions) -> Leased {
    match submitted.pop() {
        Some(Submitted::Started(_, Some(leased))) => *leased,
        other => panic!("not born leased: {other:?}"),
    }
}

async fn start(store: &Arc<SqliteStore>, session: SessionId, id: String) -> Leased {
    born(submit(store, session, (id, true)).await.expect("it starts"))
}

fn commit(
    store: &Arc<SqliteStore>,
    leased: &mut Leased,
    (command, alone): (Command, bool),
) -> Answer<CommitOutcome> {
    let now = SystemClock.now();
    let decision = leased.execution.decide(command, now).expect("it may");
    let (entries, outgoing) = decision.record(&mut leased.execution, now);
    let expected = leased.version;
    leased.version = expected.next();
    store.commit(Commit {
        key: leased.key,
        lease: leased.lease,
        expected,
        changes: Arc::new(Changes {
            records: entries.iter().map(Record::of).collect(),
            next: None,
            state: codec::encode(&leased.execution),
            summary: leased.execution.summary(&[]),
            consumed: Vec::new(),
            outgoing: outgoing.into_iter().collect(),
        }),
        born_slots: 0,
        hold: Hold::Keep,
        transaction: None,
        alone,
    })
}

fn step(nth: u32) -> Command {
    let op = Op { kind: OpKind::Step, name: name("step"), key: None, nth };
    let outcome = Outcome::Success(Payload::from(vec![b'y'; 100]));
    Command::RecordStep(StepRecord { op, outcome, attempt: 1, input: None })
}

fn complete() -> Command {
    Command::Complete { result: Payload::from(vec![b'z'; 20]), unused: Vec::new() }
}

async fn settled(answer: Answer<CommitOutcome>) {
    match answer.await.expect("it is answered") {
        CommitOutcome::Committed(_) => {}
        CommitOutcome::Fenced(fence) => panic!("fenced: {fence}"),
    }
}

async fn single_commits(store: &Arc<SqliteStore>, session: SessionId, count: u32) -> f64 {
    let mut leased = start(store, session, "single".to_owned()).await;
    let timer = Timer::start();
    for nth in 1..=count {
        settled(commit(store, &mut leased, (step(nth), true))).await;
    }
    timer.rate(count as usize)
}

async fn pairs(store: &Arc<SqliteStore>, session: SessionId, (round, repeats): (usize, usize)) -> f64 {
    let timer = Timer::start();
    for repeat in 0..repeats {
        let starts: Vec<_> = (0..5_000)
            .map(|nth| submit(store, session, (format!("pair-{round}-{repeat}-{nth}"), false)))
            .collect();
        let mut ends = Vec::with_capacity(5_000);
        for answer in starts {
            let mut leased = born(answer.await.expect("it starts"));
            ends.push(commit(store, &mut leased, (complete(), false)));
        }
        for answer in ends {
            settled(answer).await;
        }
    }
    timer.rate(5_000 * repeats)
}

async fn grouped(store: &Arc<SqliteStore>, session: SessionId, (width, depth): (usize, u32)) -> f64 {
    let mut all = Vec::with_capacity(width);
    for nth in 0..width {
        all.push(submit(store, session, (format!("grouped-{width}-{depth}-{nth}"), false)));
    }
    let mut running = Vec::with_capacity(width);
    for answer in all {
        running.push(born(answer.await.expect("it starts")));
    }
    let timer = Timer::start();
    for nth in 1..=depth {
        let answers: Vec<_> =
            running.iter_mut().map(|leased| commit(store, leased, (step(nth), false))).collect();
        for answer in answers {
            settled(answer).await;
        }
    }
    timer.rate(width * depth as usize)
}

async fn long_journal(store: &Arc<SqliteStore>, session: SessionId, count: u32) -> ExecutionKey {
    let mut leased = start(store, session, format!("long-{count}")).await;
    let mut answers = std::collections::VecDeque::new();
    for nth in 1..count {
        answers.push_back(commit(store, &mut leased, (step(nth), false)));
        if answers.len() > 2_000
            && let Some(answer) = answers.pop_front()
        {
            settled(answer).await;
        }
    }
    for answer in answers {
        settled(answer).await;
    }
    leased.key
}

async fn read_all(store: &Arc<SqliteStore>, key: ExecutionKey, count: u32) -> f64 {
    let timer = Timer::start();
    let mut from = 1;
    loop {
        let read = Read { target: Target::Key(key), run: None, from, limit: 1_024, with_inbox: false };
        let page = store.read(read).await.expect("it reads").expect("it exists").journal;
        let Some(last) = page.last() else { break };
        from = last.seq + 1;
    }
    assert_eq!(from, u64::from(count) + 1);
    timer.ms()
}

fn resident_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or("");
    let kilobytes: f64 = line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).unwrap_or(0.0);
    kilobytes / 1e3
}
