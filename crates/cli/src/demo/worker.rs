//! The process that is killed: an ordinary worker, which is told nothing but where the store is.

use std::path::PathBuf;

use abide::Abide;

use super::effects::Effects;
use super::order::{self, Receipt};
use crate::failure::Failure;

/// What the process is told.
#[derive(Debug, clap::Args)]
pub(crate) struct WorkerArgs {
    /// The file of effects
    #[arg(long)]
    effects: PathBuf,
    /// The store's URL
    #[arg(long)]
    url: String,
}

/// Works until the order is finished.
pub(crate) fn run(args: &WorkerArgs) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build()?;
    runtime.block_on(async {
        let builder = Abide::builder(&args.url).worker_name("demo").state(Effects::at(&args.effects));
        let abide = builder.open().await?;
        abide.handle::<Receipt>(order::ID).result().await?;
        abide.shutdown().await;
        Ok::<(), Failure>(())
    })?;
    // The process ends here anyway. Torn down, the runtime once met the heartbeat's thread asleep on its timer, which panicked.
    std::mem::forget(runtime);
    Ok(())
}
