//! The picture in the terminal. Pure.

use std::fmt::Write as _;

use abide_core::Timestamp;

use super::checks::Report;
use super::timeline::{BarKind, Row, Timeline};

/// The width of the labels, in columns.
const LABEL_WIDTH: usize = 22;
/// The width of the bars, in columns.
const WIDTH: usize = 52;
/// The width of the page, in columns.
const PAGE_WIDTH: usize = 80;

const TITLE: &str = "
One order: ten steps, a timer, a signal and two children. The process that ran
it was killed on the way and started again.

";

/// Draws the whole page.
pub(super) fn page(timeline: &Timeline, report: &Report, is_colourful: bool) -> String {
    let canvas = Canvas { timeline, is_colourful };
    let mut page = String::from(TITLE);
    page.push_str(&canvas.head());
    for row in &timeline.rows {
        page.push_str(&canvas.row(row));
    }
    page.push_str("\n   █ ran  ─ waited  ┄ waited, nobody worked  ✗ SIGKILL  ▸ restart  1× ran once\n\n");
    for check in report.checks() {
        let mark =
            if check.holds { canvas.paint("✓", Ink::Second) } else { canvas.paint("✗", Ink::Crash) };
        let _ = writeln!(page, " {mark} {}", wrapped(&check.fact));
    }
    page
}

struct Canvas<'a> {
    timeline: &'a Timeline,
    is_colourful: bool,
}

/// The ink of a cell.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ink {
    Plain,
    Dim,
    First,
    Second,
    Crash,
}

