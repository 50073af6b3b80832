//! `abide intake`: what others have enqueued, before and after an engine has taken it.

use abide::rusqlite::Connection;
use serde_json::json;

use crate::common::{TestStore, until};

fn enqueued(place: &TestStore) -> serde_json::Value {
    place.abide(&["intake", "-o", "json"]).ok().json()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_shown_until_they_are_taken_and_after_they_are_refused() {
    let place = TestStore::new();
    place.open().await.shutdown().await;
    let nothing = place.abide(&["intake"]).ok();
    assert_eq!((nothing.stdout.as_str(), nothing.stderr.contains("nothing is enqueued")), ("", true));
    let database = Connection::open(place.folder().join("app.db")).unwrap();
    let insert = "INSERT INTO abide_intake (id, verb, execution, name, input, sender) \
                  VALUES ('r1', 'signal', 'nobody', 'go', '1', 'ann'), ('r2', 'signal', 'other', 'go', '1', 'ann')";
    database.execute_batch(insert).unwrap();
    database.execute_batch("UPDATE abide_intake SET namespace = 'elsewhere' WHERE id = 'r2'").unwrap();
    let expected = json!([{
        "state": "waiting", "id": "nobody", "namespace": "default", "what": "signal", "name": "go",
        "row": "r1", "sender": "ann",
    }]);
    assert_eq!(enqueued(&place), expected);
    let table = place.abide(&["intake"]).ok().stdout;
    assert!(table.contains("from \"ann\": no engine has taken it"), "{table}");
    let worker = place.open().await;
    let refused = until("it is refused", || {
        let found = enqueued(&place);
        (found[0]["state"] == "refused").then_some(found)
    });
    assert_eq!(
        (&refused[0]["id"], &refused[0]["row"], refused[1].is_null()),
        (&json!("nobody"), &json!("r1"), true)
    );
    assert_eq!(refused[0]["why"], "there is no execution \"nobody\"");
    assert_eq!(
        place.abide(&["--namespace", "elsewhere", "intake", "-o", "json"]).ok().json()[0]["row"],
        "r2"
    );
    assert_eq!(place.abide(&["verify"]).ok().code, 0);
    worker.shutdown().await;
    // A copy has both tables.
    database.execute_batch(insert).unwrap();
    let copy = place.folder().join("copy.db").display().to_string();
    place.abide(&["backup", &copy]).ok();
    let copied = place.abide(&["--store", &copy, "intake", "-o", "json"]).ok().json();
    assert_eq!((&copied[0]["state"], &copied[2]["state"]), (&json!("waiting"), &json!("refused")));
}
