//! Claims among rows that are dead, held, or many. Their cost is counted in pages, which are the
//! same on every machine. Time is compared too, with room for other work of the machine.

use std::sync::Arc;
use std::time::Duration;

use abide_store::conformance::TestClock;

use super::*;
use crate::Options;
use crate::board::Board;
use crate::crowd::{Crowd, Touched, counters};
use crate::follower;
use crate::horizon::Horizon;
use crate::pool::Pool;
use crate::routes::Routes;
use crate::tallies::{Beaten, Granted, Tallies, digest};
use crate::url::Place;

/// How many claims are compared.
const CLAIM_COUNT: usize = 40;

/// Executions that are ready, in one route: the first of them for the longest time.
const READY: &str = "
WITH e AS (
    INSERT INTO executions (
        key, ns, id, route, rank, session, request, is_care, given_beat, epoch, version, run, status, listens,
        aside, is_child, created_at, takeovers, summary, state
    )
    SELECT n, 'default', 'id ' || n, 1, 0, NULL, 0, FALSE, 0, 0, 0, 1, 1, 2, FALSE, FALSE, n, 0, 'summary', 'state'
    FROM generate_series($1::BIGINT, $2::BIGINT) n
    RETURNING key
)
INSERT INTO wakes (execution, route, rank, since, message, needs)
SELECT key, 1, 0, key, '', 0
FROM e
ORDER BY key";

const SESSION: &str = "
INSERT INTO sessions (
    id, ns, name, ability, ttl_us, registered_at, expires_at, died, released, draining, beat_count, taken
)
VALUES (7, 'default', 'worker', '', 1, 0, 9000000000000000, FALSE, FALSE, FALSE, 0, 0)";

/// Messages for executions that somebody holds.
const HELD_BY_OTHERS: &str = "
UPDATE executions
SET session = 8
WHERE key BETWEEN $1::BIGINT AND $2::BIGINT";

/// A process with one session, on a schema of its own.
struct Process {
    connection: Connection,
    shared: Shared,
    /// Last: its schema can go when nobody has it open.
    crowd: Crowd,
}

impl Process {
    fn new() -> Self {
        let crowd = Crowd::of(0);
        crowd.run(SESSION);
        let place = Place::parse(&crowd.url, 5_000).expect("the URL of the server is right");
        let shared = Shared {
            pool: Pool::new(place, 1, TestClock::new()),
            clock: TestClock::new(),
            options: Options::default(),
            routes: Routes::default(),
            board: Arc::new(Board::new(9)),
            horizon: Horizon::default(),
            looks: follower::Looks::default(),
            tallies: Tallies::default(),
            steps: tokio::sync::Semaphore::new(1),
            stash: crate::stash::Stash::default(),
        };
        let connection = crowd.connect();
        Self { connection, shared, crowd }
    }

    fn change(&self, statement: &'static str, (from, to): (i64, i64)) {
        self.crowd.wait(self.connection.change(statement, &[&from, &to])).expect("the statement is right");
    }

    /// Claims as `claim` does, but for the reading of the executions, and returns their keys.
    async fn claim_on(&self, connection: &Connection, slots: usize) -> Vec<i64> {
        let (now, session) = (self.shared.now(), SessionId(7));
        let ability = Ability {
            namespace: abide_core::Namespace::default(),
            lanes: [].into(),
            runs: [].into(),
            capabilities: [].into(),
            build: None,
        };
        let walk = begin(&self.shared, connection, &[1]).await.expect("it begins");
        let (shared, asides, request) = (&self.shared, Mutex::default(), 1);
        let claimer = Claimer { shared, connection, session, request, ability, now, walk, asides };
        let keys = claimer.lease_some(slots).await.expect("it claims");
        claimer.complete(false, &mut Claimed::default()).await.expect("it ends");
        keys
    }

    fn claim(&self, slots: usize) -> Vec<i64> {
        self.crowd.wait(self.claim_on(&self.connection, slots))
    }

