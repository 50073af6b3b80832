//! Sums over many seeds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::history::AtWork;
use crate::run::Report;

/// Counts over many scenarios.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// The number of scenarios.
    pub scenario_count: u64,
    /// The number of scenarios on SQLite.
    pub sqlite_count: u64,
    /// The number of operations of the store.
    pub operation_count: u64,
    /// The least operations of one scenario.
    pub operation_count_least: Option<u64>,
    /// The least faults of one scenario.
    pub fault_count_least: Option<usize>,
    /// A hash of everything that happened.
    pub trace_hash: u64,
    /// How often each fault struck at each place.
    pub faults: BTreeMap<String, Struck>,
    /// How often each fault struck on SQLite.
    pub sqlite_faults: BTreeMap<String, u64>,
    /// How often each request from outside got each answer.
    pub answers: BTreeMap<String, u64>,
    /// How often each event was recorded, by the phase of its execution.
    pub events: BTreeMap<String, u64>,
    /// How often two operations of one run were open at once.
    pub pairs: BTreeMap<String, u64>,
    /// How often each request met an execution in each state.
    pub met: BTreeMap<String, u64>,
    /// How often each call of the public API came to a recorded outcome.
    pub calls: BTreeMap<String, u64>,
}

/// How often a fault struck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Struck {
    /// In total.
    pub count: u64,
    /// A machine that held a lease or had work under way.
    pub leased_count: u64,
    /// A machine that ran a closure, or whose commit, submit or claim was under way.
    pub under_way_count: u64,
}

impl Struck {
    fn add(&mut self, at_work: AtWork) {
        self.count += 1;
        self.leased_count += u64::from(at_work >= AtWork::Leased);
        self.under_way_count += u64::from(at_work == AtWork::UnderWay);
    }

    /// Whether most hit work under way.
    pub fn is_mostly_under_way(&self) -> bool {
        self.under_way_count * 2 > self.count
    }
}

impl Totals {
    /// Adds one scenario.
    pub fn add(&mut self, report: &Report) {
        self.scenario_count += 1;
        self.sqlite_count += u64::from(report.is_on_sqlite);
        self.operation_count += report.operation_count;
        let least = self.operation_count_least.get_or_insert(report.operation_count);
        *least = report.operation_count.min(*least);
        let least = self.fault_count_least.get_or_insert(report.faults.len());
        *least = report.faults.len().min(*least);
        self.trace_hash = self.trace_hash.rotate_left(7) ^ report.trace_hash;
        for (what, at_work) in &report.faults {
            self.faults.entry(what.clone()).or_default().add(*at_work);
            if report.is_on_sqlite {
                *self.sqlite_faults.entry(what.clone()).or_default() += 1;
            }
        }
        for answer in &report.answers {
            *self.answers.entry(answer.word()).or_default() += 1;
        }
        for event in &report.events {
            *self.events.entry(event.clone()).or_default() += 1;
        }
        for (pair, count) in &report.pairs {
            *self.pairs.entry(pair.clone()).or_default() += count;
        }
        for (met, count) in &report.met {
            *self.met.entry(met.clone()).or_default() += count;
        }
        for (call, count) in &report.calls {
            *self.calls.entry(call.clone()).or_default() += count;
        }
    }

    /// Returns every sort of thing that happened.
    pub fn cells(&self) -> BTreeSet<String> {
        let faults = self.faults.keys().map(|what| format!("fault {what}"));
        let on_sqlite = self.sqlite_faults.keys().map(|what| format!("fault on sqlite {what}"));
        let answers = self.answers.keys().map(|what| format!("asked {what}"));
        let events = self.events.keys().map(|what| format!("recorded {what}"));
        let calls = self.calls.keys().map(|what| format!("called {what}"));
        let pairs = self.pairs.keys().map(|what| format!("open {what}"));
        let met = self.met.keys().map(|what| format!("met {what}"));
        faults.chain(on_sqlite).chain(answers).chain(events).chain(calls).chain(pairs).chain(met).collect()
    }

    /// Returns the number of faults that struck.
    pub fn fault_count(&self) -> u64 {
        self.faults.values().map(|struck| struck.count).sum()
    }

    /// Returns how often machines were killed.
    pub fn kills(&self) -> Struck {
        let kills = self.faults.iter().filter(|(what, _)| what.starts_with("kill"));
        kills.fold(Struck::default(), |all, (_, one)| Struck {
            count: all.count + one.count,
            leased_count: all.leased_count + one.leased_count,
            under_way_count: all.under_way_count + one.under_way_count,
        })
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "faults (where): struck, of these with a lease or work under way, with work under way")?;
        for (what, Struck { count, leased_count, under_way_count }) in &self.faults {
            writeln!(f, "  {what:<28} {count:>8} {leased_count:>8} {under_way_count:>8}")?;
        }
        writeln!(f, "asked: answered")?;
        for (what, count) in &self.answers {
            writeln!(f, "  {what:<28} {count:>8}")?;
        }
        writeln!(f, "recorded (phase)")?;
        for (what, count) in &self.events {
            writeln!(f, "  {what:<28} {count:>8}")?;
        }
        writeln!(f, "open at once")?;
        for (what, count) in &self.pairs {
            writeln!(f, "  {what:<28} {count:>8}")?;
        }
        writeln!(f, "asked (where it stood)")?;
        for (what, count) in &self.met {
            writeln!(f, "  {what:<28} {count:>8}")?;
        }
        writeln!(f, "called: came to a recorded outcome")?;
        for (what, count) in &self.calls {
            writeln!(f, "  {what:<28} {count:>8}")?;
        }
        let Struck { count: kills, leased_count, under_way_count } = self.kills();
        write!(
            f,
            "{} scenarios ({} on SQLite), {} operations (at least {} each), {} faults (at least {} each), \
             {kills} kills ({leased_count} with a lease or work under way, {under_way_count} with work under way), trace {:016x}",
            self.scenario_count,
            self.sqlite_count,
            self.operation_count,
            self.operation_count_least.unwrap_or_default(),
            self.fault_count(),
            self.fault_count_least.unwrap_or_default(),
            self.trace_hash
        )
    }
}
