//! `abide migrate`: the schema of a store, before the workers of a newer version come.

use std::path::Path;
use std::sync::Arc;

use abide::StoreUrl;
use abide_engine::SystemClock;
use abide_postgres::PostgresStore;
use abide_sqlite::SqliteStore;
use serde_json::json;

use crate::args::{Global, Migrate, Output};
use crate::command_error::CommandError;
use crate::{connect, output};

/// The steps that were taken, or would be.
struct Done {
    found: i64,
    known: i64,
    steps: Vec<&'static str>,
}

/// Brings the schema to the version of this program.
pub(crate) fn run(global: &Global, args: &Migrate) -> Result<(), CommandError> {
    let store = connect::named(global)?;
    let done = match &store {
        StoreUrl::Postgres(url) => {
            let migration = PostgresStore::migrate(url, args.dry_run)?;
            Done { found: migration.found, known: migration.known, steps: migration.steps }
        }
        StoreUrl::File(path) => in_file(path, args)?,
        StoreUrl::Memory => return Err(CommandError::usage("a store in memory belongs to its process")),
    };
    tell(&done, global, (&store, args.dry_run))
}

/// A worker that opens the file does the same.
fn in_file(path: &Path, args: &Migrate) -> Result<Done, CommandError> {
    let (found, known) = SqliteStore::versions(path)?;
    let is_behind = found < known;
    if is_behind && !args.dry_run {
        let options = abide_sqlite::Options { create: false, ..Default::default() };
        SqliteStore::open(path, Arc::new(SystemClock), options)?.close();
    }
    let steps = if is_behind { vec!["bring the tables to the new version"] } else { Vec::new() };
    Ok(Done { found, known, steps })
}

fn tell(done: &Done, global: &Global, (store, is_dry): (&StoreUrl, bool)) -> Result<(), CommandError> {
    let Done { found, known, steps } = done;
    if global.output != Output::Table {
        let applied = !is_dry && !steps.is_empty();
        let document = json!({ "found": found, "known": known, "steps": steps, "applied": applied });
        return output::document(&document, global.output);
    }
    let store = store.to_string();
    if steps.is_empty() {
        return output::write(format!("{store:?} has version {found}: nothing to do\n").as_bytes());
    }
    let goes = if is_dry { "would go" } else { "went" };
    let mut lines = format!("{store:?} {goes} from version {found} to {known}:\n");
    for step in steps {
        lines.push_str(&format!("  {step}\n"));
    }
    output::write(lines.as_bytes())
}
