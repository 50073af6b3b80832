//! Small texts that people read.

use std::borrow::Cow;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use crate::planted::{Bug, planted};
use crate::{Block, By, ExecutionId, Name, Op, Timestamp, Words};

/// Returns the text with invisible characters escaped. Text from users must not move the cursor of
/// its reader, turn the direction of other text or hide in it. Everything from outside is printed
/// through this.
pub fn clean(text: &str) -> Cow<'_, str> {
    if is_plain(text) || planted(Bug::UnseenShown) || !text.contains(|c| unseen(c).is_some()) {
        return Cow::Borrowed(text);
    }
    let escaped = |c: char| -> String {
        match (unseen(c), c) {
            (None, _) => c.into(),
            (Some(_), '\t' | '\r' | '\n') => c.escape_default().collect(),
            (Some(_), _) => c.escape_unicode().collect(),
        }
    };
    Cow::Owned(text.chars().map(escaped).collect())
}

/// Returns the words behind an operation that say where the code asks for it, or nothing.
pub fn at(site: Option<&str>) -> String {
    site.map(|site| format!(" (at {site})")).unwrap_or_default()
}

/// Returns the parts as an enumeration, `a, b and c`; `None` if there are none.
pub fn enumerated(mut parts: Vec<String>) -> Option<String> {
    let last = parts.pop()?;
    Some(if parts.is_empty() { last } else { format!("{} and {last}", parts.join(", ")) })
}

/// Returns text in quotes, with every invisible character escaped.
pub fn quoted(text: &str) -> String {
    let quoted = format!("{text:?}");
    match clean(&quoted) {
        Cow::Borrowed(_) => quoted,
        Cow::Owned(cleaned) => cleaned,
    }
}

/// Whether the text is all printable ASCII, as nearly every text is.
pub(crate) fn is_plain(text: &str) -> bool {
    // All bytes are looked at, so that the compiler can compare many at a time.
    text.bytes().fold(true, |is_plain, byte| is_plain & matches!(byte, b' '..=b'~'))
}

/// Returns the name of a character that people cannot see, or that changes how they see others.
/// Spaces are not among them, and neither are the two selectors of emoji and text style, which
/// belong to the character before them.
pub fn unseen(c: char) -> Option<&'static str> {
    match c {
        _ if c.is_control() => Some("control character"),
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            Some("bidirectional control")
        }
        '\u{2028}' | '\u{2029}' => Some("line separator"),
        // Unicode's "default ignorable" characters, the marks of interlinear notes, and a braille
        // pattern without dots.
        '\u{ad}'
        | '\u{34f}'
        | '\u{115f}'..='\u{1160}'
        | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200d}'
        | '\u{2060}'..='\u{2065}'
        | '\u{206a}'..='\u{206f}'
        | '\u{2800}'
        | '\u{3164}'
        | '\u{fe00}'..='\u{fe0d}'
        | '\u{feff}'
        | '\u{ffa0}'
        | '\u{fff0}'..='\u{fffb}'
        | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}' => Some("invisible character"),
        _ => None,
    }
}

/// Returns the beginning of a text, on one line.
pub fn excerpt(text: &str, chars_max: usize) -> String {
    let cleaned = clean(text);
    match cleaned.char_indices().nth(chars_max) {
        None => cleaned.into_owned(),
        Some((end, _)) => format!("{}…", &cleaned[..end]),
    }
}

/// The least bound of a cut text: it has room for a beginning and for the note about the rest.
pub const CUT_BYTES_MIN: usize = 40;

/// Returns the text, or its beginning with a note of how many bytes are left out. The result has at
/// most `bytes_max` bytes, if that is [`CUT_BYTES_MIN`] or more.
pub fn cut(text: String, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text;
    }
    // Enough for the longest note.
    let end = text.floor_char_boundary(bytes_max.saturating_sub(CUT_BYTES_MIN));
    format!("{}… ({} bytes left out)", &text[..end], text.len() - end)
}

/// Returns a duration in human form: the two largest units that matter.
pub fn duration(duration: Duration) -> String {
    let (secs, millis) = (duration.as_secs(), duration.as_millis());
    let two = |count: u64, unit: &str, rest: u64, small: &str| match rest {
        0 => format!("{count} {unit}"),
        rest => format!("{count} {unit} {rest} {small}"),
    };
    match secs {
        0 => format!("{millis} ms"),
        1..10 => format!("{}.{} s", secs, millis % 1_000 / 100),
        10..60 => format!("{secs} s"),
        60..3_600 => two(secs / 60, "min", secs % 60, "s"),
        3_600..86_400 => two(secs / 3_600, "h", secs / 60 % 60, "min"),
        _ => two(secs / 86_400, "d", secs / 3_600 % 24, "h"),
    }
}

