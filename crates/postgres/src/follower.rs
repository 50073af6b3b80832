//! The connection that listens, and the slow look behind it.
//!
//! A notice is one line for any number of changes, sent after they were committed, on a connection
//! of its own: inside the writing transactions it would make them commit one after the other. It
//! may be lost with the process or in a pooler. So each process also looks now and then.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Client, Row};

use crate::board::{Board, Word};
use crate::connection::Connection;
use crate::error::Stop;
use crate::floors::{self, Floor, Marks};
use crate::gate::{pause, start};
use crate::shared::Shared;
use crate::{server_clock, sql};

/// Everybody looks once after so many looks that found nothing new.
const QUIET_COUNT_MAX: u32 = 10;

/// The clock is compared with the server's once in so many pauses.
const PAUSES_PER_CLOCK: u32 = 60;

/// Everything that a process can be told at once, but for where it is, and for rows in the intake
/// table: the walk of the slow poll finds those.
fn everything() -> Word {
    Word { is_ready: true, has_mail: true, has_grown: true, ..Word::default() }
}

/// The last numbers that were drawn for the feed, for messages and for wakes.
pub(crate) type Numbers = (i64, i64, i64);

/// What the looks of this process have found so far.
#[derive(Default)]
pub(crate) struct Looks(Mutex<Found>);

#[derive(Default)]
struct Found {
    count: u64,
    numbers: Option<Numbers>,
    is_new: bool,
    quiet_count: u32,
}

impl Looks {
    fn lock(&self) -> MutexGuard<'_, Found> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self) -> u64 {
        self.lock().count
    }

    /// Notifies everybody here when a look has found something new.
    pub(crate) fn tell(&self, board: &Board, (numbers, is_ready): (Numbers, bool)) {
        let is_everything = {
            let mut found = self.lock();
            found.count += 1;
            // A number that was drawn may be committed a moment later: each change is told twice.
            let is_new = found.numbers.is_some_and(|before| before != numbers);
            let was_new = std::mem::replace(&mut found.is_new, is_new);
            found.numbers = Some(numbers);
            found.quiet_count = if is_new || was_new { 0 } else { found.quiet_count + 1 };
            let is_over = found.quiet_count >= QUIET_COUNT_MAX;
            if is_over {
                found.quiet_count = 0;
            }
            is_new || was_new || is_over
        };
        if is_everything {
            board.hear(&everything());
        } else if is_ready {
            board.hear(&Word { is_ready, ..Word::default() });
        }
    }
}

/// Looks for changes of other processes, until the store is closed. A claim that looked meanwhile
/// stands for a look of ours.
pub(crate) async fn look(shared: Arc<Shared>) {
    let (mut count, mut pause_count) = (0, 0_u32);
    loop {
        pause(shared.options.poll_ms).await;
        pause_count = pause_count.wrapping_add(1);
        if pause_count.is_multiple_of(PAUSES_PER_CLOCK) {
            // In place of a look, so that an idle process asks once a second. An error shows again.
            let _ = compare_clock(&shared).await;
            continue;
        }
        let now = shared.looks.count();
        if now == count {
            // The next operation meets the same error.
            let _ = walk(&shared).await;
        }
        count = shared.looks.count();
    }
}

/// Walks the queues that this process serves from their beginnings, and looks for changes. Returns
/// whether something is ready or due, or has a timer that nobody here knew of.
pub(crate) async fn walk(shared: &Shared) -> Result<bool, Stop> {
    let connection = shared.pool.take().await?;
    let (mut marks, mut numbers, mut has_intake) = (Marks::new(), (0, 0, 0), false);
    for row in connection.rows(sql::LOOK, &[&shared.board.floors.routes()]).await? {
        numbers = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        has_intake = row.try_get(7)?;
        if let Some(route) = row.try_get::<_, Option<i32>>(3)? {
            floors::mark(&mut marks, (route, row.try_get(4)?), floor_of(&row, 5)?);
        }
    }
    let now = shared.now().as_micros();
    let is_due = marks.values().any(|floor| floor.wake != Floor::NOTHING.wake || floor.timer <= now);
    let is_ready = shared.board.floors.lower(&marks) || is_due;
    shared.looks.tell(&shared.board, (numbers, is_ready));
    if has_intake {
        shared.board.hear(&Word { has_intake, ..Word::default() });
    }
    Ok(is_ready)
}

/// Returns the front of each line of these routes.
pub(crate) async fn survey(connection: &Connection, routes: &[i32]) -> Result<Marks, Stop> {
    let mut marks = Marks::new();
    for row in connection.rows(sql::SURVEY, &[&routes]).await? {
        floors::mark(&mut marks, (row.try_get(0)?, row.try_get(1)?), floor_of(&row, 2)?);
    }
    Ok(marks)
}

