//! The allowed dependencies between crates, and all dependencies of the pure one. Dev-dependencies
//! are free.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::{Spanned, Value};

use super::Finding;

/// Every crate of the workspace, and our crates that it may depend on. Crates are named after their
/// directories: `core` is the package `abide-core`.
const ARROWS: [(&str, &[&str]); 12] = [
    ("core", &[]),
    ("store", &["core"]),
    ("sqlite", &["store", "core"]),
    ("postgres", &["store", "core"]),
    ("engine", &["store", "core"]),
    ("macros", &[]),
    ("abide", &["engine", "sqlite", "postgres", "store", "core", "macros"]),
    ("server", &["abide", "engine", "sqlite", "postgres", "store", "core", "macros"]),
    ("counting", &[]),
    (
        "cli",
        &["counting", "sim", "server", "abide", "engine", "sqlite", "postgres", "store", "core", "macros"],
    ),
    ("sim", &["counting", "server", "abide", "engine", "sqlite", "postgres", "store", "core", "macros"]),
    ("xtask", &[]),
];

/// The pure crate, which may use only these dependencies: nothing with async, I/O, a clock or
/// randomness.
const PURE: &str = "core";
const PURE_DEPENDENCIES: [&str; 6] = ["serde", "serde_json", "postcard", "jiff", "croner", "smallvec"];

pub(super) fn applies_to(path: &str) -> bool {
    path == "xtask/Cargo.toml" || (path.starts_with("crates/") && path.ends_with("/Cargo.toml"))
}

pub(super) fn check(path: &str, text: &str) -> Vec<Finding> {
    let manifest: Manifest = match toml::from_str(text) {
        Ok(manifest) => manifest,
        Err(error) => {
            let line = error.span().map_or(1, |span| line_of(text, span.start));
            return vec![Finding::new(path, line, format!("does not parse: {}", error.message()))];
        }
    };
    let from = short_name(&manifest.package.name).unwrap_or(&manifest.package.name);
    let Some((_, arrows)) = ARROWS.iter().find(|(name, _)| *name == from) else {
        return vec![Finding::new(path, 1, format!("the crate {from} has no arrows in the table of xtask"))];
    };
    let refused = |(key, value): (&Spanned<String>, &Value)| {
        let package = value.get("package").and_then(Value::as_str).unwrap_or(key.get_ref());
        let message = refusal(from, package, arrows)?;
        Some(Finding::new(path, line_of(text, key.span().start), message))
    };
    manifest.dependencies().filter_map(refused).collect()
}

/// Returns the reason why the crate `from` may not depend on `package`, if there is one.
fn refusal(from: &str, package: &str, arrows: &[&str]) -> Option<String> {
    match short_name(package) {
        Some(to) if !arrows.contains(&to) => Some(format!("the arrow {from} → {to} is not in the design")),
        None if from == PURE && !PURE_DEPENDENCIES.contains(&package) => {
            Some(format!("{from} is pure: it may not use {package}, only {}", PURE_DEPENDENCIES.join(", ")))
        }
        _ => None,
    }
}

/// Returns the design's name of this package, if it is one of ours.
fn short_name(package: &str) -> Option<&str> {
    match package {
        "abide" | "xtask" => Some(package),
        package => package.strip_prefix("abide-"),
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

type Dependencies = BTreeMap<Spanned<String>, Value>;

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Manifest {
    package: Package,
    #[serde(default)]
    dependencies: Dependencies,
    #[serde(default)]
    build_dependencies: Dependencies,
    #[serde(default)]
    target: BTreeMap<String, Target>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
}

/// The table `[target.'cfg(…)'.dependencies]`.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Target {
    #[serde(default)]
    dependencies: Dependencies,
    #[serde(default)]
    build_dependencies: Dependencies,
}

impl Manifest {
    fn dependencies(&self) -> impl Iterator<Item = (&Spanned<String>, &Value)> {
        let targets = self.target.values();
        let targets = targets.flat_map(|target| [&target.dependencies, &target.build_dependencies]);
        [&self.dependencies, &self.build_dependencies].into_iter().chain(targets).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::style::testing::assert_findings;

    fn check_text(package: &str, rest: &str, expected: &[&str]) {
        assert_findings(&check("Cargo.toml", &format!("[package]\nname = {package:?}\n{rest}")), expected);
    }

    #[test]
    fn arrows_of_the_design_hold() {
        check_text("abide-sqlite", "[dependencies]\nabide-store.workspace = true\nrusqlite = \"0\"", &[]);
        check_text("abide-cli", "[dependencies]\nabide.workspace = true\nabide-server = {}", &[]);
        check_text("xtask", "[dependencies]\nsyn = \"3\"", &[]);
    }

    #[test]
    fn other_arrows_are_named() {
        check_text(
            "abide-engine",
            "[dependencies]\nabide-core.workspace = true\nabide-sqlite.workspace = true",
            &["Cargo.toml:5: the arrow engine → sqlite is not in the design"],
        );
        check_text(
            "abide-server",
            "[dependencies.abide-cli]\nworkspace = true",
            &["Cargo.toml:3: the arrow server → cli is not in the design"],
        );
        check_text(
            "xtask",
            "[target.'cfg(unix)'.dependencies]\nabide = \"1\"",
            &["Cargo.toml:4: the arrow xtask → abide is not in the design"],
        );
    }

    #[test]
    fn a_rename_hides_no_arrow() {
        check_text(
            "abide-core",
            "[build-dependencies]\nserde = { package = \"abide-store\", path = \"../store\" }",
            &["Cargo.toml:4: the arrow core → store is not in the design"],
        );
    }

    #[test]
    fn dev_dependencies_are_free() {
        check_text("abide-core", "[dev-dependencies]\nabide-store.workspace = true\ntokio = \"1\"", &[]);
    }

    #[test]
    fn core_stays_pure() {
        check_text("abide-core", "[dependencies]\nserde.workspace = true\npostcard = \"1\"", &[]);
        check_text(
            "abide-core",
            "[dependencies]\ntokio.workspace = true",
            &[
                "Cargo.toml:4: core is pure: it may not use tokio, only serde, serde_json, postcard, jiff, croner, smallvec",
            ],
        );
    }

    #[test]
    fn a_new_crate_needs_its_arrows() {
        check_text("abide-wasm", "", &["Cargo.toml:1: the crate wasm has no arrows in the table of xtask"]);
    }
}
