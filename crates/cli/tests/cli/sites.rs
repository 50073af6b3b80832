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

const FAILS_LINE: u32 = line!() + 5;

#[workflow]
async fn changes_and_fails(ctx: Ctx, _: ()) -> Result<()> {
    ctx.patched("cheaper");
    ctx.step("pay", || async { Err(Error::fatal("declined")) }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_and_a_change_are_shown_for_what_they_are() {
    let place = TestStore::new();
    let abide = place.open().await;
    abide.run(changes_and_fails, ()).id("c").await.expect_err("it fails");
    let site = format!("{}:{FAILS_LINE}", file!());
    let failed_at = format!(r#"declined (step "pay" of workflow "changes_and_fails", attempt 1, at {site})"#);
    let why = place.abide(&["why", "c"]).ok().stdout;
    assert!(why.contains(&failed_at), "{why}");
    let page = place.abide(&["show", "c"]).ok().stdout;
    let row = |word: &str| page.lines().find(|line| line.contains(word)).unwrap_or_else(|| panic!("{page}"));
    assert!(row("  why ").contains(&failed_at), "{page}");
    assert!(row("  failed  ").ends_with(&site), "{page}");
    let patched = row(" cheaper ");
    assert!(patched.contains(" patched ") && patched.contains("takes the change"), "{page}");
    let shown = place.abide(&["show", "c", "--json"]).ok().json();
    let journal = &shown["journal"];
    assert_eq!((&journal[1]["event"], &journal[1]["taken"]), (&"patched".into(), &true.into()), "{journal}");
    assert_eq!((&journal[3]["event"], &journal[3]["site"]), (&"failed".into(), &site.into()), "{journal}");
    abide.shutdown().await;
}
