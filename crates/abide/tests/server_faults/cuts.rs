//! A way to the server that is cut and delayed at any byte, also between a statement that has
//! committed and its answer.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use abide_store::Prng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use crate::clock::{pause, spawn};
use crate::load::bear;
use crate::restarts::amount;
use crate::server::{self, Server};

/// What a connection lives to see.
#[derive(Clone, Copy, Debug)]
struct Fate {
    /// After so many bytes of the client, or of the server, it is cut.
    sent_max: u64,
    received_max: u64,
    /// The answer of this number is lost, whole: the server has done what it was asked for.
    lost_answer: u64,
    /// How long each part of an answer is kept.
    delay_ms: u64,
}

struct Way {
    server: SocketAddr,
    is_calm: AtomicBool,
    cut_count: AtomicU64,
    lost_count: AtomicU64,
    chance: Mutex<Prng>,
}

impl Way {
    /// Begins to stand before a server, and returns the port.
    async fn before(server: SocketAddr, seed: u64) -> (Arc<Self>, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let port = listener.local_addr().expect("it listens").port();
        let way = Arc::new(Self {
            server,
            is_calm: AtomicBool::new(true),
            cut_count: AtomicU64::new(0),
            lost_count: AtomicU64::new(0),
            chance: Mutex::new(Prng::new(seed)),
        });
        let listening = Arc::clone(&way);
        spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                spawn(Arc::clone(&listening).carry(client));
            }
        });
        (way, port)
    }

    fn fate(&self) -> Fate {
        let mut chance = self.chance.lock().unwrap_or_else(PoisonError::into_inner);
        let mut up_to = |max: u64| chance.number() % max;
        Fate {
            sent_max: 500 + up_to(60_000),
            received_max: 500 + up_to(60_000),
            lost_answer: 5 + up_to(60),
            delay_ms: [0, 0, 0, 2][usize::try_from(up_to(4)).unwrap_or_default()],
        }
    }

    async fn carry(self: Arc<Self>, client: TcpStream) {
        let Ok(server) = TcpStream::connect(self.server).await else { return };
        let fate = self.fate();
        let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
        // Whichever side ends first ends both.
        tokio::select! {
            () = self.up(from_client, to_server, fate) => {}
            () = self.down(from_server, to_client, fate) => {}
        }
    }

    async fn up(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, fate: Fate) {
        let (mut bytes, mut count) = (vec![0; 16_384], 0);
        while let Ok(length) = from.read(&mut bytes).await
            && length > 0
        {
            let left = fate.sent_max.saturating_sub(count);
            count += length as u64;
            if length as u64 > left && !self.is_calm.load(Ordering::SeqCst) {
                // A part of a message arrives.
                let part = usize::try_from(left).unwrap_or(length);
                let _ = to.write_all(&bytes[..part]).await;
                self.cut_count.fetch_add(1, Ordering::SeqCst);
                return;
            }
            if to.write_all(&bytes[..length]).await.is_err() {
                return;
            }
        }
    }

    async fn down(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, fate: Fate) {
        let (mut bytes, mut count, mut answer_count) = (vec![0; 16_384], 0, 0);
        while let Ok(length) = from.read(&mut bytes).await
            && length > 0
        {
            let left = fate.received_max.saturating_sub(count);
            count += length as u64;
            answer_count += 1;
            if !self.is_calm.load(Ordering::SeqCst) {
                if answer_count >= fate.lost_answer {
                    self.lost_count.fetch_add(1, Ordering::SeqCst);
                    return;
                }
                if length as u64 > left {
                    let part = usize::try_from(left).unwrap_or(length);
                    let _ = to.write_all(&bytes[..part]).await;
                    self.cut_count.fetch_add(1, Ordering::SeqCst);
                    return;
                }
                if fate.delay_ms > 0 {
                    pause(fate.delay_ms).await;
                }
            }
            if to.write_all(&bytes[..length]).await.is_err() {
                return;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p2_a_way_that_is_cut_at_any_byte_loses_nothing_and_repeats_nothing() {
    let server = Server::start();
    let (way, port) = Way::before(server.address(), 7).await;
    let wanted = amount(100, 2_000);
    let faults = async {
        way.is_calm.store(false, Ordering::SeqCst);
        while way.lost_count.load(Ordering::SeqCst) + way.cut_count.load(Ordering::SeqCst) < wanted {
            pause(20).await;
        }
        way.is_calm.store(true, Ordering::SeqCst);
    };
    bear(&server::url(port), (amount(200, 2_000), wanted * 100), faults).await;
    let (lost, cut) = (way.lost_count.load(Ordering::SeqCst), way.cut_count.load(Ordering::SeqCst));
    println!("{lost} answers were lost, and {cut} connections cut in the middle of a message");
    assert!(lost >= wanted / 5 && cut >= wanted / 5, "{lost} answers were lost, {cut} messages cut");
}
