//! `abide bench`: the speed of this machine, compared with the speed of its disk.
//!
//! Each work is measured several times after a warm-up, and its results are checked. The limit of
//! the database is measured before and after it, with payloads of the same size.
//! `docs/guide/bench.md` describes each work and each limit.

mod counts;
mod endurance;
mod figure;
mod flows;
mod folder;
mod ids;
mod place;
mod process;
mod processes;
mod random_ids;
mod resume;
mod setting;
mod short;
mod sleeping;
mod steps;
mod stopwatch;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use clap::ValueEnum;

use counts::Counts;
use figure::{Figure, Work};
use ids::Ids;
use place::Place;
use process::Child;
use setting::{Depth, Setting};

use crate::Allocator;
use crate::args::{Global, Output};
use crate::command_error::CommandError;
use crate::output;
use crate::table::Table;

/// Options of `abide bench`. The output format is the global `-o`, which is passed to [`run`].
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Take less than a minute
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Measure on a store that holds 1,000,000 finished executions, W3 for five minutes, and
    /// 1,000,000 sleeping executions; takes about half an hour
    #[arg(long)]
    full: bool,
    /// Only count statements, bytes, syncs and allocations, which hardly depend on the machine
    #[arg(long, conflicts_with_all = ["quick", "full"])]
    counts: bool,
    /// Only this work; may be repeated
    #[arg(long, value_name = "NAME", ignore_case = true)]
    work: Vec<Work>,
    /// The folder for the files, on a disk; a new folder in it is removed afterwards
    #[arg(long, value_name = "PATH")]
    dir: Option<PathBuf>,
    /// The work to measure in this process
    #[arg(long, hide = true)]
    child: Option<Child>,
    /// The number of executions of a process with `--child`, or of seconds
    #[arg(long, hide = true, requires = "child", default_value_t = 0)]
    size: u64,
}

