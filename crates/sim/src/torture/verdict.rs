//! The verdict of the auditor about a round.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hasher};
use std::path::Path;

use abide::Abide;
use abide_core::{Block, Entry, Event, Outcome};
use abide_store::{FeedFrom, ListCursor, Listed, Read, Target, View};

use super::effects::{self, Line, Told as Effect};
use super::report::{Report, Violation};
use super::{Stage, Trouble, scenario_prefix};
use crate::audit::{self, Books, Past, Told, table};
use crate::ending::{LAST_SIGNALS, executions};
use crate::history::{Answer, Closure, Draw, Happened, Spot, key_of};
use crate::model;
use crate::scenario::{Ask, Scenario};
use crate::story::story;

/// The most journal entries that are read at once.
const PAGE: usize = 1_000;

/// The most lines of effects in the story of a violation.
const STORY_LINE_COUNT_MAX: usize = 2_000;

/// The recorded entries, as seen during the round.
#[derive(Default)]
pub(crate) struct Seen {
    /// A hash of each entry of each run.
    journals: BTreeMap<(String, u32), Vec<u64>>,
    /// The runs that have ended.
    ended: BTreeSet<(String, u32)>,
    /// The first process that began after the outcome of a step was recorded, by the idempotency
    /// key of the step.
    recorded: BTreeMap<String, u32>,
}

impl Seen {
    /// Reads new entries, before the process `machine` is started.
    pub(crate) async fn look(
        &mut self,
        view: &(impl View + ?Sized),
        executions: Vec<Listed>,
        machine: u32,
    ) -> Result<(), Trouble> {
        for item in executions {
            for run in 1..=item.run.unwrap_or_default() {
                let key = (item.address.id.to_string(), run);
                if self.ended.contains(&key) {
                    continue;
                }
                let from = self.journals.get(&key).map_or(0, Vec::len) as u64 + 1;
                let target = Target::Key(item.key);
                let read = Read { target, run: Some(run), from, limit: PAGE, with_inbox: false };
                let Some(found) = view.read(read).await? else { continue };
                for record in &found.journal {
                    let Ok(entry) = record.entry() else { continue };
                    self.add(&key, &entry, machine);
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, (id, run): &(String, u32), entry: &Entry, machine: u32) {
        let key = (id.clone(), *run);
        self.journals.entry(key.clone()).or_default().push(hash_of(entry));
        if entry.event.is_terminal() {
            self.ended.insert(key);
        }
        // A step whose result could not be recorded may run again.
        if let Event::StepRecorded(record) = &entry.event
            && !matches!(record.outcome, Outcome::Unrecordable(_))
        {
            let step = key_of(id, *run, &record.op);
            self.recorded.entry(step).or_insert(machine);
        }
    }

    /// Reports recorded entries that have changed.
    fn unchanged(&self, past: &Past) -> Vec<String> {
        let mut found = Vec::new();
        for (run, journal) in (1..).zip(&past.runs) {
            let Some(seen) = self.journals.get(&(past.id.clone(), run)) else { continue };
            let now: Vec<u64> = journal.iter().map(hash_of).collect();
            if !now.starts_with(seen) {
                found.push(format!("{:?} run {run}: an entry changed after it was recorded", past.id));
            }
        }
        found
    }
}

fn hash_of(entry: &Entry) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(format!("{entry:?}").as_bytes());
    hasher.finish()
}

/// The evidence of a round.
pub(crate) struct Verdict<'a, V: View + ?Sized> {
    pub(crate) stage: &'a Stage<'a>,
    pub(crate) round: u32,
    pub(crate) effects: &'a Path,
    pub(crate) store: &'a V,
    pub(crate) before: Option<ListCursor>,
    pub(crate) feed_from: FeedFrom,
    pub(crate) first_scenario: u64,
    pub(crate) scenarios: &'a [Scenario],
    pub(crate) seen: &'a Seen,
}

impl<V: View + ?Sized> Verdict<'_, V> {
    /// Adds the violations of each scenario to the report. Without a client, the executions were
    /// not led to an end.
    pub(crate) async fn judge(&self, client: Option<&Abide>, report: &mut Report) -> Result<(), Trouble> {
        let lines = effects::read(self.effects)?;
        let mut pasts = audit::pasts(self.store, executions(self.store, self.before).await?).await;
        let told = Told::read(self.store, self.feed_from).await;
        report.executions += pasts.len() as u64;
        report.entries += pasts.values().flat_map(|past| &past.runs).map(|run| run.len() as u64).sum::<u64>();
        report.operations += lines.iter().filter(|effect| is_operation(&effect.line)).count() as u64;
        for effect in &lines {
            if let Line::Failed { machine, what } = &effect.line {
                let what = format!("process {machine}: {what}");
                report.violations.push(Violation {
                    round: self.round,
                    scenario: None,
                    what,
                    story: String::new(),
                });
            }
        }
        for (nth, scenario) in (self.first_scenario..).zip(self.scenarios) {
            let prefix = scenario_prefix(&self.stage.prefix, nth);
            let own = pasts.extract_if(.., |id, _| id.starts_with(&prefix)).collect();
            let lines: Vec<&Effect> =
                lines.iter().filter(|effect| is_about(&effect.line, nth, &prefix)).collect();
            let books = Books::unwatched(
                own,
                lines.iter().filter_map(|effect| happened(&effect.line)).collect(),
                !report.is_interrupted,
            );
            let mut found = books.check(scenario);
            found.extend(told.check(&books));
            found.extend(self.outside(&books, scenario, &lines));
            if let Some(client) = client {
                let counts = table::counts(client, (&books.pasts, &[]), &format!("{prefix}table")).await;
                found.extend(table::check((&books.pasts, &[]), &counts));
            }
            let mut story = (!found.is_empty()).then(|| tell(scenario, &books, &lines));
            report.violations.extend(found.into_iter().map(|what| Violation {
                round: self.round,
                scenario: Some(scenario.seed),
                what,
                story: story.take().unwrap_or_default(),
            }));
        }
        Ok(())
    }

