//! All readers of bytes, with bytes that nobody should have written. A reader panics when it breaks
//! a rule; see `abide_core::readers`.
//!
//! `PROPTEST_CASES=100000` tries longer. Each finding becomes a file in `fuzz/corpus`, which this
//! test reads from then on.

mod corpus;
mod mutation;

use abide_cli::readers;
use abide_core::readers::{Reader, Verdict};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};

/// The number of inputs for each reader, unless `PROPTEST_CASES` sets another number.
const CASE_COUNT: u32 = 1_024;

/// Runs every reader on many inputs, and reports the smallest ones that break one.
fn try_many<S: Strategy<Value = Vec<u8>>>(inputs: impl Fn(&Reader) -> S) {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|count| count.parse().ok());
    let cases = asked.unwrap_or(CASE_COUNT);
    let mut upset = Vec::new();
    for reader in readers::all() {
        let config = Config { cases, failure_persistence: None, ..Config::default() };
        let tried = TestRunner::new(config).run(&inputs(&reader), |bytes| {
            (reader.read)(&bytes);
            Ok(())
        });
        if let Err(TestError::Fail(reason, bytes)) = tried {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            upset.push(format!("{}: {reason}: {hex}", reader.name));
        }
    }
    assert!(upset.is_empty(), "{}", upset.join("\n"));
}

#[test]
fn no_reader_is_upset_by_random_bytes() {
    try_many(|_| vec(any::<u8>(), 0..200));
}

#[test]
fn no_reader_is_upset_by_random_bytes_in_a_known_format() {
    try_many(|_| vec(any::<u8>(), 0..200).prop_map(|bytes| [vec![1], bytes].concat()));
}

#[test]
fn no_reader_is_upset_by_something_valid_that_was_changed() {
    try_many(|reader| mutation::of(corpus::inputs(reader.name)));
}

#[test]
fn every_beginning_of_something_valid_is_read_or_refused() {
    for reader in readers::all() {
        for whole in corpus::inputs(reader.name) {
            (0..whole.len().min(400)).for_each(|length| _ = (reader.read)(&whole[..length]));
        }
    }
}

#[test]
fn what_a_reader_takes_for_valid_is_valid() {
    for reader in readers::all() {
        let seeds = corpus::seeds(&reader);
        assert!(!seeds.is_empty(), "{} has no seeds", reader.name);
        for seed in seeds {
            assert_eq!((reader.read)(&seed), Verdict::Read, "{}: {seed:?}", reader.name);
        }
    }
}
