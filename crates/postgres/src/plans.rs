//! Every statement is planned while the database is almost empty, and stays good when it is full.
//!
//! A server keeps the plan of a prepared statement. Here the tables are small and analyzed when the
//! plans are made, and 200,000 executions are there when they are used.

use std::time::Duration;

use tokio_postgres::types::{ToSql, Type};

use crate::connection::Connection;
use crate::crowd::Crowd;
use crate::sheet::{
    Care, ConsumedRow, FeedRow, InboxRow, JournalRow, Newborn, SeenRow, Sheet, TagRow, Update, Wake,
};
use crate::sql;

/// How many executions are there at the end.
const FULL: i64 = 200_000;

/// How many rows a statement may touch, and how long it may take, in the best of some tries. The
/// largest pages have 256 rows, and a row of a page may need some of other tables.
const MOST: Cost = Cost { rows: 2_000, took: Duration::from_millis(50) };

/// The same for the claim of 256, which looks at 384 executions of each of sixteen routes.
const MOST_OF_CLAIM: Cost = Cost { rows: 25_000, took: Duration::from_millis(400) };

/// The first executions, which are held, and which the parameters name.
const COUNT: i64 = 16;

macro_rules! statements {
    ($($name:ident)*) => {
        [$((stringify!($name), sql::$name),)*]
    };
}

/// The statements that read or write the store's tables. Those that write sheets are tried with
/// sheets.
const STATEMENTS: &[(&str, &str)] = &statements![
    LEASE_FEW LEASE_MANY GIVE_BACK LEASES_OF_REQUEST FRONTS SURVEY LOOK GLANCE CARE_NEXT CARE_LOOK CARE_LEASE
    CARE_LATER MAIL LEASED KEYS TARGETS COMMITTERS COMMITTER_LOCK LAST_RECORD HEADS OFFERS ROUTES_NEW
    ROUTE_INSERT ROUTE ROUTES_BY_ID SESSION_INSERT SESSION LAST_REQUEST SESSION_EXTEND LEASES_ALL SESSION_RETIRE
    SESSION_EXPIRE SESSIONS_OVER SESSION_DIED SESSION_RELEASED HELD_LOCK HELD RELEASE LEASE_LOCK SET_ASIDE
    WORKERS LEASES LEASE_OF SNAPSHOT_BY_KEY SNAPSHOT_BY_ID JOURNAL INBOX LIST_OLDEST LIST_NEWEST
    LIST_CHILDREN_OLDEST LIST_CHILDREN_NEWEST LIST_ASIDE_OLDEST LIST_ASIDE_NEWEST LIST_TAGGED_OLDEST
    LIST_TAGGED_NEWEST KEY_BY_ID
    FEED_END FEED_WRITERS FEED PRUNE_OLD PRUNE_LOCK PRUNE PRUNE_SESSIONS RETRY_CLEAR KNOWN_MESSAGE
    IMPORT_ROW VERIFY_EXECUTIONS VERIFY_JOURNAL VERIFY_INBOX VERIFY_ROUTES
    INTAKE_ROWS INTAKE_LOCK INTAKE_FIRST INTAKE_TAKE INTAKE_REFUSE INTAKE_ANY REFUSALS_NEWEST REFUSALS_PRUNE
    VERIFY_REFUSALS
];

/// Statements that touch no table, and one that reads all of them: `verify` looks for rows that
/// belong to nothing.
const OTHERS: &[&str] =
    &["APPLY", "APPENDS", "ENDS", "STARTS", "LISTEN", "NOTIFY", "BACKEND", "VERIFY_ORPHANS", "INTAKE_BEGIN"];

/// A claim as one would write it first: it joins two tables, and has its limit in a parameter.
const NAIVE_CLAIM: &str = "
SELECT e.key
FROM wakes w
JOIN executions e ON e.key = w.execution
WHERE w.route = ANY($1::INT[]) AND e.session IS NULL
ORDER BY w.rank, w.since
LIMIT $2";

