//! Durable operations, and how a replay recognizes them.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

use serde::{Deserialize, Serialize};

use crate::Name;
use crate::hash::Hash;
use crate::hashes::Hashes;
use crate::planted::{Bug, planted};
use crate::text::{self, Digits};

/// The sort of a durable operation. The numbers are written to disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OpKind {
    /// A user's closure whose result is recorded.
    Step,
    /// A user's closure whose database writes and result commit together.
    Transaction,
    /// A sleep.
    Timer,
    /// The receipt of a signal.
    Signal,
    /// The start of a child.
    Child,
    /// The result of a child that was started by the [`OpKind::Child`] of the same name and number.
    ChildResult,
    /// A one-shot value that somebody outside resolves.
    Promise,
    /// A whole task.
    Task,
    /// A request from outside that receives an answer.
    Accept,
    /// A value that can be read from outside.
    Publish,
    /// An operation that only the driver of the execution understands.
    Foreign,
    /// The answer to whether this run takes a change of the code.
    Patch,
}

impl OpKind {
    /// Returns the word for this kind in messages.
    pub fn word(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Transaction => "transaction",
            Self::Timer => "timer",
            Self::Signal => "signal",
            Self::Child => "child",
            Self::ChildResult => "result of child",
            Self::Promise => "promise",
            Self::Task => "task",
            Self::Accept => "request",
            Self::Publish => "published value",
            Self::Foreign => "foreign operation",
            Self::Patch => "patch",
        }
    }
}

/// The identity of an operation within a run: its kind, its name, the key from the code, and a
/// number that counts the uses of these three.
///
/// Names rather than positions: inserting or reordering other operations in new code does not break
/// executions that are under way. Keys for operations that share a name: an operation that new code
/// inserts does not shift the others.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Op {
    /// The sort of operation.
    pub kind: OpKind,
    /// Its name.
    pub name: Name,
    /// The key that distinguishes it from others of its name, if the code sets one.
    pub key: Option<Name>,
    /// The number of this use of the name and key, from 1.
    pub nth: u32,
}

impl Op {
    /// Returns the number that stands for this operation in the replay index.
    pub fn index(&self) -> OpIndex {
        self.index_as(self.kind)
    }

    /// Returns that number of the same operation of another kind.
    pub fn index_as(&self, kind: OpKind) -> OpIndex {
        let mut hash = Hash::new().with(&[kind as u8]).with(self.name.as_str().as_bytes());
        if let Some(key) = &self.key {
            // No name has a byte of zero.
            hash = hash.with(&[0]).with(key.as_str().as_bytes()).with(&[0]);
        }
        OpIndex(hash.with(&self.nth.to_le_bytes()).finish())
    }

    /// Returns the shortest form in which people write this operation: its name, its key in
    /// brackets, and its number unless that is 1.
    pub fn label(&self) -> String {
        let Self { name, nth, .. } = self;
        let key = self.key.as_ref().map(|key| format!("[{key}]")).unwrap_or_default();
        if *nth > 1 { format!("{name}{key}#{nth}") } else { format!("{name}{key}") }
    }

    /// Returns the part of a composed id, or of a key for other services, that names this operation
    /// within its run. Two operations of one kind never share it: separators inside the parts are
    /// escaped.
    pub fn path(&self) -> String {
        self.path_behind([""; 4], str::to_owned)
    }

    /// Passes on these texts with the [path](Self::path) behind them.
    pub(crate) fn path_behind<T>(&self, [a, b, c, d]: [&str; 4], take: impl FnOnce(&str) -> T) -> T {
        let (name, key) = (escaped(self.name.as_str()), self.key.as_ref().map(|key| escaped(key.as_str())));
        let (mark, key) = key.as_deref().map_or(("", ""), |key| ("=", key));
        text::joined(&[a, b, c, d, &name, mark, key, "/", Digits::of(self.nth).as_str()], take)
    }

    /// Whether people may mean this operation when they write `text`. They may write its name with
    /// its key, alone if its number is 1 or with the number as in `name#2`. They may also write the
    /// displayed form, as in `name #2`, `"name" #2` and `step "name" #2`.
    pub fn is_called(&self, text: &str) -> bool {
        let Self { kind, nth, .. } = self;
        let shown = self.to_string();
        let without_kind = shown.strip_prefix(kind.word()).map(str::trim_start);
        let first = Self { nth: 1, ..self.clone() }.label();
        let numbered = |between: &str| text == format!("{first}{between}#{nth}");
        (*nth == 1 && text == first)
            || numbered("")
            || numbered(" ")
            || text == shown
            || Some(text) == without_kind
    }

