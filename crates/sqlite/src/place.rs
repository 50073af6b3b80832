//! Where an execution stands.

use abide_core::{Epoch, SessionId, Status, Summary, Timestamp};
use abide_store::NEWER_PAUSE;
use rusqlite::Row;

use crate::rows::{integer, sound_count};
use crate::tallies::Given;

/// An execution is in exactly one of these places. One index over `(place, rank, since)` finds those that something will be
/// done with: who holds what, what is ready in which order, which timer is next. A partial index for each question would
/// cost every insert and update a look at each. What only waits for a message and what has ended is not in the index.
///
/// `place` is four times a number plus a kind, so that each queue is one range of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It waits for a message, and only for that.
    Waiting,
    /// It has ended.
    Finished(Timestamp),
    /// It can be claimed.
    Ready(Queue, Timestamp),
    /// It waits for a time, and perhaps for messages too.
    Timer(i64, Timestamp),
    /// Something of it cannot be read: it was set aside, so that it delays nobody.
    Damaged(Timestamp),
    /// A session holds it, by a claim or, with the request 0, since it was born or its lease was kept.
    Held(Holder),
}

/// The queue of a route, and how far in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queue {
    pub(crate) route: i64,
    pub(crate) priority: i16,
}

impl Queue {
    /// Both as one number, for one column.
    pub(crate) fn number(self) -> i64 {
        (self.route << 16) | (i64::from(self.priority) - i64::from(i16::MIN))
    }

    pub(crate) fn of(number: i64) -> Self {
        let priority = (number & 0xffff) + i64::from(i16::MIN);
        Self { route: number >> 16, priority: i16::try_from(priority).expect("sixteen bits") }
    }
}

/// Who holds an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) session: SessionId,
    /// The claim that gave it; 0 when it was born leased.
    pub(crate) request: u64,
    /// After how many heartbeats of the session it was given.
    pub(crate) beat: u64,
    /// Its position among what that claim gave.
    pub(crate) position: u64,
}

impl Holder {
    /// Positions are below this: they share a column with the number of heartbeats.
    pub(crate) const POSITION_END: u64 = 1 << 24;
}

/// The columns of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Columns {
    pub(crate) place: i64,
    pub(crate) rank: i64,
    pub(crate) since: i64,
}

impl Columns {
    pub(crate) fn read(row: &Row<'_>, index: usize) -> rusqlite::Result<Self> {
        Ok(Self { place: row.get(index)?, rank: row.get(index + 1)?, since: row.get(index + 2)? })
    }
}

const FINISHED: i64 = 4;
const DAMAGED: i64 = 8;

/// The place of what is ready in a route.
pub(crate) fn ready(route: i64) -> i64 {
    route * 4 + 1
}

/// The place of the timers of a route.
pub(crate) fn timers(route: i64) -> i64 {
    route * 4 + 2
}

/// The place of what a session holds.
pub(crate) fn held(session: SessionId) -> i64 {
    integer(session.0).saturating_mul(4).saturating_add(3)
}

impl Place {
    pub(crate) fn columns(self) -> Columns {
        match self {
            Self::Waiting => Columns { place: 0, rank: 0, since: 0 },
            Self::Finished(at) => Columns { place: FINISHED, rank: 0, since: at.as_micros() },
            Self::Damaged(at) => Columns { place: DAMAGED, rank: 0, since: at.as_micros() },
            // The lowest rank comes first.
            Self::Ready(Queue { route, priority }, at) => {
                Columns { place: ready(route), rank: -i64::from(priority), since: at.as_micros() }
            }
            Self::Timer(route, at) => Columns { place: timers(route), rank: 0, since: at.as_micros() },
            Self::Held(Holder { session, request, beat, position }) => {
                let since = beat.saturating_mul(Holder::POSITION_END).saturating_add(position);
                Columns { place: held(session), rank: integer(request), since: integer(since) }
            }
        }
    }

    pub(crate) fn of(Columns { place, rank, since }: Columns) -> Option<Self> {
        let (number, at) = (place.div_euclid(4), Timestamp::from_micros(since));
        Some(match (place.rem_euclid(4), number) {
            (0, 0) => Self::Waiting,
            (0, 1) => Self::Finished(at),
            (0, 2) => Self::Damaged(at),
            (1, route) => {
                Self::Ready(Queue { route, priority: i16::try_from(rank.checked_neg()?).ok()? }, at)
            }
            // Whoever looks for what is due looks at this rank alone.
            (2, route) if rank == 0 => Self::Timer(route, at),
            (3, session) => {
                let since = sound_count(since)?;
                Self::Held(Holder {
                    session: SessionId(sound_count(session)?),
                    request: sound_count(rank)?,
                    beat: since / Holder::POSITION_END,
                    position: since % Holder::POSITION_END,
                })
            }
            _ => return None,
        })
    }

