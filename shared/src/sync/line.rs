//! Padding to the unit of cache coherence.

/// A value alone on its 128-byte line: two 64-byte lines of an x86 CPU (which fetches pairs), one of a GPU or of
/// Apple and POWER CPUs. Prevents false sharing between words with different writers.
#[repr(C, align(128))]
#[derive(Default)]
pub struct Line128<T>(pub T);

impl<T> core::ops::Deref for Line128<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}
