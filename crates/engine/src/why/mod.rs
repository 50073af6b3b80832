//! Explains why an execution is where it is: looks up the facts; `sentence` puts them into words.

mod sentence;
mod waits;

use std::collections::VecDeque;

use abide_core::planted::{Bug, planted};
use abide_core::{
    Address, Entry, ExecutionId, Message, Namespace, Refusal, SessionId, Status, Timestamp, Waiting, text,
};
use abide_store::{
    Error, InboxRead, Leases, List, Read, Record, Snapshot, Store, Target, Trouble, WorkerRow, Workers,
};
use sentence::{Ahead, Child, Facts, Held, Suspect};

use crate::engine::Inner;

/// The maximum number of pages of an inbox that are read beyond the first.
const INBOX_PAGE_COUNT_MAX: usize = 100;
/// The maximum length of a chain of children that is followed.
const DEPTH_MAX: usize = 16;
/// The number of entries at the end of the journal that may explain something.
const TAIL_COUNT: u64 = 32;
/// The maximum number of their bytes that are kept, unless the last entry is larger.
const TAIL_BYTES_MAX: usize = 2 << 20;
/// The maximum number of executions that are read to count the ones that go first.
const AHEAD_COUNT_MAX: usize = 1_000;
/// The maximum number of workers that are asked whether they keep others out.
const ABLE_COUNT_MAX: usize = 4;
/// The maximum number of executions of a worker that are read for that.
const LEASE_COUNT_MAX: usize = 64;
/// The maximum number of pages that are read to find executions that go first: a large store has
/// many others between.
const AHEAD_PAGE_COUNT_MAX: usize = 5;

/// Returns the status of an execution and the sentence about it, for callers that know only the
/// store: they cannot see whether code runs. An execution that a newer version of abide wrote has
/// no status here.
pub async fn explain(
    store: &dyn Store,
    address: &Address,
    now: Timestamp,
) -> Result<(Option<Status>, String), Error> {
    explain_beside(store, None, address, now).await
}

/// Returns the same beside an engine, which knows the executions that it runs.
pub(crate) async fn explain_beside(
    store: &dyn Store,
    engine: Option<&Inner>,
    address: &Address,
    now: Timestamp,
) -> Result<(Option<Status>, String), Error> {
    let witness = Witness { store, engine, now };
    let unknown = || Error::Refused(Refusal::Unknown { id: address.id.clone() });
    let facts = match witness.facts(address).await {
        // The sentence about an unreadable execution says just that.
        Err(Error::Corrupt { what }) => {
            let sentence = format!("{:?} is damaged: {what}; {}.", address.id, text::ways_out(&address.id));
            return Ok((Some(Status::Damaged), text::clean(&sentence).into_owned()));
        }
        Err(Error::Unread { source, .. }) => {
            let sentence = format!("{:?} cannot be read now, and is tried again: {source}.", address.id);
            return Ok((None, text::clean(&sentence).into_owned()));
        }
        Err(Error::Newer { .. }) => {
            let sentence = format!(
                "{:?} was written by a newer version of abide, and can be read by that only.",
                address.id
            );
            return Ok((None, text::clean(&sentence).into_owned()));
        }
        facts => facts?.ok_or_else(unknown)?,
    };
    Ok((Some(facts.snapshot.summary.status_at(now)), sentence::of(&facts)))
}

/// The point of view of an explanation: the store, perhaps an engine, and the time.
struct Witness<'a> {
    store: &'a dyn Store,
    engine: Option<&'a Inner>,
    now: Timestamp,
}

