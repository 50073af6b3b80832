//! The fates of results that somebody set for steps.

use std::collections::HashMap;

use crate::planted::{Bug, planted};
use crate::{
    Block, ContentHash, Entry, Event, Fingerprint, KeyHasher, Op, OpIndex, Outcome, Remedied, Remedy,
    StepRecord,
};

/// The fate of a result that somebody set for a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EditFate {
    /// The code could not read it: the next decision takes its place.
    Refuted,
    /// The run went on after it. Code that waited for the result went on with it, so it is a
    /// recorded result like any other, and nothing replaces it.
    Kept,
}

/// The fates of all results that somebody set for steps in a journal. Only later entries reveal the
/// fate of a result, so a reader goes through the whole journal first.
///
/// Code that waits for such a result and cannot read it blocks at the step before it records
/// anything else.
#[derive(Debug, Default)]
pub struct EditFates {
    /// The last entry that only advancing code can have caused.
    went_on_at: u64,
    /// The rest, which few journals have.
    tables: Option<Box<Tables>>,
}

#[derive(Debug, Default)]
struct Tables {
    /// The entries at which the code was last blocked at a step that needs a decision.
    blocked_at: HashMap<OpIndex, u64, KeyHasher>,
    /// Operations that somebody accepted as recorded, with the input that the code had for them.
    accepted: HashMap<OpIndex, Vec<ContentHash>, KeyHasher>,
    /// The last entries with which somebody let an operation run again.
    rerun_at: HashMap<OpIndex, u64, KeyHasher>,
    /// The inputs of results that could not be recorded.
    lost_inputs: HashMap<OpIndex, Fingerprint, KeyHasher>,
}

impl EditFates {
    /// Takes in one entry.
    pub fn look_at(&mut self, entry: &Entry) {
        match &entry.event {
            Event::Blocked { reason: Block::Unrecordable { op, .. }, .. } => {
                self.tables().blocked_at.insert(op.index(), entry.seq);
            }
            Event::Unblocked { remedied: Some(Remedied { op, remedy: Remedy::Rerun, .. }), .. } => {
                self.tables().rerun_at.insert(op.index(), entry.seq);
            }
            Event::Unblocked { remedied: Some(Remedied { op, declared: Some(declared), .. }), .. } => {
                self.tables().accepted.entry(op.index()).or_default().push(**declared);
            }
            Event::Blocked { .. }
            | Event::Unblocked { .. }
            | Event::Paused { .. }
            | Event::Resumed { .. }
            | Event::Inherited { .. }
            | Event::CancelRequested { .. }
            | Event::DeadlinePassed { .. } => {}
            Event::StepRecorded(StepRecord { op, outcome: Outcome::Unrecordable(_), input, .. }) => {
                let lost_inputs = &mut self.tables().lost_inputs;
                match input {
                    Some(input) => lost_inputs.insert(op.index(), (**input).clone()),
                    None => lost_inputs.remove(&op.index()),
                };
                self.went_on_at = entry.seq;
            }
            _ => self.went_on_at = entry.seq,
        }
    }

    fn tables(&mut self) -> &mut Tables {
        self.tables.get_or_insert_default()
    }

    /// Returns the input that an outcome is for. A result that somebody set is for the input of the
    /// result that was lost.
    pub fn input_of<'a>(&'a self, entry: &'a Entry) -> Option<&'a Fingerprint> {
        let lost = || self.tables.as_ref()?.lost_inputs.get(&entry.event.op()?.index());
        let is_edit = entry.event.is_edit() && !planted(Bug::EditForAnyInput);
        entry.event.input().or_else(|| if is_edit { lost() } else { None })
    }

    /// Returns the fate of the result that this entry set for a step, if it is such an entry and a
    /// later entry reveals the fate. A block at the step is the last word: code that does something
    /// else first records that before it reaches the unreadable result.
    pub fn of(&self, entry: &Entry) -> Option<EditFate> {
        let Event::Unblocked { remedied: Some(Remedied { op, remedy: Remedy::Edit(_), .. }), .. } =
            &entry.event
        else {
            return None;
        };
        let blocked_at = self.tables.as_ref().and_then(|tables| tables.blocked_at.get(&op.index()));
        if blocked_at.is_some_and(|blocked_at| *blocked_at > entry.seq) {
            return Some(EditFate::Refuted);
        }
        (self.went_on_at > entry.seq).then_some(EditFate::Kept)
    }

    /// Whether this entry is a result that could not be recorded and that somebody lets the code
    /// make anew. It is no outcome any longer, and its input binds no code.
    pub fn is_made_anew(&self, entry: &Entry) -> bool {
        let Event::StepRecorded(StepRecord { op, outcome: Outcome::Unrecordable(_), .. }) = &entry.event
        else {
            return false;
        };
        let rerun_at = self.tables.as_ref().and_then(|tables| tables.rerun_at.get(&op.index()));
        let is_rerun = rerun_at.is_some_and(|rerun_at| *rerun_at > entry.seq);
        is_rerun && !planted(Bug::LostInputBinds)
    }

    /// Whether somebody accepted the record of an operation for code that has this input for it.
    pub fn is_accepted(&self, op: &Op, declared: ContentHash) -> bool {
        let accepted = self.tables.as_ref().and_then(|tables| tables.accepted.get(&op.index()));
        accepted.is_some_and(|accepted| accepted.contains(&declared))
    }
}