    /// Returns the same operation under another name.
    pub fn under(&self, name: &Name) -> Self {
        Self { name: name.clone(), ..self.clone() }
    }

    /// Returns the operation that awaits the result of this child.
    pub fn child_result(&self) -> Self {
        Self { kind: OpKind::ChildResult, ..self.clone() }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.kind.word(), self.name.as_str())?;
        self.key.iter().try_for_each(|key| write!(f, " [{key}]"))?;
        if self.nth > 1 { write!(f, " #{}", self.nth) } else { Ok(()) }
    }
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Returns the text with every separator of a path escaped.
pub fn escaped(text: &str) -> std::borrow::Cow<'_, str> {
    if !text.contains(['%', '/', '=']) || planted(Bug::KeysAmbiguous) {
        return text.into();
    }
    text.replace('%', "%25").replace('/', "%2F").replace('=', "%3D").into()
}

/// A 64-bit stand-in for an [`Op`]. Somebody who chooses names or keys can make two of them equal,
/// so an operation that is found by it is compared by name before it gets an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpIndex(pub(crate) u64);

/// A workflow's name for one operation, before it is counted.
#[derive(Clone, Copy, Debug)]
pub struct OpUse<'a> {
    /// The sort of operation.
    pub kind: OpKind,
    /// Its name.
    pub name: &'a Name,
    /// The key that distinguishes it from others of its name.
    pub key: Option<&'a Name>,
    /// The names that it had before.
    pub old_names: &'a [Name],
}

/// Counts the uses of each name in one run.
///
/// A run may use a million names, so a name that was used once costs one hash and nothing else.
#[derive(Debug, Default)]
pub struct Uses {
    once: Hashes,
    more: HashMap<u64, u32, KeyHasher>,
    /// The kinds that the run has used, as bits: no name can be taken for an unused kind.
    kinds: u32,
    /// Old names, and the names that they became.
    old: HashMap<u64, Name, KeyHasher>,
    /// The expected number of names.
    expected: usize,
}

impl Uses {
    /// Creates the uses of a run whose journal has this many entries. A large set that grows by
    /// doubling would move its elements again and again, and leave behind as much memory as it
    /// takes.
    pub fn expecting(entry_count: u64) -> Self {
        Self { expected: usize::try_from(entry_count).unwrap_or(usize::MAX), ..Self::default() }
    }

    /// Returns the identity of the next use of a name, or the operation that has the name already.
    pub fn next(&mut self, wanted: OpUse<'_>) -> Result<Op, NameClash> {
        let name_hash = crate::hash::of(wanted.name.as_str().as_bytes());
        self.check_kind(wanted, name_hash)?;
        self.rename(wanted, name_hash)?;
        self.kinds |= 1 << wanted.kind as u8;
        self.make_room();
        let mut use_key = use_key(wanted.kind, name_hash);
        if let Some(key) = wanted.key.filter(|_| !planted(Bug::KeyIgnored)) {
            // Its name is taken for its kind, but that does not count as a use without a key.
            self.once.insert(use_key ^ KEYED);
            use_key = keyed(use_key, key);
        }
        let nth = self.count(use_key);
        Ok(Op { kind: wanted.kind, name: wanted.name.clone(), key: wanted.key.cloned(), nth })
    }

    /// Checks and keeps old names. An old name belongs to one operation. If two operations could
    /// take the record under it, one would receive the result of the other, or run again. Every run
    /// checks this, so the first test of such code finds the clash.
    fn rename(&mut self, wanted: OpUse<'_>, name_hash: u64) -> Result<(), NameClash> {
        if self.old.is_empty() && wanted.old_names.is_empty() {
            return Ok(());
        }
        let OpUse { kind, name, .. } = wanted;
        let renamed = |old: &Name, new: &Name, other: &Name| {
            let (old, new, other) = (old.clone(), new.clone(), other.clone());
            NameClash::Renamed { kind, old, new, other }
        };
        if let Some(new) = self.old.get(&use_key(kind, name_hash)) {
            return Err(renamed(name, new, name));
        }
        for old in wanted.old_names.iter().filter(|old| *old != name) {
            let old_key = use_key(kind, crate::hash::of(old.as_str().as_bytes()));
            if self.once.contains(old_key) || self.once.contains(old_key ^ KEYED) {
                return Err(renamed(old, name, old));
            }
            let new = self.old.entry(old_key).or_insert_with(|| name.clone());
            if new != name {
                return Err(renamed(old, new, name));
            }
        }
        Ok(())
    }

