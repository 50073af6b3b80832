//! A queue that seldom has more than one element.

use std::collections::VecDeque;

/// A queue that seldom has more than one element: the first one takes no memory of its own. A
/// workflow that waits for one operation at a time has several such queues, each with one element
/// for a moment.
#[derive(Clone, Debug)]
pub(crate) struct Line<T> {
    first: Option<T>,
    /// The others. There are none without a first one.
    rest: VecDeque<T>,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self { first: None, rest: VecDeque::new() }
    }
}

impl<T> Line<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(crate) fn push_back(&mut self, element: T) {
        match self.first {
            None => self.first = Some(element),
            Some(_) => self.rest.push_back(element),
        }
    }

    pub(crate) fn push_front(&mut self, element: T) {
        if let Some(second) = self.first.replace(element) {
            self.rest.push_front(second);
        }
    }

    pub(crate) fn pop_front(&mut self) -> Option<T> {
        // Not moved when there is none: an element may be large.
        self.first.as_ref()?;
        let front = self.first.take();
        self.close_up();
        front
    }

    /// Returns the first element.
    pub(crate) fn front(&self) -> Option<&T> {
        self.first.as_ref()
    }

    /// Returns the last element.
    pub(crate) fn back(&self) -> Option<&T> {
        self.rest.back().or(self.first.as_ref())
    }

    /// Removes the first element if it is the one.
    pub(crate) fn pop_front_if(&mut self, is_it: impl FnOnce(&T) -> bool) {
        if self.first.as_ref().is_some_and(is_it) {
            self.pop_front();
        }
    }

    /// Keeps the elements that are wanted.
    pub(crate) fn retain(&mut self, is_wanted: impl Fn(&T) -> bool) {
        self.rest.retain(&is_wanted);
        self.first.take_if(|first| !is_wanted(first));
        self.close_up();
    }

    /// Lets the second element become the first, if that is gone.
    fn close_up(&mut self) {
        if self.first.is_none() && !self.rest.is_empty() {
            self.first = self.rest.pop_front();
        }
    }
}

impl<T> Extend<T> for Line<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, elements: I) {
        let mut elements = elements.into_iter();
        if self.first.is_none() {
            self.first = elements.next();
        }
        self.rest.extend(elements);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(mut line: Line<u32>, expected: &[u32]) {
        assert_eq!((line.is_empty(), line.back()), (expected.is_empty(), expected.last()));
        assert_eq!(std::iter::from_fn(|| line.pop_front()).collect::<Vec<_>>(), expected);
    }

    fn line(elements: &[u32]) -> Line<u32> {
        let mut line = Line::default();
        line.extend(elements.iter().copied());
        line
    }

    #[test]
    fn it_is_a_queue_of_any_length() {
        for length in 0..5 {
            let elements: Vec<u32> = (0..length).collect();
            check(line(&elements), &elements);
            let mut longer = line(&elements);
            longer.push_front(7);
            check(longer, &[&[7][..], &elements].concat());
        }
    }

    #[test]
    fn elements_leave_from_every_place() {
        for gone in 0..3 {
            let mut left = line(&[0, 1, 2]);
            left.retain(|element| *element != gone);
            check(left, &(0..3).filter(|element| *element != gone).collect::<Vec<_>>());
        }
        let mut left = line(&[0, 1, 2]);
        left.retain(|_| false);
        check(left.clone(), &[]);
        left.push_back(5);
        left.pop_front_if(|element| *element == 4);
        check(left.clone(), &[5]);
        left.pop_front_if(|element| *element == 5);
        check(left, &[]);
    }
}
