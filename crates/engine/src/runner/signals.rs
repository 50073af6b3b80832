//! Signals and the waits for them.

use super::*;
use crate::board::Rejection;
use abide_core::RejectedSignal;

/// The receiver of a signal.
enum Reader {
    /// The first wait for its name that can read it.
    Wait(u64, Op),
    /// Nobody: this wait is the first, and it cannot read the signal.
    Nobody(Op, Rejection),
    /// Nobody: the waits have been dropped.
    Gone,
}

impl Runner {
    /// Hands the first signal of a name to the first wait that can read it. A signal that no wait
    /// can read is set aside, and the waits go on. Returns `false` while the payload is on its way.
    pub(super) fn receive_signal(&mut self, name: &Name) -> bool {
        let Some(signal) = self.signals.get(name).and_then(VecDeque::front) else { return true };
        let message = signal.id.clone();
        let payload = match &signal.payload {
            Ok(payload) => payload.clone(),
            Err(left) => match self.seat.fetch(&message, *left) {
                Some(Message { body: Body::Signal { payload, .. }, .. }) => payload,
                Some(_) => unreachable!("a message never changes"),
                None => return false,
            },
        };
        let reader = self.reader(name, &payload);
        match &reader {
            Reader::Gone => return true,
            Reader::Wait(..) | Reader::Nobody(..) if self.is_over_length() => return true,
            Reader::Wait(..) | Reader::Nobody(..) => {}
        }
        let signal = self.signals.get_mut(name).and_then(VecDeque::pop_front);
        let Some(Signal { by, arrived_at, .. }) = signal else { return true };
        if !planted(Bug::SignalReadTwice) {
            self.seat.consume(message.clone());
        }
        let command = match reader {
            Reader::Wait(id, op) => {
                if let Some(active) = self.run.stage.active_mut() {
                    active.leave_lines(id);
                }
                Command::ReceiveSignal { op, message, payload }
            }
            Reader::Nobody(op, Rejection { expected, complaint }) => {
                let rejected = RejectedSignal { op, message, by, arrived_at, payload, expected, complaint };
                tracing::debug!(address = %self.seat.execution().address(), ?name, %rejected, "a signal is set aside");
                Command::RejectSignal(Box::new(rejected))
            }
            Reader::Gone => unreachable!("the function has returned for it"),
        };
        let site = match &command {
            Command::ReceiveSignal { op, .. } => self.site(op),
            Command::RejectSignal(rejected) => self.site(&rejected.op),
            _ => None,
        };
        let is_delivery = matches!(command, Command::ReceiveSignal { .. });
        if let Ok(entry) = self.decide_from(site, command)
            && is_delivery
        {
            self.deliver_new(entry);
        }
        true
    }

    /// Returns the wait that can read this payload of a signal of this name. Forgets dropped waits.
    fn reader(&mut self, name: &Name, payload: &Payload) -> Reader {
        let Some(active) = self.run.stage.active_mut() else { return Reader::Gone };
        let mut waiters = active.signal_waiters.remove(name).unwrap_or_default();
        waiters.retain(|id| active.open_op(*id).is_some());
        let mut nobody = None;
        let mut found = None;
        for id in &waiters {
            let Some(op) = active.open_op(*id) else { continue };
            match active.check(*id, payload).filter(|_| !planted(Bug::BadSignalBlocks)) {
                None => {
                    found = Some(Reader::Wait(*id, op));
                    break;
                }
                Some(rejection) => _ = nobody.get_or_insert((op, rejection)),
            }
        }
        if !waiters.is_empty() {
            active.signal_waiters.insert(name.clone(), waiters);
        }
        match (found, nobody) {
            (Some(found), _) => found,
            (None, Some((op, rejection))) => Reader::Nobody(op, rejection),
            (None, None) => Reader::Gone,
        }
    }
}

impl Active {
    /// Returns why the wait in a slot cannot read this payload, if it cannot.
    fn check(&self, id: u64, payload: &Payload) -> Option<Rejection> {
        let check = match &self.board.0.lock().slots.get(&id)?.request {
            Request::Signal { check, .. } => check.clone(),
            _ => return None,
        };
        // This is the user's code, which must not find the board locked.
        check(payload).err()
    }
}
