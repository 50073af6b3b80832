//! Limits of the server that are reached, for a while.

use std::io::Write;
use std::net::TcpStream;

use crate::clock::pause;
use crate::load::bear;
use crate::restarts::amount;
use crate::server::Server;

fn set(server: &Server, settings: &[(&str, &str)]) {
    let alter = settings.iter().map(|(name, value)| format!("ALTER SYSTEM SET {name} = '{value}'"));
    let mut all: Vec<String> = alter.collect();
    all.push("SELECT pg_reload_conf()".to_owned());
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    tokio::task::block_in_place(|| server.psql(&all));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_statements_and_transactions_that_time_out_lose_nothing() {
    let server = Server::start();
    let url = server.url();
    let round_count = amount(4, 40);
    let faults = async {
        for _ in 0..round_count {
            set(&server, &[("statement_timeout", "3"), ("idle_in_transaction_session_timeout", "3")]);
            pause(1_200).await;
            set(&server, &[("statement_timeout", "0"), ("idle_in_transaction_session_timeout", "0")]);
            pause(300).await;
        }
    };
    bear(&url, (amount(100, 1_000), round_count * 1_500), faults).await;
}

/// The store's own connections are ended, and others take every place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_a_server_without_a_free_connection_stops_nobody_for_good() {
    let server = Server::start();
    let url = server.url();
    let round_count = amount(3, 20);
    let faults = async {
        for _ in 0..round_count {
            pause(300).await;
            let others: Vec<TcpStream> = (0..40).map(|_| occupied(&server)).collect();
            tokio::task::block_in_place(|| {
                server.psql(&["SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                               WHERE application_name = 'abide_faults'"])
            });
            let more: Vec<TcpStream> = (0..20).map(|_| occupied(&server)).collect();
            pause(1_500).await;
            drop((others, more));
        }
    };
    bear(&url, (amount(100, 1_000), round_count * 1_800), faults).await;
}

/// Takes a place at the server, as a client that has connected and asks nothing.
fn occupied(server: &Server) -> TcpStream {
    let words = b"user\0postgres\0database\0postgres\0\0";
    let length = u32::try_from(words.len() + 8).expect("it is short");
    let hello = [&length.to_be_bytes(), &196_608_u32.to_be_bytes(), words.as_slice()].concat();
    let mut stream = TcpStream::connect(server.address()).expect("the server listens");
    stream.write_all(&hello).expect("the server listens");
    stream
}

/// Takes the free room of the journal, and leaves it to nobody.
const USE_UP: &str = "INSERT INTO abide.journal SELECT -1, 1, n, 0, convert_to(repeat('x', 700), 'UTF8') \
                      FROM generate_series(1, 2000) n; DELETE FROM abide.journal WHERE execution = -1";

/// The files of the server cannot grow, which is how a full disk looks to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_a_full_disk_of_the_server_stops_nobody_for_good() {
    let mut server = Server::start();
    let url = server.url();
    set(&server, &[("autovacuum", "off")]);
    let faults = async {
        pause(300).await;
        let refused = tokio::task::block_in_place(|| {
            server.psql(&[USE_UP]);
            server.order("small");
            server.psql(&["CREATE TABLE filler AS SELECT repeat('x', 500) FROM generate_series(1, 9000)"]);
            server.psql(&["SELECT to_regclass('filler') IS NULL"])
        });
        assert_eq!(refused, "t", "the disk is full");
        pause(4_000).await;
        tokio::task::block_in_place(|| server.order("large"));
    };
    bear(&url, (amount(100, 1_000), 4_000), faults).await;
}
