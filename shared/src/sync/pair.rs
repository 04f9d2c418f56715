//! 16 bytes that travel together.

use super::scope::Scope;
use super::word::Word;

/// Two 8-byte words side by side. Each half is written and read in one piece; the two halves need not be, so whoever
/// uses a pair must be able to tell for each half alone whether it has arrived. A GPU moves both with one instruction.
#[repr(C, align(16))]
pub struct Pair<S: Scope>([Word<u64, S>; 2]);

impl<S: Scope> Pair<S> {
    /// Reads both halves; orders nothing.
    #[inline]
    pub fn load_relaxed(&self) -> [u64; 2] {
        #[cfg(target_arch = "nvptx64")]
        return super::arch::load_pair::<S>(core::ptr::from_ref(self).cast());
        #[cfg(not(target_arch = "nvptx64"))]
        [self.0[0].load_relaxed(), self.0[1].load_relaxed()]
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
