//! An allocator that counts its calls and the bytes that are allocated: for programs of their own, since it sees the whole process.
//!
//! ```ignore
//! #[global_allocator]
//! static ALLOCATOR: Counting = Counting;
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Counts every call.
pub struct Counting;

static CALLS: AtomicU64 = AtomicU64::new(0);
/// Signed: a thread's free may be counted before the other thread's allocation.
static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);

fn count(more_bytes: usize, fewer_bytes: usize) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    LIVE_BYTES.fetch_add(more_bytes as i64 - fewer_bytes as i64, Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller's obligations are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

/// Calls so far; ordered by whatever orders the threads that made them.
pub fn calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

/// Bytes that are allocated now; exact while no other thread allocates.
pub fn live_bytes() -> i64 {
    LIVE_BYTES.load(Ordering::Relaxed)
}

/// Panics unless [`Counting`] is the program's allocator.
pub fn check_that_it_counts() {
    let before = calls();
    drop(std::hint::black_box(Box::new(1)));
    assert!(calls() >= before + 2, "the counter does not count");
}
