//! `abide result`.

use std::process::ExitCode;

use abide_core::{Event, ExecutionId, Refusal, text};
use abide_engine::{Blocks, Client};
use abide_store::Error;
use serde_json::{Value, json};

use crate::args::{Global, Output, ResultOf};
use crate::command_error::{Code, CommandError};
use crate::{connect, json, output};

/// Prints how an execution ended: its result on stdout, its error on stderr.
pub(crate) fn run(global: &Global, args: &ResultOf) -> Result<ExitCode, CommandError> {
    let id = &args.id;
    let end = connect::watch(global, async |client| {
        if !args.wait && !client.status(id).await?.is_terminal() {
            return Err(CommandError::new(Code::Unfinished, client.why(id).await?));
        }
        client.ended(id, Blocks::End).await.map_err(|error| unfinished(&client, id, error))
    })?;
    let (code, document) = match &end {
        Event::Completed { result, .. } => {
            (0, json!({ "status": "completed", "result": json::payload(result) }))
        }
        Event::Failed(failure) => {
            (Code::Ended as u8, json!({ "status": "failed", "error": json::failure(failure) }))
        }
        Event::Cancelled { by, reason } => {
            (Code::Ended as u8, json!({ "status": "cancelled", "by": by.0, "reason": reason }))
        }
        other => return Err(CommandError::failed(format!("execution {id:?} ended with {}", other.word()))),
    };
    match (global.output, &end) {
        (Output::Table, Event::Completed { result, .. }) => {
            output::json_line(&String::from_utf8_lossy(result.as_bytes()))?;
        }
        (Output::Table, Event::Failed(failure)) => {
            return Err(CommandError::new(Code::Ended, format!("execution {id:?} failed: {failure:#}")));
        }
        (Output::Table, Event::Cancelled { by, reason }) => {
            let by = text::by_whom(by, reason);
            return Err(CommandError::new(Code::Ended, format!("execution {id:?} was cancelled {by}")));
        }
        (format, _) => {
            let mut fields = json::object(json!({ "id": id.as_str() }));
            fields.extend(json::object(document));
            output::document(&Value::Object(fields), format)?;
        }
    }
    Ok(ExitCode::from(code))
}

/// Explains why it is useless to wait: no worker can continue the execution.
fn unfinished(_client: &Client, id: &ExecutionId, error: Error) -> CommandError {
    match error {
        Error::Refused(Refusal::GivenUp { reason }) => {
            CommandError::new(Code::Unfinished, format!("execution {id:?} is blocked: {reason}"))
        }
        error => error.into(),
    }
}
