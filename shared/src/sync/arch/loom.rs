//! loom: tries every interleaving that the memory model allows.

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

/// Orders earlier stores before later loads too: of two threads that each store a word and then load the other's, one at least sees the
/// other's store. On CPUs only.
#[inline]
pub fn fence_full() {
    loom::sync::atomic::fence(Ordering::SeqCst)
}

/// A slot that one thread writes and another reads; loom reports any access that no `Word` orders.
pub struct SharedCell<T>(loom::cell::UnsafeCell<Option<T>>);

impl<T: Copy> SharedCell<T> {
    /// An empty slot.
    pub fn new() -> Self {
        SharedCell(loom::cell::UnsafeCell::new(None))
    }

    /// Fills the slot.
    ///
    /// # Safety
    /// 1. No other thread accesses the slot until a release that the reader acquires.
    pub unsafe fn write(&self, value: T) {
        // SAFETY: obligation 1, which loom checks.
        self.0.with_mut(|slot| unsafe { *slot = Some(value) });
    }

    /// Copies the slot out.
    ///
    /// # Safety
    /// 1. It was written, and that write was released and acquired.
    /// 2. Nobody writes it meanwhile.
    pub unsafe fn read(&self) -> T {
        // SAFETY: obligations 1 and 2, which loom checks.
        self.0.with(|slot| unsafe { *slot }).expect("read before write")
    }
}

impl<T: Copy> Default for SharedCell<T> {
    fn default() -> Self {
        Self::new()
    }
}
