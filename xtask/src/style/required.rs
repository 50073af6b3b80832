//! Files that readers and packagers expect, and that other files point to.

use super::Finding;

const REQUIRED: [&str; 7] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/guarantees.md",
    "LICENSE-MIT",
    "LICENSE-APACHE",
];

pub(super) fn check(files: &[String]) -> Vec<Finding> {
    let is_missing = |required: &&&str| !files.iter().any(|file| file == **required);
    REQUIRED
        .iter()
        .filter(is_missing)
        .map(|required| Finding::new(required, 1, "the file is missing"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::style::testing::assert_findings;

    #[test]
    fn a_missing_file_is_named() {
        let mut files: Vec<String> = REQUIRED.iter().map(ToString::to_string).collect();
        assert_findings(&check(&files), &[]);
        files.remove(4);
        assert_findings(&check(&files), &["docs/guarantees.md:1: the file is missing"]);
    }
}
