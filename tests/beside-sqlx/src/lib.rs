//! An application that keeps its own tables with sqlx and its workflows with abide, linked into one
//! binary.

use std::path::Path;

use abide::prelude::*;
use sqlx::ConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

/// The workflow of abide's README.
#[workflow]
pub async fn greet(ctx: Ctx, name: String) -> Result<String> {
    ctx.step("format", || async { Ok(format!("Hello, {name}!")) }).await
}

/// Opens the application's own database, which abide knows nothing about.
pub async fn open(path: &Path) -> sqlx::Result<SqliteConnection> {
    SqliteConnectOptions::new().filename(path).create_if_missing(true).connect().await
}

/// Returns the version of the SQLite library that sqlx uses.
pub async fn sqlite_version(connection: &mut SqliteConnection) -> sqlx::Result<String> {
    sqlx::query_scalar("SELECT sqlite_version()").fetch_one(connection).await
}

#[cfg(test)]
mod tests {
    use sqlx::Connection;

    use super::*;

    #[tokio::test]
    async fn abide_and_sqlx_work_in_one_binary() {
        let directory = tempfile::tempdir().unwrap();

        let url = format!("sqlite:{}", directory.path().join("workflows.db").display());
        let abide = Abide::open(&url).await.unwrap();
        let greeting = abide.run(greet, "World".to_string()).id("greet-1").await.unwrap();
        assert_eq!(greeting, "Hello, World!");

        let mut connection = open(&directory.path().join("application.db")).await.unwrap();
        let version = sqlite_version(&mut connection).await.unwrap();
        // Both sides use the one bundled library: 3.51.3 is the oldest that abide accepts.
        let parts: Vec<u32> = version.split('.').map(|part| part.parse().unwrap()).collect();
        assert!(parts >= vec![3, 51, 3], "SQLite {version}");
        connection.close().await.unwrap();
    }
}
