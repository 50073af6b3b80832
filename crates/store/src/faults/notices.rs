//! Faults of notices. Nobody learns that something was wrong with a notice, which is why notices
//! are only hints.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use abide_core::SessionId;

use super::Chances;
use crate::Notice;
use crate::prng::Prng;

/// The fate of one notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeFault {
    /// Nothing unusual.
    None,
    /// It never comes.
    Lose,
    /// It comes together with later notices, after them, if there are any.
    Delay,
    /// It comes twice.
    Repeat,
    /// It comes before notices that were sent earlier.
    Overtake,
}

type Decide = Box<dyn FnMut(&Notice) -> NoticeFault + Send>;

pub(super) struct Disturbance(Mutex<Inner>);

struct Inner {
    decide: Decide,
    delayed: BTreeMap<SessionId, Vec<Notice>>,
}

impl Disturbance {
    pub(super) fn deciding(decide: impl FnMut(&Notice) -> NoticeFault + Send + 'static) -> Self {
        Self(Mutex::new(Inner { decide: Box::new(decide), delayed: BTreeMap::new() }))
    }

    /// Whether this notice never comes.
    pub(super) fn loses(&self, notice: &Notice) -> bool {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (inner.decide)(notice) == NoticeFault::Lose
    }

    /// Returns the notices as they arrive: none, if all of them are lost or late.
    pub(super) fn disturb(&self, session: SessionId, notices: Vec<Notice>, is_healed: bool) -> Vec<Notice> {
        // A closure that panicked may still decide: it has no state that others rely on.
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { decide, delayed } = &mut *inner;
        let mut arriving = VecDeque::new();
        let late = delayed.remove(&session).unwrap_or_default();
        for notice in notices {
            match if is_healed { NoticeFault::None } else { decide(&notice) } {
                NoticeFault::None => arriving.push_back(notice),
                NoticeFault::Lose => {}
                NoticeFault::Delay => delayed.entry(session).or_default().push(notice),
                NoticeFault::Repeat => arriving.extend([notice.clone(), notice]),
                NoticeFault::Overtake => arriving.push_front(notice),
            }
        }
        arriving.extend(late);
        arriving.into()
    }
}

impl Chances {
    pub(super) fn draw_notice(&self, prng: &mut Prng) -> NoticeFault {
        let mut drawn = prng.below(1_000);
        let chances = [
            (self.notice_lose_permille, NoticeFault::Lose),
            (self.notice_delay_permille, NoticeFault::Delay),
            (self.notice_repeat_permille, NoticeFault::Repeat),
            (self.notice_overtake_permille, NoticeFault::Overtake),
        ];
        for (permille, fault) in chances {
            let permille = usize::from(permille);
            if drawn < permille {
                return fault;
            }
            drawn -= permille;
        }
        NoticeFault::None
    }
}
