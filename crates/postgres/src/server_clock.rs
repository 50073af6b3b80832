//! The clock of the server, which all processes on it go by.
//!
//! Leases, timers and their order are compared across machines. Safety does not rest on clocks,
//! but a machine whose clock is ahead would take executions from workers that live, and one whose
//! clock is behind would let timers wait.

use abide_store::Clock;

use crate::connection::Connection;
use crate::error::Stop;
use crate::sql;

/// A clock that is off by less is right: the answer took some time too.
const OFF_US_MIN: u64 = 10_000;

/// Compares the clock with the server's, and has it follow.
pub(crate) async fn set(clock: &dyn Clock, connection: &Connection) -> Result<(), Stop> {
    let asked_at = clock.now().as_micros();
    let there: i64 = connection.row(sql::CLOCK, &[]).await?.try_get(0)?;
    if let Some(ahead_us) = ahead(asked_at, there, clock.now().as_micros()) {
        tracing::debug!(ahead_us, "the clock follows that of the database server");
        clock.follow(ahead_us);
    }
    Ok(())
}

/// Returns how far the server is ahead, unless the time that the answer took explains it.
fn ahead(asked_at: i64, there: i64, answered_at: i64) -> Option<i64> {
    let took = answered_at.saturating_sub(asked_at).max(0);
    let ahead = there.saturating_sub(asked_at.saturating_add(took / 2));
    (ahead.unsigned_abs() > OFF_US_MIN.max(took.unsigned_abs() / 2)).then_some(ahead)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_answer_is_no_reason_to_set_the_clock() {
        for (asked_at, there, answered_at, expected) in [
            (0, 5_000, 1_000, None),
            (0, 3_600_000_000, 1_000, Some(3_599_999_500)),
            (3_600_000_000, 0, 3_600_001_000, Some(-3_600_000_500)),
            (0, 2_000_000, 4_000_000, None),
            (0, 5_000_000, 4_000_000, Some(3_000_000)),
            (1_000_000, 0, 0, Some(-1_000_000)),
        ] {
            assert_eq!(ahead(asked_at, there, answered_at), expected, "{asked_at} {there} {answered_at}");
        }
    }
}
