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

    /// Takes what arrived and tells the order in force.
    pub(crate) fn take(&self) -> (Vec<Arrival>, Order) {
        let mut mail = self.lock();
        (std::mem::take(&mut mail.arrivals), mail.order)
    }

    /// The order in force.
    pub(crate) fn in_force(&self) -> Order {
        self.lock().order
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