impl Witness<'_> {
    /// Returns the facts about an execution and the chain of children that it waits for.
    async fn facts(&self, address: &Address) -> Result<Option<Facts>, Error> {
        let Some(first) = self.one(address).await? else { return Ok(None) };
        let mut chain = vec![first];
        let mut end = None;
        while let Some(last) = chain.last_mut() {
            let Some(id) = self.awaited_child(last, &address.namespace).await? else { break };
            last.followed = Some(id.clone());
            if planted(Bug::BlockedChildUnnamed) {
                break;
            }
            if chain.len() == DEPTH_MAX {
                end = Some(Child::TooDeep);
                break;
            }
            let address = Address { namespace: address.namespace.clone(), id };
            match self.one(&address).await {
                Ok(Some(facts)) => {
                    chain.push(facts);
                    continue;
                }
                Ok(None) => end = Some(Child::Missing),
                // The damage is the child's, not that of the execution that waits for it.
                Err(Error::Corrupt { what }) => end = Some(Child::Damaged(what)),
                Err(Error::Newer { .. }) => end = Some(Child::Newer),
                Err(Error::Unread { source, .. }) => end = Some(Child::Unread(source.to_string())),
                Err(error) => return Err(error),
            }
            break;
        }
        let whole = chain.into_iter().rev().fold(None, |below: Option<Facts>, mut facts| {
            facts.child = below.map(|facts| Child::Known(Box::new(facts))).or(end.take());
            Some(facts)
        });
        let Some(mut whole) = whole else { return Ok(None) };
        whole.trouble = self.trouble().await;
        Ok(Some(whole))
    }

    /// Returns the reason why the store cannot write. A store that cannot report a reason shows it
    /// by the operations that fail.
    async fn trouble(&self) -> Option<Held> {
        match self.store.trouble().await.ok()?? {
            Trouble::Occupied { by, since } => {
                let read = Read { target: Target::Key(by), run: None, from: 0, limit: 0, with_inbox: false };
                let found = self.store.read(read).await.ok().flatten();
                Some(Held::By(found.map(|found| found.execution.address().id.clone()), since))
            }
            trouble => Some(Held::Up(trouble)),
        }
    }

    /// Returns the child to describe: of several that it waits for, the first that cannot go on by
    /// itself.
    async fn awaited_child(
        &self,
        facts: &Facts,
        namespace: &Namespace,
    ) -> Result<Option<ExecutionId>, Error> {
        let ids: Vec<_> = facts.snapshot.summary.waiting.iter().filter_map(child_of).collect();
        for id in ids.iter().filter(|_| ids.len() > 1) {
            let address = Address { namespace: namespace.clone(), id: (*id).clone() };
            if is_stuck(self.seen(&address).await)? {
                return Ok(Some(address.id));
            }
        }
        Ok(ids.first().map(|id| (*id).clone()))
    }

    async fn one(&self, address: &Address) -> Result<Option<Facts>, Error> {
        let Self { store, now, .. } = *self;
        let Some((mut snapshot, is_seated)) = self.seen(address).await? else { return Ok(None) };
        // An order may lie behind many signals. The sentence does not show the payloads of signals.
        let keep = |message: Message| Message { body: message.body.emptied(), ..message };
        read_on(store, &mut snapshot, INBOX_PAGE_COUNT_MAX, keep).await?;
        let tail = tail(store, &snapshot).await?;
        let workers = workers(store, address, snapshot.lease.session, now).await?;
        let mut facts = Facts {
            snapshot,
            tail,
            workers,
            is_seated,
            ahead: Ahead::default(),
            suspect: None,
            followed: None,
            child: None,
            trouble: None,
            now,
        };
        if facts.is_queued() {
            facts.ahead = ahead(store, &facts.snapshot).await?;
            facts.suspect = suspect(store, &facts).await?;
        }
        Ok(Some(facts))
    }

    /// Returns an execution and whether it runs here; `None` where that cannot be seen. An
    /// execution that leaves between the two looks is looked at again.
    async fn seen(&self, address: &Address) -> Result<Option<(Snapshot, Option<bool>)>, Error> {
        const LOOK_COUNT: usize = 3;
        let mut unseated = None;
        for _ in 0..LOOK_COUNT {
            let Some(found) = snapshot(self.store, address).await? else { return Ok(None) };
            let is_seated = self.engine.and_then(|engine| engine.has_seat(found.key, &found.lease));
            let is_same = |before: &(Snapshot, _)| before.0.lease == found.lease;
            if is_seated != Some(false) || unseated.as_ref().is_some_and(is_same) {
                return Ok(Some((found, is_seated)));
            }
            unseated = Some((found, is_seated));
        }
        Ok(unseated)
    }
}

fn child_of(wait: &Waiting) -> Option<&ExecutionId> {
    match wait {
        Waiting::Child { id } => Some(id),
        _ => None,
    }
}