    /// Whether the name of this operation was used for its kind, with any key.
    pub fn has_name(&self, op: &Op) -> bool {
        let use_key = asked(op);
        self.once.contains(use_key) || self.once.contains(use_key ^ KEYED)
    }

    /// Whether the name of this operation was used for its kind with its key, any number of times.
    /// Old names count as used.
    pub fn has(&self, op: &Op) -> bool {
        self.count_of(op) > 0
    }

    /// Whether the code has asked for this operation, by its name or as an old one.
    pub fn has_asked_for(&self, op: &Op) -> bool {
        self.count_of(op) >= op.nth
    }

    fn count_of(&self, op: &Op) -> u32 {
        let new = self.old.get(&asked(op)).filter(|_| !planted(Bug::OldNameUnused));
        let new = new.map(|new| op.under(new));
        let use_key = asked(new.as_ref().unwrap_or(op));
        let use_key = op.key.as_ref().map_or(use_key, |key| keyed(use_key, key));
        match self.more.get(&use_key) {
            Some(count) => *count,
            None => u32::from(self.once.contains(use_key)),
        }
    }

    fn count(&mut self, use_key: u64) -> u32 {
        if self.once.insert(use_key) {
            return 1;
        }
        let count = self.more.entry(use_key).or_insert(1);
        *count += 1;
        *count
    }

    /// Makes room for all names at once, as soon as it is clear that a run uses many of them.
    fn make_room(&mut self) {
        const MANY: usize = 2_000;
        if self.once.len() == self.once.capacity() && self.once.len() >= MANY {
            self.once.reserve(self.expected.saturating_sub(self.once.len()));
        }
    }

    /// Checks that a name belongs to one kind of operation. Children are exempt: they are named
    /// after their workflow, which does not know the steps of its parents.
    fn check_kind(&self, wanted: OpUse<'_>, name_hash: u64) -> Result<(), NameClash> {
        const NAMED: [OpKind; 7] = [
            OpKind::Step,
            OpKind::Transaction,
            OpKind::Timer,
            OpKind::Signal,
            OpKind::Promise,
            OpKind::Accept,
            OpKind::Publish,
        ];
        let others = self.kinds & !(1 << wanted.kind as u8);
        if others == 0 || !NAMED.contains(&wanted.kind) {
            return Ok(());
        }
        let taken = |kind: &OpKind| {
            let is_used = others & (1 << *kind as u8) != 0;
            let use_key = use_key(*kind, name_hash);
            is_used && (self.once.contains(use_key) || self.once.contains(use_key ^ KEYED))
        };
        match NAMED.into_iter().find(taken) {
            None => Ok(()),
            Some(first) => Err(NameClash::Kinds { name: wanted.name.clone(), first, second: wanted.kind }),
        }
    }
}

/// Distinguishes the mark of a name that was used with keys from its use without one.
const KEYED: u64 = 0x5bd1_e995_9e37_79b9;

/// Returns the key of the use that asks for this operation. The result of a child has none of its
/// own: the start of the child does.
fn asked(op: &Op) -> u64 {
    let kind = if op.kind == OpKind::ChildResult { OpKind::Child } else { op.kind };
    use_key(kind, crate::hash::of(op.name.as_str().as_bytes()))
}

/// Returns the key of a use of the name with this key.
fn keyed(use_key: u64, key: &Name) -> u64 {
    Hash::new().with(&use_key.to_le_bytes()).with(key.as_str().as_bytes()).finish()
}

