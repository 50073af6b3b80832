//! Machines whose clocks differ.

use std::sync::Arc;

use abide::prelude::*;
use abide::testing;
use abide_engine::{Runtime, TokioRuntime};
use abide_postgres::PostgresStore;
use abide_store::{Clock, Store};

use crate::server::Place;

const HOUR_US: i64 = 3_600_000_000;

/// The clock of a machine that does not follow the server's.
struct Stubborn(Arc<TokioRuntime>);

impl Clock for Stubborn {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

#[workflow]
async fn notes(ctx: Ctx, number: i32) -> Result<()> {
    for step in 0..3 {
        ctx.postgres("note", async move |tx| {
            tx.execute("INSERT INTO noted VALUES ($1, $2)", &[&number, &step]).await?;
            Ok(())
        })
        .await?;
        ctx.sleep(ms(20)).await?;
    }
    Ok(())
}

const COUNT: i32 = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_follows_the_servers() {
    let place = Place::new("follows").await;
    let runtime = TokioRuntime::current().expect("there is a runtime");
    let right = runtime.now();
    runtime.follow(HOUR_US);
    let clock: Arc<dyn Clock> = runtime.clone();
    let store = PostgresStore::open(&place.url(), clock, Default::default()).expect("it can be opened");
    let off_us = runtime.now().as_micros() - right.as_micros();
    assert!(off_us.abs() < HOUR_US / 2, "it is off by {off_us} us");
    store.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_an_engine_whose_clock_is_an_hour_off_loses_and_repeats_nothing() {
    let place = Place::new("clocks").await;
    place.run("CREATE TABLE noted (number INT, step INT)").await;
    let right = place.open().await;
    let runtime = TokioRuntime::current().expect("there is a runtime");
    runtime.follow(HOUR_US);
    let clock = Arc::new(Stubborn(runtime.clone()));
    let store = PostgresStore::open(&place.url(), clock, Default::default()).expect("it can be opened");
    let runtime: Arc<dyn Runtime> = runtime;
    let given: Arc<dyn Store> = store.clone();
    let ahead = testing::simulated(place.builder(), runtime, given).open().await.expect("it can be opened");
    let mut handles = Vec::new();
    for number in 0..COUNT {
        let engine = if number % 2 == 0 { &right } else { &ahead };
        handles.push(engine.start(notes, number).id(format!("note-{number}")).await.expect("it is started"));
    }
    for handle in handles {
        handle.result().await.expect("it completes");
    }
    let noted = place.count("SELECT count(*) FROM noted").await;
    let distinct = place.count("SELECT count(*) FROM (SELECT DISTINCT number, step FROM noted) x").await;
    assert_eq!((noted, distinct), (i64::from(COUNT) * 3, i64::from(COUNT) * 3));
    ahead.shutdown().await;
    right.shutdown().await;
    store.close();
}