impl Event {
    /// Whether this entry sets the result of a step.
    pub fn is_edit(&self) -> bool {
        matches!(self, Self::Unblocked { remedied: Some(Remedied { remedy: Remedy::Edit(_), .. }), .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{By, Name, Op, OpKind, Payload, Timestamp, Unrecordable};

    fn op(name: &str) -> Op {
        Op { kind: OpKind::Step, name: Name::new(name).unwrap(), key: None, nth: 1 }
    }

    fn by() -> By {
        By("me".into())
    }

    fn edit(step: &str) -> Event {
        let remedied =
            Some(Remedied { op: op(step), remedy: Remedy::Edit(Payload::from("1")), declared: None });
        Event::Unblocked { by: by(), remedied }
    }

    fn blocked_at(step: &str) -> Event {
        Event::Blocked {
            reason: Block::Unrecordable { op: op(step), reason: "too large".to_owned() },
            build: None,
        }
    }

    fn recorded(step: &str) -> Event {
        let outcome = Outcome::Success(Payload::from("1"));
        Event::StepRecorded(StepRecord { op: op(step), outcome, attempt: 1, input: None })
    }

    /// Checks the fate of the first of these events.
    fn check(events: Vec<Event>, expected: Option<EditFate>) {
        let entries: Vec<_> =
            (1..).zip(events).map(|(seq, event)| Entry::new(seq, Timestamp::default(), event)).collect();
        let mut fates = EditFates::default();
        entries.iter().for_each(|entry| fates.look_at(entry));
        assert_eq!(fates.of(&entries[0]), expected, "{entries:?}");
    }

    #[test]
    fn what_was_blocked_at_later_is_refuted_and_what_the_run_went_on_behind_is_kept() {
        check(vec![edit("a")], None);
        check(vec![edit("a"), blocked_at("a")], Some(EditFate::Refuted));
        check(vec![edit("a"), recorded("b")], Some(EditFate::Kept));
        check(vec![edit("a"), blocked_at("b")], None);
        check(vec![edit("a"), recorded("b"), blocked_at("b")], Some(EditFate::Kept));
        // Newer code does something else first, and cannot read the result that somebody set.
        check(
            vec![edit("a"), recorded("b"), blocked_at("a"), edit("a"), recorded("c")],
            Some(EditFate::Refuted),
        );
        check(vec![recorded("a"), recorded("b")], None);
        let rerun = Some(Remedied { op: op("a"), remedy: Remedy::Rerun, declared: None });
        check(vec![Event::Unblocked { by: by(), remedied: rerun }, blocked_at("a"), recorded("b")], None);
    }

    #[test]
    fn a_lost_result_is_made_anew_once_somebody_lets_its_step_run_again() {
        let lost = |step: &str| {
            let outcome = Outcome::Unrecordable(Unrecordable { reason: String::new() });
            Event::StepRecorded(StepRecord { op: op(step), outcome, attempt: 1, input: None })
        };
        let decide = |step: &str, remedy| {
            let remedied = Some(Remedied { op: op(step), remedy, declared: None });
            Event::Unblocked { by: by(), remedied }
        };
        let rows = [
            (vec![lost("a")], false),
            (vec![lost("a"), decide("a", Remedy::Rerun)], true),
            (vec![lost("a"), decide("b", Remedy::Rerun)], false),
            (vec![lost("a"), decide("a", Remedy::Accept)], false),
            (vec![lost("a"), decide("a", Remedy::Edit(Payload::from("1")))], false),
            (vec![recorded("a"), decide("a", Remedy::Rerun)], false),
            // The second one is lost anew.
            (vec![decide("a", Remedy::Rerun), lost("a")], false),
        ];
        for (events, expected) in rows {
            let entries: Vec<_> =
                (1..).zip(events).map(|(seq, event)| Entry::new(seq, Timestamp::default(), event)).collect();
            let mut fates = EditFates::default();
            entries.iter().for_each(|entry| fates.look_at(entry));
            assert_eq!(entries.iter().any(|entry| fates.is_made_anew(entry)), expected, "{entries:?}");
        }
    }

    /// Others cause these events whether the code has read the result or not.
    #[test]
    fn what_others_do_says_nothing_about_an_edit() {
        let others = [
            Event::Paused { by: by(), reason: String::new() },
            Event::Resumed { by: by() },
            Event::Inherited { pause: Some(String::new()), by: by(), number: 1 },
            Event::Inherited { pause: None, by: by(), number: 2 },
            Event::CancelRequested { by: by(), reason: String::new() },
            Event::DeadlinePassed { until: Timestamp::default() },
            Event::Blocked { reason: Block::Limit { reason: String::new() }, build: None },
            Event::Unblocked { by: by(), remedied: None },
            edit("b"),
        ];
        for other in others {
            check(vec![edit("a"), other.clone()], None);
            check(vec![edit("a"), other.clone(), recorded("b")], Some(EditFate::Kept));
            check(vec![edit("a"), other.clone(), blocked_at("a")], Some(EditFate::Refuted));
            check(vec![edit("a"), recorded("b"), other], Some(EditFate::Kept));
        }
    }
}
