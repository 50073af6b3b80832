//! `abide why`: one sentence.

use abide_core::{Address, Status};
use serde_json::json;

use crate::args::{Global, Id, Output};
use crate::clock;
use crate::command_error::CommandError;
use crate::connect;
use crate::output;

/// Says why an execution is in its current state.
pub(crate) fn run(global: &Global, args: &Id) -> Result<(), CommandError> {
    let address = Address { namespace: global.namespace.clone(), id: args.id.clone() };
    let explain = async |store: std::sync::Arc<dyn abide_store::Store>| -> Result<_, CommandError> {
        Ok(abide_engine::why::explain(&*store, &address, clock::now()).await?)
    };
    let (status, sentence) = connect::read(global, explain)?;
    match global.output {
        Output::Table => output::line(&sentence),
        format => {
            let document =
                json!({ "id": args.id.as_str(), "status": status.map(Status::word), "why": sentence });
            output::document(&document, format)
        }
    }
}
