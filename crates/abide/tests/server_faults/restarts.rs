//! Servers that are restarted as if the machine had lost its power, and connections that the server
//! ends.

use crate::clock::pause;
use crate::load::bear;
use crate::server::Server;

/// Returns the short or the long form of a number.
pub(crate) fn amount(short: u64, long: u64) -> u64 {
    if std::env::var_os("ABIDE_TEST_LONG").is_some() { long } else { short }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p2_a_server_that_is_restarted_at_any_moment_loses_nothing() {
    let mut server = Server::start();
    let url = server.url();
    let restart_count = amount(10, 60);
    let faults = async {
        for nth in 0..restart_count {
            pause(200 + nth * 137 % 400).await;
            tokio::task::block_in_place(|| server.order("restart"));
        }
    };
    bear(&url, (amount(200, 1_000), restart_count * 500), faults).await;
}

/// Some of them in the middle of a statement, some between two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p2_connections_that_the_server_ends_lose_nothing() {
    let server = Server::start();
    let url = server.url();
    let wanted = amount(100, 1_000);
    let faults = async {
        let mut count = 0;
        while count < wanted {
            // One or two at a time: with all of them, a heartbeat would never come through.
            let ended = tokio::task::block_in_place(|| {
                server.psql(&[
                    "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity \
                               WHERE application_name = 'abide_faults' ORDER BY random() LIMIT 2) x",
                ])
            });
            count += ended.parse::<u64>().unwrap_or_default();
            pause(30).await;
        }
    };
    bear(&url, (amount(200, 1_000), wanted * 30), faults).await;
}
