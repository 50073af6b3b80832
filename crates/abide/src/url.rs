//! Names of stores.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use abide_core::planted::{Bug, planted};

/// A store, named by `sqlite:PATH`, `sqlite::memory:`, a bare path, or `postgres://…`.
///
/// It is displayed without the password that the URL of a server may contain.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// A SQLite database in memory, which belongs to its process.
    Memory,
    /// A SQLite database in a file.
    File(PathBuf),
    /// A schema of a PostgreSQL database, by its whole URL.
    Postgres(String),
}

/// The reason why a text names no store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidUrl(String);

impl FromStr for StoreUrl {
    type Err = InvalidUrl;

    fn from_str(url: &str) -> Result<Self, InvalidUrl> {
        parse(url).map_err(InvalidUrl)
    }
}

/// What a person may write.
const FORMS: &str = "write sqlite:PATH, sqlite::memory:, postgres://… or a path";

fn parse(url: &str) -> Result<StoreUrl, String> {
    if let Some(rest) = url.strip_prefix("sqlite:") {
        return match rest.strip_prefix("//").unwrap_or(rest) {
            ":memory:" => Ok(StoreUrl::Memory),
            "" => Err("the path is missing: write sqlite:PATH or sqlite::memory:".to_owned()),
            path if path.contains('?') && !planted(Bug::ParametersInPath) => Err(parameters(path)),
            path => Ok(StoreUrl::File(path.into())),
        };
    }
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        return Ok(StoreUrl::Postgres(url.to_owned()));
    }
    let is_scheme =
        |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '+');
    match url.split_once(':') {
        // A path may contain a colon, but not where a scheme would end.
        Some((scheme, _)) if is_scheme(scheme) => Err(format!("the scheme {scheme:?} is unknown: {FORMS}")),
        _ if url.is_empty() => Err(format!("the URL is empty: {FORMS}")),
        _ => Ok(StoreUrl::File(url.into())),
    }
}

/// Explains why a path with a question mark is refused: parameters for other programs would become
/// part of the file's name.
fn parameters(path: &str) -> String {
    let (_, parameters) = path.split_once('?').unwrap_or_default();
    let names = parameters.split('&').map(|one| one.split('=').next().unwrap_or_default());
    let named: Vec<String> = names.filter(|name| !name.is_empty()).map(|name| format!("{name:?}")).collect();
    let unknown = match named.as_slice() {
        [] => "the question mark begins parameters".to_owned(),
        [one] => format!("the parameter {one} is unknown"),
        several => format!("the parameters {} are unknown", several.join(", ")),
    };
    format!(
        "{unknown}: a URL of a SQLite store has none; a file whose name contains a question mark is named by its bare path"
    )
}

/// Returns the URL of a store without its password, which stands before the host, or in a
/// parameter.
pub(crate) fn shown(url: &str) -> String {
    let is_server = url.starts_with("postgres://") || url.starts_with("postgresql://");
    let Some((scheme, rest)) = url.split_once("://").filter(|_| is_server) else { return url.to_owned() };
    let (place, parameters) = rest.split_once('?').map_or((rest, None), |(place, all)| (place, Some(all)));
    // A password may contain an `@` or a `/` that nobody has escaped.
    let place = match place.rsplit_once('@') {
        Some((user, host)) => match user.split_once(':') {
            Some((user, _)) => format!("{user}:***@{host}"),
            None => place.to_owned(),
        },
        None => place.to_owned(),
    };
    let Some(parameters) = parameters else { return format!("{scheme}://{place}") };
    let hidden = parameters.split('&').map(|one| match one.split_once('=') {
        Some((name, _)) if name.eq_ignore_ascii_case("password") => format!("{name}=***"),
        _ => one.to_owned(),
    });
    format!("{scheme}://{place}?{}", hidden.collect::<Vec<_>>().join("&"))
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("sqlite::memory:"),
            Self::File(path) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(url) => f.write_str(&shown(url)),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

impl fmt::Display for InvalidUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidUrl {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_paths_memory_or_refused() {
        let file = |path: &str| Ok(StoreUrl::File(path.into()));
        let refused = |problem: &str| Err(problem.to_owned());
        let parameters = |problem: &str| {
            let way_out = "a URL of a SQLite store has none; a file whose name contains a question mark is named by its bare path";
            Err(format!("{problem}: {way_out}"))
        };
        let rows = [
            ("sqlite:app.db", file("app.db")),
            ("sqlite:///tmp/app.db", file("/tmp/app.db")),
            ("sqlite::memory:", Ok(StoreUrl::Memory)),
            ("sqlite://:memory:", Ok(StoreUrl::Memory)),
            ("data/app.db", file("data/app.db")),
            ("./odd:name.db", file("./odd:name.db")),
            ("./odd?name.db", file("./odd?name.db")),
            ("sqlite:app.db?mode=rwc", parameters(r#"the parameter "mode" is unknown"#)),
            ("sqlite::memory:?cache=shared", parameters(r#"the parameter "cache" is unknown"#)),
            ("sqlite:a.db?mode=ro&cache", parameters(r#"the parameters "mode", "cache" are unknown"#)),
            ("sqlite:a.db?", parameters("the question mark begins parameters")),
            (
                "mysql://x",
                refused(
                    "the scheme \"mysql\" is unknown: write sqlite:PATH, sqlite::memory:, postgres://… or a path",
                ),
            ),
            ("postgres://x", Ok(StoreUrl::Postgres("postgres://x".to_owned()))),
            ("postgresql://x?schema=a", Ok(StoreUrl::Postgres("postgresql://x?schema=a".to_owned()))),
            ("", refused("the URL is empty: write sqlite:PATH, sqlite::memory:, postgres://… or a path")),
            ("sqlite:", refused("the path is missing: write sqlite:PATH or sqlite::memory:")),
            ("sqlite://", refused("the path is missing: write sqlite:PATH or sqlite::memory:")),
        ];
        for (url, expected) in rows {
            assert_eq!(parse(url), expected, "{url}");
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        let rows = [
            ("sqlite:app.db", "sqlite:app.db"),
            ("postgres://db/app", "postgres://db/app"),
            ("postgres://ada@db/app?schema=a", "postgres://ada@db/app?schema=a"),
            ("postgres://ada:secret@db:5432/app", "postgres://ada:***@db:5432/app"),
            ("postgresql://ada:s@cr/et@db/app?a=b@c", "postgresql://ada:***@db/app?a=b@c"),
            (
                "postgres://db?user=ada&password=secret&schema=a",
                "postgres://db?user=ada&password=***&schema=a",
            ),
        ];
        for (url, expected) in rows {
            assert_eq!(shown(url), expected);
        }
    }
}
