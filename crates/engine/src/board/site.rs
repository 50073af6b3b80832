//! Places where code asks for operations.

use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use abide_core::{KeyHasher, Op, Origin, text};

/// The place in the program that asks for an operation. It is shown to people and compared with
/// nothing: a deploy moves lines.
#[derive(Clone, Copy, Debug)]
pub struct Site(&'static Location<'static>);

/// The longest text of a place, in bytes. The beginning of a longer path is left out.
const SITE_BYTES_MAX: usize = 200;

/// The texts of the places that were asked for. A program has as many of them as it has calls.
static TEXTS: LazyLock<Mutex<HashMap<u64, Arc<str>, KeyHasher>>> = LazyLock::new(Mutex::default);

impl Site {
    /// Returns the place that calls the caller of this function.
    #[track_caller]
    pub fn caller() -> Self {
        Self(Location::caller())
    }

    /// Returns the place of a failed attempt of an operation in this workflow.
    #[cold]
    pub(crate) fn place(self, workflow: &str, op: &Op, attempt: Option<u32>) -> Origin {
        let code = format!("workflow {workflow:?}");
        Origin { code, op: Some(op.to_string()), attempt, site: Some(self.text().as_ref().to_owned()) }
    }

    /// Returns a number that no other place of this program has. A place may have several: the
    /// compiler may repeat it.
    pub(crate) fn number(self) -> u64 {
        std::ptr::from_ref(self.0).addr() as u64
    }

    /// Returns file and line. They are put together once in the life of the program.
    pub(crate) fn text(self) -> Arc<str> {
        let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
        texts.entry(self.number()).or_insert_with(|| written(self.0.file(), self.0.line()).into()).clone()
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

/// Returns file and line, the same on every machine that compiles the program: of an absolute path,
/// the folders above the package are left out.
pub(crate) fn written(file: &str, line: u32) -> String {
    let file = text::clean(file).replace('\\', "/");
    let is_absolute = file.starts_with('/') || file.get(1..3) == Some(":/");
    let path = if is_absolute { in_package(&file) } else { file.as_str() };
    let written = format!("{path}:{line}");
    let excess = written.len().saturating_sub(SITE_BYTES_MAX);
    let Some(from) = (excess..written.len()).find(|at| excess > 0 && written.is_char_boundary(*at)) else {
        return written;
    };
    format!("…{}", &written[from..])
}

/// Returns the part of an absolute path from the folder of its package on. The sources of a package
/// are in one of a few folders.
fn in_package(path: &str) -> &str {
    const SOURCES: [&str; 4] = ["/src/", "/tests/", "/examples/", "/benches/"];
    let sources = SOURCES.into_iter().filter_map(|folder| path.rfind(folder)).max();
    match sources {
        Some(at) => path[..at].rfind('/').map_or(path.trim_start_matches('/'), |above| &path[above + 1..]),
        None => path.rsplit('/').next().unwrap_or(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_written_the_same_on_every_machine() {
        let rows = [
            ("crates/shop/src/order.rs", "crates/shop/src/order.rs:7"),
            ("src/main.rs", "src/main.rs:7"),
            (r"src\bin\shop.rs", "src/bin/shop.rs:7"),
            ("/build/registry/src/index-1/shop-1.2.3/src/a/b.rs", "shop-1.2.3/src/a/b.rs:7"),
            ("/src/bob/shop/tests/all.rs", "shop/tests/all.rs:7"),
            (r"C:\work\shop\src\lib.rs", "shop/src/lib.rs:7"),
            ("/build/shop.rs", "shop.rs:7"),
            ("/src/main.rs", "src/main.rs:7"),
        ];
        for (file, expected) in rows {
            assert_eq!(written(file, 7), expected);
        }
    }

    #[test]
    fn a_long_place_keeps_its_end() {
        let text = written(&format!("{}/ä/main.rs", "ü".repeat(300)), 12);
        assert!(text.len() <= SITE_BYTES_MAX + 3 && text.starts_with('…'), "{text}");
        assert!(text.ends_with("/ä/main.rs:12"), "{text}");
    }

    #[test]
    fn the_text_of_a_place_is_made_once() {
        let site = Site::caller();
        assert!(Arc::ptr_eq(&site.text(), &site.text()));
        assert_eq!(site.to_string(), format!("{}:{}", file!(), line!() - 2));
    }
}
