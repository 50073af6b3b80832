//! The allocator mimalloc, without its detour for alignments.
//!
//! The crate of that name asks for every block by its alignment, and mimalloc then takes a larger
//! block wherever it has no free one of the right size at hand. Blocks of ordinary alignment need
//! none of that.

use std::alloc::{GlobalAlloc, Layout};

use libmimalloc_sys::{
    mi_free, mi_malloc, mi_malloc_aligned, mi_realloc, mi_realloc_aligned, mi_zalloc, mi_zalloc_aligned,
};

/// The allocator of the binaries.
#[derive(Clone, Copy, Debug)]
pub struct Mimalloc;

/// The alignment that every block of this size or more has, whether or not it was asked for
/// (`MI_MAX_ALIGN_SIZE`). A smaller block is aligned to its size if that is a power of two.
const ALIGN_MAX: usize = 16;

fn is_ordinary(align: usize, size: usize) -> bool {
    align <= ALIGN_MAX && align <= size
}

#[expect(unsafe_code, reason = "an allocator is an unsafe trait, and mimalloc is written in C")]
// SAFETY: blocks come from mimalloc and go back to it, whichever of its functions gave them.
// An ordinary alignment needs no asking for: mimalloc aligns a block of 16 bytes or more to 16, and
// a smaller one to the greatest power of two that is not larger. None of its functions unwinds.
unsafe impl GlobalAlloc for Mimalloc {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        // SAFETY: any size is allowed, and the alignment of a layout is a power of two.
        unsafe {
            match is_ordinary(align, size) {
                true => mi_malloc(size).cast(),
                false => mi_malloc_aligned(size, align).cast(),
            }
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, _layout: Layout) {
        // SAFETY: the caller promises that `block` came from here, and mimalloc gave all of them.
        unsafe { mi_free(block.cast()) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        // SAFETY: as in `alloc`.
        unsafe {
            match is_ordinary(align, size) {
                true => mi_zalloc(size).cast(),
                false => mi_zalloc_aligned(size, align).cast(),
            }
        }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let align = layout.align();
        // SAFETY: as in `dealloc` and `alloc`. A block that keeps its place keeps its alignment.
        unsafe {
            match is_ordinary(align, size) {
                true => mi_realloc(block.cast(), size).cast(),
                false => mi_realloc_aligned(block.cast(), size, align).cast(),
            }
        }
    }
}
