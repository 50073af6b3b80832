//! `abide verify`, `abide backup` and `abide restore`: the store as a whole.

use std::path::Path;
use std::sync::Arc;

use abide_core::{Address, By, ExecutionId, Refusal};
use abide_engine::SystemClock;
use abide_sqlite::{Discarded, Options, SqliteStore, Verification};
use abide_store::Error;
use serde_json::json;

use crate::args::{Backup, Global, Output, Restore, Verify};
use crate::connect;
use crate::failure::{Code, Failure};
use abide_core::text;

use crate::output;

/// Checks the integrity of the store.
pub(crate) fn verify(global: &Global, args: &Verify) -> Result<(), Failure> {
    let path = connect::path(global)?;
    if args.repair {
        repair(&path, global, args)?;
    }
    let store = open(&path)?;
    let found = store.verify()?;
    store.close();
    tell(&found, global.output)?;
    match found.problems.len() {
        0 => Ok(()),
        1 => Err(Failure::failed(format!("{path:?}: the store is damaged: 1 problem"))),
        count => Err(Failure::failed(format!("{path:?}: the store is damaged: {count} problems"))),
    }
}

/// Rebuilds what can be rebuilt, ends what is to be discarded, and says so.
fn repair(path: &Path, global: &Global, args: &Verify) -> Result<(), Failure> {
    open(path)?.close();
    let store = SqliteStore::open(path, Arc::new(SystemClock), Options::default())?;
    let repairs = connect::block_on(async { Ok(store.repair().await?) })?;
    for line in repairs.rebuilt.iter().chain(&repairs.left) {
        output::say(format_args!("{}", text::clean(line)));
    }
    let discarded = match &args.discard {
        Some(id) => discard(&store, (global, id), &args.by),
        None => Ok(()),
    };
    store.close();
    discarded
}

fn discard(store: &SqliteStore, (global, id): (&Global, &ExecutionId), by: &str) -> Result<(), Failure> {
    let address = Address { namespace: global.namespace.clone(), id: id.clone() };
    let reason = "it was damaged and could not be rebuilt".to_owned();
    let discarded =
        connect::block_on(async { Ok(store.discard(&address, By(by.to_owned()), reason).await?) })?;
    let (code, problem) = match discarded {
        Discarded::Ended => {
            output::say(format_args!("execution {id:?} was ended"));
            return Ok(());
        }
        Discarded::Unknown => return Err(Error::Refused(Refusal::Unknown { id: id.clone() }).into()),
        Discarded::Sound => (Code::Refused, "it is not damaged; abide terminate ends it"),
        Discarded::Held => (Code::Refused, "a worker holds it, and sets it aside when it meets the damage"),
        Discarded::Over => (Code::Refused, "it has ended, and how it ended is final"),
        _ => (Code::Failed, "nothing of it can be read that says what it was"),
    };
    Err(Failure::new(code, format!("execution {id:?} was not discarded: {problem}")))
}

fn tell(found: &Verification, format: Output) -> Result<(), Failure> {
    if format != Output::Table {
        let document = json!({
            "sound": found.is_sound(),
            "execution_count": found.execution_count,
            "own_count": found.own_count,
            "entry_count": found.entry_count,
            "problems": found.problems,
        });
        return output::document(&document, format);
    }
    let own = match found.own_count {
        0 => String::new(),
        count => format!(" ({count} of abide's own)"),
    };
    let Verification { execution_count, entry_count, .. } = found;
    let counts = format!("{execution_count} executions{own}, {entry_count} journal entries");
    let mut lines =
        if found.is_sound() { format!("sound: {counts}\n") } else { format!("damaged: {counts}\n") };
    for problem in &found.problems {
        lines.push_str(&format!("  {}\n", text::clean(problem)));
    }
    output::write(lines.as_bytes())
}

/// Copies the store into a new file.
pub(crate) fn backup(global: &Global, args: &Backup) -> Result<(), Failure> {
    let path = connect::path(global)?;
    let store = open(&path)?;
    store.backup(&args.to)?;
    store.close();
    done(global, "backed up", (&path, &args.to))
}

/// Makes the store, which must not exist yet, from a backup.
pub(crate) fn restore(global: &Global, args: &Restore) -> Result<(), Failure> {
    let path = connect::path(global)?;
    SqliteStore::restore(&args.from, &path, &SystemClock)?;
    done(global, "restored", (&args.from, &path))
}

fn open(path: &Path) -> Result<Arc<SqliteStore>, Failure> {
    let options = Options { read_only: true, ..Options::default() };
    Ok(SqliteStore::open(path, Arc::new(SystemClock), options)?)
}

fn done(global: &Global, what: &str, (from, to): (&Path, &Path)) -> Result<(), Failure> {
    match global.output {
        Output::Table => output::say(format_args!("{what} {from:?} to {to:?}")),
        format => output::document(&json!({ "from": from, "to": to }), format)?,
    }
    Ok(())
}
