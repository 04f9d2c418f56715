//! Layer: shared / sync / arch.
//! Takes: the machine the crate is compiled for.
//! Gives: one file per machine with its atomics; other modules see only what `sync` re-exports.
//! Never: a difference in meaning between machines.

use super::scope::Scope;

#[cfg(all(not(loom), not(any(target_arch = "nvptx64", target_arch = "amdgpu"))))]
mod host;
#[cfg(all(not(loom), not(any(target_arch = "nvptx64", target_arch = "amdgpu"))))]
pub use host::*;

#[cfg(all(not(loom), target_arch = "nvptx64"))]
mod ptx;
#[cfg(all(not(loom), target_arch = "nvptx64"))]
pub use ptx::*;

#[cfg(all(not(loom), target_arch = "amdgpu"))]
mod amdgcn;
#[cfg(all(not(loom), target_arch = "amdgpu"))]
pub use amdgcn::*;

#[cfg(loom)]
mod loom;
#[cfg(loom)]
pub use self::loom::*;

/// One machine's accesses to a shared word.
pub(in crate::sync) trait Access<T> {
    /// A word not yet shared.
    fn new(value: T) -> Self;
    /// Reads the whole word.
    fn load<S: Scope>(&self, order: Ordering) -> T;
    /// Writes the whole word.
    fn store<S: Scope>(&self, value: T, order: Ordering);
}

/// CPUs have one scope only.
#[cfg(not(any(target_arch = "nvptx64", target_arch = "amdgpu")))]
macro_rules! access {
    ($($atomic:ident = $int:ty),+) => { $(
        impl Access<$int> for $atomic {
            #[inline]
            fn new(value: $int) -> Self {
                Self::new(value)
            }
            #[inline]
            fn load<S: Scope>(&self, order: Ordering) -> $int {
                self.load(order)
            }
            #[inline]
            fn store<S: Scope>(&self, value: $int, order: Ordering) {
                self.store(value, order)
            }
        }
    )+ };
}
#[cfg(not(any(target_arch = "nvptx64", target_arch = "amdgpu")))]
access!(AtomicU32 = u32, AtomicU64 = u64);
