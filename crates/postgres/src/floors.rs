//! Where the queues begin, as far as this process knows.
//!
//! A claim that walks a queue from its beginning passes everything that was deleted there and that
//! somebody's old snapshot keeps, and every wake of an execution that is held. So it begins at a
//! floor, and each rank of a route has its own. A floor is only a hint:
//!
//! - A claim raises it to the first wake that is free in its snapshot, or to a moment ago.
//! - A writer of a wake or a timer lowers it: in this process before the answer, in others by the
//!   notice.
//! - The slow poll walks the whole queue, and lowers it to whatever it finds. That is what finds a
//!   wake whose notice was lost, one that was committed long after it was dated, and one whose
//!   execution was released after the floor had passed it.
//!
//! A floor that is lowered while a claim walks is not raised over that by the claim: its snapshot
//! may be older.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A floor stays so many microseconds behind the clock: wakes are dated before they are committed,
/// and by other clocks.
const MARGIN_US: i64 = 200_000;

/// No wake, or no timer, that anybody knows of.
const NONE: i64 = i64::MAX;

/// One rank of a route.
pub(crate) type Line = (i32, i32);

/// The first wake and the first timer of a line that may have to be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Floor {
    pub(crate) wake: i64,
    pub(crate) timer: i64,
}

impl Floor {
    pub(crate) const NOTHING: Self = Self { wake: NONE, timer: NONE };

    pub(crate) fn of_wake(since: i64) -> Self {
        Self { wake: since, ..Self::NOTHING }
    }

    pub(crate) fn of_timer(wake_at: i64) -> Self {
        Self { timer: wake_at, ..Self::NOTHING }
    }

    /// Returns the lower of two.
    pub(crate) fn or(self, other: Self) -> Self {
        Self { wake: self.wake.min(other.wake), timer: self.timer.min(other.timer) }
    }
}

/// The floors of many lines.
pub(crate) type Marks = BTreeMap<Line, Floor>;

pub(crate) fn mark(marks: &mut Marks, line: Line, floor: Floor) {
    let known = marks.entry(line).or_insert(Floor::NOTHING);
    *known = known.or(floor);
}

#[derive(Default)]
pub(crate) struct Floors(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// The routes that were walked from their beginnings.
    routes: HashSet<i32>,
    floors: Marks,
    /// The floors that were lowered since each walk began that is under way.
    walks: BTreeMap<u64, Marks>,
    walk_count: u64,
}

impl Floors {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns those of these routes of which nothing is known, and takes them for known: the
    /// caller walks them.
    pub(crate) fn unknown(&self, routes: &[i32]) -> Vec<i32> {
        let mut known = self.lock();
        routes.iter().copied().filter(|route| known.routes.insert(*route)).collect()
    }

    /// Forgets which routes were walked: there is a new wake, and nobody knows where.
    pub(crate) fn forget(&self) {
        self.lock().routes.clear();
    }

    /// Returns the routes that were walked.
    pub(crate) fn routes(&self) -> Vec<i32> {
        self.lock().routes.iter().copied().collect()
    }

    /// Lowers floors. Returns whether one was higher.
    pub(crate) fn lower(&self, marks: &Marks) -> bool {
        let mut known = self.lock();
        let mut has_lowered = false;
        for (line, floor) in
            marks.iter().filter(|(line, _)| known.routes.contains(&line.0)).collect::<Vec<_>>()
        {
            let before = known.floors.get(line).copied();
            mark(&mut known.floors, *line, *floor);
            has_lowered |= before != known.floors.get(line).copied();
            known.walks.values_mut().for_each(|walk| mark(walk, *line, *floor));
        }
        has_lowered
    }

