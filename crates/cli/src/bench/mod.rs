//! `abide bench`: the speed of this machine, compared with the speed of its disk.
//!
//! Each work is measured several times after a warm-up, and its results are checked. The limit of
//! the database is measured before and after it, with payloads of the same size.
//! `docs/guide/bench.md` describes each work and each limit.

mod figure;
mod flows;
mod folder;
mod process;
mod resume;
mod setting;
mod short;
mod steps;
mod stopwatch;

use std::path::PathBuf;
use std::process::ExitCode;

use figure::{Figure, Work};
use folder::BenchFolder;
use process::Child;
use setting::{Depth, Setting};

use crate::args::Output;
use crate::command_error::CommandError;
use crate::output;
use crate::table::Table;

/// Options of `abide bench`. The output format is the global `-o`, which is passed to [`run`].
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Take less than a minute
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Measure on a store that holds 1,000,000 finished executions, and W3 for five minutes
    #[arg(long)]
    full: bool,
    /// Only this work; may be repeated
    #[arg(long, value_name = "NAME", ignore_case = true)]
    work: Vec<Work>,
    /// The folder for the files, on a disk; a new folder in it is removed afterwards
    #[arg(long, value_name = "PATH")]
    dir: Option<PathBuf>,
    /// The work to measure in this process
    #[arg(long, hide = true, requires = "file")]
    child: Option<Child>,
    /// The store of a process with `--child`
    #[arg(long, hide = true)]
    file: Option<PathBuf>,
}

/// Runs the benchmark. A missed goal is not a failure; a wrong result is.
pub(crate) fn run(args: &Args, output: Output) -> ExitCode {
    let done = match (args.child, &args.file) {
        (Some(child), Some(file)) => process::serve(child, file).and_then(|report| {
            output::document(&serde_json::to_value(report).map_err(CommandError::failed)?, Output::Jsonl)
        }),
        _ => measure(args, output),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn measure(args: &Args, output: Output) -> Result<(), CommandError> {
    let depth = match (args.quick, args.full) {
        (true, _) => Depth::Quick,
        (_, true) => Depth::Full,
        _ => Depth::Usual,
    };
    let setting = Setting { depth, place: BenchFolder::new(args.dir.as_deref())? };
    let runtime = tokio::runtime::Runtime::new()?;
    if depth == Depth::Full {
        runtime.block_on(setting.fill())?;
    }
    let mut printer = Printer { output, figures: Vec::new() };
    for group in GROUPS.iter().filter(|group| group.iter().any(|work| is_wanted(args, *work))) {
        let names: Vec<_> = group.iter().map(|work| work.name()).collect();
        output::say(format_args!("measures {}", names.join(" and ")));
        let figures = runtime.block_on(figures_of(&setting, group[0]))?;
        for figure in figures.into_iter().filter(|figure| is_wanted(args, figure.work)) {
            printer.print(figure)?;
        }
    }
    printer.finish()
}

/// The works, in groups that are measured together.
const GROUPS: [&[Work]; 8] = [
    &[Work::W1],
    &[Work::W1Latency],
    &[Work::W2],
    &[Work::W3],
    &[Work::W4],
    &[Work::W5],
    &[Work::IdleRss, Work::IdleCpu],
    &[Work::SleepingRss],
];

fn is_wanted(args: &Args, work: Work) -> bool {
    args.work.is_empty() || args.work.contains(&work)
}

async fn figures_of(setting: &Setting, first: Work) -> Result<Vec<Figure>, CommandError> {
    Ok(match first {
        Work::W1 => vec![short::at_once(setting).await?],
        Work::W1Latency => vec![short::latency(setting).await?],
        Work::W2 => vec![steps::one_chain(setting).await?],
        Work::W3 => vec![steps::many_chains(setting).await?],
        Work::W4 => vec![steps::children(setting).await?],
        Work::W5 => resume::resume(setting).await?,
        Work::IdleRss | Work::IdleCpu => process::idle(setting)?.into(),
        Work::SleepingRss => vec![process::sleeping(setting)?],
    })
}

/// Prints figures: each at once as a line in JSON lines, otherwise all of them at the end.
struct Printer {
    output: Output,
    figures: Vec<Figure>,
}

impl Printer {
    fn print(&mut self, figure: Figure) -> Result<(), CommandError> {
        if self.output == Output::Jsonl {
            output::document(&figure.json(), self.output)?;
        }
        self.figures.push(figure);
        Ok(())
    }

    fn finish(&self) -> Result<(), CommandError> {
        match self.output {
            Output::Jsonl => Ok(()),
            Output::Json => {
                let all = self.figures.iter().map(Figure::json).collect();
                output::document(&serde_json::Value::Array(all), self.output)
            }
            Output::Table => {
                let mut table = Table::new(["WORK", "FIGURE", "UNIT", "RAW", "RATIO", "GOAL", "OK"]);
                self.figures.iter().for_each(|figure| table.push(figure.cells()));
                output::write(table.to_string().as_bytes())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_work_is_in_one_group() {
        let grouped: Vec<_> = GROUPS.iter().flat_map(|group| group.iter().copied()).collect();
        assert_eq!(grouped, <Work as clap::ValueEnum>::value_variants());
    }
}
