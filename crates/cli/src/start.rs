//! `abide start`.

use std::sync::Arc;

use abide_core::planted::{Bug, planted};
use abide_core::{Kind, Tag, text};
use abide_engine::Begun;
use serde_json::json;

use crate::args::{Global, Output, Start};
use crate::command_error::CommandError;
use crate::payload::payload;
use crate::registered::Registered;
use crate::{connect, output};

/// Starts an execution, and prints its id.
pub(crate) fn run(global: &Global, args: &Start) -> Result<(), CommandError> {
    let input = payload(&format!("the input of {:?}", args.workflow), &args.input)?;
    Tag::check_keys(&args.tag).map_err(CommandError::usage)?;
    connect::client(global, async |client| {
        let registered = Registered::read(&client, &args.workflow).await?;
        let kind = match args.task {
            true => registered.check_task(&args.workflow).map(|()| Kind::Task)?,
            false => registered.kind().unwrap_or(Kind::Workflow),
        };
        let id = args.id.clone().unwrap_or_else(|| client.fresh_id());
        let now = client.now();
        let start = abide_core::Start {
            start_at: args.delay.map(|delay| now.after(delay)),
            deadline_at: args.deadline.map(|deadline| now.after(deadline)),
            priority: args.priority.unwrap_or_default(),
            tags: args.tag.clone(),
            // As a program does: neither white space nor the order of members makes another input.
            input_hash: match planted(Bug::ShellInputRaw) {
                true => abide_core::ContentHash::of(input.as_bytes()),
                false => abide::input_hash(&input),
            },
            ..abide_core::Start::of(kind, args.workflow.clone(), input.clone())
        };
        let lane = args.lane.clone().unwrap_or_else(|| start.lane.clone());
        let start = abide_core::Start { lane, ..start };
        let begun =
            client.start(&id, Arc::new(start)).await.map_err(|error| CommandError::about(&id, error))?;
        if !registered.knows(kind) {
            let (kind, name) = (kind.word(), &args.workflow);
            output::say(format_args!(
                "no worker of this store has registered {kind} {name:?}: it waits for one"
            ));
        }
        tell(global, (&id, kind, args), &begun)
    })
}

/// Whether this option is on the command line. Nobody asks whether an option that is not differs.
fn is_given(args: &Start, option: &str) -> bool {
    match option {
        "lane" => args.lane.is_some(),
        "priority" => args.priority.is_some(),
        "delay" => args.delay.is_some(),
        "deadline" => args.deadline.is_some(),
        "tags" => !args.tag.is_empty(),
        _ => false,
    }
}

/// Returns the words for options that differ, such as `another priority and other tags`.
fn other(options: &[&str]) -> String {
    let each = |option: &&str| match *option {
        "tags" => "other tags".to_owned(),
        option => format!("another {option}"),
    };
    text::enumerated(options.iter().map(each).collect()).unwrap_or_default()
}

fn tell(
    global: &Global,
    (id, kind, args): (&abide_core::ExecutionId, Kind, &Start),
    begun: &Begun,
) -> Result<(), CommandError> {
    let differences: &[&str] = match begun {
        Begun::Created => &[],
        Begun::Attached { differences } => differences,
    };
    let is_attached = matches!(begun, Begun::Attached { .. });
    if global.output == Output::Table {
        let (kind, name) = (kind.word(), &args.workflow);
        let wrote: Vec<_> = differences.iter().copied().filter(|option| is_given(args, option)).collect();
        match wrote.as_slice() {
            [] if is_attached => output::say(format_args!("{kind} {name:?} was there as {id:?}")),
            [] => output::say(format_args!("{kind} {name:?} was started as {id:?}")),
            several => {
                let options = other(several);
                output::say(format_args!("{kind} {name:?} was there as {id:?}, started with {options}"));
            }
        }
        return output::line(id.as_str());
    }
    let document = json!({
        "id": id.as_str(),
        "namespace": global.namespace.as_str(),
        "kind": kind.word(),
        "name": args.workflow.as_str(),
        "attached": is_attached,
        "differences": differences,
    });
    output::document(&document, global.output)
}
