//! 16 bytes with one instruction.

use crate::gpu::Pack;
use core::arch::asm;

/// Reads past L1: what others write is read once.
///
/// # Safety
/// 1. `at` is 16-byte aligned and readable.
#[inline(always)]
pub unsafe fn load(at: usize) -> Pack {
    let (low, high): (u64, u64);
    // SAFETY: obligation 1.
    unsafe {
        asm!("ld.global.L1::no_allocate.v2.u64 {{{0}, {1}}}, [{2}];", out(reg64) low, out(reg64) high, in(reg64) at, options(readonly, nostack))
    };
    [low, high]
}

/// Reads through L1: over NVLink what two threads read comes once.
///
/// # Safety
/// 1. As [`load`].
#[inline(always)]
pub unsafe fn load_for_two(at: usize) -> Pack {
    let (low, high): (u64, u64);
    // SAFETY: obligation 1.
    unsafe {
        asm!("ld.global.v2.u64 {{{0}, {1}}}, [{2}];", out(reg64) low, out(reg64) high, in(reg64) at, options(readonly, nostack))
    };
    [low, high]
}

/// # Safety
/// 1. `at` is 16-byte aligned and writable.
#[inline(always)]
pub unsafe fn store(at: usize, [low, high]: Pack) {
    // SAFETY: obligation 1.
    unsafe {
        asm!("st.global.v2.u64 [{0}], {{{1}, {2}}};", in(reg64) at, in(reg64) low, in(reg64) high, options(nostack))
    };
}
