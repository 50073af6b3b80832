//! Scenarios that are long enough to prove something.

use crate::generate::{Lack, longer, scenario};
use crate::run::{Report, run};
use crate::scenario::Scenario;

/// The least operations of the store in the scenario of a seed.
pub const OPERATION_COUNT_MIN: u64 = 200;
/// The least faults that strike in it.
pub const FAULT_COUNT_MIN: usize = 5;
/// How often a scenario may be made longer. One that is still too short is stuck on something.
const ROUND_COUNT_MAX: u64 = 12;

/// Lives through the scenario of a seed, on the store that `place` chooses. A scenario that was
/// over too soon gets more to do and runs again: its length is known only afterwards.
pub fn live(seed: u64, place: impl Fn(Scenario) -> Scenario) -> (Scenario, Report) {
    let mut scenario = place(scenario(seed));
    let mut report = run(&scenario);
    for round in 1..=ROUND_COUNT_MAX {
        if !report.violations.is_empty() || report.is_enough() {
            break;
        }
        scenario = longer(scenario, &report.lack(), round);
        report = run(&scenario);
    }
    (scenario, report)
}

impl Report {
    /// Whether enough happened and enough went wrong.
    pub fn is_enough(&self) -> bool {
        let lack = self.lack();
        !lack.work && !lack.faults
    }

    fn lack(&self) -> Lack {
        Lack { work: self.operation_count < OPERATION_COUNT_MIN, faults: self.faults.len() < FAULT_COUNT_MIN }
    }
}
