//! `repair`: names and routes, from the rows that repeat them.

use std::collections::BTreeSet;

use abide_core::{Ability, Execution, Namespace, Route, Timestamp};
use rusqlite::{Connection, params};

use super::Repairs;
use crate::apply::first_start;
use crate::batch::Batch;
use crate::error::Stop;
use crate::interned::{Interned, name_sum};
use crate::job::Operation;
use crate::journal;
use crate::rows::decoded;
use crate::sheet::Base;
use crate::sql;
use crate::view::address;

/// Restores names that sessions and routes repeat, or routes that states and journals repeat.
#[derive(Clone, Copy)]
pub(crate) enum RepairNamesWork {
    Names,
    Routes,
}

impl Operation for RepairNamesWork {
    type Output = Repairs;
    const WHAT: &'static str = "repair";

    fn apply(&mut self, batch: &mut Batch<'_>) -> Result<Repairs, Stop> {
        let repaired = match self {
            Self::Names => batch.readable(repair_names)?,
            Self::Routes => batch.readable(repair_routes)?,
        };
        // The workers that serve the restored routes have to find out.
        batch.caches.served.clear();
        batch.caches.idle_routes.clear();
        Ok(repaired)
    }
}

/// Evidence that a namespace has a name.
struct Witness {
    id: i64,
    name: Namespace,
}

impl Witness {
    /// Whether two of the three values of a row (number, name, checksum) agree with the witness.
    fn agrees(&self, (id, name, checksum): (i64, Option<&str>, Option<i64>)) -> bool {
        let sum = name_sum(self.id, self.name.as_str());
        let agreed = [id == self.id, name == Some(self.name.as_str()), checksum == Some(sum)];
        agreed.into_iter().filter(|agreed| *agreed).count() >= 2
    }
}

fn repair_names(batch: &mut Batch<'_>) -> Result<Repairs, Stop> {
    let mut repaired = Repairs::default();
    let connection = batch.connection;
    let interned = Interned::load(connection)?;
    if interned.damaged_names.is_empty() {
        put_back_lost(batch, &interned, &mut repaired)?;
        return Ok(repaired);
    }
    let witnesses = witnesses(connection, &interned)?;
    let is_used = is_any_nameless(connection, &interned)?;
    for damaged in &interned.damaged_names {
        let found = witness_of(connection, *damaged, &witnesses)?;
        let taken =
            |found: &Witness| interned.known(&found.name).is_some() || interned.namespace(found.id).is_some();
        match found {
            Some(found) if taken(found) => repaired.left.push(format!(
                "the name of namespace {damaged} is damaged: it was {:?}, and another has that name now",
                found.name.as_str()
            )),
            Some(Witness { id, name }) => {
                let sum = name_sum(*id, name.as_str());
                let mut put_back = connection.prepare_cached(sql::NAME_PUT_BACK)?;
                put_back.execute(params![damaged, id, name.as_str(), sum])?;
                let line = format!("the name {:?} of namespace {id} was put back", name.as_str());
                repaired.rebuilt.push(line);
            }
            None if is_used => repaired.left.push(format!(
                "the name of namespace {damaged} is damaged, and nothing that can be read tells what it was"
            )),
            None => {
                connection.prepare_cached(sql::NAME_DELETE)?.execute([damaged])?;
                repaired.rebuilt.push(format!(
                    "the damaged name of namespace {damaged}, in which there is nothing, was deleted"
                ));
            }
        }
    }
    batch.caches.interned = None;
    Ok(repaired)
}

/// Restores the names of namespaces whose rows are gone. If its witnesses disagree about the
/// number, a name stays lost, and is reported.
fn put_back_lost(batch: &mut Batch<'_>, interned: &Interned, repaired: &mut Repairs) -> Result<(), Stop> {
    let mut lost = witnesses(batch.connection, interned)?;
    lost.retain(|found| interned.known(&found.name).is_none() && interned.namespace(found.id).is_none());
    lost.sort_unstable_by(|one, other| (&one.name, one.id).cmp(&(&other.name, other.id)));
    lost.dedup_by(|one, other| (&one.name, one.id) == (&other.name, other.id));
    for of_one_name in lost.chunk_by(|one, other| one.name == other.name) {
        let Witness { id, name } = &of_one_name[0];
        let is_disputed = lost.iter().any(|other| other.id == *id && other.name != *name);
        if is_disputed || of_one_name.len() > 1 {
            let name = name.as_str();
            repaired.left.push(format!("the name {name:?} of a namespace is lost, and so is its number"));
            continue;
        }
        let sum = name_sum(*id, name.as_str());
        let mut insert = batch.connection.prepare_cached(sql::NAME_INSERT)?;
        insert.execute(params![id, name.as_str(), sum])?;
        repaired.rebuilt.push(format!("the name {:?} of namespace {id} was put back", name.as_str()));
        batch.caches.interned = None;
    }
    Ok(())
}

