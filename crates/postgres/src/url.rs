//! The URL of a store: what it says to the client of PostgreSQL, and what it says to us.

use std::time::Duration;

use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::OpenError;
use crate::tls::{Mode, Wish};

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
    pub(crate) tls: MakeRustlsConnect,
}

/// The end of a connection that moves the bytes.
type Bytes = Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

impl Place {
    /// Connects, as the URL says.
    pub(crate) async fn connect(&self) -> Result<(Client, Bytes), tokio_postgres::Error> {
        self.config.connect(self.tls.clone()).await
    }

    pub(crate) fn parse(url: &str, connect_ms_max: u64) -> Result<Self, OpenError> {
        let wrong = |what: String| OpenError::Url { what };
        if !(url.starts_with("postgres://") || url.starts_with("postgresql://")) {
            return Err(wrong("it does not begin with postgres://".to_owned()));
        }
        let (address, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut schema, mut listens, mut rest) = (SCHEMA.to_owned(), true, Vec::new());
        let mut wish = Wish::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("schema", name)) => schema = checked(name)?.to_owned(),
                Some(("listen", "on")) => listens = true,
                Some(("listen", "off")) => listens = false,
                Some(("listen", other)) => {
                    return Err(wrong(format!("listen is {other:?}, and may be \"on\" or \"off\"")));
                }
                Some(("sslmode", mode)) => {
                    wish.mode = Mode::of(mode).ok_or_else(|| wrong(unknown_mode(mode)))?;
                }
                Some(("sslrootcert", path)) => wish.roots = Some(decoded(path).into()),
                _ => rest.push(pair),
            }
        }
        let plain = if rest.is_empty() { address.to_owned() } else { [address, &rest.join("&")].join("?") };
        let mut config: Config = plain.parse().map_err(|error: tokio_postgres::Error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            wrong(cause.unwrap_or_else(|| error.to_string()))
        })?;
        config.ssl_mode(wish.mode.in_client());
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(Duration::from_millis(connect_ms_max));
        }
        if config.get_application_name().is_none() {
            config.application_name("abide");
        }
        Ok(Self { config, schema, listens, tls: wish.connector()? })
    }
}

fn unknown_mode(mode: &str) -> String {
    let names: Vec<_> = Mode::NAMES.iter().map(|(name, _)| format!("{name:?}")).collect();
    format!("sslmode is {mode:?}, and may be {}", names.join(", "))
}

/// Returns a value with its escapes replaced. A percent sign that begins none stays.
fn decoded(value: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), value.as_bytes());
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        (bytes, rest) = match (first, escaped) {
            (b'%', Some(byte)) => ([bytes, vec![byte]].concat(), &behind[2..]),
            (byte, _) => ([bytes, vec![*byte]].concat(), behind),
        };
    }
    String::from_utf8_lossy(&bytes).into_owned()
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
            ("postgres://u@h/d?sslmode=require", "abide true"),
            ("postgres://u@h/d?sslmode=verify_full", "sslmode is \"verify_full\", and may be \"disable\", "),
            ("postgres://u@h/d?sslmode=verify-full&sslrootcert=/no%20where", "sslrootcert \"/no where\": "),
            ("postgres://u@h/d?sslcert=mine", "sslcert"),
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
