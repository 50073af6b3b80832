//! The project's own commands, run as `cargo xtask <command>`.
//!
//! `test` checks everything that CI checks and is the only command a contributor needs. A check
//! that takes longer than people are willing to wait before each commit becomes a command of its
//! own.

mod instructions;
mod packages;
mod planted;
mod postgres;
mod process;
mod sim;
mod smoke;
mod stage;
mod style;
mod torture;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::stage::Selection;
use crate::workspace::Workspace;

/// Nothing handles a failure of this tool; a person reads it. The message is therefore all that
/// matters.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's own commands")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check everything that CI checks, and stop at the first failure
    Test(Selection),
    /// Check only how the sources look: sizes, crate arrows, SQL, banned words, links
    Style,
    /// Live through simulated worlds: --seed N or --scenario FILE, both with --shrink; --seeds A..B
    /// [--record FILE]
    Sim {
        /// Arguments of the simulator; `cargo xtask sim -- --help` lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Plant one bug after the other, and check that a test catches each; takes some minutes
    Planted(planted::Arguments),
    /// Count the instructions of an item of W1, W3 and W4, by cause, beside a baseline; takes some
    /// minutes, and installs valgrind if it is missing
    Instructions(instructions::Arguments),
    /// Run a command with a PostgreSQL server for the tests of abide-postgres; installs the server
    /// if it is missing
    Postgres {
        /// The command, for example `cargo test -p abide-postgres`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Result<()> {
    let workspace = Workspace::locate()?;
    match command {
        Command::Test(selection) => stage::run(&workspace, selection),
        Command::Style => style::run(&workspace),
        Command::Sim { arguments } => sim::run(&workspace, arguments.iter().map(String::as_str)),
        Command::Planted(arguments) => planted::run(&workspace, arguments),
        Command::Instructions(arguments) => instructions::run(&workspace, arguments),
        Command::Postgres { words } => postgres::run(words),
    }
}
