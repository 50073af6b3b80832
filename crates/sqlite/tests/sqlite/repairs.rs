//! Everything derivable is restored: a damaged store becomes as it was, or reports the differences.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use abide_core::{Block, Body, By, Command, Epoch, Message, Parent, Start, Summary, Tag, Waiting};
use abide_sqlite::{MessagesDropped, SqliteStore};
use abide_store::conformance::block_on;
use abide_store::{Changes, Clock, Commit, Hold, Store};
use rusqlite::types::ValueRef;

use crate::fixture::{
    Fixture, Held, Seat, address, complete, damaged, flow, kid, message, name, signal, start, step, submit,
};

/// Sends a commit that removes its execution from memory, with this summary.
fn park(seat: &Seat, commit: Commit, summary: Summary) {
    let changes = Changes { summary, ..(*commit.changes).clone() };
    let hold = Hold::Park { seen: Vec::new() };
    block_on(seat.store.commit(Commit { changes: Arc::new(changes), hold, ..commit })).expect("it is parked");
}

fn go() -> Waiting {
    Waiting::Signal { name: name("go"), until: None }
}

fn child_of(parent: &str) -> Message {
    let parent = Some(Parent::new(address(parent).id, 1, kid().child_result(), 2));
    message("start", "child", Body::Start(Start { parent, ..flow() }.into()))
}

/// Returns a store with one execution of each kind. No worker holds any of them.
pub(super) fn world(fixture: &Fixture) -> Arc<SqliteStore> {
    let store = fixture.open();
    let mut seat = fixture.seat(&store);
    // Another namespace, and another route.
    let mut elsewhere = start("elsewhere");
    elsewhere.to.namespace = abide_core::Namespace::new("other").expect("a namespace");
    submit(&store, vec![elsewhere]).expect("it is taken");
    let later = Start { start_at: Some(fixture.clock.now().after(Duration::from_secs(99))), ..flow() };
    submit(&store, vec![message("start", "scheduled", Body::Start(later.into()))]).expect("it is taken");
    let mut waiting = seat.born("waiting");
    let commit = seat.draft(&mut waiting, vec![step(1)]);
    park(&seat, commit, waiting.execution.summary(&[go()]));
    let mut sleeping = seat.born("sleeping");
    let until = fixture.clock.now().after(Duration::from_secs(50));
    let commit = seat.draft(&mut sleeping, vec![step(1)]);
    park(&seat, commit, sleeping.execution.summary(&[Waiting::Sleep { until }]));
    let mut paused = seat.born("paused");
    let pause = Command::Pause { by: By::client(), reason: "wait".to_owned() };
    let commit = seat.draft(&mut paused, vec![step(1), pause]);
    park(&seat, commit, Summary { cared_epoch: Some(Epoch(1)), ..paused.execution.summary(&[]) });
    let mut blocked = seat.born("blocked");
    let block = Command::block(Block::Limit { reason: "too long".to_owned() }).found_by(&name("a build"));
    let commit = seat.draft(&mut blocked, vec![step(1), block]);
    park(&seat, commit, blocked.execution.summary(&[]));
    let tags = vec![Tag { key: name("customer"), value: name("c7") }];
    let tagged = message("start", "ended", Body::Start(Start { tags, ..flow() }.into()));
    submit(&store, vec![tagged, signal("read", "ended")]).expect("they are taken");
    let leased = seat.claim(false).leased;
    let mut ended = leased.into_iter().map(Held::from).find(|held| is(held, "ended")).expect("it is ready");
    seat.continue_as_new(&mut ended, vec![step(1)]);
    seat.continue_as_new(&mut ended, vec![step(1), step(2)]);
    let commit = seat.draft(&mut ended, vec![step(1), complete()]);
    let consumed = vec![abide_core::MessageId::new("read")];
    let changes = Changes { consumed, ..(*commit.changes).clone() };
    block_on(store.commit(Commit { changes: Arc::new(changes), ..commit })).expect("it has ended");
    submit(&store, vec![start("ready"), child_of("waiting")]).expect("they are taken");
    seat.retire();
    store
}

fn is(held: &Held, id: &str) -> bool {
    held.execution.address().id.as_str() == id
}

