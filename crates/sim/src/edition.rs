//! Editions: the program of the next deploy. The input of a workflow stays; the code that runs it
//! has changed.

use serde::{Deserialize, Serialize};

use crate::program::{Code, Expr, Program, Step, Transact, Way, Work, keyed, old_names};

/// A build of the program: the changes that it makes to every workflow. The first, number 0,
/// changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edition {
    /// The changes, applied one after the other.
    pub changes: Vec<Change>,
}

/// One change, at a place in a program. The index wraps around.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The place.
    pub at: usize,
    /// The kind of change.
    pub what: Alter,
}

/// A kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Alter {
    /// Adds a step under a new name.
    Add,
    /// Adds a step under a name that others may have: they are numbered differently from there on.
    AddAlike,
    /// Removes an operation.
    Remove,
    /// Swaps two operations.
    Swap,
    /// Renames a step.
    Rename,
    /// Renames all operations of one kind and name, and declares it.
    RenameAll,
    /// Adds a step for executions that have not reached this place.
    Patch,
    /// Changes the result type of a step, and converts recorded results.
    Upgrade,
    /// Makes a step a transaction, or the other way round.
    Retype,
    /// Changes the declared input of a step.
    Redeclare,
    /// Changes the input of a child.
    Reask,
    /// Changes the result type of a step, for writing and reading, or the type of an awaited
    /// signal.
    Reread,
    /// Takes a branch differently, or runs concurrent operations one after the other.
    Reshape,
}

/// Nodes of steps that editions add begin here.
const ADDED_NODES: u32 = 1_000_000;
/// The offset of the node of a step with another input.
const REDECLARED_NODES: u32 = 500_000;
/// The difference of the input of a child with another input.
const REASKED: u64 = 1_000;

impl Edition {
    /// Returns the program as this edition runs it. Children and the next run have inputs of their
    /// own, and change when they run.
    pub fn of(&self, program: &Program) -> Program {
        let mut program = program.clone();
        for (number, change) in (0..).zip(&self.changes) {
            let places = place_count(&program.body);
            if change.what == Alter::RenameAll && places > 0 {
                rename_all(&mut program, change.at % places);
            } else if places > 0 {
                alter(&mut program.body, &mut (change.at % places), &|parts, index| {
                    change.what.happen(parts, index, ADDED_NODES + number);
                });
            }
        }
        program
    }
}

impl Alter {
    /// Returns its name in tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::AddAlike => "add alike",
            Self::Remove => "remove",
            Self::Swap => "swap",
            Self::Rename => "rename",
            Self::RenameAll => "rename all",
            Self::Patch => "patch",
            Self::Upgrade => "upgrade",
            Self::Retype => "retype",
            Self::Redeclare => "redeclare",
            Self::Reask => "reask",
            Self::Reread => "reread",
            Self::Reshape => "reshape",
        }
    }

    fn happen(self, parts: &mut Vec<Expr>, index: usize, node: u32) {
        match self {
            Self::Add => parts.insert(index, added(node, format!("x{node}"))),
            Self::AddAlike => parts.insert(index, added(node, "s0".to_owned())),
            Self::Remove => drop(parts.remove(index)),
            Self::Swap => {
                let other = (index + 1) % parts.len();
                parts.swap(index, other);
            }
            Self::Rename => {
                if let Expr::Step(step) | Expr::Blocking(step) = &mut parts[index] {
                    // Insert before its key, if it has one.
                    let end = keyed(&step.name).0.len();
                    step.name.insert(end, 'n');
                }
            }
            Self::Retype => retype(&mut parts[index]),
            Self::Redeclare => {
                if let Expr::Step(step) | Expr::Blocking(step) = &mut parts[index] {
                    step.has_input = true;
                    step.node += REDECLARED_NODES;
                }
            }
            Self::Reask => {
                if let Expr::Run(child) | Expr::Start { child, .. } = &mut parts[index] {
                    reask(&mut child.code);
                }
            }
            Self::Patch => {
                let (change, body) = (format!("p{node}"), Box::new(added(node, format!("x{node}"))));
                parts.insert(index, Expr::Patched { change, body });
            }
            // The whole program changes, not this place alone.
            Self::RenameAll => {}
            Self::Reread | Self::Upgrade => {
                // The result that an operator supplies for an unwritable step is a number.
                if let Expr::Step(step) | Expr::Blocking(step) = &mut parts[index]
                    && step.work.way != Way::Unwritable
                {
                    step.is_text = !step.is_text;
                    step.upgrades |= self == Self::Upgrade;
                }
                if let Expr::Receive { is_text, .. } = &mut parts[index] {
                    *is_text = !*is_text;
                }
            }
            Self::Reshape => reshape(&mut parts[index]),
        }
    }
}

