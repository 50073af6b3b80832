//! Operations that may have been renamed, or have another key.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Op, OpKind, Uses};

/// An operation that newer code began, while the journal has one of the same kind that the code has
/// not asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unclaimed {
    /// The operation that began.
    pub begun: Op,
    /// The recorded operation, unused so far.
    pub recorded: Op,
}

impl Unclaimed {
    /// Returns the most likely two of a kind, the first of several. `uses` are the names that the
    /// code has used.
    pub fn first(begun: &[Op], recorded: &[Op], uses: &Uses) -> Option<Self> {
        let all = [Change::Key, Change::Name, Change::Both];
        all.into_iter().find_map(|change| {
            begun.iter().find_map(|begun| {
                let is_changed = |recorded: &&Op| Change::of(begun, recorded, uses) == Some(change);
                let recorded = recorded.iter().find(is_changed)?.clone();
                Some(Self { begun: begun.clone(), recorded })
            })
        })
    }

    /// Whether the code has still not asked for the recorded operation.
    pub fn is_left(&self, uses: &Uses) -> bool {
        Change::of(&self.begun, &self.recorded, uses).is_some()
    }
}

/// A change of the code by which an operation leaves its own record unused.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    /// Another key, or none.
    Key,
    /// Another name.
    Name,
    /// Another name, and another key.
    Both,
}

impl Change {
    /// Returns the change that may have led from one operation to the other. Code that asks for a
    /// recorded operation has not changed it, whether it waited for the outcome or gave it up. Code
    /// that still uses its name has not renamed it.
    fn of(begun: &Op, recorded: &Op, uses: &Uses) -> Option<Self> {
        if begun.kind != recorded.kind || uses.has(recorded) {
            return None;
        }
        let is_renamed = !uses.has_name(recorded);
        Self::between(begun, recorded).filter(|change| *change == Self::Key || is_renamed)
    }

    fn between(begun: &Op, recorded: &Op) -> Option<Self> {
        match (begun.name == recorded.name, begun.key == recorded.key) {
            (true, true) => None,
            (true, false) => Some(Self::Key),
            (false, true) => Some(Self::Name),
            (false, false) => Some(Self::Both),
        }
    }
}

impl fmt::Display for Unclaimed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { begun, recorded } = self;
        let word = match begun.kind {
            OpKind::Step | OpKind::Transaction | OpKind::Child => "ran",
            _ => "began",
        };
        write!(f, "{begun} {word} although an entry of {recorded} went unused: ")?;
        let old = recorded.name.as_str();
        match Change::between(begun, recorded) {
            Some(Change::Key) => f.write_str("was its key changed? a recorded operation keeps its key"),
            Some(Change::Both) => write!(f, "renamed? use .renamed_from({old:?}), with the key as it was"),
            Some(Change::Name) | None => write!(f, "renamed? use .renamed_from({old:?})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Name, OpUse};

    fn op(kind: OpKind, name: &str, key: Option<&str>) -> Op {
        let key = key.map(|key| Name::new(key).unwrap());
        Op { kind, name: Name::new(name).unwrap(), key, nth: 1 }
    }

    fn used(ops: &[Op]) -> Uses {
        let mut uses = Uses::default();
        for Op { kind, name, key, .. } in ops {
            uses.next(OpUse { kind: *kind, name, key: key.as_ref(), old_names: &[] }).unwrap();
        }
        uses
    }

    /// The child was started and given up when its result came.
    #[test]
    fn the_result_of_a_child_that_was_started_is_not_renamed() {
        let (a, b) = (op(OpKind::Child, "a", None), op(OpKind::Child, "b", None));
        let results = [a.child_result(), b.child_result()];
        let first = |uses: &Uses| Unclaimed::first(&results[1..], &results[..1], uses);
        assert_eq!(first(&used(&[a, b.clone()])), None);
        assert!(first(&used(&[b])).is_some());
    }

    #[test]
    fn the_step_of_the_same_name_is_the_likely_one() {
        let [a, b, other] = [("pay", Some("a")), ("pay", Some("b")), ("mail", None)]
            .map(|(name, key)| op(OpKind::Step, name, key));
        let uses = used(&[other.clone(), b.clone()]);
        let found = Unclaimed::first(&[other.clone(), b.clone()], std::slice::from_ref(&a), &uses);
        assert_eq!(found, Some(Unclaimed { begun: b, recorded: a.clone() }));
        // The name is still in use with another key, and this operation has neither.
        let found = Unclaimed::first(&[other], &[a], &uses);
        assert_eq!(found, None);
    }
}
