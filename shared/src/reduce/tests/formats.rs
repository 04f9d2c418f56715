//! Conversions against the formats' definitions: every code, every rounding boundary, and random values.

use super::std::{self, prelude::rust_2024::*};
use crate::reduce::{F8E4M3, F8E5M2, bf16, bf16_from_f32, bf16_to_f32, f16, f16_from_f32, f16_to_f32};
use proptest::prelude::*;

/// A format by its definition, codes without the sign bit.
pub(super) struct Format {
    exp_bits: u32,
    man_bits: u32,
    /// Codes above this are NaN.
    nan_above: u16,
    /// The code of infinity; no such code in E4M3.
    infinity: Option<u16>,
    greatest_finite: u16,
    /// Whether conversion stops at the greatest finite value.
    saturates: bool,
}

pub(super) const F16: Format = Format {
    exp_bits: 5,
    man_bits: 10,
    nan_above: 0x7c00,
    infinity: Some(0x7c00),
    greatest_finite: 0x7bff,
    saturates: false,
};
pub(super) const BF16: Format = Format {
    exp_bits: 8,
    man_bits: 7,
    nan_above: 0x7f80,
    infinity: Some(0x7f80),
    greatest_finite: 0x7f7f,
    saturates: false,
};
const E4M3: Format = Format {
    exp_bits: 4,
    man_bits: 3,
    nan_above: 0x7e,
    infinity: None,
    greatest_finite: 0x7e,
    saturates: true,
};
const E5M2: Format = Format {
    exp_bits: 5,
    man_bits: 2,
    nan_above: 0x7c,
    infinity: Some(0x7c),
    greatest_finite: 0x7b,
    saturates: true,
};

impl Format {
    /// The value of a code, from the definition: (1.m or 0.m) * 2^(e - bias).
    fn value(&self, code: u16) -> f64 {
        if code > self.nan_above {
            return f64::NAN;
        }
        if Some(code) == self.infinity {
            return f64::INFINITY;
        }
        self.finite(code)
    }

    /// The value of a code as if the format had no special codes.
    fn finite(&self, code: u16) -> f64 {
        let bias = (1 << (self.exp_bits - 1)) - 1;
        let (exp, man) = ((code >> self.man_bits) as i32, code & ((1 << self.man_bits) - 1));
        let unit = 2f64.powi(exp.max(1) - bias - self.man_bits as i32);
        let implied = if exp == 0 { 0 } else { 1 << self.man_bits };
        (implied + man) as f64 * unit
    }

    /// The code of a positive value by search: the nearest, ties to the even code, overflow as the format says.
    fn nearest(&self, value: f64) -> u16 {
        let overflow = if self.saturates { self.greatest_finite } else { self.greatest_finite + 1 };
        // The least code whose value is not below.
        let (mut low, mut high) = (0, self.greatest_finite + 1);
        while low < high {
            let middle = (low + high) / 2;
            if self.finite(middle) < value { low = middle + 1 } else { high = middle }
        }
        if low == 0 {
            return 0;
        }
        if low > self.greatest_finite + 1 || value > self.finite(self.greatest_finite + 1) {
            return overflow;
        }
        let (below, above) = (self.finite(low - 1), self.finite(low));
        let code = match (value - below).total_cmp(&(above - value)) {
            std::cmp::Ordering::Less => low - 1,
            std::cmp::Ordering::Greater => low,
            std::cmp::Ordering::Equal => low - 1 + (low - 1) % 2,
        };
        code.min(overflow)
    }

    /// The code, sign included, of any value but NaN: correctly rounded, which `half`'s `from_f64` is not (it drops
    /// the low 32 bits).
    pub(super) fn round(&self, value: f64) -> u16 {
        let sign = if value.is_sign_negative() { self.sign() } else { 0 };
        self.nearest(value.abs()) | sign
    }

    fn sign(&self) -> u16 {
        1 << (self.exp_bits + self.man_bits)
    }

    fn nan(&self) -> u16 {
        self.sign() - 1
    }

    /// Checks one `f32` in both signs.
    fn check_narrow(&self, value: f32, narrow: impl Fn(f32) -> u16) {
        let value = value.abs();
        let expected = if value.is_nan() { self.nan() } else { self.nearest(value as f64) };
        assert_eq!(narrow(value), expected, "{value:e} ({:#x})", value.to_bits());
        let expected = if value.is_nan() { expected } else { expected | self.sign() };
        assert_eq!(narrow(-value), expected, "-{value:e}");
    }