/// Returns a key that is only kept in memory, so it may change.
fn use_key(kind: OpKind, name_hash: u64) -> u64 {
    name_hash ^ (kind as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// One name for two operations that cannot share it. The order of the variants is written to disk:
/// new ones go last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NameClash {
    /// It is used for two kinds of operation.
    Kinds {
        /// The name.
        name: Name,
        /// The kind that used it first.
        first: OpKind,
        /// The kind that wants it too.
        second: OpKind,
    },
    /// It is the old name of one operation, and the name, or an old name, of another one.
    Renamed {
        /// The kind of both.
        kind: OpKind,
        /// The old name.
        old: Name,
        /// The name of the operation that was renamed from it.
        new: Name,
        /// The name of the other operation; it may be the old name itself.
        other: Name,
    },
}

impl fmt::Display for NameClash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kinds { name, first, second } => {
                write!(f, "the name {name:?} is used for a {} and for a {}", first.word(), second.word())
            }
            Self::Renamed { kind, old, new, other } if old == other => {
                let word = kind.word();
                write!(f, "the name {old:?} is used for a {word}, and {word} {new:?} is renamed from it")
            }
            Self::Renamed { kind, old, new, other } => {
                let word = kind.word();
                write!(f, "both {word} {new:?} and {word} {other:?} are renamed from {old:?}")
            }
        }
    }
}

/// A hasher for numbers that no outsider chooses: hashes, or dense numbers. One multiplication
/// spreads them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spread(u64);

