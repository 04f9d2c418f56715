//! NVIDIA GPUs: inline PTX, so that every access states its order and its scope. The words are in global memory.
//!
//! rustc's own atomics suffice for loads and stores of system scope. Its read-modify-writes lose their order and
//! scope, which is one reason why this module has none (see docs/memory-model.md).

use super::super::scope::{Level, Scope};
use super::Access;
use core::arch::asm;
use core::cell::UnsafeCell;
pub(in crate::sync) use core::sync::atomic::Ordering;

/// A shared 32-bit word.
#[repr(transparent)]
pub struct AtomicU32(UnsafeCell<u32>);
/// A shared 64-bit word.
#[repr(transparent)]
pub struct AtomicU64(UnsafeCell<u64>);

// SAFETY: all access is by single instructions on the whole word.
unsafe impl Sync for AtomicU32 {}
// SAFETY: as above.
unsafe impl Sync for AtomicU64 {}

macro_rules! access {
    ($atomic:ident, $int:ty, $class:ident, $bits:literal) => {
        impl Access<$int> for $atomic {
            #[inline(always)]
            fn new(value: $int) -> Self {
                Self(UnsafeCell::new(value))
            }

            #[inline(always)]
            fn load<S: Scope>(&self, order: Ordering) -> $int {
                let at = self.0.get();
                let value: $int;
                macro_rules! ld {
                    ($how:literal) => {
                        // SAFETY: the word is live and aligned; the instruction reads it whole.
                        unsafe {
                            asm!(concat!("ld.", $how, ".global.", $bits, " {0}, [{1}];"), out($class) value, in(reg64) at, options(nostack))
                        }
                    };
                }
                match (order, S::LEVEL) {
                    (Ordering::Relaxed, Level::Block) => ld!("relaxed.cta"),
                    (Ordering::Relaxed, Level::Gpu) => ld!("relaxed.gpu"),
                    (Ordering::Relaxed, Level::Sys) => ld!("relaxed.sys"),
                    (_, Level::Block) => ld!("acquire.cta"),
                    (_, Level::Gpu) => ld!("acquire.gpu"),
                    (_, Level::Sys) => ld!("acquire.sys"),
                }
                value
            }

            #[inline(always)]
            fn store<S: Scope>(&self, value: $int, order: Ordering) {
                let at = self.0.get();
                macro_rules! st {
                    ($how:literal) => {
                        // SAFETY: the word is live and aligned; the instruction writes it whole.
                        unsafe {
                            asm!(concat!("st.", $how, ".global.", $bits, " [{0}], {1};"), in(reg64) at, in($class) value, options(nostack))
                        }
                    };
                }
                match (order, S::LEVEL) {
                    (Ordering::Relaxed, Level::Block) => st!("relaxed.cta"),
                    (Ordering::Relaxed, Level::Gpu) => st!("relaxed.gpu"),
                    (Ordering::Relaxed, Level::Sys) => st!("relaxed.sys"),
                    (_, Level::Block) => st!("release.cta"),
                    (_, Level::Gpu) => st!("release.gpu"),
                    (_, Level::Sys) => st!("release.sys"),
                }
            }
        }
    };
}
access!(AtomicU32, u32, reg32, "u32");
access!(AtomicU64, u64, reg64, "u64");

/// Two words with one instruction; each half is whole.
#[inline(always)]
pub(in crate::sync) fn load_pair<S: Scope>(at: *const [u64; 2], order: Ordering) -> [u64; 2] {
    let (low, high): (u64, u64);
    macro_rules! ld {
        ($how:literal) => {
            // SAFETY: the caller's pair is live and 16-byte aligned.
            unsafe {
                asm!(concat!("ld.", $how, ".global.v2.u64 {{{0}, {1}}}, [{2}];"), out(reg64) low, out(reg64) high, in(reg64) at, options(nostack))
            }
        };
    }
    match (order, S::LEVEL) {
        (Ordering::Relaxed, Level::Block) => ld!("relaxed.cta"),
        (Ordering::Relaxed, Level::Gpu) => ld!("relaxed.gpu"),
        (Ordering::Relaxed, Level::Sys) => ld!("relaxed.sys"),
        (_, Level::Block) => ld!("acquire.cta"),
        (_, Level::Gpu) => ld!("acquire.gpu"),
        (_, Level::Sys) => ld!("acquire.sys"),
    }
    [low, high]
}

/// Two words with one instruction; each half is whole.
#[inline(always)]
pub(in crate::sync) fn store_pair<S: Scope>(at: *mut [u64; 2], value: [u64; 2]) {
    let [low, high] = value;
    macro_rules! st {
        ($scope:literal) => {
            // SAFETY: the caller's pair is live and 16-byte aligned.
            unsafe {
                asm!(concat!("st.relaxed.", $scope, ".global.v2.u64 [{0}], {{{1}, {2}}};"), in(reg64) at, in(reg64) low, in(reg64) high, options(nostack))
            }
        };
    }
    match S::LEVEL {
        Level::Block => st!("cta"),
        Level::Gpu => st!("gpu"),
        Level::Sys => st!("sys"),
    }
}

/// Nothing: a polling warp yields to others by itself.
#[inline(always)]
pub fn cpu_relax() {}

/// Orders earlier relaxed loads before everything after.
#[inline(always)]
pub fn fence_acquire() {
    // SAFETY: a fence accesses no memory of its own.
    unsafe { asm!("fence.acq_rel.sys;", options(nostack)) }
}

/// Orders everything before ahead of later relaxed stores.
#[inline(always)]
pub fn fence_release() {
    // SAFETY: a fence accesses no memory of its own.
    unsafe { asm!("fence.acq_rel.sys;", options(nostack)) }
}

/// Orders what the kernels before this one on its stream did ahead of later relaxed stores. Their end has done so: nothing is left but to
/// keep the compiler from moving accesses. Not for kernels that start early.
#[inline(always)]
pub fn fence_release_kernels() {
    keep_accesses_in_place();
}

/// Orders loads whose values this thread, or others before a barrier of the block, have used ahead of later relaxed stores: they are
/// over. Nothing is left but to keep the compiler from moving accesses. Earlier stores are not ordered.
#[inline(always)]
pub fn fence_release_loads() {
    keep_accesses_in_place();
}

/// The compiler moves no access over it; it is no instruction.
#[inline(always)]
fn keep_accesses_in_place() {
    // SAFETY: no instruction.
    unsafe { asm!("", options(nostack)) }
}
