//! Panics of user code, as failures.

use std::any::Any;
use std::cell::RefCell;
use std::future::poll_fn;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::Once;
use std::task::Poll;

use abide_core::{Failure, FailureKind, text};

use crate::board::site_text;
use crate::driver::End;
use crate::runtime::BoxFuture;

/// A hook of the process for panics.
type Hook = Box<dyn Fn(&PanicHookInfo<'_>) + Send + Sync>;

thread_local! {
    /// The message of the last panic of this thread, and its line.
    static LAST: RefCell<Option<(Option<String>, String)>> = const { RefCell::new(None) };
}

/// Lets failures name the line of their panic, from now on. Only the hook of the process is told
/// that line, so this sets one, once, which calls the one before it. If a program sets another hook
/// later, failures name the line of the call instead.
pub fn watch() {
    static ONCE: Once = Once::new();
    // A panicking thread must not touch the hook; the next engine sets it.
    if std::thread::panicking() {
        return;
    }
    ONCE.call_once(|| panic::set_hook(noting(panic::take_hook())));
}

/// Returns a hook that notes the line of each panic and then calls `hook`.
pub fn noting(hook: Hook) -> Hook {
    Box::new(move |info| {
        if let Some(at) = info.location() {
            let message = info.payload_as_str().map(str::to_owned);
            let noted = (message, site_text(at.file(), at.line()));
            // While a thread ends, nothing is noted.
            let _ = LAST.try_with(|last| last.replace(Some(noted)));
        }
        hook(info);
    })
}

/// Returns the failure that stands for a panic that was caught on this thread. Its payload is
/// dropped here. A second panic, in the destructor of the payload, changes nothing.
pub fn failure(panic: Box<dyn Any + Send>) -> Failure {
    let failure = described(panic.as_ref());
    drop_caught(panic);
    failure
}

fn described(panic: &(dyn Any + Send)) -> Failure {
    let message = panic.downcast_ref::<&str>().copied();
    let message = message.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let noted = LAST.try_with(RefCell::take).ok().flatten();
    // A panic that is passed on calls no hook: the note may be about an earlier one.
    let site = noted.filter(|(noted, _)| noted.as_deref() == message).map(|(_, site)| site);
    let message = message.unwrap_or("a panic without a message");
    let mut failure = Failure::new(FailureKind::Panic, message);
    failure.type_name = "panic".to_owned();
    match site {
        Some(site) => failure.arising_at(|| site),
        None => failure,
    }
}

/// Drops a value of user code. Its destructor may panic, which changes nothing.
pub(crate) fn drop_caught<T>(value: T) {
    if let Err(panic) = panic::catch_unwind(AssertUnwindSafe(|| drop(value))) {
        // The payload may panic in its destructor, too.
        std::mem::forget(panic);
    }
}

/// Runs a driver to its end. User code is caught where a driver calls it, but it also runs where
/// its values are dropped. A panic there must not leave an execution behind that nobody runs.
pub(crate) async fn caught(mut running: BoxFuture<End>) -> End {
    let polled = poll_fn(|cx| match panic::catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(cx))) {
        Ok(polled) => polled.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await;
    let panic = match polled {
        Ok(end) => {
            // It may hold values of user code until now.
            drop_caught(running);
            return end;
        }
        Err(panic) => panic,
    };
    let failure = failure(panic);
    let site = failure.at.as_ref().and_then(|at| at.site.as_deref());
    let why = format!("{}{}", failure.message, text::at(site));
    drop_caught(running);
    End::Panicked(why)
}

#[cfg(test)]
mod tests {
    use std::panic::{catch_unwind, panic_any, resume_unwind};

    use super::*;

    fn site_of(panics: fn()) -> Option<String> {
        let panic = catch_unwind(panics).expect_err("it panics");
        failure(panic).at.as_ref().and_then(|at| at.site.clone())
    }

    #[test]
    fn a_panic_is_known_by_its_line_and_is_not_taken_for_another() {
        watch();
        let site = |line: u32| Some(format!("{}:{line}", file!()));
        assert_eq!(site_of(|| panic!("one {}", 1)), site(line!()));
        assert_eq!(site_of(|| panic_any(7)), site(line!()));
        assert!(catch_unwind(|| panic!("caught by others")).is_err());
        assert_eq!(site_of(|| resume_unwind(Box::new("passed on"))), None);
    }
}