fn added(node: u32, name: String) -> Expr {
    let work = Work { value: u64::from(node), delay_ms: 0, failure_count: 0, way: Way::Error };
    Expr::Step(Step {
        node,
        name,
        work,
        retry: None,
        timeout_ms: None,
        has_input: false,
        is_text: false,
        upgrades: false,
        is_asked: false,
    })
}

/// Renames every operation that has the kind and name of the one at this place.
fn rename_all(program: &mut Program, mut at: usize) {
    let found = std::cell::Cell::new(None);
    let look = |parts: &mut Vec<Expr>, index: usize| {
        found.set(name_of(&mut parts[index]).map(|(kind, name)| (kind, keyed(name).0.to_owned())));
    };
    alter(&mut program.body, &mut at, &look);
    let Some((kind, name)) = found.take() else { return };
    let mut rename = |expr: &mut Expr| {
        let Some((_, written)) =
            name_of(expr).filter(|(of, written)| *of == kind && keyed(written).0 == name)
        else {
            return;
        };
        let key = keyed(written).1.map(|key| format!("[{key}]")).unwrap_or_default();
        let olds = [vec![name.as_str()], old_names(written)].concat().join("<");
        *written = format!("{name}n<{olds}{key}");
    };
    each_mut(&mut program.body, &mut rename);
    if let Some(held) = &mut program.held {
        each_mut(held, &mut rename);
    }
}

/// Returns the kind of an operation, and its name if it has one of its own.
fn name_of(expr: &mut Expr) -> Option<(&'static str, &mut String)> {
    match expr {
        Expr::Step(step) | Expr::Blocking(step) => Some(("step", &mut step.name)),
        Expr::Transact(transact) => Some(("transaction", &mut transact.name)),
        Expr::Sleep { name: Some(name), .. } => Some(("timer", name)),
        Expr::Receive { name, .. } => Some(("signal", name)),
        _ => None,
    }
}

fn each_mut(expr: &mut Expr, change: &mut dyn FnMut(&mut Expr)) {
    change(expr);
    inner_mut(expr).into_iter().for_each(|part| each_mut(part, change));
}

/// Changes the input of a child: the same work with another number in it.
fn reask(code: &mut Code) {
    match code {
        Code::Workflow(program) => program.carry += REASKED,
        Code::Task(job) => job.work.value += REASKED,
    }
}

fn retype(expr: &mut Expr) {
    *expr = match &*expr {
        Expr::Step(step) => {
            Expr::Transact(Transact { node: step.node, name: step.name.clone(), fails: false })
        }
        Expr::Transact(transact) => added(transact.node, transact.name.clone()),
        other => other.clone(),
    };
}

fn reshape(expr: &mut Expr) {
    *expr = match expr.clone() {
        Expr::Join(parts) => Expr::Sequence(parts),
        Expr::Unordered(parts) => Expr::Join(parts),
        Expr::Select(mut parts) => {
            parts.reverse();
            Expr::Select(parts)
        }
        Expr::Catch { body, otherwise, is_stubborn } => {
            Expr::Catch { body: otherwise, otherwise: body, is_stubborn }
        }
        Expr::Shield(cleanup) => *cleanup,
        other => Expr::Shield(Box::new(other)),
    };
}

