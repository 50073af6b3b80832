//! The answer to an invalid command line.

use std::io::Write;
use std::process::ExitCode;

use abide_core::planted::{Bug, planted};
use abide_core::text;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory};

use crate::args::Args;
use crate::command_error::Code;

/// The most characters of a value that a complaint quotes: a reason or a JSON text may fill the
/// screen.
const QUOTED_CHARS_MAX: usize = 80;

/// Prints the error in a command line, or the requested help.
pub(crate) fn complain(mut complaint: clap::Error) -> ExitCode {
    shorten(&mut complaint);
    if !complaint.use_stderr() {
        // Help and version. A reader who leaves early is not a fault.
        let _ = complaint.print();
        return ExitCode::SUCCESS;
    }
    let said = match complaint.kind() {
        // clap would list every command, including hidden ones.
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            if !planted(Bug::HiddenCommandListed) =>
        {
            let help = Args::command().render_help().to_string();
            format!("{help}\nabide: no command is given\n")
        }
        _ => cleaned(&complaint.to_string()),
    };
    let _ = std::io::stderr().lock().write_all(said.as_bytes());
    ExitCode::from(Code::Usage as u8)
}

/// Cuts the value that a complaint quotes.
fn shorten(complaint: &mut clap::Error) {
    let values = [ContextKind::InvalidValue, ContextKind::InvalidArg, ContextKind::InvalidSubcommand];
    for kind in values {
        if let Some(ContextValue::String(value)) = complaint.get(kind) {
            let excerpt = text::excerpt(value, QUOTED_CHARS_MAX);
            complaint.insert(kind, ContextValue::String(excerpt));
        }
    }
}

/// Removes invisible characters and hidden commands from an error, which quotes the command line.
fn cleaned(complaint: &str) -> String {
    let command = Args::command();
    let hidden: Vec<&str> =
        command.get_subcommands().filter(|one| one.is_hide_set()).map(Command::get_name).collect();
    let is_telling = |line: &&str| {
        let is_tip = line.trim_start().starts_with("tip:");
        !(is_tip && hidden.iter().any(|name| line.contains(&format!("'{name}'"))))
    };
    complaint.lines().filter(is_telling).map(|line| format!("{}\n", text::clean(line))).collect()
}

/// Returns the command line without its hidden commands.
pub(crate) fn visible(command: &Command) -> Command {
    let commands = command.get_subcommands().filter(|one| !one.is_hide_set()).cloned();
    let arguments = command.get_arguments().cloned();
    Command::new("abide").version(env!("CARGO_PKG_VERSION")).args(arguments).subcommands(commands)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn no_complaint_names_a_hidden_command_or_shows_what_nobody_sees() {
        for given in ["demo-worke", "torture-proces", "a\u{202e}b\u{1b}[31m", "nap"] {
            let complaint = Args::try_parse_from(["abide", given]).unwrap_err();
            let said = cleaned(&complaint.to_string());
            assert!(!said.contains("'demo-worker'") && !said.contains("'torture-process'"), "{said}");
            assert!(!said.contains(|c| c != '\n' && text::unseen(c).is_some()), "{said:?}");
        }
    }
}
