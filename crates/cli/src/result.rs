//! `abide result`.

use std::pin::pin;
use std::process::ExitCode;
use std::task::Poll;
use std::time::Duration;

use abide_core::planted::{Bug, planted};
use abide_core::{Event, ExecutionId, Refusal, Status, text};
use abide_engine::{Blocks, Runtime, TokioRuntime};
use abide_store::Error;
use serde_json::{Value, json};

use crate::args::{Global, Output, ResultOf};
use crate::command_error::{Code, CommandError};
use crate::{connect, json, output};

/// Prints how an execution ended: its result on stdout, its error on stderr.
pub(crate) fn run(global: &Global, args: &ResultOf) -> Result<ExitCode, CommandError> {
    let id = &args.id;
    let found = connect::watch(global, async |client| {
        let ended = || client.ended(id, Blocks::End);
        let is_patient = args.wait && !planted(Bug::ResultNotAwaited);
        let awaited = match args.timeout {
            None if is_patient => Some(ended().await),
            Some(timeout) if is_patient => within(timeout, ended()).await,
            _ => None,
        };
        let ended = match awaited {
            // It may have ended just before the time was over.
            None if client.status(id).await?.is_terminal() => Some(ended().await),
            awaited => awaited,
        };
        match ended {
            Some(Err(Error::Refused(Refusal::GivenUp { reason }))) => {
                Ok(Err((Status::Blocked, format!("execution {id:?} is blocked: {reason}"))))
            }
            Some(ended) => Ok(Ok(ended?)),
            None => Ok(Err((client.status(id).await?, client.why(id).await?))),
        }
    })?;
    let end = match found {
        Ok(end) => end,
        Err((status, why)) => return unfinished(global, id, (status, &why)),
    };
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

/// Returns the output of `future`, or `None` if that takes longer.
async fn within<T>(timeout: Duration, future: impl Future<Output = T>) -> Option<T> {
    let runtime = TokioRuntime::current()?;
    let (mut future, mut over) = (pin!(future), runtime.sleep(timeout));
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => over.as_mut().poll(cx).map(|()| None),
    })
    .await
}

/// Says that an execution has not ended, and why: on stderr to people, as a document to programs.
fn unfinished(
    global: &Global,
    id: &ExecutionId,
    (status, why): (Status, &str),
) -> Result<ExitCode, CommandError> {
    if global.output == Output::Table {
        return Err(CommandError::new(Code::Unfinished, why));
    }
    let document = json!({ "id": id.as_str(), "status": status.word(), "why": why });
    output::document(&document, global.output)?;
    Ok(ExitCode::from(Code::Unfinished as u8))
}