    /// Checks the promises that are visible from outside: no process reruns a step that was
    /// recorded before the process began, signals arrive in order, and no execution is blocked by
    /// its own code.
    fn outside(&self, books: &Books, scenario: &Scenario, lines: &[&Effect]) -> Vec<String> {
        let mut found = Vec::new();
        for effect in lines {
            if let Line::Began { machine, closure: Closure { key, .. } } = &effect.line
                && self.seen.recorded.get(key).is_some_and(|first| machine >= first)
            {
                found.push(format!(
                    "{key} ran in process {machine}, which began after its result was recorded"
                ));
            }
        }
        for past in books.pasts.values() {
            found.extend(self.seen.unchanged(past));
            found.extend(blocks(past));
        }
        found.extend(signals(books, scenario, lines));
        found
    }
}

/// Reports wrong blocks. The code is always the same and always fits its journal, so only an
/// execution that kills processes, or has a result that cannot be recorded, may be blocked.
fn blocks(past: &Past) -> Vec<String> {
    let blocks = past.runs.iter().flatten().filter_map(|entry| match &entry.event {
        Event::Blocked { reason, .. }
            if !matches!(reason, Block::Poison { .. } | Block::Unrecordable { .. }) =>
        {
            Some(reason)
        }
        _ => None,
    });
    blocks.map(|reason| format!("{:?} was blocked: {reason:?}", past.id)).collect()
}

fn is_operation(line: &Line) -> bool {
    matches!(line, Line::Began { .. } | Line::Asked { .. })
}

fn is_about(line: &Line, nth: u64, prefix: &str) -> bool {
    match line {
        Line::Began { closure: Closure { spot: Spot { id, .. }, .. }, .. }
        | Line::Drew { draw: Draw { id, .. }, .. } => id.starts_with(prefix),
        Line::Asked { scenario, .. } | Line::Answered { scenario, .. } => *scenario == nth,
        _ => false,
    }
}

fn happened(line: &Line) -> Option<Happened> {
    match line.clone() {
        Line::Began { machine, closure } => Some(Happened::Began { machine, closure, at: None }),
        Line::Drew { draw, value } => Some(Happened::Drew { draw, value }),
        Line::Answered { action, answer, .. } => Some(Happened::Answered { action, answer }),
        _ => None,
    }
}

/// A sent signal.
struct Sent<'a> {
    value: u64,
    id: &'a str,
    name: &'a str,
    /// The line at which it was sent, and the line at which its arrival was acknowledged.
    asked: usize,
    done: Option<usize>,
    is_refused: bool,
}

/// Checks that each signal is received at most once, after signals that were acknowledged before it
/// was sent, and not at all if it was refused.
fn signals(books: &Books, scenario: &Scenario, lines: &[&Effect]) -> Vec<String> {
    let sent = sent(scenario, lines);
    let mut found = Vec::new();
    for past in books.pasts.values() {
        let mut received: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for entry in past.runs.iter().flatten() {
            if let Some((op, payload)) = model::taken_signal(&entry.event) {
                let values = received.entry(op.name.to_string()).or_default();
                values.push(model::number(payload).unwrap_or_default());
            }
        }
        for (name, values) in &received {
            let own: Vec<&Sent<'_>> =
                sent.iter().filter(|sent| sent.id == past.id && sent.name == name).collect();
            let wrong = misdelivered(values, &own);
            found.extend(wrong.map(|what| format!("{:?} received {values:?} as {name:?}: {what}", past.id)));
        }
    }
    found
}

