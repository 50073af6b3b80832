//! What can be sent to an execution: signals and orders. Each is durable when the command ends; a worker applies it.

use std::io::Read;

use abide_core::{Body, By, ExecutionId, Payload};
use serde::de::IgnoredAny;
use serde_json::json;

use crate::args::{Because, Global, Output, Plain, Signal};
use crate::connect;
use crate::failure::Failure;
use crate::output;

/// `abide signal`.
pub(crate) fn signal(global: &Global, args: &Signal) -> Result<(), Failure> {
    let value = match args.value.as_str() {
        "-" => from_stdin()?,
        text => text.to_owned(),
    };
    // Checked and sent as it was written: read into a value, large numbers would lose digits.
    let _: IgnoredAny = serde_json::from_str(&value).map_err(|error| {
        Failure::usage(format!("the value of signal {:?} is no JSON: {error}", args.name))
    })?;
    let payload = Payload::from(value.trim());
    send(global, &args.id, Body::Signal { name: args.name.clone(), payload })
}

/// `abide cancel`.
pub(crate) fn cancel(global: &Global, args: &Because) -> Result<(), Failure> {
    send(global, &args.plain.id, Body::Cancel { by: by(&args.plain), reason: args.reason.clone() })
}

/// `abide terminate`.
pub(crate) fn terminate(global: &Global, args: &Because) -> Result<(), Failure> {
    send(global, &args.plain.id, Body::Terminate { by: by(&args.plain), reason: args.reason.clone() })
}

/// `abide pause`.
pub(crate) fn pause(global: &Global, args: &Because) -> Result<(), Failure> {
    send(global, &args.plain.id, Body::Pause { by: by(&args.plain), reason: args.reason.clone() })
}

/// `abide resume`.
pub(crate) fn resume(global: &Global, args: &Plain) -> Result<(), Failure> {
    send(global, &args.id, Body::Resume { by: by(args) })
}

/// `abide unblock`.
pub(crate) fn unblock(global: &Global, args: &Plain) -> Result<(), Failure> {
    send(global, &args.id, Body::Unblock { by: by(args) })
}

fn by(args: &Plain) -> By {
    By(if args.by.is_empty() { "cli".to_owned() } else { args.by.clone() })
}

fn from_stdin() -> Result<String, Failure> {
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(|error| Failure::failed(format!("stdin cannot be read: {error}")))?;
    Ok(text)
}

fn send(global: &Global, id: &ExecutionId, body: Body) -> Result<(), Failure> {
    let what = match &body {
        Body::Signal { name, .. } => format!("signal {:?}", name.as_str()),
        other => other.word().to_owned(),
    };
    let word = body.word();
    connect::client(global, async |client| {
        client.send(id, body).await.map_err(|error| Failure::about(id, error))
    })?;
    match global.output {
        Output::Table => output::say(format_args!("{what} was sent to {id:?}")),
        format => output::document(&json!({ "id": id.as_str(), "sent": word }), format)?,
    }
    Ok(())
}
