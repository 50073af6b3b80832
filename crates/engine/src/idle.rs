//! When an engine has become idle.
//!
//! Memory is given back then, once, and not while there is work: to return it and fault it in again
//! costs a fifth of the rate of short workflows.

use std::time::Duration;

use crate::runtime::Moment;

/// How long nothing may begin before an engine counts as idle.
const IDLE_AFTER: Duration = Duration::from_secs(1);

/// How busy an engine is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Activity {
    /// How often a runner began to have work. It may wrap around.
    pub(crate) begun: u64,
    /// How many runners have work now.
    pub(crate) runnable_count: u64,
}

/// Decides, from looks now and then, when an engine has become idle. It asks for looks of its own
/// only after something has happened: nothing ticks in an idle process, nor beside a step that
/// runs for hours.
#[derive(Debug, Default)]
pub(crate) struct Idleness {
    begun: u64,
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// It was idle, and that was said.
    #[default]
    Idle,
    /// Something had work at the last look, and nothing has begun since the one before.
    Working,
    /// Something had begun before this moment, perhaps just before.
    Since(Moment),
}

impl Idleness {
    /// Looks at the engine. Returns whether it has just become idle.
    pub(crate) fn look(&mut self, activity: Activity, moment: Moment) -> bool {
        let has_begun = self.begun != activity.begun;
        self.begun = activity.begun;
        let is_over = |since| moment.since(since) >= IDLE_AFTER;
        let (state, is_told) = match self.state {
            _ if has_begun => (State::Since(moment), false),
            State::Idle => (State::Idle, false),
            _ if activity.runnable_count > 0 => (State::Working, false),
            State::Since(since) if is_over(since) => (State::Idle, true),
            State::Since(since) => (State::Since(since), false),
            State::Working => (State::Since(moment), false),
        };
        self.state = state;
        is_told
    }

    /// Returns when to look again at the latest.
    pub(crate) fn look_at(&self) -> Option<Moment> {
        match self.state {
            State::Since(since) => Some(since.after(IDLE_AFTER)),
            State::Idle | State::Working => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::new(Duration::from_millis(millis))
    }

    /// Looks at an engine at these times, in milliseconds. Returns what each look said: `idle`, or
    /// when the next one is wanted.
    fn check(looks: &[(u64, u64, u64)]) -> Vec<String> {
        let mut idleness = Idleness::default();
        let look = |&(millis, begun, runnable_count): &(u64, u64, u64)| {
            let is_idle = idleness.look(Activity { begun, runnable_count }, at(millis));
            match (is_idle, idleness.look_at()) {
                (true, None) => "idle".to_owned(),
                (false, None) => "later".to_owned(),
                (false, Some(moment)) => moment.since(at(0)).as_millis().to_string(),
                (true, Some(_)) => panic!("it is idle and wants another look"),
            }
        };
        looks.iter().map(look).collect()
    }

    #[test]
    fn an_engine_is_idle_once_after_work() {
        assert_eq!(check(&[(0, 0, 0), (2_000, 0, 0)]), ["later", "later"], "it had no work");
        let looks = [(0, 1, 0), (500, 1, 0), (1_000, 1, 0), (2_000, 1, 0), (4_000, 1, 0)];
        assert_eq!(check(&looks), ["1000", "1000", "idle", "later", "later"]);
    }

    #[test]
    fn work_puts_idleness_off() {
        let looks = [(0, 1, 0), (900, 5, 0), (1_000, 5, 0), (1_900, 5, 0), (4_000, 6, 0), (5_000, 6, 0)];
        assert_eq!(check(&looks), ["1000", "1900", "1900", "idle", "5000", "idle"]);
    }

    #[test]
    fn nothing_ticks_beside_a_long_step() {
        let looks = [(0, 1, 1), (1_000, 1, 1), (3_000, 1, 1), (5_000, 1, 0), (5_500, 1, 0), (6_000, 1, 0)];
        assert_eq!(check(&looks), ["1000", "later", "later", "6000", "6000", "idle"]);
    }
}
