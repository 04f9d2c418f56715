//! Memory whose accesses a word orders.

/// A slot that one thread writes and another reads, in an order that some [`super::Word`] establishes.
#[repr(transparent)]
pub struct SharedCell<T>(core::cell::UnsafeCell<core::mem::MaybeUninit<T>>);

impl<T: Copy> SharedCell<T> {
    /// An empty slot.
    pub fn new() -> Self {
        SharedCell(core::cell::UnsafeCell::new(core::mem::MaybeUninit::uninit()))
    }

    /// Fills the slot.
    ///
    /// # Safety
    /// 1. No other thread accesses the slot until a release that the reader acquires.
    #[inline]
    pub unsafe fn write(&self, value: T) {
        // SAFETY: obligation 1 makes this access exclusive.
        unsafe { (*self.0.get()).write(value) };
    }

    /// Copies the slot out.
    ///
    /// # Safety
    /// 1. It was written, and that write was released and acquired.
    /// 2. Nobody writes it meanwhile.
    #[inline]
    pub unsafe fn read(&self) -> T {
        // SAFETY: obligations 1 (initialised, visible) and 2 (no race).
        unsafe { (*self.0.get()).assume_init_read() }
    }
}

impl<T: Copy> Default for SharedCell<T> {
    fn default() -> Self {
        Self::new()
    }
}