    /// Begins a walk through the queues of these routes.
    pub(crate) fn walk(&self, routes: &[i32]) -> Walk<'_> {
        let mut known = self.lock();
        known.walk_count += 1;
        let number = known.walk_count;
        known.walks.insert(number, Marks::new());
        let mut walk =
            Walk { floors: self, number, routes: vec![], ranks: vec![], wakes: vec![], timers: vec![] };
        for route in routes {
            for ((route, rank), floor) in known.floors.range((*route, i32::MIN)..=(*route, i32::MAX)) {
                walk.routes.push(*route);
                walk.ranks.push(*rank);
                walk.wakes.push(floor.wake);
                walk.timers.push(floor.timer);
            }
        }
        walk
    }

    /// Whether a timer of a route that is due, and that stands before `rank`, waits for a claim.
    pub(crate) fn is_due(&self, (route, rank): Line, now: i64) -> bool {
        self.lock().floors.range((route, i32::MIN)..=(route, rank)).any(|(_, floor)| floor.timer <= now)
    }
}

/// A walk through queues, from their floors. Its columns are parameters of statements.
pub(crate) struct Walk<'a> {
    floors: &'a Floors,
    number: u64,
    pub(crate) routes: Vec<i32>,
    pub(crate) ranks: Vec<i32>,
    pub(crate) wakes: Vec<i64>,
    pub(crate) timers: Vec<i64>,
}

impl Walk<'_> {
    /// Raises the floors to the fronts that were found behind them, or to a margin before `now`,
    /// the time of the claim.
    pub(crate) fn raise(&self, found: &Marks, now: i64) {
        let mut known = self.floors.lock();
        let lowered = known.walks.get(&self.number).cloned().unwrap_or_default();
        for line in self.routes.iter().copied().zip(self.ranks.iter().copied()) {
            let of = |marks: &Marks| marks.get(&line).copied().unwrap_or(Floor::NOTHING);
            let floor = of(found).or(of(&lowered)).or(Floor::of_wake(now - MARGIN_US));
            known.floors.insert(line, floor);
        }
    }
}

impl Drop for Walk<'_> {
    fn drop(&mut self) {
        self.floors.lock().walks.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 10_000_000;

    fn known() -> Floors {
        let floors = Floors::default();
        assert_eq!(floors.unknown(&[1, 2]), [1, 2]);
        assert!(floors.unknown(&[1]).is_empty());
        floors
    }

    fn lower(floors: &Floors, floor: Floor) -> bool {
        floors.lower(&[((1, 0), floor)].into())
    }

    fn first(floors: &Floors) -> (i64, i64) {
        let walk = floors.walk(&[1]);
        (walk.wakes[0], walk.timers[0])
    }

    #[test]
    fn a_walk_raises_a_floor_to_what_it_found() {
        let floors = known();
        assert!(lower(&floors, Floor::of_wake(5)));
        assert!(!lower(&floors, Floor::of_wake(7)), "it is no lower");
        let walk = floors.walk(&[1, 2]);
        assert_eq!((&walk.routes, &walk.ranks, &walk.wakes), (&vec![1], &vec![0], &vec![5]));
        walk.raise(&[((1, 0), Floor { wake: 9, timer: 70 })].into(), NOW);
        assert_eq!(first(&floors), (9, 70));
    }

    #[test]
    fn a_walk_that_finds_nothing_leaves_a_margin() {
        let floors = known();
        lower(&floors, Floor::of_wake(5));
        floors.walk(&[1]).raise(&Marks::new(), NOW);
        assert_eq!(first(&floors), (NOW - MARGIN_US, NONE));
    }

    #[test]
    fn a_floor_is_not_raised_over_what_was_written_meanwhile() {
        let floors = known();
        lower(&floors, Floor::of_wake(5));
        let walk = floors.walk(&[1]);
        lower(&floors, Floor { wake: 6, timer: 8 });
        walk.raise(&[((1, 0), Floor { wake: 9, timer: 70 })].into(), NOW);
        assert_eq!(first(&floors), (6, 8));
    }

    #[test]
    fn a_route_that_nobody_walks_takes_no_memory() {
        let floors = known();
        assert!(!floors.lower(&[((3, 0), Floor::of_wake(5))].into()));
        assert!(floors.walk(&[3]).routes.is_empty());
    }

    #[test]
    fn a_timer_is_due_for_its_rank_and_those_behind() {
        let floors = known();
        lower(&floors, Floor::of_timer(70));
        let due = |rank, now| floors.is_due((1, rank), now);
        assert_eq!([due(-1, 70), due(0, 69), due(0, 70), due(1, 70)], [false, false, true, true]);
    }
}
