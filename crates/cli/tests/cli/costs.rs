//! The cost of one item in statements and allocations, beside a committed baseline. A feature that
//! costs more says so in its change of the baseline.

use std::fmt::Write;
use std::path::Path;

use crate::common::abide;

/// The statements of a batch itself, which its items share: BEGIN, a look for writes of others,
/// COMMIT. How many items share them depends on the machine, so they do not count.
const STATEMENTS_PER_COMMIT: f64 = 3.0;
const STATEMENTS_MORE_MAX: f64 = 0.25;
/// Batches allocate too.
const ALLOCATIONS_RATIO_MAX: f64 = 1.06;

/// The statements of one item of each work, without those of its batch, and its allocations.
const BASELINE: &str = include_str!("costs.txt");

#[test]
fn an_item_costs_no_more_statements_and_allocations_than_before() {
    let counted = abide(&["bench", "--counts", "-o", "json"]).ok().json();
    let mut table = String::new();
    let mut grown = Vec::new();
    assert_eq!(counted.as_array().map(Vec::len), Some(BASELINE.lines().count()), "a work is missing");
    for item in counted.as_array().expect("a list") {
        let number = |name: &str| item[name].as_f64().expect("a number");
        let work = item["work"].as_str().expect("a name");
        let statements = number("statements") - STATEMENTS_PER_COMMIT * number("syncs");
        let allocations = number("allocations");
        writeln!(table, "{work} {statements:.2} {allocations:.1}").expect("text");
        let (statements_before, allocations_before) = baseline(work);
        if statements > statements_before + STATEMENTS_MORE_MAX {
            grown.push(format!("{work}: {statements:.2} statements, before {statements_before}"));
        }
        if allocations > allocations_before * ALLOCATIONS_RATIO_MAX {
            grown.push(format!("{work}: {allocations} allocations, before {allocations_before}"));
        }
    }
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/costs.txt");
        std::fs::write(file, table).expect("the baseline is written");
    } else {
        assert!(grown.is_empty(), "{grown:#?}\nUPDATE_EXPECT=1 writes the new costs, for a good reason");
    }
}

/// Returns the statements and the allocations of a work in the baseline, zero if it is not there.
fn baseline(work: &str) -> (f64, f64) {
    let mut rows = BASELINE.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let row = rows.find(|row| row[0] == work);
    let number = |text: &str| text.parse().expect("a number");
    row.map_or((0.0, 0.0), |row| (number(row[1]), number(row[2])))
}