/// Every column of every row, by table, row and name.
pub(super) type Dump = BTreeMap<(&'static str, String, String), String>;

const TABLES: [(&str, &str, usize); 6] = [
    ("executions", "SELECT key, * FROM abide_executions ORDER BY key", 1),
    ("journal", "SELECT row, * FROM abide_journal ORDER BY row", 1),
    ("runs", "SELECT execution, run, * FROM abide_runs ORDER BY execution, run", 2),
    ("inbox", "SELECT execution, id, * FROM abide_inbox ORDER BY execution, id", 2),
    ("tags", "SELECT execution, key, * FROM abide_tags ORDER BY execution, key", 2),
    ("routes", "SELECT id, * FROM abide_routes ORDER BY id", 1),
];

pub(super) fn dump(fixture: &Fixture) -> Dump {
    let raw = fixture.raw();
    let mut dump = Dump::new();
    for (table, text, id_count) in TABLES {
        let mut statement = raw.prepare(text).expect("the table is there");
        let names: Vec<String> = statement.column_names().into_iter().map(str::to_owned).collect();
        let mut rows = statement.query([]).expect("it can be read");
        while let Some(row) = rows.next().expect("it can be read") {
            let cell = |index| format!("{:?}", row.get_ref(index).expect("any value"));
            let id: Vec<String> = (0..id_count).map(cell).collect();
            // A seal follows from the columns beside it.
            let columns = names.iter().enumerate().skip(id_count).filter(|(_, name)| *name != "seal");
            for (index, column) in columns {
                let found = match row.get_ref(index).expect("any value") {
                    ValueRef::Blob(sheet) if column == "state" => format!("{:?}", unpadded(sheet)),
                    _ => cell(index),
                };
                dump.insert((table, id.join("/"), column.clone()), found);
            }
        }
    }
    dump
}

/// Returns the content of a sheet, without the zeros after it and the checksum, which covers them.
fn unpadded(sheet: &[u8]) -> &[u8] {
    let end = sheet.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    sheet.get(4..end).unwrap_or_default()
}

/// Returns the rows and columns that differ; executions are named by their id.
pub(super) fn differences(one: &Dump, other: &Dump) -> BTreeSet<(String, String)> {
    let keys: BTreeSet<_> = one.keys().chain(other.keys()).collect();
    let differs = keys.into_iter().filter(|key| one.get(*key) != other.get(*key));
    let row = |key: &(&'static str, String, String)| {
        let id = one.get(&(key.0, key.1.clone(), "id".to_owned()));
        let id = id
            .filter(|_| key.0 == "executions")
            .and_then(|id| KINDS.into_iter().find(|kind| *id == quoted(kind)));
        id.map_or_else(|| key.1.clone(), str::to_owned)
    };
    differs.map(|key| (row(key), format!("{}.{}", key.0, key.2))).collect()
}

fn quoted(id: &str) -> String {
    format!("{:?}", ValueRef::Text(id.as_bytes()))
}

pub(super) fn problems(store: &Arc<SqliteStore>) -> Vec<String> {
    store.verify().expect("it is looked at").problems
}

/// Returns the columns that may differ after a repair, because only the damaged column knew them.
fn may_differ(id: &str, column: &str) -> &'static [&'static str] {
    const PLACE: [&str; 1] = ["executions.place_at"];
    const STATE: [&str; 6] = [
        "executions.state",
        "executions.status",
        "executions.place",
        "executions.rank",
        "executions.place_at",
        "executions.version",
    ];
    let is_ready = matches!(id, "ready" | "child");
    match column {
        // The author of a paused execution's summary is not recorded.
        "state" | "version" if id == "paused" => &["executions.state", "executions.version"],
        "state" if matches!(id, "blocked" | "scheduled") => &[],
        "state" => &STATE,
        "version" => &STATE,
        "epoch" => &["executions.epoch"],
        "takeover_count" => &["executions.takeover_count"],
        "place" | "rank" | "place_at" if is_ready || id == "ended" => &PLACE,
        // A timer that is due too early costs a look: a program that is too old for the execution
        // may have put it off.
        "place_at" if matches!(id, "sleeping" | "scheduled") => &PLACE,
        // The claim of a ready execution sets it again.
        "care_at" if is_ready => &["executions.care_at"],
        _ => &[],
    }
}

