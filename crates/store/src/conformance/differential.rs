//! Random sequences of operations, on a store and on the reference.

use std::sync::Arc;

use abide_core::Bounds;

use super::{TestClock, UserTable, subject};
use crate::Store;
use crate::memory::MemoryStore;
use crate::prng::Prng;

mod step;
mod tell;
mod world;

use step::Step;
use world::World;

/// Applies `step_count` random operations to a store and to [`MemoryStore`], and compares every
/// answer and, at the end, everything that can be read. The operations include stale leases, dead
/// sessions, repeated requests, lost answers and the user's transactions.
///
/// The store must be opened with [`differential_bounds`]. The same seed leads to the same
/// operations. With an odd one, most of them are the commits of parents and their children.
///
/// # Panics
///
/// Panics at the first difference, and prints the seed and the operations so far.
pub fn differential(
    seed: u64,
    step_count: usize,
    table: UserTable,
    make: impl Fn(Arc<TestClock>) -> Arc<dyn Store>,
) {
    let mut prng = Prng::new(seed);
    let in_memory = |clock: Arc<TestClock>| MemoryStore::new(clock, differential_bounds());
    let mut reference = World::new(subject(UserTable::MEMORY, &|clock| in_memory(clock)));
    let mut other = World::new(subject(table, &make));
    let mut log = Log { seed, steps: Vec::new() };
    for _ in 0..step_count {
        let step = match seed % 2 {
            0 => Step::draw(&mut prng, &reference.extent()),
            _ => Step::draw_of_families(&mut prng, &reference.extent()),
        };
        log.steps.push(format!("{step:?}"));
        let expected = reference.apply(&step);
        let found = other.apply(&step);
        log.steps.push(format!("     -> {}", expected.join(" | ")));
        check_same(&found, &expected);
    }
    check_same(&other.everything(), &reference.everything());
}

/// Compares answers line by line, so that a difference in a long answer is visible.
fn check_same(found: &[String], expected: &[String]) {
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found, expected, "the store (left) and the reference (right) differ");
    }
    assert_eq!(
        found.len(),
        expected.len(),
        "the store tells as much as the reference: {found:#?} {expected:#?}"
    );
}

/// Returns the bounds that a store must be opened with for [`differential`]: inboxes fill up
/// quickly.
pub fn differential_bounds() -> Bounds {
    Bounds { inbox_count_max: 6, ..super::bounds() }
}

/// Prints the history of a failure, even when a store's own assertion ends the run.
struct Log {
    seed: u64,
    steps: Vec<String>,
}

impl Drop for Log {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("differential(seed {}) failed after these steps:", self.seed);
            self.steps.iter().for_each(|step| println!("  {step}"));
        }
    }
}
