//! The reference store and its decorator.

mod common;
mod faults;
mod memory;
