//! What reaches a runner from outside.

use std::sync::{Mutex, PoisonError};

use abide_core::Message;

use crate::task_waker::TaskWaker;

/// Messages and orders for one resident execution.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    mail: Mutex<Mail>,
    pub(crate) task: TaskWaker,
}

#[derive(Debug, Default)]
pub(crate) struct Mail {
    /// Messages that arrived.
    pub(crate) messages: Vec<Message>,
    /// What the engine wants of the runner.
    pub(crate) order: Order,
}

/// What the engine wants of a runner. Later ones outrank earlier ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Order {
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
    pub(crate) fn deliver(&self, messages: impl IntoIterator<Item = Message>) {
        self.lock().messages.extend(messages);
        self.task.wake();
    }

    pub(crate) fn order(&self, order: Order) {
        {
            let mut mail = self.lock();
            mail.order = mail.order.max(order);
        }
        self.task.wake();
    }

    /// Takes the messages and tells the order in force.
    pub(crate) fn take(&self) -> (Vec<Message>, Order) {
        let mut mail = self.lock();
        (std::mem::take(&mut mail.messages), mail.order)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
