//! The cases that every store must pass.
//!
//! A store's own tests call [`check_all`] with a function that opens an empty store, and
//! [`differential`] with the same function for random sequences that are compared with
//! [`crate::memory::MemoryStore`]:
//!
//! ```
//! use abide_store::conformance::{check_all, bounds};
//! use abide_store::memory::MemoryStore;
//! check_all(|clock| MemoryStore::new(clock, bounds()));
//! ```
//!
//! The intake table needs a way in, which [`check_intake`] receives beside the store.
//!
//! The store must be opened with [`bounds`] and [`page_bounds`], and must read the time from the
//! clock that the function receives. Cases are plain functions. Each is listed in the table of its
//! file; a case that is not listed does not compile.

// A case that is not listed, or a table that is not in `TABLES`, is dead code.
#![deny(dead_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use abide_core::Bounds;

use crate::{PageBounds, Store};

mod block_on;
mod born;
mod cares;
mod claims;
mod clock;
mod closing;
mod commits;
mod differential;
mod digests;
mod feed;
mod fences;
mod held;
mod imports;
mod inboxes;
mod intake;
mod journals;
mod lists;
mod make;
mod messages;
mod notices;
mod outgoing;
mod parking;
mod prunes;
mod recorded;
mod registry;
mod runs;
mod sizes;
mod starts;
mod stretches;
mod subject;
mod takeovers;
mod timers;
mod transactions;

pub use block_on::block_on;
pub use clock::TestClock;
pub use differential::{differential, differential_bounds};
pub use intake::{Door, Entrance, INTAKE_CASES, IntakeCase, check_intake, enqueued_signal, enqueued_start};
pub use recorded::{Recorded, recorded, recorded_by};
pub use subject::Subject;
pub use transactions::UserTable;

/// One fact about stores.
pub struct Case {
    /// The fact.
    pub name: &'static str,
    /// The check, which panics when the fact does not hold.
    pub run: fn(&Subject),
}

/// Makes the table of a file out of the names of its cases.
macro_rules! table {
    ($($case:ident,)*) => {
        pub(super) const CASES: &[super::Case] =
            &[$(super::Case { name: stringify!($case), run: $case }),*];
    };
}
use table;

/// All tables of cases.
pub const TABLES: &[&[Case]] = &[
    starts::CASES,
    messages::CASES,
    inboxes::CASES,
    claims::CASES,
    timers::CASES,
    cares::CASES,
    fences::CASES,
    takeovers::CASES,
    registry::CASES,
    digests::CASES,
    commits::CASES,
    parking::CASES,
    outgoing::CASES,
    born::CASES,
    stretches::CASES,
    journals::CASES,
    lists::CASES,
    feed::CASES,
    prunes::CASES,
    runs::CASES,
    imports::CASES,
    sizes::CASES,
    transactions::CASES,
    notices::CASES,
    closing::CASES,
];

/// Returns every case of every table.
pub fn cases() -> impl Iterator<Item = &'static Case> {
    TABLES.iter().copied().flatten()
}

/// Returns the bounds that a store under test must be opened with: small, so that cases can reach
/// them.
pub fn bounds() -> Bounds {
    Bounds { payload_bytes_max: 64 << 10, inbox_count_max: 200, ..Bounds::default() }
}

/// Returns the bounds that a store under test must be opened with, small for the same reason.
pub fn page_bounds() -> PageBounds {
    PageBounds {
        journal_page_count_max: 128,
        journal_page_bytes_max: 1 << 20,
        inbox_page_count_max: 8,
        inbox_page_bytes_max: 64 << 10,
        claim_bytes_max: 256 << 10,
        lease_page_count_max: 2,
    }
}

/// Runs every case on a store of its own.
///
/// # Panics
///
/// Panics with the list of the failed cases, if there are any.
pub fn check_all(make: impl Fn(Arc<TestClock>) -> Arc<dyn Store>) {
    check_all_with(UserTable::MEMORY, make);
}

/// Runs every case on a store of its own, whose transaction steps receive something other than a
/// [`crate::memory::MemoryTable`].
///
/// # Panics
///
/// Panics with the list of the failed cases, if there are any.
pub fn check_all_with(table: UserTable, make: impl Fn(Arc<TestClock>) -> Arc<dyn Store>) {
    let passes = |case: &&Case| {
        let outcome = catch_unwind(AssertUnwindSafe(|| (case.run)(&subject(table, &make))));
        println!("{} {}", if outcome.is_ok() { "ok    " } else { "FAILED" }, case.name);
        outcome.is_ok()
    };
    let failed: Vec<_> = cases().filter(|case| !passes(case)).map(|case| case.name).collect();
    assert!(failed.is_empty(), "{} cases failed:\n  {}", failed.len(), failed.join("\n  "));
}

/// Runs one case, to hunt for a fault.
///
/// # Panics
///
/// Panics when the case fails or no case has this name.
pub fn check_one(name: &str, make: impl Fn(Arc<TestClock>) -> Arc<dyn Store>) {
    let case = cases().find(|case| case.name == name).expect("there is a case of this name");
    (case.run)(&subject(UserTable::MEMORY, &make));
}

fn subject(table: UserTable, make: &impl Fn(Arc<TestClock>) -> Arc<dyn Store>) -> Subject {
    let clock = TestClock::new();
    Subject { table, ..Subject::new(make(clock.clone()), clock) }
}
