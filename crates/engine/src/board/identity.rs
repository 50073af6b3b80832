//! The identity of an operation outside its run: the input that it is compared by, and its
//! idempotency key.

use abide_core::planted::{Bug, planted};
use abide_core::{Address, ContentHash, Fingerprint, escaped};

use super::{OpenOp, Request};

/// Returns the prefix of every idempotency key of a run. No other run has the same prefix, because
/// the separator is escaped within the parts.
pub fn run_key(address: &Address, run: u32) -> String {
    let Address { namespace, id } = address;
    format!("{}/{}/{run}", escaped(namespace.as_str()), escaped(id.as_str()))
}

impl OpenOp {
    /// Returns the hash of the input that the code declared for this operation, if it is compared.
    pub(crate) fn input_hash(&self) -> Option<ContentHash> {
        match &self.request {
            Request::Step(options) => options.input.as_ref().map(|input| input.hash),
            Request::Child { start, any_input, .. } if !any_input || planted(Bug::AnyInputIgnored) => {
                Some(start.input_hash)
            }
            _ => None,
        }
    }

    /// Returns the fingerprint of the declared input, which people read too.
    pub(crate) fn input(&self) -> Option<Box<Fingerprint>> {
        match &self.request {
            Request::Step(options) => options.input.clone(),
            Request::Child { start, .. } => Some(start.fingerprint().into()),
            _ => None,
        }
    }
}
