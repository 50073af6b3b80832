//! `abide migrate`.

use serde_json::json;

use crate::common::{TestStore, abide};

#[test]
fn a_schema_on_a_server_is_made_once_and_only_when_asked() {
    let server = std::env::var("ABIDE_TEST_POSTGRES").expect("cargo xtask postgres -- cargo test …");
    let store = format!("{server}?schema=abide_migrate_{}", std::process::id());
    let migrate = |args: &[&str]| abide(&[&["migrate", "--store", &store], args].concat()).ok();
    let told = migrate(&["--dry-run"]).stdout;
    assert!(told.contains(" would go from version 0 to "), "{told}");
    let listed = abide(&["list", "--store", &store]);
    assert!(listed.code == 5 && listed.stderr.contains("there is no"), "{listed:?}");
    let done = migrate(&["-o", "json"]).json();
    assert_eq!((&done["found"], &done["applied"]), (&json!(0), &json!(true)));
    let again = migrate(&["-o", "json"]).json();
    assert_eq!(
        (&again["found"], &again["applied"], &again["steps"]),
        (&done["known"], &json!(false), &json!([]))
    );
    assert!(migrate(&[]).stdout.ends_with(": nothing to do\n"));
    abide(&["list", "--store", &store]).ok();
}

#[test]
fn a_file_that_is_missing_is_not_made() {
    let place = TestStore::new();
    let missing = place.folder().join("missing.db").display().to_string();
    assert_eq!(abide(&["migrate", "--store", &missing]).code, 5);
    assert!(!place.folder().join("missing.db").exists());
}
