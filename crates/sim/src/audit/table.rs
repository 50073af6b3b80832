//! Rules for the table of the programs: the row of a transaction step exists if and only if the
//! step is recorded as successful.

use std::collections::BTreeMap;

use abide::prelude::*;
use abide_core::{Event, Outcome};

use super::Past;
use crate::code::{self, table_key};
use crate::edition::Edition;
use crate::history::Spot;
use crate::program::{Expr, Program, Transact};

/// Executions, and the editions of their programs without the first.
type Programs<'a> = (&'a BTreeMap<String, Past>, &'a [Edition]);

/// Returns how often each transaction step of these executions has written. It covers every step
/// that they may have.
pub(crate) async fn counts(
    abide: &Abide,
    of: Programs<'_>,
    id: &str,
) -> Result<BTreeMap<String, u64>, String> {
    let keys: Vec<String> = expected(of).into_iter().flat_map(|(keys, _)| keys).collect();
    let counts = abide.run(code::read_table, keys.clone()).id(id).await;
    let counts = counts.map_err(|error| format!("the table cannot be read: {error}"))?;
    Ok(keys.into_iter().zip(counts).collect())
}

pub(crate) fn check(of: Programs<'_>, counts: &Result<BTreeMap<String, u64>, String>) -> Vec<String> {
    let count_of = match counts {
        Ok(counts) => counts,
        Err(why) => return vec![why.clone()],
    };
    let mut found = Vec::new();
    for (keys, recorded) in expected(of) {
        let counts: Vec<u64> = keys.iter().map(|key| count_of.get(key).copied().unwrap_or(0)).collect();
        if counts.iter().any(|count| *count > 1) || counts.iter().sum::<u64>() != recorded {
            found.push(format!("transactions wrote {counts:?}, but {recorded} are recorded: {keys:?}"));
        }
    }
    found
}

/// Returns for each run the keys that it may have written, and how many of its transaction steps
/// are recorded as successful.
fn expected((pasts, editions): Programs<'_>) -> Vec<(Vec<String>, u64)> {
    let mut expected = Vec::new();
    for past in pasts.values() {
        for (run, journal) in (1..).zip(&past.runs) {
            let Some(program) = past.program(run) else { continue };
            let recorded = journal.iter().filter(|entry| is_transacted(&entry.event)).count() as u64;
            let changed = editions.iter().map(|edition| edition.of(program));
            let mut keys = Vec::new();
            for (edition, program) in std::iter::once(program.clone()).chain(changed).enumerate() {
                for expr in own_exprs(&program) {
                    if let Expr::Transact(Transact { node, .. }) = expr {
                        keys.push(table_key(&Spot { id: past.id.clone(), run, node: *node, edition }));
                    }
                }
            }
            expected.push((keys, recorded));
        }
    }
    expected
}

fn is_transacted(event: &Event) -> bool {
    match event {
        Event::StepRecorded(record) => {
            record.op.kind == abide_core::OpKind::Transaction && matches!(record.outcome, Outcome::Success(_))
        }
        _ => false,
    }
}

/// Returns the expressions of this run, without those of its children and of the next run.
pub(super) fn own_exprs(program: &Program) -> Vec<&Expr> {
    let mut found = Vec::new();
    let mut left = vec![&program.body];
    while let Some(expr) = left.pop() {
        found.push(expr);
        match expr {
            Expr::Sequence(parts) | Expr::Join(parts) | Expr::Select(parts) | Expr::Unordered(parts) => {
                left.extend(parts);
            }
            Expr::Catch { body, otherwise, .. } => left.extend([&**body, &**otherwise]),
            Expr::Start { meanwhile, .. } => left.push(meanwhile),
            Expr::Shield(body) | Expr::Patched { body, .. } => left.push(body),
            _ => {}
        }
    }
    found
}
