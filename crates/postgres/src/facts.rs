//! What a batch of operations has to know before it is decided.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use abide_core::{Ability, Address, LeaseRow, SessionId, Sort, Timestamp, codec};
use tokio_postgres::Row;

use crate::connection::Connection;
use crate::error::Stop;
use crate::rows;
use crate::shared::Shared;
use crate::sql;
use crate::target::{Question, Target};

/// Everything that is asked.
#[derive(Default)]
pub(crate) struct Questions {
    targets: Vec<Question>,
    known: HashMap<Question, usize>,
    /// Executions that commit, their sessions, and whether all that they leave behind is wanted.
    pub(crate) committers: Vec<(i64, SessionId, bool)>,
    /// The routes of executions that may be born leased.
    pub(crate) heads: BTreeSet<i32>,
    pub(crate) offers: BTreeSet<SessionId>,
    /// How many executions may be created.
    pub(crate) key_count: i64,
    pub(crate) haste: Haste,
}

/// How much is looked at before an operation is decided. The writing statement checks every guess,
/// so a wrong one writes nothing, and the operation is decided anew with less haste.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Haste {
    /// Everything that the decision depends on, and what the statement would find out.
    Careful,
    /// What the decision depends on.
    #[default]
    Plain,
    /// As little as possible: a start finds no execution, and its session is as it was registered.
    Swift,
    /// Also nothing is ready before the only start. The statement that writes looks.
    Alone,
}

impl Haste {
    /// Whether starts are taken to find nothing.
    pub(crate) fn guesses(self) -> bool {
        matches!(self, Self::Swift | Self::Alone)
    }
}

impl Questions {
    /// Asks, and returns the number of the answer.
    pub(crate) fn ask(&mut self, question: Question) -> usize {
        let next = self.targets.len();
        let targets = &mut self.targets;
        *self.known.entry(question).or_insert_with_key(|question| {
            targets.push(question.clone());
            next
        })
    }

    /// Reads the answers. The statements are sent one behind the other, and each sees a moment of
    /// its own: nothing relies on two of them agreeing.
    pub(crate) async fn answer(
        &self,
        shared: &Shared,
        connection: &Connection,
        now: Timestamp,
    ) -> Result<Facts, Stop> {
        let (targets, committers, heads, offers, keys) = tokio::join!(
            self.find(connection),
            self.committers(connection, now),
            self.heads(connection),
            self.offers(shared, connection, now),
            self.keys(shared, connection, now),
        );
        Ok(Facts { targets: targets?, committers: committers?, heads: heads?, offers: offers?, keys: keys? })
    }

    async fn find(&self, connection: &Connection) -> Result<Vec<Option<Target>>, Stop> {
        if self.targets.is_empty() {
            return Ok(Vec::new());
        }
        let text = |of: fn(&Question) -> &str| self.targets.iter().map(of).collect::<Vec<_>>();
        let flag = |of: fn(&Question) -> bool| self.targets.iter().map(of).collect::<Vec<_>>();
        let namespaces = text(|question| question.address.namespace.as_str());
        let ids = text(|question| question.address.id.as_str());
        let messages = text(|question| &question.message);
        let counts = flag(|question| question.flags().0);
        let states = flag(|question| question.flags().1);
        let firsts = flag(|question| question.flags().2);
        let rows =
            connection.rows(sql::TARGETS, &[&namespaces, &ids, &messages, &counts, &states, &firsts]).await?;
        rows.iter().zip(&self.targets).map(|(row, question)| Target::read(row, &question.address)).collect()
    }

