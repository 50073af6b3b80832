//! Statements that most operations use, held for a whole transaction: fetching one from the cache
//! of the connection costs a tenth of an operation.

use rusqlite::{CachedStatement, Connection, Params, ToSql};

use crate::sql;

/// A statement that most operations use.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Frequent {
    ExecutionInsert,
    ExecutionBear,
    ExecutionBearTop,
    ExecutionKeep,
    ExecutionRelease,
    ExecutionEnd,
    SheafAppend,
    SheafAppendOne,
    InboxInsert,
}

/// The frequent statements of a transaction, as far as it has used them.
#[derive(Default)]
pub(crate) struct Statements<'c>([Option<Prepared<'c>>; 9]);

impl<'c> Statements<'c> {
    pub(crate) fn get(
        &mut self,
        connection: &'c Connection,
        which: Frequent,
    ) -> rusqlite::Result<&mut Prepared<'c>> {
        let held = &mut self.0[which as usize];
        match held {
            Some(statement) => Ok(statement),
            None => Ok(held.insert(Prepared::new(connection.prepare_cached(which.text())?))),
        }
    }
}

impl Frequent {
    fn text(self) -> &'static str {
        match self {
            Self::ExecutionInsert => sql::EXECUTION_INSERT,
            Self::ExecutionBear => sql::EXECUTION_BEAR,
            Self::ExecutionBearTop => sql::EXECUTION_BEAR_TOP,
            Self::ExecutionKeep => sql::EXECUTION_KEEP,
            Self::ExecutionRelease => sql::EXECUTION_RELEASE,
            Self::ExecutionEnd => sql::EXECUTION_END,
            Self::SheafAppend => sql::SHEAF_APPEND,
            Self::SheafAppendOne => sql::SHEAF_APPEND_ONE,
            Self::InboxInsert => sql::INBOX_INSERT,
        }
    }
}

/// The most parameters of a frequent statement, and one more: they are counted from 1.
const PARAMETER_END: usize = 14;

/// A prepared statement. SQLite keeps the values that are bound to it, and binding a number takes
/// as long as comparing twenty: those that are mostly the same in a transaction, such as the
/// namespace, are bound when they change.
pub(crate) struct Prepared<'c> {
    statement: CachedStatement<'c>,
    /// The numbers that are bound, by their parameters.
    bound: [Option<i64>; PARAMETER_END],
    /// The parameters that were given since it ran, a bit for each.
    given: u32,
}

impl<'c> Prepared<'c> {
    fn new(statement: CachedStatement<'c>) -> Self {
        Self { statement, bound: [None; PARAMETER_END], given: 0 }
    }

    /// Runs it with all parameters.
    pub(crate) fn execute(&mut self, params: impl Params) -> rusqlite::Result<usize> {
        (self.bound, self.given) = ([None; PARAMETER_END], 0);
        self.statement.execute(params)
    }

    /// Binds numbers that are mostly the same as before.
    pub(crate) fn keep(&mut self, numbers: &[(usize, i64)]) -> rusqlite::Result<()> {
        for (parameter, number) in numbers.iter().copied() {
            if self.bound[parameter] != Some(number) {
                self.bind(parameter, number)?;
                self.bound[parameter] = Some(number);
            }
            self.given |= 1 << parameter;
        }
        Ok(())
    }

    pub(crate) fn bind(&mut self, parameter: usize, value: impl ToSql) -> rusqlite::Result<()> {
        self.bound[parameter] = None;
        self.given |= 1 << parameter;
        self.statement.raw_bind_parameter(parameter, value)
    }

    /// Runs it with the parameters that it was given. A forgotten one would have the value of
    /// another execution.
    pub(crate) fn run(&mut self) -> rusqlite::Result<usize> {
        debug_assert_eq!(
            self.given,
            (1 << (self.statement.parameter_count() + 1)) - 2,
            "every parameter is given, each time"
        );
        self.given = 0;
        self.statement.raw_execute()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(connection: &Connection) -> Prepared<'_> {
        connection.execute_batch("CREATE TABLE IF NOT EXISTS t (a, b, c)").unwrap();
        Prepared::new(connection.prepare_cached("INSERT INTO t VALUES (?1, ?2, ?3)").unwrap())
    }

    fn rows(connection: &Connection) -> Vec<(i64, Option<i64>, String)> {
        let mut statement = connection.prepare("SELECT a, b, c FROM t").unwrap();
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
        rows.map(Result::unwrap).collect()
    }

    #[test]
    fn kept_numbers_are_those_of_the_last_call() {
        let connection = Connection::open_in_memory().unwrap();
        let mut insert = prepared(&connection);
        for (a, b, c) in [(1, 1, "x"), (1, 2, "y"), (1, 2, "z"), (3, 2, "x")] {
            insert.keep(&[(1, a), (2, b)]).unwrap();
            insert.bind(3, c).unwrap();
            assert_eq!(insert.run().unwrap(), 1);
        }
        // Values that were bound in another way are not remembered.
        insert.execute((7, None::<i64>, "w")).unwrap();
        insert.keep(&[(1, 3)]).unwrap();
        insert.bind(2, 2).unwrap();
        insert.bind(3, "v").unwrap();
        insert.run().unwrap();
        insert.keep(&[(1, 3), (2, 2)]).unwrap();
        insert.bind(3, "u").unwrap();
        insert.run().unwrap();
        let texts = [
            (1, Some(1), "x"),
            (1, Some(2), "y"),
            (1, Some(2), "z"),
            (3, Some(2), "x"),
            (7, None, "w"),
            (3, Some(2), "v"),
            (3, Some(2), "u"),
        ];
        assert_eq!(rows(&connection), texts.map(|(a, b, c)| (a, b, c.to_owned())));
    }

    #[test]
    #[should_panic = "every parameter is given"]
    fn a_forgotten_parameter_is_noticed() {
        let connection = Connection::open_in_memory().unwrap();
        let mut insert = prepared(&connection);
        insert.keep(&[(1, 1), (2, 2)]).unwrap();
        insert.bind(3, "x").unwrap();
        insert.run().unwrap();
        insert.keep(&[(1, 1), (2, 2)]).unwrap();
        let _ = insert.run();
    }
}
