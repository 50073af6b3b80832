//! The coverage: everything that has ever happened must continue to happen, because a fault that no
//! longer strikes proves nothing.

use std::collections::BTreeSet;
use std::fs;
use std::ops::{ControlFlow, Range};
use std::path::PathBuf;

use abide_sim::{Report, Totals, each};

/// The number of seeds behind the range among which an update looks for those that fill a cell.
const FURTHER_COUNT_MAX: u64 = 200_000;
/// The beginning of a line that names a further seed.
const SEED: &str = "seed ";

/// The cells that must be filled, in a file. Most are filled by the seeds of the range. A rare cell
/// may become empty there with any change of the engine; then an update finds a further seed that
/// fills it, and adds that seed to the file.
pub(crate) struct Coverage {
    path: PathBuf,
    listed: Listed,
    is_update: bool,
}

/// The lines of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Listed {
    cells: BTreeSet<String>,
    /// The further seeds.
    seeds: BTreeSet<u64>,
}

impl Coverage {
    /// Reads the file, and checks that it can be written if it has to be.
    pub(crate) fn open(path: &PathBuf) -> Result<Self, String> {
        let is_update = std::env::var_os("UPDATE_EXPECT").is_some();
        if is_update {
            crate::open(path)?;
        }
        let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let listed = Listed::parse(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self { path: path.clone(), listed, is_update })
    }

    /// Checks that every cell of the file was filled, by `range` or by the further seeds, and that
    /// most kills hit work under way. An update first adds the cells that `range` filled. It takes
    /// none away, because a cell that is empty today may be empty by mistake. To remove a cell,
    /// delete its line.
    pub(crate) fn check(
        &self,
        totals: &Totals,
        range: &Range<u64>,
        live: impl Fn(u64) -> Report + Sync,
    ) -> Result<(), String> {
        let filled = totals.cells();
        let cells = if self.is_update { &self.listed.cells | &filled } else { self.listed.cells.clone() };
        let mut search = Search { empty: &cells - &filled, ..Search::default() };
        for seed in &self.listed.seeds {
            search.look(*seed, &live(*seed))?;
        }
        if self.is_update {
            search.look_further(range.end, live)?;
            let listed = Listed { cells, seeds: search.seeds };
            let written = fs::write(&self.path, listed.text());
            written.map_err(|error| format!("{}: {error}", self.path.display()))?;
        }
        if !search.empty.is_empty() {
            let (path, empty) = (self.path.display(), Vec::from_iter(search.empty).join(", "));
            return Err(format!(
                "lines of {path} that never happened: {empty}; the same command with UPDATE_EXPECT=1 looks for \
                 further seeds in which they do"
            ));
        }
        let kills = totals.kills();
        if kills.is_mostly_under_way() { Ok(()) } else { Err(format!("most kills hit no work: {kills:?}")) }
    }
}

impl Listed {
    fn parse(text: &str) -> Result<Self, String> {
        let mut listed = Self::default();
        for line in text.lines() {
            match line.strip_prefix(SEED) {
                None => _ = listed.cells.insert(line.to_owned()),
                Some(seed) => {
                    let seed = seed.parse().map_err(|_| format!("\"{line}\" names no seed"))?;
                    listed.seeds.insert(seed);
                }
            }
        }
        Ok(listed)
    }

    fn text(&self) -> String {
        let cells = self.cells.iter().map(|cell| format!("{cell}\n"));
        cells.chain(self.seeds.iter().map(|seed| format!("{SEED}{seed}\n"))).collect()
    }
}

/// A search for seeds that fill cells.
#[derive(Debug, Default)]
struct Search {
    /// The cells that no seed has filled yet.
    empty: BTreeSet<String>,
    /// The seeds that filled one.
    seeds: BTreeSet<u64>,
}

impl Search {
    fn look(&mut self, seed: u64, report: &Report) -> Result<(), String> {
        if !report.violations.is_empty() {
            return Err(format!("seed {seed}: {}", report.violations.join("\n    ")));
        }
        let mut totals = Totals::default();
        totals.add(report);
        let left = &self.empty - &totals.cells();
        if left != self.empty {
            self.seeds.insert(seed);
            self.empty = left;
        }
        Ok(())
    }

    /// Looks among the seeds from `first` on until no cell is empty.
    fn look_further(&mut self, first: u64, live: impl Fn(u64) -> Report + Sync) -> Result<(), String> {
        if self.empty.is_empty() {
            return Ok(());
        }
        println!(
            "looking for seeds in which these happen: {}",
            Vec::from_iter(self.empty.clone()).join(", ")
        );
        let mut looked = Ok(());
        each(first..first.saturating_add(FURTHER_COUNT_MAX), live, |seed, report| {
            looked = self.look(seed, &report);
            if looked.is_ok() && !self.empty.is_empty() {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        looked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: Range<u64> = 0..10;

    /// A world in which the listed things are recorded.
    fn report(events: &[&str]) -> Report {
        Report { events: events.iter().map(|event| (*event).to_owned()).collect(), ..Report::default() }
    }

    fn checked(coverage: &Coverage, totals: &Totals, further: impl Fn(u64) -> Report + Sync) -> String {
        let mut totals = totals.clone();
        totals.add(&Report {
            faults: vec![("kill: commit".to_owned(), abide_sim::AtWork::UnderWay)],
            ..Report::default()
        });
        coverage.check(&totals, &RANGE, further).err().unwrap_or_default()
    }

    fn coverage(text: &str, is_update: bool) -> (tempfile::TempDir, Coverage) {
        let folder = tempfile::tempdir().expect("a folder");
        let listed = Listed::parse(text).expect("lines");
        let path = folder.path().join("coverage.txt");
        (folder, Coverage { path, listed, is_update })
    }

    fn common() -> Totals {
        let mut totals = Totals::default();
        totals.add(&report(&["common"]));
        totals
    }

    #[test]
    fn a_cell_that_stays_empty_fails() {
        let (_folder, coverage) = coverage("recorded common\nrecorded rare\n", false);
        let error = checked(&coverage, &common(), |_| unreachable!("no further seed is listed"));
        assert!(error.contains("never happened: recorded rare;"), "{error}");
    }

    #[test]
    fn a_listed_seed_fills_a_rare_cell_while_it_still_does() {
        let (_folder, coverage) = coverage("recorded common\nrecorded rare\nseed 17\n", false);
        assert_eq!(checked(&coverage, &common(), |_| report(&["rare"])), "");
        assert!(checked(&coverage, &common(), |_| report(&[])).contains("recorded rare"));
    }

    #[test]
    fn a_violation_in_a_further_seed_fails() {
        let (_folder, coverage) = coverage("seed 17\n", false);
        let wrong = |_| Report { violations: vec!["a lost signal".to_owned()], ..Report::default() };
        assert_eq!(checked(&coverage, &common(), wrong), "seed 17: a lost signal");
    }

    #[test]
    fn an_update_adds_new_cells_and_exchanges_seeds_but_takes_no_cell_away() {
        let (_folder, coverage) = coverage("recorded rare\nseed 17\n", true);
        let further = |seed| if seed == 12 { report(&["rare"]) } else { report(&[]) };
        assert_eq!(checked(&coverage, &common(), further), "");
        let text = fs::read_to_string(&coverage.path).expect("it was written");
        assert_eq!(text, "fault kill: commit\nrecorded common\nrecorded rare\nseed 12\n");
    }

    #[test]
    fn a_line_that_names_no_seed_is_refused() {
        assert_eq!(Listed::parse("seed many"), Err("\"seed many\" names no seed".to_owned()));
    }
}