/// Returns the number of places in sequences of this run alone.
fn place_count(expr: &Expr) -> usize {
    let own = match expr {
        Expr::Sequence(parts) => parts.len(),
        _ => 0,
    };
    own + inner(expr).into_iter().map(place_count).sum::<usize>()
}

fn inner(expr: &Expr) -> Vec<&Expr> {
    match expr {
        Expr::Sequence(parts) | Expr::Join(parts) | Expr::Select(parts) | Expr::Unordered(parts) => {
            parts.iter().collect()
        }
        Expr::Catch { body, otherwise, .. } => vec![&**body, &**otherwise],
        Expr::Start { meanwhile, .. } => vec![&**meanwhile],
        Expr::Shield(body) | Expr::Patched { body, .. } => vec![&**body],
        _ => Vec::new(),
    }
}

fn inner_mut(expr: &mut Expr) -> Vec<&mut Expr> {
    match expr {
        Expr::Sequence(parts) | Expr::Join(parts) | Expr::Select(parts) | Expr::Unordered(parts) => {
            parts.iter_mut().collect()
        }
        Expr::Catch { body, otherwise, .. } => vec![&mut **body, &mut **otherwise],
        Expr::Start { meanwhile, .. } => vec![&mut **meanwhile],
        Expr::Shield(body) | Expr::Patched { body, .. } => vec![&mut **body],
        _ => Vec::new(),
    }
}

/// Changes the place at this distance. Returns whether it exists.
fn alter(expr: &mut Expr, left: &mut usize, change: &dyn Fn(&mut Vec<Expr>, usize)) -> bool {
    if let Expr::Sequence(parts) = expr {
        if *left < parts.len() {
            change(parts, *left);
            return true;
        }
        *left -= parts.len();
    }
    inner_mut(expr).into_iter().any(|part| alter(part, left, change))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(what: Alter, at: usize) -> String {
        let parts = [added(1, "a".to_owned()), Expr::Join(vec![Expr::Now, Expr::Sequence(vec![Expr::Now])])];
        let program = Program { carry: 0, body: Expr::Sequence(parts.to_vec()), next: None, held: None };
        let edition = Edition { changes: vec![Change { at, what }] };
        let told = |expr: &Expr| match expr {
            Expr::Step(step) => {
                let text = if step.is_text { " as text" } else { "" };
                format!("{}{}{text}", step.name, if step.has_input { "!" } else { "" })
            }
            Expr::Transact(transact) => format!("transact {}", transact.name),
            other => format!("{other:?}").split(['(', ' ']).next().unwrap_or_default().to_owned(),
        };
        match edition.of(&program).body {
            Expr::Sequence(parts) => parts.iter().map(told).collect::<Vec<_>>().join(" "),
            other => told(&other),
        }
    }

    #[test]
    fn an_edition_changes_one_place_of_a_program() {
        let rows = [
            (Alter::Add, 1, "a x1000000 Join"),
            (Alter::AddAlike, 0, "s0 a Join"),
            (Alter::Remove, 3, "Join"),
            (Alter::Remove, 2, "a Join"),
            (Alter::Swap, 1, "Join a"),
            (Alter::Rename, 0, "an Join"),
            (Alter::RenameAll, 0, "an<a Join"),
            (Alter::Patch, 1, "a Patched Join"),
            (Alter::Upgrade, 0, "a as text Join"),
            (Alter::Retype, 0, "transact a Join"),
            (Alter::Redeclare, 0, "a! Join"),
            (Alter::Reread, 0, "a as text Join"),
            (Alter::Reshape, 1, "a Sequence"),
        ];
        for (what, at, expected) in rows {
            assert_eq!(edited(what, at), expected, "{what:?} at {at}");
        }
    }
}
