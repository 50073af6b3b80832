//! The binary `abide`; everything is in the library beside it.

use std::process::ExitCode;

/// Executions are allocated by one thread and freed by another, thousands at a time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    abide_cli::main()
}
