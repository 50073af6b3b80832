//! The routes and their numbers. A number is given once and never changes, so this process keeps
//! all that it has met.

use std::collections::HashMap;
use std::sync::{Arc, RwLock, RwLockReadGuard};

use abide_core::{Ability, Namespace, Route, codec};

use crate::connection::Connection;
use crate::error::Stop;
use crate::sql;

#[derive(Default)]
pub(crate) struct Routes(RwLock<Known>);

#[derive(Default)]
struct Known {
    numbers: HashMap<Arc<Route>, i32>,
    routes: HashMap<i32, Arc<Route>>,
}

impl Routes {
    fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.0.read().expect("nobody panics with it")
    }

    fn learn(&self, number: i32, route: Route) {
        let mut known = self.0.write().expect("nobody panics with it");
        let route = Arc::new(route);
        known.numbers.insert(Arc::clone(&route), number);
        known.routes.insert(number, route);
    }

    pub(crate) fn number(&self, route: &Route) -> Option<i32> {
        self.read().numbers.get(route).copied()
    }

    /// Numbers a route, in a transaction of its own. A route that is not used harms nobody.
    pub(crate) async fn intern(&self, connection: &Connection, route: &Route) -> Result<i32, Stop> {
        if let Some(number) = self.number(route) {
            return Ok(number);
        }
        let (ns, body) = (route.namespace.as_str(), codec::encode(route));
        loop {
            if let Some(row) = connection.maybe_row(sql::ROUTE, &[&ns, &body]).await? {
                let number = row.try_get(0)?;
                self.learn(number, route.clone());
                return Ok(number);
            }
            connection.change(sql::ROUTE_INSERT, &[&ns, &body]).await?;
        }
    }

    /// Returns the numbers of the routes that a worker serves, those of other processes too.
    pub(crate) async fn served(&self, connection: &Connection, ability: &Ability) -> Result<Vec<i32>, Stop> {
        let ns = ability.namespace.as_str();
        let known: Vec<i32> = self.of(&ability.namespace, |_| true);
        for row in connection.rows(sql::ROUTES_NEW, &[&ns, &known]).await? {
            self.read_row(&row)?;
        }
        Ok(self.of(&ability.namespace, |route| ability.serves(route)))
    }

    /// Returns the known numbers of the routes of a namespace that are wanted.
    pub(crate) fn of(&self, namespace: &Namespace, is_wanted: impl Fn(&Route) -> bool) -> Vec<i32> {
        let known = self.read();
        let wanted =
            known.routes.iter().filter(|(_, route)| route.namespace == *namespace && is_wanted(route));
        let mut numbers: Vec<i32> = wanted.map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Learns these routes, and returns those that can be read.
    pub(crate) async fn named(
        &self,
        connection: &Connection,
        numbers: &[i32],
    ) -> Result<HashMap<i32, Arc<Route>>, Stop> {
        let unknown: Vec<i32> = {
            let known = self.read();
            numbers.iter().copied().filter(|number| !known.routes.contains_key(number)).collect()
        };
        if !unknown.is_empty() {
            for row in connection.rows(sql::ROUTES_BY_ID, &[&unknown]).await? {
                self.read_row(&row)?;
            }
        }
        let known = self.read();
        Ok(numbers
            .iter()
            .filter_map(|number| Some((*number, Arc::clone(known.routes.get(number)?))))
            .collect())
    }

    pub(crate) fn get(&self, number: i32) -> Option<Arc<Route>> {
        self.read().routes.get(&number).cloned()
    }

    /// Learns a route from its row. One that cannot be read is left out, with all that waits in it:
    /// it must not delay others.
    fn read_row(&self, row: &tokio_postgres::Row) -> Result<(), Stop> {
        let (number, body): (i32, Vec<u8>) = (row.try_get(0)?, row.try_get(1)?);
        match codec::decode(&body) {
            Ok(route) => self.learn(number, route),
            Err(error) => tracing::error!(number, %error, "a route cannot be read"),
        }
        Ok(())
    }
}
