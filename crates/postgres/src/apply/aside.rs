//! Executions that their holders cannot read.

use abide_core::{Epoch, Lease, SessionId};
use abide_store::{Aside, NEWER_PAUSE, Unreadable};

use super::session::{Released, release_locked};
use crate::board::News;
use crate::connection::Connection;
use crate::error::Stop;
use crate::floors::Marks;
use crate::pool::Pooled;
use crate::rows;
use crate::shared::Shared;
use crate::sql;

pub(crate) async fn set_aside(shared: &Shared, aside: &Aside) -> Result<(), Stop> {
    let mut connection = shared.pool.take().await?;
    set_aside_on(shared, &mut connection, aside).await
}

/// Takes an execution from its holder. Under another lease, nothing changes.
pub(super) async fn set_aside_on(
    shared: &Shared,
    connection: &mut Pooled<'_>,
    aside: &Aside,
) -> Result<(), Stop> {
    let Aside { key, lease, unreadable } = aside;
    let (key, epoch, session) =
        (rows::integer(key.0), rows::integer(lease.epoch.0), rows::integer(lease.session.0));
    if let Unreadable::Damaged(what) = unreadable {
        tracing::error!(key, %what, "an execution is set aside");
        connection.change(sql::SET_ASIDE, &[&key, &epoch, &session]).await?;
        return Ok(());
    }
    let now = shared.now();
    connection.begin(sql::BEGIN).await?;
    let locked = connection.rows(sql::LEASE_LOCK, &[&key, &epoch, &session]).await;
    let released = match locked {
        Ok(locked) if locked.is_empty() => Ok(Marks::new()),
        Ok(_) => {
            let released = Released { takeovers: 0, wake_at: Some(now.after(NEWER_PAUSE)) };
            release_locked(connection, &[key], &released, now).await
        }
        Err(stop) => Err(stop),
    };
    let Ok(marks) = released else {
        connection.undo().await;
        return released.map(|_| ());
    };
    connection.end(sql::COMMIT).await?;
    let routes: Vec<i32> = marks.keys().map(|(route, _)| *route).collect();
    let routes = shared.routes.named(connection, &routes).await?;
    let queued = marks.into_iter().map(|(line, floor)| News::Queued(line, floor));
    shared.board.tell(queued.chain(routes.into_values().map(News::Timer)).collect());
    Ok(())
}

/// Returns the lease under which a session holds an execution.
pub(super) async fn lease_of(
    connection: &Connection,
    key: i64,
    session: SessionId,
) -> Result<Option<Lease>, Stop> {
    let id = rows::integer(session.0);
    let Some(row) = connection.maybe_row(sql::LEASE_OF, &[&key, &id]).await? else { return Ok(None) };
    Ok(Some(Lease { session, epoch: Epoch(rows::unsigned(row.try_get(0)?)) }))
}
