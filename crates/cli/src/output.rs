//! Stdout is for data, stderr for messages. Neither ever panics.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, IsTerminal, Write};

use abide_core::text;
use serde_json::Value;

use crate::args::Output;
use crate::command_error::CommandError;

/// Writes to stdout.
pub(crate) fn write(bytes: &[u8]) -> Result<(), CommandError> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(bytes).and_then(|()| stdout.flush());
    written.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => error.into(),
        _ => CommandError::failed(format!("stdout cannot be written: {error}")),
    })
}

/// Prints a message on stderr. If nobody reads it, it is lost.
pub(crate) fn say(talk: fmt::Arguments<'_>) {
    let talk = talk.to_string();
    let _ = writeln!(io::stderr().lock(), "abide: {}", text::clean(&talk));
}

/// Returns a number with the word for one or the word for several.
pub(crate) fn counted(count: u64, [one, several]: [&str; 2]) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

/// The words for [`counted`] entries of a journal.
pub(crate) const ENTRIES: [&str; 2] = ["journal entry", "journal entries"];

/// Writes one line of text that came from outside.
pub(crate) fn line(text: &str) -> Result<(), CommandError> {
    write(format!("{}\n", text::clean(text)).as_bytes())
}

/// Writes one line of JSON, as recorded.
pub(crate) fn json_line(json: &str) -> Result<(), CommandError> {
    write(format!("{}\n", seen(&json.replace('\n', " "))).as_bytes())
}

/// Escapes the invisible characters of a JSON text as JSON does, which keeps its meaning. Line
/// breaks stay as they are.
pub(crate) fn seen(json: &str) -> Cow<'_, str> {
    let is_hidden = |c: char| c != '\n' && text::unseen(c).is_some();
    if !json.contains(is_hidden) {
        return Cow::Borrowed(json);
    }
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        if matches!(c, '\t' | '\r') {
            // This is between two tokens: inside a string they would be escaped.
            escaped.push(' ');
        } else if is_hidden(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                escaped.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}

/// Writes one document: indented for people who asked for JSON, on one line for line readers.
pub(crate) fn document(value: &Value, output: Output) -> Result<(), CommandError> {
    let mut text = if output == Output::Jsonl { value.to_string() } else { format!("{value:#}") };
    text.push('\n');
    write(seen(&text).as_bytes())
}

/// Whether stdout shows colours.
pub(crate) fn is_colourful() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stdout().is_terminal() && !refused && !dumb
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_says_the_same_when_what_nobody_sees_is_escaped() {
        let value = serde_json::json!({ "a\u{202e}": "b\u{7f}\u{e0041}\u{200b}c\n", "größe": "日本" });
        for text in [value.to_string(), format!("{value:#}")] {
            let shown = seen(&text);
            assert!(!shown.contains(|c| c != '\n' && text::unseen(c).is_some()), "{shown}");
            assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), value);
        }
        assert!(matches!(seen("{}"), Cow::Borrowed(_)));
    }
}