    /// Every code, and every boundary between two codes with its neighbours.
    fn check_all(&self, widen: impl Fn(u16) -> f32, narrow: impl Fn(f32) -> u16) {
        for code in 0..self.sign() {
            let value = self.value(code);
            for (got, want) in [(widen(code), value), (widen(code | self.sign()), -value)] {
                let same = (got as f64).to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                assert!(same, "code {code:#x}: {got:e} for {want:e}");
            }
            if code > self.greatest_finite {
                continue;
            }
            assert_eq!(narrow(widen(code)), code);
            assert_eq!(narrow(widen(code | self.sign())), code | self.sign());
            // Between two codes of at most 11 significant bits the middle is exact in f32.
            let middle = ((self.finite(code) + self.finite(code + 1)) / 2.0) as f32;
            for value in [middle.next_down(), middle, middle.next_up()] {
                self.check_narrow(value, &narrow);
            }
        }
        let edges: Vec<f32> = std::vec![
            0.0,
            f32::from_bits(1),
            f32::MIN_POSITIVE,
            f32::MIN_POSITIVE.next_down(),
            f32::MAX,
            f32::INFINITY,
            f32::NAN,
            f32::from_bits(0x7f80_0001),
            f32::from_bits(0x7fff_ffff),
        ];
        edges.into_iter().for_each(|value| self.check_narrow(value, &narrow));
    }
}

#[test]
fn f16_follows_its_definition() {
    F16.check_all(f16_to_f32, f16_from_f32);
}

#[test]
fn bf16_follows_its_definition() {
    BF16.check_all(bf16_to_f32, bf16_from_f32);
}

#[test]
fn e4m3_follows_its_definition() {
    E4M3.check_all(|code| F8E4M3(code as u8).to_f32(), |value| F8E4M3::from_f32(value).0 as u16);
}

#[test]
fn e5m2_follows_its_definition() {
    E5M2.check_all(|code| F8E5M2(code as u8).to_f32(), |value| F8E5M2::from_f32(value).0 as u16);
}

#[test]
fn eight_bit_floats_saturate_as_cuda_does() {
    assert_eq!(F8E4M3::MAX.to_f32(), 448.0);
    assert_eq!(F8E5M2::MAX.to_f32(), 57344.0);
    for far in [449.0, 464.0, 480.0, 1e30, f32::INFINITY] {
        assert_eq!(F8E4M3::from_f32(far), F8E4M3::MAX);
        assert_eq!(F8E4M3::from_f32(-far), F8E4M3(0xfe));
    }
    for far in [57345.0, 61440.0, 65536.0, f32::INFINITY] {
        assert_eq!(F8E5M2::from_f32(far), F8E5M2::MAX);
        assert_eq!(F8E5M2::from_f32(-far), F8E5M2(0xfb));
    }
    assert!(F8E4M3::NAN.to_f32().is_nan() && F8E4M3(0xff).to_f32().is_nan());
    assert!(F8E5M2::NAN.to_f32().is_nan() && F8E5M2(0xfd).to_f32().is_nan());
    assert_eq!(F8E5M2(0xfc).to_f32(), f32::NEG_INFINITY);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn random_values_round_to_the_nearest_code(bits in any::<u32>()) {
        let value = f32::from_bits(bits);
        F16.check_narrow(value, f16_from_f32);
        BF16.check_narrow(value, bf16_from_f32);
        E4M3.check_narrow(value, |v| F8E4M3::from_f32(v).0 as u16);
        E5M2.check_narrow(value, |v| F8E5M2::from_f32(v).0 as u16);
    }

    /// Random bits seldom land where narrow formats have values; random codes and small offsets from them do.
    #[test]
    fn values_in_range_agree_with_the_half_crate(code in 0u16..0x7c00, offset in 0u32..0x4000) {
        let value = f32::from_bits(f16_to_f32(code).to_bits() + offset);
        prop_assert_eq!(f16_from_f32(value), f16::from_f32(value).to_bits());
        prop_assert_eq!(bf16_from_f32(value), bf16::from_f32(value).to_bits());
    }
}