/// Runs the benchmark. A missed goal is not a failure; a wrong result is.
pub(crate) fn run(args: &Args, global: &Global, allocator: &'static Allocator) -> ExitCode {
    let done = match (args.child, &global.store) {
        (Some(child), Some(store)) => process::serve(child, store, args.size)
            .and_then(|report| output::document(&report, Output::Jsonl)),
        (Some(_), None) => Err(CommandError::usage("a process of the benchmark needs --store")),
        (None, _) => measure(args, global, allocator),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn measure(args: &Args, global: &Global, allocator: &'static Allocator) -> Result<(), CommandError> {
    let output = global.output;
    let depth = match (args.quick, args.full) {
        (true, _) => Depth::Quick,
        (_, true) => Depth::Full,
        _ => Depth::Usual,
    };
    let setting = Setting {
        depth,
        place: Place::open(global.store.as_deref(), args.dir.as_deref())?,
        allocator,
        random_ids: Ids::random(),
        has_random_ids: AtomicBool::new(false),
    };
    if let Some(work) = args.work.iter().find(|work| !setting.place.has(**work)) {
        return Err(CommandError::usage(format!("{} is not measured on a server", work.name())));
    }
    let is_wanted = |work: Work| is_wanted(args, work) && setting.place.has(work);
    let runtime = tokio::runtime::Runtime::new()?;
    if depth == Depth::Full {
        runtime.block_on(setting.fill())?;
    }
    let mut printer = Printer { output, figures: Vec::new() };
    if args.counts {
        return count_only(args, output, &runtime, &setting);
    }
    for group in GROUPS.iter().filter(|group| group.iter().any(|work| is_wanted(*work))) {
        let names: Vec<_> = group.iter().map(|work| work.name()).collect();
        output::say(format_args!("measures {}", names.join(" and ")));
        let figures = runtime.block_on(figures_of(&setting, group[0]))?;
        for figure in figures.into_iter().filter(|figure| is_wanted(figure.work)) {
            printer.print(figure)?;
        }
    }
    printer.finish()
}

/// Counts the cost of the works that have items, and measures nothing.
fn count_only(
    args: &Args,
    output: Output,
    runtime: &tokio::runtime::Runtime,
    setting: &Setting,
) -> Result<(), CommandError> {
    let mut counted = Vec::new();
    for work in Work::value_variants().iter().filter(|work| is_wanted(args, **work)) {
        counted.extend(runtime.block_on(counts_of(setting, *work))?.map(|counts| (*work, counts)));
    }
    if counted.is_empty() {
        return Err(CommandError::usage("only W1, W1-latency, W2, W3 and W4 have counts"));
    }
    let object = |(work, counts): &(Work, Counts)| {
        let mut object = counts.json();
        object["work"] = work.name().into();
        object
    };
    match output {
        Output::Jsonl => counted.iter().try_for_each(|counted| output::document(&object(counted), output)),
        Output::Json => output::document(&counted.iter().map(object).collect(), output),
        Output::Table => {
            let mut table = Table::new(["WORK"].into_iter().chain(Counts::HEADINGS));
            for (work, counts) in &counted {
                table.push([work.name().to_owned()].into_iter().chain(Counts::cells(Some(counts))).collect());
            }
            output::write(table.to_string().as_bytes())
        }
    }
}

/// The works, in groups that are measured together.
const GROUPS: [&[Work]; 10] = [
    &[Work::W1],
    &[Work::W1Latency],
    &[Work::W2],
    &[Work::W3],
    &[Work::W4],
    &[Work::W5],
    &[Work::RandomIds],
    &[Work::Processes],
    &[Work::IdleRss, Work::IdleCpu],
    &[Work::SleepingRss],
];

fn is_wanted(args: &Args, work: Work) -> bool {
    args.work.is_empty() || args.work.contains(&work)
}

async fn figures_of(setting: &Setting, first: Work) -> Result<Vec<Figure>, CommandError> {
    let mut figures = match first {
        Work::W1 => vec![short::at_once(setting).await?],
        Work::W1Latency => short::latency(setting).await?.into(),
        Work::W2 => vec![steps::one_chain(setting).await?],
        Work::W3 => many_chains(setting).await?,
        Work::W4 => vec![steps::children(setting).await?],
        Work::W5 => resume::resume(setting).await?,
        Work::RandomIds => random_ids::random_ids(setting).await?,
        Work::Processes => processes::processes(setting)?,
        Work::IdleRss | Work::IdleCpu => process::idle(setting)?.into(),
        Work::SleepingRss => sleeping::sleeping(setting)?,
    };
    if let Some(counts) = counts_of(setting, first).await? {
        figures[0].counts = Some(counts);
        if matches!(setting.place, Place::Folder(_)) {
            figures.extend(counts::figures(first, &counts));
        }
    }
    Ok(figures)
}

async fn many_chains(setting: &Setting) -> Result<Vec<Figure>, CommandError> {
    let mut figures = vec![steps::many_chains(setting).await?];
    if setting.depth == Depth::Full && matches!(setting.place, Place::Folder(_)) {
        figures.extend(endurance::worst_minutes(setting).await?);
    }
    Ok(figures)
}

/// Counts the cost of an item of a work, if it has items.
async fn counts_of(setting: &Setting, work: Work) -> Result<Option<Counts>, CommandError> {
    let counts = match work {
        Work::W1 => short::count_at_once(setting).await?,
        Work::W1Latency => short::count_one_by_one(setting).await?,
        Work::W2 => steps::count_one_chain(setting).await?,
        Work::W3 => steps::count_many_chains(setting).await?,
        Work::W4 => steps::count_children(setting).await?,
        _ => return Ok(None),
    };
    Ok(Some(counts))
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
                let mut table = Table::new(Figure::HEADINGS.into_iter().chain(Counts::HEADINGS));
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
        assert_eq!(grouped, Work::value_variants());
    }
}
