//! An alarm that a polled future sets anew whenever its time changes.

use std::task::Context;

use crate::runtime::BoxFuture;

/// Sets an alarm, unless it is already set to that time. If it has rung, it is no longer set, and
/// the task is woken to look again.
///
/// The caller does not look again itself: a time that has come and that nothing follows from would
/// ring at each look, and the task would never return to its executor.
pub(crate) fn ring<T: PartialEq + Copy>(
    alarm: &mut Option<(T, BoxFuture<()>)>,
    at: Option<T>,
    sleep: impl FnOnce(T) -> BoxFuture<()>,
    cx: &mut Context<'_>,
) {
    let Some(at) = at else {
        *alarm = None;
        return;
    };
    if alarm.as_ref().is_none_or(|(set, _)| *set != at) {
        *alarm = Some((at, sleep(at)));
    }
    if alarm.as_mut().is_some_and(|(_, sleep)| sleep.as_mut().poll(cx).is_ready()) {
        *alarm = None;
        cx.waker().wake_by_ref();
    }
}
