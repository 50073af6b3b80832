//! The evidence for the auditor from a world that has come to its end. It is data: a test falsifies
//! it and sees which rule complains.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use abide_store::FeedFrom;

use super::{
    Books, Happened, Past, Told, care, causes, commits, decisions, firsts, kin, order, pasts, pauses,
    priorities, requests, retries, strands, table, timeouts,
};
use crate::ending::executions;
use crate::scenario::Scenario;
use crate::world::World;

/// Everything that was recorded, everything that happened and the contents of the feed.
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Evidence {
    pub(super) pasts: BTreeMap<String, Past>,
    pub(super) items: Vec<Happened>,
    pub(super) told: Told,
    /// How often each transaction step has written, or why the count is unknown.
    pub(super) counts: Result<BTreeMap<String, u64>, String>,
    /// The ids of executions with damaged rows, whose records prove nothing.
    pub(super) damaged: BTreeSet<String>,
    pub(super) tags: requests::Tags,
}

impl Evidence {
    /// Collects the evidence once.
    pub(crate) async fn of(world: &Arc<World>, scenario: &Scenario) -> Self {
        let executions = executions(&*world.store, None).await.unwrap_or_default();
        let tags = executions.iter().map(|item| (item.address.id.to_string(), item.tags.clone())).collect();
        let damaged = world.lock().damage.ids.clone();
        let mut pasts = pasts(&*world.store, executions).await;
        pasts.retain(|id, _| !damaged.contains(id));
        let items = world.history.lock().items.clone();
        let told = Told::read(&*world.store, FeedFrom::Beginning).await;
        let counts = match world.any_worker() {
            Some((_, abide)) => table::counts(&abide, (&pasts, &scenario.editions), "table").await,
            None => Err("no worker is left".to_owned()),
        };
        Self { pasts, items, told, counts, damaged, tags }
    }

    /// Returns everything that is wrong with the evidence.
    pub(crate) fn check(self, scenario: &Scenario) -> Vec<String> {
        let (editions, damaged) = (scenario.editions.clone(), self.damaged);
        let books = Books { editions, damaged, ..Books::new(self.pasts, self.items) };
        let mut found = books.check(scenario);
        found.extend(care::check(&books));
        found.extend(order::check(&books));
        found.extend(commits::check(&books));
        found.extend(firsts::check(&books, scenario));
        found.extend(causes::check(&books));
        found.extend(kin::check(&books));
        found.extend(pauses::check(&books));
        found.extend(decisions::check(&books));
        found.extend(priorities::check(&books));
        found.extend(requests::check(&books, scenario, &self.tags));
        found.extend(retries::check(&books, scenario));
        found.extend(timeouts::check(&books, scenario));
        found.extend(strands::check(&books, scenario));
        found.extend(self.told.check(&books));
        found.extend(table::check((&books.pasts, &scenario.editions), &self.counts));
        if !found.is_empty() {
            found.push(books.to_string());
        }
        found
    }
}
