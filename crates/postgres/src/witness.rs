//! Whether the database still has what it has acknowledged.
//!
//! A standby that lacks the last commits may take the place of a server, and so may an older copy.
//! The commits that were acknowledged since are gone then, and recorded steps would run again, in
//! silence. So a process remembers the last of its commits and looks for it on each new connection:
//! none of the old ones outlives the server. What the server keeps is the beginning of a log, so
//! one commit that is there stands for all before it.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use abide_core::Timestamp;
use abide_store::{Clock, Commit, Error};

use crate::connection::Connection;
use crate::error::Stop;
use crate::{rows, sql};

/// For so long, an execution that is gone was not pruned.
const PRUNED_AFTER: Duration = Duration::from_secs(600);

pub(crate) struct Witness {
    clock: Arc<dyn Clock>,
    known: Mutex<Known>,
    lost: OnceLock<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Known {
    server: Option<Server>,
    last: Option<Last>,
}

/// What names a server and its past. A standby that takes the place of another has a new timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Server {
    system: String,
    timeline: i32,
}

/// The last commit whose execution is not over: one that is may be pruned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Last {
    key: i64,
    version: i64,
    at: Timestamp,
}

/// What a new connection finds.
struct Found {
    server: Server,
    /// The version of the execution of the last commit.
    version: Option<i64>,
}

impl Witness {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, known: Mutex::default(), lost: OnceLock::new() }
    }

    /// Remembers a commit that was acknowledged.
    pub(crate) fn note(&self, commit: &Commit) {
        if commit.changes.summary.status.is_terminal() {
            return;
        }
        let (key, version) = (rows::integer(commit.key.0), rows::integer(commit.expected.0 + 1));
        let at = self.clock.now();
        self.known.lock().unwrap_or_else(PoisonError::into_inner).last = Some(Last { key, version, at });
    }

    /// Refuses everything once something was lost: a process that goes on would build on it.
    pub(crate) fn check(&self) -> Result<(), Stop> {
        self.lost().map_or(Ok(()), |lost| {
            Err(Stop::Told(Error::Unavailable { what: "connect", source: lost.into() }))
        })
    }

    pub(crate) fn lost(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }

    /// Compares what a new connection finds with what this process knows.
    pub(crate) async fn question(&self, connection: &Connection) -> Result<(), Stop> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let key = known.last.map(|last| last.key);
        let row = connection.row(sql::WITNESS, &[&key]).await?;
        let server = Server { system: row.try_get(0)?, timeline: row.try_get(1)? };
        let found = Found { server, version: row.try_get(2)? };
        if let Some(lost) = known.lost(&found, self.clock.now()) {
            tracing::error!("{lost}");
            let _ = self.lost.set(lost);
        }
        self.known.lock().unwrap_or_else(PoisonError::into_inner).server = Some(found.server);
        self.check()
    }
}

impl Known {
    /// Says which commits are lost, if any are.
    fn lost(&self, found: &Found, now: Timestamp) -> Option<String> {
        let is_new = self.server.as_ref().is_some_and(|server| *server != found.server);
        if self.server.as_ref().is_some_and(|server| server.system != found.server.system) {
            return Some("another database cluster has taken the place of the server".to_owned());
        }
        let Last { key, version, at } = self.last?;
        let has = match found.version {
            Some(has) if has >= version => return None,
            Some(has) => format!("execution number {key} has version {has} of {version}"),
            None if is_new || now.since(at) < PRUNED_AFTER => format!("execution number {key} is gone"),
            None => return None,
        };
        let timeline = found.server.timeline;
        Some(format!(
            "the server has lost commits that it had acknowledged: {has}. A standby without the last \
             commits, or an older copy, has taken its place (timeline {timeline}). This process stops \
             using it; restart the workers to accept the loss"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_told_from_a_restart_a_failover_and_a_prune() {
        let at = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000);
        let server = |system: &str, timeline| Server { system: system.to_owned(), timeline };
        let last = Some(Last { key: 7, version: 5, at: at(0) });
        let known = Known { server: Some(server("a", 1)), last };
        for (found, now, is_lost) in [
            (Found { server: server("a", 1), version: Some(5) }, 1, false),
            (Found { server: server("a", 2), version: Some(6) }, 1, false),
            (Found { server: server("a", 2), version: Some(4) }, 1, true),
            (Found { server: server("a", 1), version: Some(4) }, 9_999, true),
            (Found { server: server("a", 1), version: None }, 1, true),
            (Found { server: server("a", 1), version: None }, 9_999, false),
            (Found { server: server("a", 2), version: None }, 9_999, true),
            (Found { server: server("b", 1), version: Some(5) }, 1, true),
        ] {
            let told = known.lost(&found, at(now));
            assert_eq!(told.is_some(), is_lost, "{:?} {:?}: {told:?}", found.server, found.version);
        }
        let fresh = Known::default().lost(&Found { server: server("b", 1), version: None }, at(0));
        assert_eq!(fresh, None);
    }
}
