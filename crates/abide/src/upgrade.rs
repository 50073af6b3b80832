//! Recorded results of a type that the code no longer has.

use std::any::type_name;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use abide_core::planted::{Bug, planted};
use abide_core::{Block, Payload};
use abide_engine::panics;
use serde::de::DeserializeOwned;

use crate::code::Recorded;
use crate::data;
use crate::error::Result;

/// The reader of a result that was recorded as another type. The journal stays as it is.
pub(crate) struct Upgrade<T>(Option<Arc<Convert<T>>>);

/// Reads a payload as the old type and converts it, or returns the problem.
type Convert<T> = dyn Fn(&Payload) -> std::result::Result<T, String> + Send + Sync;

/// The builder method of every operation whose recorded value can be of an older type. Its
/// documentation and the type of today come from the operation.
macro_rules! upgrade_option {
    ($(#[$document:meta])+ $value:ty) => {
        $(#[$document])+
        pub fn upgrade<V: serde::de::DeserializeOwned>(
            mut self,
            convert: impl Fn(V) -> crate::error::Result<$value> + Send + Sync + 'static,
        ) -> Self {
            self.upgrade = crate::upgrade::Upgrade::from(convert);
            self
        }
    };
}
pub(crate) use upgrade_option;

impl<T> Clone for Upgrade<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for Upgrade<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Upgrade<T> {
    /// Converts from an old type.
    pub(crate) fn from<V: DeserializeOwned>(
        convert: impl Fn(V) -> Result<T> + Send + Sync + 'static,
    ) -> Self {
        Self(Some(Arc::new(move |payload| {
            let old = data::decode::<V>(payload)
                .map_err(|error| format!("and no {} to upgrade: {error}", type_name::<V>()))?;
            match catch_unwind(AssertUnwindSafe(|| convert(old))) {
                Ok(converted) => converted.map_err(|error| format!("the upgrade failed: {error}")),
                Err(panic) => Err(format!("the upgrade failed: {}", panics::failure(panic))),
            }
        })))
    }
}

impl<T: Recorded> Upgrade<T> {
    /// Returns the value in a recorded payload. The old type is tried only if the new one fails: a
    /// value of the new type that looks like an old one is not converted a second time.
    pub(crate) fn read(&self, what: impl Display, payload: &Payload) -> std::result::Result<T, Block> {
        self.try_read(payload).map_err(|complaint| Block::Undecodable {
            what: what.to_string(),
            expected: type_name::<T>().to_owned(),
            found: format!("{} ({complaint})", payload.excerpt()),
        })
    }

    /// Does the same, or returns the problem with the payload.
    pub(crate) fn try_read(&self, payload: &Payload) -> std::result::Result<T, String> {
        if planted(Bug::UpgradeFirst)
            && let Some(Ok(value)) = self.0.as_ref().map(|convert| convert(payload))
        {
            return Ok(value);
        }
        let error = match T::from_payload(payload) {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        match &self.0 {
            None => Err(error.to_string()),
            Some(convert) => convert(payload).map_err(|complaint| format!("{error}; {complaint}")),
        }
    }
}
