//! AMD GPUs: `core`'s atomics, which are of system scope; every scope is that one. But a release waits by itself.
//!
//! A release store is a write-back of the L2 (`buffer_wbl2`), a wait for it, and the store. LLVM 22 leaves the wait out where it
//! knows of no access under way, as after a barrier, and does not count the write-back as one: the word could overtake the data.

pub(in crate::sync) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::sync::atomic::{compiler_fence, fence};

/// Nothing: a wavefront that polls yields to others by itself.
#[inline(always)]
pub fn cpu_relax() {}

/// Orders earlier relaxed loads before everything after.
#[inline(always)]
pub fn fence_acquire() {
    fence(Ordering::Acquire)
}

/// Orders everything before ahead of later relaxed stores.
#[inline(always)]
pub fn fence_release() {
    fence(Ordering::Release);
    // SAFETY: waits until this wavefront's own accesses are done.
    unsafe { s_waitcnt(EVERYTHING) };
    // The compiler does not know the wait as an access to memory.
    compiler_fence(Ordering::SeqCst);
}

/// All counters at 0.
const EVERYTHING: i32 = 0;

unsafe extern "unadjusted" {
    #[link_name = "llvm.amdgcn.s.waitcnt"]
    fn s_waitcnt(counters: i32);
}

macro_rules! access {
    ($($atomic:ident = $int:ty),+) => { $(
        impl super::Access<$int> for $atomic {
            #[inline(always)]
            fn new(value: $int) -> Self {
                Self::new(value)
            }
            #[inline(always)]
            fn load<S: super::Scope>(&self, order: Ordering) -> $int {
                self.load(order)
            }
            #[inline(always)]
            fn store<S: super::Scope>(&self, value: $int, order: Ordering) {
                if order == Ordering::Release {
                    fence_release();
                }
                self.store(value, Ordering::Relaxed)
            }
        }
    )+ };
}
access!(AtomicU32 = u32, AtomicU64 = u64);
