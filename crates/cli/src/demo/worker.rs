//! The process that is killed: an ordinary worker, which knows nothing but the store's location.

use std::path::PathBuf;

use abide::Abide;

use super::effects::Effects;
use super::order::{self, Receipt};
use crate::command_error::CommandError;

/// Options of the worker process.
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
pub(crate) fn run(args: &WorkerArgs) -> Result<(), CommandError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build()?;
    runtime.block_on(async {
        let builder = Abide::builder(&args.url).worker_name("demo").state(Effects::at(&args.effects));
        let abide = builder.open().await?;
        abide.handle::<Receipt>(order::ID).result().await?;
        abide.shutdown().await;
        Ok::<(), CommandError>(())
    })?;
    // The process ends here anyway. A teardown of the runtime once panicked: it met the heartbeat's
    // thread asleep on its timer.
    std::mem::forget(runtime);
    Ok(())
}
