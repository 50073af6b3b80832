//! The connection that listens, and the slow look behind it.
//!
//! A notice is one line for any number of changes, sent after they were committed, on a connection
//! of its own: inside the writing transactions it would make them commit one after the other. It
//! may be lost with the process or in a pooler. So each process also looks now and then.

use std::future::poll_fn;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Client};

use crate::board::Word;
use crate::connection::Connection;
use crate::error::Stop;
use crate::floors::{self, Floor, Marks};
use crate::gate::{pause, start};
use crate::shared::Shared;
use crate::sql;

/// Everybody looks once after so many looks that found nothing new.
const QUIET_COUNT_MAX: u32 = 10;

/// Everything that a process can be told at once, but for where it is: the walk of the slow poll
/// finds that.
fn everything() -> Word {
    Word { is_ready: true, has_mail: true, has_grown: true, ..Word::default() }
}

/// Looks for changes of other processes, until the store is closed.
pub(crate) async fn look(shared: Arc<Shared>) {
    let (mut seen, mut quiet_count, mut is_new) = (None, 0, false);
    loop {
        pause(shared.options.poll_ms).await;
        // The next operation meets the same error. A number that was drawn may be committed a
        // moment later, so each change is told twice.
        let Ok(found) = probe(&shared).await else { continue };
        let Ok(is_ready) = walk(&shared).await else { continue };
        let was_new = std::mem::replace(&mut is_new, seen.is_some_and(|seen| seen != found));
        seen = Some(found);
        quiet_count = if is_new || was_new { 0 } else { quiet_count + 1 };
        if is_new || was_new || quiet_count >= QUIET_COUNT_MAX {
            quiet_count = 0;
            shared.board.hear(&everything());
        } else if is_ready {
            shared.board.hear(&Word { is_ready, ..Word::default() });
        }
    }
}

/// Walks the queues that this process serves from their beginnings. Returns whether something is
/// ready or due, or has a timer that nobody here knew of.
pub(crate) async fn walk(shared: &Shared) -> Result<bool, Stop> {
    let routes = shared.board.floors.routes();
    if routes.is_empty() {
        return Ok(false);
    }
    let connection = shared.pool.take().await?;
    let marks = survey(&connection, &routes).await?;
    let now = shared.now().as_micros();
    let is_due = marks.values().any(|floor| floor.wake != Floor::NOTHING.wake || floor.timer <= now);
    Ok(shared.board.floors.lower(&marks) || is_due)
}

/// Returns the front of each line of these routes.
pub(crate) async fn survey(connection: &Connection, routes: &[i32]) -> Result<Marks, Stop> {
    let mut marks = Marks::new();
    for row in connection.rows(sql::SURVEY, &[&routes]).await? {
        let (wake, timer): (Option<i64>, Option<i64>) = (row.try_get(2)?, row.try_get(3)?);
        let floor = wake.map_or(Floor::NOTHING, Floor::of_wake);
        let floor = timer.map_or(floor, |timer| floor.or(Floor::of_timer(timer)));
        floors::mark(&mut marks, (row.try_get(0)?, row.try_get(1)?), floor);
    }
    Ok(marks)
}

async fn probe(shared: &Shared) -> Result<(i64, i64, i64), Stop> {
    let connection = shared.pool.take().await?;
    let row = connection.row(sql::PROBE, &[]).await?;
    Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))
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
    let letters =
        [(word.is_ready, 'r'), (word.has_mail, 'm'), (word.has_grown, 'f'), (word.is_anywhere, 'a')];
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
        let word = Word { is_ready: true, has_grown: true, marks, ..Word::default() };
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
