//! `abide verify`, `abide backup` and `abide restore`: the store as a whole.

use std::path::Path;
use std::sync::Arc;

use abide::StoreUrl;
use abide_core::{Address, By, ExecutionId, Refusal};
use abide_engine::SystemClock;
use abide_postgres::PostgresStore;
use abide_sqlite::{Discarded, MessagesDropped, Options, Repairs, SqliteStore, Verification};
use abide_store::Error;
use serde_json::json;

use crate::args::{Backup, Global, Output, Restore, Verify};
use crate::command_error::{Code, CommandError};
use crate::connect;
use abide_core::text;

use crate::output;

/// Checks the integrity of the store.
pub(crate) fn verify(global: &Global, args: &Verify) -> Result<(), CommandError> {
    let store = match connect::named(global)? {
        StoreUrl::Postgres(url) => return verify_on_server(&url, global, args),
        StoreUrl::File(path) => path,
        StoreUrl::Memory => return Err(CommandError::usage("a store in memory belongs to its process")),
    };
    let repairs = if args.repair { Some(repair(&store, global, args)?) } else { None };
    let opened = open(&store)?;
    let found = opened.verify()?;
    opened.close();
    tell((&found, repairs.as_ref()), global.output)?;
    verdict(&found, &format!("{store:?}"))
}

fn verify_on_server(url: &str, global: &Global, args: &Verify) -> Result<(), CommandError> {
    if args.repair {
        return Err(CommandError::usage(
            "verify --repair works on SQLite files; a PostgreSQL database is restored from a backup",
        ));
    }
    let store = PostgresStore::open(
        url,
        Arc::new(SystemClock),
        abide_postgres::Options { create: false, ..Default::default() },
    )?;
    let found = connect::block_on(async { Ok(store.verify().await?) });
    store.close();
    let found = found?;
    tell((&found, None), global.output)?;
    verdict(&found, &format!("{:?}", StoreUrl::Postgres(url.to_owned()).to_string()))
}

fn verdict(found: &Verification, store: &str) -> Result<(), CommandError> {
    match found.problems.len() {
        0 => Ok(()),
        1 => Err(CommandError::failed(format!("{store}: the store is damaged: 1 problem"))),
        count => Err(CommandError::failed(format!("{store}: the store is damaged: {count} problems"))),
    }
}

/// Restores everything possible, drops and discards as requested, and reports all of it.
fn repair(path: &Path, global: &Global, args: &Verify) -> Result<Repairs, CommandError> {
    open(path)?.close();
    let store = SqliteStore::open(path, Arc::new(SystemClock), Options::default())?;
    let repaired = repair_in(&store, global, args);
    store.close();
    repaired
}

fn repair_in(store: &SqliteStore, global: &Global, args: &Verify) -> Result<Repairs, CommandError> {
    let mut repairs = Repairs::default();
    if let Some(id) = &args.drop_messages {
        repairs.rebuilt.extend(drop_messages(store, (global, id), &args.by)?);
    }
    let found = connect::block_on(async { Ok(store.repair().await?) })?;
    repairs.rebuilt.extend(found.rebuilt);
    repairs.left.extend(found.left);
    for line in repairs.rebuilt.iter().chain(&repairs.left) {
        output::say(format_args!("{}", text::clean(line)));
    }
    if let Some(id) = &args.discard {
        repairs.rebuilt.push(discard(store, (global, id), &args.by)?);
    }
    Ok(repairs)
}

fn drop_messages(
    store: &SqliteStore,
    (global, id): (&Global, &ExecutionId),
    by: &str,
) -> Result<Vec<String>, CommandError> {
    let address = Address { namespace: global.namespace.clone(), id: id.clone() };
    let dropped =
        connect::block_on(async { Ok(store.drop_messages(&address, By(by.to_owned().into())).await?) })?;
    let problem = match dropped {
        MessagesDropped::Dropped(lines) if !lines.is_empty() => return Ok(lines),
        MessagesDropped::Unknown => return Err(Error::Refused(Refusal::Unknown { id: id.clone() }).into()),
        MessagesDropped::Held => "a worker holds it, and sets it aside when it meets the damage",
        _ => "none of its unread messages is damaged",
    };
    Err(CommandError::new(Code::Refused, format!("nothing of execution {id:?} was dropped: {problem}")))
}

