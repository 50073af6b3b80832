//! Answers of children that no code has received yet.

use super::*;

/// The answers, by their numbers in the store's order.
#[derive(Default)]
pub(super) struct Answers {
    by_number: BTreeMap<u64, (OpIndex, Letter)>,
    /// The first answer to each wait for a result.
    number_of: HashMap<OpIndex, u64, KeyHasher>,
}

impl Answers {
    pub(super) fn add(&mut self, number: u64, key: OpIndex, letter: Letter) {
        self.by_number.insert(number, (key, letter));
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
        if waits.len() < self.by_number.len() {
            let number = waits.filter_map(|key| self.number_of.get(&key)).min()?;
            return Some((*number, self.get(*number)?));
        }
        let mut answers = self.by_number.iter();
        answers.find(|(_, (key, _))| is_awaited(key)).map(|(number, (_, letter))| (*number, letter))
    }

    pub(super) fn get(&self, number: u64) -> Option<&Letter> {
        self.by_number.get(&number).map(|(_, letter)| letter)
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Letter> {
        let (key, letter) = self.by_number.remove(&number)?;
        self.number_of.remove(&key);
        Some(letter)
    }

    /// Removes the answer to this wait.
    pub(super) fn remove_of(&mut self, key: OpIndex) -> Option<Letter> {
        let number = self.number_of.get(&key).copied()?;
        self.remove(number)
    }

    pub(super) fn into_letters(self) -> impl Iterator<Item = Letter> {
        self.by_number.into_values().map(|(_, letter)| letter)
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
            answers.add(u64::from(nth), key(nth), Letter { message, left: None });
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