    async fn committers(
        &self,
        connection: &Connection,
        now: Timestamp,
    ) -> Result<HashMap<i64, Committer>, Stop> {
        if self.committers.is_empty() {
            return Ok(HashMap::new());
        }
        let keys: Vec<i64> = self.committers.iter().map(|(key, ..)| *key).collect();
        let sessions: Vec<i64> =
            self.committers.iter().map(|(_, session, _)| rows::integer(session.0)).collect();
        let wants_all: Vec<bool> = self.committers.iter().map(|(.., wants_all)| *wants_all).collect();
        let parameters: [crate::sheet::Parameter<'_>; 4] = [&now.as_micros(), &keys, &sessions, &wants_all];
        let rows = connection.rows(sql::COMMITTERS, &parameters).await?;
        rows.iter().map(|row| Committer::read(row).map(|found| (found.key, found))).collect()
    }

    async fn heads(&self, connection: &Connection) -> Result<HashMap<i32, i32>, Stop> {
        if self.heads.is_empty() {
            return Ok(HashMap::new());
        }
        let routes: Vec<i32> = self.heads.iter().copied().collect();
        let rows = connection.rows(sql::HEADS, &[&routes]).await?;
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
    }

    async fn offers(
        &self,
        shared: &Shared,
        connection: &Connection,
        now: Timestamp,
    ) -> Result<HashMap<SessionId, Arc<Ability>>, Stop> {
        let mut able = HashMap::new();
        if self.haste.guesses() {
            let known = |session: &SessionId| Some((*session, shared.board.ability(*session)?));
            able.extend(self.offers.iter().filter_map(known));
        }
        let unknown = self.offers.iter().filter(|session| !able.contains_key(session));
        let sessions: Vec<i64> = unknown.map(|session| rows::integer(session.0)).collect();
        if sessions.is_empty() {
            return Ok(able);
        }
        for row in connection.rows(sql::OFFERS, &[&now.as_micros(), &sessions]).await? {
            let (id, ability, is_live): (i64, Vec<u8>, bool) =
                (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            // Nothing is born to a session whose ability cannot be read: it has to claim.
            if let (true, Ok(ability)) = (is_live, codec::decode(&ability)) {
                able.insert(SessionId(rows::unsigned(id)), Arc::new(ability));
            }
        }
        Ok(able)
    }

    async fn keys(&self, shared: &Shared, connection: &Connection, now: Timestamp) -> Result<Vec<i64>, Stop> {
        if self.key_count == 0 {
            return Ok(Vec::new());
        }
        let mut keys = match shared.stash.take(self.key_count, now) {
            Ok(keys) => keys,
            Err(missing) => {
                let rows = connection.rows(sql::KEYS, &[&missing]).await?;
                let drawn = rows.iter().map(|row| Ok(row.try_get(0)?)).collect::<Result<_, Stop>>()?;
                shared.stash.keep(drawn, self.key_count, now)
            }
        };
        // They are taken from the end.
        keys.reverse();
        Ok(keys)
    }
}

/// The answers.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub(crate) targets: Vec<Option<Target>>,
    pub(crate) committers: HashMap<i64, Committer>,
    /// The best rank among the ready executions of a route.
    pub(crate) heads: HashMap<i32, i32>,
    /// The abilities of sessions that are live.
    pub(crate) offers: HashMap<SessionId, Arc<Ability>>,
    pub(crate) keys: Vec<i64>,
}

/// An execution that commits.
#[derive(Debug)]
pub(crate) struct Committer {
    pub(crate) key: i64,
    pub(crate) address: Address,
    pub(crate) route: i32,
    pub(crate) rank: i32,
    pub(crate) lease: LeaseRow,
    pub(crate) session_is_live: bool,
    /// Its unread messages, in order of arrival, if they were asked for.
    pub(crate) unread: Vec<(String, Option<Sort>)>,
    /// The messages whose wakes are there, and those that were reasons for care.
    pub(crate) wakes: Vec<String>,
    pub(crate) cares: Vec<String>,
}

impl Committer {
    fn read(row: &Row) -> Result<Self, Stop> {
        let key: i64 = row.try_get(0)?;
        let ids: Vec<String> = row.try_get::<_, Option<_>>(9)?.unwrap_or_default();
        let sorts: Vec<i16> = row.try_get::<_, Option<_>>(10)?.unwrap_or_default();
        Ok(Self {
            key,
            address: rows::address(row.try_get(1)?, row.try_get(2)?)?,
            route: row.try_get(3)?,
            rank: row.try_get(4)?,
            lease: rows::lease_row(row.try_get(5)?, row.try_get(6)?, row.try_get(7)?),
            session_is_live: row.try_get(8)?,
            unread: ids.into_iter().zip(sorts.into_iter().map(rows::sort)).collect(),
            wakes: row.try_get::<_, Option<_>>(11)?.unwrap_or_default(),
            cares: row.try_get::<_, Option<_>>(12)?.unwrap_or_default(),
        })
    }
}