/// Damage to one column, as SQL; `col` is the old value.
const DAMAGES: [(&str, [&str; 6]); 15] = [
    (
        "namespace",
        [
            "namespace = 2",
            "namespace = 77",
            "namespace = 'x'",
            "namespace = x'00'",
            "namespace = -1",
            "namespace = 1.5",
        ],
    ),
    (
        "id",
        [
            "id = id || 'x'",
            "id = 'b' || key",
            "id = CAST('x' || key AS BLOB)",
            "id = key",
            "id = 'elsewhere' || substr(id, 3)",
            "id = CAST(CAST(key AS BLOB) || x'ff41' AS TEXT)",
        ],
    ),
    (
        "queue",
        [
            "queue = queue + 1",
            "queue = queue + 65536",
            "queue = 'x'",
            "queue = x'00'",
            "queue = -1",
            "queue = 1.5",
        ],
    ),
    (
        "parent",
        ["parent = 1", "parent = 77", "parent = 'x'", "parent = x'00'", "parent = NULL", "parent = -1"],
    ),
    (
        "parent_run",
        [
            "parent_run = 2",
            "parent_run = 77",
            "parent_run = 'x'",
            "parent_run = x'00'",
            "parent_run = NULL",
            "parent_run = -1",
        ],
    ),
    ("place", ["place = 0", "place = 4", "place = 'x'", "place = x'00'", "place = 4 * 77 + 3", "place = 8"]),
    ("rank", ["rank = 77", "rank = -77", "rank = 'x'", "rank = x'00'", "rank = 1.5", "rank = 99999"]),
    (
        "place_at",
        [
            "place_at = 77",
            "place_at = place_at + 1",
            "place_at = 'x'",
            "place_at = x'00'",
            "place_at = 1.5",
            "place_at = -1",
        ],
    ),
    (
        "epoch",
        ["epoch = 77", "epoch = epoch + 1", "epoch = 'x'", "epoch = x'00'", "epoch = 1.5", "epoch = -1"],
    ),
    (
        "version",
        [
            "version = 77",
            "version = version + 1",
            "version = 'x'",
            "version = x'00'",
            "version = 1.5",
            "version = -1",
        ],
    ),
    (
        "takeover_count",
        [
            "takeover_count = 77",
            "takeover_count = 1",
            "takeover_count = 'x'",
            "takeover_count = x'00'",
            "takeover_count = 1.5",
            "takeover_count = -1",
        ],
    ),
    ("status", ["status = 1", "status = 6", "status = 'x'", "status = x'00'", "status = 77", "status = -1"]),
    (
        "care_at",
        [
            "care_at = 1",
            "care_at = 7777777777777777",
            "care_at = 'x'",
            "care_at = x'00'",
            "care_at = 1.5",
            "care_at = -1",
        ],
    ),
    ("head", ["head = head - 1", "head = head + 1", "head = 'x'", "head = x'00'", "head = 77", "head = -1"]),
    (
        "state",
        [
            "state = x'00'",
            "state = 'x'",
            "state = 7",
            "state = x'0109ffffffff'",
            "state = state || x'00'",
            "state = CAST(x'ff' || substr(state, 2) AS BLOB)",
        ],
    ),
];

const KINDS: [&str; 8] = ["ready", "waiting", "sleeping", "paused", "blocked", "scheduled", "ended", "child"];

/// Runs `damage` and a repair on the world. Returns the remaining faults.
fn check(
    world: &World,
    (damage, told_count): (&str, usize),
    allowed: impl Fn(&str) -> &'static [&'static str],
) -> Option<String> {
    let fixture = Fixture::new();
    std::fs::copy(&world.copy, fixture.path()).expect("it can be copied");
    fixture.raw().execute_batch(damage).expect("the damage can be done");
    let store = fixture.open();
    let before = problems(&store);
    let repairs = match block_on(store.repair()) {
        Ok(repairs) => repairs,
        Err(error) => return Some(format!("{damage}: the repair fails: {error}")),
    };
    let after = problems(&store);
    store.close();
    let mut left = differences(&world.whole, &dump(&fixture));
    left.retain(|(row, column)| !allowed(row).contains(&column.as_str()));
    // A value of another type is never accepted.
    let is_other_type = damage.contains("= 'x'") || damage.contains("= x'00'");
    let is_told = !is_other_type || before.len() >= told_count;
    if !is_told || !after.is_empty() || !left.is_empty() || !repairs.left.is_empty() {
        return Some(format!(
            "{damage}\n    told before: {before:?}\n    repaired: {repairs:?}\n    told after: {after:?}\n    differs: {left:?}"
        ));
    }
    None
}

