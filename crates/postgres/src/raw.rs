//! The speed of a PostgreSQL server itself: the limit that no store on it can pass.
//!
//! One table of numbered rows, on one connection with the settings of the store, and nothing else:
//! no fence, no queue. A benchmark puts its figures beside these.

use std::time::{Duration, Instant};

use tokio::runtime::Builder;

use crate::connection::Connection;
use crate::error::{Kind, Stop};
use crate::url::Place;
use crate::{OpenError, sql};

/// How long the opening of a connection may take.
const CONNECT_MS_MAX: u64 = 5_000;

/// The rows that fill a table in one commit.
const FILL_COUNT: usize = 10_000;

/// The result of a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Commits {
    /// Commits per second.
    pub per_second: f64,
    /// The median duration of a commit.
    pub p50: Duration,
}

/// A server, and the schema for the tables of the measurements. Every call blocks, on a thread of
/// its own, so that it may be called from a runtime.
#[derive(Debug)]
pub struct RawServer {
    url: String,
    schema: String,
}

impl RawServer {
    /// Connects to the server of a URL. The schema that it names is made and dropped by each
    /// measurement.
    pub fn open(url: &str) -> Result<Self, OpenError> {
        let schema = Place::parse(url, CONNECT_MS_MAX)?.schema;
        let server = Self { url: url.to_owned(), schema };
        server.wal_bytes()?;
        Ok(server)
    }

    /// Measures commits of one row each, one after the other, for about as long as `duration`.
    pub fn single_row_commits(&self, payload_bytes: usize, duration: Duration) -> Result<Commits, OpenError> {
        self.with_table(async move |connection| {
            let payload = vec![b'x'; payload_bytes];
            commits(duration, async || {
                connection.change(sql::RAW_INSERT, &[&payload]).await?;
                Ok(())
            })
            .await
        })
    }

    /// Measures rows per second, in commits of `rows_per_commit`, for about as long as `duration`.
    pub fn rows_per_second(
        &self,
        (rows_per_commit, payload_bytes): (usize, usize),
        duration: Duration,
    ) -> Result<f64, OpenError> {
        self.with_table(async move |connection| {
            let payloads = vec![vec![b'x'; payload_bytes]; rows_per_commit];
            let measured = commits(duration, async || {
                connection.change(sql::RAW_INSERT_MANY, &[&payloads]).await?;
                Ok(())
            });
            Ok(measured.await?.per_second * rows_per_commit as f64)
        })
    }

    /// Measures how long it takes to read `count` rows in their order.
    pub fn read_rows(&self, (count, payload_bytes): (usize, usize)) -> Result<Duration, OpenError> {
        self.with_table(async move |connection| {
            let mut left = count;
            while left > 0 {
                let payloads = vec![vec![b'x'; payload_bytes]; left.min(FILL_COUNT)];
                connection.change(sql::RAW_INSERT_MANY, &[&payloads]).await?;
                left -= payloads.len();
            }
            let begun = Moment::now();
            let (mut last, mut found) = (0_i64, (0, 0));
            loop {
                let rows = connection.rows(sql::RAW_READ, &[&last]).await?;
                let Some(row) = rows.last() else { break };
                last = row.try_get(0)?;
                for row in &rows {
                    found = (found.0 + 1, found.1 + row.try_get::<_, &[u8]>(1)?.len());
                }
            }
            assert_eq!(found, (count, count * payload_bytes), "every row is read");
            Ok(begun.elapsed())
        })
    }

    /// Returns how far the server's log has been written. The difference of two calls is what every
    /// client of the server has written in between.
    pub fn wal_bytes(&self) -> Result<u64, OpenError> {
        self.with(async |connection| {
            let bytes: i64 = connection.row(sql::RAW_WAL, &[]).await?.try_get(0)?;
            Ok(crate::rows::unsigned(bytes))
        })
    }

    /// Drops a schema, if it exists.
    pub fn drop_schema(&self, schema: &str) -> Result<(), OpenError> {
        let schema = schema.to_owned();
        self.with(async move |connection| drop_schema(connection, &schema).await)
    }

    /// Does something with a new table, and drops it.
    fn with_table<T: Send>(
        &self,
        work: impl AsyncFnOnce(&Connection) -> Result<T, Stop> + Send,
    ) -> Result<T, OpenError> {
        let schema = self.schema.clone();
        self.with(async move |connection| {
            // One that was killed may have left it.
            drop_schema(connection, &schema).await?;
            connection.run(sql::SCHEMA_CREATE).await?;
            connection.run(sql::RAW_CREATE).await?;
            let done = work(connection).await;
            drop_schema(connection, &schema).await?;
            done
        })
    }

    /// Does something on a connection of its own, on a thread that does nothing else.
    fn with<T: Send>(
        &self,
        work: impl AsyncFnOnce(&Connection) -> Result<T, Stop> + Send,
    ) -> Result<T, OpenError> {
        let place = Place::parse(&self.url, CONNECT_MS_MAX)?;
        let unusable = |stop: Stop| OpenError::Unusable {
            schema: self.schema.clone(),
            source: stop.told("measure", Kind::Reads).into(),
        };
        let run = || {
            let runtime = Builder::new_current_thread().enable_all().build().map_err(OpenError::Thread)?;
            runtime.block_on(async {
                let opened = Connection::open(&place).await;
                let connection = opened.map_err(|source| OpenError::Unreachable { source })?;
                work(&connection).await.map_err(unusable)
            })
        };
        std::thread::scope(|scope| {
            let gone = || OpenError::Thread(std::io::Error::other("it has panicked"));
            scope.spawn(run).join().unwrap_or_else(|_| Err(gone()))
        })
    }
}

async fn drop_schema(connection: &Connection, schema: &str) -> Result<(), Stop> {
    connection.row(sql::SCHEMA_NAME_KEPT, &[&schema]).await?;
    connection.run(sql::SCHEMA_DROP).await
}

async fn commits(duration: Duration, commit: impl AsyncFn() -> Result<(), Stop>) -> Result<Commits, Stop> {
    let mut took = Vec::new();
    let mut sum = Duration::ZERO;
    while sum < duration {
        let begun = Moment::now();
        commit().await?;
        let one = begun.elapsed();
        took.push(one);
        sum += one;
    }
    took.sort_unstable();
    Ok(Commits { per_second: took.len() as f64 / sum.as_secs_f64(), p50: took[took.len() / 2] })
}

/// A point in real time.
struct Moment(Instant);

impl Moment {
    #[expect(clippy::disallowed_methods, reason = "the speed of the server is measured in real time")]
    fn now() -> Self {
        Self(Instant::now())
    }

    #[expect(clippy::disallowed_methods, reason = "the speed of the server is measured in real time")]
    fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}
