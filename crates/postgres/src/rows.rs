//! The values in rows. Everything that is read is checked.

use abide_core::{
    Address, Epoch, Execution, ExecutionId, LeaseRow, Listens, Message, Namespace, SessionId, Sort, Status,
    Summary, Timestamp, Version, codec,
};
use abide_store::Record;

use crate::error::Stop;
use crate::seal::{sealed, unsealed};

/// Converts a number for a column. Numbers here count things, and never come near the sign.
pub(crate) fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Converts a number from a column.
pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// Converts a number that was asked for into a limit.
pub(crate) fn limit(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

pub(crate) fn micros(at: Option<Timestamp>) -> Option<i64> {
    at.map(Timestamp::as_micros)
}

pub(crate) fn timestamp(micros: Option<i64>) -> Option<Timestamp> {
    micros.map(Timestamp::from_micros)
}

pub(crate) fn lease_row(session: Option<i64>, epoch: i64, version: i64) -> LeaseRow {
    LeaseRow {
        session: session.map(|session| SessionId(unsigned(session))),
        epoch: Epoch(unsigned(epoch)),
        version: Version(unsigned(version)),
    }
}

/// The order of wakes in a queue: higher priorities first.
pub(crate) fn rank(priority: i16) -> i32 {
    -i32::from(priority)
}

pub(crate) fn listens_number(listens: Listens) -> i16 {
    match listens {
        Listens::Nothing => 0,
        Listens::Control => 1,
        Listens::Everything => 2,
    }
}

pub(crate) fn listens(key: i64, number: i16) -> Result<Listens, Stop> {
    match number {
        0 => Ok(Listens::Nothing),
        1 => Ok(Listens::Control),
        2 => Ok(Listens::Everything),
        _ => Err(Stop::corrupt(format!("execution {key} listens to {number}"))),
    }
}

pub(crate) fn status(key: i64, number: i16) -> Result<Status, Stop> {
    let found = u8::try_from(number).ok().and_then(Status::from_number);
    found.ok_or_else(|| Stop::corrupt(format!("execution {key} has status {number}")))
}

/// What an execution must listen to, for a wake without a message to count: a wake that its holder
/// left counts always.
pub(crate) const NEEDS_NOTHING: i16 = 0;

/// What an execution must listen to, for a message to wake it.
pub(crate) fn needs(sort: Sort) -> i16 {
    if sort == Sort::Order { 1 } else { 2 }
}

pub(crate) fn sort_number(sort: Sort) -> i16 {
    match sort {
        Sort::Signal => 0,
        Sort::Order => 1,
        Sort::Answer => 2,
        Sort::Passing => 3,
    }
}

/// Returns `None` for a number that nobody writes: the message is looked at then.
pub(crate) fn sort(number: i16) -> Option<Sort> {
    [Sort::Signal, Sort::Order, Sort::Answer, Sort::Passing].get(usize::try_from(number).ok()?).copied()
}

pub(crate) fn run(key: i64, number: i32) -> Result<u32, Stop> {
    u32::try_from(number).map_err(|_| Stop::corrupt(format!("execution {key} is in run {number}")))
}

pub(crate) fn run_number(run: u32) -> i32 {
    i32::try_from(run).unwrap_or(i32::MAX)
}

pub(crate) fn address(ns: &str, id: &str) -> Result<Address, Stop> {
    let wrong = |error: &dyn std::fmt::Display| Stop::corrupt(format!("execution {id:?} in {ns:?}: {error}"));
    Ok(Address {
        namespace: Namespace::new(ns).map_err(|error| wrong(&error))?,
        id: ExecutionId::new(id).map_err(|error| wrong(&error))?,
    })
}

pub(crate) fn opened<'a>(key: i64, what: &str, bytes: &'a [u8]) -> Result<&'a [u8], Stop> {
    unsealed(key, bytes).ok_or_else(|| Stop::corrupt(format!("{what} of execution {key} is damaged")))
}

pub(crate) fn state(key: i64, address: &Address, bytes: &[u8]) -> Result<Execution, Stop> {
    let bytes = opened(key, "the state", bytes)?;
    let decoded = codec::decode::<Execution>(bytes);
    let state = decoded.map_err(|error| Stop::undecodable(format_args!("the state of {address}"), &error))?;
    Ok(state.at(address.clone()))
}

pub(crate) fn summary(key: i64, bytes: &[u8]) -> Result<Summary, Stop> {
    let bytes = opened(key, "the summary", bytes)?;
    codec::decode(bytes)
        .map_err(|error| Stop::undecodable(format_args!("the summary of execution {key}"), &error))
}

pub(crate) fn message(key: i64, bytes: &[u8]) -> Result<Message, Stop> {
    let bytes = opened(key, "a message", bytes)?;
    codec::decode(bytes)
        .map_err(|error| Stop::undecodable(format_args!("a message of execution {key}"), &error))
}

/// Puts the records of one commit behind each other.
pub(crate) fn packed(key: i64, records: &[Record]) -> Vec<u8> {
    let size = records.iter().map(|record| record.bytes.len() + 4).sum();
    let mut bytes = Vec::with_capacity(size);
    for record in records {
        let length = u32::try_from(record.bytes.len()).expect("a record is smaller than four gigabytes");
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&record.bytes);
    }
    sealed(key, &bytes)
}

/// Takes apart the records of one commit, the first of which has the number `seq`.
pub(crate) fn unpacked(key: i64, seq: i64, bytes: &[u8]) -> Result<Vec<Record>, Stop> {
    let damaged = || Stop::corrupt(format!("the journal of execution {key} is damaged at entry {seq}"));
    let mut rest = unsealed(key, bytes).ok_or_else(damaged)?;
    let mut records = Vec::new();
    while !rest.is_empty() {
        let (length, behind) = rest.split_first_chunk::<4>().ok_or_else(damaged)?;
        let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| damaged())?;
        let (bytes, behind) = behind.split_at_checked(length).ok_or_else(damaged)?;
        records.push(Record { seq: unsigned(seq) + records.len() as u64, bytes: bytes.to_vec() });
        rest = behind;
    }
    Ok(records)
}
