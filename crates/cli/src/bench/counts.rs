//! The cost of one item in numbers that hardly depend on the machine.
//!
//! They are counted in a pass of its own, so that counting slows no measured time.

use abide::Abide;
use abide_postgres::counters as of_servers;
use abide_sqlite::counters;
use serde_json::{Value, json};

use super::figure::{Bound, Figure, Goals, Work};
use super::place::Place;
use super::setting::Setting;
use crate::command_error::CommandError;

/// The cell of a table that has nothing to say.
pub(super) const NOTHING: &str = "–";

/// The cost of one item: a workflow, a step, a child.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Counts {
    pub(super) statements: f64,
    /// The bytes that the process wrote, or those of the server's log; `None` where the system does
    /// not count them.
    pub(super) bytes: Option<f64>,
    /// `None` where the server syncs.
    pub(super) syncs: Option<f64>,
    pub(super) allocations: f64,
}

impl Counts {
    pub(super) const HEADINGS: [&str; 4] = ["STATEMENTS", "BYTES", "SYNCS", "ALLOCATIONS"];

    pub(super) fn json(&self) -> Value {
        json!({
            "statements": hundredths(self.statements),
            "bytes": self.bytes.map(f64::round),
            "syncs": self.syncs.map(hundredths),
            "allocations": hundredths(self.allocations),
        })
    }

    pub(super) fn cells(counts: Option<&Self>) -> [String; 4] {
        let shown =
            |of: fn(&Self) -> Option<String>| counts.and_then(of).unwrap_or_else(|| NOTHING.to_owned());
        [
            shown(|counts| Some(format!("{:.2}", counts.statements))),
            shown(|counts| counts.bytes.map(|bytes| format!("{bytes:.0}"))),
            shown(|counts| counts.syncs.map(|syncs| format!("{syncs:.2}"))),
            shown(|counts| Some(format!("{:.1}", counts.allocations))),
        ]
    }
}

/// Returns the figures about an item of a work in a file, for which there are goals.
pub(super) fn figures(work: Work, counts: &Counts) -> Vec<Figure> {
    let allocations = |goal, must| {
        let goals = Goals { goal: Bound::AtMost(goal), must: Bound::AtMost(must) };
        Some(Figure::without_raw(work, (counts.allocations, "allocations"), goals))
    };
    let bytes = |most| {
        let goals = Goals::strict(Bound::AtMost(most));
        counts.bytes.map(|bytes| Figure::without_raw(work, (bytes, "bytes"), goals))
    };
    let figure = match work {
        Work::W1 | Work::W4 => allocations(30.0, 40.0),
        Work::W3 => allocations(6.0, 12.0),
        Work::W1Latency => bytes(19_000.0),
        _ => None,
    };
    Vec::from_iter(figure)
}

fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// Counts the cost of an item of a work. `round` does the work once and has `item_count` items.
pub(super) async fn count(
    setting: &Setting,
    work: &str,
    item_count: u64,
    round: impl AsyncFn(&Abide) -> Result<(), CommandError>,
) -> Result<Counts, CommandError> {
    const ROUND_COUNT: u64 = 3;
    counters::count_statements();
    let abide = setting.open(&format!("{work}-counts")).await?;
    // Everything that happens once happens here: statements are prepared, names are interned.
    round(&abide).await?;
    setting.settle(&format!("{work}-counts"));
    let before = Reading::take(setting)?;
    setting.allocator.switch_on();
    for _ in 0..ROUND_COUNT {
        round(&abide).await?;
    }
    setting.allocator.switch_off();
    let after = Reading::take(setting)?;
    abide.shutdown().await;
    counters::ignore_statements();
    Ok(after.since(&before, (ROUND_COUNT * item_count) as f64))
}

/// The counters of the process at one moment.
struct Reading {
    statements: u64,
    syncs: Option<u64>,
    bytes: Option<u64>,
    allocations: u64,
}

impl Reading {
    fn take(setting: &Setting) -> Result<Self, CommandError> {
        let in_files = counters::counts();
        let (statements, syncs) = match setting.place {
            Place::Folder(_) => (in_files.statements, Some(in_files.syncs)),
            Place::Server(_) => (of_servers::statements(), None),
        };
        let allocations = setting.allocator.count();
        Ok(Self { statements, syncs, bytes: setting.place.bytes_written()?, allocations })
    }

    fn since(&self, before: &Self, item_count: f64) -> Counts {
        let per_item = |after: u64, before: u64| after.saturating_sub(before) as f64 / item_count;
        Counts {
            statements: per_item(self.statements, before.statements),
            bytes: self.bytes.zip(before.bytes).map(|(after, before)| per_item(after, before)),
            syncs: self.syncs.zip(before.syncs).map(|(after, before)| per_item(after, before)),
            allocations: per_item(self.allocations, before.allocations),
        }
    }
}

/// Returns the bytes that this process has passed to the system to write.
pub(super) fn bytes_written() -> Option<u64> {
    let counted = std::fs::read_to_string("/proc/self/io").ok()?;
    counted.lines().find_map(|line| line.strip_prefix("wchar: "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::figure::Reached;
    use super::*;

    #[test]
    fn an_item_has_goals() {
        let rows = [
            (Work::W1, Some(("allocations", Reached::Must))),
            (Work::W1Latency, Some(("bytes", Reached::Neither))),
            (Work::W2, None),
            (Work::W3, Some(("allocations", Reached::Neither))),
            (Work::W4, Some(("allocations", Reached::Must))),
        ];
        let counts = Counts { statements: 4.0, bytes: Some(19_001.0), syncs: Some(2.0), allocations: 31.0 };
        for (work, expected) in rows {
            let found = figures(work, &counts);
            let found: Vec<_> =
                found.iter().map(|figure| (figure.unit, figure.reached().expect("it has goals"))).collect();
            assert_eq!(found, Vec::from_iter(expected), "{work:?}");
        }
        assert_eq!(figures(Work::W1Latency, &Counts { bytes: None, ..counts }), []);
    }
}
