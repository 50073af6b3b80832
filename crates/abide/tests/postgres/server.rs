//! The server, and a schema for each test.

use abide::tokio_postgres::{self, Client, NoTls, Row};
use abide::{Abide, Builder};

/// Returns the URL of the server that the tests may use.
pub(crate) fn server() -> String {
    let missing = "these tests need a server: run them as `cargo xtask postgres -- cargo test …`, \
                   or set ABIDE_TEST_POSTGRES to the URL of one";
    std::env::var("ABIDE_TEST_POSTGRES").unwrap_or_else(|_| panic!("{missing}"))
}

/// Two schemas that nobody else has: one for abide, and one for the tables of its user.
pub(crate) struct Place {
    pub(crate) schema: String,
    pub(crate) client: Client,
}

impl Place {
    /// Makes the schemas of a test, which names them.
    #[expect(clippy::disallowed_methods, reason = "the task ends with the connection")]
    pub(crate) async fn new(test: &str) -> Self {
        let (client, connection) =
            tokio_postgres::connect(&server(), NoTls).await.expect("there is a server");
        tokio::spawn(async move { drop(connection.await) });
        let place = Self { schema: ["abide_", test].concat(), client };
        let own = ["own_", test].concat();
        for name in [&place.schema, &own] {
            place.set("abide.schema", name).await;
            place.run("DO $$ BEGIN EXECUTE format('DROP SCHEMA IF EXISTS %I CASCADE', current_setting('abide.schema')); END $$").await;
        }
        place
            .run("DO $$ BEGIN EXECUTE format('CREATE SCHEMA %I', current_setting('abide.schema')); END $$")
            .await;
        place.set("search_path", &own).await;
        place
    }

    async fn set(&self, name: &str, value: &str) {
        self.client.query("SELECT set_config($1, $2, FALSE)", &[&name, &value]).await.expect("it can be set");
    }

    /// Returns the URL of a store whose steps find the user's tables.
    pub(crate) fn url(&self) -> String {
        let server = server();
        let separator = if server.contains('?') { "&" } else { "?" };
        let own = self.schema.replacen("abide_", "own_", 1);
        [&server, separator, "schema=", &self.schema, "&options=-c%20search_path%3D", &own].concat()
    }

    pub(crate) fn builder(&self) -> Builder {
        Abide::builder(self.url())
    }

    pub(crate) async fn open(&self) -> Abide {
        self.builder().open().await.expect("the store can be opened")
    }

    pub(crate) async fn run(&self, statements: &str) {
        self.client.batch_execute(statements).await.expect("the statements are right");
    }

    pub(crate) async fn row(&self, statement: &str) -> Row {
        self.client.query_one(statement, &[]).await.expect("there is one row")
    }

    pub(crate) async fn count(&self, statement: &str) -> i64 {
        self.row(statement).await.get(0)
    }
}
