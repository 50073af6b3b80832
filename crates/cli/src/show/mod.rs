//! `abide show`: everything about one execution.

mod page;

use abide_core::planted::{Bug, planted};
use abide_core::{
    Address, Entry, Event, Execution, ExecutionId, Name, Op, Parent, Refusal, Sites, Status, text,
};
use abide_store::{Error, InboxRead, Read, Record, Snapshot, Store, Target, WorkerRow};
use serde_json::{Value, json};

use abide_engine::why;

use crate::args::{Global, Output, Show};
use crate::command_error::{Code, CommandError};
use crate::{clock, connect, json, output};

/// The most pages of unread messages that are shown after the first.
const INBOX_PAGE_COUNT_MAX: usize = 3;
/// The most pages before the shown entries that are searched for the places which these only name
/// by number.
const SITE_PAGE_COUNT_MAX: usize = 100;
/// The most unread messages that are shown of an inbox that cannot be read by pages.
const MESSAGE_COUNT_MAX: usize = 1_000;

/// Everything about the shown execution.
struct Picture {
    snapshot: Snapshot,
    journal: Vec<Entry>,
    /// The places in the code that the entries name.
    sites: Sites,
    /// The worker that holds the execution.
    holder: Option<WorkerRow>,
    children: Vec<Child>,
    /// Recorded operations that the code no longer asked for when the run completed.
    unused: Vec<Op>,
    why: String,
    /// The run whose journal is shown.
    run: u32,
    /// The next entry of the journal, if not all of it is shown.
    next: Option<u64>,
    /// Whether not all unread messages are shown.
    has_more_mail: bool,
    damage: Damage,
}

/// The unreadable parts of an execution, and why. The rest of it is shown.
#[derive(Default)]
struct Damage(Vec<String>);

impl Damage {
    /// Keeps an error that concerns this execution alone; returns any other.
    fn note(&mut self, error: Error) -> Result<(), CommandError> {
        if !error.is_of_one() {
            return Err(error.into());
        }
        let words = match error {
            Error::Corrupt { what } => what,
            error => error.to_string(),
        };
        let words = text::clean(&words).into_owned();
        if !self.0.contains(&words) {
            self.0.push(words);
        }
        Ok(())
    }
}

/// A child that one of the shown entries started.
struct Child {
    id: ExecutionId,
    found: Found,
}

/// The state of a child.
enum Found {
    /// The child can be read.
    Sound(Name, Status),
    /// The child is damaged.
    Damaged,
    /// The child cannot be read now, or not by this version.
    Unreadable,
    /// The child was deleted, or never began.
    Nothing,
}

impl Found {
    fn name(&self) -> Option<&str> {
        match self {
            Self::Sound(name, _) => Some(name.as_str()),
            Self::Damaged | Self::Unreadable | Self::Nothing => None,
        }
    }

    fn status(&self) -> Option<&'static str> {
        match self {
            Self::Sound(_, status) => Some(status.word()),
            Self::Damaged => Some(Status::Damaged.word()),
            Self::Unreadable => Some("unreadable"),
            Self::Nothing => None,
        }
    }
}

/// Shows an execution.
pub(crate) fn run(global: &Global, args: &Show) -> Result<(), CommandError> {
    let picture = connect::read(global, async |store| look(&*store, global, args).await)?;
    match global.output {
        Output::Table => output::write(page::of(&picture, clock::now()).as_bytes())?,
        format => output::document(&document(&picture), format)?,
    }
    if picture.damage.0.is_empty() {
        say_what_is_left(&picture, args);
        return Ok(());
    }
    let what = format!("not all of execution {:?} can be read", args.id);
    Err(CommandError::failed(with_ways_on(&what, &args.id)))
}

fn with_ways_on(what: &str, id: &ExecutionId) -> String {
    let id = text::argument(id.as_str());
    format!("{what}; abide why {id} says what can be done, and abide verify what is wrong")
}

fn say_what_is_left(picture: &Picture, args: &Show) {
    let (execution, id) = (&picture.snapshot.execution, &args.id);
    match picture.next {
        Some(next) if picture.run == execution.run() => {
            let entry_count = execution.entry_count();
            output::say(format_args!("{id:?} has {entry_count} entries: go on with --from {next}"));
        }
        Some(next) => output::say(format_args!(
            "run {} of {id:?} has more entries: go on with --from {next}",
            picture.run
        )),
        None => {}
    }
    if picture.has_more_mail {
        let what = match picture.snapshot.inbox.messages.len() {
            0 => "unread messages, none of which is shown".to_owned(),
            1 => "more unread messages than the first, which is shown".to_owned(),
            count => format!("more unread messages than the first {count}, which are shown"),
        };
        output::say(format_args!("{id:?} has {what}"));
    }
}

