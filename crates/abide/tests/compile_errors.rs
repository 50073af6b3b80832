//! What the compiler says to those who hold it wrong. `TRYBUILD=overwrite` writes the expected texts anew; the table of
//! them is in docs/guide/errors-and-retries.md.

#[test]
fn compile_errors_say_what_to_do() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
}
