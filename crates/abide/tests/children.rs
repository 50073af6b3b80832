//! The options with which a parent starts its child.

use std::sync::{Arc, Mutex};

use abide::Builder;
use abide::prelude::*;
use abide::testing::Lab;

/// The ids of the children that have begun, and when.
type Begun = Arc<Mutex<Vec<(String, Timestamp)>>>;

#[task]
async fn child(ctx: Ctx) -> Result<()> {
    let now = ctx.state::<Lab>().now();
    ctx.state::<Begun>().lock().unwrap().push((ctx.id().to_owned(), now));
    Ok(())
}

fn sharing(lab: &Lab, begun: &Begun) -> impl Fn(Builder) -> Builder {
    let (lab, begun) = (lab.clone(), begun.clone());
    move |builder| builder.state(lab.clone()).state(begun.clone())
}

fn ids(begun: &Begun) -> Vec<String> {
    begun.lock().unwrap().iter().map(|(id, _)| id.clone()).collect()
}

#[workflow]
async fn demanding(ctx: Ctx) -> Result<()> {
    ctx.run(child, ()).id("child").requires(["gpu"]).tag("customer", "c7").await
}

#[test]
fn child_has_the_tags_and_the_needs_that_its_parent_gives_it() {
    Lab::run_on_each(1, |lab| async move {
        let begun = Begun::default();
        let (_, abide) = lab.worker_with(sharing(&lab, &begun)).await.unwrap();
        let handle = abide.start(demanding, ()).id("parent").await.unwrap();
        lab.sleep(minutes(1)).await;
        assert_eq!(ids(&begun), [""; 0], "nobody can run it");
        let found = abide.list(Filter::all().tag("customer", "c7")).await.unwrap();
        assert_eq!(found.iter().map(|found| found.id.as_str()).collect::<Vec<_>>(), ["child"]);
        let able = |builder: Builder| sharing(&lab, &begun)(builder).capabilities(["gpu"]);
        let (_, _able) = lab.worker_with(able).await.unwrap();
        handle.result().await.unwrap();
        assert_eq!(ids(&begun), ["child"]);
    });
}

/// Starts three children that nobody serves yet.
#[workflow]
async fn ranking(ctx: Ctx) -> Result<()> {
    for (id, priority) in [("low", -1), ("none", 0), ("high", 1)] {
        ctx.start(child, ()).id(id).lane("later").priority(priority).await?;
    }
    ctx.recv("end").await
}

#[test]
fn children_begin_in_the_order_of_the_priorities_that_their_parent_gives_them() {
    Lab::run_on_each(1, |lab| async move {
        let begun = Begun::default();
        let (_, abide) = lab.worker_with(sharing(&lab, &begun)).await.unwrap();
        abide.start(ranking, ()).id("parent").await.unwrap();
        lab.sleep(secs(5)).await;
        let one = |builder: Builder| sharing(&lab, &begun)(builder).lanes(["later"]).execution_count_max(1);
        let (_, _later) = lab.worker_with(one).await.unwrap();
        lab.sleep(secs(5)).await;
        assert_eq!(ids(&begun), ["high", "none", "low"]);
    });
}

#[workflow]
async fn patient(ctx: Ctx) -> Result<()> {
    ctx.run(child, ()).id("child").delay(minutes(10)).await
}

#[test]
fn child_begins_after_the_delay_that_its_parent_gives_it() {
    Lab::run_on_each(1, |lab| async move {
        let begun = Begun::default();
        let (_, abide) = lab.worker_with(sharing(&lab, &begun)).await.unwrap();
        let started_at = lab.now();
        abide.run(patient, ()).id("parent").await.unwrap();
        let (_, begun_at) = begun.lock().unwrap()[0].clone();
        let late = begun_at.since(started_at.after(minutes(10)));
        assert!(begun_at >= started_at.after(minutes(10)) && late < secs(1), "{late:?}");
    });
}