impl Canvas<'_> {
    /// Draws the two processes and a scale in seconds.
    fn head(&self) -> String {
        let (killed, restarted) =
            (self.column(self.timeline.killed_at), self.column(self.timeline.restarted_at));
        let (first, second) = self.timeline.pids;
        let mut names = vec![(' ', Ink::Plain); WIDTH];
        put(&mut names, 0, &format!("process {first}"), Ink::First);
        put(&mut names, restarted, &format!("process {second}"), Ink::Second);
        let mut lives = vec![(' ', Ink::Plain); WIDTH];
        put(&mut lives, 0, &"━".repeat(killed), Ink::First);
        put(&mut lives, restarted, &"━".repeat(WIDTH - restarted), Ink::Second);
        self.mark(&mut lives);
        let mut scale = vec![(' ', Ink::Dim); WIDTH];
        for second in 0.. {
            let at = self.timeline.began_at.after(std::time::Duration::from_secs(second));
            if at > self.timeline.ended_at {
                break;
            }
            let (column, label) = (self.column(at), format!("{second} s"));
            if column + label.len() <= WIDTH {
                put(&mut scale, column, &label, Ink::Dim);
            }
        }
        let line = |cells: &[(char, Ink)]| format!("{:LABEL_WIDTH$} {}\n", "", self.line(cells).trim_end());
        format!("{}{}{}", line(&scale), line(&names), line(&lives))
    }

    fn row(&self, row: &Row) -> String {
        let mut cells = vec![(' ', Ink::Plain); WIDTH];
        // Closures are drawn over waits.
        for kind in [BarKind::Wait, BarKind::Closure] {
            for bar in row.bars.iter().filter(|bar| bar.kind == kind) {
                let (from, to) = (self.column(bar.from), self.column(bar.to).max(self.column(bar.from) + 1));
                for (column, cell) in cells.iter_mut().enumerate().take(to).skip(from) {
                    *cell = self.cell(column, kind);
                }
            }
        }
        self.mark(&mut cells);
        let counts: Vec<String> = row.pids.iter().map(|pids| pids.len().to_string()).collect();
        let note = if counts.is_empty() { String::new() } else { format!("{}×", counts.join("+")) };
        format!("{}\n", format!("{:LABEL_WIDTH$} {} {note}", row.label, self.line(&cells)).trim_end())
    }

    /// Draws the kill and the restart through every row.
    fn mark(&self, cells: &mut [(char, Ink)]) {
        cells[self.column(self.timeline.killed_at)] = ('✗', Ink::Crash);
        let restarted = self.column(self.timeline.restarted_at);
        if cells[restarted].0 != '█' {
            cells[restarted] = ('▸', Ink::Second);
        }
    }

    fn cell(&self, column: usize, kind: BarKind) -> (char, Ink) {
        let (killed, restarted) =
            (self.column(self.timeline.killed_at), self.column(self.timeline.restarted_at));
        match kind {
            BarKind::Closure if column <= killed => ('█', Ink::First),
            BarKind::Closure => ('█', Ink::Second),
            BarKind::Wait if column < killed => ('─', Ink::First),
            BarKind::Wait if column < restarted => ('┄', Ink::Dim),
            BarKind::Wait => ('─', Ink::Second),
        }
    }

    /// Returns the column of a point in time.
    fn column(&self, at: Timestamp) -> usize {
        let whole = self.timeline.ended_at.since(self.timeline.began_at).as_micros().max(1);
        let part = at.since(self.timeline.began_at).as_micros().min(whole);
        let column = part * (WIDTH as u128 - 1) / whole;
        usize::try_from(column).unwrap_or(WIDTH - 1)
    }

    /// Converts cells to text, with one change of colour for each run of cells of the same ink.
    fn line(&self, cells: &[(char, Ink)]) -> String {
        let runs = cells.chunk_by(|left, right| left.1 == right.1);
        let painted = runs.map(|run| {
            let text: String = run.iter().map(|(character, _)| character).collect();
            self.paint(&text, run.first().map_or(Ink::Plain, |(_, ink)| *ink))
        });
        painted.collect()
    }

    fn paint(&self, text: &str, ink: Ink) -> String {
        let code = match ink {
            Ink::Plain => return text.to_owned(),
            Ink::Dim => "2",
            Ink::First => "36",
            Ink::Second => "32",
            Ink::Crash => "31;1",
        };
        if self.is_colourful { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

/// Wraps a text. Its later lines are indented to the first one.
fn wrapped(text: &str) -> String {
    const INDENT: usize = 3;
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let room = PAGE_WIDTH - INDENT;
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join(&format!("\n{:INDENT$}", ""))
}

/// Writes text into cells, as far as it fits.
fn put(cells: &mut [(char, Ink)], at: usize, text: &str, ink: Ink) {
    for (cell, character) in cells.iter_mut().skip(at).zip(text.chars()) {
        *cell = (character, ink);
    }
}

#[cfg(test)]
mod tests {
    use super::super::timeline::Bar;
    use super::*;

    fn timeline() -> Timeline {
        let at = |secs: i64| Timestamp::from_millis(secs * 1_000);
        let bar = |from, to, kind| Bar { from: at(from), to: at(to), kind };
        let row = |label: &str, bars, pids: &[u32]| {
            let pids = pids.iter().map(|pid| vec![*pid]).collect();
            Row { label: label.to_owned(), bars, pids }
        };
        Timeline {
            began_at: at(0),
            killed_at: at(20),
            restarted_at: at(30),
            ended_at: at(51),
            pids: (11, 22),
            rows: vec![
                row(" 1 charge", vec![bar(1, 5, BarKind::Closure)], &[11]),
                row("   timer", vec![bar(5, 40, BarKind::Wait)], &[]),
                row(" 2 ship", vec![bar(40, 44, BarKind::Closure)], &[22]),
            ],
        }
    }

    #[test]
    fn the_crash_goes_through_every_row() {
        let timeline = timeline();
        let canvas = Canvas { timeline: &timeline, is_colourful: false };
        let rows: String = timeline.rows.iter().map(|row| canvas.row(row)).collect();
        let expected = [
            " 1 charge               ████               ✗         ▸                      1×",
            "   timer                    ───────────────✗┄┄┄┄┄┄┄┄┄▸─────────",
            " 2 ship                                    ✗         ▸         ████         1×",
        ];
        assert_eq!(rows.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn long_facts_are_wrapped_under_their_beginning() {
        let wrapped = wrapped(&["word"; 20].join(" "));
        assert!(wrapped.starts_with("word word"));
        assert!(wrapped.contains("\n   word"));
        assert!(wrapped.lines().all(|line| line.chars().count() <= PAGE_WIDTH));
    }

    #[test]
    fn colours_appear_only_when_they_are_wanted() {
        let timeline = timeline();
        let page = |is_colourful| page(&timeline, &Report::default(), is_colourful);
        assert!(!page(false).contains('\u{1b}'));
        assert!(page(true).contains("\u{1b}[31;1m✗\u{1b}[0m"));
    }
}
