//! Stdout is for data, stderr for talk. Neither ever panics.

use std::fmt;
use std::io::{self, IsTerminal, Write};

use serde_json::Value;

use crate::args::Output;
use crate::failure::Failure;

/// Writes to stdout.
pub(crate) fn write(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(bytes).and_then(|()| stdout.flush());
    written.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => error.into(),
        _ => Failure::failed(format!("stdout cannot be written: {error}")),
    })
}

/// Says something on stderr. Talk that nobody hears is lost.
pub(crate) fn say(talk: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "abide: {talk}");
}

/// Writes one document: indented for people who asked for JSON, on one line for programs that read lines.
pub(crate) fn document(value: &Value, output: Output) -> Result<(), Failure> {
    let mut text = if output == Output::Jsonl { value.to_string() } else { format!("{value:#}") };
    text.push('\n');
    write(text.as_bytes())
}

/// Whether stdout shows colours.
pub(crate) fn is_colourful() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stdout().is_terminal() && !refused && !dumb
}

/// Text in columns, each as wide as its widest cell.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub(crate) fn new<'a>(headings: impl IntoIterator<Item = &'a str>) -> Self {
        Self { rows: vec![headings.into_iter().map(str::to_owned).collect()] }
    }

    pub(crate) fn push(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut widths: Vec<usize> = Vec::new();
        for row in &self.rows {
            widths.resize(widths.len().max(row.len()), 0);
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for row in &self.rows {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
            let line = cells.collect::<Vec<_>>().join("  ");
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(["ID", "STATUS", "WAITING"]);
        table.push(vec!["größe".to_owned(), "running".to_owned(), String::new()]);
        table.push(vec!["b".to_owned(), "failed".to_owned(), "x".to_owned()]);
        assert_eq!(table.to_string(), "ID     STATUS   WAITING\ngröße  running\nb      failed   x\n");
    }
}
