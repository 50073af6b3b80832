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
use crate::error::Stop;
use crate::gate::{pause, start};
use crate::shared::Shared;
use crate::sql;

/// Everybody looks once after so many looks that found nothing new.
const QUIET_COUNT_MAX: u32 = 10;

/// Everything that a process can be told at once.
const EVERYTHING: Word = Word { is_ready: true, has_mail: true, has_grown: true };

/// Looks for changes of other processes, until the store is closed.
pub(crate) async fn look(shared: Arc<Shared>) {
    let (mut seen, mut quiet_count, mut is_new) = (None, 0, false);
    loop {
        pause(shared.options.poll_ms).await;
        // The next operation meets the same error. A number that was drawn may be committed a
        // moment later, so each change is told twice.
        let Ok(found) = probe(&shared).await else { continue };
        let was_new = std::mem::replace(&mut is_new, seen.is_some_and(|seen| seen != found));
        seen = Some(found);
        quiet_count = if is_new || was_new { 0 } else { quiet_count + 1 };
        if is_new || was_new || quiet_count >= QUIET_COUNT_MAX {
            quiet_count = 0;
            shared.board.hear(EVERYTHING);
        }
    }
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
            shared.board.hear(EVERYTHING);
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
                Some(payload) => shared.board.hear(word_of(&payload, &shared.pool.place.schema)),
                None => return,
            },
            () = shared.board.outside.notified() => {
                let payload = payload_of(shared.board.take_word(), &shared.pool.place.schema);
                if client.query(sql::NOTIFY, &[&payload]).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Returns a line for other processes: what there is, and in which schema.
fn payload_of(word: Word, schema: &str) -> String {
    let mut payload = String::new();
    for (is_so, letter) in [(word.is_ready, 'r'), (word.has_mail, 'm'), (word.has_grown, 'f')] {
        payload.extend(is_so.then_some(letter));
    }
    payload.push(' ');
    payload.push_str(schema);
    payload
}

fn word_of(payload: &str, schema: &str) -> Word {
    match payload.split_once(' ') {
        Some((letters, of)) if of == schema => Word {
            is_ready: letters.contains('r'),
            has_mail: letters.contains('m'),
            has_grown: letters.contains('f'),
        },
        _ => Word::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_for_its_own_schema() {
        let word = Word { is_ready: true, has_mail: false, has_grown: true };
        let payload = payload_of(word, "abide");
        assert_eq!(word_of(&payload, "abide"), word);
        assert_eq!(word_of(&payload, "abid"), Word::default());
        assert_eq!(word_of("nonsense", "abide"), Word::default());
    }
}
