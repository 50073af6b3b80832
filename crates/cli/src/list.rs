//! `abide list`.

use abide_core::{Kind, Waiting};
use abide_store::{ListOrder, Listed, Store};
use serde_json::{Value, json};

use crate::args::{Global, List, Output};
use crate::failure::Failure;
use crate::output::{self, Table};
use crate::{clock, connect};
use abide_core::text;

use crate::json;

/// The most executions that are asked for at a time.
const PAGE_COUNT_MAX: usize = 1_000;

/// Lists executions.
pub(crate) fn run(global: &Global, args: &List) -> Result<(), Failure> {
    connect::read(global, async |store| match global.output {
        Output::Table => table(&all(&*store, global, args).await?),
        Output::Json => {
            let items = all(&*store, global, args).await?;
            output::document(&items.iter().map(item).collect(), Output::Json)
        }
        // A line at a time: whoever reads lines may be reading very many.
        Output::Jsonl => {
            pages(&*store, query(global, args), |page| {
                let lines: String = page.iter().map(|one| format!("{}\n", item(one))).collect();
                output::write(lines.as_bytes())
            })
            .await
        }
    })
}

fn query(global: &Global, args: &List) -> abide_store::List {
    abide_store::List {
        statuses: args.status.iter().map(|status| status.0).collect(),
        name: args.workflow.clone(),
        tags: args.tag.clone(),
        top_level: args.top_level,
        order: if args.oldest_first { ListOrder::OldestFirst } else { ListOrder::NewestFirst },
        ..abide_store::List::of(global.namespace.clone(), args.limit.get())
    }
}

async fn all(store: &dyn Store, global: &Global, args: &List) -> Result<Vec<Listed>, Failure> {
    let mut items = Vec::new();
    pages(store, query(global, args), |page| {
        items.extend(page);
        Ok(())
    })
    .await?;
    Ok(items)
}

/// Hands out page after page, until there are no more or `limit` is reached.
async fn pages(
    store: &dyn Store,
    mut list: abide_store::List,
    mut take: impl FnMut(Vec<Listed>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut left = list.limit;
    while left > 0 {
        list.limit = left.min(PAGE_COUNT_MAX);
        let mut page = store.list(list.clone()).await?;
        // What abide does by itself is nobody's business.
        page.items.retain(|item| item.kind != Kind::Builtin);
        left = left.saturating_sub(page.items.len());
        take(page.items)?;
        list.after = page.next;
        if list.after.is_none() {
            break;
        }
    }
    Ok(())
}

fn table(items: &[Listed]) -> Result<(), Failure> {
    if items.is_empty() {
        output::say(format_args!("no executions"));
        return Ok(());
    }
    let mut table = Table::new(["ID", "WORKFLOW", "STATUS", "RUN", "CREATED", "WAITING"]);
    for one in items {
        table.push(vec![
            one.address.id.to_string(),
            one.name.to_string(),
            one.summary.status_at(clock::now()).to_string(),
            known(one.run),
            known(one.created_at),
            waiting(&one.summary.waiting),
        ]);
    }
    output::write(table.to_string().as_bytes())
}

fn known(what: Option<impl ToString>) -> String {
    what.map_or_else(|| "-".to_owned(), |what| what.to_string())
}

/// The first thing that is waited for, and how many others there are.
fn waiting(waiting: &[Waiting]) -> String {
    let Some(first) = waiting.first() else { return String::new() };
    match waiting.len() - 1 {
        0 => text::excerpt(&first.to_string(), 80),
        more => format!("{} (+{more})", text::excerpt(&first.to_string(), 80)),
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
        "waiting": json::waiting(&one.summary.waiting),
    })));
    Value::Object(fields)
}
