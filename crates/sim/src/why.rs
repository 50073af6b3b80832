//! Is it true what `why` says? It is compared with what the simulator knows by itself: who is alive, who was given which lease, and what the model says that a program waits for.

use std::collections::BTreeMap;
use std::sync::Arc;

use abide::prelude::*;
use abide_core::{Address, ExecutionId, Namespace};
use abide_store::{Read, Snapshot, Target};

use crate::audit;
use crate::generate::SESSION_TTL_MS;
use crate::history::{Answer, Happened};
use crate::world::World;

/// How long after its death a machine may still be believed to live: its session, and clocks that differ.
const BELIEVED_MS: i64 = SESSION_TTL_MS as i64 + 10_000;

/// What `why` was asked about, before it answered.
pub(crate) struct Asked(Snapshot);

impl World {
    /// Looks at what `why` is about to be asked of.
    pub(crate) async fn before_why(&self, id: Option<&str>) -> Option<Asked> {
        self.look(id?).await.map(Asked)
    }

    /// Compares what it said with what is known, if that has not changed meanwhile.
    pub(crate) async fn after_why(self: &Arc<Self>, asked: Option<Asked>, answer: &Answer) {
        let (Some(Asked(before)), Answer::Told(sentence)) = (asked, answer) else { return };
        let id = before.execution.address().id.clone();
        let Some(after) = self.look(id.as_str()).await else { return };
        let is_same = before.lease == after.lease;
        if !is_same || before.ready_at != after.ready_at {
            return;
        }
        let untrue = match self.untrue(sentence, &after) {
            None => self.unwanted(sentence, &after).await,
            found => found,
        };
        if let Some(untrue) = untrue {
            self.history.add(Happened::Wrong(format!("why says {sentence:?}, but {untrue}")));
        }
    }

    async fn look(&self, id: &str) -> Option<Snapshot> {
        let target =
            Target::Address(Address { namespace: Namespace::default(), id: ExecutionId::new(id).ok()? });
        let read = Read { target, run: None, from: 0, limit: 0, with_inbox: false };
        self.store.read(read).await.ok().flatten()
    }

    /// What the simulator knows better about its state and its holder.
    fn untrue(&self, sentence: &str, found: &Snapshot) -> Option<String> {
        let status = found.summary.status;
        let word = match status {
            Status::Completed => " completed at ",
            Status::Failed => " failed at ",
            Status::Cancelled => " was cancelled at ",
            Status::Paused => " is paused",
            Status::Blocked => " is blocked",
            _ => return self.untrue_holder(sentence, found),
        };
        (!sentence.contains(word)).then(|| format!("it is {status}"))
    }

    fn untrue_holder(&self, sentence: &str, found: &Snapshot) -> Option<String> {
        let own = sentence.split(", which ").next().unwrap_or_default();
        let told = [" is running on worker \"worker-", ", held by worker \"worker-"];
        let (_, rest) = told.iter().find_map(|words| own.split_once(words))?;
        let machine: u32 = rest.split('"').next()?.parse().ok()?;
        let state = self.lock();
        if let Some(holder) = state.held.get(&found.key).filter(|holder| **holder != machine) {
            return Some(format!("machine {holder} holds it"));
        }
        let died_at = state.deaths.get(&machine)?;
        let ago_ms = (self.now_micros() - died_at) / 1_000;
        (ago_ms > BELIEVED_MS).then(|| format!("that machine died {ago_ms} ms ago"))
    }

    /// What rests waits for just what the model says that its program waits for.
    async fn unwanted(self: &Arc<Self>, sentence: &str, found: &Snapshot) -> Option<String> {
        let is_resting = found.lease.session.is_none() && found.ready_at.is_none();
        if !is_resting || !matches!(found.summary.status, Status::Waiting | Status::Sleeping) {
            return None;
        }
        let own = sentence.split(", which ").next().unwrap_or_default();
        let wanted = |words: &str, op: &str| {
            let (_, rest) = own.split_once(words)?;
            Some(format!("({op:?}, \"{}\"", rest.split('"').next()?))
        };
        let signal = wanted("waiting for signal \"", "signal")?;
        let open = audit::open_operations(self, found).await?;
        let is_open = open.iter().any(|op| op.starts_with(&signal));
        (!is_open).then(|| format!("its program waits for {open:?}"))
    }
}

/// When each machine died.
pub(crate) type Deaths = BTreeMap<u32, i64>;
