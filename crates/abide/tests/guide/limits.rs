//! docs/guide/limits.md: its example, and its tables against the source.

use std::collections::BTreeMap;
use std::fmt::Debug;

use abide::prelude::*;
use abide_core::{Bounds, Patch};

const PAGE: &str = include_str!("../../../../docs/guide/limits.md");
const BUILDER: &str = include_str!("../../src/open.rs");

#[tokio::test]
async fn a_bound_is_set_by_the_builder() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}/app.db", folder.path().display());
    let abide = Abide::builder(url).payload_bytes_max(1 << 20).entry_count_max(10_000).open().await?;
    abide.shutdown().await;
    Ok(())
}

/// Returns the numbers and times among the fields of a structure, as the page writes them.
fn bounds(options: &impl Debug) -> BTreeMap<String, String> {
    let text = format!("{options:#?}");
    // Structures inside have their own call, and more indentation.
    let fields = text.lines().filter_map(|line| line.strip_prefix("    ")?.strip_suffix(','));
    let fields = fields.filter(|line| !line.starts_with(' ')).filter_map(|line| line.split_once(": "));
    let is_number = |value: &str| value.starts_with(|c: char| c.is_ascii_digit());
    let fields = fields.filter(|(_, value)| is_number(value));
    fields.map(|(name, value)| (name.to_owned(), told(name, value))).collect()
}

/// Returns a value as people write it: `4 MiB`, `10,000`, `1 s`.
fn told(name: &str, value: &str) -> String {
    let Ok(number) = value.parse::<u64>() else {
        let unit = value.find(|c: char| !c.is_ascii_digit()).expect("a duration has a unit");
        return format!("{} {}", &value[..unit], &value[unit..]);
    };
    for (size, unit) in [(1 << 20, "MiB"), (1 << 10, "KiB")] {
        if name.contains("bytes") && number >= 4 * 1_024 && number.is_multiple_of(size) {
            return format!("{} {unit}", number / size);
        }
    }
    let digits = number.to_string();
    let with_comma = |(index, digit): (usize, char)| {
        let is_group = index > 0 && (digits.len() - index).is_multiple_of(3);
        [is_group.then_some(','), Some(digit)]
    };
    digits.chars().enumerate().flat_map(with_comma).flatten().collect()
}

#[test]
fn the_page_has_every_bound_with_its_default() {
    let mut expected = bounds(&Bounds::default());
    expected.extend(bounds(&abide_engine::Options::default()));
    expected.extend(bounds(&abide_sqlite::Options::default()));
    expected.extend(bounds(&abide_store::PageBounds::default()));
    expected.insert("REASON_BYTES_MAX".to_owned(), told("", &Bounds::REASON_BYTES_MAX.to_string()));
    expected.insert("patch_count_max".to_owned(), told("", &Patch::COUNT_MAX.to_string()));
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |"));
    let mut found = BTreeMap::new();
    for row in rows {
        let cells: Vec<_> = row.split(" | ").collect();
        let [name, default, _, builder] = cells[..] else { panic!("a row has four cells: {row}") };
        let name = name.trim_end_matches('`');
        let has_method = BUILDER.contains(&format!("pub fn {name}(mut self"));
        assert_eq!(builder, if has_method { "yes" } else { "no" }, "{name}");
        found.insert(name.to_owned(), default.to_owned());
    }
    assert_eq!(found, expected);
}
