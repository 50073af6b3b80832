//! Stores that cannot be opened: each is refused by name, and nothing is written.

use abide_postgres::PostgresStore;
use abide_store::conformance::{TestClock, bounds};
use tokio_postgres::{Client, NoTls};

use crate::cluster::Cluster;
use crate::fixture::options;

fn told(url: &str) -> String {
    match PostgresStore::open(url, TestClock::new(), options(bounds())) {
        Ok(store) => {
            store.close();
            "opened".to_owned()
        }
        Err(error) => error.to_string(),
    }
}

const PREPARE: [&str; 8] = [
    "CREATE ROLE alice LOGIN PASSWORD 'right'",
    "CREATE ROLE bob LOGIN",
    "CREATE ROLE carol LOGIN",
    "ALTER ROLE carol SET client_encoding = 'LATIN1'",
    "GRANT CREATE ON DATABASE postgres TO carol",
    "CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0",
    "CREATE DATABASE nothing ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0",
    "CREATE SCHEMA taken; CREATE TABLE taken.migrations (version BIGINT PRIMARY KEY, compatible_from BIGINT); INSERT INTO taken.migrations VALUES (1000)",
];

const GRANTS: &str = "
GRANT USAGE ON SCHEMA shared TO bob;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA shared TO bob;
GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA shared TO bob";

#[expect(clippy::disallowed_methods, reason = "the task ends with the connection")]
async fn connected(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

#[test]
fn a_store_that_cannot_be_opened_is_refused_by_name_and_nothing_is_written() {
    let cluster = Cluster::new();
    cluster.allow("host all alice all scram-sha-256");
    cluster.start("-c max_connections=12 -c superuser_reserved_connections=1 -c max_wal_senders=0");
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
    let all = cluster.url("postgres", "127.0.0.1");
    let first = runtime.block_on(connected(&all)).expect("it can be reached");
    for statement in PREPARE {
        runtime.block_on(first.batch_execute(statement)).expect(statement);
    }
    let elsewhere = |database: &str| [all.trim_end_matches("postgres"), database].concat();
    let as_user = |user: &str| cluster.url(user, "127.0.0.1");
    for (url, expected) in [
        (as_user("alice:wrong"), "password authentication failed for user \"alice\""),
        (as_user("alice"), "password missing"),
        (as_user("nobody"), "role \"nobody\" does not exist"),
        (as_user("bob"), "schema \"abide\" cannot be used: permission denied for database postgres"),
        (
            as_user("bob") + "?schema=taken",
            "schema \"taken\" cannot be used: the role of this connection has no right",
        ),
        (
            all.clone() + "?schema=taken",
            "a newer version of abide has written schema \"taken\": it has version 1000",
        ),
        (elsewhere("none"), "database \"none\" does not exist"),
        (elsewhere("latin"), "the database has the encoding LATIN1, abide needs UTF8"),
        (elsewhere("nothing"), "the database has the encoding SQL_ASCII, abide needs UTF8"),
        ("postgres://postgres@127.0.0.1:1/postgres".to_owned(), "Connection refused"),
        ("postgres://postgres@no-such-host.invalid/postgres".to_owned(), "cannot be used"),
        (all.clone() + "?shema=abide", "shema"),
        (all.clone() + "?schema=Abide", "schema \"Abide\" is no name"),
        (all.clone() + "?listen=perhaps", "listen is \"perhaps\""),
        (all.clone() + "?sslmode=always", "sslmode is \"always\""),
        (all.clone() + "?sslmode=require", "server does not support TLS"),
    ] {
        let found = told(&url);
        assert!(found.contains(expected), "{url}: {found}");
    }
    let made = "SELECT count(*) FROM pg_namespace WHERE nspname = 'abide'";
    let made: i64 = runtime.block_on(first.query_one(made, &[])).expect("it can be asked").get(0);
    assert_eq!(made, 0, "nothing was written");
    // What a role sets for its clients does not matter.
    assert_eq!(told(&(as_user("carol") + "?schema=hers")), "opened");
    // The grants of the guide are enough for a worker.
    assert_eq!(told(&(all.clone() + "?schema=shared")), "opened");
    runtime.block_on(first.batch_execute(GRANTS)).expect("the grants are right");
    assert_eq!(told(&(as_user("bob") + "?schema=shared")), "opened");
    let full = runtime.block_on(async {
        let mut taken = Vec::new();
        while let Ok(client) = connected(&as_user("bob")).await {
            taken.push(client);
        }
        taken
    });
    let found = told(&as_user("carol"));
    assert!(found.contains("connection") || found.contains("too many clients"), "{found}");
    drop(full);
}
