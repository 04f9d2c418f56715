//! CPUs: `core`'s atomics.

pub(in crate::sync) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Tells the core that this is a spin loop (`pause`, `yield`).
#[inline]
pub fn cpu_relax() {
    core::hint::spin_loop()
}

/// Orders earlier relaxed loads before everything after.
#[inline]
pub fn fence_acquire() {
    core::sync::atomic::fence(Ordering::Acquire)
}

/// Orders everything before ahead of later relaxed stores.
#[inline]
pub fn fence_release() {
    core::sync::atomic::fence(Ordering::Release)
}

/// Orders earlier stores before later loads too: of two threads that each store a word and then load the other's, one at least sees the
/// other's store. On CPUs only.
#[inline]
pub fn fence_full() {
    core::sync::atomic::fence(Ordering::SeqCst)
}
