//! `abide list`.

use abide_core::planted::{Bug, planted};
use abide_core::{Kind, Summary, Tag, Waiting};
use abide_store::{ExecutionKey, ListCursor, ListOrder, Listed, Store};
use serde_json::{Value, json};

use crate::args::{Global, List, Output};
use crate::command_error::CommandError;
use crate::table::{Fit, Table, terminal_width};
use crate::{clock, connect, output};
use abide_core::text;

use crate::json;

/// The most executions to request at a time.
const PAGE_COUNT_MAX: usize = 1_000;

/// Lists executions.
pub(crate) fn run(global: &Global, args: &List) -> Result<(), CommandError> {
    connect::read(global, async |store| {
        let mut shown = Shown::default();
        match global.output {
            // One page at a time, because a reader of lines may want very many.
            Output::Jsonl => {
                let write = |page: Vec<Listed>| {
                    let lines: String = page.iter().map(|one| format!("{}\n", item(one))).collect();
                    output::write(output::seen(&lines).as_bytes())
                };
                pages(&*store, query(global, args), &mut shown, write).await?;
            }
            Output::Table | Output::Json => {
                let mut items = Vec::new();
                let keep = |page| {
                    items.extend(page);
                    Ok(())
                };
                pages(&*store, query(global, args), &mut shown, keep).await?;
                match global.output {
                    Output::Table => table(&items)?,
                    format => output::document(&items.iter().map(item).collect(), format)?,
                }
            }
        }
        say_whether_it_was_cut(&shown);
        Ok(())
    })
}

/// The state of the output: the executions shown so far, and whether the list was cut.
#[derive(Default)]
struct Shown {
    count: usize,
    last: Option<ExecutionKey>,
    is_cut: bool,
}

fn say_whether_it_was_cut(shown: &Shown) {
    if let (true, Some(last), count) = (shown.is_cut, shown.last, shown.count) {
        let key = last.0;
        output::say(format_args!(
            "the list was cut after {count}: go on with --after {key}, or ask for more with --limit"
        ));
    }
}

fn query(global: &Global, args: &List) -> abide_store::List {
    abide_store::List {
        statuses: args.status.iter().map(|status| status.0).collect(),
        name: args.workflow.clone(),
        tags: args.tag.clone(),
        top_level: args.top_level,
        order: if args.oldest_first { ListOrder::OldestFirst } else { ListOrder::NewestFirst },
        after: args.after.map(|key| ListCursor(ExecutionKey(key))),
        with_tags: !planted(Bug::TagsUnlisted),
        ..abide_store::List::of(global.namespace.clone(), args.limit.get())
    }
}

/// Passes on page after page, to the end or to `limit`. Then it looks for one more.
async fn pages(
    store: &dyn Store,
    mut list: abide_store::List,
    shown: &mut Shown,
    mut take: impl FnMut(Vec<Listed>) -> Result<(), CommandError>,
) -> Result<(), CommandError> {
    let limit = list.limit;
    loop {
        let left = limit - shown.count;
        list.limit = left.clamp(1, PAGE_COUNT_MAX);
        let mut page = store.list(list.clone()).await?;
        // abide's own executions are of no interest to users.
        page.items.retain(|item| item.kind != Kind::Builtin);
        if left == 0 && !page.items.is_empty() {
            shown.is_cut = !planted(Bug::CutUntold);
            return Ok(());
        }
        shown.count += page.items.len();
        shown.last = page.items.last().map(|item| item.key).or(shown.last);
        take(page.items)?;
        list.after = page.next;
        if list.after.is_none() {
            return Ok(());
        }
    }
}

fn table(items: &[Listed]) -> Result<(), CommandError> {
    if items.is_empty() {
        output::say(format_args!("no executions"));
        return Ok(());
    }
    let is_tagged = items.iter().any(|one| !one.tags.is_empty());
    let mut headings = vec!["ID", "WORKFLOW", "STATUS", "RUN", "CREATED", "WAITING"];
    if is_tagged {
        headings.insert(5, "TAGS");
    }
    let mut table = Table::new(headings);
    for one in items {
        let mut row = vec![
            one.address.id.to_string(),
            one.name.to_string(),
            one.summary.status_at(clock::now()).to_string(),
            known(one.run),
            known(one.created_at),
            waiting(&one.summary.waiting),
        ];
        if is_tagged {
            row.insert(5, tags(&one.tags));
        }
        table.push(row);
    }
    let table = table.fitting(Fit {
        width: terminal_width().filter(|_| !planted(Bug::ListTooWide)),
        cut: &["WAITING", "TAGS"],
        left_out: &["CREATED", "RUN", "TAGS", "WAITING", "WORKFLOW"],
    });
    output::write(table.to_string().as_bytes())
}

fn tags(tags: &[Tag]) -> String {
    tags.iter().map(|tag| format!("{}={}", tag.key, tag.value)).collect::<Vec<_>>().join(" ")
}

fn known(what: Option<impl ToString>) -> String {
    what.map_or_else(|| "-".to_owned(), |what| what.to_string())
}

/// Names the first thing that an execution waits for, and counts the others. A summary has only a
/// few of very many.
fn waiting(waiting: &[Waiting]) -> String {
    let Some(first) = waiting.first() else { return String::new() };
    let first = text::excerpt(&first.to_string(), 80);
    match waiting.len() - 1 {
        0 => first,
        more if waiting.len() < Summary::WAITING_COUNT_MAX => format!("{first} (+{more})"),
        more => format!("{first} (+{more} or more)"),
    }
}

fn item(one: &Listed) -> Value {
    let mut fields = json::object(json::address(&one.address));
    fields.extend(json::object(json!({
        "kind": one.kind.word(),
        "name": one.name.as_str(),
        "status": one.summary.status_at(clock::now()).word(),
        "run": one.run,
        "created_at": json::time_maybe(one.created_at),
        "wake_at": json::time_maybe(one.summary.wake_at),
        "tags": json::tags(&one.tags),
        "cursor": one.key.0,
        "waiting": json::waiting(&one.summary),
    })));
    Value::Object(fields)
}