    /// Returns the pages of the most expensive of some claims, and the time of the median.
    fn cost(&self) -> Touched {
        let mut all: Vec<Touched> = (0..CLAIM_COUNT)
            .map(|_| {
                let claim = async { assert_eq!(self.claim_on(&self.connection, 16).await.len(), 16) };
                self.crowd.wait(Crowd::spent(&self.connection, claim))
            })
            .collect();
        all.sort_by_key(|touched| touched.took);
        let took = all[CLAIM_COUNT / 2].took;
        all.sort_by_key(|touched| touched.pages);
        Touched { took, ..all[CLAIM_COUNT - 1] }
    }
}

/// Checks that a cost is at most so many times another one.
fn check(cost: Touched, (times, quiet): (u32, Touched)) {
    println!("{cost:?}, quiet {quiet:?}");
    assert!(cost.pages <= i64::from(times) * quiet.pages, "{cost:?} is more than {times} times {quiet:?}");
    let room = Duration::from_millis(10);
    assert!(cost.took <= times * quiet.took + room, "{cost:?} is more than {times} times {quiet:?}");
}

/// Somebody's snapshot is so old that no deleted wake goes.
fn claims_behind_an_old_snapshot(count: i64) {
    let process = Process::new();
    process.change(READY, (1, count + 2_000));
    process.claim(16);
    let quiet = process.cost();
    let other = process.crowd.connect();
    process.crowd.wait(async {
        other.run("BEGIN ISOLATION LEVEL REPEATABLE READ").await.expect("it begins");
        other.run("SELECT FROM wakes LIMIT 1").await.expect("it has a snapshot");
    });
    let mut claimed = 0;
    while claimed < count {
        let keys = process.claim(256);
        assert_eq!(keys.len(), 256, "all are ready");
        claimed += 256;
    }
    check(process.cost(), (3, quiet));
}

#[test]
fn an_old_snapshot_does_not_slow_claims() {
    claims_behind_an_old_snapshot(100_000);
}

/// The wakes of ten thousand executions that are held stand before all others.
#[test]
fn wakes_of_what_others_hold_do_not_slow_claims() {
    let process = Process::new();
    process.change(READY, (10_001, 20_000));
    process.claim(16);
    let quiet = process.cost();
    process.change(READY, (1, 10_000));
    process.change(HELD_BY_OTHERS, (1, 10_000));
    process.shared.board.floors.forget();
    process.claim(16);
    check(process.cost(), (3, quiet));
}

#[test]
fn a_long_queue_does_not_slow_claims() {
    let process = Process::new();
    process.change(READY, (1, 1_000));
    process.claim(16);
    let short = process.cost();
    process.change(READY, (1_001, 100_000));
    check(process.cost(), (2, short));
}

/// A wake is dated before all others and committed after they were claimed. No notice comes. The
/// walk of the slow poll finds it, and that of no claim does.
#[test]
fn a_wake_that_is_committed_late_is_found_by_the_slow_poll() {
    let process = Process::new();
    process.change(READY, (100, 120));
    process.claim(9);
    let late = process.crowd.connect();
    process.crowd.wait(async {
        late.run(sql::BEGIN).await.expect("it begins");
        late.change(READY, &[&1_i64, &1_i64]).await.expect("it is written");
    });
    assert_eq!(process.claim(99).len(), 12, "all that others see");
    process.crowd.wait(late.run(sql::COMMIT)).expect("it ends");
    assert_eq!(process.claim(99), Vec::<i64>::new(), "the floor has passed it");
    let is_ready = process.crowd.wait(follower::walk(&process.shared)).expect("it walks");
    assert!(is_ready, "somebody has to claim");
    assert_eq!(process.claim(99), [1]);
}

