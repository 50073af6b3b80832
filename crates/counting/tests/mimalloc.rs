//! Beside no other test, because the one in `src` counts allocations on all threads.

use std::alloc::{GlobalAlloc, Layout};

use abide_counting::Mimalloc;

#[test]
#[expect(unsafe_code, reason = "the functions of an allocator are unsafe")]
fn every_block_is_aligned_and_keeps_its_bytes() {
    for align in [1, 2, 4, 8, 16, 32, 128, 4096] {
        let sizes = (1..200).chain([255, 256, 1000, 1024, 1032, 4096, 5000, 100_000]);
        for size in sizes {
            let layout = Layout::from_size_align(size, align).unwrap();
            // SAFETY: the layouts have a size, each block is used within it and given back once.
            unsafe {
                let (block, zeroed) = (Mimalloc.alloc(layout), Mimalloc.alloc_zeroed(layout));
                assert!([block, zeroed].iter().all(|block| block.addr() % align == 0), "{layout:?}");
                assert!((0..size).all(|at| *zeroed.add(at) == 0), "{layout:?}");
                block.write_bytes(7, size);
                let grown = Mimalloc.realloc(block, layout, size * 3);
                assert!(grown.addr() % align == 0 && (0..size).all(|at| *grown.add(at) == 7));
                let layout_grown = Layout::from_size_align(size * 3, align).unwrap();
                let shrunk = Mimalloc.realloc(grown, layout_grown, 1);
                assert!(shrunk.addr() % align == 0 && *shrunk == 7, "{layout:?}");
                Mimalloc.dealloc(shrunk, Layout::from_size_align(1, align).unwrap());
                Mimalloc.dealloc(zeroed, layout);
            }
        }
    }
}
