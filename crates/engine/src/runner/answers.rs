//! Answers of children that no code has received yet.

use super::*;

/// The answers, in the store's order.
#[derive(Default)]
pub(super) struct Answers {
    /// By number. An answer leaves a gap, because most come and leave in about the same order; the
    /// first one is no gap.
    letters: VecDeque<(u64, Option<(OpIndex, Letter)>)>,
    count: usize,
    /// The number of the first answer to each wait for a result.
    number_of: HashMap<OpIndex, u64, KeyHasher>,
}

impl Answers {
    pub(super) fn add(&mut self, key: OpIndex, letter: Letter) {
        let number = letter.number;
        let is_last = self.letters.back().is_none_or(|(last, _)| *last < number);
        debug_assert!(is_last, "mail comes in the order of its numbers");
        self.letters.push_back((number, Some((key, letter))));
        self.count += 1;
        self.number_of.entry(key).or_insert(number);
    }

    /// Returns the first answer that one of these waits is for, and its number.
    ///
    /// Every turn asks. A run may have thousands of answers that its code has not asked for, or
    /// thousands of waits without an answer, so the smaller of the two is gone through.
    pub(super) fn first(
        &self,
        waits: impl ExactSizeIterator<Item = OpIndex>,
        is_awaited: impl Fn(&OpIndex) -> bool,
    ) -> Option<(u64, &Letter)> {
        if waits.len() < self.count {
            let number = waits.filter_map(|key| self.number_of.get(&key)).min()?;
            return Some((*number, self.get(*number)?));
        }
        let mut answers =
            self.letters.iter().filter_map(|(number, answer)| Some((*number, answer.as_ref()?)));
        answers.find(|(_, (key, _))| is_awaited(key)).map(|(number, (_, letter))| (number, letter))
    }

    pub(super) fn get(&self, number: u64) -> Option<&Letter> {
        let (_, answer) = self.letters.get(self.place_of(number)?)?;
        answer.as_ref().map(|(_, letter)| letter)
    }

    /// Removes an answer. Returns it, with the wait that it is for.
    pub(super) fn remove(&mut self, number: u64) -> Option<(OpIndex, Letter)> {
        let place = self.place_of(number)?;
        let (key, letter) = self.letters.get_mut(place)?.1.take()?;
        self.count -= 1;
        self.number_of.remove(&key);
        self.close_gaps();
        Some((key, letter))
    }

    /// Returns where the answer with this number is. Most often that is the first one.
    fn place_of(&self, number: u64) -> Option<usize> {
        match self.letters.front() {
            Some((first, _)) if *first == number => Some(0),
            _ => self.letters.binary_search_by_key(&number, |(number, _)| *number).ok(),
        }
    }

    /// Forgets gaps at the front, and all gaps when most are: they are gone through.
    fn close_gaps(&mut self) {
        const GAP_COUNT_MAX: usize = 16;
        while self.letters.front().is_some_and(|(_, answer)| answer.is_none()) {
            self.letters.pop_front();
        }
        if self.letters.len() > 2 * self.count + GAP_COUNT_MAX {
            self.letters.retain(|(_, answer)| answer.is_some());
        }
    }

    /// Removes the answer to this wait.
    pub(super) fn remove_of(&mut self, key: OpIndex) -> Option<Letter> {
        let number = self.number_of.get(&key).copied()?;
        self.remove(number).map(|(_, letter)| letter)
    }

    pub(super) fn into_letters(self) -> impl Iterator<Item = Letter> {
        self.letters.into_iter().filter_map(|(_, answer)| Some(answer?.1))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use abide_core::{Address, Namespace, OpKind};

    use super::*;

    fn key(nth: u32) -> OpIndex {
        Op { kind: OpKind::ChildResult, name: Name::new("child").unwrap(), key: None, nth }.index()
    }

    fn answers(count: u32) -> Answers {
        let to = Address { namespace: Namespace::default(), id: ExecutionId::new("one").unwrap() };
        let mut answers = Answers::default();
        for nth in 1..=count {
            let body = Body::Cancel { reason: String::new() };
            let message = Message::new(MessageId::new(nth.to_string()), to.clone(), By::client(), body);
            answers.add(key(nth), Letter { number: nth.into(), message, left: None });
        }
        answers
    }

    /// Returns the first answer to these waits, and how many waits and answers were looked at.
    fn first(answers: &Answers, waits: &[u32]) -> (Option<u64>, usize) {
        let count = Cell::new(0);
        let looked = || count.set(count.get() + 1);
        let keys: Vec<OpIndex> = waits.iter().map(|nth| key(*nth)).collect();
        let is_awaited = |key: &OpIndex| {
            looked();
            keys.contains(key)
        };
        let found = answers.first(keys.iter().copied().inspect(|_| looked()), is_awaited);
        (found.map(|(number, _)| number), count.get())
    }

    #[test]
    fn the_first_answer_in_the_order_of_the_store_is_found() {
        let mut answers = answers(3);
        assert_eq!(first(&answers, &[3, 2]).0, Some(2));
        assert_eq!(first(&answers, &[7, 3, 2, 1]).0, Some(1));
        assert_eq!(first(&answers, &[]).0, None);
        answers.remove_of(key(2));
        assert_eq!(first(&answers, &[3, 2, 8, 9]).0, Some(3));
        assert!(answers.remove(2).is_none() && answers.remove(3).is_some());
        assert_eq!(answers.into_letters().count(), 1);
    }

    #[test]
    fn what_nobody_asked_for_is_not_gone_through() {
        assert_eq!(first(&answers(10_000), &[]), (None, 0), "a sleep beside answers");
        assert_eq!(first(&answers(10_000), &[9_999]), (Some(9_999), 1), "one wait beside answers");
        let waits: Vec<u32> = (1..=10_000).collect();
        assert_eq!(first(&Answers::default(), &waits), (None, 0), "a sleep beside waits");
        assert_eq!(first(&answers(5_000), &waits), (Some(1), 1), "all are waited for");
    }
}
