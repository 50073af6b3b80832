//! Many seeds on every core, reported in their order.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use crate::run::Report;

/// Lives through seeds on every core and reports them in their order, until `tell` wants no more.
pub fn each(
    seeds: Range<u64>,
    live: impl Fn(u64) -> Report + Sync,
    mut tell: impl FnMut(u64, Report) -> ControlFlow<()>,
) {
    let (next, is_enough) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
    let (sender, receiver) = mpsc::channel();
    let work = |sender: mpsc::Sender<(u64, Report)>| {
        while !is_enough.load(Ordering::Relaxed) {
            let one_more = |seed| (seed < seeds.end).then(|| seed + 1);
            let Ok(seed) = next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more) else { return };
            if sender.send((seed, live(seed))).is_err() {
                return;
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            let sender = sender.clone();
            scope.spawn(|| work(sender));
        }
        drop(sender);
        let mut early: BTreeMap<u64, Report> = BTreeMap::new();
        let mut due = seeds.start;
        for (seed, report) in receiver {
            early.insert(seed, report);
            while let Some(report) = early.remove(&due) {
                if tell(due, report).is_break() {
                    is_enough.store(true, Ordering::Relaxed);
                    return;
                }
                due += 1;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(seed: u64) -> Report {
        Report { trace_hash: seed, ..Report::default() }
    }

    #[test]
    fn seeds_are_told_in_their_order_whoever_is_first() {
        let mut told = Vec::new();
        each(3..200, report, |seed, report| {
            assert_eq!(report.trace_hash, seed);
            told.push(seed);
            ControlFlow::Continue(())
        });
        assert_eq!(told, (3..200).collect::<Vec<_>>());
    }

    #[test]
    fn nothing_is_told_after_enough() {
        let mut told = Vec::new();
        each(0..u64::MAX, report, |seed, _| {
            told.push(seed);
            if seed == 10 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!(told, (0..=10).collect::<Vec<_>>());
    }
    #[test]
    fn the_last_seeds_that_there_are_end() {
        let mut told = Vec::new();
        each(u64::MAX - 2..u64::MAX, report, |seed, _| {
            told.push(seed);
            ControlFlow::Continue(())
        });
        assert_eq!(told, [u64::MAX - 2, u64::MAX - 1]);
    }
}