/// Builds [`Spread`] hashers.
pub type KeyHasher = BuildHasherDefault<Spread>;

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only numbers are hashed");
    }
    fn write_u64(&mut self, key: u64) {
        self.0 = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    fn write_i64(&mut self, key: i64) {
        self.write_u64(key as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(uses: &mut Uses, kind: OpKind, name: &str) -> String {
        let name = Name::new(name).expect("a name");
        let wanted = OpUse { kind, name: &name, key: None, old_names: &[] };
        uses.next(wanted).map_or_else(|clash| clash.to_string(), |op| op.to_string())
    }

    fn keyed(uses: &mut Uses, name: &str, key: &str) -> String {
        let (name, key) = (Name::new(name).expect("a name"), Name::new(key).expect("a key"));
        let wanted = OpUse { kind: OpKind::Step, name: &name, key: Some(&key), old_names: &[] };
        uses.next(wanted).expect("no clash").to_string()
    }

    #[test]
    fn operations_with_keys_are_counted_by_their_keys() {
        let mut uses = Uses::default();
        assert_eq!(keyed(&mut uses, "pay", "ann"), r#"step "pay" [ann]"#);
        assert_eq!(keyed(&mut uses, "pay", "bob"), r#"step "pay" [bob]"#);
        assert_eq!(keyed(&mut uses, "pay", "ann"), r#"step "pay" [ann] #2"#);
        // Neither use shifts the other.
        assert_eq!(used(&mut uses, OpKind::Step, "pay"), r#"step "pay""#);
        let clash = r#"the name "pay" is used for a step and for a timer"#;
        assert_eq!(used(&mut uses, OpKind::Timer, "pay"), clash);
        let mut uses = Uses::default();
        keyed(&mut uses, "pay", "ann");
        assert_eq!(used(&mut uses, OpKind::Timer, "pay"), clash);
    }

    #[test]
    fn an_old_name_belongs_to_one_operation() {
        let name = |text: &str| Name::new(text).expect("a name");
        let renamed = |uses: &mut Uses, new: &str, old: &str| {
            let (name, olds) = (name(new), [name(old)]);
            let wanted = OpUse { kind: OpKind::Step, name: &name, key: None, old_names: &olds };
            uses.next(wanted).map_or_else(|clash| clash.to_string(), |op| op.to_string())
        };
        let mut uses = Uses::default();
        assert_eq!(renamed(&mut uses, "charge", "pay"), r#"step "charge""#);
        assert_eq!(renamed(&mut uses, "charge", "pay"), r#"step "charge" #2"#);
        let both = r#"both step "charge" and step "settle" are renamed from "pay""#;
        assert_eq!(renamed(&mut uses, "settle", "pay"), both);
        let used = r#"the name "pay" is used for a step, and step "charge" is renamed from it"#;
        assert_eq!(used_by(&mut uses, "pay"), used);
        let mut uses = Uses::default();
        assert_eq!(used_by(&mut uses, "pay"), r#"step "pay""#);
        assert_eq!(renamed(&mut uses, "charge", "pay"), used);
        // Another kind has its own names. Code may also declare a name as its own old name.
        assert_eq!(renamed(&mut uses, "pay", "pay"), r#"step "pay" #2"#);
        assert_eq!(self::used(&mut uses, OpKind::Child, "pay"), r#"child "pay""#);
    }

    fn used_by(uses: &mut Uses, name: &str) -> String {
        used(uses, OpKind::Step, name)
    }

    #[test]
    fn no_two_operations_have_the_same_path() {
        let op = |name: &str, key: Option<&str>, nth| {
            let text = |text: &str| Name::new(text).expect("a name");
            Op { kind: OpKind::Step, name: text(name), key: key.map(text), nth }
        };
        let ops = [
            (op("a", None, 1), "a/1"),
            (op("a", None, 2), "a/2"),
            (op("a/1", None, 2), "a%2F1/2"),
            (op("a%2F1", None, 2), "a%252F1/2"),
            (op("a", Some("1"), 2), "a=1/2"),
            (op("a=1", None, 2), "a%3D1/2"),
            (op("a", Some("b/1"), 1), "a=b%2F1/1"),
        ];
        for (op, path) in ops {
            assert_eq!(op.path(), path);
        }
    }

    #[test]
    fn uses_are_counted_by_kind_and_name() {
        let mut uses = Uses::default();
        let rows = [
            (OpKind::Step, "a", r#"step "a""#),
            (OpKind::Step, "a", r#"step "a" #2"#),
            (OpKind::Step, "b", r#"step "b""#),
            (OpKind::Step, "a", r#"step "a" #3"#),
            (OpKind::Child, "a", r#"child "a""#),
            (OpKind::Timer, "a", r#"the name "a" is used for a step and for a timer"#),
            (OpKind::Publish, "p", r#"published value "p""#),
            (OpKind::Accept, "p", r#"the name "p" is used for a published value and for a request"#),
            (OpKind::Publish, "b", r#"the name "b" is used for a step and for a published value"#),
            (OpKind::Foreign, "p", r#"foreign operation "p""#),
        ];
        for (kind, name, expected) in rows {
            assert_eq!(used(&mut uses, kind, name), expected);
        }
    }

    #[test]
    fn an_operation_is_known_by_everything_that_is_shown_of_it() {
        let named = |name: &str| Name::new(name).expect("a name");
        let op = |name: &str, nth| Op { kind: OpKind::Step, name: named(name), key: None, nth };
        let keyed = |nth| Op { key: Some(named("ann")), ..op("pay", nth) };
        let rows = [
            (op("big", 1), vec!["big", "big#1", "big #1", r#""big""#, r#"step "big""#]),
            (op("big", 2), vec!["big#2", "big #2", r#""big" #2"#, r#"step "big" #2"#]),
            // A name may look like the number of another one; only one of the two blocks the
            // execution.
            (op("big#2", 1), vec!["big#2", r#"step "big#2""#]),
            (keyed(1), vec!["pay[ann]", "pay[ann]#1", r#""pay" [ann]"#, r#"step "pay" [ann]"#]),
            (keyed(2), vec!["pay[ann]#2", "pay[ann] #2", r#"step "pay" [ann] #2"#]),
            (op("a \"b\" c", 1), vec!["a \"b\" c", r#"step "a \"b\" c""#]),
        ];
        for (op, texts) in rows {
            assert!(op.is_called(&op.label()), "{op}");
            for text in texts {
                assert!(op.is_called(text), "{op} is called {text}");
            }
        }
        for text in ["", "big", "bi", "big#1", "big#3", "big#02", "2", "#2", r#"transaction "big" #2"#] {
            assert!(!op("big", 2).is_called(text), "{text}");
        }
    }

    /// A journal has at most ten million entries. A wrong expectation costs nothing until a run
    /// uses many names.
    #[test]
    fn uses_make_room_only_for_many_names() {
        let mut uses = Uses::expecting(1_000_000);
        used(&mut uses, OpKind::Step, "a");
        assert!(uses.once.capacity() < 100);
        for n in 0..10_000 {
            assert_eq!(used(&mut uses, OpKind::Step, &format!("step-{n}")), format!(r#"step "step-{n}""#));
        }
        assert!(uses.once.capacity() >= 1_000_000);
    }
}