fn discard(
    store: &SqliteStore,
    (global, id): (&Global, &ExecutionId),
    by: &str,
) -> Result<String, CommandError> {
    let address = Address { namespace: global.namespace.clone(), id: id.clone() };
    let reason = "it was damaged and could not be rebuilt".to_owned();
    let discarded =
        connect::block_on(async { Ok(store.discard(&address, By(by.to_owned().into()), reason).await?) })?;
    let (code, problem) = match discarded {
        Discarded::Ended => {
            let line = format!("execution {id:?} was ended");
            output::say(format_args!("{}", text::clean(&line)));
            return Ok(line);
        }
        Discarded::Unknown => return Err(Error::Refused(Refusal::Unknown { id: id.clone() }).into()),
        Discarded::Sound => (Code::Refused, "it is not damaged; abide terminate ends it"),
        Discarded::Held => (Code::Refused, "a worker holds it, and sets it aside when it meets the damage"),
        Discarded::Over => (Code::Refused, "it has ended, and how it ended is final"),
        _ => (Code::Failed, "nothing of it can be read that says what it was"),
    };
    Err(CommandError::new(code, format!("execution {id:?} was not discarded: {problem}")))
}

fn tell((found, repairs): (&Verification, Option<&Repairs>), format: Output) -> Result<(), CommandError> {
    if format != Output::Table {
        let mut document = json!({
            "sound": found.is_sound(),
            "execution_count": found.execution_count,
            "own_count": found.own_count,
            "entry_count": found.entry_count,
            "problems": found.problems,
        });
        if let Some(Repairs { rebuilt, left }) = repairs {
            document["repaired"] = json!(rebuilt);
            document["left"] = json!(left);
        }
        return output::document(&document, format);
    }
    let own = match found.own_count {
        0 => String::new(),
        count => format!(" ({count} of abide's own)"),
    };
    let executions = output::counted(found.execution_count, ["execution", "executions"]);
    let entries = output::counted(found.entry_count, output::ENTRIES);
    let counts = format!("{executions}{own}, {entries}");
    let mut lines =
        if found.is_sound() { format!("sound: {counts}\n") } else { format!("damaged: {counts}\n") };
    for problem in &found.problems {
        lines.push_str(&format!("  {}\n", text::clean(problem)));
    }
    output::write(lines.as_bytes())
}

/// Copies the store into a new file.
pub(crate) fn backup(global: &Global, args: &Backup) -> Result<(), CommandError> {
    let path = connect::file(global, "a PostgreSQL database is copied by pg_dump")?;
    let store = open(&path)?;
    store.backup(&args.to)?;
    store.close();
    done(global, "backed up", (&path, &args.to))
}

/// Makes the store, which must not exist yet, from a backup.
pub(crate) fn restore(global: &Global, args: &Restore) -> Result<(), CommandError> {
    let path = connect::file(global, "a PostgreSQL database is restored by pg_restore")?;
    SqliteStore::restore(&args.from, &path, &SystemClock)?;
    done(global, "restored", (&args.from, &path))
}

fn open(path: &Path) -> Result<Arc<SqliteStore>, CommandError> {
    let options = Options { read_only: true, ..Options::default() };
    Ok(SqliteStore::open(path, Arc::new(SystemClock), options)?)
}

fn done(global: &Global, what: &str, (from, to): (&Path, &Path)) -> Result<(), CommandError> {
    match global.output {
        Output::Table => output::say(format_args!("{what} {from:?} to {to:?}")),
        format => output::document(&json!({ "from": from, "to": to }), format)?,
    }
    Ok(())
}