async fn look(store: &dyn Store, global: &Global, args: &Show) -> Result<Picture, CommandError> {
    let address = Address { namespace: global.namespace.clone(), id: args.id.clone() };
    let unknown = || Error::Refused(Refusal::Unknown { id: args.id.clone() });
    let mut damage = Damage::default();
    let (found, has_inbox) = match why::snapshot(store, &address).await {
        Err(error) if error.is_of_one() => (without_inbox(store, &address).await?, false),
        found => (found?, true),
    };
    let mut snapshot = found.ok_or_else(unknown)?;
    if !has_inbox || !read_on(store, &mut snapshot).await? {
        inbox_by_one(store, &mut snapshot, &mut damage).await?;
    }
    let inbox = &mut snapshot.inbox;
    let has_more_mail = inbox.next.is_some() || inbox.messages.len() > args.limit;
    inbox.messages.truncate(args.limit);
    let current = snapshot.execution.run();
    let run = args.run.filter(|_| !planted(Bug::ShownRunIgnored)).unwrap_or(current);
    if run > current {
        let message = format!("execution {:?} has no run {run}: it is in run {current}", args.id.as_str());
        return Err(CommandError::new(Code::Unknown, message));
    }
    let mut journal = journal(store, (&snapshot, run), args, &mut damage).await?;
    // One entry more than is shown reveals whether there are more.
    let next = journal.get(args.limit).filter(|_| args.limit > 0).map(|entry| entry.seq);
    journal.truncate(args.limit);
    let sites = sites(store, (&snapshot, run), &journal).await?;
    let session = snapshot.lease.session;
    let mut workers = why::workers(store, &address, session, clock::now()).await?.into_iter();
    let holder = workers.find(|row| Some(row.session) == session);
    let children = children(store, (&snapshot.execution, run), &journal).await?;
    let unused = match run == current {
        true => unused(store, &snapshot).await.or_else(|error| damage.note(error).map(|()| Vec::new()))?,
        false => unused_at_the_end(&journal),
    };
    let (_, why) = why::explain(store, &address, clock::now()).await?;
    Ok(Picture { snapshot, journal, sites, holder, children, unused, why, run, next, has_more_mail, damage })
}

/// Reads an execution without its inbox, because one of its messages may be unreadable.
async fn without_inbox(store: &dyn Store, address: &Address) -> Result<Option<Snapshot>, CommandError> {
    let target = Target::Address(address.clone());
    let read = Read { target, run: None, from: 0, limit: 0, with_inbox: false };
    store.read(read).await.map_err(|error| match error {
        Error::Corrupt { .. } => CommandError::failed(with_ways_on(&error.to_string(), &address.id)),
        error => error.into(),
    })
}

/// Reads further pages of the inbox. Returns whether they could be read.
async fn read_on(store: &dyn Store, snapshot: &mut Snapshot) -> Result<bool, CommandError> {
    match why::read_on(store, snapshot, INBOX_PAGE_COUNT_MAX, |message| message).await {
        Err(error) if error.is_of_one() => Ok(false),
        read => Ok(read.map(|()| true)?),
    }
}

/// Reads the unread messages up to the first unreadable one: nothing says where the next one is.
async fn inbox_by_one(
    store: &dyn Store,
    snapshot: &mut Snapshot,
    damage: &mut Damage,
) -> Result<(), CommandError> {
    for _ in 0..MESSAGE_COUNT_MAX {
        let read = InboxRead { key: snapshot.key, after: snapshot.inbox.next, limit: 1 };
        match store.inbox(read).await {
            Err(error) => return damage.note(error),
            Ok(page) => {
                snapshot.inbox.messages.extend(page.messages);
                snapshot.inbox.next = page.next;
            }
        }
        if snapshot.inbox.next.is_none() {
            break;
        }
    }
    Ok(())
}

/// Reads the requested entries and one more: by pages, and one by one where a page is unreadable.
async fn journal(
    store: &dyn Store,
    (snapshot, run): (&Snapshot, u32),
    args: &Show,
    damage: &mut Damage,
) -> Result<Vec<Entry>, CommandError> {
    let mut entries: Vec<Entry> = Vec::new();
    let (mut from, mut is_careful) = (args.from.max(1), false);
    let mut missing_count = 0;
    let wanted = if args.limit == 0 { 0 } else { args.limit.saturating_add(1) };
    // Only its journal knows the length of an earlier run.
    let is_current = run == snapshot.execution.run();
    let last = if is_current { snapshot.execution.entry_count() } else { u64::MAX };
    while entries.len() + missing_count < wanted && from <= last {
        let limit = if is_careful { 1 } else { wanted - entries.len() };
        match page(store, (snapshot, run), (from, limit)).await {
            Ok(page) if page.is_empty() => break,
            Ok(page) => {
                from = page.last().map_or(from, |entry| entry.seq) + 1;
                entries.extend(page);
            }
            Err(error) if error.is_of_one() && !is_careful => is_careful = true,
            Err(error) => {
                damage.note(error)?;
                missing_count += 1;
                from += 1;
            }
        }
    }
    Ok(entries)
}

