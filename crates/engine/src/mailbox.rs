//! The mail and orders that reach a runner from outside.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::inbox::{Arrival, Arrivals};
use crate::task_waker::TaskWaker;

/// News and orders for one resident execution.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    mail: Mutex<Mail>,
    /// Whether `mail` has something that was not taken. A seat asks at every turn, and mostly it
    /// has not.
    has_news: AtomicBool,
    /// Whether a commit is under way. This goes the other way: the seat says it.
    is_committing: AtomicBool,
    pub(crate) task: TaskWaker,
}

#[derive(Debug, Default)]
struct Mail {
    arrivals: Arrivals,
    /// The engine's order to the runner.
    order: Order,
    /// The store does not have the lease.
    is_doubted: bool,
    /// The execution has run alone for long enough.
    is_to_be_joined: bool,
}

/// News for a seat.
#[derive(Debug)]
pub(crate) struct News {
    pub(crate) arrivals: Vec<Arrival>,
    /// The order in force.
    pub(crate) order: Order,
    /// Whether the store did not have the lease when it was asked: the lease was returned by a
    /// commit whose answer is on its way, or it is lost.
    pub(crate) is_doubted: bool,
    /// Whether the execution is a suspect that has run alone for long enough: others are let in
    /// when that is recorded.
    pub(crate) is_to_be_joined: bool,
}

/// An order of the engine to a driver. Later ones outrank earlier ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Order {
    /// To go on.
    #[default]
    Run,
    /// To start no closure, and to return the lease when none runs any longer.
    Drain,
    /// To return the lease now, whatever runs.
    Leave,
    /// To stop without another write: the lease is lost.
    Abandon,
}

impl Mailbox {
    pub(crate) fn deliver(&self, arrivals: Vec<Arrival>) {
        self.put(|mail| mail.arrivals.add(arrivals));
    }

    pub(crate) fn order(&self, order: Order) {
        self.put(|mail| mail.order = mail.order.max(order));
    }

    /// Records that the store does not have the lease. A runner without a commit under way that
    /// could have returned the lease has lost it.
    pub(crate) fn doubt(&self) {
        self.put(|mail| mail.is_doubted = true);
    }

    /// Whether the lease was given up.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.lock().order == Order::Abandon
    }

    /// Ends the time that a suspect has alone.
    pub(crate) fn join(&self) {
        self.put(|mail| mail.is_to_be_joined = true);
    }

    /// Sets whether a commit is under way.
    pub(crate) fn set_committing(&self, is_committing: bool) {
        self.is_committing.store(is_committing, Ordering::Relaxed);
    }

    /// Whether a commit was under way when the driver was polled last.
    pub(crate) fn is_committing(&self) -> bool {
        self.is_committing.load(Ordering::Relaxed)
    }

    /// Changes the mail, and only then wakes the task: otherwise it could look too early and miss
    /// the news.
    fn put(&self, change: impl FnOnce(&mut Mail)) {
        {
            let mut mail = self.lock();
            change(&mut mail);
            self.has_news.store(true, Ordering::Release);
        }
        self.task.wake();
    }

    /// Whether there is news to take.
    pub(crate) fn has_news(&self) -> bool {
        self.has_news.load(Ordering::Acquire)
    }

    /// Takes the news, if there is any.
    pub(crate) fn take(&self) -> Option<News> {
        if !self.has_news() {
            return None;
        }
        let mut mail = self.lock();
        self.has_news.store(false, Ordering::Relaxed);
        Some(News {
            arrivals: std::mem::take(&mut mail.arrivals).into_kept(),
            order: mail.order,
            is_doubted: std::mem::take(&mut mail.is_doubted),
            is_to_be_joined: std::mem::take(&mut mail.is_to_be_joined),
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bring: impl Fn(&Mailbox), expected: (usize, Order, bool)) {
        let mailbox = Mailbox::default();
        assert!(mailbox.take().is_none());
        bring(&mailbox);
        let news = mailbox.take().expect("there is news");
        assert_eq!((news.arrivals.len(), news.order, news.is_doubted), expected);
        assert!(mailbox.take().is_none());
    }

    #[test]
    fn all_news_is_seen_once() {
        check(|mailbox| mailbox.deliver(vec![Arrival::More]), (1, Order::Run, false));
        check(|mailbox| mailbox.order(Order::Drain), (0, Order::Drain, false));
        check(Mailbox::doubt, (0, Order::Run, true));
    }
}