/// The same, in a rank and in a route that this process has never seen.
#[test]
fn a_wake_in_a_new_queue_is_found_by_the_slow_poll() {
    let process = Process::new();
    process.change(READY, (1, 1));
    assert_eq!(process.claim(9), [1]);
    process.change(READY, (2, 3));
    process
        .crowd
        .run("UPDATE executions SET rank = -5 WHERE key = 2; UPDATE wakes SET rank = -5 WHERE execution = 2");
    process.crowd.wait(follower::walk(&process.shared)).expect("it walks");
    assert_eq!(process.claim(9), [2, 3], "the higher rank comes first");
}

/// Executions that somebody else has locked stay behind the floor: they are claimed when that claim
/// is undone.
#[test]
fn a_floor_does_not_pass_what_somebody_has_locked() {
    let process = Process::new();
    process.change(READY, (1, 40));
    let other = process.crowd.connect();
    process.crowd.wait(async {
        other.run(sql::BEGIN).await.expect("it begins");
        other.run("SELECT FROM executions WHERE key <= 16 FOR UPDATE").await.expect("they are free");
    });
    assert_eq!(process.claim(16), (17..=32).collect::<Vec<_>>());
    process.crowd.wait(other.run(sql::ROLLBACK)).expect("it is undone");
    assert_eq!(process.claim(16), (1..=16).collect::<Vec<_>>());
}

/// How many executions a session holds.
const HELD_COUNT: i64 = 100_000;

/// A session that holds this many executions.
const HELD_BY_SESSION: &str = "
UPDATE executions
SET session = 7, epoch = 1
WHERE key BETWEEN $1::BIGINT AND $2::BIGINT";

/// Returns the pages that a heartbeat touches whose session believes in this digest.
async fn cost_of_heartbeat(shared: &Shared, believed: abide_core::Digest) -> (i64, abide_store::Heartbeat) {
    // The pool has one connection, which stays in the transaction.
    let before = {
        let connection = shared.pool.take().await.expect("the server can be reached");
        connection.run(sql::BEGIN).await.expect("it begins");
        counters(&connection).await
    };
    let beat = abide_store::Beat { session: SessionId(7), digest: Some(believed), is_draining: false };
    let answer = session::heartbeat(shared, &beat).await.expect("it is answered");
    let connection = shared.pool.take().await.expect("the server can be reached");
    let after = counters(&connection).await;
    connection.run(sql::COMMIT).await.expect("it ends");
    (after.1 - before.1, answer)
}

/// It reads none of the leases, as long as both sides count the same.
#[test]
fn a_heartbeat_of_many_leases_touches_one_row() {
    let process = Process::new();
    process.change(READY, (1, HELD_COUNT));
    process.change(HELD_BY_SESSION, (1, HELD_COUNT));
    let held = (1..=HELD_COUNT).map(|key| Granted {
        key: ExecutionKey(rows::unsigned(key)),
        epoch: abide_core::Epoch(1),
        given_beat: 0,
    });
    let (held, shared) = (held.collect::<Vec<_>>(), &process.shared);
    let believed = digest(held.iter());
    shared.tallies.open(SessionId(7));
    shared.tallies.begin(SessionId(7), &held, &Beaten { beat_count: 5, taken: 0 });
    process.crowd.run("UPDATE sessions SET beat_count = 5");
    let agreed = |answer| {
        let found = abide_store::Agreement::Agreed;
        matches!(answer, abide_store::Heartbeat::Refreshed { leases, .. } if leases == found)
    };
    for _ in 0..3 {
        let (pages, answer) = process.crowd.wait(cost_of_heartbeat(shared, believed));
        assert!(pages < 20, "{pages} pages");
        assert!(agreed(answer), "they agree");
    }
    let (pages, answer) = process.crowd.wait(cost_of_heartbeat(shared, digest(held[1..].iter())));
    assert!(pages > 1_000, "a difference is looked for in the leases: {pages} pages");
    assert!(!agreed(answer), "one lease is not known");
    let (pages, answer) = process.crowd.wait(cost_of_heartbeat(shared, believed));
    assert!(pages < 20 && agreed(answer), "{pages} pages");
}