/// Returns the places that the shown entries name. The text of a place stands only in the first
/// entry that comes from it, which may be before the shown ones.
async fn sites(
    store: &dyn Store,
    (snapshot, run): (&Snapshot, u32),
    journal: &[Entry],
) -> Result<Sites, CommandError> {
    const ENTRY_COUNT: usize = 1_000;
    let mut sites = Sites::default();
    journal.iter().for_each(|entry| sites.learn(entry));
    let (mut from, end) = (1, journal.first().map_or(1, |entry| entry.seq));
    for _ in 0..SITE_PAGE_COUNT_MAX {
        let is_whole = journal.iter().all(|entry| entry.site.is_none() || sites.of(entry).is_some());
        if is_whole || from >= end {
            break;
        }
        let page = match page(store, (snapshot, run), (from, ENTRY_COUNT)).await {
            // The entries are shown without their places.
            Err(error) if error.is_of_one() => break,
            page => page?,
        };
        let Some(last) = page.last() else { break };
        from = last.seq + 1;
        page.iter().for_each(|entry| sites.learn(entry));
    }
    Ok(sites)
}

async fn page(
    store: &dyn Store,
    (snapshot, run): (&Snapshot, u32),
    (from, limit): (u64, usize),
) -> Result<Vec<Entry>, Error> {
    let read = Read { target: Target::Key(snapshot.key), run: Some(run), from, limit, with_inbox: false };
    let page = store.read(read).await?.map(|snapshot| snapshot.journal).unwrap_or_default();
    page.iter().map(Record::entry).collect()
}

/// Returns the children that the entries name. Another execution may have the id intended for a
/// child; it is not a child.
async fn children(
    store: &dyn Store,
    (parent, run): (&Execution, u32),
    journal: &[Entry],
) -> Result<Vec<Child>, CommandError> {
    let is_child = |found: &Execution, op: &Op| {
        let of = |it: &Parent| it.id == parent.address().id && it.run == run && it.op == op.child_result();
        found.parent().is_some_and(of)
    };
    let mut children = Vec::new();
    for entry in journal {
        let Event::ChildStarted { op, child: id, .. } = &entry.event else { continue };
        let address = Address { namespace: parent.address().namespace.clone(), id: id.clone() };
        let read = Read { target: Target::Address(address), run: None, from: 0, limit: 0, with_inbox: false };
        let found = match store.read(read).await {
            Ok(Some(found)) if !is_child(&found.execution, op) => continue,
            Ok(Some(found)) => {
                Found::Sound(found.execution.name().clone(), found.summary.status_at(clock::now()))
            }
            Ok(None) => Found::Nothing,
            Err(Error::Corrupt { .. }) => Found::Damaged,
            Err(error) if error.is_of_one() => Found::Unreadable,
            Err(error) => return Err(error.into()),
        };
        children.push(Child { id: id.clone(), found });
    }
    Ok(children)
}

impl Picture {
    /// Returns file and line of the call that an entry comes from, or of the failure that it ends
    /// the run with.
    fn site<'a>(&'a self, entry: &'a Entry) -> Option<&'a str> {
        let failed_at = || match &entry.event {
            Event::Failed(failure) => failure.at.as_ref()?.site.as_deref(),
            _ => None,
        };
        self.sites.of(entry).or_else(failed_at)
    }
}

/// Returns the list in the last entry, whichever entries were requested.
async fn unused(store: &dyn Store, snapshot: &Snapshot) -> Result<Vec<Op>, Error> {
    if snapshot.summary.status != Status::Completed {
        return Ok(Vec::new());
    }
    let (target, from) = (Target::Key(snapshot.key), snapshot.execution.entry_count());
    let page = store.read(Read { target, run: None, from, limit: 1, with_inbox: false }).await?;
    match page.iter().flat_map(|page| &page.journal).next().map(Record::entry).transpose()? {
        Some(Entry { event: Event::Completed { unused, .. }, .. }) => Ok(unused),
        _ => Ok(Vec::new()),
    }
}

/// Returns the list in the last entry, if that entry is among the requested ones.
fn unused_at_the_end(journal: &[Entry]) -> Vec<Op> {
    match journal.last() {
        Some(Entry { event: Event::Completed { unused, .. }, .. }) => unused.clone(),
        _ => Vec::new(),
    }
}

