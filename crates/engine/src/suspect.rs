//! Judges an execution that kills its worker, across starts of the process.
//!
//! The quarantine lets a suspect run alone. If the process dies then, the suspect caused the death.
//! The number of such deaths has to outlive the process, so it stands in the summary of the
//! execution ([`Suspicion`]), which every holder carries on until the execution has proven
//! harmless. The summary also says that the suspect runs alone, before it begins: a holder that
//! finds this mark, and one more dead session, knows which execution caused that death. The suspect
//! then rests, parked, for twice as long after each such death, on any worker; after a bounded
//! number it is blocked, so that the application lives.

use std::sync::Arc;
use std::time::Duration;

use abide_core::planted::{Bug, planted};
use abide_core::{Block, Listens, Stand, Summary, Suspicion, Timestamp, Waiting, Waits, text};
use abide_store::{Error, Hold, Leased, Read, Result, Target};

use crate::driver::End;
use crate::engine::Inner;
use crate::failures;
use crate::ledger::Ledger;
use crate::mailbox::Mailbox;
use crate::options::Options;
use crate::quarantine::{Admission, run_suspect};

/// The longest rest.
const REST_MAX: Duration = Duration::from_secs(600);

/// The record of a suspect's earlier lives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) suspicion: Suspicion,
    /// The last known waits of the suspect.
    pub(crate) waiting: Waits,
    /// Whether it was blocked for its deaths before, and died again.
    is_again: bool,
}

/// The verdict on a suspect.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// It may run, alone.
    Run,
    /// It rests until this time.
    Rest(Timestamp),
    /// It has killed too many workers.
    Block,
}

/// Judges a suspect by its summary, and by how many sessions in a row have died with it.
fn judge(summary: Summary, takeover_count: u32, now: Timestamp, options: &Options) -> (Record, Verdict) {
    let Suspicion { mut died_at, stand } = summary.suspicion.unwrap_or_default();
    let is_mark = |wait: &Waiting| matches!(wait, Waiting::Suspect { .. });
    let waiting = summary.waiting.into_iter().filter(|wait| !is_mark(wait)).collect();
    let mut is_again = false;
    let verdict = match stand {
        _ if planted(Bug::SuspectNeverRests) => Verdict::Run,
        Stand::Resting(until) if until > now => Verdict::Rest(until),
        // Without a death since then, its holder has only begun anew.
        Stand::Alone { takeover_count: before } if takeover_count > before => {
            died_at.push(now);
            let count = u32::try_from(died_at.len()).unwrap_or(u32::MAX);
            if count >= options.suspect_death_count_max {
                // An execution that is unblocked and kills again would add to these times without
                // end.
                is_again = count > options.suspect_death_count_max;
                died_at.drain(..died_at.len() - options.suspect_death_count_max as usize);
                Verdict::Block
            } else {
                let rest = options.suspect_rest.saturating_mul(1 << (count - 1).min(16)).min(REST_MAX);
                Verdict::Rest(now.after(rest))
            }
        }
        Stand::Aside | Stand::Alone { .. } | Stand::Resting(_) | Stand::Beside => Verdict::Run,
    };
    let stand = match verdict {
        Verdict::Rest(until) => Stand::Resting(until),
        Verdict::Run | Verdict::Block => Stand::Aside,
    };
    (Record { suspicion: Suspicion { died_at, stand }, waiting, is_again }, verdict)
}

impl Record {
    /// Returns the summary of a resting suspect. It listens to nothing, whatever its phase, and
    /// nothing is lost: it is woken when its rest is over, and a caretaker applies orders that need
    /// no code.
    fn summary_at_rest(&self, leased: &Leased, until: Timestamp) -> Summary {
        let mark = Waiting::Suspect { died_at: self.suspicion.died_at.clone(), until: Some(until) };
        let waiting: Vec<_> = std::iter::once(mark).chain(self.waiting.iter().cloned()).collect();
        let listens = Listens::Nothing;
        Summary { wake_at: Some(until), listens, ..leased.execution.summary(&waiting) }
    }

    fn block(&self) -> Block {
        let mut times: Vec<_> = self.suspicion.died_at.iter().map(Timestamp::to_string).collect();
        let seen: Vec<_> = self.waiting.iter().map(Waiting::to_string).collect();
        let seen = if seen.is_empty() { String::new() } else { format!("; last seen {}", seen.join(", ")) };
        let reason = match times.pop_if(|_| self.is_again) {
            Some(last) => {
                let before = times.join(", ");
                format!("its worker died again while it ran alone, at {last}, as before at {before}{seen}")
            }
            None => {
                let (count, times) = (times.len(), times.join(", "));
                format!("its worker died {count} times while it ran alone, at {times}{seen}")
            }
        };
        Block::Poison { reason }
    }
}

