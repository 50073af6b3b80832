//! The readers of bytes in this crate, for tests and fuzzers; see [`abide_core::readers`]. Not for
//! use by hand.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use abide_core::readers::{Reader, Verdict};
use abide_core::{
    Address, Body, Bounds, By, Command, Entry, Epoch, Execution, ExecutionId, Message, MessageId, Name,
    Namespace, Payload, Timestamp, Version, codec,
};

use crate::memory::MemoryStore;
use crate::{Clock, Import, Imported, Record, Store, export};

/// The readers of this crate.
pub const ALL: [Reader; 1] = [Reader { name: "import", read: import, seeds }];

/// An encoded [`Import`]: id, runs, state, summary and messages, each encoded, and the rest.
type Parcel = (ExecutionId, Vec<Vec<Vec<u8>>>, Vec<u8>, Vec<u8>, Vec<Vec<u8>>, (u64, u64, u32, bool));

/// Checks that only a sound import is accepted, and that its export equals it.
fn import(bytes: &[u8]) -> Verdict {
    let Some(import) = codec::decode(bytes).ok().and_then(unpacked) else { return Verdict::Refused };
    let bounds = Bounds { payload_bytes_max: usize::MAX, ..Bounds::default() };
    let settled = import.settle(&bounds, NOW.0);
    let store = MemoryStore::new(Arc::new(NOW), bounds);
    let imported = answer(store.import(import.clone()));
    assert_eq!(imported.is_ok(), settled.is_ok(), "{imported:?}, {settled:?}");
    if imported.is_err() {
        return Verdict::Refused;
    }
    let again = answer(store.import(import.clone()));
    assert!(matches!(again, Ok(Imported::Known(_))), "{again:?}");
    let exported = answer(export(&*store, import.address())).expect("it can be read").expect("it is there");
    assert_eq!(exported.runs, import.runs);
    assert_eq!(exported.execution, import.execution);
    assert_eq!(exported.unread, import.unread);
    Verdict::Read
}

fn unpacked((id, runs, state, summary, unread, rest): Parcel) -> Option<Import> {
    let record = |(bytes, seq)| Record { seq, bytes };
    let address = Address { namespace: Namespace::default(), id };
    let (epoch, version, takeover_count, was_ready) = rest;
    Some(Import {
        runs: runs.into_iter().map(|run| run.into_iter().zip(1..).map(record).collect()).collect(),
        execution: codec::decode::<Execution>(&state).ok()?.at(address),
        summary: codec::decode(&summary).ok()?,
        unread: unread.iter().map(|bytes| codec::decode(bytes).ok()).collect::<Option<_>>()?,
        epoch: Epoch(epoch),
        version: Version(version),
        takeover_count,
        was_ready,
    })
}

fn packed(execution: &Execution, runs: &[Vec<Entry>], unread: &[Message]) -> Vec<u8> {
    let parcel: Parcel = (
        execution.address().id.clone(),
        runs.iter().map(|run| run.iter().map(codec::encode).collect()).collect(),
        codec::encode(execution),
        codec::encode(&execution.summary(&[])),
        unread.iter().map(codec::encode).collect(),
        (1, 1, 0, true),
    );
    codec::encode(&parcel)
}

fn seeds() -> Vec<Vec<u8>> {
    let name = |text| Name::new(text).expect("a name");
    let address = Address { namespace: Namespace::default(), id: ExecutionId::new("x").expect("an id") };
    let by = || By("ann".into());
    let start = abide_core::fixture::flow();
    let (execution, first) = Execution::start(address.clone(), start, NOW.0);
    let body = Body::Signal { name: name("go"), payload: Payload::from("true") };
    let message = Message::new(MessageId::new("m-1"), address, by(), body);
    let after = |command| {
        let mut changed = execution.clone();
        let decision = changed.decide(command, NOW.0).expect("a fresh one takes it");
        let (entry, _) = decision.record(&mut changed, NOW.0);
        packed(&changed, &[[first.clone()].into_iter().chain(entry).collect()], &[])
    };
    vec![
        packed(&execution, &[vec![first.clone()]], &[message]),
        after(Command::Pause { by: by(), reason: "lunch".to_owned() }),
        after(Command::Complete { result: Payload::from("1"), unused: Vec::new() }),
    ]
}

/// Returns the answer of a store that completes every operation within the call.
pub fn answer<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a store in memory makes nobody wait"),
    }
}

/// A clock that stands still.
#[derive(Clone, Copy, Debug)]
pub struct Still(pub Timestamp);

/// The time of the tests.
pub const NOW: Still = Still(Timestamp::from_millis(1_000));

impl Clock for Still {
    fn now(&self) -> Timestamp {
        self.0
    }
}
