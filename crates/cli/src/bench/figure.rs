//! One measured figure, with its limit and its goal.

use std::fmt;

use serde_json::{Value, json};

use super::counts::{Counts, NOTHING};

/// The works that the benchmark measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Work {
    /// One-step workflows, 5,000 at once
    #[value(name = "W1")]
    W1,
    /// One-step workflows, one at a time
    #[value(name = "W1-latency")]
    W1Latency,
    /// Steps of one workflow, one after the other
    #[value(name = "W2")]
    W2,
    /// 100 workflows of 100 steps
    #[value(name = "W3")]
    W3,
    /// One workflow with 1,000 children
    #[value(name = "W4")]
    W4,
    /// Resuming a long journal
    #[value(name = "W5")]
    W5,
    /// One-step workflows with random ids, 5,000 at once
    #[value(name = "random-ids")]
    RandomIds,
    /// Several processes on one store
    #[value(name = "processes")]
    Processes,
    /// Memory of an idle process
    #[value(name = "idle-rss")]
    IdleRss,
    /// Processor time of an idle process
    #[value(name = "idle-cpu")]
    IdleCpu,
    /// Memory with 100,000 sleeping executions, also while they start and wake
    #[value(name = "sleeping-rss")]
    SleepingRss,
}

impl Work {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::W1 => "W1",
            Self::W1Latency => "W1-latency",
            Self::W2 => "W2",
            Self::W3 => "W3",
            Self::W4 => "W4",
            Self::W5 => "W5",
            Self::RandomIds => "random-ids",
            Self::Processes => "processes",
            Self::IdleRss => "idle-rss",
            Self::IdleCpu => "idle-cpu",
            Self::SleepingRss => "sleeping-rss",
        }
    }
}

/// The wanted bound of a figure, and the accepted one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Goals {
    pub(super) goal: Bound,
    pub(super) must: Bound,
}

impl Goals {
    /// Accepts nothing but the goal.
    pub(super) const fn strict(bound: Bound) -> Self {
        Self { goal: bound, must: bound }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bound {
    AtLeast(f64),
    AtMost(f64),
    /// At most this much more than the limit.
    MoreAtMost(f64),
    RatioAtLeast(f64),
    RatioAtMost(f64),
    RatioBelow(f64),
}

impl Bound {
    fn value(self) -> f64 {
        match self {
            Self::AtLeast(value)
            | Self::AtMost(value)
            | Self::MoreAtMost(value)
            | Self::RatioAtLeast(value)
            | Self::RatioAtMost(value)
            | Self::RatioBelow(value) => value,
        }
    }

    fn is_kept(self, figure: &Figure) -> bool {
        match self {
            Self::AtLeast(least) => figure.figure >= least,
            Self::AtMost(most) => figure.figure <= most,
            Self::MoreAtMost(most) => figure.figure - figure.raw <= most,
            Self::RatioAtLeast(least) => figure.ratio() >= least,
            Self::RatioAtMost(most) => figure.ratio() <= most,
            Self::RatioBelow(bound) => figure.ratio() < bound,
        }
    }
}

/// Which of its goals a figure reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reached {
    Goal,
    Must,
    Neither,
}

/// The size of a work that is measured in several sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// The length of the resumed journal.
    Entries(u64),
    /// The number of executions.
    Executions(u64),
}

/// One figure, ready to print.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Figure {
    pub(super) work: Work,
    pub(super) figure: f64,
    pub(super) unit: &'static str,
    pub(super) raw: f64,
    /// Missing from a figure that only explains another one.
    pub(super) goals: Option<Goals>,
    pub(super) size: Option<Size>,
    /// The cost of one item, with the first figure of a work that has items.
    pub(super) counts: Option<Counts>,
}

