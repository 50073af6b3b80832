//! TLS, with a server that has a certificate of its own authority.

use std::fs;
use std::path::{Path, PathBuf};

use abide_postgres::PostgresStore;
use abide_store::conformance::{TestClock, bounds};
use tokio_postgres::NoTls;

use crate::cluster::Cluster;
use crate::fixture::options;

/// What `openssl` needs to know. The certificate of the server is for a name, not for an address.
const CONFIGURATION: &str = "
[req]
distinguished_name = name
prompt = no
[name]
CN = localhost
[authority]
basicConstraints = critical, CA:TRUE
[server]
basicConstraints = CA:FALSE
subjectAltName = DNS:localhost
";

/// Makes an authority and a certificate.
fn certify(cluster: &Cluster) -> PathBuf {
    let at = |name: &str| cluster.path(name).display().to_string();
    let make = |rest: &[&str]| {
        let (configuration, key) = (at("openssl.cnf"), "ec_paramgen_curve:prime256v1");
        let all = [
            "req",
            "-x509",
            "-config",
            &configuration,
            "-newkey",
            "ec",
            "-pkeyopt",
            key,
            "-noenc",
            "-days",
            "2",
        ];
        cluster.run(Path::new("openssl"), &[all.as_slice(), rest].concat());
    };
    fs::write(cluster.path("openssl.cnf"), CONFIGURATION).expect("it can be written");
    let own = ["-extensions", "authority", "-subj", "/CN=authority", "-keyout"];
    make(&[own.as_slice(), &[&at("ca.key"), "-out", &at("ca.crt")]].concat());
    make(&[own.as_slice(), &[&at("other.key"), "-out", &at("other.crt")]].concat());
    let by = ["-extensions", "server", "-CA", &at("ca.crt"), "-CAkey", &at("ca.key"), "-keyout"];
    make(&[by.as_slice(), &[&at("server.key"), "-out", &at("server.crt")]].concat());
    cluster.own(&cluster.path("server.key"));
    cluster.path("ca.crt")
}

#[test]
fn each_mode_of_tls_demands_what_it_says() {
    let cluster = Cluster::new();
    let authority = certify(&cluster);
    cluster.allow("hostnossl all all all reject");
    let file = |name: &str| cluster.path(name).display().to_string();
    cluster.start(&format!(
        "-c ssl=on -c ssl_cert_file={} -c ssl_key_file={}",
        file("server.crt"),
        file("server.key")
    ));
    let (ours, other) = (authority.display().to_string(), file("other.crt"));
    let told = |host: &str, parameters: &str| {
        let parameters = parameters.replace("OURS", &ours).replace("OTHER", &other);
        let url = [&cluster.url("postgres", host), "?", &parameters].concat();
        match PostgresStore::open(&url, TestClock::new(), options(bounds())) {
            Ok(store) => {
                store.close();
                "opened".to_owned()
            }
            Err(error) => error.to_string(),
        }
    };
    for (host, parameters, expected) in [
        ("127.0.0.1", "sslmode=disable", "pg_hba.conf rejects connection"),
        ("127.0.0.1", "sslmode=prefer", "opened"),
        ("127.0.0.1", "", "opened"),
        ("127.0.0.1", "sslmode=require", "opened"),
        ("127.0.0.1", "sslmode=require&sslrootcert=OTHER", "invalid peer certificate"),
        ("127.0.0.1", "sslmode=verify-ca&sslrootcert=OURS", "opened"),
        ("127.0.0.1", "sslmode=verify-ca&sslrootcert=OTHER", "invalid peer certificate"),
        ("127.0.0.1", "sslmode=verify-full&sslrootcert=OURS", "not valid for name \"127.0.0.1\""),
        ("localhost", "sslmode=verify-full&sslrootcert=OURS", "opened"),
        ("localhost", "sslmode=verify-full&sslrootcert=OTHER", "invalid peer certificate"),
    ] {
        let found = told(host, parameters);
        assert!(found.contains(expected), "{host} {parameters}: {found}");
    }
    let url = [
        &cluster.url("postgres", "localhost"),
        "?application_name=mine&sslmode=verify-full&sslrootcert=",
        &ours,
    ]
    .concat();
    let store = PostgresStore::open(&url, TestClock::new(), options(bounds())).expect("it was opened before");
    assert_eq!(unencrypted(&cluster), 0);
    store.close();
}

/// Returns how many connections of the store have no TLS, once it also listens.
fn unencrypted(cluster: &Cluster) -> i64 {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
    runtime.block_on(async {
        let config = cluster.path("").display().to_string();
        let socket = ["host=", &config, " port=", &cluster.port(), " user=postgres"].concat();
        let (client, connection) =
            tokio_postgres::connect(&socket, NoTls).await.expect("the socket demands no TLS");
        let count = async {
            loop {
                let row = client.query_one(CONNECTIONS, &[]).await.expect("it can be asked");
                if row.get(1) {
                    return row.get(0);
                }
            }
        };
        tokio::select! {
            count = count => count,
            _ = connection => panic!("the connection has ended"),
        }
    })
}

const CONNECTIONS: &str = "
SELECT count(*) FILTER (WHERE NOT ssl), COALESCE(bool_or(query = 'LISTEN abide'), FALSE)
FROM pg_stat_activity
JOIN pg_stat_ssl USING (pid)
WHERE application_name = 'mine'";