/// Returns a value for a parameter of this type. A number is the first of `COUNT` executions, and a
/// list has all of them.
fn value(of: &Type) -> Box<dyn ToSql + Sync> {
    let many = || 1..=COUNT;
    match *of {
        Type::INT8 => Box::new(1_i64),
        Type::INT4 => Box::new(1_i32),
        Type::INT2 => Box::new(1_i16),
        Type::BOOL => Box::new(false),
        Type::TEXT => Box::new("default".to_owned()),
        Type::BYTEA => Box::new(Vec::from(*b"route 1")),
        Type::INT8_ARRAY => Box::new(many().collect::<Vec<i64>>()),
        Type::INT4_ARRAY => Box::new((1..=16).collect::<Vec<i32>>()),
        Type::BYTEA_ARRAY => Box::new(vec![Vec::from(*b"refused")]),
        Type::INT2_ARRAY => Box::new(vec![0_i16]),
        Type::BOOL_ARRAY => Box::new(many().map(|_| true).collect::<Vec<bool>>()),
        Type::TEXT_ARRAY => Box::new(many().map(|n| ["m ", &n.to_string()].concat()).collect::<Vec<_>>()),
        _ => panic!("nobody has thought of parameters of type {of}"),
    }
}

/// Returns the values of parameters that mean something else than the first executions: times that
/// have come, limits, ids.
fn special(name: &str) -> Vec<(usize, Box<dyn ToSql + Sync>)> {
    let texts = |text: &str| (0..COUNT).map(|_| text.to_owned()).collect::<Vec<_>>();
    let ids = || (1..=COUNT).map(|n| ["id ", &n.to_string()].concat()).collect::<Vec<_>>();
    let page = || Box::new(256_i64);
    let ranks = || vec![0_i32; 16];
    let claim = |place: usize, count: i64| -> Vec<(usize, Box<dyn ToSql + Sync>)> {
        vec![(place, Box::new(count)), (4, Box::new(FULL / 2)), (6, Box::new(ranks()))]
    };
    match name {
        "LEASE_FEW" => claim(3, 16),
        "LEASE_MANY" => claim(3, 256),
        "FRONTS" => vec![(1, Box::new(ranks())), (4, Box::new(FULL / 2))],
        "TARGETS" => vec![(0, Box::new(texts("default"))), (1, Box::new(ids()))],
        "SNAPSHOT_BY_ID" | "KEY_BY_ID" => vec![(1, Box::new("id 5".to_owned()))],
        "FEED" => vec![(0, Box::new(FULL / 2)), (1, Box::new(FULL)), (2, page())],
        "JOURNAL" => vec![(3, page()), (4, Box::new(1_i64 << 20))],
        "INBOX" => vec![(1, Box::new(0_i64)), (2, page()), (3, Box::new(1_i64 << 20))],
        _ if name.starts_with("LIST_") => {
            let is_of = |part: &str| name.contains(part);
            let tag = |text: &str| if is_of("TAGGED") { vec![text.to_owned()] } else { Vec::new() };
            vec![
                (1, Box::new(if is_of("CHILDREN") { 0 } else { FULL / 2 })),
                (3, Box::new(None::<Vec<i32>>)),
                (4, Box::new(tag("customer"))),
                (5, Box::new(tag("one of many"))),
                (6, Box::new(is_of("CHILDREN").then_some(9_i64))),
                (7, Box::new(is_of("CHILDREN").then_some(1_i32))),
                (8, Box::new(is_of("ASIDE"))),
                (9, page()),
            ]
        }
        "PRUNE_OLD" => vec![(0, Box::new(FULL)), (1, page())],
        "LEASES" => vec![(2, page())],
        "INTAKE_ROWS" => vec![(0, page()), (1, Box::new(16_i64 << 20))],
        "REFUSALS_NEWEST" => vec![(0, page())],
        "LEASED" => vec![(1, page()), (2, page()), (3, page()), (4, page())],
        _ => Vec::new(),
    }
}

/// The rows that a statement has touched on the way to its answer, and how long the answer took.
#[derive(Debug)]
struct Cost {
    rows: i64,
    took: Duration,
}

