//! The place of an execution.

use abide_core::{Epoch, SessionId, Status, Summary, Timestamp};
use abide_store::NEWER_PAUSE;
use rusqlite::Row;

use crate::rows::{integer, sound_count};
use crate::tallies::Given;

/// The place of an execution, which is always exactly one of these. One index over `(place, rank,
/// place_at)` finds every execution that needs action: the executions that a session holds, the
/// ready ones in their order, and the next timer. A partial index for each question would cost
/// every insert and update a look at each. Executions that only wait for a message, or have ended,
/// are not in the index.
///
/// `place` is four times a number plus a kind, so that each queue is one range of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The execution waits for a message, and only for that.
    Waiting,
    /// The execution has ended.
    Finished(Timestamp),
    /// The execution can be claimed.
    Ready(ReadyQueue, Timestamp),
    /// The execution waits for a time, and perhaps for messages too.
    Timer(i64, Timestamp),
    /// Some of the execution is unreadable: it was set aside, so that it delays no other.
    Damaged(Timestamp),
    /// A session holds the execution: by a claim or, with request 0, since its birth or because its
    /// lease was kept.
    Held(Holder),
}

/// The queue of a route, and the priority within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadyQueue {
    pub(crate) route: i64,
    pub(crate) priority: i16,
}

impl ReadyQueue {
    /// Returns both as one number, for one column.
    pub(crate) fn number(self) -> i64 {
        (self.route << 16) | (i64::from(self.priority) - i64::from(i16::MIN))
    }

    pub(crate) fn of(number: i64) -> Self {
        let priority = (number & 0xffff) + i64::from(i16::MIN);
        Self { route: number >> 16, priority: i16::try_from(priority).expect("sixteen bits") }
    }
}

/// The holder of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) session: SessionId,
    /// The claim that leased it; 0 if it was born leased.
    pub(crate) request: u64,
    /// The number of the session's heartbeats before the lease.
    pub(crate) beat: u64,
    /// Its position in the answer to that claim.
    pub(crate) position: u64,
    /// Whether it was born leased and has not [settled](crate::newborns): it is not in the index.
    pub(crate) is_newborn: bool,
}

impl Holder {
    /// The end of the range of positions: they share a column with the number of heartbeats.
    pub(crate) const POSITION_END: u64 = 1 << 24;
}

/// The columns of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Columns {
    pub(crate) place: i64,
    pub(crate) rank: i64,
    pub(crate) place_at: i64,
}

impl Columns {
    pub(crate) fn read(row: &Row<'_>, index: usize) -> rusqlite::Result<Self> {
        Ok(Self { place: row.get(index)?, rank: row.get(index + 1)?, place_at: row.get(index + 2)? })
    }
}

const FINISHED: i64 = 4;
const DAMAGED: i64 = 8;

/// Returns the place of the ready executions of a route.
pub(crate) fn ready(route: i64) -> i64 {
    route * 4 + 1
}

/// Returns the place of the timers of a route.
pub(crate) fn timers(route: i64) -> i64 {
    route * 4 + 2
}

/// Returns the place of the executions that a session holds.
pub(crate) fn held(session: SessionId) -> i64 {
    integer(session.0).saturating_mul(4).saturating_add(3)
}

/// Returns the place of the [newborns](crate::newborns) that a session holds.
pub(crate) fn newborn(session: SessionId) -> i64 {
    -held(session)
}

impl Place {
    pub(crate) fn columns(self) -> Columns {
        match self {
            Self::Waiting => Columns { place: 0, rank: 0, place_at: 0 },
            Self::Finished(at) => Columns { place: FINISHED, rank: 0, place_at: at.as_micros() },
            Self::Damaged(at) => Columns { place: DAMAGED, rank: 0, place_at: at.as_micros() },
            // The lowest rank comes first.
            Self::Ready(ReadyQueue { route, priority }, at) => {
                Columns { place: ready(route), rank: -i64::from(priority), place_at: at.as_micros() }
            }
            Self::Timer(route, at) => Columns { place: timers(route), rank: 0, place_at: at.as_micros() },
            Self::Held(Holder { session, request, beat, position, is_newborn }) => {
                let place = if is_newborn { newborn(session) } else { held(session) };
                let place_at = beat.saturating_mul(Holder::POSITION_END).saturating_add(position);
                Columns { place, rank: integer(request), place_at: integer(place_at) }
            }
        }
    }

