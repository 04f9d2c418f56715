//! Sums and products of packed elements: the GPU's own instructions where they round as `oxccl_shared::reduce` says, that module's
//! code elsewhere. NaNs need no care: the hardware's canonical NaN is the one that `reduce` prescribes.

use core::arch::asm;
use oxccl_shared::abi::DataType;
use oxccl_shared::reduce::{self, Element, Prod, Sum};

macro_rules! by_type {
    ($name:ident, $operator:ident, $mnemonic:literal, $plain:tt, $bf16x2:ident) => {
        /// The operator on every element of two words.
        #[inline(always)]
        pub fn $name<T: Element>(a: u64, b: u64) -> u64 {
            match T::DTYPE {
                DataType::F32 => halves(a, b, |a, b| (f32::from_bits(a) $plain f32::from_bits(b)).to_bits()),
                DataType::F16 => {
                    halves(a, b, |a, b| {
                        let out: u32;
                        // SAFETY: arithmetic on registers.
                        unsafe {
                            asm!(concat!($mnemonic, ".rn.f16x2 {0}, {1}, {2};"), out(reg32) out, in(reg32) a, in(reg32) b, options(pure, nomem, nostack))
                        };
                        out
                    })
                }
                #[cfg(feature = "sm80")]
                DataType::BF16 => halves(a, b, $bf16x2),
                #[cfg(feature = "sm90")]
                DataType::F8E4M3 => quarters(a, b, |a, b| {
                    let ([a0, a1], [b0, b1]) = (wide_e4m3x2(a), wide_e4m3x2(b));
                    narrow_e4m3x2(a1 $plain b1, a0 $plain b0)
                }),
                #[cfg(feature = "sm90")]
                DataType::F8E5M2 => quarters(a, b, |a, b| {
                    let ([a0, a1], [b0, b1]) = (wide_e5m2x2(a), wide_e5m2x2(b));
                    narrow_e5m2x2(a1 $plain b1, a0 $plain b0)
                }),
                _ => reduce::combine_word::<T, $operator>(a, b),
            }
        }
    };
}
by_type!(sum_word, Sum, "add", +, sum_bf16x2);
by_type!(prod_word, Prod, "mul", *, prod_bf16x2);

#[inline(always)]
fn halves(a: u64, b: u64, f: impl Fn(u32, u32) -> u32) -> u64 {
    u64::from(f(a as u32, b as u32)) | u64::from(f((a >> 32) as u32, (b >> 32) as u32)) << 32
}

#[cfg(feature = "sm90")]
#[inline(always)]
fn quarters(a: u64, b: u64, f: impl Fn(u16, u16) -> u16) -> u64 {
    let at = |shift: u32| u64::from(f((a >> shift) as u16, (b >> shift) as u16)) << shift;
    at(0) | at(16) | at(32) | at(48)
}

/// Two sums, rounded once. A sum as f32 that is rounded to bfloat16 is the same: f32 has more than twice as many bits and two, and all sums
/// of subnormals.
#[cfg(feature = "sm80")]
#[inline(always)]
fn sum_bf16x2(a: u32, b: u32) -> u32 {
    let out: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        // Generation 80 has no such sum, but this times 1.
        #[cfg(not(feature = "sm90"))]
        asm!("fma.rn.bf16x2 {0}, {1}, {2}, {3};", out(reg32) out, in(reg32) a, in(reg32) 0x3f80_3f80, in(reg32) b, options(pure, nomem, nostack));
        #[cfg(feature = "sm90")]
        asm!("add.rn.bf16x2 {0}, {1}, {2};", out(reg32) out, in(reg32) a, in(reg32) b, options(pure, nomem, nostack));
    };
    out
}

/// Two products as f32, each rounded to bfloat16: `reduce` says so, and of subnormal products that is not the same as one rounding.
#[cfg(feature = "sm80")]
#[inline(always)]
fn prod_bf16x2(a: u32, b: u32) -> u32 {
    let wide = |bits: u32| f32::from_bits(bits);
    let low = wide(a << 16) * wide(b << 16);
    let high = wide(a & 0xffff_0000) * wide(b & 0xffff_0000);
    let out: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("cvt.rn.bf16x2.f32 {0}, {1}, {2};", out(reg32) out, in(reg32) high, in(reg32) low, options(pure, nomem, nostack))
    };
    out
}

#[cfg(feature = "sm90")]
macro_rules! float8 {
    ($wide:ident, $narrow:ident, $format:literal) => {
        #[inline(always)]
        fn $wide(pair: u16) -> [f32; 2] {
            let (low, high): (f32, f32);
            // SAFETY: arithmetic on registers. Every 8-bit float is a binary16.
            unsafe {
                asm!(
                    concat!("{{ .reg .b32 h; .reg .b16 l, u; cvt.rn.f16x2.", $format, " h, {2}; mov.b32 {{l, u}}, h; cvt.f32.f16 {0}, l; cvt.f32.f16 {1}, u; }}"),
                    out(reg32) low, out(reg32) high, in(reg16) pair, options(pure, nomem, nostack)
                )
            };
            [low, high]
        }

        #[inline(always)]
        fn $narrow(high: f32, low: f32) -> u16 {
            let out: u16;
            // SAFETY: arithmetic on registers.
            unsafe {
                asm!(concat!("cvt.rn.satfinite.", $format, ".f32 {0}, {1}, {2};"), out(reg16) out, in(reg32) high, in(reg32) low, options(pure, nomem, nostack))
            };
            out
        }
    };
}
#[cfg(feature = "sm90")]
float8!(wide_e4m3x2, narrow_e4m3x2, "e4m3x2");
#[cfg(feature = "sm90")]
float8!(wide_e5m2x2, narrow_e5m2x2, "e5m2x2");
