//! `abide intake`: what others have enqueued, and what became of it.

use std::sync::Arc;

use abide::StoreUrl;
use abide_core::{Enqueued, text};
use abide_engine::SystemClock;
use abide_postgres::PostgresStore;
use abide_sqlite::SqliteStore;
use abide_store::{FeedItem, IntakeLook};
use serde_json::{Value, json};

use crate::args::{Global, Intake, Output};
use crate::command_error::CommandError;
use crate::table::{Fit, Table, terminal_width};
use crate::{connect, json, output};

/// Shows the rows that no engine has taken, and those that were refused.
pub(crate) fn run(global: &Global, args: &Intake) -> Result<(), CommandError> {
    let mut found = look(global, args.limit.get())?;
    let namespace = global.namespace.as_str();
    found.waiting.retain(|row| row.namespace == namespace);
    found.refused.retain(|item| item.address.namespace == global.namespace);
    match global.output {
        Output::Table => table(&found),
        format => {
            let waiting = found.waiting.iter().map(waiting);
            output::document(&waiting.chain(found.refused.iter().map(refused)).collect(), format)
        }
    }
}

fn look(global: &Global, limit: usize) -> Result<IntakeLook, CommandError> {
    let clock = Arc::new(SystemClock);
    match connect::named(global)? {
        StoreUrl::File(path) => {
            let options = abide_sqlite::Options { create: false, read_only: true, ..Default::default() };
            let store = SqliteStore::open(&path, clock, options)?;
            let found = connect::block_on(async { Ok(store.intake(limit).await?) });
            store.close();
            found
        }
        StoreUrl::Postgres(url) => {
            let options = abide_postgres::Options { create: false, ..Default::default() };
            let store = PostgresStore::open(&url, clock, options)?;
            let found = connect::block_on(async { Ok(store.intake(limit).await?) });
            store.close();
            found
        }
        StoreUrl::Memory => Err(CommandError::usage("a store in memory belongs to its process")),
    }
}

fn table(found: &IntakeLook) -> Result<(), CommandError> {
    if found.waiting.is_empty() && found.refused.is_empty() {
        output::say(format_args!("nothing is enqueued, and nothing was refused"));
        return Ok(());
    }
    let mut table = Table::new(["STATE", "ID", "WHAT", "NAME", "WHY"]);
    for row in &found.waiting {
        let why = format!("from {}: no engine has taken it", text::quoted(&row.sender));
        let (id, verb) = (row.execution.clone(), row.verb.clone());
        table.push(vec!["waiting".to_owned(), id, verb, row.name.clone(), why]);
    }
    for item in &found.refused {
        let Some(row) = &item.refused else { continue };
        let (id, verb) = (item.address.id.to_string(), row.verb.clone());
        table.push(vec!["refused".to_owned(), id, verb, row.name.clone(), row.reason.clone()]);
    }
    let width = terminal_width();
    let table = table.fitting(Fit { width, cut: &["WHY"], left_out: &["NAME"] });
    output::write(table.to_string().as_bytes())
}

fn waiting(row: &Enqueued) -> Value {
    json!({
        "state": "waiting",
        "id": row.execution,
        "namespace": row.namespace,
        "what": row.verb,
        "name": row.name,
        "row": row.id,
        "sender": row.sender,
    })
}

fn refused(item: &FeedItem) -> Value {
    let mut fields = json::object(json::address(&item.address));
    fields.insert("state".to_owned(), "refused".into());
    fields.insert("at".to_owned(), json::time(item.at));
    if let Some(row) = &item.refused {
        fields.insert("what".to_owned(), row.verb.clone().into());
        fields.insert("name".to_owned(), row.name.clone().into());
        fields.insert("row".to_owned(), row.id.clone().into());
        fields.insert("why".to_owned(), row.reason.clone().into());
    }
    Value::Object(fields)
}
