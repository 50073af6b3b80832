//! One random operation, in words that mean the same to both stores.

use crate::prng::Prng;

/// How many different executions may exist at a time.
pub(super) const ID_COUNT: usize = 12;

/// The numbers of sessions and leases to choose from.
#[derive(Clone, Debug)]
pub(super) struct Extent {
    pub(super) session_count: usize,
    pub(super) held_count: usize,
    /// The leases of executions that have not ended.
    pub(super) open: Vec<usize>,
}

/// An operation. Numbers choose among ids, sessions and leases.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Register {
        variant: usize,
    },
    Submit {
        sends: Vec<Send>,
        born_to: Option<usize>,
    },
    /// A start whose code has begun before it.
    Begin {
        session: usize,
        to: usize,
        variant: usize,
        lag_ms: u64,
        act: Act,
        hold: Keeping,
        outgoing: Vec<Send>,
        /// Whether the code has not come to a commit.
        plain: bool,
    },
    Claim {
        session: usize,
        slots: usize,
        care_slots: usize,
        with_mail: bool,
        sweep: bool,
    },
    Commit {
        held: usize,
        act: Act,
        hold: Keeping,
        outgoing: Vec<Send>,
        born_slots: usize,
        lost: bool,
    },
    /// A transaction step that reads a key of the user's table and writes it.
    Transact {
        held: usize,
        key: usize,
        keep: bool,
        /// Whether the answer is lost: the holder then sends the step again.
        lost: bool,
    },
    /// The last operation once more: its answer was lost.
    Repeat,
    /// A look of a holder at its inbox.
    Read {
        held: usize,
    },
    Heartbeat {
        session: usize,
    },
    Retire {
        session: usize,
    },
    Advance {
        millis: u64,
    },
    Prune {
        age_ms: u64,
        limit: usize,
    },
    /// A comparison of everything that can be read.
    Look,
}

/// A message to be sent.
#[derive(Clone, Debug)]
pub(super) enum Send {
    Start { to: usize, variant: usize },
    Signal { to: usize, id: usize },
    Pause { to: usize, id: usize },
    Resume { to: usize, id: usize },
    Cancel { to: usize, id: usize },
    Terminate { to: usize, id: usize },
    Retry { to: usize, id: usize },
}

/// The commands that a commit records, as far as they are possible.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    Nothing,
    Steps(usize),
    /// Takes messages from the inbox and obeys them.
    Obey(usize),
    Block,
    Complete,
    Fail,
    /// Records steps, and begins the next run.
    Continue(usize),
}

/// The fate of the lease.
#[derive(Clone, Copy, Debug)]
pub(super) enum Keeping {
    Keep,
    Park { sleep_ms: Option<u64>, blind: bool },
    Yield,
}

impl Step {
    pub(super) fn draw(prng: &mut Prng, extent: &Extent) -> Self {
        if extent.session_count < 2 {
            return Self::Register { variant: prng.below(4) };
        }
        let session = recent(prng, extent.session_count, 4);
        match prng.below(100) {
            0..4 => Self::draw_begin(prng, session),
            4..22 => {
                let sends = draw_sends(prng, 3, 1);
                Self::Submit { sends, born_to: prng.chance(400).then_some(session) }
            }
            22..42 => Self::Claim {
                session,
                slots: prng.below(4),
                care_slots: prng.below(3),
                with_mail: prng.chance(500),
                sweep: prng.chance(300),
            },
            42..72 => Self::draw_commit(prng, extent),
            72..78 => Self::Transact {
                held: recent(prng, extent.held_count, 6),
                key: prng.below(3),
                keep: prng.chance(700),
                lost: prng.chance(200),
            },
            78..84 => Self::Repeat,
            84..87 => Self::Heartbeat { session },
            87..89 => Self::Retire { session },
            89..91 => Self::Register { variant: prng.below(4) },
            91..97 => Self::Advance { millis: *prng.pick(&[1, 5, 50, 900, 4_000, 11_000]) },
            97 => Self::Prune { age_ms: *prng.pick(&[0, 100, 5_000]), limit: 1 + prng.below(3) },
            _ => Self::Look,
        }
    }