impl Figure {
    pub(super) fn new(work: Work, (figure, unit): (f64, &'static str), raw: f64, goals: Goals) -> Self {
        Self { work, figure, unit, raw, goals: Some(goals), size: None, counts: None }
    }

    pub(super) fn without_goal(work: Work, (figure, unit): (f64, &'static str), raw: f64) -> Self {
        Self { work, figure, unit, raw, goals: None, size: None, counts: None }
    }

    /// Creates a figure that has no raw limit. It is put beside its goal.
    pub(super) fn without_raw(work: Work, measured: (f64, &'static str), goals: Goals) -> Self {
        Self::new(work, measured, goals.goal.value(), goals)
    }

    pub(super) fn ratio(&self) -> f64 {
        if self.raw > 0.0 { self.figure / self.raw } else { 0.0 }
    }

    pub(super) fn reached(&self) -> Option<Reached> {
        let Goals { goal, must } = self.goals?;
        Some(match () {
            () if goal.is_kept(self) => Reached::Goal,
            () if must.is_kept(self) => Reached::Must,
            () => Reached::Neither,
        })
    }

    pub(super) fn json(&self) -> Value {
        let ok = self.reached().map(|reached| match reached {
            Reached::Goal => "goal",
            Reached::Must => "must",
            Reached::Neither => "missed",
        });
        let mut object = json!({
            "work": self.work.name(),
            "figure": number(self.figure),
            "unit": self.unit,
            "raw": number(self.raw),
            "ratio": number(self.ratio()),
            "goal": self.goals.map(|goals| goals.goal.to_string()),
            "must": self.goals.map(|goals| goals.must.to_string()),
            "ok": ok,
        });
        match self.size {
            Some(Size::Entries(count)) => object["entries"] = count.into(),
            Some(Size::Executions(count)) => object["executions"] = count.into(),
            None => {}
        }
        if let Some(counts) = &self.counts {
            object["item"] = counts.json();
        }
        object
    }

    pub(super) const HEADINGS: [&str; 8] = ["WORK", "FIGURE", "UNIT", "RAW", "RATIO", "GOAL", "MUST", "OK"];

    pub(super) fn cells(&self) -> Vec<String> {
        let name = match self.size {
            Some(Size::Entries(count) | Size::Executions(count)) => {
                format!("{} of {}", self.work.name(), grouped(count as f64))
            }
            None => self.work.name().to_owned(),
        };
        let ok = match self.reached() {
            Some(Reached::Goal) => "goal",
            Some(Reached::Must) => "must",
            // Seen at a glance.
            Some(Reached::Neither) => "MISSED",
            None => NOTHING,
        };
        let bound = |of: fn(Goals) -> Bound| {
            self.goals.map_or_else(|| NOTHING.to_owned(), |goals| of(goals).to_string())
        };
        let figure = [
            name,
            grouped(self.figure),
            self.unit.to_owned(),
            grouped(self.raw),
            grouped(self.ratio()),
            bound(|goals| goals.goal),
            bound(|goals| goals.must),
            ok.to_owned(),
        ];
        figure.into_iter().chain(Counts::cells(self.counts.as_ref())).collect()
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = grouped(self.value());
        match self {
            Self::AtLeast(_) => write!(f, "≥ {value}"),
            Self::AtMost(_) => write!(f, "≤ {value}"),
            Self::MoreAtMost(_) => write!(f, "≤ raw + {value}"),
            Self::RatioAtLeast(_) => write!(f, "ratio ≥ {value}"),
            Self::RatioAtMost(_) => write!(f, "ratio ≤ {value}"),
            Self::RatioBelow(_) => write!(f, "ratio < {value}"),
        }
    }
}

/// Rounds to three significant digits, but keeps all digits of a large number.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let scale = 10f64.powi((2 - value.abs().log10().floor() as i32).max(0));
    (value * scale).round() / scale
}

/// Returns an integer if the value is one, so that `7900` is not written as `7900.0`.
fn number(value: f64) -> Value {
    let value = rounded(value);
    if value.fract() == 0.0 && value.abs() < 1e15 { Value::from(value as i64) } else { Value::from(value) }
}

/// Formats a number for people, with separators between thousands.
fn grouped(value: f64) -> String {
    let text = rounded(value).to_string();
    let (whole, rest) = text.split_once('.').unwrap_or((&text, ""));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if rest.is_empty() { grouped } else { format!("{grouped}.{rest}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOALS: Goals = Goals { goal: Bound::RatioAtLeast(0.95), must: Bound::RatioAtLeast(0.8) };

    fn figure(figure: f64, goals: Goals) -> Figure {
        Figure::new(Work::W2, (figure, "steps/s"), 9_600.0, goals)
    }

    #[test]
    fn numbers_are_short() {
        let rows =
            [(7_900.4, "7,900"), (0.8229, "0.823"), (1_234_567.0, "1,234,567"), (12.345, "12.3"), (0.0, "0")];
        for (value, expected) in rows {
            assert_eq!(grouped(value), expected);
        }
    }

    #[test]
    fn a_figure_is_one_object() {
        assert_eq!(
            figure(7_900.0, GOALS).json().to_string(),
            r#"{"figure":7900,"goal":"ratio ≥ 0.95","must":"ratio ≥ 0.8","ok":"must","ratio":0.823,"raw":9600,"unit":"steps/s","work":"W2"}"#
        );
    }

    #[test]
    fn a_figure_reaches_its_goal_its_must_or_neither() {
        let rows = [(9_600.0, Reached::Goal), (7_900.0, Reached::Must), (7_000.0, Reached::Neither)];
        for (value, expected) in rows {
            assert_eq!(figure(value, GOALS).reached(), Some(expected), "{value}");
        }
        let rows = [(15.0, Reached::Goal), (15.1, Reached::Neither)];
        for (value, expected) in rows {
            assert_eq!(
                figure(value, Goals::strict(Bound::AtMost(15.0))).reached(),
                Some(expected),
                "{value}"
            );
        }
    }

    #[test]
    fn a_bound_is_kept_on_one_side() {
        let rows = [
            (Bound::AtLeast(10_000.0), "≥ 10,000", [10_000.0, 9_999.0]),
            (Bound::AtMost(45.0), "≤ 45", [45.0, 45.1]),
            (Bound::MoreAtMost(20.0), "≤ raw + 20", [9_620.0, 9_621.0]),
            (Bound::RatioAtLeast(0.5), "ratio ≥ 0.5", [4_800.0, 4_799.0]),
            (Bound::RatioAtMost(3.0), "ratio ≤ 3", [28_800.0, 28_801.0]),
            (Bound::RatioBelow(10.0), "ratio < 10", [95_999.0, 96_000.0]),
        ];
        for (bound, text, [kept, broken]) in rows {
            assert_eq!(bound.to_string(), text);
            let is_kept = [kept, broken].map(|value| bound.is_kept(&figure(value, GOALS)));
            assert_eq!(is_kept, [true, false], "{text}");
        }
    }

    #[test]
    fn a_figure_without_raw_limit_is_beside_its_goal() {
        let goals = Goals { goal: Bound::AtMost(30.0), must: Bound::AtMost(40.0) };
        let figure = Figure::without_raw(Work::W1, (36.0, "allocations"), goals);
        assert_eq!((figure.raw, figure.ratio(), figure.reached()), (30.0, 1.2, Some(Reached::Must)));
    }

    #[test]
    fn a_figure_without_goal_reaches_none() {
        let figure = Figure::without_goal(Work::RandomIds, (13_000.0, "wf/s"), 26_000.0);
        assert_eq!(
            figure.json().to_string(),
            r#"{"figure":13000,"goal":null,"must":null,"ok":null,"ratio":0.5,"raw":26000,"unit":"wf/s","work":"random-ids"}"#
        );
        assert_eq!(figure.cells()[5..8], ["–", "–", "–"]);
    }
}
