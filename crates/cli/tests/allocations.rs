//! A made-up length reserves no memory. This test is alone in its binary, because everything that
//! is allocated meanwhile is counted.

use std::alloc::System;
use std::fs;

use abide_cli::readers;
use cap::Cap;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// The most bytes that a reader may allocate in total, and per byte of input. It makes copies to
/// check its findings, and the command line has to know its own words.
const BYTES_MAX: usize = 700 << 10;
const BYTES_MAX_PER_BYTE: usize = 2 << 10;

/// Lengths in the encoding of records, seven bits a byte: some are absurd, and some are just much
/// longer than the rest of the input.
const LENGTHS: [&[u8]; 4] = [
    &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10],
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
    &[0xff, 0xff, 0xff, 0xff, 0x0f],
    &[0x80, 0x80, 0x80, 0x20],
];

/// Returns the committed inputs of a reader.
fn inputs(reader: &str) -> Vec<Vec<u8>> {
    let folder = format!("{}/../../fuzz/corpus/{reader}", env!("CARGO_MANIFEST_DIR"));
    fs::read_dir(folder).unwrap().map(|file| fs::read(file.unwrap().path()).unwrap()).collect()
}

#[test]
fn what_is_read_takes_memory_in_proportion_to_its_bytes() {
    for reader in readers::all() {
        let check = |bytes: &[u8]| {
            let before = ALLOCATOR.total_allocated();
            (reader.read)(bytes);
            let allocated = ALLOCATOR.total_allocated() - before;
            let max = BYTES_MAX + BYTES_MAX_PER_BYTE * bytes.len();
            assert!(allocated <= max, "{}: {allocated} bytes for {bytes:?}", reader.name);
        };
        let inputs = inputs(reader.name);
        // Values that are made once, such as the stores for cursors, are not counted.
        inputs.iter().for_each(|input| _ = (reader.read)(input));
        for input in inputs {
            check(&input);
            for (at, length) in (0..input.len().min(400)).flat_map(|at| LENGTHS.map(|length| (at, length))) {
                check(&[&input[..at], length, &input[at..]].concat());
                check(&[&input[..at], length, &input[at + 1..]].concat());
            }
        }
    }
}
