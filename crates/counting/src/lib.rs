//! The allocator of the binaries, and one that counts allocations on request, for benchmarks.
//!
//! This is the only crate with `unsafe` code.
//!
//! Allocations do not depend on the speed of a machine, so they can be compared with those of last
//! year. While nobody counts, an allocation costs one more load of a value that never changes.
//!
//! Deliberately absent: sizes and places. A profiler knows them better.

mod mimalloc;

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use mimalloc::Mimalloc;

/// An allocator that counts the calls of another one.
#[derive(Debug)]
pub struct Counting<A> {
    inner: A,
    is_on: AtomicBool,
    count: AtomicU64,
}

impl<A> Counting<A> {
    /// Wraps an allocator. Nothing is counted yet.
    pub const fn new(inner: A) -> Self {
        Self { inner, is_on: AtomicBool::new(false), count: AtomicU64::new(0) }
    }

    /// Counts from now on.
    pub fn switch_on(&self) {
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Counts no longer.
    pub fn switch_off(&self) {
        self.is_on.store(false, Ordering::Relaxed);
    }

    /// Returns the number of allocations that were counted, on all threads. A reallocation is one.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    fn note(&self) {
        if self.is_on.load(Ordering::Relaxed) {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[expect(unsafe_code, reason = "an allocator is an unsafe trait, and no crate wraps any allocator this way")]
// SAFETY: each method passes its arguments on, unchanged, and returns the answer, unchanged. So the
// inner allocator's own promises are kept. `note` allocates nothing and cannot panic.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counting<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.note();
        // SAFETY: the caller's promises about `layout` are those that the inner allocator asks for.
        unsafe { self.inner.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the inner allocator returned `block` for this layout, because no other answers.
        unsafe { self.inner.dealloc(block, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.note();
        // SAFETY: as in `alloc`.
        unsafe { self.inner.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.note();
        // SAFETY: as in `dealloc`; the caller's promises about `size` are passed on.
        unsafe { self.inner.realloc(block, layout, size) }
    }
}

/// Returns the free memory of this thread to the system, and that of threads that have ended. Each
/// thread has a heap of its own, and mimalloc touches none but the caller's. Does nothing useful in
/// a program with another allocator.
pub fn give_back() {
    mi_collect(true);
}

#[expect(unsafe_code, reason = "mimalloc is written in C")]
// SAFETY: this is the declaration in mimalloc.h, `void mi_collect(bool force)`. C's `bool` is
// Rust's.
unsafe extern "C" {
    // Safe to call at any time and on any thread: it takes no pointer, works on the calling
    // thread's own heap and on free pages under the library's own locks, and moves no block that is
    // in use. A thread that has not allocated yet has no heap to visit.
    safe fn mi_collect(force: bool);
}

#[cfg(test)]
mod tests {
    use std::alloc::System;

    use super::Counting;

    #[global_allocator]
    static ALLOCATOR: Counting<System> = Counting::new(System);

    /// Counts on all threads, so it is the only test here.
    #[test]
    fn only_allocations_of_the_counted_time_count() {
        let before = ALLOCATOR.count();
        drop(Box::new(1));
        assert_eq!(ALLOCATOR.count(), before, "nobody counts yet");
        ALLOCATOR.switch_on();
        for _ in 0..100 {
            drop(std::hint::black_box(Box::new(1)));
        }
        let mut grown = std::hint::black_box(vec![0_u8; 10]);
        grown.reserve_exact(10_000);
        ALLOCATOR.switch_off();
        let counted = ALLOCATOR.count() - before;
        // The harness of the test may allocate beside it.
        assert!((102..150).contains(&counted), "{counted}");
        drop(std::hint::black_box(grown.clone()));
        assert_eq!(ALLOCATOR.count() - before, counted, "nobody counts any longer");
    }
}
