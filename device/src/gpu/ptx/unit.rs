//! A unit of 1, 2, 4 or 8 bytes with one instruction for global memory. The compiler's own, for a pointer, also checks for shared and local
//! memory.

use core::arch::asm;
use core::mem::transmute_copy;

/// # Safety
/// 1. `at` is aligned to the unit and readable; any bytes are a `T`.
#[inline(always)]
pub unsafe fn load<T: Copy>(at: usize) -> T {
    // SAFETY: obligation 1 in every arm; a value of `T` is its bytes.
    unsafe {
        match size_of::<T>() {
            1 => {
                let value: u16;
                asm!("ld.global.u8 {0}, [{1}];", out(reg16) value, in(reg64) at, options(readonly, nostack));
                transmute_copy(&(value as u8))
            }
            2 => {
                let value: u16;
                asm!("ld.global.u16 {0}, [{1}];", out(reg16) value, in(reg64) at, options(readonly, nostack));
                transmute_copy(&value)
            }
            4 => {
                let value: u32;
                asm!("ld.global.u32 {0}, [{1}];", out(reg32) value, in(reg64) at, options(readonly, nostack));
                transmute_copy(&value)
            }
            _ => {
                const { assert!(size_of::<T>() <= 8) };
                let value: u64;
                asm!("ld.global.u64 {0}, [{1}];", out(reg64) value, in(reg64) at, options(readonly, nostack));
                transmute_copy(&value)
            }
        }
    }
}

/// # Safety
/// 1. `at` is aligned to the unit and writable; a `T` has no padding.
#[inline(always)]
pub unsafe fn store<T: Copy>(at: usize, value: T) {
    // SAFETY: obligation 1 in every arm; a value of `T` is its bytes.
    unsafe {
        match size_of::<T>() {
            1 => {
                let byte: u8 = transmute_copy(&value);
                asm!("st.global.u8 [{0}], {1};", in(reg64) at, in(reg16) u16::from(byte), options(nostack));
            }
            2 => {
                let half: u16 = transmute_copy(&value);
                asm!("st.global.u16 [{0}], {1};", in(reg64) at, in(reg16) half, options(nostack));
            }
            4 => {
                let word: u32 = transmute_copy(&value);
                asm!("st.global.u32 [{0}], {1};", in(reg64) at, in(reg32) word, options(nostack));
            }
            _ => {
                const { assert!(size_of::<T>() <= 8) };
                let long: u64 = transmute_copy(&value);
                asm!("st.global.u64 [{0}], {1};", in(reg64) at, in(reg64) long, options(nostack));
            }
        }
    }
}
