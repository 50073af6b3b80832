//! The counts of callgrind, by cause.
//!
//! The manual of valgrind describes the format. A line of numbers is a position and the
//! instructions that were spent there. The line after `calls=` counts the instructions inside a
//! call, which belong to the callee. A name is written out once and then referred to by its number.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use crate::Result;

/// The part of the program that spends instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    Sqlite,
    Binding,
    Store,
    Encoding,
    Engine,
    Sdk,
    Allocator,
    Copies,
    Tokio,
    Rest,
}

impl Cause {
    pub(super) const ALL: [Self; 10] = [
        Self::Sqlite,
        Self::Binding,
        Self::Store,
        Self::Encoding,
        Self::Engine,
        Self::Sdk,
        Self::Allocator,
        Self::Copies,
        Self::Tokio,
        Self::Rest,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "SQLite",
            Self::Binding => "rusqlite",
            Self::Store => "store: writer, batches",
            Self::Encoding => "encoding and checksums",
            Self::Engine => "engine and rules",
            Self::Sdk => "SDK and benchmark",
            Self::Allocator => "allocator",
            Self::Copies => "copies and comparisons",
            Self::Tokio => "tokio",
            Self::Rest => "generic and system code",
        }
    }

    /// Returns the cause of the instructions of a function that is written in `file`.
    fn of(function: &str, file: &str) -> Self {
        const ENCODING: [&str; 6] = ["serde", "postcard", "codec::", "checksum::", "sheet::", "::data::"];
        if ENCODING.iter().any(|part| function.contains(part)) {
            return Self::Encoding;
        }
        let crate_name = function.trim_start_matches(['<', '&', '(']).trim_start_matches("mut ");
        let is_of = |names: &[&str]| names.iter().any(|name| crate_name.starts_with(name));
        match () {
            () if file.ends_with("sqlite3.c") => Self::Sqlite,
            () if is_of(&["rusqlite::", "sqlite3_"]) => Self::Binding,
            () if is_of(&["abide_sqlite::", "abide_store::"]) => Self::Store,
            () if is_of(&["abide_engine::", "abide_core::"]) => Self::Engine,
            () if is_of(&["abide::", "works::"]) => Self::Sdk,
            () if is_of(&["mi_", "_mi_", "__rust", "malloc", "free", "realloc"]) => Self::Allocator,
            () if is_of(&["mem", "__mem", "bcmp", "__bcmp"]) => Self::Copies,
            () if is_of(&["tokio::"]) => Self::Tokio,
            () => Self::Rest,
        }
    }
}

/// Instructions by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Profile([f64; Cause::ALL.len()]);

impl Profile {
    /// Returns the same profile with another count for one cause.
    pub(super) fn with(mut self, cause: Cause, instructions: f64) -> Self {
        self.0[cause as usize] = instructions;
        self
    }

