//! The binary `abide`; everything is in the library beside it.

use std::process::ExitCode;

/// The allocator. One thread allocates executions and another frees them, thousands at a time.
#[global_allocator]
static ALLOCATOR: abide_cli::Allocator = abide_cli::Allocator::new(abide_counting::Mimalloc);

fn main() -> ExitCode {
    abide_cli::main(&ALLOCATOR)
}
