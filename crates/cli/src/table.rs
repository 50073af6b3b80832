//! Text in columns that fits the terminal.

use std::fmt;

use abide_core::text;

/// The gap between two columns.
const GAP: &str = "  ";
/// The minimum width of a cut column.
const COLUMN_WIDTH_MIN: usize = 8;

/// Text in columns, each as wide as its widest cell. Text from outside is cleaned.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    fit: Fit,
}

/// The way in which a table adapts to a narrow terminal. Columns in neither list are kept whole.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fit {
    /// The maximum width; unlimited if missing.
    pub(crate) width: Option<usize>,
    /// The headings of the columns to cut, in this order.
    pub(crate) cut: &'static [&'static str],
    /// The headings of the columns to leave out, in this order, when cutting is not enough.
    pub(crate) left_out: &'static [&'static str],
}

impl Table {
    /// Creates a table with these headings.
    pub(crate) fn new<'a>(headings: impl IntoIterator<Item = &'a str>) -> Self {
        Self { rows: vec![headings.into_iter().map(str::to_owned).collect()], fit: Fit::default() }
    }

    pub(crate) fn push(&mut self, row: Vec<String>) {
        self.rows.push(row.iter().map(|cell| text::clean(cell).into_owned()).collect());
    }

    /// Returns the same table, fitted to a terminal.
    pub(crate) fn fitting(self, fit: Fit) -> Self {
        Self { fit, ..self }
    }

    /// Returns the shown columns with their widths.
    fn columns(&self) -> Vec<(usize, usize)> {
        let count = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let natural =
            |column: usize| self.rows.iter().filter_map(|row| row.get(column)).map(|cell| width(cell)).max();
        let mut columns: Vec<(usize, usize)> =
            (0..count).map(|column| (column, natural(column).unwrap_or_default())).collect();
        let Some(max) = self.fit.width else { return columns };
        let mut left_out = self.fit.left_out.iter().filter_map(|heading| self.column(heading));
        loop {
            let gaps = GAP.len() * columns.len().saturating_sub(1);
            let mut excess =
                (columns.iter().map(|(_, width)| width).sum::<usize>() + gaps).saturating_sub(max);
            for cut in self.fit.cut.iter().filter_map(|heading| self.column(heading)) {
                let Some((_, width)) = columns.iter_mut().find(|(column, _)| *column == cut) else {
                    continue;
                };
                let less = width.saturating_sub(COLUMN_WIDTH_MIN).min(excess);
                *width -= less;
                excess -= less;
            }
            let Some(gone) = left_out.next().filter(|_| excess > 0) else { return columns };
            columns.retain(|(column, _)| *column != gone);
            // Cut columns may have room again.
            columns.iter_mut().for_each(|(column, width)| *width = natural(*column).unwrap_or_default());
        }
    }

    fn column(&self, heading: &str) -> Option<usize> {
        self.rows.first()?.iter().position(|found| found == heading)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.columns();
        for row in &self.rows {
            let mut line = String::new();
            for (at, (column, max)) in columns.iter().enumerate() {
                let cell = row.get(*column).map(String::as_str).unwrap_or_default();
                let (shown, taken) = shortened(cell, *max);
                line.push_str(if at > 0 { GAP } else { "" });
                line.push_str(&shown);
                line.extend(std::iter::repeat_n(' ', max - taken));
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Returns as much of a text as fits, and its width.
fn shortened(cell: &str, max: usize) -> (String, usize) {
    let whole = width(cell);
    if whole <= max {
        return (cell.to_owned(), whole);
    }
    let (mut kept, mut taken) = (String::new(), 0);
    for c in cell.chars() {
        if taken + of_char(c) >= max {
            break;
        }
        taken += of_char(c);
        kept.push(c);
    }
    kept.push('…');
    (kept, taken + 1)
}

/// Returns the number of terminal columns that a text takes.
fn width(text: &str) -> usize {
    text.chars().map(of_char).sum()
}

/// Returns the width of a character: wide ones take two columns, accents none. This is close enough
/// for the scripts and pictures in ids and names.
fn of_char(c: char) -> usize {
    match c {
        '\u{300}'..='\u{36f}' | '\u{fe0e}' | '\u{fe0f}' => 0,
        '\u{1100}'..='\u{115f}'
        | '\u{2e80}'..='\u{303e}'
        | '\u{3041}'..='\u{a4cf}'
        | '\u{ac00}'..='\u{d7a3}'
        | '\u{f900}'..='\u{faff}'
        | '\u{fe30}'..='\u{fe6f}'
        | '\u{ff00}'..='\u{ff60}'
        | '\u{ffe0}'..='\u{ffe6}'
        | '\u{1f300}'..='\u{1f64f}'
        | '\u{1f680}'..='\u{1faff}'
        | '\u{20000}'..='\u{3fffd}' => 2,
        _ => 1,
    }
}

/// Returns the width of the terminal, from `COLUMNS` or from the terminal itself. Returns nothing
/// if there is no terminal, as in a pipe.
pub(crate) fn terminal_width() -> Option<usize> {
    let said = std::env::var("COLUMNS").ok().and_then(|columns| columns.trim().parse().ok());
    said.filter(|columns| *columns > 0).or_else(asked_width)
}

#[cfg(unix)]
fn asked_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

#[cfg(not(unix))]
fn asked_width() -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|cell| (*cell).to_owned()).collect()
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(["ID", "STATUS", "WAITING"]);
        table.push(row(&["größe", "running", ""]));
        table.push(row(&["b", "failed", "x"]));
        table.push(row(&["日本", "failed", "x"]));
        assert_eq!(
            table.to_string(),
            "ID     STATUS   WAITING\ngröße  running\nb      failed   x\n日本   failed   x\n"
        );
    }

    #[test]
    fn cells_hide_nothing() {
        let mut table = Table::new(["ID"]);
        table.push(row(&["a\u{202e}\nb"]));
        assert_eq!(table.to_string(), "ID\na\\u{202e}\\nb\n");
    }

    #[test]
    fn a_narrow_terminal_cuts_columns_and_then_leaves_some_out() {
        let table = |width| {
            let mut table = Table::new(["ID", "STATUS", "CREATED", "WAITING"]);
            table.push(row(&["order-17", "waiting", "2026-11-15T18:47", "waiting for signal \"approval\""]));
            let fit = Fit { width: Some(width), cut: &["WAITING"], left_out: &["CREATED", "WAITING"] };
            table.fitting(fit).to_string().lines().nth(1).unwrap_or_default().to_owned()
        };
        assert_eq!(table(80), "order-17  waiting  2026-11-15T18:47  waiting for signal \"approval\"");
        assert_eq!(table(50), "order-17  waiting  2026-11-15T18:47  waiting for …");
        assert_eq!(table(40), "order-17  waiting  waiting for signal \"…");
        assert_eq!(table(20), "order-17  waiting");
        assert_eq!(table(3), "order-17  waiting", "what it is about is never cut");
    }
}