/// Whether an execution needs somebody's help, by the answer to a look at it. A row that cannot be
/// read does too; a store that cannot answer is an error.
fn is_stuck(seen: Result<Option<(Snapshot, Option<bool>)>, Error>) -> Result<bool, Error> {
    match seen {
        Ok(Some((found, _))) => {
            Ok(matches!(found.summary.status, Status::Blocked | Status::Damaged | Status::Paused))
        }
        Ok(None) | Err(Error::Corrupt { .. } | Error::Newer { .. } | Error::Unread { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Returns an execution without its journal, and the first page of its unread messages.
pub async fn snapshot(store: &dyn Store, address: &Address) -> Result<Option<Snapshot>, Error> {
    let target = Target::Address(address.clone());
    store.read(Read { target, run: None, from: 0, limit: 0, with_inbox: true }).await
}

/// Reads on in the inbox of a snapshot, by at most `page_count_max` pages. If the inbox then still
/// has a next page, the rest was left out. `keep` reduces a message to the part that is kept: an
/// inbox may be larger than the memory.
pub async fn read_on(
    store: &dyn Store,
    snapshot: &mut Snapshot,
    page_count_max: usize,
    keep: impl Fn(Message) -> Message,
) -> Result<(), Error> {
    for _ in 0..page_count_max {
        let Some(after) = snapshot.inbox.next else { break };
        let read = InboxRead { after: Some(after), ..InboxRead::first(snapshot.key) };
        let page = store.inbox(read).await?;
        snapshot.inbox.messages.extend(page.messages.into_iter().map(&keep));
        snapshot.inbox.next = page.next;
    }
    Ok(())
}

/// Returns the last entries of the journal. A store returns fewer entries at once than it is asked
/// for when they are large, so this reads on to the end, and keeps the last of the large ones.
async fn tail(store: &dyn Store, snapshot: &Snapshot) -> Result<Vec<Entry>, Error> {
    let (key, last) = (snapshot.key, snapshot.execution.entry_count());
    let mut from = last.saturating_sub(TAIL_COUNT - 1).max(1);
    let mut tail = VecDeque::new();
    let mut bytes = 0;
    while from <= last {
        let limit = usize::try_from(last + 1 - from).unwrap_or(usize::MAX);
        let read = Read { target: Target::Key(key), run: None, from, limit, with_inbox: false };
        // If the execution has gone on to another run meanwhile, its last entries are left out.
        let same_run = |found: &Snapshot| found.execution.run() == snapshot.execution.run();
        let page = store.read(read).await?.filter(same_run).map(|found| found.journal).unwrap_or_default();
        let Some(read_to) = page.last().map(|record| record.seq) else { break };
        from = read_to + 1;
        for record in page {
            bytes += record.bytes.len();
            tail.push_back(record);
        }
        while bytes > TAIL_BYTES_MAX && tail.len() > 1 {
            bytes -= tail.pop_front().map_or(0, |record| record.bytes.len());
        }
    }
    tail.iter().map(Record::entry).collect()
}

/// Returns the live workers of the namespace, and the one that holds the execution, live or not.
pub async fn workers(
    store: &dyn Store,
    address: &Address,
    holder: Option<SessionId>,
    now: Timestamp,
) -> Result<Vec<WorkerRow>, Error> {
    const PAGE_COUNT: usize = 1_000;
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let query = Workers { namespace: address.namespace.clone(), after, limit: PAGE_COUNT };
        let page = store.workers(query).await?;
        after = page.last().map(|row| row.session);
        let is_last = page.len() < PAGE_COUNT;
        found.extend(page.into_iter().filter(|row| row.is_live(now) || Some(row.session) == holder));
        if is_last {
            return Ok(found);
        }
    }
}

/// Counts the executions of the same route that are ready and go first.
async fn ahead(store: &dyn Store, snapshot: &Snapshot) -> Result<Ahead, Error> {
    let mut list = List {
        statuses: Status::ALL.into_iter().filter(|status| may_be_ready(*status)).collect(),
        name: Some(snapshot.execution.name().clone()),
        ..List::of(snapshot.execution.address().namespace.clone(), AHEAD_COUNT_MAX)
    };
    let mut ahead = Ahead::default();
    for _ in 0..AHEAD_PAGE_COUNT_MAX {
        let page = store.list(list.clone()).await?;
        list.limit = list.limit.saturating_sub(page.items.len());
        list.after = page.next;
        for item in page.items {
            let read =
                Read { target: Target::Key(item.key), run: None, from: 0, limit: 0, with_inbox: false };
            let other = match store.read(read).await {
                // A claim would set it aside, or leave it out.
                Err(error) if error.is_of_one() => continue,
                other => other?,
            };
            ahead.count += u64::from(other.is_some_and(|other| goes_before(&other, snapshot)));
        }
        if list.after.is_none() || list.limit == 0 {
            break;
        }
    }
    ahead.is_more = list.after.is_some();
    Ok(ahead)
}

/// Returns the suspect because of which no worker lets the execution in: it runs alone, or waits
/// for that. Returns `None` when one of the workers has no suspect.
async fn suspect(store: &dyn Store, facts: &Facts) -> Result<Option<Suspect>, Error> {
    let route = facts.snapshot.execution.route();
    let mut found = None;
    for row in facts.able(&route).take(ABLE_COUNT_MAX) {
        let Some(suspect) = suspect_of(store, row).await? else { return Ok(None) };
        found.get_or_insert(suspect);
    }
    Ok(found)
}

async fn suspect_of(store: &dyn Store, row: &WorkerRow) -> Result<Option<Suspect>, Error> {
    let leases = Leases { session: row.session, after: None, limit: LEASE_COUNT_MAX };
    for held in store.leases(leases).await?.leases {
        let target = Target::Key(held.key);
        let read = Read { target, run: None, from: 0, limit: 0, with_inbox: false };
        let other = match store.read(read).await {
            Err(error) if error.is_of_one() => continue,
            other => other?.filter(|other| other.lease.session == Some(row.session)),
        };
        if let Some(suspect) = other.and_then(|other| Suspect::of(&other, row)) {
            return Ok(Some(suspect));
        }
    }
    Ok(None)
}

fn may_be_ready(status: Status) -> bool {
    !status.is_terminal() && status != Status::Damaged
}

/// Whether `other` is claimed before `this`: higher priority first, then the one that has been
/// ready for longer.
fn goes_before(other: &Snapshot, this: &Snapshot) -> bool {
    let (Some(other_since), Some(since)) = (other.ready_at, this.ready_at) else { return false };
    let rank = |snapshot: &Snapshot, since| (-i32::from(snapshot.execution.priority()), since);
    other.key != this.key
        && other.lease.session.is_none()
        && other.execution.route() == this.execution.route()
        && rank(other, other_since) < rank(this, since)
}
