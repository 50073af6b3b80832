//! docs/guide/operating.md.

use abide::prelude::*;
use serde::{Deserialize, Serialize};

/// The application's own state.
struct App {
    till: &'static str,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Receipt {
    till: String,
}

#[workflow]
async fn pays(ctx: Ctx) -> Result<Receipt> {
    ctx.step("pay", || async { Ok(Receipt { till: ctx.state::<App>().till.to_string() }) }).await
}

async fn serve(url: String, stop: impl Future) -> Result<()> {
    let abide = Abide::builder(url).shutdown_grace(secs(60)).open().await?;
    // For example tokio::signal::ctrl_c().
    stop.await;
    abide.shutdown().await;
    Ok(())
}

async fn open(url: String, give_back: fn()) -> Result<Abide, ClientError> {
    // With mimalloc: || unsafe { libmimalloc_sys::mi_collect(true) }
    // With the system's allocator on Linux: || _ = unsafe { libc::malloc_trim(0) }
    Abide::builder(url).on_idle(give_back).open().await
}

#[tokio::test]
async fn a_worker_gives_back_memory_when_it_is_idle() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}/app.db", folder.path().display());
    open(url, || ()).await?.shutdown().await;
    Ok(())
}

#[tokio::test]
async fn a_process_serves_until_it_is_asked_to_stop() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}/app.db", folder.path().display());
    serve(url, std::future::ready(())).await
}

#[tokio::test]
async fn a_store_is_opened_and_waited_for() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}/app.db", folder.path().display());
    let app = App { till: "1" };
    let abide = Abide::builder(url).worker_name("web-1").state(app).open().await?;
    abide.start(pays, ()).id("order-42").await?;
    let receipt = abide.handle::<Receipt>("order-42").result().through_blocks().await?;
    assert_eq!(receipt, Receipt { till: "1".to_string() });
    abide.shutdown().await;
    Ok(())
}