    fn draw_begin(prng: &mut Prng, session: usize) -> Self {
        // Starts that are born, mostly.
        let variant_count = if prng.chance(800) { 4 } else { 8 };
        let (to, variant) = (prng.below(ID_COUNT), prng.below(variant_count));
        let (act, hold) = (draw_act(prng), draw_hold(prng));
        let outgoing = if prng.chance(350) { draw_sends(prng, 3, 1) } else { Vec::new() };
        let (lag_ms, plain) = (*prng.pick(&[0, 0, 3, 2_000]), prng.chance(200));
        Self::Begin { session, to, variant, lag_ms, act, hold, outgoing, plain }
    }

    fn draw_commit(prng: &mut Prng, extent: &Extent) -> Self {
        let (act, hold) = (draw_act(prng), draw_hold(prng));
        let outgoing = if prng.chance(350) { draw_sends(prng, 3, 1) } else { Vec::new() };
        let held = recent(prng, extent.held_count, 6);
        Self::Commit { held, act, hold, outgoing, born_slots: prng.below(3), lost: prng.chance(120) }
    }
}

/// Families: parents that keep their leases, and children that answer them.
impl Step {
    pub(super) fn draw_of_families(prng: &mut Prng, extent: &Extent) -> Self {
        if extent.open.is_empty() || prng.chance(80) {
            return Self::draw(prng, extent);
        }
        // The youngest are born last.
        let mut recent = |favoured| extent.open[recent(prng, extent.open.len(), favoured)];
        let (young, any) = (recent(3), recent(12));
        match prng.below(20) {
            0..6 => Self::draw_commit_of_family(prng, young, Act::Complete),
            6..8 => Self::draw_commit_of_family(prng, any, Act::Complete),
            8..13 => Self::Read { held: any },
            13..17 => {
                let act = Act::Obey(1 + prng.below(4));
                Self::draw_commit_of_family(prng, any, act)
            }
            _ => Self::draw_commit_of_family(prng, any, Act::Steps(1)),
        }
    }

    fn draw_commit_of_family(prng: &mut Prng, held: usize, act: Act) -> Self {
        let is_start = !matches!(act, Act::Complete) && prng.chance(600);
        let count = if is_start { 1 + prng.below(3) } else { 0 };
        // More ids, so that most children are new.
        let outgoing =
            (0..count).map(|_| Send::Start { to: prng.below(40 * ID_COUNT), variant: 0 }).collect();
        let hold = match prng.below(24) {
            0 => Keeping::Park { sleep_ms: None, blind: prng.chance(500) },
            1 => Keeping::Yield,
            _ => Keeping::Keep,
        };
        Self::Commit { held, act, hold, outgoing, born_slots: 3, lost: prng.chance(60) }
    }
}

fn draw_act(prng: &mut Prng) -> Act {
    match prng.below(22) {
        0..3 => Act::Nothing,
        3..10 => Act::Steps(1 + prng.below(3)),
        10..16 => Act::Obey(1 + prng.below(3)),
        16 => Act::Block,
        17..19 => Act::Complete,
        19..21 => Act::Continue(prng.below(3)),
        _ => Act::Fail,
    }
}

fn draw_hold(prng: &mut Prng) -> Keeping {
    match prng.below(10) {
        0..5 => Keeping::Keep,
        5..8 => Keeping::Park {
            sleep_ms: prng.chance(500).then(|| *prng.pick(&[0, 3, 60, 2_000])),
            blind: prng.chance(400),
        },
        _ => Keeping::Yield,
    }
}

/// Returns an index below `count`, mostly one of the last `favoured`.
fn recent(prng: &mut Prng, count: usize, favoured: usize) -> usize {
    if prng.chance(150) {
        return prng.below(count);
    }
    count.saturating_sub(1 + prng.below(favoured.min(count)))
}

fn draw_sends(prng: &mut Prng, most: usize, least: usize) -> Vec<Send> {
    let count = least + prng.below(most);
    (0..count).map(|_| draw_send(prng)).collect()
}

fn draw_send(prng: &mut Prng) -> Send {
    // Few message ids, so that duplicates are common.
    let (to, id) = (prng.below(ID_COUNT), prng.below(30));
    match prng.below(23) {
        0..8 => Send::Start { to, variant: prng.below(8) },
        8..16 => Send::Signal { to, id },
        16 => Send::Pause { to, id },
        17..19 => Send::Resume { to, id },
        19..21 => Send::Retry { to, id },
        21 => Send::Terminate { to, id },
        _ => Send::Cancel { to, id },
    }
}
