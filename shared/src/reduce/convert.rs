//! Narrow floats to and from `f32`, without branches, tables or feature detection, so that a loop over them vectorises
//! on any machine. (`half`'s own conversions ask at run time for F16C, once per element.)
//!
//! A narrow float is a sign bit above a *magnitude code* of `EXP` exponent and `MAN` mantissa bits. Codes of one format
//! are ordered as their values are, so rounding may carry from the mantissa into the exponent and still be right.
//!
//! ```text
//! widen:   normal      code << (23 - MAN), exponent rebased by an integer addition
//!          subnormal   set exponent 1 and subtract that power of two again: the FPU normalises
//!          special     infinity or NaN: exponent all ones
//! narrow:  normal      round on the integer (add half a unit less one, plus the unit's own last bit), rebase
//!          subnormal   add the power of two whose ulp is the format's least step: the FPU rounds
//!          too great   clamp to the code of infinity or of the greatest finite value
//! ```
//! All paths are computed and one is selected. A subnormal of the narrow format never passes through the FPU as a
//! subnormal `f32`, which would cost hundreds of cycles on some CPUs.

const F32_INFINITY: u32 = 0x7f80_0000;
const F32_MAGNITUDE: u32 = 0x7fff_ffff;

/// The exponent bias of a format with `exp` exponent bits.
const fn bias(exp: u32) -> u32 {
    (1 << (exp - 1)) - 1
}

/// The value with magnitude code `code`, below `1 << (EXP + MAN)`. Codes from `special` up are infinity and NaN.
#[inline(always)]
fn widen<const EXP: u32, const MAN: u32>(code: u32, special: u32) -> u32 {
    let rebase = (127 - bias(EXP)) << 23;
    let shifted = code << (23 - MAN);
    let least_normal = rebase + (1 << 23);
    let subnormal = f32::from_bits(shifted + least_normal) - f32::from_bits(least_normal);
    let finite = if code >> MAN == 0 { subnormal.to_bits() } else { shifted + rebase };
    if code >= special { shifted | F32_INFINITY } else { finite }
}

/// The magnitude code nearest to the magnitude of `value`, ties to the even code, at most `greatest`.
/// Meaningless for NaN, which the caller selects away.
#[inline(always)]
fn narrow<const EXP: u32, const MAN: u32>(value: f32, greatest: u32) -> u32 {
    let magnitude = value.to_bits() & F32_MAGNITUDE;
    let rebase = (127 - bias(EXP)) << MAN;
    let last_bit = (magnitude >> (23 - MAN)) & 1;
    let rounded = magnitude + ((1 << (22 - MAN)) - 1) + last_bit;
    let normal = (rounded >> (23 - MAN)).wrapping_sub(rebase);
    // The least subnormal is 2^(1 - bias - MAN); an f32 has that ulp 23 powers of two further up.
    let ulp_here = (127 + 24 - bias(EXP) - MAN) << 23;
    let subnormal = (f32::from_bits(magnitude) + f32::from_bits(ulp_here)).to_bits().wrapping_sub(ulp_here);
    let least_normal = (127 + 1 - bias(EXP)) << 23;
    let code = if magnitude < least_normal { subnormal } else { normal };
    if code > greatest { greatest } else { code }
}

#[inline(always)]
fn is_nan_bits(bits: u32) -> bool {
    bits & F32_MAGNITUDE > F32_INFINITY
}

/// The `f32` with the value of the binary16 `bits`. A NaN stays some NaN.
#[inline(always)]
pub fn f16_to_f32(bits: u16) -> f32 {
    let bits = bits as u32;
    f32::from_bits((bits & 0x8000) << 16 | widen::<5, 10>(bits & 0x7fff, 0x7c00))
}

/// The binary16 nearest to `value`, ties to even; infinity from 65520 up; `0x7fff` for NaN.
#[inline(always)]
pub fn f16_from_f32(value: f32) -> u16 {
    let bits = value.to_bits();
    let number = (bits >> 16) & 0x8000 | narrow::<5, 10>(value, 0x7c00);
    (if is_nan_bits(bits) { 0x7fff } else { number }) as u16
}

/// The `f32` with the value of the bfloat16 `bits`: exact, payload of a NaN included.
#[inline(always)]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// The bfloat16 nearest to `value`, ties to even; infinity beyond its range; `0x7fff` for NaN.
#[inline(always)]
pub fn bf16_from_f32(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    (if is_nan_bits(bits) { 0x7fff } else { rounded }) as u16
}

#[inline(always)]
pub(super) fn f8e4m3_to_f32(bits: u8) -> f32 {
    let bits = bits as u32;
    f32::from_bits((bits & 0x80) << 24 | widen::<4, 3>(bits & 0x7f, 0x7f))
}

#[inline(always)]
pub(super) fn f8e4m3_from_f32(value: f32) -> u8 {
    let bits = value.to_bits();
    let number = (bits >> 24) & 0x80 | narrow::<4, 3>(value, 0x7e);
    (if is_nan_bits(bits) { 0x7f } else { number }) as u8
}

#[inline(always)]
pub(super) fn f8e5m2_to_f32(bits: u8) -> f32 {
    let bits = bits as u32;
    f32::from_bits((bits & 0x80) << 24 | widen::<5, 2>(bits & 0x7f, 0x7c))
}

#[inline(always)]
pub(super) fn f8e5m2_from_f32(value: f32) -> u8 {
    let bits = value.to_bits();
    let number = (bits >> 24) & 0x80 | narrow::<5, 2>(value, 0x7b);
    (if is_nan_bits(bits) { 0x7f } else { number }) as u8
}
