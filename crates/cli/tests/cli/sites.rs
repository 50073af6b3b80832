//! `abide show` and `abide why` say where the code asked for an operation.

use crate::common::TestStore;
use abide::prelude::*;

const STEP_LINE: u32 = line!() + 4;

#[workflow]
async fn packs(ctx: Ctx, _: ()) -> Result<()> {
    for nth in 0..3 {
        ctx.step("pack", || async { Ok(nth) }).await?;
    }
    ctx.recv("shipped").await
}

#[tokio::test(flavor = "multi_thread")]
async fn show_and_why_print_file_and_line_of_the_call() {
    let place = TestStore::new();
    let abide = place.open().await;
    abide.start(packs, ()).id("p").await.expect("it runs");
    crate::common::until("it waits", || {
        place.abide(&["why", "p"]).ok().stdout.contains("waiting for signal").then_some(())
    });
    let site = |line| format!("{}:{line}", file!());
    let shown = place.abide(&["show", "p", "-o", "json"]).ok().json();
    let sites: Vec<_> = shown["journal"].as_array().unwrap().iter().map(|entry| &entry["site"]).collect();
    let step = serde_json::Value::from(site(STEP_LINE + 1));
    assert_eq!(sites, [&serde_json::Value::Null, &step, &step, &step]);
    assert_eq!(shown["waiting"][0]["site"], site(STEP_LINE + 3));
    // Only the first entry of a run that uses a site has its text.
    let later = place.abide(&["show", "p", "--from", "4", "-o", "json"]).ok().json();
    assert_eq!(later["journal"][0]["site"], step);
    let page = place.abide(&["show", "p"]).ok().stdout;
    let lines = page.lines().filter(|line| line.contains("pack") && line.contains(&site(STEP_LINE + 1)));
    assert_eq!(lines.count(), 3, "{page}");
    let why = place.abide(&["why", "p"]).ok().stdout;
    abide.shutdown().await;
    assert!(why.contains(&format!(r#"signal "shipped" (at {})"#, site(STEP_LINE + 3))), "{why}");
}
