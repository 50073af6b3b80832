//! Names of stores.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use abide_core::planted::{Bug, planted};

/// A store, named by `sqlite:PATH`, `sqlite::memory:` or a bare path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// A SQLite database in memory, which belongs to its process.
    Memory,
    /// A SQLite database in a file.
    File(PathBuf),
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
        return Err("this version has no PostgreSQL store yet; write sqlite:PATH".to_owned());
    }
    let is_scheme =
        |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '+');
    match url.split_once(':') {
        // A path may contain a colon, but not where a scheme would end.
        Some((scheme, _)) if is_scheme(scheme) => {
            Err(format!("the scheme {scheme:?} is unknown: write sqlite:PATH, sqlite::memory: or a path"))
        }
        _ if url.is_empty() => {
            Err("the URL is empty: write sqlite:PATH, sqlite::memory: or a path".to_owned())
        }
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
                refused("the scheme \"mysql\" is unknown: write sqlite:PATH, sqlite::memory: or a path"),
            ),
            ("postgres://x", refused("this version has no PostgreSQL store yet; write sqlite:PATH")),
            ("", refused("the URL is empty: write sqlite:PATH, sqlite::memory: or a path")),
            ("sqlite:", refused("the path is missing: write sqlite:PATH or sqlite::memory:")),
            ("sqlite://", refused("the path is missing: write sqlite:PATH or sqlite::memory:")),
        ];
        for (url, expected) in rows {
            assert_eq!(parse(url), expected, "{url}");
        }
    }
}