/// Returns a point in time and its distance: `2026-11-14T23:59:59.999Z (in 3 h)`.
pub fn when(at: Timestamp, now: Timestamp) -> String {
    if at > now {
        format!("{at} (in {})", duration(at.since(now)))
    } else {
        format!("{at} ({} ago)", duration(now.since(at)))
    }
}

/// Returns the role of an execution, and its id in quotes: `parent "a"`.
pub(crate) fn titled(what: &str, id: &ExecutionId) -> Words {
    let text = id.as_str();
    // Nearly every id is plain, and `{:?}` inspects each character at length. All bytes are looked
    // at, so that the compiler can compare many at a time.
    let is_plain = |byte| matches!(byte, b' '..=b'~') & (byte != b'"') & (byte != b'\\');
    if text.bytes().fold(true, |are_plain, byte| are_plain & is_plain(byte)) {
        joined(&[what, " \"", text, "\""], |text| Arc::<str>::from(text).into())
    } else {
        format!("{what} {id:?}").into()
    }
}

/// Passes on these texts, put together. Short ones take no memory of their own, and every child has
/// several such names. `format!` would cost several times as much.
pub(crate) fn joined<T>(parts: &[&str], take: impl FnOnce(&str) -> T) -> T {
    const KEPT_BYTES_MAX: usize = 1_024;
    thread_local!(static BUFFER: Cell<String> = const { Cell::new(String::new()) });
    // Taken, not borrowed: it may be used meanwhile. A thread that ends has none any longer.
    let mut buffer = BUFFER.try_with(Cell::take).unwrap_or_default();
    buffer.clear();
    parts.iter().for_each(|part| buffer.push_str(part));
    let taken = take(&buffer);
    if buffer.capacity() <= KEPT_BYTES_MAX {
        let _ = BUFFER.try_with(|kept| kept.set(buffer));
    }
    taken
}

/// A number as text, without memory of its own.
pub(crate) struct Digits {
    bytes: [u8; Self::COUNT_MAX],
    from: usize,
}

impl Digits {
    /// As many as the largest number has.
    const COUNT_MAX: usize = 10;

    pub(crate) fn of(number: u32) -> Self {
        let (mut digits, mut rest) = (Self { bytes: [b'0'; Self::COUNT_MAX], from: Self::COUNT_MAX }, number);
        loop {
            digits.from -= 1;
            digits.bytes[digits.from] += (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                return digits;
            }
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[self.from..]).expect("digits are text")
    }
}

/// Returns names in quotes, with commas.
pub fn names<'a>(names: impl IntoIterator<Item = &'a Name>) -> String {
    names.into_iter().map(|name| format!("{:?}", name.as_str())).collect::<Vec<_>>().join(", ")
}

/// Returns the possible decisions about an obstacle, if there are any.
pub fn ways_on(id: &ExecutionId, block: &Block) -> Option<String> {
    match block {
        Block::Unrecordable { op, .. } => Some(ways_on_without_result(id, op)),
        Block::OtherInput(other) => Some(ways_on_with_other_input(id, &other.op)),
        Block::Poison { .. } => {
            let id = argument(id.as_str());
            Some(format!("abide unblock {id}, once its worker survives it, or abide terminate {id}"))
        }
        _ => None,
    }
}

/// Returns the ways on from an operation that was recorded with another input.
fn ways_on_with_other_input(id: &ExecutionId, op: &Op) -> String {
    let (id, label) = (argument(id.as_str()), op.label());
    format!(
        "abide unblock {id} --accept {} (this use only: a later one without a record runs), or code that has the \
         recorded input",
        argument(&label)
    )
}

/// Returns the ways on from a step whose result could not be recorded.
pub(crate) fn ways_on_without_result(id: &ExecutionId, op: &Op) -> String {
    let (id, label) = (argument(id.as_str()), op.label());
    let (step, edit) = (argument(&label), argument(&format!("{label}=JSON")).into_owned());
    format!("abide unblock {id} --rerun {step}, or abide unblock {id} --edit {edit}")
}

/// Returns a text as one argument of a command line: in quotes where a shell would misread it.
pub fn argument(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=@+,".contains(c);
    // A number sign begins a comment only where a word begins.
    if text.chars().enumerate().all(|(at, c)| is_plain(c) || (c == '#' && at > 0)) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("'{}'", text.replace('\'', r"'\''")))
}

/// Returns the remedies for a damaged execution.
pub fn ways_out(id: &ExecutionId) -> String {
    let id = argument(id.as_str());
    format!(
        "abide verify --repair rebuilds it if it can be, abide verify --repair --drop-messages {id} drops damaged \
         messages that it has not read, and abide verify --repair --discard {id} ends it if nothing else helps and it \
         has not ended, which is final"
    )
}

