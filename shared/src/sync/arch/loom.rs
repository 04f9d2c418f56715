//! loom: every interleaving that the memory model allows is tried.

pub(in crate::sync) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Lets another modelled thread run.
#[inline]
pub fn cpu_relax() {
    loom::thread::yield_now()
}

/// Orders earlier relaxed loads before everything after.
#[inline]
pub fn fence_acquire() {
    loom::sync::atomic::fence(Ordering::Acquire)
}

/// Orders everything before ahead of later relaxed stores.
#[inline]
pub fn fence_release() {
    loom::sync::atomic::fence(Ordering::Release)
}

/// Whether [`cpu_relax`] hands the processor to another thread.
pub const fn spin_hint_yields() -> bool {
    true
}
