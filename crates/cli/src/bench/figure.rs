//! One measured figure, with its limit and its goal.

use std::fmt;

use serde_json::{Value, json};

use super::counts::Counts;

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
    /// Memory of an idle process
    #[value(name = "idle-rss")]
    IdleRss,
    /// Processor time of an idle process
    #[value(name = "idle-cpu")]
    IdleCpu,
    /// Memory with 100,000 sleeping executions
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
            Self::IdleRss => "idle-rss",
            Self::IdleCpu => "idle-cpu",
            Self::SleepingRss => "sleeping-rss",
        }
    }
}

/// The goal for a figure. It is met if any one of the bounds is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Goal(pub(super) &'static [Bound]);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bound {
    AtLeast(f64),
    AtMost(f64),
    RatioAtLeast(f64),
    RatioAtMost(f64),
}

/// One figure, ready to print.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Figure {
    pub(super) work: Work,
    pub(super) figure: f64,
    pub(super) unit: &'static str,
    pub(super) raw: f64,
    pub(super) goal: Goal,
    /// The length of the resumed journal.
    pub(super) entry_count: Option<u64>,
    /// The cost of one item, where the work has items.
    pub(super) counts: Option<Counts>,
}

impl Figure {
    pub(super) fn ratio(&self) -> f64 {
        if self.raw > 0.0 { self.figure / self.raw } else { 0.0 }
    }

    pub(super) fn is_reached(&self) -> bool {
        self.goal.0.iter().any(|bound| match *bound {
            Bound::AtLeast(least) => self.figure >= least,
            Bound::AtMost(most) => self.figure <= most,
            Bound::RatioAtLeast(least) => self.ratio() >= least,
            Bound::RatioAtMost(most) => self.ratio() <= most,
        })
    }

    pub(super) fn json(&self) -> Value {
        let mut object = json!({
            "work": self.work.name(),
            "figure": number(self.figure),
            "unit": self.unit,
            "raw": number(self.raw),
            "ratio": number(self.ratio()),
            "goal": self.goal.to_string(),
            "ok": self.is_reached(),
        });
        if let Some(count) = self.entry_count {
            object["entries"] = count.into();
        }
        if let Some(counts) = &self.counts {
            object["item"] = counts.json();
        }
        object
    }

    pub(super) fn cells(&self) -> Vec<String> {
        let name = match self.entry_count {
            Some(count) => format!("{} of {}", self.work.name(), grouped(count as f64)),
            None => self.work.name().to_owned(),
        };
        let figure = [
            name,
            grouped(self.figure),
            self.unit.to_owned(),
            grouped(self.raw),
            grouped(self.ratio()),
            self.goal.to_string(),
            if self.is_reached() { "yes" } else { "MISSED" }.to_owned(),
        ];
        figure.into_iter().chain(Counts::cells(self.counts.as_ref())).collect()
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |bound: &Bound| match *bound {
            Bound::AtLeast(least) => format!("≥ {}", grouped(least)),
            Bound::AtMost(most) => format!("≤ {}", grouped(most)),
            Bound::RatioAtLeast(least) => format!("ratio ≥ {}", grouped(least)),
            Bound::RatioAtMost(most) => format!("ratio ≤ {}", grouped(most)),
        };
        f.write_str(&self.0.iter().map(word).collect::<Vec<_>>().join(" or "))
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

    fn figure(figure: f64, raw: f64, goal: Goal) -> Figure {
        Figure { work: Work::W2, figure, unit: "steps/s", raw, goal, entry_count: None, counts: None }
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
        let goal = Goal(&[Bound::RatioAtLeast(0.8)]);
        assert_eq!(
            figure(7_900.0, 9_600.0, goal).json().to_string(),
            r#"{"figure":7900,"goal":"ratio ≥ 0.8","ok":true,"ratio":0.823,"raw":9600,"unit":"steps/s","work":"W2"}"#
        );
    }

    #[test]
    fn one_bound_is_enough() {
        let goal = Goal(&[Bound::AtLeast(120_000.0), Bound::RatioAtLeast(0.2)]);
        let rows = [((130_000.0, 1e6), true), ((90_000.0, 400_000.0), true), ((90_000.0, 500_000.0), false)];
        for ((value, raw), expected) in rows {
            assert_eq!(figure(value, raw, goal).is_reached(), expected);
        }
        assert_eq!(goal.to_string(), "≥ 120,000 or ratio ≥ 0.2");
    }
}
