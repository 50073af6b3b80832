//! The executions whose rows say that their journals may have tails.
//!
//! A reader of such a row goes through the rows behind its head, even if there is no tail, and
//! believes nothing while one of them may be any execution's. So a heartbeat closes the tails, the
//! oldest first. An execution that does nothing more has none soon.
//!
//! Unlike [`crate::caches`], this is a list of duties, and only in memory. It survives writes of
//! others and transactions that are undone, because it may be too long: the row is read before a
//! tail is closed.
//!
//! - A tail that a transaction opens stays in the list when that is undone.
//! - One that it closes comes back when that is undone, or when nobody knows whether it happened.
//! - The list is empty after a process has begun. A claim adds what it leases.

use std::collections::VecDeque;

use crate::caches::ByKey;

/// The fewest places of which those that are over are taken out.
const PLACE_COUNT_MIN: usize = 1_024;

#[derive(Debug, Default)]
pub(crate) struct OpenTails {
    /// The numbers of the tails, by their executions.
    numbers: ByKey<u64>,
    /// Executions with the numbers of their tails, the oldest first. One that has another number by
    /// now, or none, is over.
    places: VecDeque<(i64, u64)>,
    opened_count: u64,
    /// The executions whose tails the current transaction has closed.
    closed: Vec<i64>,
    rests: bool,
}

impl OpenTails {
    pub(crate) fn open(&mut self, key: i64) {
        let number = self.opened_count;
        if *self.numbers.entry(key).or_insert(number) == number {
            self.opened_count += 1;
            self.places.push_back((key, number));
        }
    }

    /// Notes that the row says so no longer.
    pub(crate) fn close(&mut self, key: i64) {
        if self.numbers.remove(&key).is_some() {
            self.closed.push(key);
            self.close_up();
        }
    }

    /// Leaves a tail to the next commit or claim, because its rows cannot be read. The transaction
    /// is undone for that, and the next one closes no tails: it has other things to do.
    pub(crate) fn give_up(&mut self, key: i64) {
        self.numbers.remove(&key);
        self.rests = true;
    }

    /// Whether the last transaction was undone because of a tail. True once.
    pub(crate) fn rests(&mut self) -> bool {
        std::mem::take(&mut self.rests)
    }

    pub(crate) fn has(&self, key: i64) -> bool {
        self.numbers.contains_key(&key)
    }

    /// Returns the execution with the oldest tail.
    pub(crate) fn oldest(&mut self) -> Option<i64> {
        while let Some(place @ (key, _)) = self.places.front().copied() {
            if self.is_there(place) {
                return Some(key);
            }
            self.places.pop_front();
        }
        None
    }

    fn is_there(&self, (key, number): (i64, u64)) -> bool {
        self.numbers.get(&key) == Some(&number)
    }

    /// Most executions end before their tails are closed, and leave their places behind.
    fn close_up(&mut self) {
        if self.places.len() > PLACE_COUNT_MIN.max(2 * self.numbers.len()) {
            let numbers = &self.numbers;
            self.places.retain(|(key, number)| numbers.get(key) == Some(number));
        }
    }

    pub(crate) fn mark(&self) -> usize {
        self.closed.len()
    }

    /// Opens the tails again that were closed since a mark.
    pub(crate) fn undo_to(&mut self, mark: usize) {
        while self.closed.len() > mark {
            self.closed.pop().into_iter().for_each(|key| self.open(key));
        }
    }

    /// Keeps the changes after COMMIT.
    pub(crate) fn keep(&mut self) {
        self.closed.clear();
    }

    /// Returns memory that a busy time has left.
    pub(crate) fn shrink(&mut self) {
        let numbers = &self.numbers;
        self.places.retain(|(key, number)| numbers.get(key) == Some(number));
        self.places.shrink_to_fit();
        self.numbers.shrink_to_fit();
        self.closed.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(tails: &mut OpenTails) -> Vec<i64> {
        let mut found = Vec::new();
        while let Some(key) = tails.oldest() {
            found.push(key);
            tails.close(key);
        }
        found
    }

    #[test]
    fn the_oldest_comes_first_and_one_that_is_opened_again_last() {
        let mut tails = OpenTails::default();
        [5, 3, 9, 3].into_iter().for_each(|key| tails.open(key));
        tails.close(5);
        tails.open(5);
        tails.keep();
        assert_eq!(all(&mut tails), [3, 9, 5]);
    }

    #[test]
    fn what_is_undone_leaves_none_out() {
        let mut tails = OpenTails::default();
        [1, 2].into_iter().for_each(|key| tails.open(key));
        tails.close(1);
        let mark = tails.mark();
        tails.close(2);
        tails.open(3);
        tails.undo_to(mark);
        assert!(!tails.has(1) && tails.has(2) && tails.has(3));
        tails.undo_to(0);
        assert!([1, 2, 3].into_iter().all(|key| tails.has(key)));
        tails.close(2);
        tails.keep();
        tails.undo_to(0);
        assert!(!tails.has(2));
    }

    #[test]
    fn what_is_over_takes_no_memory() {
        let mut tails = OpenTails::default();
        tails.open(0);
        for nth in 0..100_000 {
            let key = nth % 7 + 1;
            tails.open(key);
            tails.close(key);
            tails.keep();
            assert!(tails.places.len() <= PLACE_COUNT_MIN + 1);
        }
        assert_eq!((all(&mut tails), tails.numbers.len()), (vec![0], 0));
    }
}