/// Runs, rests or blocks a suspect, as its record says.
pub(crate) async fn take(engine: Arc<Inner>, mailbox: Arc<Mailbox>, mut leased: Box<Leased>) -> End {
    let summary = match summary(&engine, &leased).await {
        Ok(summary) => summary,
        Err(error) => return End::from(error),
    };
    let (record, verdict) = judge(summary, leased.takeover_count, engine.runtime.now(), &engine.options);
    leased.suspicion = Some(record.suspicion.clone());
    match verdict {
        Verdict::Block => {
            let block = record.block();
            failures::block(engine, leased, block).await
        }
        Verdict::Rest(until) => {
            let address = leased.address().clone();
            let rest = text::when(until, engine.runtime.now());
            tracing::warn!(%address, rest, "an execution that killed its worker rests");
            let summary = record.summary_at_rest(&leased, until);
            Ledger::new(&engine, leased).leave(summary, Hold::Park { seen: Vec::new() }).await
        }
        Verdict::Run => {
            let fitted = match engine.fit(leased) {
                Ok(leased) => Ok(leased),
                Err(fitting) => fitting.await,
            };
            match fitted {
                Ok(leased) => admit(engine, mailbox, (leased, record)).await,
                Err(end) => end,
            }
        }
    }
}

async fn admit(engine: Arc<Inner>, mailbox: Arc<Mailbox>, (leased, record): (Box<Leased>, Record)) -> End {
    match engine.admit_suspect(&leased) {
        Admission::Begin | Admission::Wait => run_suspect(engine, mailbox, (leased, record)).await,
        Admission::GiveBack => give_back(&engine, leased, &record).await,
    }
}

/// Returns a suspect's lease without running anything of it; its record stays. The waits of its
/// last life wake nobody: the suspect would be put back at once.
async fn give_back(engine: &Arc<Inner>, leased: Box<Leased>, record: &Record) -> End {
    let summary = Summary { wake_at: None, ..leased.execution.summary(&record.waiting) };
    Ledger::new(engine, leased).leave(summary, Hold::Yield).await
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
    use abide_core::Status;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    fn check(died_at: &[i64], stand: Stand, now: i64) -> (usize, Stand, Verdict) {
        let options = Options {
            suspect_rest: Duration::from_secs(1),
            suspect_death_count_max: 3,
            ..Options::default()
        };
        let died_at = died_at.iter().copied().map(at).collect();
        let summary = Summary {
            status: Status::Running,
            listens: Listens::Everything,
            wake_at: None,
            care_at: None,
            waiting: Waits::new(),
            cared_epoch: None,
            suspicion: Some(Suspicion { died_at, stand }),
            unclaimed: None,
            sites: None,
        };
        let (record, verdict) = judge(summary, 7, at(now), &options);
        (record.suspicion.died_at.len(), record.suspicion.stand, verdict)
    }

    fn alone(takeover_count: u32) -> Stand {
        Stand::Alone { takeover_count }
    }

    fn rests(until: i64) -> (Stand, Verdict) {
        (Stand::Resting(at(until)), Verdict::Rest(at(until)))
    }

    #[test]
    fn deaths_are_its_own_when_it_ran_alone() {
        let check = |died_at, stand| {
            let (death_count, stand, verdict) = check(died_at, stand, 10);
            (death_count, (stand, verdict))
        };
        assert_eq!(check(&[], Stand::Aside), (0, (Stand::Aside, Verdict::Run)));
        assert_eq!(check(&[], alone(6)), (1, rests(11)));
        assert_eq!(check(&[1], alone(6)), (2, rests(12)));
        assert_eq!(check(&[1, 2], alone(6)), (3, (Stand::Aside, Verdict::Block)));
        assert_eq!(check(&[1], alone(7)), (1, (Stand::Aside, Verdict::Run)), "nobody died since");
        assert_eq!(check(&[1], Stand::Beside), (1, (Stand::Aside, Verdict::Run)), "others were there");
        assert_eq!(check(&[1, 2, 3], Stand::Aside), (3, (Stand::Aside, Verdict::Run)), "it was unblocked");
        assert_eq!(
            check(&[1, 2, 3], alone(6)),
            (3, (Stand::Aside, Verdict::Block)),
            "the last three are kept"
        );
    }

    #[test]
    fn a_rest_lasts_whoever_looks() {
        let resting = Stand::Resting(at(12));
        assert_eq!(check(&[1], resting, 11), (1, resting, Verdict::Rest(at(12))));
        assert_eq!(check(&[1], resting, 12), (1, Stand::Aside, Verdict::Run));
    }
}
