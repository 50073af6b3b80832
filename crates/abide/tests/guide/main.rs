//! The examples of docs/guide, compiled and run. Each Rust block of a page stands in the module of
//! that page, word for word; only its indentation may differ.

mod children;
mod errors_and_retries;
mod first_workflow;
mod limits;
mod operating;
mod signals_and_timers;
mod testing;
mod transactions;

/// One page of the guide, and the module with its examples.
struct Page {
    name: &'static str,
    text: &'static str,
    module: &'static str,
}

macro_rules! page {
    ($name:literal, $module:literal) => {
        Page {
            name: $name,
            text: include_str!(concat!("../../../../docs/guide/", $name)),
            module: include_str!($module),
        }
    };
}

const PAGES: [Page; 8] = [
    page!("children.md", "children.rs"),
    page!("errors-and-retries.md", "errors_and_retries.rs"),
    page!("first-workflow.md", "first_workflow.rs"),
    page!("limits.md", "limits.rs"),
    page!("operating.md", "operating.rs"),
    page!("signals-and-timers.md", "signals_and_timers.rs"),
    page!("testing.md", "testing.rs"),
    page!("transactions.md", "transactions.rs"),
];

#[test]
fn every_example_of_the_guide_is_run() {
    for Page { name, text, module } in PAGES {
        let blocks: Vec<&str> =
            text.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
        assert!(!blocks.is_empty(), "{name} has no example");
        for block in blocks {
            let is_run = unindented(module).contains(&unindented(block));
            assert!(is_run, "this example of {name} is not in its module:\n{block}");
        }
    }
}

fn unindented(text: &str) -> String {
    text.lines().map(|line| line.trim_start().to_owned() + "\n").collect()
}
