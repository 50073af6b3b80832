//! Damage to an execution while a worker of another process holds it.

use abide::prelude::*;
use serde_json::json;
use tokio::sync::Semaphore;

use crate::common::TestStore;

static MAY_END: Semaphore = Semaphore::const_new(0);

/// A workflow that its worker holds until it may end.
#[workflow]
async fn held(ctx: Ctx, _: ()) -> Result<()> {
    ctx.step("wait", || async {
        MAY_END.acquire().await.or_fatal()?.forget();
        Ok(())
    })
    .await
}

/// The worker may write the execution at any time, and its writes replace the damage. So nobody
/// takes anything from under it.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_live_worker_holds_is_neither_repaired_nor_given_up() {
    let place = TestStore::new();
    let abide = place.open().await;
    let handle = abide.start(held, ()).id("held-1").await.expect("it runs");
    let path = place.url().trim_start_matches("sqlite:").to_owned();
    let raw = abide::rusqlite::Connection::open(path).expect("it can be opened");
    raw.execute_batch("UPDATE abide_executions SET status = 9").expect("the damage can be done");
    let why = "a worker holds it, and sets it aside when it meets the damage";
    let drop = place.abide(&["verify", "--repair", "--drop-messages", "held-1"]);
    drop.refused(4, &format!(r#"nothing of execution "held-1" was dropped: {why}"#));
    let discard = place.abide(&["verify", "--repair", "--discard", "held-1"]);
    let refused = format!("abide: execution \"held-1\" was not discarded: {why}\n");
    assert!(discard.code == 4 && discard.stderr.ends_with(&refused), "{discard:?}");
    let repair = place.abide(&["verify", "--repair", "-o", "json"]).json();
    let left = r#"execution "held-1" is held by a worker, which sets it aside when it reads it"#;
    assert_eq!((&repair["left"], &repair["repaired"]), (&json!([left]), &json!([])));
    MAY_END.add_permits(1);
    handle.result().await.expect("it goes on to its end");
    abide.shutdown().await;
    assert!(place.abide(&["verify"]).ok().stdout.starts_with("sound: 1 execution"));
}
