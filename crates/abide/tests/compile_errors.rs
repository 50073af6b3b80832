//! The compiler's messages for wrong uses of the API. `TRYBUILD=overwrite` writes the expected
//! texts anew; docs/guide/errors-and-retries.md has a table of them.

#[test]
fn compile_errors_say_what_to_do() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
}