    /// Reads the three columns that begin at `index`.
    pub(crate) fn read(row: &Row<'_>, index: usize) -> rusqlite::Result<Self> {
        let columns = Columns::read(row, index)?;
        Self::of(columns).ok_or_else(|| {
            let complaint = match columns.place.rem_euclid(4) {
                2 => format!("there is no rank {} among timers", columns.rank),
                3 if columns.place > 0 => {
                    format!(
                        "there is no place {} of a holder, at {}, {}",
                        columns.place, columns.rank, columns.since
                    )
                }
                _ => format!("there is no place {}", columns.place),
            };
            rusqlite::Error::FromSqlConversionFailure(index, rusqlite::types::Type::Integer, complaint.into())
        })
    }

    /// Who holds it.
    pub(crate) fn holder(self) -> Option<Holder> {
        match self {
            Self::Held(holder) => Some(holder),
            _ => None,
        }
    }

    /// The session that holds it.
    pub(crate) fn session(self) -> Option<SessionId> {
        self.holder().map(|holder| holder.session)
    }

    /// The lease of its holder.
    pub(crate) fn given(self, epoch: Epoch) -> Option<Given> {
        self.holder().map(|Holder { session, beat, .. }| Given { session, epoch, beat })
    }

    /// Since when it is ready.
    pub(crate) fn ready_at(self) -> Option<Timestamp> {
        match self {
            Self::Ready(_, at) => Some(at),
            _ => None,
        }
    }

    /// Whether what its summary tells may stand here at `now`.
    pub(crate) fn fits(self, queue: Queue, summary: &Summary, now: Timestamp) -> bool {
        let is_finished = summary.status.is_terminal();
        match self {
            Self::Finished(_) => is_finished,
            _ if is_finished => false,
            // What runs, or is to, is held or ready: only a claim would have it go on, and a claim does not look here.
            Self::Waiting => {
                summary.wake_at.is_none()
                    && matches!(summary.status, Status::Waiting | Status::Paused | Status::Blocked)
            }
            // What was ready may have been put off for a while by a program that is too old for it, whatever it waits for.
            Self::Timer(route, at) => {
                route == queue.route && (Some(at) == summary.wake_at || at <= now.after(NEWER_PAUSE))
            }
            Self::Ready(found, _) => found == queue,
            Self::Held(_) => true,
            Self::Damaged(_) => false,
        }
    }

    /// Where it stands when nobody holds it and nothing has come for it.
    pub(crate) fn parked(route: i64, wake_at: Option<Timestamp>) -> Self {
        wake_at.map_or(Self::Waiting, |at| Self::Timer(route, at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_survive_their_columns() {
        let at = Timestamp::from_micros(7);
        let holder = Holder { session: SessionId(9), request: 2, beat: 77, position: 5 };
        let places = [
            Place::Waiting,
            Place::Finished(at),
            Place::Damaged(at),
            Place::Ready(Queue { route: 3, priority: i16::MIN }, at),
            Place::Ready(Queue { route: 3, priority: i16::MAX }, at),
            Place::Timer(3, Timestamp::MAX),
            Place::Held(holder),
            Place::Held(Holder { position: Holder::POSITION_END - 1, ..holder }),
        ];
        for place in places {
            assert_eq!(Place::of(place.columns()), Some(place));
        }
        assert_eq!(Place::of(Columns { place: 12, rank: 0, since: 0 }), None);
    }

    #[test]
    fn queues_survive_their_number() {
        for priority in [i16::MIN, -1, 0, 1, i16::MAX] {
            let queue = Queue { route: 77, priority };
            assert_eq!(Queue::of(queue.number()), queue);
            // What SQL makes of it.
            assert_eq!(32_768 - (queue.number() & 65_535), -i64::from(priority));
            assert_eq!(queue.number() >> 16, 77);
        }
    }

    #[test]
    fn higher_priority_and_longer_wait_come_first() {
        let columns = |priority, at| {
            let Columns { place, rank, since } =
                Place::Ready(Queue { route: 1, priority }, Timestamp::from_micros(at)).columns();
            (place, rank, since)
        };
        let mut queue = [columns(0, 5), columns(-1, 1), columns(9, 9), columns(0, 4)];
        queue.sort_unstable();
        assert_eq!(queue, [columns(9, 9), columns(0, 4), columns(0, 5), columns(-1, 1)]);
    }
}
