//! Panics of user code, as failures.

use std::any::Any;

use abide_core::{Failure, FailureKind};

/// Returns the failure that stands for a caught panic.
pub fn failure(panic: &(dyn Any + Send)) -> Failure {
    let message = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned());
    let mut failure = Failure::new(FailureKind::Panic, message);
    failure.type_name = "panic".to_owned();
    failure
}
