//! The workflows and tasks that run in the children.

use std::path::PathBuf;

use abide::prelude::*;
use serde::{Deserialize, Serialize};

use crate::clock::{pause, pause_thread, wall_us};
use crate::effects::{self, Effects};

/// The state of every flow: where the outside world is.
#[derive(Clone)]
pub(crate) struct Bench {
    pub(crate) folder: PathBuf,
    pub(crate) effects: Effects,
    pub(crate) effect_bytes_max: Option<u64>,
}

/// The result of a step: it names the run of the step.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Ran {
    pub(crate) value: u64,
    pub(crate) nonce: String,
}

impl Bench {
    /// Records an effect outside, in the calling step.
    fn ran(&self, ctx: &Ctx, value: u64) -> Ran {
        Ran { value, nonce: self.effects.happen(ctx.id(), ctx.idempotency_key(), "ran") }
    }

    /// Waits until the process is killed, if it has written all that it may.
    async fn room(&self) {
        while self.effect_bytes_max.is_some_and(|max| effects::byte_count(&self.folder) > max) {
            pause(ms(2)).await;
        }
    }

    /// Waits until the parent opens the gate of this process, which is a file.
    async fn gate(&self) {
        while !self.is_gate_open() {
            pause(ms(2)).await;
        }
    }

    /// Waits for the gate on a thread of its own, which sees it quickly: it races with a heartbeat.
    fn gate_of_thread(&self) {
        while !self.is_gate_open() {
            pause_thread(std::time::Duration::from_micros(500));
        }
    }

    fn is_gate_open(&self) -> bool {
        self.folder.join(format!("gate-{}", std::process::id())).exists()
    }
}

#[task]
pub(crate) async fn square(ctx: Ctx, n: u64) -> Result<u64> {
    Ok(ctx.state::<Bench>().ran(&ctx, n * n).value)
}

#[workflow]
pub(crate) async fn leaf(ctx: Ctx, n: u64) -> Result<u64> {
    let bench = ctx.state::<Bench>();
    ctx.sleep(ms(n % 5 * 40)).await?;
    Ok(ctx.step("add", || async { Ok(bench.ran(&ctx, n + 1)) }).await?.value)
}

/// The result of an order.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Receipt {
    pub(crate) sum: u64,
    /// The signals, in order of arrival.
    pub(crate) bonuses: Vec<u64>,
}

/// Returns how many signals order `n` waits for.
pub(crate) fn bonus_count(n: u64) -> u64 {
    n % 3 + 1
}

/// Returns the expected result of order `n`, whose signals are 100, 101 and so on.
pub(crate) fn receipt(n: u64) -> Receipt {
    let items: u64 = (1..=n % 4 + 1).sum();
    Receipt { sum: items + (n + 1) + n * n + 7 + 9 + 1, bonuses: (100..100 + bonus_count(n)).collect() }
}

/// Uses steps, retries, a transaction, a blocking step, a child workflow beside a task, signals and
/// sleeps.
#[workflow]
pub(crate) async fn order(ctx: Ctx, n: u64) -> Result<Receipt> {
    let bench = ctx.state::<Bench>();
    let mut sum = 0;
    for i in 0..n % 4 + 1 {
        let mut tries = 0;
        let item = ctx.step("item", || {
            tries += 1;
            let fails = i == 1 && tries == 1;
            let ctx = &ctx;
            async move {
                let ran = bench.ran(ctx, i + 1);
                if fails { Err(Error::new("the first try fails")) } else { Ok(ran) }
            }
        });
        sum += item.retry(Retry::fixed(ms(15)).max_attempts(1_000)).await?.value;
    }
    let id = ctx.id().to_owned();
    let pid = std::process::id();
    sum += ctx
        .sqlite("book", move |tx| {
            tx.execute("INSERT INTO booked (id, pid) VALUES (?1, ?2)", (&id, pid))?;
            Ok(7u64)
        })
        .await?;
    let (effects, id) = (bench.effects.clone(), ctx.id().to_owned());
    let crunched = ctx.blocking("crunch", move || {
        let nonce = effects.happen(&id, format!("default/{}/1/crunch/1", id.replace('/', "%2F")), "ran");
        Ok(Ran { value: 9, nonce })
    });
    sum += crunched.await?.value;
    let (a, b) = futures_util::try_join!(ctx.run(leaf, n), ctx.run(square, n))?;
    let mut bonuses = Vec::new();
    for _ in 0..bonus_count(n) {
        bonuses.push(ctx.recv("bonus").timeout(days(1)).await?);
    }
    ctx.sleep(ms(n % 7 * 10)).await?;
    sum += ctx.step("last", || async { Ok(bench.ran(&ctx, 1)) }).await?.value;
    Ok(Receipt { sum: sum + a + b, bonuses })
}

