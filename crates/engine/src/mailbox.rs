//! What reaches a runner from outside.

use std::sync::{Mutex, PoisonError};

use crate::inbox::{self, Arrival};
use crate::task_waker::TaskWaker;

/// News and orders for one resident execution.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    mail: Mutex<Mail>,
    pub(crate) task: TaskWaker,
}

#[derive(Debug, Default)]
struct Mail {
    arrivals: Vec<Arrival>,
    /// What the engine wants of the runner.
    order: Order,
    /// The store does not have the lease.
    is_doubted: bool,
}

/// What is new for a seat.
#[derive(Debug)]
pub(crate) struct News {
    pub(crate) arrivals: Vec<Arrival>,
    /// The order in force.
    pub(crate) order: Order,
    /// The store did not have the lease when it was asked: it was given back by a commit whose answer is on its way, or it is lost.
    pub(crate) is_doubted: bool,
}

/// What the engine wants of a driver. Later ones outrank earlier ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Order {
    /// To go on.
    #[default]
    Run,
    /// To start no closure, and to give the lease back when none runs any longer.
    Drain,
    /// To give the lease back now, whatever runs.
    Leave,
    /// To stop without another write: the lease is lost.
    Abandon,
}

impl Mailbox {
    pub(crate) fn deliver(&self, arrivals: Vec<Arrival>) {
        inbox::add(&mut self.lock().arrivals, arrivals);
        self.task.wake();
    }

    pub(crate) fn order(&self, order: Order) {
        {
            let mut mail = self.lock();
            mail.order = mail.order.max(order);
        }
        self.task.wake();
    }

    /// The store does not have the lease. Whoever has no commit under way that could have given it back has lost it.
    pub(crate) fn doubt(&self) {
        self.lock().is_doubted = true;
        self.task.wake();
    }

    /// Takes what is new.
    pub(crate) fn take(&self) -> News {
        let mut mail = self.lock();
        News {
            arrivals: std::mem::take(&mut mail.arrivals),
            order: mail.order,
            is_doubted: std::mem::take(&mut mail.is_doubted),
        }
    }

    /// The order in force, for those who have no commit under way.
    pub(crate) fn in_force(&self) -> Order {
        let mail = self.lock();
        if mail.is_doubted { Order::Abandon } else { mail.order }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
