//! The identity of an operation in the code: its name, and a key among operations of that name.

use abide_core::{InvalidName, Name, OpKind};
use abide_engine::Site;
use serde::Serialize;

use crate::canonical;
use crate::code::Code;
use crate::recent;

/// The name that the code uses for an operation. Opening the operation reports an invalid one.
#[derive(Clone)]
pub(crate) struct OpName {
    pub(crate) name: Result<(Name, Option<Name>), NoName>,
    /// The earlier names of the operation.
    pub(crate) old_names: Vec<Name>,
    /// The place of the call.
    pub(crate) site: Site,
}

/// The reason why an operation cannot be opened under its name.
#[derive(Clone)]
pub(crate) enum NoName {
    Name(InvalidName),
    /// Its key or its input cannot be written.
    Value {
        name: Name,
        reason: String,
    },
}

impl NoName {
    /// Explains the reason, for an operation of this kind.
    pub(crate) fn told(&self, kind: OpKind) -> String {
        match self {
            Self::Name(invalid) => invalid.clone().of_field(field(kind)).to_string(),
            Self::Value { name, reason } => format!("{} {name:?}: {reason}", kind.word()),
        }
    }
}

impl OpName {
    #[track_caller]
    pub(crate) fn new(name: impl AsRef<str>) -> Self {
        let name = recent::name("name", name.as_ref()).map(|name| (name, None)).map_err(NoName::Name);
        Self { name, old_names: Vec::new(), site: Site::caller() }
    }

    /// Returns the name of a child's operation: the name of its workflow or task, with the earlier
    /// names of that.
    #[track_caller]
    pub(crate) fn of_code<C: Code>() -> Self {
        let mut name = Self::new(C::NAME);
        C::RENAMED_FROM.iter().for_each(|old| name.rename_from(old));
        name
    }

    /// Adds an earlier name of the same operation.
    pub(crate) fn rename_from(&mut self, old: impl AsRef<str>) {
        match Name::new(old) {
            Ok(old) => self.old_names.push(old),
            Err(invalid) => self.name = Err(NoName::Name(invalid)),
        }
    }

    /// Changes the name of the operation and keeps its key.
    pub(crate) fn rename(&mut self, name: impl AsRef<str>) {
        let Self { name: renamed, .. } = Self::new(name);
        self.name = match (renamed, self.name.clone()) {
            (Ok((name, _)), Ok((_, key))) => Ok((name, key)),
            (Err(no_name), _) | (_, Err(no_name)) => Err(no_name),
        };
    }

    pub(crate) fn set_key<K: Serialize + ?Sized>(&mut self, key: &K) {
        if let Ok((name, _)) = &self.name {
            let name = name.clone();
            self.name = match canonical::key(key) {
                Ok(key) => Ok((name, Some(key))),
                Err(reason) => Err(NoName::Value { name, reason }),
            };
        }
    }

    /// Reports an input that cannot be written when the operation is opened.
    pub(crate) fn refuse_input(&mut self, error: &serde_json::Error) {
        if let Ok((name, _)) = &self.name {
            let reason = format!("its input does not serialize: {error}");
            self.name = Err(NoName::Value { name: name.clone(), reason });
        }
    }
}

/// The builder methods of every operation that has a name.
macro_rules! op_options {
    () => {
        /// Distinguishes this operation from others of its name, for example in a loop: by the id
        /// of the order that it is for. Operations of one name without a key are counted, so an
        /// operation that new code inserts shifts the ones behind it. Keys of different types are
        /// different keys: `"7"` is not `7`.
        pub fn key<K: serde::Serialize + ?Sized>(mut self, key: &K) -> Self {
            self.name.set_key(key);
            self
        }

        /// The earlier name of this operation. Executions that are under way continue with their
        /// records under the old name if the new name has none: the same kind, key and number. May
        /// be repeated, for several old names.
        ///
        /// Rename every use of a name together: an old name that is still in use, or that two
        /// operations claim, blocks the execution. The operation's own name changes nothing.
        ///
        /// An older build does not know the new name. If it takes over an execution that recorded
        /// it, in a rolling deploy or after a rollback, it runs the operation again under the old
        /// one.
        pub fn renamed_from(mut self, old: &str) -> Self {
            self.name.rename_from(old);
            self
        }
    };
}
pub(crate) use op_options;

/// Returns the term for an operation's name in error messages.
fn field(kind: OpKind) -> &'static str {
    match kind {
        OpKind::Step => "step name",
        OpKind::Transaction => "transaction name",
        OpKind::Timer => "timer name",
        OpKind::Signal => "signal name",
        OpKind::Child | OpKind::ChildResult => "workflow name",
        _ => "name",
    }
}
