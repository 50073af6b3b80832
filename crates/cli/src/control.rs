//! Signals and orders to an execution. Each is durable when the command ends; a worker applies it.

use abide_core::planted::{Bug, planted};
use abide_core::{Body, By, ExecutionId, MessageId, Remedy, StepRemedy};
use abide_engine::Sent;
use serde_json::json;

use crate::args::{Because, Global, Output, Plain, Signal, Unblock};
use crate::command_error::CommandError;
use crate::connect;
use crate::output;
use crate::payload::{is_json, payload};

/// Runs `abide signal`.
pub(crate) fn signal(global: &Global, args: &Signal) -> Result<(), CommandError> {
    let payload = payload(&format!("the value of signal {:?}", args.name), &args.value)?;
    let message = args.key.as_ref().map(|key| MessageId::of_signal(&args.name, key));
    let message = message.filter(|_| !planted(Bug::ShellKeyIgnored));
    let body = Body::Signal { name: args.name.clone(), payload };
    send(global, &args.id, By("cli".into()), (message, body))
}

/// Runs `abide cancel`.
pub(crate) fn cancel(global: &Global, args: &Because) -> Result<(), CommandError> {
    order(global, &args.plain, Body::Cancel { reason: args.reason.clone() })
}

/// Runs `abide terminate`.
pub(crate) fn terminate(global: &Global, args: &Because) -> Result<(), CommandError> {
    order(global, &args.plain, Body::Terminate { reason: args.reason.clone() })
}

/// Runs `abide pause`.
pub(crate) fn pause(global: &Global, args: &Because) -> Result<(), CommandError> {
    order(global, &args.plain, Body::Pause { reason: args.reason.clone() })
}

/// Runs `abide resume`.
pub(crate) fn resume(global: &Global, args: &Plain) -> Result<(), CommandError> {
    order(global, args, Body::Resume)
}

/// Runs `abide unblock`.
pub(crate) fn unblock(global: &Global, args: &Unblock) -> Result<(), CommandError> {
    let step = match (&args.rerun, &args.edit, &args.accept) {
        (Some(step), ..) => Some(StepRemedy { step: step.clone(), remedy: Remedy::Rerun }),
        (_, _, Some(op)) => Some(StepRemedy { step: op.clone(), remedy: Remedy::Accept }),
        (None, Some(edit), _) => {
            let (step, json) = edited(edit)?;
            let result = payload(&format!("the result of step {step:?}"), json)?;
            Some(StepRemedy { step: step.to_owned(), remedy: Remedy::Edit(result) })
        }
        (None, None, None) => None,
    };
    order(global, &args.plain, Body::Unblock { step })
}

/// Splits `STEP=JSON` into the step and the result. Both may contain `=`: the step ends at the
/// first `=` that JSON follows.
pub(crate) fn edited(text: &str) -> Result<(&str, &str), CommandError> {
    let wrong = |what| CommandError::usage(format!("{text:?} {what}: an edit is written STEP=JSON"));
    let splits = || text.match_indices('=').map(|(at, _)| (&text[..at], &text[at + 1..]));
    let first = splits().next().ok_or_else(|| wrong("gives no result"))?;
    if first.0.is_empty() {
        return Err(wrong("names no step"));
    }
    let is_value = |json: &str| json == "-" || is_json(json);
    // If no `=` is followed by JSON, the error message concerns the text after the first one.
    Ok(splits().find(|(_, json)| is_value(json)).unwrap_or(first))
}

/// Runs `abide retry`.
pub(crate) fn retry(global: &Global, args: &Plain) -> Result<(), CommandError> {
    order(global, args, Body::Retry)
}

fn order(global: &Global, args: &Plain, body: Body) -> Result<(), CommandError> {
    let by = By(if args.by.is_empty() { "cli".into() } else { args.by.clone().into() });
    send(global, &args.id, by, (None, body))
}

fn send(
    global: &Global,
    id: &ExecutionId,
    by: By,
    (message, body): (Option<MessageId>, Body),
) -> Result<(), CommandError> {
    let what = match &body {
        Body::Signal { name, .. } => format!("signal {:?}", name.as_str()),
        other => other.word().to_owned(),
    };
    let word = body.word();
    let has_key = message.is_some();
    let sent = connect::client(global, async |client| {
        let sent = match message {
            Some(message) => client.send_as(message, id, (by, body)).await,
            None => client.send(id, by, body).await.map(|()| Sent::New),
        };
        sent.map_err(|error| CommandError::about(id, error))
    })?;
    let is_known = sent == Sent::Known;
    match global.output {
        Output::Table if is_known => {
            output::say(format_args!(
                "{what} had been sent to {id:?} before under this key: nothing was sent; another value needs \
                 another key"
            ));
        }
        Output::Table => output::say(format_args!("{what} was sent to {id:?}")),
        format => {
            let mut document = json!({ "id": id.as_str(), "sent": word });
            if has_key {
                document["known"] = is_known.into();
            }
            output::document(&document, format)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edit_names_its_step_and_then_its_result() {
        let rows = [
            ("big=1", "big", "1"),
            ("big#2={\"a\":1}", "big#2", "{\"a\":1}"),
            (r#"big="x=1""#, "big", r#""x=1""#),
            ("a=b=1", "a=b", "1"),
            ("big=-", "big", "-"),
            ("big=", "big", ""),
            ("big=nope=", "big", "nope="),
        ];
        for (text, step, json) in rows {
            assert_eq!(edited(text).map_err(|failure| failure.code), Ok((step, json)), "{text}");
        }
    }
}
