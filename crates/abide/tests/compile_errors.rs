//! The compiler's messages for wrong uses of the API. `TRYBUILD=overwrite` writes the expected
//! texts anew; docs/guide/errors-and-retries.md has a section on them.

use std::collections::BTreeMap;

const PAGE: &str = include_str!("../../../docs/guide/errors-and-retries.md");

#[test]
fn compile_errors_say_what_to_do() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
}

/// Returns the expected message of each case. The guide calls every file `src/main.rs`.
fn messages() -> BTreeMap<String, String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ui");
    let paths = std::fs::read_dir(folder).unwrap().map(|one| one.unwrap().path());
    let messages = paths.filter(|path| path.extension().is_some_and(|last| last == "stderr"));
    let read = messages.map(|path| {
        let case = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        let text = text.replace(&format!("tests/ui/{case}.rs"), "src/main.rs");
        (case, text)
    });
    read.collect()
}

/// Returns the section of the guide.
fn section() -> &'static str {
    PAGE.split_once("\n## Compile errors\n").expect("the guide has the section").1
}

/// Returns the quotations of the compiler in the guide.
fn quotations() -> Vec<&'static str> {
    let blocks = section().split("```text\n").skip(1);
    blocks.map(|block| block.split_once("```").expect("a block ends").0).collect()
}

#[test]
fn the_guide_quotes_what_the_compiler_says() {
    let messages = messages();
    assert!(quotations().len() >= 6, "{:?}", quotations());
    for quotation in quotations() {
        assert!(messages.values().any(|message| message.contains(quotation)), "nobody says:\n{quotation}");
    }
}

#[test]
fn the_guide_has_the_first_line_of_every_compile_error() {
    for (case, message) in messages() {
        let first = message.lines().find(|line| line.starts_with("error")).expect("it does not compile");
        let said = first.split_once(": ").expect("a message follows").1;
        let lead = said.split_once(": ").map_or(said, |(lead, _)| lead);
        assert!(section().contains(lead), "{case}: the guide does not have: {lead}");
    }
}
