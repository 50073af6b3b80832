//! The URL of a store: what it says to the client of PostgreSQL, and what it says to us.

use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::SslMode;

use crate::OpenError;

/// The schema of stores whose URL names none.
const SCHEMA: &str = "abide";

/// The longest name of a schema that PostgreSQL does not cut.
const SCHEMA_BYTES_MAX: usize = 63;

/// A URL, taken apart.
pub(crate) struct Place {
    pub(crate) config: Config,
    pub(crate) schema: String,
    /// Whether the server reports changes, or the process has to look.
    pub(crate) listens: bool,
}

impl Place {
    pub(crate) fn parse(url: &str, connect_ms_max: u64) -> Result<Self, OpenError> {
        let wrong = |what: String| OpenError::Url { what };
        if !(url.starts_with("postgres://") || url.starts_with("postgresql://")) {
            return Err(wrong("it does not begin with postgres://".to_owned()));
        }
        let (address, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut schema, mut listens, mut rest) = (SCHEMA.to_owned(), true, Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("schema", name)) => schema = checked(name)?.to_owned(),
                Some(("listen", "on")) => listens = true,
                Some(("listen", "off")) => listens = false,
                Some(("listen", other)) => {
                    return Err(wrong(format!("listen is {other:?}, and may be \"on\" or \"off\"")));
                }
                _ => rest.push(pair),
            }
        }
        let plain = if rest.is_empty() { address.to_owned() } else { [address, &rest.join("&")].join("?") };
        let mut config: Config = plain.parse().map_err(|error: tokio_postgres::Error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            wrong(cause.unwrap_or_else(|| error.to_string()))
        })?;
        if config.get_ssl_mode() == SslMode::Require {
            return Err(OpenError::TlsRequired);
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(Duration::from_millis(connect_ms_max));
        }
        if config.get_application_name().is_none() {
            config.application_name("abide");
        }
        Ok(Self { config, schema, listens })
    }
}

/// Checks the name of a schema: one that needs no quotes is the same in every tool.
fn checked(name: &str) -> Result<&str, OpenError> {
    let is_first = |c: char| c.is_ascii_lowercase() || c == '_';
    let is_plain = name.starts_with(is_first) && name.chars().all(|c| is_first(c) || c.is_ascii_digit());
    if is_plain && name.len() <= SCHEMA_BYTES_MAX && !name.starts_with("pg_") {
        return Ok(name);
    }
    let what = format!(
        "schema {name:?} is no name of lower-case letters, digits and underscores, up to {SCHEMA_BYTES_MAX} bytes"
    );
    Err(OpenError::Url { what })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(url: &str) -> String {
        match Place::parse(url, 1_000) {
            Ok(place) => format!("{} {}", place.schema, place.listens),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn parameters_are_understood_or_refused_by_name() {
        for (url, expected) in [
            ("postgres://u@h/d", "abide true"),
            ("postgresql://u@h/d?schema=a_1&listen=off&sslmode=disable", "a_1 false"),
            ("postgres://u@h/d?sslmode=prefer&listen=on", "abide true"),
            ("postgres://u@h/d?sslmode=require", "demands TLS"),
            ("postgres://u@h/d?listen=maybe", "listen is \"maybe\""),
            ("postgres://u@h/d?schema=", "schema \"\" is no name"),
            ("postgres://u@h/d?schema=A", "schema \"A\" is no name"),
            ("postgres://u@h/d?schema=pg_x", "schema \"pg_x\" is no name"),
            ("postgres://u@h/d?shema=a", "shema"),
            ("postgres://u@h:port/d", "invalid value for option `port`"),
            ("sqlite:a.db", "does not begin with postgres://"),
        ] {
            let found = complaint(url);
            assert!(found.contains(expected), "{url}: {found}");
        }
    }
}
