//! The end of executions that finished long ago.

use abide_store::Prune;

use crate::error::Stop;
use crate::rows;
use crate::shared::Shared;
use crate::sql;

/// The most executions that are deleted in one transaction.
const STRETCH_COUNT_MAX: usize = 1_000;

pub(crate) async fn prune(shared: &Shared, prune: &Prune) -> Result<u64, Stop> {
    let mut connection = shared.pool.take().await?;
    let horizon = prune.finished_before.as_micros();
    let mut count = 0;
    while count < prune.limit {
        let wanted = (prune.limit - count).min(STRETCH_COUNT_MAX);
        connection.begin(sql::BEGIN).await?;
        let pruned = async {
            let old = connection.rows(sql::PRUNE_OLD, &[&horizon, &rows::limit(wanted)]).await?;
            let old: Vec<i64> = old.iter().map(|row| Ok(row.try_get(0)?)).collect::<Result<_, Stop>>()?;
            let locked = connection.rows(sql::PRUNE_LOCK, &[&old, &horizon]).await?;
            let locked: Vec<i64> =
                locked.iter().map(|row| Ok(row.try_get(0)?)).collect::<Result<_, Stop>>()?;
            connection.change(sql::PRUNE, &[&locked]).await?;
            Ok::<_, Stop>((old.len(), locked.len()))
        };
        let pruned = pruned.await;
        let Ok((found_count, pruned_count)) = pruned else {
            connection.undo().await;
            return pruned.map(|_| 0);
        };
        connection.end(sql::COMMIT).await?;
        count += pruned_count;
        if found_count < wanted || pruned_count == 0 {
            break;
        }
    }
    connection.change(sql::PRUNE_SESSIONS, &[&horizon]).await?;
    connection.change(sql::REFUSALS_PRUNE, &[&horizon]).await?;
    Ok(count as u64)
}