/// Waits for this many signals, and commits all the time meanwhile.
#[workflow]
pub(crate) async fn restless(ctx: Ctx, count: u64) -> Result<u64> {
    let (mut sum, mut left) = (0, count);
    while left > 0 {
        match ctx.recv::<u64>("s").timeout(ms(200)).await {
            Ok(n) => (sum, left) = (sum + n, left - 1),
            Err(error) if error.is_timeout() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(sum)
}

/// Runs `count` transactions that each write a row, and returns the number of rows after each.
#[workflow]
pub(crate) async fn bookkeeper(ctx: Ctx, count: u32) -> Result<Vec<u32>> {
    let mut counts = Vec::new();
    for _ in 0..count {
        let booked = ctx.sqlite("book", |tx| {
            tx.execute_batch("CREATE TABLE IF NOT EXISTS books (x); INSERT INTO books VALUES (1)")?;
            Ok(tx.query_row("SELECT COUNT(*) FROM books", [], |row| row.get(0))?)
        });
        counts.push(booked.await?);
        ctx.sleep(ms(2)).await?;
    }
    Ok(counts)
}

/// Runs one transaction of this many megabytes. It is larger than the cache of SQLite, so a
/// statement meets the full disk, not COMMIT.
#[workflow]
pub(crate) async fn bulky_transaction(ctx: Ctx, megabytes: u32) -> Result<u32> {
    ctx.sqlite("bulk", move |tx| {
        tx.execute_batch("CREATE TABLE IF NOT EXISTS bulk (x)")?;
        for _ in 0..megabytes {
            tx.execute("INSERT INTO bulk VALUES (randomblob(1000000))", [])?;
        }
        Ok(tx.query_row("SELECT COUNT(*) FROM bulk", [], |row| row.get(0))?)
    })
    .await
}

/// Runs a step that waits for the gate of its process, then one that does not.
#[workflow]
pub(crate) async fn gated(ctx: Ctx, _n: u64) -> Result<(Ran, Ran)> {
    let bench = ctx.state::<Bench>();
    let wait = async || {
        bench.effects.happen(ctx.id(), ctx.idempotency_key(), "begin");
        bench.gate().await;
        let nonce = bench.effects.happen(ctx.id(), ctx.idempotency_key(), "end");
        Ok(Ran { value: 1, nonce })
    };
    // Two attempts are allowed, but an attempt that is taken away counts as none.
    let first = ctx.step("first", wait).retry(Retry::fixed(ms(10)).max_attempts(2)).await?;
    let second = ctx.step("second", || async { Ok(bench.ran(&ctx, 2)) }).await?;
    Ok((first, second))
}

/// Runs like [`gated`], but nothing ends its first step before the gate opens: it has a thread of
/// its own.
#[workflow]
pub(crate) async fn gated_hard(ctx: Ctx, _n: u64) -> Result<(Ran, Ran)> {
    let bench = ctx.state::<Bench>();
    let (of_thread, id) = (bench.clone(), ctx.id().to_owned());
    let wait = move || {
        let key = format!("default/{}/1/first/1", id.replace('/', "%2F"));
        of_thread.effects.happen(&id, key.clone(), "begin");
        of_thread.gate_of_thread();
        Ok(Ran { value: 1, nonce: of_thread.effects.happen(&id, key, "end") })
    };
    let first = ctx.blocking("first", wait).retry(Retry::fixed(ms(10)).max_attempts(2)).await?;
    let second = ctx.step("second", || async { Ok(bench.ran(&ctx, 2)) }).await?;
    Ok((first, second))
}

/// Runs three steps, with nothing to wait for.
#[workflow]
pub(crate) async fn quick(ctx: Ctx, n: u64) -> Result<u64> {
    let bench = ctx.state::<Bench>();
    let mut sum = 0;
    for _ in 0..3 {
        sum += ctx.step("add", || async { Ok(bench.ran(&ctx, n)) }).await?.value;
    }
    Ok(sum)
}

/// Runs like `quick`, but holds its slot until the gate of its process is open.
#[workflow]
pub(crate) async fn unhurried(ctx: Ctx, n: u64) -> Result<u64> {
    let bench = ctx.state::<Bench>();
    let stamp = ctx.step("add", || async {
        bench.gate().await;
        Ok(bench.ran(&ctx, n))
    });
    Ok(stamp.await?.value * 3)
}

/// Continues as new with one step in each run, and returns the number of the last run.
#[workflow]
pub(crate) async fn chain(ctx: Ctx, left: u64) -> Result<u32> {
    let bench = ctx.state::<Bench>();
    let link = ctx.step("link", || async {
        bench.room().await;
        Ok(bench.ran(&ctx, left))
    });
    link.await?;
    if left == 0 { Ok(ctx.run_number()) } else { ctx.continue_as_new(left - 1).await }
}

/// Receives this many signals, each with the time at which it was sent, and returns how long each
/// took, in microseconds.
#[workflow]
pub(crate) async fn listener(ctx: Ctx, count: u64) -> Result<Vec<i64>> {
    let bench = ctx.state::<Bench>();
    let mut took = Vec::new();
    for _ in 0..count {
        let sent_at_us: i64 = ctx.recv("ping").await?;
        took.push(
            ctx.step("note", || async {
                let took_us = wall_us() - sent_at_us;
                bench.ran(&ctx, 0);
                Ok(took_us)
            })
            .await?,
        );
    }
    Ok(took)
}

/// Waits for a signal and then runs one step.
#[workflow]
pub(crate) async fn waiter(ctx: Ctx, n: u64) -> Result<u64> {
    let bench = ctx.state::<Bench>();
    let more: u64 = ctx.recv("go").await?;
    Ok(ctx.step("after", || async { Ok(bench.ran(&ctx, n + more)) }).await?.value)
}

/// Sleeps for an hour.
#[workflow]
pub(crate) async fn sleeper(ctx: Ctx, n: u64) -> Result<u64> {
    ctx.sleep(hours(1)).await?;
    Ok(n)
}

/// Runs steps of some ten milliseconds.
#[workflow]
pub(crate) async fn ticker(ctx: Ctx, count: u64) -> Result<u64> {
    let bench = ctx.state::<Bench>();
    for _ in 0..count {
        ctx.step("tick", || async {
            bench.ran(&ctx, 1);
            pause(ms(20)).await;
            Ok(())
        })
        .await?;
    }
    Ok(count)
}

/// Records its long input, and as much again in each of four steps.
#[workflow]
pub(crate) async fn bulky(ctx: Ctx, text: String) -> Result<usize> {
    let bench = ctx.state::<Bench>();
    let mut sum = 0;
    for _ in 0..4 {
        let copy = ctx.step("copy", || async {
            bench.ran(&ctx, 0);
            Ok(text.clone())
        });
        sum += copy.await?.len();
    }
    Ok(sum)
}
