//! Who may be helped to an end, once nothing goes wrong any longer: nobody whom somebody else has to tell of it.

use std::collections::BTreeMap;

use abide_core::Phase;
use abide_store::{Listed, Read, Snapshot, Target};

use crate::ending::executions;
use crate::world::World;

/// Every execution as it stands, by its id.
type Standing = BTreeMap<String, Snapshot>;

/// Those that may be helped to their end. A child whose parent has ended is left to itself: somebody has to tell it, or to have told it, without that.
pub(crate) async fn helpable(world: &World, open: Vec<Listed>) -> Vec<Listed> {
    let standing = standing(world).await;
    let mut helpable = Vec::new();
    for item in open {
        let is_orphan = standing.get(item.address.id.as_str()).is_some_and(|it| is_orphan(&standing, it));
        helpable.extend((!is_orphan).then_some(item));
    }
    helpable
}

async fn standing(world: &World) -> Standing {
    let mut standing = Standing::new();
    for item in executions(&*world.store, None).await.unwrap_or_default() {
        let target = Target::Key(item.key);
        let read = Read { target, run: None, from: u64::MAX, limit: 0, with_inbox: false };
        if let Ok(Some(snapshot)) = world.store.read(read).await {
            standing.insert(item.address.id.to_string(), snapshot);
        }
    }
    standing
}

fn is_over(snapshot: &Snapshot) -> bool {
    snapshot.summary.status.is_terminal()
}

/// Whether the run that started it has ended, and it knows nothing of that.
fn is_orphan(standing: &Standing, snapshot: &Snapshot) -> bool {
    let Some(parent) = snapshot.execution.parent() else { return false };
    let Some(of_parent) = standing.get(parent.id.as_str()) else { return false };
    let run = of_parent.execution.run();
    let has_ended = run > parent.run || (run == parent.run && is_over(of_parent));
    // Who was retried, or continued as new, may have been forgotten by then.
    let knows_nothing = matches!(snapshot.execution.phase(), Phase::Running | Phase::Paused { .. });
    has_ended && knows_nothing && snapshot.execution.run() == 1
}
