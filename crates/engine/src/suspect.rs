//! What becomes of an execution that kills its worker, across starts of the process.
//!
//! The quarantine lets a suspect run alone. If the process dies then, the death is the suspect's own. How often that happened has to outlive
//! the process, and so it stands in the summary of the execution, as one more thing that it waits for ([`Waiting::Suspect`]): written before the
//! suspect begins alone, and gone with the next commit of its own. Whoever leases a suspect and finds the mark of a lone run knows that its
//! worker died. The suspect then rests, parked, for twice as long after each such death, on whatever worker; after a bounded number it is
//! blocked, so that the application lives.

use std::sync::Arc;
use std::time::Duration;

use abide_core::planted::{Bug, planted};
use abide_core::{Block, Summary, Timestamp, Waiting, text};
use abide_store::{Error, Hold, Leased, Read, Result, Target};

use crate::driver::End;
use crate::engine::Inner;
use crate::failures;
use crate::ledger::{Flushed, Ledger, Terms};
use crate::mailbox::Mailbox;
use crate::options::Options;
use crate::quarantine::{Admission, run_suspect};

/// No rest is longer than this.
const REST_MAX: Duration = Duration::from_secs(600);

/// What is known of a suspect from its earlier lives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// When its worker was found dead after it ran alone, oldest first.
    pub(crate) died_at: Vec<Timestamp>,
    /// What it was last seen waiting for.
    pub(crate) waiting: Vec<Waiting>,
}

/// What is to be done with a suspect.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// It may run, alone.
    Run,
    /// It rests until then.
    Rest(Timestamp),
    /// It has killed too many.
    Block,
}

/// Judges a suspect by its summary.
fn judge(summary: &Summary, now: Timestamp, options: &Options) -> (Record, Verdict) {
    let mut record = Record::default();
    let mut mark = None;
    for wait in &summary.waiting {
        match wait {
            Waiting::Suspect { died_at, until } => {
                record.died_at.clone_from(died_at);
                mark = Some(*until);
            }
            other => record.waiting.push(other.clone()),
        }
    }
    let verdict = match mark.filter(|_| !planted(Bug::SuspectNeverRests)) {
        Some(Some(until)) if until > now => Verdict::Rest(until),
        None | Some(Some(_)) => Verdict::Run,
        Some(None) => {
            record.died_at.push(now);
            let count = u32::try_from(record.died_at.len()).unwrap_or(u32::MAX);
            if count >= options.suspect_death_count_max {
                Verdict::Block
            } else {
                let rest = options.suspect_rest.saturating_mul(1 << (count - 1).min(16)).min(REST_MAX);
                Verdict::Rest(now.after(rest))
            }
        }
    };
    (record, verdict)
}

impl Record {
    fn summary(&self, leased: &Leased, until: Option<Timestamp>) -> Summary {
        let mark = Waiting::Suspect { died_at: self.died_at.clone(), until };
        let mut waiting = vec![mark];
        waiting.extend(self.waiting.iter().cloned());
        let summary = leased.execution.summary(&waiting);
        // What it waited for in its last life wakes nobody: it would be put back at once.
        Summary { wake_at: until, ..summary }
    }

    fn block(&self) -> Block {
        let times: Vec<_> = self.died_at.iter().map(Timestamp::to_string).collect();
        let seen: Vec<_> = self.waiting.iter().map(Waiting::to_string).collect();
        let seen = if seen.is_empty() { String::new() } else { format!("; last seen {}", seen.join(", ")) };
        let (count, times) = (times.len(), times.join(", "));
        Block::Poison {
            reason: format!("its worker died {count} times while it ran alone, at {times}{seen}"),
        }
    }
}

/// Does with a suspect what its record calls for.
pub(crate) async fn take(engine: Arc<Inner>, mailbox: Arc<Mailbox>, leased: Leased) -> End {
    let summary = match summary(&engine, &leased).await {
        Ok(summary) => summary,
        Err(error) => return End::from(error),
    };
    let (record, verdict) = judge(&summary, engine.runtime.now(), &engine.options);
    match verdict {
        Verdict::Block => {
            let block = record.block();
            failures::block(engine, leased, block).await
        }
        Verdict::Rest(until) => {
            let address = leased.address().clone();
            let rest = text::when(until, engine.runtime.now());
            tracing::warn!(%address, rest, "an execution that killed its worker rests");
            let summary = record.summary(&leased, Some(until));
            // It listens to nothing, and nothing is lost by that: it is woken when its rest is over.
            Ledger::new(&engine, leased).leave(summary, Hold::Park { seen: Vec::new() }).await
        }
        Verdict::Run => match engine.admit_suspect(&leased) {
            Admission::Begin | Admission::Wait => run_suspect(engine, mailbox, (leased, record)).await,
            Admission::GiveBack => give_back(&engine, leased, &record).await,
        },
    }
}

/// Gives a suspect back without running anything of it; its record stays.
pub(crate) async fn give_back(engine: &Inner, leased: Leased, record: &Record) -> End {
    let now = engine.runtime.now();
    let summary = record.summary(&leased, Some(now));
    Ledger::new(engine, leased).leave(summary, Hold::Yield).await
}

/// Writes down that a suspect runs alone from now on. If the next who leases it finds that, its worker has died.
pub(crate) async fn mark(
    engine: &Inner,
    leased: &mut Leased,
    record: &Record,
) -> std::result::Result<(), End> {
    let summary = record.summary(leased, None);
    let mut ledger = Ledger::new(engine, leased.clone());
    match ledger.flushed(Terms { summary, hold: Hold::Keep, born_slots: 0, alone: false }).await {
        Flushed::Committed { .. } => {
            leased.version = leased.version.next();
            Ok(())
        }
        other => Err(other.end()),
    }
}

async fn summary(engine: &Inner, leased: &Leased) -> Result<Summary> {
    let read = Read { target: Target::Key(leased.key), run: None, from: 0, limit: 0, with_inbox: false };
    let snapshot = engine.store.read(read).await?;
    let gone = || Error::Corrupt { what: format!("execution {} is leased but not there", leased.address()) };
    snapshot.map(|snapshot| snapshot.summary).ok_or_else(gone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use abide_core::{Listens, Status};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    fn check(mark: Option<(&[i64], Option<i64>)>, now: i64) -> (usize, Verdict) {
        let options = Options {
            suspect_rest: Duration::from_secs(1),
            suspect_death_count_max: 3,
            ..Options::default()
        };
        let waiting = mark.map(|(died_at, until)| Waiting::Suspect {
            died_at: died_at.iter().copied().map(at).collect(),
            until: until.map(at),
        });
        let summary = Summary {
            status: Status::Running,
            listens: Listens::Everything,
            wake_at: None,
            care_at: None,
            waiting: waiting.into_iter().collect(),
            cared_epoch: None,
        };
        let (record, verdict) = judge(&summary, at(now), &options);
        (record.died_at.len(), verdict)
    }

    #[test]
    fn deaths_are_its_own_when_it_ran_alone() {
        assert_eq!(check(None, 10), (0, Verdict::Run));
        assert_eq!(check(Some((&[], None)), 10), (1, Verdict::Rest(at(11))));
        assert_eq!(check(Some((&[1], None)), 10), (2, Verdict::Rest(at(12))));
        assert_eq!(check(Some((&[1, 2], None)), 10), (3, Verdict::Block));
    }

    #[test]
    fn a_rest_lasts_whoever_looks() {
        assert_eq!(check(Some((&[1], Some(12))), 11), (1, Verdict::Rest(at(12))));
        assert_eq!(check(Some((&[1], Some(12))), 12), (1, Verdict::Run));
    }
}
