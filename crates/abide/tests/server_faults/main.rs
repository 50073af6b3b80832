//! What a PostgreSQL server and the way to it can do to the processes that use it: restarts, killed
//! connections, lost answers, limits, a full disk. Nothing that was acknowledged is lost, no
//! recorded step runs again, and everything goes on soon after.
//!
//! Each test has a server of its own, which it may hurt. `ABIDE_TEST_LONG=1` hurts it for longer.
#![cfg(feature = "postgres")]

mod clock;
mod cuts;
mod limits;
mod load;
mod restarts;
mod server;
