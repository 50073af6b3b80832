//! The rules of abide, as pure code.
//!
//! Everything that decides lives here: which event may follow which in an execution
//! ([`Execution::decide`]), how a recorded entry changes it ([`Execution::apply`]), which recorded
//! entry a replayed workflow receives next ([`Cursor`]), who may write ([`Lease`]), who may run an
//! execution ([`Route`]), when to try again ([`Retry`]).
//!
//! Deliberately absent: async, I/O, clocks, randomness, threads. Times and ids come in as
//! arguments; decisions go out as values. Two stores that only copy the decisions of this crate
//! cannot disagree.

mod answer;
mod attach;
mod bound;
mod bounds;
mod build;
pub mod canonical;
pub mod care;
pub mod codec;
mod command;
mod content;
mod deadline;
mod decision;
mod digest;
mod edit;
mod enqueued;
mod entry;
mod execution;
mod failure;
mod few;
mod first;
#[doc(hidden)]
pub mod fixture;
mod grow;
mod happening;
mod hash;
mod hashes;
pub mod intake;
mod lease;
mod message;
mod name;
mod op;
mod order;
pub mod parking;
mod patch;
mod pause;
mod payload;
pub mod planted;
#[doc(hidden)]
pub mod readers;
mod rename;
mod replay;
mod retry;
mod route;
mod run;
mod site;
mod start;
mod step_entry;
mod summary;
mod suspicion;
pub mod text;
mod time;
mod tree;
mod unclaimed;
pub mod whole;
mod words;

pub use answer::awaited_children;
pub use attach::start_differences;
pub use bounds::{Bounds, TooLarge};
pub use command::{Block, By, Command, Decision, OtherInput, Refusal, Remedy, StepRemedy};
pub use content::{ContentHash, Fingerprint};
pub use deadline::Witness;
pub use digest::{Digest, Tally};
pub use edit::{EditFate, EditFates};
pub use enqueued::{Enqueued, RetryOptions, SignalOptions, StartOptions};
pub use entry::{Entry, Event, Foreign, Outcome, RejectedSignal, Remedied, StepRecord, Unrecordable};
pub use execution::{Execution, Phase};
pub use failure::{Details, Failure, FailureKind, Origin};
pub use few::Few;
pub use first::Arrived;
pub use happening::Happening;
pub use lease::{Epoch, Fence, Lease, LeaseRow, SessionId, Version};
pub use message::{Address, Body, Message, MessageId, Sort};
pub use name::{ExecutionId, InvalidName, Name, Namespace, check_reason};
pub use op::{KeyHasher, NameClash, Op, OpIndex, OpKind, OpUse, Spread, Uses, escaped};
pub use patch::Patch;
pub use payload::Payload;
pub use rename::Renamed;
pub use replay::{Cursor, Mismatch, Next, Note};
pub use retry::{FailedAttempt, Retry, chance};
pub use route::{Ability, Kind, Route};
pub use run::Began;
pub use site::{SiteMark, Sites};
pub use start::{Parent, Start, StartMatch, Tag, child_id, start_matches};
pub use summary::{Listens, Status, Summary, WaitSites, Waiting, Waits};
pub use suspicion::{Proof, Stand, Suspicion};
pub use time::Timestamp;
pub use tree::{Descent, TreeChange, TreeOrder};
pub use unclaimed::Unclaimed;
pub use words::Words;
