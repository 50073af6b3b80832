//! Looks after executions that nobody serves, without their code.
//!
//! Any engine of the namespace does this, whatever lanes, code and capabilities it has: see
//! [`abide_core::care`].

use std::future::poll_fn;
use std::task::{Context, Poll};

use abide_core::{Command, Entry, care};
use abide_store::{Hold, Opening};

use crate::driver::{Driver, End};
use crate::runtime::BoxFuture;
use crate::seat::{Leave, Seat};

/// A driver that applies orders and a passed deadline, and leaves the rest to a worker with the
/// code.
pub(crate) struct Caretaker;

impl Driver for Caretaker {
    fn begin(&self, mut seat: Seat, _opening: Opening) -> BoxFuture<End> {
        seat.stay_first();
        let mut care = Care { seat, left_count: 0 };
        Box::pin(poll_fn(move |cx| {
            care.seat.enter(cx);
            let polled = care.poll(cx);
            match &polled {
                Poll::Pending => care.seat.leave(false),
                Poll::Ready(_) => care.seat.vacate(),
            }
            polled
        }))
    }
}

struct Care {
    seat: Seat,
    /// The number of orders that are left for the code to see.
    left_count: usize,
}

impl Care {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            if let Poll::Ready(end) = self.seat.poll_end(cx) {
                return Poll::Ready(end);
            }
            if self.seat.is_busy() {
                return Poll::Pending;
            }
            if let Some(entries) = self.obey().or_else(|| self.expire()) {
                if let Some(last) = entries.into_iter().next_back().filter(|last| last.event.is_terminal()) {
                    self.seat.finish(last.event);
                }
                continue;
            }
            // An order may be on a later page.
            if !self.seat.has_all_mail() {
                return Poll::Pending;
            }
            self.go();
        }
    }

    /// Applies the next order that needs no code.
    fn obey(&mut self) -> Option<Option<Entry>> {
        loop {
            let order = self.seat.next_order()?;
            let ends_unseen = self.seat.execution().ends_unseen(self.seat.is_first());
            if care::applies(&order.body, ends_unseen) {
                return Some(self.seat.apply(&order, false));
            }
            self.left_count += 1;
        }
    }

    /// Applies a deadline after the code has had its time to see it.
    fn expire(&mut self) -> Option<Option<Entry>> {
        let is_due = self.seat.execution().care_at().is_some_and(|at| at <= self.seat.now());
        if is_due { self.seat.decide(Command::ExpireDeadline).ok() } else { None }
    }

    /// Returns the lease. An execution that may run, or has an order that only code can follow, is
    /// ready for a worker with the code.
    fn go(&mut self) {
        let is_for_code = self.seat.may_run() || self.left_count > 0;
        let hold = if is_for_code { Hold::Yield } else { self.seat.parked() };
        self.seat.send(Leave { hold, waiting: &[], wake_at: None, end: Some(End::Released) });
    }
}
