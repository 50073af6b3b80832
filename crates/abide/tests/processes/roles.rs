//! The roles that a child process plays.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};

use abide::prelude::*;
use abide::rusqlite::Connection;
use serde::{Deserialize, Serialize};

use crate::clock::{self, Chance, pause, until, wall_us};
use crate::effects::Effects;
use crate::flows::{Bench, order, quick};
use crate::look;

/// The environment variable that makes this program a child.
pub(crate) const ROLE: &str = "ABIDE_TEST_ROLE";

/// The orders for a child.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Role {
    /// The folder of the database.
    pub(crate) folder: PathBuf,
    /// The folder of the effects.
    pub(crate) outside: PathBuf,
    pub(crate) generation: u32,
    pub(crate) kind: Kind,
    /// The length of the file of effects above which steps wait forever.
    pub(crate) effect_bytes_max: Option<u64>,
    pub(crate) ttl_ms: Option<u64>,
    pub(crate) busy_ms_max: Option<u64>,
    pub(crate) grace_ms: Option<u64>,
    pub(crate) park_after_ms: Option<u64>,
    pub(crate) slots: Option<usize>,
    pub(crate) lane: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) enum Kind {
    /// Runs executions, and obeys the lines of its standard input.
    #[default]
    Worker,
    /// Works, starts orders of its own, and notes outside which of them were acknowledged.
    Starter,
    /// Tries to open the store, and reports the outcome.
    Opener,
    /// Tries to open the store to read it, and reports the outcome.
    Reader,
    /// Waits as a client for the results of as many waiters as it has slots.
    Watcher,
    /// Holds the write lock of the database until the parent says "let go".
    Holder,
}

impl Role {
    pub(crate) fn worker(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), outside: folder.to_owned(), ..Self::default() }
    }
}

/// Plays the role that the environment names, and never returns from it. Returns at once if it
/// names none.
pub(crate) fn play() {
    let Ok(text) = std::env::var(ROLE) else { return };
    let role: Role = serde_json::from_str(&text).expect("a role");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        match role.kind {
            Kind::Worker | Kind::Starter => work(role).await,
            Kind::Watcher => watch(&role).await,
            Kind::Opener => try_to_open(&role).await,
            Kind::Reader => try_to_read(&role),
            Kind::Holder => hold(&role).await,
        }
    });
    std::process::exit(0);
}

fn say(word: &str) {
    let mut out = std::io::stdout().lock();
    // A parent that is gone hears nothing.
    let _ = writeln!(out, "\n@{word}").and_then(|()| out.flush());
}