async fn cost(connection: &Connection, name: &str, text: &'static str) -> Cost {
    let prepared = connection.client.prepare(text).await.expect("it can be prepared");
    let mut values: Vec<_> = prepared.params().iter().map(value).collect();
    for (place, value) in special(name) {
        values[place] = value;
    }
    let parameters: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| &**value).collect();
    let run = async || {
        let rows = connection.rows(text, &parameters).await;
        rows.unwrap_or_else(|error| panic!("{name}: {error:?}"));
    };
    cost_of(connection, run).await
}

/// Rows are always the same. Time is the best of three tries, because others have work too.
async fn cost_of(connection: &Connection, run: impl AsyncFn()) -> Cost {
    let mut cost = Cost { rows: 0, took: Duration::MAX };
    for _ in 0..3 {
        let touched = Crowd::touched(connection, run()).await;
        (cost.rows, cost.took) = (touched.rows, cost.took.min(touched.took));
    }
    cost
}

/// Everything that commits and submits write at once, for the first executions.
fn sheet() -> Sheet {
    let mut sheet = Sheet::default();
    for key in 1..=COUNT {
        let (execution, message) = (key, ["m ", &key.to_string()].concat());
        commit(&mut sheet, key, key % 2 == 0);
        item(&mut sheet, key);
        sheet.consumed.push(ConsumedRow { execution, strict: true, id: message.clone() });
        sheet.wakes_seen.push(SeenRow { execution, message: message.clone() });
        sheet.cares_seen.push(SeenRow { execution, message });
        message_to(&mut sheet, key + 1_000);
        newborn(&mut sheet, key + 10 * FULL);
        sheet.tags.push(TagRow {
            execution: key + 10 * FULL,
            key: "customer".to_owned(),
            value: "new".to_owned(),
        });
    }
    sheet
}

