//! Text that no file of the project may contain: places that exist on one machine only.

use super::Finding;

// Spelled in pieces because this file is checked too.
const HOME_DIRECTORIES: [&str; 3] = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];
const REGISTRY_HOSTS: [&str; 3] =
    [concat!("crates", ".io"), concat!("static", ".crates"), concat!("index", ".crates")];

pub(super) fn check(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, content) in (1..).zip(text.lines()) {
        if let Some(directory) = HOME_DIRECTORIES.iter().find(|directory| has_absolute(content, directory)) {
            findings.push(Finding::new(path, line, format!("absolute path below {directory}")));
        }
        if let Some(host) = REGISTRY_HOSTS.iter().find(|host| !is_lock_file(path) && content.contains(**host))
        {
            findings.push(Finding::new(
                path,
                line,
                format!("registry host {host}: only Cargo.lock may name it"),
            ));
        }
    }
    findings
}

/// Whether `directory` occurs as the start of a path and not in the middle of one.
fn has_absolute(content: &str, directory: &str) -> bool {
    content.match_indices(directory).any(|(position, _)| {
        let before = content[..position].chars().next_back();
        !before.is_some_and(|before| before.is_alphanumeric() || "._-~*})>]".contains(before))
    })
}

fn is_lock_file(path: &str) -> bool {
    path == "Cargo.lock" || path.ends_with("/Cargo.lock")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::style::testing::assert_findings;

    #[test]
    fn absolute_paths_are_refused() {
        let root = HOME_DIRECTORIES[1];
        for text in [format!("a\ncd {root}a"), format!("\n\"{root}\""), format!("\nurl = file://{root}a")] {
            assert_findings(&check("a.md", &text), &[&format!("a.md:2: absolute path below {root}")]);
        }
    }

    #[test]
    fn relative_paths_are_fine() {
        let [work, root, home] = HOME_DIRECTORIES;
        let text = format!("docs{work}a ..{root}b https://example.org{home}c {{base}}{home}d");
        assert_findings(&check("a.md", &text), &[]);
    }

    #[test]
    fn only_lock_files_name_the_registry() {
        let host = REGISTRY_HOSTS[0];
        let text = format!("https://{host}/abide");
        let message = format!("README.md:1: registry host {host}: only Cargo.lock may name it");
        assert_findings(&check("README.md", &text), &[&message]);
        assert_findings(&check("Cargo.lock", &text), &[]);
        assert_findings(&check("tests/beside-sqlx/Cargo.lock", &text), &[]);
    }
}
