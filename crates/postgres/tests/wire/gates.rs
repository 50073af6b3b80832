//! A proxy that stops the writing statements of a store twice: before the server gets them, and
//! when they are carried out and not committed. So a test decides in which order the statements of
//! several stores happen, and the stores know nothing of it.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::frames::{Peer, Reply, Request};

/// The proxy of one store, as its test sees it.
pub(crate) struct Gates {
    pub(crate) port: u16,
    gate: Arc<Gate>,
    /// Says that a statement stands at a gate.
    pub(crate) arrived: UnboundedReceiver<()>,
    permits: UnboundedSender<()>,
}

struct Gate {
    server: SocketAddr,
    is_shut: AtomicBool,
    arrives: UnboundedSender<()>,
    permitted: Mutex<UnboundedReceiver<()>>,
}

impl Gates {
    /// Begins to stand before a server.
    pub(crate) async fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let port = listener.local_addr().expect("it listens").port();
        let (arrives, arrived) = unbounded_channel();
        let (permits, permitted) = unbounded_channel();
        let gate =
            Arc::new(Gate { server, is_shut: AtomicBool::new(false), arrives, permitted: permitted.into() });
        let listening = Arc::clone(&gate);
        spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let gate = Arc::clone(&listening);
                // A connection ends when either side ends it.
                spawn(async move { drop(gate.serve(client).await) });
            }
        });
        Self { port, gate, arrived, permits }
    }

    /// From now on, writing statements wait for a permission at each gate.
    pub(crate) fn shut(&self) {
        self.gate.is_shut.store(true, Ordering::SeqCst);
    }

    /// From now on, everything passes.
    pub(crate) fn open(&self) {
        self.gate.is_shut.store(false, Ordering::SeqCst);
    }

    /// Lets the statement pass that stands at a gate.
    pub(crate) fn permit(&self) {
        self.permits.send(()).expect("the proxy lives as long as its test");
    }
}

#[expect(clippy::disallowed_methods, reason = "the test's runtime ends them")]
fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(task);
}

impl Gate {
    async fn serve(&self, client: TcpStream) -> io::Result<()> {
        let mut client = Peer::new(client)?;
        let mut server = Peer::new(TcpStream::connect(self.server).await?)?;
        server.send(&client.greeting().await?).await?;
        let mut reply = server.reply().await?;
        client.send(&reply.bytes).await?;
        let mut statements = HashMap::new();
        loop {
            tokio::select! {
                request = client.request(&mut statements) => {
                    reply = self.carry(&mut server, request?, reply.status()).await?;
                    client.send(&reply.bytes).await?;
                }
                more = server.fill() => {
                    more?;
                    // A notice that nobody asked for.
                    let bytes = server.take();
                    client.send(&bytes).await?;
                }
            }
        }
    }

    async fn carry(&self, server: &mut Peer, request: Request, status: u8) -> io::Result<Reply> {
        let statement = request.statement.as_deref().unwrap_or_default();
        let is_stopped = self.is_shut.load(Ordering::SeqCst);
        if is_stopped && status == b'I' && writes(statement) {
            self.arrive().await;
            server.ask("BEGIN").await?;
            server.send(&request.bytes).await?;
            let mut reply = server.reply().await?;
            if reply.status() == b'T' {
                self.arrive().await;
            }
            server.ask("COMMIT").await?;
            reply.set_idle();
            return Ok(reply);
        }
        // Of a transaction of the store's own, the statement and the COMMIT are stopped.
        if is_stopped && (writes(statement) || (status == b'T' && statement == "COMMIT")) {
            self.arrive().await;
        }
        server.send(&request.bytes).await?;
        let reply = server.reply().await?;
        if statement.contains("synchronous_commit") {
            // Others see the same with and without it, and thousands of orders would wait for
            // the disk.
            server.ask("SET synchronous_commit TO off").await?;
        }
        Ok(reply)
    }

    async fn arrive(&self) {
        let mut permitted = self.permitted.lock().await;
        self.arrives.send(()).expect("the test lives as long as its proxy");
        permitted.recv().await;
    }
}

/// Whether a statement writes what wakes an execution, or its row. The one that makes wakes of due
/// timers is left out: without timers it writes nothing.
fn writes(statement: &str) -> bool {
    let has = |text| statement.contains(text);
    (has("UPDATE executions") || has("INTO wakes") || has("INTO inbox")) && !has("wake_at <= ")
}
