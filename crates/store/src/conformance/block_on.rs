//! The smallest executor: one future, on this thread.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

/// How long a store may be silent before a case fails instead of hanging.
const SILENT_MAX: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(50);

/// Polls `future` until it is done.
///
/// # Panics
///
/// Panics when nothing wakes it for half a minute.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let alarm = Arc::new(Alarm { thread: thread::current(), rung: AtomicBool::new(true) });
    let waker = Waker::from(alarm.clone());
    let mut silent = Duration::ZERO;
    loop {
        if alarm.rung.swap(false, Ordering::SeqCst) {
            silent = Duration::ZERO;
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return output;
            }
        } else {
            assert!(silent < SILENT_MAX, "the store gave no answer for {SILENT_MAX:?}");
            thread::park_timeout(LOOK);
            silent += LOOK;
        }
    }
}

struct Alarm {
    thread: Thread,
    rung: AtomicBool,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.rung.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// Returns both outputs. The futures are polled in turn on one task, `first` first.
pub(super) async fn both<A: Future, B: Future>(first: A, second: B) -> (A::Output, B::Output) {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut one, mut two) = (None, None);
    poll_fn(move |context| {
        poll_into(&mut one, first.as_mut(), context);
        poll_into(&mut two, second.as_mut(), context);
        match (one.take(), two.take()) {
            (Some(first), Some(second)) => Poll::Ready((first, second)),
            (first, second) => {
                (one, two) = (first, second);
                Poll::Pending
            }
        }
    })
    .await
}

fn poll_into<F: Future>(output: &mut Option<F::Output>, future: Pin<&mut F>, context: &mut Context<'_>) {
    if output.is_none()
        && let Poll::Ready(ready) = future.poll(context)
    {
        *output = Some(ready);
    }
}
