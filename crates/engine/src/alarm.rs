//! An alarm that a polled future sets anew whenever its time changes.

use std::task::Context;

use crate::runtime::BoxFuture;

/// Sets an alarm, unless it is already set to that time. Returns `true` if it has rung; then it is
/// no longer set.
pub(crate) fn ring<T: PartialEq + Copy>(
    alarm: &mut Option<(T, BoxFuture<()>)>,
    at: Option<T>,
    sleep: impl FnOnce(T) -> BoxFuture<()>,
    cx: &mut Context<'_>,
) -> bool {
    let Some(at) = at else {
        *alarm = None;
        return false;
    };
    if alarm.as_ref().is_none_or(|(set, _)| *set != at) {
        *alarm = Some((at, sleep(at)));
    }
    let has_rung = alarm.as_mut().is_some_and(|(_, sleep)| sleep.as_mut().poll(cx).is_ready());
    if has_rung {
        *alarm = None;
    }
    has_rung
}
