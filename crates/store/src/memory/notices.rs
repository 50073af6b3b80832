//! Hints for waiting callers.

use std::collections::BTreeMap;
use std::task::Waker;

use abide_core::SessionId;

use crate::Notice;

/// The most notices that are kept for one session. Two notices without details replace a longer
/// queue.
const NOTICE_COUNT_MAX: usize = 1_024;

#[derive(Default)]
pub(super) struct Notices {
    queues: BTreeMap<SessionId, NoticeQueue>,
    /// Callers that wait for the feed to grow.
    followers: Vec<Waker>,
    /// Callers to be woken when the lock is released.
    woken: Vec<Waker>,
}

#[derive(Default)]
struct NoticeQueue {
    notices: Vec<Notice>,
    wakers: Vec<Waker>,
}

impl Notices {
    pub(super) fn push(&mut self, session: SessionId, notice: Notice) {
        let queue = self.queues.entry(session).or_default();
        let told = !matches!(notice, Notice::Message { .. }) && queue.notices.contains(&notice);
        if !told {
            queue.notices.push(notice);
        }
        if queue.notices.len() > NOTICE_COUNT_MAX {
            let has_intake = queue.notices.contains(&Notice::Intake).then_some(Notice::Intake);
            queue.notices = [Notice::Ready, Notice::Changed].into_iter().chain(has_intake).collect();
        }
        self.woken.append(&mut queue.wakers);
    }

    pub(super) fn take(&mut self, session: SessionId) -> Vec<Notice> {
        self.queues.get_mut(&session).map(|queue| std::mem::take(&mut queue.notices)).unwrap_or_default()
    }

    pub(super) fn wake_later(&mut self, session: SessionId, waker: &Waker) {
        let wakers = &mut self.queues.entry(session).or_default().wakers;
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }

    pub(super) fn wake_follower_later(&mut self, waker: &Waker) {
        if !self.followers.iter().any(|known| known.will_wake(waker)) {
            self.followers.push(waker.clone());
        }
    }

    pub(super) fn wake_followers(&mut self) {
        self.woken.append(&mut self.followers);
    }

    /// Ends all waits for a session that has ended.
    pub(super) fn close(&mut self, session: SessionId) {
        if let Some(mut queue) = self.queues.remove(&session) {
            self.woken.append(&mut queue.wakers);
        }
    }

    /// Ends all waits.
    pub(super) fn close_all(&mut self) {
        self.wake_followers();
        for mut queue in std::mem::take(&mut self.queues).into_values() {
            self.woken.append(&mut queue.wakers);
        }
    }

    pub(super) fn take_wakers(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.woken)
    }
}
