//! The messages of PostgreSQL's protocol, version 3, as far as a proxy has to know them.

use std::collections::HashMap;
use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// One side of a connection, with the bytes that it has sent and that nobody has taken yet.
pub(crate) struct Peer {
    read: OwnedReadHalf,
    pub(crate) write: OwnedWriteHalf,
    buffer: Vec<u8>,
}

/// What a client wants to have answered before it goes on: everything up to a synchronization.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) bytes: Vec<u8>,
    /// The statement that it executes, if it executes one.
    pub(crate) statement: Option<String>,
}

/// The server's answer, up to the word that it is ready again.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) bytes: Vec<u8>,
}

impl Reply {
    /// The state of the transaction: `I` for none, `T` for an open one, `E` for a failed one.
    pub(crate) fn status(&self) -> u8 {
        self.bytes.last().copied().unwrap_or(b'I')
    }

    /// Says that there is no transaction.
    pub(crate) fn set_idle(&mut self) {
        if let Some(status) = self.bytes.last_mut() {
            *status = b'I';
        }
    }
}

impl Peer {
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let (read, write) = stream.into_split();
        Ok(Self { read, write, buffer: Vec::new() })
    }

    /// Waits for more bytes. Nothing is lost when it is dropped.
    pub(crate) async fn fill(&mut self) -> io::Result<()> {
        let count = self.read.read_buf(&mut self.buffer).await?;
        if count == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write.write_all(bytes).await
    }

    /// Takes everything that is there.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.buffer)
    }

    /// Takes the first message of a client, which has no kind.
    pub(crate) async fn greeting(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(length) = number(&self.buffer, 0).filter(|length| *length <= self.buffer.len()) {
                return Ok(self.buffer.drain(..length).collect());
            }
            self.fill().await?;
        }
    }

    /// Takes the next request. `statements` are those that the client has prepared, by name.
    pub(crate) async fn request(&mut self, statements: &mut HashMap<Vec<u8>, String>) -> io::Result<Request> {
        loop {
            if let Some(length) = up_to(&self.buffer, b"SQX") {
                let bytes: Vec<u8> = self.buffer.drain(..length).collect();
                let statement = executed(&bytes, statements);
                return Ok(Request { bytes, statement });
            }
            self.fill().await?;
        }
    }

    /// Takes the answer to one request.
    pub(crate) async fn reply(&mut self) -> io::Result<Reply> {
        loop {
            if let Some(length) = up_to(&self.buffer, b"Z") {
                return Ok(Reply { bytes: self.buffer.drain(..length).collect() });
            }
            self.fill().await?;
        }
    }

    /// Asks for one statement without parameters.
    pub(crate) async fn ask(&mut self, statement: &str) -> io::Result<Reply> {
        let length = u32::try_from(statement.len() + 5).expect("a short statement");
        let message = [b"Q".as_slice(), &length.to_be_bytes(), statement.as_bytes(), b"\0"].concat();
        self.send(&message).await?;
        self.reply().await
    }
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    usize::try_from(u32::from_be_bytes(bytes)).ok()
}

/// The messages of some bytes: the kind, and the place of the content.
fn messages(bytes: &[u8]) -> impl Iterator<Item = (u8, std::ops::Range<usize>)> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let (kind, length) = (*bytes.get(from)?, number(bytes, from + 1)?);
        let content = from + 5..from + 1 + length;
        (content.end <= bytes.len()).then(|| {
            from = content.end;
            (kind, content)
        })
    })
}

/// Returns how many bytes there are up to the end of the first message of one of these kinds.
fn up_to(bytes: &[u8], kinds: &[u8]) -> Option<usize> {
    messages(bytes).find(|(kind, _)| kinds.contains(kind)).map(|(_, content)| content.end)
}

/// Returns the statement that a request executes, and remembers those that it prepares.
fn executed(bytes: &[u8], statements: &mut HashMap<Vec<u8>, String>) -> Option<String> {
    let (mut bound, mut is_executed) = (None, false);
    for (kind, content) in messages(bytes) {
        let mut texts = bytes[content].split(|byte| *byte == 0);
        let (first, second) = (texts.next().unwrap_or_default(), texts.next().unwrap_or_default());
        match kind {
            b'Q' => return Some(String::from_utf8_lossy(first).into_owned()),
            b'P' => drop(statements.insert(first.to_vec(), String::from_utf8_lossy(second).into_owned())),
            b'B' => bound = statements.get(second).cloned(),
            b'E' => is_executed = true,
            _ => {}
        }
    }
    bound.filter(|_| is_executed)
}
