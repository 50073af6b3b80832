//! The process that is killed: an ordinary worker, which knows nothing but the store's location.

use std::path::PathBuf;

use abide::{Abide, StoreUrl, secs};

use super::effects::Effects;
use super::order::{self, Receipt};
use super::stage;
use crate::args::Global;
use crate::command_error::CommandError;
use crate::connect;

/// Options of the worker process.
#[derive(Debug, clap::Args)]
pub(crate) struct WorkerArgs {
    /// The file of effects
    #[arg(long)]
    effects: PathBuf,
}

/// Works until the order is finished.
pub(crate) fn run(global: &Global, args: &WorkerArgs) -> Result<(), CommandError> {
    let store = connect::named(global)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let builder = Abide::builder(stage::url(&store))
            .namespace(global.namespace.as_str())
            .worker_name("demo")
            .state(Effects::at(&args.effects));
        let builder = match store {
            // Nobody sees that a process on another machine is gone, so its session has to expire.
            StoreUrl::Postgres(_) => builder.session_ttl(secs(2)),
            _ => builder,
        };
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
