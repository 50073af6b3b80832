//! The committed costs that new ones are compared with: a line for each work and cause.

use clap::ValueEnum;

use super::Work;
use super::profile::{Cause, Profile};
use crate::Result;
use crate::workspace::Workspace;

const FILE: &str = "xtask/src/instructions/baseline.txt";

/// The instructions of an item by work and cause, in the order of [`Work`]'s variants.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Baseline(Vec<(Work, Profile)>);

impl Baseline {
    pub(super) fn read(workspace: &Workspace) -> Result<Self> {
        let text = workspace.read(FILE)?.ok_or_else(|| format!("{FILE} is not text"))?;
        Self::parse(&text)
    }

    pub(super) fn write(&self, workspace: &Workspace) -> Result<()> {
        workspace.write(FILE, &self.text())
    }

    /// Returns the costs of a work, all zero if it has none.
    pub(super) fn of(&self, work: Work) -> Profile {
        self.0.iter().find(|(known, _)| *known == work).map_or_else(Profile::default, |(_, profile)| *profile)
    }

    pub(super) fn set(&mut self, work: Work, profile: &Profile) {
        self.0.retain(|(known, _)| *known != work);
        self.0.push((work, *profile));
    }

    /// Reads lines such as `W1 31930 SQLite`. The cause is last because its name has spaces.
    fn parse(text: &str) -> Result<Self> {
        let mut baseline = Self::default();
        for line in text.lines() {
            let row = row(line).ok_or_else(|| format!("{FILE}: {line:?} is not a work, a count, a cause"))?;
            let profile = baseline.of(row.work).with(row.cause, row.count);
            baseline.set(row.work, &profile);
        }
        Ok(baseline)
    }

    fn text(&self) -> String {
        let works =
            Work::value_variants().iter().filter(|work| self.0.iter().any(|(known, _)| known == *work));
        let rows = works.flat_map(|work| Cause::ALL.map(|cause| (*work, cause)));
        rows.map(|(work, cause)| format!("{} {:.0} {}\n", work.name(), self.of(work).of(cause), cause.name()))
            .collect()
    }
}

struct Row {
    work: Work,
    count: f64,
    cause: Cause,
}

fn row(line: &str) -> Option<Row> {
    let mut words = line.splitn(3, ' ');
    let (work, count, cause) = (words.next()?, words.next()?, words.next()?);
    Some(Row {
        work: Work::from_str(work, false).ok()?,
        count: f64::from(count.parse::<u32>().ok()?),
        cause: Cause::ALL.into_iter().find(|known| known.name() == cause)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMITTED: &str = include_str!("baseline.txt");

    #[test]
    fn the_committed_baseline_has_every_work_and_cause() {
        assert_eq!(Baseline::parse(COMMITTED).unwrap().text(), COMMITTED);
        assert_eq!(COMMITTED.lines().count(), Work::value_variants().len() * Cause::ALL.len());
    }

    #[test]
    fn a_new_measurement_replaces_only_its_work() {
        let mut baseline = Baseline::parse("W1 10 SQLite\nW3 20 tokio\n").unwrap();
        baseline.set(Work::W1, &Profile::default().with(Cause::Sqlite, 12.4));
        assert_eq!(baseline.of(Work::W1).total(), 12.4);
        assert_eq!(baseline.of(Work::W3).of(Cause::Tokio), 20.0);
        let text = baseline.text();
        assert!(text.starts_with("W1 12 SQLite\nW1 0 rusqlite\n") && !text.contains("W4"), "{text}");
    }

    #[test]
    fn a_line_that_is_none_is_refused() {
        for line in ["W2 10 SQLite", "W1 ten SQLite", "W1 10", "W1 10 sorcery", "W1 -1 SQLite", ""] {
            let error = Baseline::parse(&format!("{line}\n")).unwrap_err().to_string();
            assert!(error.contains(&format!("{line:?} is not a work")), "{error}");
        }
    }
}
