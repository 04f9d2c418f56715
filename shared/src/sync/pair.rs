//! 16 bytes moved with one access on a GPU.

use super::scope::Scope;
use super::word::Word;

/// Two adjacent 8-byte words. Each half is read and written in one piece, but the two halves need not be: users must
/// be able to detect the arrival of each half alone. A GPU moves both with one instruction.
#[repr(C, align(16))]
pub struct Pair<S: Scope>([Word<u64, S>; 2]);

impl<S: Scope> Pair<S> {
    /// Reads both halves; orders nothing.
    #[inline]
    pub fn load_relaxed(&self) -> [u64; 2] {
        #[cfg(target_arch = "nvptx64")]
        return super::arch::load_pair::<S>(core::ptr::from_ref(self).cast(), super::arch::Ordering::Relaxed);
        #[cfg(not(target_arch = "nvptx64"))]
        [self.0[0].load_relaxed(), self.0[1].load_relaxed()]
    }

    /// Reads both halves, each before everything that follows.
    #[inline]
    pub fn load_acquire(&self) -> [u64; 2] {
        #[cfg(target_arch = "nvptx64")]
        return super::arch::load_pair::<S>(core::ptr::from_ref(self).cast(), super::arch::Ordering::Acquire);
        #[cfg(not(target_arch = "nvptx64"))]
        [self.0[0].load_acquire(), self.0[1].load_acquire()]
    }

    /// Writes both halves; orders nothing.
    #[inline]
    pub fn store_relaxed(&self, value: [u64; 2]) {
        #[cfg(target_arch = "nvptx64")]
        super::arch::store_pair::<S>(core::ptr::from_ref(self).cast_mut().cast(), value);
        #[cfg(not(target_arch = "nvptx64"))]
        {
            self.0[0].store_relaxed(value[0]);
            self.0[1].store_relaxed(value[1]);
        }
    }
}

impl<S: Scope> Default for Pair<S> {
    fn default() -> Self {
        Pair([Word::new(0), Word::new(0)])
    }
}
