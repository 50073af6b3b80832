//! The result of checking a whole store.

/// The most problems that are reported.
const PROBLEM_COUNT_MAX: usize = 100;

/// The result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verification {
    /// The number of executions.
    pub execution_count: u64,
    /// The number of abide's own executions, which no list shows.
    pub own_count: u64,
    /// The number of their journal entries.
    pub entry_count: u64,
    /// The problems, one sentence each; at most 100.
    pub problems: Vec<String>,
}

impl Verification {
    /// Whether there are no problems.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }

    /// Adds a problem, unless there are very many.
    pub fn add(&mut self, problem: String) {
        if self.problems.len() < PROBLEM_COUNT_MAX {
            self.problems.push(problem);
        }
    }
}
