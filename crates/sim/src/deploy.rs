//! Deploys: the build of the program that each machine runs. Machines with different builds are
//! live at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::edition::Edition;
use crate::scenario::{Actor, Deploy};
use crate::world::World;

/// The edition that each place and each machine runs.
#[derive(Default)]
pub(crate) struct Builds {
    /// All editions but the first.
    pub(crate) editions: Vec<Edition>,
    /// The edition that is deployed at each worker's place, unless it is the first.
    places: BTreeMap<u32, usize>,
    /// The edition of every machine that ever booted.
    machines: BTreeMap<u32, usize>,
}

/// How long a process that is killed for a deploy stays away.
const RESTART_MS: u64 = 50;

impl World {
    /// Returns the edition of a machine.
    pub(crate) fn edition_of(&self, machine: u32) -> usize {
        self.lock().builds.machines.get(&machine).copied().unwrap_or_default()
    }

    /// Fixes and returns the edition of a machine that boots at a place.
    pub(crate) fn install(&self, machine: u32, actor: Actor) -> (usize, Edition) {
        let builds = &mut self.lock().builds;
        let number = match actor {
            Actor::Worker(index) => builds.places.get(&index).copied().unwrap_or_default(),
            Actor::Client(_) => 0,
        };
        builds.machines.insert(machine, number);
        let edition = number.checked_sub(1).and_then(|index| builds.editions.get(index));
        (number, edition.cloned().unwrap_or_default())
    }

    /// Makes every later machine at this place run that edition.
    pub(crate) fn place(&self, index: u32, edition: usize) {
        self.lock().builds.places.insert(index, edition);
    }

    /// Deploys to a worker. Its executions leave its memory; a killed process is gone at once.
    pub(crate) fn deploy(self: &Arc<Self>, machine: u32, actor: Actor, deploy: Deploy) {
        let Actor::Worker(index) = actor else { return };
        self.place(index, deploy.edition);
        for word in self.words(deploy.edition) {
            self.struck(machine, format!("deploy: {word}"));
        }
        if deploy.is_killed {
            self.kill(machine, RESTART_MS);
        }
    }

    /// Returns the kinds of changes that an edition makes.
    fn words(&self, edition: usize) -> Vec<&'static str> {
        let state = self.lock();
        match edition.checked_sub(1).and_then(|index| state.builds.editions.get(index)) {
            Some(edition) => edition.changes.iter().map(|change| change.what.word()).collect(),
            None => vec!["the first again"],
        }
    }

    /// Boots a worker of each build, for executions that can go on with only one of them.
    pub(crate) fn boot_each_build(self: &Arc<Self>, first: u32) {
        let count = self.lock().builds.editions.len();
        for (edition, index) in (0..=count).zip(first..) {
            self.place(index, edition);
            self.boot(Actor::Worker(index));
        }
    }
}
