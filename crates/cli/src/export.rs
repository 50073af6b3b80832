//! `abide export`: the recorded history of one execution, as a file for `abide::testing::replay`.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::Path;

use abide::testing::History;
use abide_core::{Address, Refusal};
use abide_store::Error;

use crate::args::{Export, Global};
use crate::command_error::{Code, CommandError};
use crate::{connect, output};

/// Writes the history of an execution to a new file, or to stdout.
pub(crate) fn run(global: &Global, args: &Export) -> Result<(), CommandError> {
    let address = Address { namespace: global.namespace.clone(), id: args.id.clone() };
    let history = connect::read(global, async |store| {
        let whole = abide_store::export(&*store, &address).await?;
        let whole = whole.ok_or_else(|| Error::from(Refusal::Unknown { id: address.id.clone() }))?;
        Ok(History::of(&whole)?)
    })?;
    let text = history.to_string();
    match &args.out {
        None => output::write(text.as_bytes()),
        Some(path) => {
            create(path, &text)?;
            output::say(format_args!("the history of {:?} is in {path:?}", args.id));
            Ok(())
        }
    }
}

/// Creates a file that only its owner can read, as all files of abide are. A file that cannot be
/// written whole is removed.
fn create(path: &Path, text: &str) -> Result<(), CommandError> {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.write(true).create_new(true).open(path);
    let written = file.and_then(|mut file| {
        file.write_all(text.as_bytes()).inspect_err(|_| {
            let _ = std::fs::remove_file(path);
        })
    });
    written.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => CommandError::new(Code::Refused, format!("{path:?} exists already")),
        _ => CommandError::failed(format!("{path:?} cannot be written: {error}")),
    })
}