fn misdelivered(values: &[u64], sent: &[&Sent<'_>]) -> Option<String> {
    let place = |value: u64| values.iter().position(|received| *received == value);
    for (index, value) in values.iter().enumerate() {
        if values[..index].contains(value) {
            return Some(format!("{value} came twice"));
        }
        if *value < LAST_SIGNALS && !sent.iter().any(|sent| sent.value == *value) {
            return Some(format!("nobody sent {value}"));
        }
    }
    for one in sent {
        if one.is_refused && place(one.value).is_some() {
            return Some(format!("{} was refused", one.value));
        }
        for later in sent {
            let is_before = one.done.is_some_and(|done| done < later.asked);
            if is_before
                && place(later.value).is_some_and(|at| place(one.value).is_none_or(|first| first > at))
            {
                return Some(format!("{} was acknowledged before {} was sent", one.value, later.value));
            }
        }
    }
    None
}

fn sent<'a>(scenario: &'a Scenario, lines: &[&'a Effect]) -> Vec<Sent<'a>> {
    let mut sent: BTreeMap<usize, Sent<'a>> = BTreeMap::new();
    for (index, effect) in lines.iter().enumerate() {
        match &effect.line {
            Line::Asked { action, id: Some(id), .. } => {
                let Some(asked) = scenario.actions.get(*action) else { continue };
                if let Ask::Signal(_, name) = &asked.what {
                    let value = asked.number;
                    sent.insert(
                        *action,
                        Sent { value, id, name, asked: index, done: None, is_refused: false },
                    );
                }
            }
            Line::Answered { action, answer, .. } => {
                if let Some(sent) = sent.get_mut(action) {
                    sent.done = (*answer == Answer::Done).then_some(index);
                    sent.is_refused = matches!(answer, Answer::Refused(_) | Answer::Unavailable);
                }
            }
            _ => {}
        }
    }
    sent.into_values().collect()
}

/// Returns the scenario, its effects and its journals as a story.
fn tell(scenario: &Scenario, books: &Books, lines: &[&Effect]) -> String {
    let targets = lines.iter().filter_map(|effect| match &effect.line {
        Line::Asked { action, id: Some(id), .. } => Some((scenario.actions.get(*action)?.number, id.clone())),
        _ => None,
    });
    let mut told = story(&Scenario { faults: Vec::new(), ..scenario.clone() }, &targets.collect());
    for effect in lines.iter().take(STORY_LINE_COUNT_MAX) {
        let _ = writeln!(told, "{} {:?}", abide::Timestamp::from_micros(effect.at_us), effect.line);
    }
    let _ = write!(told, "{books}");
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a signal that was sent at one line and acknowledged at another.
    fn sent(value: u64, asked: usize, done: Option<usize>) -> Sent<'static> {
        Sent { value, id: "a", name: "q0", asked, done, is_refused: false }
    }

    #[track_caller]
    fn check(values: &[u64], sent: &[Sent<'_>], expected: Option<&str>) {
        let found = misdelivered(values, &sent.iter().collect::<Vec<_>>());
        assert_eq!(found.as_deref(), expected);
    }

    #[test]
    fn signals_come_once_and_in_the_order_of_their_acknowledgements() {
        let in_turn = [sent(1, 0, Some(1)), sent(2, 2, Some(3))];
        check(&[1, 2], &in_turn, None);
        check(&[1], &in_turn, None);
        check(&[], &in_turn, None);
        check(&[2, 1], &in_turn, Some("1 was acknowledged before 2 was sent"));
        check(&[2], &in_turn, Some("1 was acknowledged before 2 was sent"));
        check(&[1, 1], &in_turn, Some("1 came twice"));
        check(&[1, 3], &in_turn, Some("nobody sent 3"));
        check(&[1, LAST_SIGNALS], &in_turn, None);
    }

    #[test]
    fn signals_that_overlap_have_no_order() {
        check(&[2, 1], &[sent(1, 0, Some(2)), sent(2, 1, Some(3))], None);
        check(&[2, 1], &[sent(1, 0, None), sent(2, 1, Some(3))], None);
    }

    #[test]
    fn a_signal_that_was_refused_never_comes() {
        let refused = Sent { is_refused: true, ..sent(1, 0, None) };
        check(&[], &[Sent { is_refused: true, ..sent(1, 0, None) }], None);
        check(&[1], &[refused], Some("1 was refused"));
    }

    fn fired(seq: u64, name: &str) -> Entry {
        let name = abide_core::Name::new(name).unwrap();
        let op = abide_core::Op { kind: abide_core::OpKind::Timer, name, key: None, nth: 1 };
        Entry::new(seq, abide::Timestamp::from_micros(1), Event::TimerFired { op })
    }

    #[test]
    fn what_was_recorded_may_be_added_to_and_not_changed() {
        let key = ("a".to_owned(), 1);
        let mut seen = Seen::default();
        seen.add(&key, &fired(1, "x"), 1);
        let past = |journal| Past::new("a".to_owned(), abide::Status::Running, vec![journal]);
        assert!(seen.unchanged(&past(vec![fired(1, "x")])).is_empty());
        assert!(seen.unchanged(&past(vec![fired(1, "x"), fired(2, "y")])).is_empty());
        assert_eq!(seen.unchanged(&past(vec![fired(1, "y")])).len(), 1);
        assert_eq!(seen.unchanged(&past(Vec::new())).len(), 1);
    }
}