    /// Reads the files that callgrind left in a folder, one per thread.
    ///
    /// Only the threads that do the work count: the runtime's workers and the writer. Readers,
    /// heartbeats and checkpoints follow the clock, and a process under callgrind is so slow that
    /// they would be most of it.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        const WORKING: [&str; 2] = ["abide_sqlite::apply::commit::", "multi_thread::worker::run"];
        let mut all = Self::default();
        let mut thread_count = 0;
        for file in fs::read_dir(folder)? {
            let path = file?.path();
            if !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("callgrind")) {
                continue;
            }
            // Users' types may have any name; the names are only text here.
            let text = String::from_utf8_lossy(&fs::read(path)?).into_owned();
            if WORKING.iter().any(|function| text.contains(function)) {
                thread_count += 1;
                all = all.combined(&Self::parse(&text)?, |a, b| a + b);
            }
        }
        // A function that was inlined has no name, and its thread would be missed.
        if thread_count != 3 {
            return Err(format!("{thread_count} threads worked, not two workers and a writer").into());
        }
        Ok(all)
    }

    fn parse(text: &str) -> Result<Self> {
        // A claim looks for due work at intervals that the clock sets; here it finds none. Nearly
        // all of its cost is SQLite's.
        const CLAIM: &str = "ClaimWork as abide_sqlite::job::Operation>::apply";
        let mut names = Names::default();
        let (mut file, mut function, mut callee) = (String::new(), String::new(), String::new());
        let mut profile = Self::default();
        let mut is_call = false;
        for line in text.lines() {
            if let Some((key, value)) = line.split_once('=') {
                match key {
                    "fl" | "fi" | "fe" => file = names.resolve("file", value)?,
                    "fn" => function = names.resolve("function", value)?,
                    "cfn" => callee = names.resolve("function", value)?,
                    "cfi" | "cfl" => drop(names.resolve("file", value)?),
                    "calls" => is_call = true,
                    _ => {}
                }
            } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
                let count = line.split(' ').nth(1).and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0);
                if !std::mem::take(&mut is_call) {
                    profile.0[Cause::of(&function, &file) as usize] += count;
                } else if callee.contains(CLAIM) {
                    profile.0[Cause::Sqlite as usize] -= count;
                }
            }
        }
        Ok(profile)
    }

    pub(super) fn of(&self, cause: Cause) -> f64 {
        self.0[cause as usize]
    }

    pub(super) fn total(&self) -> f64 {
        self.0.iter().sum()
    }

    pub(super) fn less(&self, other: &Self) -> Self {
        self.combined(other, |a, b| a - b)
    }

    pub(super) fn divided_by(&self, count: f64) -> Self {
        Self(self.0.map(|instructions| instructions / count))
    }

    fn combined(&self, other: &Self, with: impl Fn(f64, f64) -> f64) -> Self {
        Self(std::array::from_fn(|at| with(self.0[at], other.0[at])))
    }
}

/// Names by their numbers.
#[derive(Default)]
struct Names<'a>(HashMap<(&'static str, &'a str), &'a str>);

impl<'a> Names<'a> {
    /// Resolves `(7) name` or, from then on, `(7)`.
    fn resolve(&mut self, kind: &'static str, value: &'a str) -> Result<String> {
        let Some((number, name)) = value.split_once(')') else { return Ok(value.to_owned()) };
        if !name.is_empty() {
            self.0.insert((kind, number), name.trim_start());
        }
        let known = self.0.get(&(kind, number));
        known.map(|name| (*name).to_owned()).ok_or_else(|| format!("callgrind names {value} nowhere").into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
events: Ir

fl=(1) /src/sqlite3.c
fn=(1) sqlite3_step
10 100
+1 20
cfn=(2) mi_malloc
calls=3 0
* 70
fl=(2) /src/alloc.c
fn=(2)
5 70
fl=(3) /src/claim.rs
fn=(3) <abide_sqlite::job::Queued<O> as abide_sqlite::job::Job>::apply
7 40
cfi=(1)
cfn=(4) <abide_sqlite::apply::claim::ClaimWork as abide_sqlite::job::Operation>::apply
calls=1 0
7 30
";

    #[test]
    fn a_call_belongs_to_the_callee_and_a_claim_to_the_clock() {
        let profile = Profile::parse(TEXT).unwrap();
        let found =
            [Cause::Sqlite, Cause::Allocator, Cause::Store, Cause::Rest].map(|cause| profile.of(cause));
        assert_eq!(found, [120.0 - 30.0, 70.0, 40.0, 0.0]);
        assert_eq!(profile.total(), 200.0);
    }

    #[test]
    fn an_item_is_the_difference_of_two_runs() {
        let profile = Profile::parse(TEXT).unwrap();
        let doubled = profile.combined(&profile, |a, b| a + b);
        assert_eq!(doubled.less(&profile).divided_by(2.0).total(), 100.0);
    }

    #[test]
    fn functions_have_causes() {
        let rows = [
            ("<abide_core::entry::Entry as serde_core::ser::Serialize>::serialize", Cause::Encoding),
            ("abide_engine::runner::Runner::poll", Cause::Engine),
            ("<abide::step::Step<T> as core::future::future::Future>::poll", Cause::Sdk),
            ("rusqlite::statement::Statement::bind_parameter", Cause::Binding),
            ("tokio::runtime::task::raw::poll", Cause::Tokio),
            ("__memcpy_avx_unaligned_erms", Cause::Copies),
            ("pthread_mutex_lock@@GLIBC_2.2.5", Cause::Rest),
        ];
        for (function, cause) in rows {
            assert_eq!(Cause::of(function, "x"), cause, "{function}");
        }
    }
}