fn floor_of(row: &Row, column: usize) -> Result<Floor, Stop> {
    let (wake, timer): (Option<i64>, Option<i64>) = (row.try_get(column)?, row.try_get(column + 1)?);
    let floor = wake.map_or(Floor::NOTHING, Floor::of_wake);
    Ok(timer.map_or(floor, |timer| floor.or(Floor::of_timer(timer))))
}

async fn compare_clock(shared: &Shared) -> Result<(), Stop> {
    let connection = shared.pool.take().await?;
    server_clock::set(&*shared.clock, &connection).await
}

/// Notifies other processes of changes, and hears of theirs, until the store is closed.
pub(crate) async fn listen(shared: Arc<Shared>) {
    loop {
        if let Ok((client, heard)) = connect(&shared).await {
            // Whatever happened while nobody listened was told to nobody.
            shared.board.floors.forget();
            shared.board.hear(&everything());
            serve(&shared, &client, heard).await;
        }
        pause(shared.options.poll_ms).await;
    }
}

type Heard = mpsc::Receiver<String>;

async fn connect(shared: &Shared) -> Result<(Client, Heard), tokio_postgres::Error> {
    let (client, mut connection) = shared.pool.place.connect().await?;
    let (tell, heard) = mpsc::channel(16);
    let backend = Arc::new(std::sync::OnceLock::new());
    let own = Arc::clone(&backend);
    start(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notice) = message
                && own.get() != Some(&notice.process_id())
            {
                // A full channel has something that says as much.
                let _ = tell.try_send(notice.payload().to_owned());
            }
        }
    });
    let own: i32 = client.query_one(sql::BACKEND, &[]).await?.get(0);
    let _ = backend.set(own);
    client.batch_execute(sql::LISTEN).await?;
    Ok((client, heard))
}

/// Serves until the connection is gone.
async fn serve(shared: &Shared, client: &Client, mut heard: Heard) {
    loop {
        tokio::select! {
            payload = heard.recv() => match payload {
                Some(payload) => shared.board.hear(&word_of(&payload, &shared.pool.place.schema)),
                None => return,
            },
            () = shared.board.outside.notified() => {
                let payload = payload_of(&shared.board.take_word(), &shared.pool.place.schema);
                if client.query(sql::NOTIFY, &[&payload]).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Returns a line for other processes: what there is, in which schema, and where.
fn payload_of(word: &Word, schema: &str) -> String {
    let mut payload = String::new();
    let letters = [
        (word.is_ready, 'r'),
        (word.has_mail, 'm'),
        (word.has_grown, 'f'),
        (word.is_anywhere, 'a'),
        (word.has_intake, 'i'),
    ];
    payload.extend(letters.into_iter().filter_map(|(is_so, letter)| is_so.then_some(letter)));
    payload.push(' ');
    payload.push_str(schema);
    for ((route, rank), floor) in &word.marks {
        for number in [i64::from(*route), i64::from(*rank), floor.wake, floor.timer] {
            payload.push(' ');
            payload.push_str(&number.to_string());
        }
    }
    payload
}

/// Returns what a line from another process says. One that a newer version wrote may say more.
fn word_of(payload: &str, schema: &str) -> Word {
    let mut words = payload.split(' ');
    let (letters, of) = (words.next().unwrap_or_default(), words.next());
    if of != Some(schema) {
        return Word::default();
    }
    let mut word = Word {
        is_ready: letters.contains('r'),
        has_mail: letters.contains('m'),
        has_grown: letters.contains('f'),
        is_anywhere: letters.contains('a'),
        has_intake: letters.contains('i'),
        marks: Marks::new(),
    };
    let numbers: Vec<Option<i64>> = words.map(|number| number.parse().ok()).collect();
    for mark in numbers.chunks(4) {
        let narrow = |number: i64| i32::try_from(number).ok();
        let &[Some(route), Some(rank), Some(wake), Some(timer)] = mark else {
            word.is_anywhere = true;
            continue;
        };
        match (narrow(route), narrow(rank)) {
            (Some(route), Some(rank)) => floors::mark(&mut word.marks, (route, rank), Floor { wake, timer }),
            _ => word.is_anywhere = true,
        }
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_for_its_own_schema() {
        let marks = [((1, -7), Floor::of_wake(5)), ((2, 0), Floor { wake: 1, timer: 9 })].into();
        let word = Word { is_ready: true, has_grown: true, has_intake: true, marks, ..Word::default() };
        let payload = payload_of(&word, "abide");
        assert_eq!(word_of(&payload, "abide"), word);
        assert_eq!(word_of(&payload, "abid"), Word::default());
        assert_eq!(word_of("nonsense", "abide"), Word::default());
    }

    #[test]
    fn a_word_with_marks_that_cannot_be_read_means_anywhere() {
        for payload in ["r abide 1", "r abide 1 2 3 x", "r abide 5000000000 0 0 0"] {
            assert!(word_of(payload, "abide").is_anywhere, "{payload}");
        }
    }
}