/// Returns who asked for a change, and why if a reason is known.
pub fn by_whom(by: &By, reason: &str) -> String {
    if reason.is_empty() { format!("by {by}") } else { format!("by {by}: {reason}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_enumeration_has_one_and() {
        let rows: [(&[&str], _); 4] = [
            (&[], None),
            (&["a"], Some("a")),
            (&["a", "b"], Some("a and b")),
            (&["a", "b", "c"], Some("a, b and c")),
        ];
        for (parts, expected) in rows {
            let parts = parts.iter().map(|part| (*part).to_owned()).collect();
            assert_eq!(enumerated(parts).as_deref(), expected);
        }
    }

    #[test]
    fn durations_have_two_units() {
        let rows = [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_250, "1.2 s"),
            (59_999, "59 s"),
            (60_000, "1 min"),
            (61_000, "1 min 1 s"),
            (3_660_000, "1 h 1 min"),
            (86_400_000 * 30, "30 d"),
            (86_400_000 + 7_200_000, "1 d 2 h"),
        ];
        for (millis, expected) in rows {
            assert_eq!(duration(Duration::from_millis(millis)), expected);
        }
    }

    #[test]
    fn texts_are_joined_whatever_their_length() {
        for long in ["", "größe", &"ü".repeat(80), &"x".repeat(159), &"x".repeat(160), &"x".repeat(1_000)]
        {
            let parts = ["a", long, "", "/b"];
            assert_eq!(joined(&parts, str::to_owned), parts.concat());
        }
        for number in [0, 7, 10, 1_234_567_890, u32::MAX] {
            assert_eq!(Digits::of(number).as_str(), number.to_string());
        }
    }

    #[test]
    fn ids_are_titled_as_debug_writes_them() {
        for id in ["a", "a b/1~", "", "größe", r#"a"b"#, r"a\b", "a\u{7f}"] {
            let id = ExecutionId::composed(id);
            assert_eq!(*titled("parent", &id), *format!("parent {id:?}"));
        }
    }

    #[test]
    fn control_characters_are_shown_and_not_obeyed() {
        assert_eq!(clean("a\u{1b}[31m\nb"), "a\\u{1b}[31m\\nb");
        assert_eq!(excerpt("größe", 3), "grö…");
    }

    #[test]
    fn characters_that_turn_or_hide_others_are_shown() {
        let rows = [
            ("user\u{202e}gpj.exe", "user\\u{202e}gpj.exe"),
            ("a\u{2066}b\u{2069}", "a\\u{2066}b\\u{2069}"),
            ("a\u{200b}b\u{feff}", "a\\u{200b}b\\u{feff}"),
            ("a\u{ad}\u{3164}\u{e0041}", "a\\u{ad}\\u{3164}\\u{e0041}"),
            ("a\u{2028}b\u{85}", "a\\u{2028}b\\u{85}"),
        ];
        for (text, expected) in rows {
            assert_eq!(clean(text), expected);
        }
        for plain in ["größe", "日本語", "שלום", "❤\u{fe0f}", "e\u{301}", "a\u{a0}b"] {
            assert!(matches!(clean(plain), Cow::Borrowed(_)), "{plain}");
        }
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(cut("größe".to_owned(), 7), "größe");
        assert_eq!(cut("ö".repeat(30), 45), "öö… (56 bytes left out)");
        assert_eq!(cut("x".repeat(50), 0), "… (50 bytes left out)");
    }

    #[test]
    fn points_in_time_say_how_far_away_they_are() {
        let (now, later) = (Timestamp::from_millis(0), Timestamp::from_millis(90_000));
        assert_eq!(when(later, now), "1970-01-01T00:01:30.000Z (in 1 min 30 s)");
        assert_eq!(when(now, later), "1970-01-01T00:00:00.000Z (1 min 30 s ago)");
    }

    #[test]
    fn commands_can_be_copied_into_a_shell() {
        let rows = [
            ("order-1", "charge", 1, "order-1 --rerun charge", "charge=JSON"),
            ("order-1", "charge", 2, "order-1 --rerun charge#2", "charge#2=JSON"),
            ("order 1", "it's", 1, r"'order 1' --rerun 'it'\''s'", r"'it'\''s=JSON'"),
            ("#1", "$x", 1, "'#1' --rerun '$x'", "'$x=JSON'"),
        ];
        for (id, name, nth, rerun, edit) in rows {
            let id = ExecutionId::new(id).expect("an id");
            let op = Op { kind: crate::OpKind::Step, name: Name::new(name).expect("a name"), key: None, nth };
            let said = ways_on_without_result(&id, &op);
            assert!(said.starts_with(&format!("abide unblock {rerun}, or ")), "{said}");
            assert!(said.ends_with(&format!(" --edit {edit}")), "{said}");
        }
    }
}