/// A sound store, to be damaged.
struct World {
    whole: Dump,
    copy: std::path::PathBuf,
    _fixture: Fixture,
}

impl World {
    fn new() -> Self {
        let fixture = Fixture::new();
        let store = world(&fixture);
        assert_eq!(problems(&store), Vec::<String>::new());
        let copy = fixture.folder.path().join("copy.db");
        store.backup(&copy).expect("it can be copied");
        store.close();
        Self { whole: dump(&fixture), copy, _fixture: fixture }
    }
}

/// The same column of all executions is damaged at once.
#[test]
fn every_derivable_column_is_put_back() {
    let world = World::new();
    let mut wrong = Vec::new();
    for (column, damages) in DAMAGES {
        for set in damages {
            let damage = ["UPDATE abide_executions SET ", set, " WHERE id <> 'elsewhere'"].concat();
            wrong.extend(check(&world, (&damage, KINDS.len()), |id| may_differ(id, column)));
        }
    }
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Checks damages that a repair must undo completely.
fn check_all(damages: &[&str]) {
    let world = World::new();
    let wrong: Vec<String> =
        damages.iter().filter_map(|damage| check(&world, (damage, 1), |_| &[])).collect();
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn earlier_runs_are_put_back() {
    check_all(&[
        "UPDATE abide_runs SET first = first + 1 WHERE run = 1",
        "UPDATE abide_runs SET head = 'x' WHERE run = 2",
        "UPDATE abide_runs SET entry_count = x'00'",
        "UPDATE abide_runs SET row_count = 77",
        "UPDATE abide_runs SET run = run + 7",
        "DELETE FROM abide_runs WHERE run = 1",
        "DELETE FROM abide_runs",
        "INSERT INTO abide_runs SELECT execution, 3, first, head, entry_count, row_count FROM abide_runs LIMIT 1",
    ]);
}

#[test]
fn tags_are_put_back() {
    check_all(&[
        "DELETE FROM abide_tags",
        "UPDATE abide_tags SET value = 'c8'",
        "UPDATE abide_tags SET key = 'x'",
        "UPDATE abide_tags SET value = x'00'",
        "UPDATE abide_tags SET namespace = 'x'",
        "UPDATE abide_tags SET execution = 2",
        "UPDATE abide_tags SET execution = 77",
        "UPDATE abide_tags SET execution = 'x'",
    ]);
}

/// Only its unread message says that it has to be woken.
#[test]
fn p5_what_sleeps_beside_the_message_that_it_waits_for_is_told_and_woken() {
    let asleep = "UPDATE abide_executions SET place = 0, rank = 0, place_at = 0 WHERE id = 'waiting'";
    let timer = "UPDATE abide_executions SET place = (queue >> 16) * 4 + 2, rank = 0, place_at = 0 WHERE id = 'waiting'";
    for damage in [asleep, timer] {
        let fixture = Fixture::new();
        let store = world(&fixture);
        let go = message("go", "waiting", Body::Signal { name: name("go"), payload: "1".into() });
        submit(&store, vec![go]).expect("it is taken");
        store.close();
        fixture.raw().execute_batch(damage).expect("the damage can be done");
        let store = fixture.open();
        let expected = r#"execution "waiting": message "go", which it waits for, would not wake it"#;
        assert_eq!(problems(&store), [expected]);
        let repairs = block_on(store.repair()).expect("it is repaired");
        assert_eq!(repairs.rebuilt, [r#"execution "waiting": its row was put right: place"#]);
        assert_eq!(problems(&store), Vec::<String>::new());
        let leased = fixture.seat(&store).claim(true).leased;
        assert!(leased.into_iter().map(Held::from).any(|held| is(&held, "waiting")));
    }
}

/// Its holder has seen the message and left it for later: waking it for that would never end.
#[test]
fn what_sleeps_beside_a_message_for_later_is_sound() {
    let fixture = Fixture::new();
    let store = world(&fixture);
    submit(&store, vec![signal("later", "waiting")]).expect("it is taken");
    let mut seat = fixture.seat(&store);
    let leased = seat.claim(true).leased.into_iter().map(Held::from);
    let mut held = leased.into_iter().find(|held| is(held, "waiting")).expect("it was woken");
    let commit = seat.draft(&mut held, vec![step(2)]);
    let changes = Changes { summary: held.execution.summary(&[go()]), ..(*commit.changes).clone() };
    let hold = Hold::Park { seen: vec![abide_core::MessageId::new("later")] };
    block_on(store.commit(Commit { changes: Arc::new(changes), hold, ..commit })).expect("it is parked");
    assert_eq!(problems(&store), Vec::<String>::new());
}

/// Otherwise, the message would be reported for ever: nobody reads it, and nobody drops it.
#[test]
fn a_damaged_message_of_what_has_ended_is_dropped() {
    let damages = [
        "UPDATE abide_inbox SET body = x'00' WHERE id = 'late'",
        "UPDATE abide_inbox SET body = 'x' WHERE id = 'late'",
        "UPDATE abide_inbox SET arrived = 'x' WHERE id = 'late'",
        "UPDATE abide_inbox SET id = x'00' WHERE id = 'late'",
    ];
    for damage in damages {
        let fixture = Fixture::new();
        let store = world(&fixture);
        submit(&store, vec![start("over"), signal("late", "over"), signal("sound", "over")])
            .expect("they are taken");
        let mut seat = fixture.seat(&store);
        let mut leased = seat.claim(true).leased.into_iter().map(Held::from);
        let mut held = leased.find(|held| is(held, "over")).expect("it is ready");
        seat.record(&mut held, vec![complete()]);
        seat.retire();
        store.close();
        fixture.raw().execute_batch(damage).expect("the damage can be done");
        let store = fixture.open();
        assert_eq!(problems(&store).len(), 1, "{damage}");
        let repairs = block_on(store.repair()).expect("it is repaired");
        let [line] = &repairs.rebuilt[..] else { panic!("{damage}: {repairs:?}") };
        assert!(line.contains("which nobody will ever read, was dropped"), "{damage}: {line}");
        assert_eq!(problems(&store), Vec::<String>::new(), "{damage}");
    }
}

#[test]
fn an_id_that_another_has_now_is_told() {
    let fixture = Fixture::new();
    let store = world(&fixture);
    store.close();
    let damage = "UPDATE abide_executions SET id = 'reapy' WHERE id = 'ready'";
    fixture.raw().execute_batch(damage).expect("the damage can be done");
    let store = fixture.open();
    submit(&store, vec![start("ready")]).expect("nobody seems to have this id");
    let repairs = block_on(store.repair()).expect("it is repaired");
    let expected = r#"execution "reapy" cannot be rebuilt: its id is damaged: it was "ready", and another execution has that id now"#;
    assert_eq!((repairs.rebuilt, repairs.left), (Vec::new(), vec![expected.to_owned()]));
}

/// One damaged message costs that message, not the execution that it was for.
#[test]
fn a_damaged_message_can_be_dropped_alone() {
    let fixture = Fixture::new();
    let store = world(&fixture);
    submit(&store, vec![signal("bad", "ready"), signal("good", "ready")]).expect("they are taken");
    store.close();
    let damage = "UPDATE abide_inbox SET body = x'00' WHERE id = 'bad'";
    fixture.raw().execute_batch(damage).expect("the damage can be done");
    let store = fixture.open();
    fixture.seat(&store).claim(true);
    let drop = |id| block_on(store.drop_messages(&address(id), By::client())).expect("it is looked at");
    assert_eq!(drop("nobody"), MessagesDropped::Unknown);
    assert_eq!(drop("child"), MessagesDropped::Held);
    assert_eq!(drop("waiting"), MessagesDropped::Dropped(Vec::new()));
    let MessagesDropped::Dropped(lines) = drop("ready") else { panic!("it is held by nobody") };
    let expected = r#"execution "ready": message "bad" was dropped, and is lost: message "bad" is damaged: its checksum is wrong"#;
    assert_eq!(lines, [expected]);
    assert_eq!(block_on(store.repair()).expect("it is repaired").left, Vec::<String>::new());
    assert_eq!(problems(&store), Vec::<String>::new());
    submit(&store, vec![signal("bad", "ready")]).expect("whoever has it can send it again");
    let leased = fixture.seat(&store).claim(true).leased;
    let ready = leased.iter().find(|leased| leased.address().id.as_str() == "ready").expect("it goes on");
    let unread: Vec<_> = ready.inbox.messages.iter().map(|message| message.id.as_str()).collect();
    assert_eq!(unread, ["good", "bad"]);
}

/// A list shows the execution by its number, so it can be named.
#[test]
fn messages_of_what_has_lost_its_id_are_dropped_by_its_number() {
    let fixture = Fixture::new();
    let store = fixture.open();
    submit(&store, vec![start("a"), signal("bad", "a")]).expect("they are taken");
    let damage = "UPDATE abide_inbox SET body = x'00'; UPDATE abide_executions SET id = x'00'";
    let store = damaged(&fixture, &store, damage);
    let dropped = block_on(store.drop_messages(&address("abide:damaged/1"), By::client()));
    let expected = r#"execution "a": message "bad" was dropped, and is lost: message "bad" is damaged: its checksum is wrong"#;
    assert_eq!(dropped.expect("it is looked at"), MessagesDropped::Dropped(vec![expected.to_owned()]));
    let repairs = block_on(store.repair()).expect("it is repaired");
    assert_eq!(repairs.rebuilt, ["execution number 1: its row was put right: id"]);
    assert_eq!(problems(&store), Vec::<String>::new());
}

/// Nobody matches such an epoch: neither a claim nor a message moves the execution.
#[test]
fn p5_an_epoch_that_nobody_ever_had_is_told_and_put_right() {
    for epoch in ["-126", "-1", "9223372036854775807"] {
        let fixture = Fixture::new();
        let store = world(&fixture);
        store.close();
        let damage = ["UPDATE abide_executions SET epoch = ", epoch, " WHERE id = 'waiting'"].concat();
        fixture.raw().execute_batch(&damage).expect("the damage can be done");
        let store = fixture.open();
        assert_eq!(problems(&store), [format!(r#"execution "waiting": there is no epoch {epoch}"#)]);
        let repairs = block_on(store.repair()).expect("it is repaired");
        assert_eq!(repairs.rebuilt, [r#"execution "waiting": its row was put right: epoch"#]);
        assert_eq!(problems(&store), Vec::<String>::new());
        let go = message("go", "waiting", Body::Signal { name: name("go"), payload: "1".into() });
        submit(&store, vec![go]).expect("it is taken");
        let leased = fixture.seat(&store).claim(true).leased;
        assert!(leased.into_iter().map(Held::from).any(|held| is(&held, "waiting")), "{epoch}");
    }
}

/// Readers begin at zero: messages after a negative place would never be read.
#[test]
fn p2_a_message_behind_one_with_a_damaged_place_is_received() {
    for arrived in ["-7", "9223372036854775807"] {
        let fixture = Fixture::new();
        let store = fixture.open();
        submit(&store, vec![start("a"), signal("bad", "a")]).expect("they are taken");
        let damage = ["UPDATE abide_inbox SET arrived = ", arrived].concat();
        let store = damaged(&fixture, &store, &damage);
        submit(&store, vec![signal("good", "a")]).expect("it is taken");
        block_on(store.drop_messages(&address("a"), By::client())).expect("it is looked at");
        submit(&store, vec![signal("later", "a")]).expect("it is taken");
        let leased = fixture.seat(&store).claim(true).leased.remove(0);
        let unread: Vec<_> = leased.inbox.messages.iter().map(|message| message.id.as_str()).collect();
        assert_eq!(unread, ["good", "later"], "{arrived}");
    }
}
