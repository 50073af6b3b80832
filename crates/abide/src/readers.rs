//! The code of this crate that reads bytes, for tests and fuzzers; see [`abide_core::readers`]. Not
//! for use by hand.

use abide_core::readers::{Reader, Verdict};
use abide_core::{Address, Command, Execution, ExecutionId, Namespace, Payload, Timestamp};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::StoreUrl;
use crate::data::{decode, encode};
use crate::testing::History;

/// The readers of this crate.
pub const ALL: [Reader; 3] = [
    Reader { name: "history", read: history, seeds: history_seeds },
    Reader { name: "store_url", read: store_url, seeds: store_url_seeds },
    Reader { name: "payload", read: payload, seeds: payload_seeds },
];

/// Reads a history, and checks that writing it changes nothing.
fn history(bytes: &[u8]) -> Verdict {
    let Ok(text) = std::str::from_utf8(bytes) else { return Verdict::Refused };
    match History::parse(text) {
        Ok(history) => {
            assert_eq!(History::parse(&history.to_string()).as_ref(), Ok(&history));
            Verdict::Read
        }
        Err(problem) => {
            assert!(!problem.to_string().is_empty());
            Verdict::Refused
        }
    }
}

fn history_seeds() -> Vec<Vec<u8>> {
    let start = abide_core::fixture::flow();
    let address = Address { namespace: Namespace::default(), id: ExecutionId::new("x").expect("an id") };
    let now = Timestamp::from_millis(1_000);
    let (mut execution, first) = Execution::start(address.clone(), start, now);
    let completed = Command::Complete { result: Payload::from("2"), unused: Vec::new() };
    let decision = execution.decide(completed, now).expect("a fresh one takes it");
    let (entry, _) = decision.record(&mut execution, now);
    let run: Vec<_> = [first].into_iter().chain(entry).collect();
    vec![History { address, runs: vec![run] }.to_string().into_bytes()]
}

fn store_url(bytes: &[u8]) -> Verdict {
    let Ok(text) = std::str::from_utf8(bytes) else { return Verdict::Refused };
    match text.parse() {
        Ok(StoreUrl::Memory) => assert!(text.ends_with(":memory:"), "{text:?} says that it is in memory"),
        Ok(StoreUrl::File(path)) => {
            let path = path.to_str().expect("it came from a text");
            assert!(!path.is_empty() && text.ends_with(path), "{text:?} names {path:?}");
        }
        Ok(StoreUrl::Postgres(url)) => assert_eq!(url, text, "a store parses the URL of its own server"),
        Err(problem) => {
            assert!(!problem.to_string().is_empty());
            return Verdict::Refused;
        }
    }
    Verdict::Read
}

fn store_url_seeds() -> Vec<Vec<u8>> {
    let urls =
        ["sqlite:app.db", "sqlite::memory:", "sqlite:///tmp/a.db", "./odd:name.db", "postgres://a:b@c/d"];
    urls.map(Vec::from).to_vec()
}

/// Reads a value of the user's as several types.
fn payload(bytes: &[u8]) -> Verdict {
    let found = [
        value::<Value>(bytes),
        value::<String>(bytes),
        value::<Vec<u64>>(bytes),
        value::<Option<(i8, char)>>(bytes),
        value::<f64>(bytes),
    ];
    if found.contains(&Verdict::Read) { Verdict::Read } else { Verdict::Refused }
}

fn value<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &[u8]) -> Verdict {
    let found: Option<T> = decode(&Payload::from(bytes.to_vec())).ok();
    if let Some(value) = &found {
        let written = encode(value).expect("what was read can be written");
        assert_eq!(decode::<T>(&written).ok().as_ref(), Some(value), "it is read as it was written");
        let again = encode(value).expect("what was read can be written");
        assert_eq!(written, again, "the same value is the same bytes");
    }
    Verdict::of(found)
}

fn payload_seeds() -> Vec<Vec<u8>> {
    let nested = [vec![b'['; 100], vec![b']'; 100]].concat();
    let texts =
        [r#"{"a":[1,-2.5e3,null,true],"b":"gr\u00f6\u00dfe"}"#, r#""x""#, "[1,2]", "0.1", r#"[7,"x"]"#];
    texts.map(Vec::from).into_iter().chain([nested]).collect()
}
