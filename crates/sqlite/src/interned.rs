//! Names and routes, which other rows refer to by number.
//!
//! A damaged row is set aside. Rows that refer to it count as damaged, and all others continue. But
//! no namespace is created while the name of one is damaged: it might be that one, and under a new
//! number all its executions would be gone.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use abide_core::{Namespace, Route, codec};
use abide_store::Error;
use rusqlite::{Connection, Row, params};

use crate::checksum::Checksum;
use crate::error::Stop;
use crate::rows::decoded;
use crate::sql;

/// Names and routes by number. Both only grow.
#[derive(Debug, Default)]
pub(crate) struct Interned {
    names: BTreeMap<Namespace, i64>,
    namespaces: HashMap<i64, Namespace>,
    route_ids: HashMap<Route, i64>,
    routes: BTreeMap<i64, Arc<Route>>,
    /// The route of the last start: starts come in series, and a comparison is cheaper than a hash.
    last_route: Option<(Route, i64)>,
    /// The numbers of damaged names.
    pub(crate) damaged_names: Vec<i64>,
    /// The numbers of damaged routes.
    pub(crate) damaged_routes: Vec<i64>,
}

/// Returns the checksum of a name. The number is part of it: under another one, all executions in
/// the namespace would be gone.
pub(crate) fn name_sum(id: i64, name: &str) -> i64 {
    i64::from(Checksum::new().number(id).bytes(name.as_bytes()).finish())
}

fn route_sum(id: i64, route: &[u8]) -> i64 {
    i64::from(Checksum::new().number(id).bytes(route).finish())
}

/// Returns a name, or nothing if it is damaged.
fn sound_name(row: &Row<'_>, id: i64) -> rusqlite::Result<Option<Namespace>> {
    let (Ok(text), Ok(checksum)) = (row.get_ref(1)?.as_str(), row.get_ref(2)?.as_i64()) else {
        return Ok(None);
    };
    Ok(Namespace::new(text).ok().filter(|_| name_sum(id, text) == checksum))
}

/// Returns a route, or nothing if it is damaged.
fn sound_route(row: &Row<'_>, id: i64) -> rusqlite::Result<Option<Route>> {
    let (Ok(bytes), Ok(checksum)) = (row.get_ref(1)?.as_blob(), row.get_ref(2)?.as_i64()) else {
        return Ok(None);
    };
    if route_sum(id, bytes) != checksum {
        return Ok(None);
    }
    decoded(row, 1).map(Some)
}

impl Interned {
    pub(crate) fn load(connection: &Connection) -> rusqlite::Result<Self> {
        let mut loaded = Self::default();
        let mut names = connection.prepare_cached(sql::NAMES)?;
        let mut rows = names.query([])?;
        while let Some(row) = rows.next()? {
            let id = row.get(0)?;
            match sound_name(row, id)? {
                Some(name) => loaded.add_name(id, name),
                None => loaded.damaged_names.push(id),
            }
        }
        let mut routes = connection.prepare_cached(sql::ROUTES)?;
        let mut rows = routes.query([])?;
        while let Some(row) = rows.next()? {
            let id = row.get(0)?;
            match sound_route(row, id)? {
                Some(route) => loaded.add_route(id, route),
                None => loaded.damaged_routes.push(id),
            }
        }
        Ok(loaded)
    }

    fn add_name(&mut self, id: i64, name: Namespace) {
        self.namespaces.insert(id, name.clone());
        self.names.insert(name, id);
    }

    fn add_route(&mut self, id: i64, route: Route) {
        self.routes.insert(id, Arc::new(route.clone()));
        self.route_ids.insert(route, id);
    }

    /// Returns the number of a known namespace.
    pub(crate) fn known(&self, name: &Namespace) -> Option<i64> {
        self.names.get(name).copied()
    }

    /// Returns the number of a namespace. A request for a name that may be a damaged one gets an
    /// error, not an empty namespace.
    pub(crate) fn find(&self, name: &Namespace) -> Result<Option<i64>, Stop> {
        match (self.known(name), self.damaged_names.first()) {
            (None, Some(damaged)) => {
                let what = format!(
                    "the name of namespace {damaged} is damaged, and may have been {:?}: run `abide verify --repair`",
                    name.as_str()
                );
                Err(Stop::Refused(Error::Corrupt { what }))
            }
            (known, _) => Ok(known),
        }
    }

