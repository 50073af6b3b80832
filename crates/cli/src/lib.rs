//! `abide`: looks into a store, steers its executions, checks and copies it, and runs the demo.
//!
//! Every command works on the store directly, without any server. Data goes to stdout, messages go
//! to stderr; the exit codes are those of `command_error::Code`.
//!
//! Deliberately absent: SQL and rules. `abide-core` decides which orders an execution accepts, and
//! only `abide-sqlite` knows the contents of a file.
//!
//! This is a library so that fuzzers can reach its readers; the binary only calls [`main`].

mod args;
mod bench;
mod clock;
mod command_error;
mod connect;
mod control;
mod demo;
mod export;
mod intake;
mod json;
mod list;
mod maintain;
mod migrate;
mod output;
mod payload;
#[doc(hidden)]
pub mod readers;
mod registered;
mod result;
mod show;
mod start;
mod table;
#[cfg(unix)]
mod torture;
mod usage;
mod why;

use std::process::ExitCode;

use args::{Args, Command};
use clap::{CommandFactory, Parser};
use command_error::CommandError;

/// The allocator of the binary, which `abide bench` asks for its counts.
pub type Allocator = abide_counting::Counting<abide_counting::Mimalloc>;

/// Runs the command on the command line.
pub fn main(allocator: &'static Allocator) -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args.settled(),
        Err(complaint) => return usage::complain(complaint),
    };
    match run(&args, allocator) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

fn run(args: &Args, allocator: &'static Allocator) -> Result<ExitCode, CommandError> {
    let global = &args.global;
    let done = match &args.command {
        Command::Bench(args) => return Ok(bench::run(args, global, allocator)),
        Command::Demo(args) => demo::run(global, args),
        Command::DemoWorker(args) => demo::run_worker(global, args),
        Command::List(args) => list::run(global, args),
        Command::Show(args) => show::run(global, args),
        Command::Why(args) => why::run(global, args),
        Command::Start(args) => start::run(global, args),
        Command::Result(args) => return result::run(global, args),
        Command::Export(args) => export::run(global, args),
        Command::Signal(args) => control::signal(global, args),
        Command::Cancel(args) => control::cancel(global, args),
        Command::Terminate(args) => control::terminate(global, args),
        Command::Pause(args) => control::pause(global, args),
        Command::Resume(args) => control::resume(global, args),
        Command::Unblock(args) => control::unblock(global, args),
        Command::Retry(args) => control::retry(global, args),
        #[cfg(unix)]
        Command::Torture(args) => torture::run(global, args),
        #[cfg(unix)]
        Command::TortureProcess => torture::process(),
        Command::Intake(args) => intake::run(global, args),
        Command::Verify(args) => maintain::verify(global, args),
        Command::Migrate(args) => migrate::run(global, args),
        Command::Backup(args) => maintain::backup(global, args),
        Command::Restore(args) => maintain::restore(global, args),
        Command::Completions { shell } => completions(*shell),
    };
    done.map(|()| ExitCode::SUCCESS)
}

fn completions(shell: clap_complete::Shell) -> Result<(), CommandError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut usage::visible(&Args::command()), "abide", &mut script);
    output::write(&script)
}
