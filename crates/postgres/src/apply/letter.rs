//! Messages: what each of them finds, and what it does there.

use std::collections::HashSet;
use std::sync::Arc;

use abide_core::intake::{self, Found, Intake};
use abide_core::{
    Address, Body, Entry, Epoch, Execution, Happening, Lease, LeaseRow, Message, Refusal, Route, SessionId,
    Sort, Start, Status, Summary, Timestamp, Version, care, codec,
};
use abide_store::{ExecutionKey, InboxPage, Leased, Opening, Record};

use crate::board::News;
use crate::connection::Connection;
use crate::error::Stop;
use crate::facts::{Facts, Haste, Questions};
use crate::floors::{Floor, Line};
use crate::rows;
use crate::shared::Shared;
use crate::sheet::{Care, FeedRow, InboxRow, JournalRow, Newborn, RetryRow, Sheet, TagRow, Wake};
use crate::target::{Question, Target};

/// A message, with the numbers of the questions that were asked for it.
pub(crate) struct Asked {
    /// Nothing for a start that is taken to find nothing.
    target: Option<usize>,
    parent: Option<usize>,
}

impl Asked {
    /// Whether the message is taken to find nothing.
    pub(crate) fn is_guess(&self) -> bool {
        self.target.is_none()
    }
}

/// What goes with a message.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Origin {
    /// The execution that must be written for the message to be written too.
    pub(crate) gate: Option<i64>,
    /// Whether the whole operation fails when the message is not written.
    pub(crate) is_strict: bool,
    /// The session that offers to run a new execution.
    pub(crate) offer: Option<SessionId>,
    /// When the code of a new execution has begun.
    pub(crate) begins_at: Option<Timestamp>,
}

/// What became of a message.
#[derive(Debug)]
pub(crate) enum Put {
    Created(i64, Option<Box<Leased>>),
    Attached(i64),
    Delivered(i64, String),
    /// The next run was opened.
    Retried(i64),
    Duplicate(i64),
}

impl Put {
    pub(crate) fn key(&self) -> ExecutionKey {
        let (Self::Created(key, _)
        | Self::Attached(key)
        | Self::Delivered(key, _)
        | Self::Retried(key)
        | Self::Duplicate(key)) = self;
        ExecutionKey(rows::unsigned(*key))
    }
}

/// Returns the route of an execution that is started.
pub(crate) fn route_of(address: &Address, start: &Start) -> Route {
    Route {
        namespace: address.namespace.clone(),
        lane: start.lane.clone(),
        kind: start.kind,
        name: start.name.clone(),
        requires: start.requires.iter().cloned().collect(),
    }
}

/// Returns the routes of the executions that may be started. A refused start has none here: it
/// would leave a number for its route, however large that is.
pub(crate) fn routes_of<'a>(shared: &Shared, messages: impl IntoIterator<Item = &'a Message>) -> Vec<Route> {
    let route = |message: &'a Message| match &message.body {
        Body::Start(start) if start.check(shared.bounds()).is_ok() => Some(route_of(&message.to, start)),
        _ => None,
    };
    messages.into_iter().filter_map(route).collect()
}

/// Numbers routes, before the facts are read.
pub(crate) async fn intern(shared: &Shared, connection: &Connection, routes: Vec<Route>) -> Result<(), Stop> {
    for route in routes {
        shared.routes.intern(connection, &route).await?;
    }
    Ok(())
}

/// Asks for everything that the decision about a message may depend on.
pub(crate) fn ask(
    shared: &Shared,
    questions: &mut Questions,
    message: &Message,
    offer: Option<SessionId>,
) -> Asked {
    let Body::Start(start) = &message.body else {
        return Asked { target: Some(questions.ask(Question::of(message))), parent: None };
    };
    let is_looked_for = !questions.haste.guesses();
    let target = is_looked_for.then(|| questions.ask(Question::of(message)));
    questions.key_count += 1;
    if let Some(session) = offer {
        questions.offers.insert(session);
    }
    if offer.is_some() && questions.haste != Haste::Alone {
        questions.heads.extend(shared.routes.number(&route_of(&message.to, start)));
    }
    let parent = parent_address(&message.to, start);
    Asked { target, parent: parent.map(|parent| questions.ask(Question::of_address(parent))) }
}

/// Returns the address of the parent of a new execution.
pub(crate) fn parent_address(child: &Address, start: &Start) -> Option<Address> {
    let id = start.parent.as_ref()?.id.clone();
    Some(Address { namespace: child.namespace.clone(), id })
}