    /// Returns the number of a known route.
    pub(crate) fn known_route(&self, route: &Route) -> Option<i64> {
        self.route_ids.get(route).copied()
    }

    /// Returns the number of a start's route, and remembers it for the next start.
    pub(crate) fn route_of_start(&mut self, route: &Route) -> Option<i64> {
        if let Some((last, id)) = &self.last_route
            && last == route
        {
            return Some(*id);
        }
        let id = self.known_route(route)?;
        self.last_route = Some((route.clone(), id));
        Some(id)
    }

    pub(crate) fn namespace(&self, id: i64) -> Option<&Namespace> {
        self.namespaces.get(&id)
    }

    pub(crate) fn route(&self, id: i64) -> Option<&Arc<Route>> {
        self.routes.get(&id)
    }

    /// Returns every route, in the order of their numbers.
    pub(crate) fn routes(&self) -> impl Iterator<Item = (i64, &Arc<Route>)> {
        self.routes.iter().map(|(id, route)| (*id, route))
    }

    pub(crate) fn route_count(&self) -> usize {
        self.routes.len()
    }

    /// Returns the number of a namespace, which is created if it does not exist.
    pub(crate) fn intern_name(&mut self, connection: &Connection, name: &Namespace) -> Result<i64, Stop> {
        if let Some(id) = self.find(name)? {
            return Ok(id);
        }
        if self.is_lost(connection, name)? {
            let name = name.as_str();
            let what = format!("the name {name:?} of a namespace is lost: run `abide verify --repair`");
            return Err(Stop::Refused(Error::Corrupt { what }));
        }
        // A number that executions refer to is not reused, even if its row is lost.
        let id = 1 + id_max(connection, sql::NAME_ID_MAX)?;
        let checksum = name_sum(id, name.as_str());
        connection.prepare_cached(sql::NAME_INSERT)?.execute(params![id, name.as_str(), checksum])?;
        connection.prepare_cached(sql::META_SET)?.execute(params!["name_id_max", id])?;
        self.add_name(id, name.clone());
        Ok(id)
    }

    /// Whether routes show that executions exist in a namespace of this name, though its row is
    /// gone.
    fn is_lost(&self, connection: &Connection, name: &Namespace) -> rusqlite::Result<bool> {
        let is_named = |route: &Arc<Route>| route.namespace == *name;
        if !self.routes.values().any(is_named) {
            return Ok(false);
        }
        let mut used = connection.prepare_cached(sql::NAMES_OF_ROUTES)?;
        let mut rows = used.query([])?;
        while let Some(row) = rows.next()? {
            if row.get(1).ok().and_then(|route| self.route(route)).is_some_and(is_named) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the number of a route, which is created if it does not exist.
    pub(crate) fn intern_route(&mut self, connection: &Connection, route: Route) -> rusqlite::Result<i64> {
        if let Some(id) = self.known_route(&route) {
            return Ok(id);
        }
        let mut max = id_max(connection, sql::ROUTE_ID_MAX)?;
        if !self.damaged_routes.is_empty() {
            // One of them may have lost its number, which executions still refer to.
            max = max.max(id_max(connection, sql::ROUTE_ID_MAX_USED)?);
        }
        self.put_route(connection, max + 1, route)
    }

    /// Writes a route. It replaces a damaged one with the same number.
    pub(crate) fn put_route(
        &mut self,
        connection: &Connection,
        id: i64,
        route: Route,
    ) -> rusqlite::Result<i64> {
        let bytes = codec::encode(&route);
        connection.prepare_cached(sql::ROUTE_PUT)?.execute(params![id, bytes, route_sum(id, &bytes)])?;
        self.damaged_routes.retain(|damaged| *damaged != id);
        self.add_route(id, route);
        Ok(id)
    }
}

fn id_max(connection: &Connection, statement: &str) -> rusqlite::Result<i64> {
    connection.prepare_cached(statement)?.query_row([], |row| row.get(0))
}