    pub(crate) fn of(Columns { place, rank, place_at }: Columns) -> Option<Self> {
        if place < 0 {
            let held = Self::of(Columns { place: place.checked_neg()?, rank, place_at })?;
            let holder = held.holder().filter(|holder| holder.request == 0)?;
            return Some(Self::Held(Holder { is_newborn: true, ..holder }));
        }
        let (number, at) = (place / 4, Timestamp::from_micros(place_at));
        Some(match (place % 4, number) {
            (0, 0) => Self::Waiting,
            (0, 1) => Self::Finished(at),
            (0, 2) => Self::Damaged(at),
            (1, route) => {
                Self::Ready(ReadyQueue { route, priority: i16::try_from(rank.checked_neg()?).ok()? }, at)
            }
            // The search for due timers looks at this rank alone.
            (2, route) if rank == 0 => Self::Timer(route, at),
            (3, session) => {
                let place_at = sound_count(place_at)?;
                Self::Held(Holder {
                    session: SessionId(sound_count(session)?),
                    request: sound_count(rank)?,
                    beat: place_at / Holder::POSITION_END,
                    position: place_at % Holder::POSITION_END,
                    is_newborn: false,
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
                        columns.place, columns.rank, columns.place_at
                    )
                }
                _ => format!("there is no place {}", columns.place),
            };
            rusqlite::Error::FromSqlConversionFailure(index, rusqlite::types::Type::Integer, complaint.into())
        })
    }

    /// Returns the holder.
    pub(crate) fn holder(self) -> Option<Holder> {
        match self {
            Self::Held(holder) => Some(holder),
            _ => None,
        }
    }

    /// Returns the session of the holder.
    pub(crate) fn session(self) -> Option<SessionId> {
        self.holder().map(|holder| holder.session)
    }

    /// Returns the lease of the holder.
    pub(crate) fn given(self, epoch: Epoch) -> Option<Given> {
        self.holder().map(|Holder { session, beat, .. }| Given { session, epoch, beat })
    }

    /// Returns the time since which it is ready.
    pub(crate) fn ready_at(self) -> Option<Timestamp> {
        match self {
            Self::Ready(_, at) => Some(at),
            _ => None,
        }
    }

    /// Whether an execution with this summary may be at this place at `now`.
    pub(crate) fn fits(self, queue: ReadyQueue, summary: &Summary, now: Timestamp) -> bool {
        let is_finished = summary.status.is_terminal();
        match self {
            Self::Finished(_) => is_finished,
            _ if is_finished => false,
            // An execution that runs, or should run, is held or ready: only a claim lets it
            // continue, and a claim does not look here.
            Self::Waiting => {
                summary.wake_at.is_none()
                    && matches!(summary.status, Status::Waiting | Status::Paused | Status::Blocked)
            }
            // A program that is too old for a ready execution may have put it off for a while,
            // whatever it waits for.
            Self::Timer(route, at) => {
                route == queue.route && (Some(at) == summary.wake_at || at <= now.after(NEWER_PAUSE))
            }
            Self::Ready(found, _) => found == queue,
            Self::Held(_) => true,
            Self::Damaged(_) => false,
        }
    }

    /// Returns its place when nobody holds it and no message has arrived.
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
        let holder = Holder { session: SessionId(9), request: 2, beat: 77, position: 5, is_newborn: false };
        let newborn = Holder { request: 0, position: 0, is_newborn: true, ..holder };
        let places = [
            Place::Waiting,
            Place::Finished(at),
            Place::Damaged(at),
            Place::Ready(ReadyQueue { route: 3, priority: i16::MIN }, at),
            Place::Ready(ReadyQueue { route: 3, priority: i16::MAX }, at),
            Place::Timer(3, Timestamp::MAX),
            Place::Held(holder),
            Place::Held(Holder { position: Holder::POSITION_END - 1, ..holder }),
            Place::Held(newborn),
        ];
        for place in places {
            assert_eq!(Place::of(place.columns()), Some(place));
        }
        for place in [12, -1, -2, -4, -8, -12, i64::MIN] {
            assert_eq!(Place::of(Columns { place, rank: 0, place_at: 0 }), None, "{place}");
        }
        let claimed = Columns { rank: 1, ..Place::Held(newborn).columns() };
        assert_eq!(Place::of(claimed), None, "nobody claims a newborn");
    }

    #[test]
    fn queues_survive_their_number() {
        for priority in [i16::MIN, -1, 0, 1, i16::MAX] {
            let queue = ReadyQueue { route: 77, priority };
            assert_eq!(ReadyQueue::of(queue.number()), queue);
            // The same computation as in SQL.
            assert_eq!(32_768 - (queue.number() & 65_535), -i64::from(priority));
            assert_eq!(queue.number() >> 16, 77);
        }
    }

    #[test]
    fn higher_priority_and_longer_wait_come_first() {
        let columns = |priority, at| {
            let Columns { place, rank, place_at } =
                Place::Ready(ReadyQueue { route: 1, priority }, Timestamp::from_micros(at)).columns();
            (place, rank, place_at)
        };
        let mut queue = [columns(0, 5), columns(-1, 1), columns(9, 9), columns(0, 4)];
        queue.sort_unstable();
        assert_eq!(queue, [columns(9, 9), columns(0, 4), columns(0, 5), columns(-1, 1)]);
    }
}