/// Returns how many of the first messages find nothing that another one of them has done.
pub(crate) fn independent(messages: &[Message]) -> usize {
    let mut targets = HashSet::new();
    let stands_alone = |message: &&Message| {
        let is_retry = matches!(message.body, Body::Retry);
        let parent = match &message.body {
            Body::Start(start) => parent_address(&message.to, start),
            _ => None,
        };
        let finds = parent.is_some_and(|parent| targets.contains(&parent));
        !is_retry && !finds && targets.insert(message.to.clone())
    };
    messages.iter().take_while(stands_alone).count()
}

/// Where operations are decided: the facts, and the rows so far.
pub(crate) struct Desk<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) facts: &'a mut Facts,
    pub(crate) sheet: &'a mut Sheet,
    pub(crate) news: &'a mut Vec<News>,
    pub(crate) now: Timestamp,
}

impl Desk<'_> {
    /// Decides about a message, and writes down what follows.
    pub(crate) fn put(&mut self, message: &Message, asked: &Asked, origin: Origin) -> Result<Put, Stop> {
        check_text(message)?;
        let bounds = (self.shared.bounds(), self.now);
        let mut nobody = None;
        let target = asked.target.map_or(&mut nobody, |target| &mut self.facts.targets[target]);
        let intake = intake::admit(target.as_mut(), message, bounds)?;
        let Some(target) = target.clone() else {
            let Body::Start(start) = &message.body else {
                return Err(Refusal::Unknown { id: message.to.id.clone() }.into());
            };
            return self.create(&message.to, start, asked, origin);
        };
        match intake {
            Intake::Deliver { .. } | Intake::Retry if target.is_seen => Ok(Put::Duplicate(target.key)),
            Intake::Deliver { wakes } => Ok(self.deliver(&target, message, (wakes, origin))),
            Intake::Retry => self.retry(&target, message, origin),
            Intake::Attach => Ok(Put::Attached(target.key)),
            Intake::Create | Intake::Duplicate => Ok(Put::Duplicate(target.key)),
        }
    }

    fn create(
        &mut self,
        address: &Address,
        start: &Arc<Start>,
        asked: &Asked,
        origin: Origin,
    ) -> Result<Put, Stop> {
        let route = Arc::new(route_of(address, start));
        let number = self.shared.routes.number(&route).ok_or(Stop::Raced)?;
        let key = self.facts.keys.pop().ok_or(Stop::Raced)?;
        let (mut execution, mut entry) = Execution::start(address.clone(), Arc::clone(start), self.now);
        let mut summary = execution.summary_at_start(self.now);
        let rank = rows::rank(execution.priority());
        let is_ready = summary.status != Status::Scheduled;
        let taker = origin.offer.filter(|session| is_ready && self.takes(*session, &route, (number, rank)));
        if taker.is_some() {
            let grace = self.shared.bounds().terminate_grace();
            summary.care_at = care::after_lease(summary.care_at, self.now, grace);
            if let Some(begins_at) = origin.begins_at {
                (execution, entry) = Execution::start(address.clone(), Arc::clone(start), begins_at);
            }
        } else if is_ready {
            self.wake((key, Some(key)), (number, rank), "", rows::NEEDS_NOTHING);
            self.stand_ready(number, rank);
        }
        if taker.is_none() {
            self.time((number, rank), summary.wake_at);
        }
        self.tell_of_newborn(&route, &summary, (taker.is_some(), is_ready));
        let parent = asked.parent.and_then(|parent| self.facts.targets[parent].as_ref());
        let newborn = Newborn {
            key,
            gate: origin.gate,
            strict: origin.is_strict,
            ns: address.namespace.as_str().to_owned(),
            id: address.id.as_str().to_owned(),
            route: number,
            rank,
            session: taker.map(|session| rows::integer(session.0)),
            epoch: i64::from(taker.is_some()),
            status: summary.status as i16,
            listens: rows::listens_number(summary.listens),
            wake_at: rows::micros(summary.wake_at),
            care_at: rows::micros(summary.care_at),
            parent: parent.map(|parent| parent.key),
            parent_run: start.parent.as_ref().map(|parent| rows::run_number(parent.run)),
            is_child: start.parent.is_some(),
            tags: (!start.tags.is_empty()).then(|| crate::seal::sealed(key, &codec::encode(&start.tags))),
            summary: crate::seal::sealed(key, &codec::encode(&summary)),
            state: crate::seal::sealed(key, &codec::encode(&execution)),
        };
        self.sheet.newborns.push(newborn);
        for tag in &start.tags {
            let (of, value) = (tag.key.as_str().to_owned(), tag.value.as_str().to_owned());
            self.sheet.tags.push(TagRow { execution: key, key: of, value });
        }
        self.append(key, (Some(1), 0), &[Record::of(&entry)]);
        let leased = taker.map(|session| born(key, session, (execution, entry), &summary));
        Ok(Put::Created(key, leased.map(Box::new)))
    }

    /// Whether a newborn is leased to the session that offers to run it: nothing of its route that
    /// is ready may stand before it.
    fn takes(&self, session: SessionId, route: &Route, (number, rank): (i32, i32)) -> bool {
        let is_able = self.facts.offers.get(&session).is_some_and(|ability| ability.serves(route));
        let is_behind = self.facts.heads.get(&number).is_some_and(|head| *head <= rank)
            || self.shared.board.floors.is_due((number, rank), self.now.as_micros());
        is_able && !is_behind
    }

    /// Remembers that something of a route is ready, for the starts after it.
    fn stand_ready(&mut self, route: i32, rank: i32) {
        let head = self.facts.heads.entry(route).or_insert(rank);
        *head = rank.min(*head);
    }

    fn tell_of_newborn(
        &mut self,
        route: &Arc<Route>,
        summary: &Summary,
        (is_leased, is_ready): (bool, bool),
    ) {
        self.news.push(News::Feed);
        if !is_leased {
            let route = Arc::clone(route);
            self.news.push(if is_ready { News::Ready(route) } else { News::Timer(route) });
        }
        if summary.care_at.is_some() {
            self.news.push(News::Care(route.namespace.clone()));
        }
    }

    pub(crate) fn wake(
        &mut self,
        (execution, gate): (i64, Option<i64>),
        (route, rank): (i32, i32),
        message: &str,
        needs: i16,
    ) {
        let since = self.now.as_micros();
        let message = message.to_owned();
        self.news.push(News::Queued((route, rank), Floor::of_wake(since)));
        self.sheet.wakes.push(Wake { execution, gate, route, rank, since, message, needs });
    }

    /// Lowers the floor to a timer of an execution that nobody holds.
    pub(crate) fn time(&mut self, line: Line, wake_at: Option<Timestamp>) {
        let floor = wake_at.map(|at| Floor::of_timer(at.as_micros()));
        self.news.extend(floor.map(|floor| News::Queued(line, floor)));
    }

    /// Appends records to a run, and what others follow of them to the feed.
    pub(crate) fn append(&mut self, key: i64, (run, run_step): (Option<i32>, i32), records: &[Record]) {
        let Some(first) = records.first() else { return };
        self.sheet.journal.push(JournalRow {
            execution: key,
            gate: key,
            run,
            run_step,
            seq: rows::integer(first.seq),
            count: i32::try_from(records.len()).unwrap_or(i32::MAX),
            body: rows::packed(key, records),
        });
        for (at, happening) in records.iter().filter_map(|record| Entry::happening_of(&record.bytes)) {
            self.follow(key, (run, run_step), (at, happening));
        }
    }

    fn follow(
        &mut self,
        key: i64,
        (run, run_step): (Option<i32>, i32),
        (at, happening): (Timestamp, Happening),
    ) {
        self.news.push(News::Feed);
        self.sheet.feed.push(FeedRow {
            execution: key,
            gate: key,
            run,
            run_step,
            at: at.as_micros(),
            happening: happening as i16,
            is_end: happening.is_end(),
        });
    }

    fn deliver(&mut self, target: &Target, message: &Message, (wakes, origin): (bool, Origin)) -> Put {
        let message = message.clone().arrived(self.now);
        let (id, sort) = (message.id.as_str().to_owned(), message.body.sort());
        self.sheet.inbox.push(InboxRow {
            execution: target.key,
            gate: origin.gate,
            strict: origin.is_strict,
            id: id.clone(),
            sort: rows::sort_number(sort),
            body: Some(crate::seal::sealed(target.key, &codec::encode(&message))),
        });
        self.wake((target.key, origin.gate), (target.route, target.rank), &id, rows::needs(sort));
        self.care(target, &message, origin.gate);
        if let Some(session) = target.lease.session {
            let (epoch, previous) = (target.lease.epoch, target.newest.clone());
            let message = Box::new(message);
            self.news.push(News::Mail { session, key: target.key, epoch, message, previous });
        } else if wakes && !target.is_aside {
            self.stand_ready(target.route, target.rank);
            self.news.extend(self.shared.routes.get(target.route).map(News::Ready));
        }
        Put::Delivered(target.key, id)
    }

    /// Writes down when somebody without the code is to look at an order. If the target is held, it
    /// may be released before the order is there, and nobody would look. So an order to an
    /// execution that is held has a reason for care that counts only when it is not.
    fn care(&mut self, target: &Target, message: &Message, gate: Option<i64>) {
        if message.body.sort() != Sort::Order {
            return;
        }
        let grace = self.shared.bounds().terminate_grace();
        let free = LeaseRow { session: None, ..target.lease };
        let as_it_is = care::after_arrival(None, &target.lease, message, grace);
        let Some(at) = as_it_is.or_else(|| care::after_arrival(None, &free, message, grace)) else { return };
        let namespace = &message.to.namespace;
        self.sheet.cares.push(Care {
            execution: target.key,
            gate,
            ns: namespace.as_str().to_owned(),
            at: at.as_micros(),
            message: message.id.as_str().to_owned(),
            while_held: as_it_is.is_some(),
        });
        if as_it_is.is_some() {
            self.news.push(News::Care(namespace.clone()));
        }
    }

    /// Opens the next run of an execution that failed or was cancelled.
    fn retry(&mut self, target: &Target, message: &Message, origin: Origin) -> Result<Put, Stop> {
        let first = target.run_first()?;
        let began = first.began().ok_or_else(|| {
            Stop::corrupt(format!("the journal of {} does not begin with its start", target.address))
        })?;
        let (next, entries) = target.execution()?.retried(began, message.by.clone(), self.now)?;
        let (key, summary) = (target.key, next.summary_at_start(self.now));
        let run = target.standing.run.unwrap_or(0);
        self.sheet.retries.push(RetryRow {
            key,
            gate: origin.gate,
            epoch: rows::integer(target.lease.epoch.0),
            version: rows::integer(target.lease.version.0),
            run: rows::run_number(run),
            status: summary.status as i16,
            listens: rows::listens_number(summary.listens),
            wake_at: rows::micros(summary.wake_at),
            care_at: rows::micros(summary.care_at),
            summary: crate::seal::sealed(key, &codec::encode(&summary)),
            state: crate::seal::sealed(key, &codec::encode(&next)),
        });
        let records: Vec<Record> = entries.iter().map(Record::of).collect();
        self.append(key, (Some(rows::run_number(run + 1)), 0), &records);
        self.sheet.inbox.push(InboxRow {
            execution: key,
            gate: Some(key),
            strict: true,
            id: message.id.as_str().to_owned(),
            sort: rows::sort_number(message.body.sort()),
            body: None,
        });
        self.wake((key, Some(key)), (target.route, target.rank), "", rows::NEEDS_NOTHING);
        self.time((target.route, target.rank), summary.wake_at);
        self.stand_ready(target.route, target.rank);
        self.news.extend(self.shared.routes.get(target.route).map(News::Ready));
        if summary.care_at.is_some() {
            self.news.push(News::Care(message.to.namespace.clone()));
        }
        Ok(Put::Retried(key))
    }
}

/// Refuses an id that PostgreSQL cannot keep, or that this store keeps for itself.
fn check_text(message: &Message) -> Result<(), Refusal> {
    let id = message.id.as_str();
    if id.is_empty() || id.contains('\0') {
        let what = format!("the message id {id:?}: it is empty or has a NUL");
        return Err(Refusal::Unsupported { what });
    }
    Ok(())
}

/// Returns a newborn for the session that it was born to.
fn born(key: i64, session: SessionId, (execution, entry): (Execution, Entry), summary: &Summary) -> Leased {
    Leased {
        key: ExecutionKey(rows::unsigned(key)),
        lease: Lease { session, epoch: Epoch(1) },
        version: Version(0),
        takeover_count: 0,
        suspicion: summary.suspicion.clone(),
        unclaimed: summary.unclaimed.clone(),
        is_first: true,
        execution,
        opening: Opening::Born(entry),
        inbox: InboxPage::default(),
    }
}