fn document(picture: &Picture) -> Value {
    let snapshot = &picture.snapshot;
    let route = snapshot.execution.route();
    let entry = |entry: &Entry| json::entry(entry, picture.site(entry));
    let mut fields = json::object(json::address(snapshot.execution.address()));
    fields.extend(json::object(json!({
        "kind": route.kind.word(),
        "name": route.name.as_str(),
        "status": snapshot.summary.status_at(clock::now()).word(),
        "why": picture.why,
        "damage": picture.damage.0,
        "run": snapshot.execution.run(),
        "shown_run": picture.run,
        "created_at": json::time(snapshot.created_at),
        "ready_at": json::time_maybe(snapshot.ready_at),
        "wake_at": json::time_maybe(snapshot.summary.wake_at),
        "deadline_at": json::time_maybe(snapshot.execution.deadline_at()),
        "waiting": json::waiting(&snapshot.summary),
        "lane": route.lane.as_str(),
        "requires": route.requires.iter().map(Name::as_str).collect::<Vec<_>>(),
        "priority": snapshot.execution.priority(),
        "tags": json::tags(&snapshot.tags),
        "parent": snapshot.execution.parent().map(|parent| parent.id.as_str()),
        "holder": holder(picture),
        "epoch": snapshot.lease.epoch.0,
        "version": snapshot.lease.version.0,
        "takeover_count": snapshot.takeover_count,
        "entry_count": snapshot.execution.entry_count(),
        "unused": picture.unused.iter().map(json::operation).collect::<Value>(),
        "unclaimed": snapshot.summary.unclaimed.as_ref().map(ToString::to_string),
        "journal": picture.journal.iter().map(entry).collect::<Value>(),
        "failed_attempts": failed_attempts(&picture.journal).map(entry).collect::<Value>(),
        "children": picture.children.iter().map(child).collect::<Value>(),
        "inbox": snapshot.inbox.messages.iter().map(json::message).collect::<Value>(),
    })));
    Value::Object(fields)
}

fn holder(picture: &Picture) -> Value {
    let Some(session) = picture.snapshot.lease.session else { return Value::Null };
    let row = picture.holder.as_ref();
    json!({
        "session": session.0,
        "worker": row.map(|row| row.worker.name.as_str()),
        "is_live": row.is_some_and(|row| row.is_live(clock::now())),
        "expires_at": json::time_maybe(row.map(|row| row.expires_at)),
    })
}

fn child(child: &Child) -> Value {
    json!({
        "id": child.id.as_str(),
        "name": child.found.name(),
        "status": child.found.status(),
    })
}

fn failed_attempts(journal: &[Entry]) -> impl Iterator<Item = &Entry> {
    journal.iter().filter(|entry| matches!(entry.event, Event::AttemptFailed { .. }))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use abide_core::{Bounds, Namespace, OpKind, Payload, Timestamp};
    use abide_store::faults::{Fault, FaultyStore};
    use abide_store::memory::MemoryStore;

    use super::*;

    struct Zero;

    impl abide_store::Clock for Zero {
        fn now(&self) -> Timestamp {
            Timestamp::default()
        }
    }

    /// Returns the status of a child in the output when reading it has this fault.
    fn status(fault: Fault) -> Result<Option<&'static str>, CommandError> {
        let name = |text| Name::new(text).unwrap();
        let address = Address { namespace: Namespace::default(), id: ExecutionId::new("parent").unwrap() };
        let start = abide_core::fixture::flow();
        let (parent, _) = Execution::start(address, start, Timestamp::default());
        let op = Op { kind: OpKind::Child, name: name("flow"), key: None, nth: 1 };
        let event = Event::ChildStarted {
            op,
            child: ExecutionId::new("child").unwrap(),
            input: abide_core::Fingerprint::of(&Payload::from("1")).into(),
        };
        let entry = Entry::new(2, Timestamp::default(), event);
        let store = MemoryStore::new(Arc::new(Zero), Bounds::default());
        let store = FaultyStore::scripted(store, vec![fault]);
        let children = connect::block_on(children(&*store, (&parent, 1), &[entry]))?;
        Ok(children.first().and_then(|child| child.found.status()))
    }

    /// A parent is shown whatever is wrong with a child; only an unavailable store is an error.
    #[test]
    fn a_child_that_cannot_be_read_is_shown_as_what_it_is() {
        assert_eq!(status(Fault::Unread).unwrap(), Some("unreadable"));
        assert_eq!(status(Fault::Corrupt).unwrap(), Some("damaged"));
        assert_eq!(status(Fault::None).unwrap(), None, "it was deleted");
        assert!(status(Fault::Unavailable).is_err());
    }
}
