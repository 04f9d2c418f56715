//! A shared word with one writer.

use super::arch::{Access, AtomicU32, AtomicU64, Ordering};
use super::scope::Scope;
use core::marker::PhantomData;

mod sealed {
    pub trait Sealed {}
    impl Sealed for u32 {}
    impl Sealed for u64 {}
}

/// The integers a word can hold.
pub trait Primitive: Copy + Eq + sealed::Sealed + 'static {
    #[doc(hidden)]
    type Atomic;
    #[doc(hidden)]
    fn new(value: Self) -> Self::Atomic;
    #[doc(hidden)]
    fn load<S: Scope>(atomic: &Self::Atomic, order: Ordering) -> Self;
    #[doc(hidden)]
    fn store<S: Scope>(atomic: &Self::Atomic, value: Self, order: Ordering);
}

macro_rules! primitive {
    ($int:ty, $atomic:ty) => {
        impl Primitive for $int {
            type Atomic = $atomic;
            #[inline]
            fn new(value: Self) -> $atomic {
                Access::new(value)
            }
            #[inline]
            fn load<S: Scope>(atomic: &$atomic, order: Ordering) -> Self {
                Access::load::<S>(atomic, order)
            }
            #[inline]
            fn store<S: Scope>(atomic: &$atomic, value: Self, order: Ordering) {
                Access::store::<S>(atomic, value, order)
            }
        }
    };
}
primitive!(u32, AtomicU32);
primitive!(u64, AtomicU64);

/// A word of type `T` that threads within scope `S` share. Exactly one of them writes it.
#[repr(transparent)]
pub struct Word<T: Primitive, S: Scope> {
    cell: T::Atomic,
    scope: PhantomData<S>,
}

impl<T: Primitive, S: Scope> Word<T, S> {
    /// A word not yet shared.
    #[inline]
    pub fn new(value: T) -> Self {
        Word { cell: T::new(value), scope: PhantomData }
    }

    /// Reads; orders nothing.
    #[inline]
    pub fn load_relaxed(&self) -> T {
        T::load::<S>(&self.cell, Ordering::Relaxed)
    }

    /// Reads. Afterwards, the writes before the writer's matching `store_release` are visible.
    #[inline]
    pub fn load_acquire(&self) -> T {
        T::load::<S>(&self.cell, Ordering::Acquire)
    }

    /// Writes; orders nothing.
    #[inline]
    pub fn store_relaxed(&self, value: T) {
        T::store::<S>(&self.cell, value, Ordering::Relaxed)
    }

    /// Writes. This thread's earlier reads and writes are complete before a reader's `load_acquire` sees `value`.
    #[inline]
    pub fn store_release(&self, value: T) {
        T::store::<S>(&self.cell, value, Ordering::Release)
    }
}

impl<T: Primitive + Default, S: Scope> Default for Word<T, S> {
    fn default() -> Self {
        Word::new(T::default())
    }
}
