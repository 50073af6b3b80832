//! A store that is closed.

use super::make::{complete, everything, flow, start_of, worker};
use super::{Subject, block_on, table};
use crate::{Beat, Error, Feed, FeedFrom, InboxRead, Read, Submit, Target};

table![closed_store_refuses_everything, closing_ends_every_wait, closing_twice_changes_nothing,];

fn closed_store_refuses_everything(subject: &Subject) {
    let (seat, held) = subject.held("a");
    let commit = subject.draft(&held).then(complete()).commit();
    let store = &subject.store;
    store.close();
    let is_closed = |error: Option<Error>| matches!(error, Some(Error::Closed));
    let submit = Submit { messages: vec![start_of("b", flow())], born_to: None, alone: false, stretch: None };
    assert!(is_closed(block_on(store.submit(submit)).err()));
    assert!(is_closed(block_on(store.commit(commit)).err()));
    assert!(is_closed(block_on(store.register(worker())).err()));
    assert!(is_closed(block_on(store.heartbeat(Beat::of(seat.session))).err()));
    assert!(is_closed(block_on(store.list(everything())).err()));
    assert!(is_closed(block_on(store.inbox(InboxRead::first(held.key))).err()));
    assert!(is_closed(block_on(store.feed(Feed { from: FeedFrom::Beginning, limit: 1 })).err()));
    let target = Target::Key(held.key);
    let read = Read { target, run: None, from: 1, limit: 1, with_inbox: false };
    assert!(is_closed(block_on(store.read(read)).err()));
}

fn closing_ends_every_wait(subject: &Subject) {
    let seat = subject.seat(worker());
    let (waiting, changed) = (subject.store.wait(seat.session), subject.store.changed());
    subject.store.close();
    // Earlier notices may come first.
    let told = block_on(waiting);
    assert!(told.is_ok() || matches!(told, Err(Error::Closed)), "{told:?}");
    assert!(block_on(subject.store.wait(seat.session)).is_err());
    let told = block_on(changed);
    assert!(told.is_ok() || matches!(told, Err(Error::Closed)), "{told:?}");
}

fn closing_twice_changes_nothing(subject: &Subject) {
    subject.start("a", flow());
    subject.store.close();
    subject.store.close();
    assert!(matches!(block_on(subject.store.list(everything())), Err(Error::Closed)));
}