/// Returns the lines of the standard input. The child ends when its parent is gone.
fn orders() -> tokio::sync::mpsc::UnboundedReceiver<String> {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    clock::beside(move || {
        for line in std::io::stdin().lock().lines().map_while(std::result::Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
        std::process::exit(0);
    });
    receiver
}

fn builder(role: &Role, bench: &Bench) -> abide::Builder {
    let mut builder = Abide::builder(look::url(&role.folder)).state(bench.clone());
    if let Some(ttl) = role.ttl_ms {
        builder = builder.session_ttl(ms(ttl));
    }
    if let Some(millis) = role.busy_ms_max {
        builder = builder.busy_ms_max(millis);
    }
    if let Some(grace) = role.grace_ms {
        builder = builder.shutdown_grace(ms(grace));
    }
    if let Some(millis) = role.park_after_ms {
        builder = builder.park_after(ms(millis));
    }
    if let Some(slots) = role.slots {
        builder = builder.execution_count_max(slots);
    }
    if let Some(lane) = &role.lane {
        builder = builder.lanes([lane.as_str()]);
    }
    builder
}

async fn work(role: Role) {
    let mut orders = orders();
    let effects = Effects::open(&role.outside, role.generation);
    let bench = Bench { folder: role.outside.clone(), effects, effect_bytes_max: role.effect_bytes_max };
    say(&format!("opening {}", wall_us()));
    let abide = until("a worker opens its store", async || match builder(&role, &bench).open().await {
        Ok(abide) => Some(abide),
        // Other processes write, or the machine is slow.
        Err(ClientError::Unavailable { .. }) => None,
        Err(error) => panic!("a worker cannot open its store: {error}"),
    })
    .await;
    say(&format!("ready {}", wall_us()));
    if let Kind::Starter = role.kind {
        start_orders(&abide, &bench.effects, role.generation).await;
        say("shopped");
    }
    while let Some(line) = orders.recv().await {
        obey(&abide, &line).await;
    }
}

/// Starts two orders per process; the acknowledgement is an effect.
async fn start_orders(abide: &Abide, effects: &Effects, generation: u32) {
    for i in 0..2 {
        let id = format!("own-{generation}-{i}");
        if abide.start(order, u64::from(generation)).id(&id).await.is_ok() {
            effects.happen(&id, String::new(), "started");
        }
        let handle = abide.handle::<()>(&id);
        for n in 0..crate::flows::bonus_count(u64::from(generation)) {
            if handle.signal("bonus", &(100 + n)).await.is_ok() {
                effects.happen(&id, String::new(), "signalled");
            }
        }
    }
}

async fn obey(abide: &Abide, line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        ["shutdown"] => {
            // These are polled in this order: the worker is shutting down when the child says so.
            tokio::join!(biased; abide.shutdown(), async { say("leaving") });
            say(&format!("shut {}", wall_us()));
            std::process::exit(0);
        }
        // Runs this many quick workflows, and reports when they are done.
        ["run", prefix, count] => {
            let count: u64 = count.parse().expect("a number");
            let runs = (0..count).map(|n| {
                let run = abide.run(quick, n).id(format!("{prefix}-{n}"));
                async move { assert_eq!(run.await.expect("a quick workflow"), n * 3) }
            });
            let from_us = wall_us();
            futures_util::future::join_all(runs).await;
            say(&format!("ran {from_us} {}", wall_us()));
        }
        // Sends this many signals to a listener, with pauses of up to this many milliseconds.
        ["ping", id, count, pause_ms] => {
            let (count, pause_ms): (u64, u64) =
                (count.parse().expect("a number"), pause_ms.parse().expect("a number"));
            let mut chance = Chance::seeded(1);
            let handle = abide.handle::<()>(id);
            for _ in 0..count {
                pause(ms(chance.below(pause_ms + 1))).await;
                handle.signal("ping", &wall_us()).await.expect("a signal");
            }
            say("pinged");
        }
        _ => panic!("what does {line:?} mean?"),
    }
}

async fn try_to_open(role: &Role) {
    let url = look::url(&role.folder);
    for (way, opened) in [("open", Abide::open(&url).await), ("client", Abide::client(&url).await)] {
        match opened {
            Ok(_) => say(&format!("{way} Ok: it is open")),
            Err(error @ ClientError::Open { .. }) => say(&format!("{way} Open: {error}")),
            Err(error) => say(&format!("{way} not Open: {error:?}")),
        }
    }
}

fn try_to_read(role: &Role) {
    match look::try_to_read(&role.folder) {
        Ok(_) => say("read Ok: it is open"),
        Err(error) => say(&format!("read Open: {error}")),
    }
}

async fn watch(role: &Role) {
    let mut orders = orders();
    let client = look::client(&role.folder).await;
    let waits = (0..role.slots.unwrap_or(0)).map(|n| {
        let handle = client.handle::<u64>(&format!("waiter-{n}"));
        async move {
            let result = handle.result().await;
            say(&format!("heard {n} {result:?}"));
        }
    });
    say("ready");
    tokio::join!(futures_util::future::join_all(waits), orders.recv());
}

async fn hold(role: &Role) {
    let mut orders = orders();
    let connection = Connection::open(look::database(&role.folder)).expect("the database");
    connection.busy_timeout(secs(10)).expect("a timeout");
    connection.execute_batch("BEGIN IMMEDIATE").expect("the write lock");
    say("ready");
    orders.recv().await;
    connection.execute_batch("ROLLBACK").expect("an end");
    say("released");
}