/// What the lean statements write, for the first executions.
fn lean_sheets() -> [(&'static str, Sheet); 3] {
    let mut sheets = [Sheet::default(), Sheet::default(), Sheet { is_unseen: true, ..Sheet::default() }];
    let [appends, ends, starts] = &mut sheets;
    for key in 1..=COUNT {
        commit(appends, key, true);
        commit(ends, key, key % 2 == 0);
        item(ends, key);
        newborn(starts, key + 20 * FULL);
    }
    let [appends, ends, starts] = sheets;
    [("APPENDS", appends), ("ENDS", ends), ("STARTS", starts)]
}

fn commit(sheet: &mut Sheet, key: i64, keeps: bool) {
    sheet.updates.push(Update {
        key,
        epoch: key,
        version: key,
        session: key,
        version_step: 1,
        run_step: 0,
        status: 1,
        listens: 2,
        wake_at: None,
        care_at: None,
        keeps_care: keeps,
        keeps_lease: keeps,
        ends_suspicion: false,
        finished_at: None,
        clears: !keeps,
        summary: Some(Vec::new()),
        state: Some(Vec::new()),
    });
    let (execution, gate, run, run_step) = (key, key, None, 0);
    sheet.journal.push(JournalRow { execution, gate, run, run_step, seq: 9, count: 1, body: Vec::new() });
}

fn item(sheet: &mut Sheet, execution: i64) {
    let (gate, run, run_step, at) = (execution, None, 0, 0);
    sheet.feed.push(FeedRow { execution, gate, run, run_step, at, happening: 1, is_end: false });
}

fn message_to(sheet: &mut Sheet, execution: i64) {
    let (id, gate, strict) = ("new".to_owned(), None, true);
    sheet.inbox.push(InboxRow { execution, gate, strict, id: id.clone(), sort: 0, body: Some(Vec::new()) });
    let (route, rank, since, needs) = (1, 0, 0, 2);
    sheet.wakes.push(Wake { execution, gate, route, rank, since, message: id.clone(), needs });
    let (ns, at) = ("default".to_owned(), 0);
    sheet.cares.push(Care { execution, gate, ns, at, message: id, while_held: true });
}

fn newborn(sheet: &mut Sheet, key: i64) {
    let id = ["id ", &key.to_string()].concat();
    sheet.newborns.push(Newborn {
        key,
        gate: None,
        strict: true,
        ns: "default".to_owned(),
        id,
        route: 1,
        rank: 0,
        session: Some(1),
        epoch: 1,
        status: 1,
        listens: 2,
        wake_at: None,
        care_at: None,
        parent: None,
        parent_run: None,
        is_child: false,
        tags: None,
        summary: Vec::new(),
        state: Vec::new(),
    });
}

async fn cost_of_sheet(connection: &Connection, sheet: &Sheet) -> Cost {
    let run = async || {
        sheet.write(connection, 1).await.expect("it is written");
    };
    cost_of(connection, run).await
}

/// Plans everything on `count` executions, and reports the statements that are slow on many.
fn slow_statements(count: i64) -> Vec<String> {
    let mut crowd = Crowd::of(count);
    let connection = crowd.connect();
    crowd.wait(async {
        for (name, text) in STATEMENTS {
            cost(&connection, name, text).await;
        }
        // It fails where the executions are missing. The plan is made all the same.
        connection.run(sql::BEGIN).await.expect("a transaction begins");
        let _ = sheet().write(&connection, 1).await;
        connection.run(sql::ROLLBACK).await.expect("a transaction ends");
        for (name, sheet) in lean_sheets() {
            connection.run(sql::BEGIN).await.expect("a transaction begins");
            sheet.write(&connection, 1).await.unwrap_or_else(|error| panic!("{name}: {error:?}"));
            connection.run(sql::ROLLBACK).await.expect("a transaction ends");
        }
    });
    crowd.grow(count + 1, FULL);
    crowd.wait(async {
        let mut slow = Vec::new();
        let mut judge = |name: &str, cost: Cost| {
            println!("{name:20} {:8} rows {:?}", cost.rows, cost.took);
            let most = if name == "LEASE_MANY" { MOST_OF_CLAIM } else { MOST };
            if cost.rows > most.rows || cost.took > most.took {
                slow.push(format!("{name}: {cost:?}"));
            }
        };
        for (name, text) in STATEMENTS {
            judge(name, cost(&connection, name, text).await);
        }
        judge("APPLY", cost_of_sheet(&connection, &sheet()).await);
        for (name, sheet) in lean_sheets() {
            judge(name, cost_of_sheet(&connection, &sheet).await);
        }
        slow
    })
}

#[test]
fn plans_of_an_empty_database_are_good_for_a_full_one() {
    assert_eq!(slow_statements(0), Vec::<String>::new());
}

#[test]
fn plans_of_three_executions_are_good_for_many() {
    assert_eq!(slow_statements(3), Vec::<String>::new());
}

#[test]
fn plans_of_forty_executions_are_good_for_many() {
    assert_eq!(slow_statements(40), Vec::<String>::new());
}

/// What these tests count grows with the table when a statement is naive.
#[test]
fn a_naive_claim_touches_everything() {
    let mut crowd = Crowd::of(40);
    let connection = crowd.connect();
    let routes: Vec<i32> = (1..=8).collect();
    let claim = async || {
        connection.rows(NAIVE_CLAIM, &[&routes, &16_i64]).await.expect("it is right");
    };
    crowd.wait(claim());
    crowd.grow(41, FULL / 4);
    let touched = crowd.wait(Crowd::touched(&connection, claim()));
    assert!(touched.rows > MOST.rows, "{touched:?}");
}

/// Every statement of the sources is planned here.
#[test]
fn no_statement_is_left_out() {
    let sources = [
        include_str!("sql/apply.rs"),
        include_str!("sql/claim.rs"),
        include_str!("sql/facts.rs"),
        include_str!("sql/intake.rs"),
        include_str!("sql/lean.rs"),
        include_str!("sql/sessions.rs"),
        include_str!("sql/verify.rs"),
        include_str!("sql/view.rs"),
    ];
    let named = sources.iter().flat_map(|source| source.lines()).filter_map(|line| {
        let (name, _) = line.strip_prefix("pub(crate) const ")?.split_once(": &str")?;
        Some(name)
    });
    let is_known = |name: &&str| OTHERS.contains(name) || STATEMENTS.iter().any(|(known, _)| known == name);
    let missing: Vec<&str> = named.filter(|name| !is_known(name)).collect();
    assert_eq!(missing, Vec::<&str>::new());
}