/// Collects witnesses: every session and every route names its namespace.
fn witnesses(connection: &Connection, interned: &Interned) -> Result<Vec<Witness>, Stop> {
    let mut witnesses = Vec::new();
    let mut sessions = connection.prepare_cached(sql::NAMES_OF_SESSIONS)?;
    let mut rows = sessions.query([])?;
    while let Some(row) = rows.next()? {
        // An unreadable session is no witness.
        if let Ok(ability) = decoded::<Ability>(row, 1) {
            witnesses.extend(row.get(0).ok().map(|id| Witness { id, name: ability.namespace }));
        }
    }
    let mut routes = connection.prepare_cached(sql::NAMES_OF_ROUTES)?;
    let mut rows = routes.query([])?;
    while let Some(row) = rows.next()? {
        let (Ok(id), Ok(route)) = (row.get(0), row.get(1)) else { continue };
        if let Some(route) = interned.route(route) {
            witnesses.push(Witness { id, name: route.namespace.clone() });
        }
    }
    Ok(witnesses)
}

/// Whether any row belongs to a namespace without a name.
fn is_any_nameless(connection: &Connection, interned: &Interned) -> rusqlite::Result<bool> {
    let mut used = connection.prepare_cached(sql::NAMES_USED)?;
    let mut rows = used.query([])?;
    while let Some(row) = rows.next()? {
        if row.get(0).ok().is_none_or(|id| interned.namespace(id).is_none()) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn witness_of<'w>(
    connection: &Connection,
    damaged: i64,
    witnesses: &'w [Witness],
) -> rusqlite::Result<Option<&'w Witness>> {
    let mut names = connection.prepare_cached(sql::NAMES)?;
    let mut rows = names.query([])?;
    while let Some(row) = rows.next()? {
        if row.get::<_, i64>(0)? == damaged {
            let seen = (damaged, row.get_ref(1)?.as_str().ok(), row.get_ref(2)?.as_i64().ok());
            return Ok(witnesses.iter().find(|witness| witness.agrees(seen)));
        }
    }
    Ok(None)
}

fn repair_routes(batch: &mut Batch<'_>) -> Result<Repairs, Stop> {
    let mut repaired = Repairs::default();
    let connection = batch.connection;
    let mut interned = Interned::load(connection)?;
    let mut used = connection.prepare_cached(sql::ROUTES_USED)?;
    let used = used.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<BTreeSet<i64>>>()?;
    let lost: Vec<i64> = used.iter().copied().filter(|id| interned.route(*id).is_none()).collect();
    for id in lost {
        match derived(connection, &interned, id)? {
            Lost::Route(route) => {
                interned.put_route(connection, id, route)?;
                repaired.rebuilt.push(format!("route {id} was put back"));
                batch.caches.interned = None;
                batch.announce(id)?;
            }
            // The next step of the repair handles their rows.
            Lost::Nothing => {}
            Lost::Unknown => repaired
                .left
                .push(format!("route {id} is damaged, and nothing that can be read tells what it was")),
        }
    }
    for id in interned.damaged_routes.iter().filter(|id| !used.contains(id)) {
        connection.prepare_cached(sql::ROUTE_DELETE)?.execute([id])?;
        repaired.rebuilt.push(format!("the damaged route {id}, in which nothing stands, was deleted"));
    }
    batch.caches.interned = None;
    Ok(repaired)
}

/// The missing route of some executions.
enum Lost {
    /// This route is lost.
    Route(Route),
    /// No route is lost: the rows of these executions are damaged.
    Nothing,
    /// Nothing readable names the route.
    Unknown,
}

/// Derives a route from the first of its executions that reveals it.
fn derived(connection: &Connection, interned: &Interned, id: i64) -> Result<Lost, Stop> {
    let mut users = connection.prepare_cached(sql::ROUTE_USERS)?;
    let mut rows = users.query([id])?;
    let mut lost = Lost::Unknown;
    while let Some(row) = rows.next()? {
        let Ok(base) = Base::read(row) else { continue };
        let Ok(address) = address(interned, base.namespace, base.id) else { continue };
        // The state is sealed with the number of the route.
        if let Ok(state) = base.sheet().and_then(|sheet| sheet.execution()) {
            return Ok(Lost::Route(state.at(address).route()));
        }
        let first = journal::first_row(connection, base.key)?;
        let Some(Ok(start)) = first.map(|row| first_start(connection, base.key, row)) else { continue };
        let route = Execution::start(address, start, Timestamp::from_micros(0)).0.route();
        if interned.damaged_routes.is_empty() && interned.known_route(&route).is_some() {
            lost = Lost::Nothing;
        } else {
            return Ok(Lost::Route(route));
        }
    }
    Ok(lost)
}
