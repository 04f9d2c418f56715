//! Operators against naive versions in wider types, the rules for NaN and zero, words, and `resolve`.

use super::formats::{BF16, F16};
use super::std::prelude::rust_2024::*;
use crate::abi::{DataType, RedOp};
use crate::reduce::*;
use proptest::prelude::*;

/// Small floats against a conversion of one exact `f64` operation: the sum or product of two
/// narrow floats is exact in `f64` or, far apart, on the same side of every narrow boundary.
fn check_narrow<T: Element>(bits: [u64; 2], value: impl Fn(T) -> f64, round: impl Fn(f64) -> T, nan: u64) {
    let (a, b) = (T::from_low_bits(bits[0]), T::from_low_bits(bits[1]));
    let expect = |result: f64| if result.is_nan() { nan } else { round(result).to_low_bits() };
    assert_eq!(a.sum(b).to_low_bits(), expect(value(a) + value(b)), "{bits:x?} sum");
    assert_eq!(a.prod(b).to_low_bits(), expect(value(a) * value(b)), "{bits:x?} prod");
    check_order(a, b, value(a), value(b), nan);
}

/// Minimum and maximum by their definition: numbers before NaN, -0 below +0, bits kept.
fn check_order<T: Element>(a: T, b: T, va: f64, vb: f64, nan: u64) {
    let a_is_less = va < vb || va == vb && va.is_sign_negative();
    let (least, greatest) = match (va.is_nan(), vb.is_nan()) {
        (true, true) => (nan, nan),
        (true, false) => (b.to_low_bits(), b.to_low_bits()),
        (false, true) => (a.to_low_bits(), a.to_low_bits()),
        (false, false) if a_is_less => (a.to_low_bits(), b.to_low_bits()),
        (false, false) => (b.to_low_bits(), a.to_low_bits()),
    };
    assert_eq!(a.lesser(b).to_low_bits(), least, "min of {va} and {vb}");
    assert_eq!(a.greater(b).to_low_bits(), greatest, "max of {va} and {vb}");
}

#[test]
fn every_pair_of_e4m3() {
    for bits in 0..=u16::MAX {
        let pair = [bits as u64 & 0xff, bits as u64 >> 8];
        check_narrow::<F8E4M3>(pair, |x| x.to_f32() as f64, |v| F8E4M3::from_f32(v as f32), 0x7f);
    }
}

#[test]
fn every_pair_of_e5m2() {
    for bits in 0..=u16::MAX {
        let pair = [bits as u64 & 0xff, bits as u64 >> 8];
        check_narrow::<F8E5M2>(pair, |x| x.to_f32() as f64, |v| F8E5M2::from_f32(v as f32), 0x7f);
    }
}

/// Bits biased towards the values that rules are made for.
fn interesting<const N: usize>(special: [u64; N]) -> impl Strategy<Value = u64> {
    prop_oneof![3 => any::<u64>(), 2 => proptest::sample::select(special.to_vec())]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn f16_rounds_once(
        a in interesting([0, 0x8000, 1, 0x8001, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7c01, 0x7e00, 0xffff]),
        b in interesting([0, 0x8000, 1, 0x8001, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7c01, 0x7e00, 0xffff]),
    ) {
        check_narrow::<f16>([a, b], |x| x.to_f64(), |v| f16::from_bits(F16.round(v)), 0x7fff);
    }

    #[test]
    fn f32_canonical_and_ordered(
        a in interesting([0, 1 << 31, 0x7f80_0000, 0xff80_0000, 0x7f80_0001, 0xffc0_1234, 0x7fff_ffff]),
        b in interesting([0, 1 << 31, 0x7f80_0000, 0xff80_0000, 0x7f80_0001, 0xffc0_1234, 0x7fff_ffff]),
    ) {
        let (x, y) = (f32::from_low_bits(a), f32::from_low_bits(b));
        let canonical = |r: f32| if r.is_nan() { 0x7fff_ffff } else { r.to_bits() };
        prop_assert_eq!(x.sum(y).to_bits(), canonical(x + y));
        prop_assert_eq!(x.prod(y).to_bits(), canonical(x * y));
        prop_assert_eq!(x.post_div(3).to_bits(), canonical(x / 3.0));
        check_order(x, y, x as f64, y as f64, 0x7fff_ffff);
    }

    #[test]
    fn f64_canonical_and_ordered(
        a in interesting([0, 1 << 63, 0x7ff0 << 48, 0xfff0 << 48, 0x7ff0_0000_0000_0001, u64::MAX]),
        b in interesting([0, 1 << 63, 0x7ff0 << 48, 0xfff0 << 48, 0x7ff0_0000_0000_0001, u64::MAX]),
    ) {
        let (x, y) = (f64::from_bits(a), f64::from_bits(b));
        let canonical = |r: f64| if r.is_nan() { u64::MAX >> 1 } else { r.to_bits() };
        prop_assert_eq!(x.sum(y).to_bits(), canonical(x + y));
        prop_assert_eq!(x.prod(y).to_bits(), canonical(x * y));
        check_order(x, y, x, y, u64::MAX >> 1);
    }

    /// bfloat16 sums and products of near magnitudes are exact in f64, so the oracle rounds once.
    #[test]
    fn bf16_rounds_once(a in 0x3000u64..0x4f00, b in 0x3000u64..0x4f00, signs in 0u64..4) {
        let bits = [a | (signs & 1) << 15, b | (signs & 2) << 14];
        check_narrow::<bf16>(bits, |x| x.to_f64(), |v| bf16::from_bits(BF16.round(v)), 0x7fff);
    }

    #[test]
    fn bf16_specials(a in any::<u16>(), b in any::<u16>()) {
        let (x, y) = (bf16::from_bits(a), bf16::from_bits(b));
        check_order(x, y, x.to_f64(), y.to_f64(), 0x7fff);
        prop_assert_eq!(Element::sum(x, y).is_nan(), (x.to_f32() + y.to_f32()).is_nan());
    }

    #[test]
    fn integers_wrap_and_divide_towards_zero(a in any::<u64>(), b in any::<u64>(), n in any::<u32>()) {
        macro_rules! check { ($($int:ty),+) => { $(
            let (x, y) = (a as $int, b as $int);
            prop_assert_eq!(x.sum(y), (x as i128 + y as i128) as $int);
            prop_assert_eq!(x.prod(y), (x as i128).wrapping_mul(y as i128) as $int);
            prop_assert_eq!(x.lesser(y), x.min(y));
            prop_assert_eq!(x.greater(y), x.max(y));
            for n in [n, n % 9, n % 300, 1] {
                prop_assert_eq!(x.post_div(n), (x as i128 / n.max(1) as i128) as $int);
            }
        )+ } }
        check!(i8, u8, i32, u32, i64, u64);
    }

    #[test]
    fn words_hold_elements_in_memory_order(a in any::<[u64; 3]>(), b in any::<[u64; 3]>()) {
        macro_rules! check { ($($t:ty),+) => { $( check_words::<$t>(a, b); )+ } }
        check!(i8, u8, i32, u32, i64, u64, f16, bf16, f32, f64, F8E4M3, F8E5M2);
    }
}

/// The word functions against a walk over the words' bytes as memory holds them on a little-endian machine.
fn check_words<T: Element>(a: [u64; 3], b: [u64; 3]) {
    let size = size_of::<T>();
    let elements = |words: [u64; 3]| {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        bytes.chunks(size).map(read_le::<T>).collect::<Vec<T>>()
    };
    let bits = |list: Vec<T>| list.iter().map(|x| x.to_low_bits()).collect::<Vec<_>>();

    let mut sum = a;
    combine_words::<T, Sum>(&mut sum, &b);
    let expected = elements(a).iter().zip(&elements(b)).map(|(x, y)| x.sum(*y)).collect();
    assert_eq!(bits(elements(sum)), bits(expected));

    let scalar = T::from_low_bits(b[0]);
    let scaled = a.map(|w| premul_word(w, scalar));
    assert_eq!(bits(elements(scaled)), bits(elements(a).iter().map(|x| x.prod(scalar)).collect()));

    let divided = a.map(|w| divide_word::<T>(w, 7));
    assert_eq!(bits(elements(divided)), bits(elements(a).iter().map(|x| x.post_div(7)).collect()));
}

fn read_le<T: Element>(bytes: &[u8]) -> T {
    T::from_low_bits(bytes.iter().rev().fold(0, |bits, &byte| bits << 8 | byte as u64))
}

#[test]
fn reciprocals_are_rounded_once() {
    for n in (1..5000).chain([131_071, 131_072, 1 << 25, u32::MAX]) {
        let exact = 1.0 / n as f64;
        assert_eq!(f16::recip_of(n).to_bits(), F16.round(exact));
        assert_eq!(bf16::recip_of(n).to_bits(), BF16.round(exact));
        assert_eq!(f32::recip_of(n), exact as f32);
        assert_eq!(f64::recip_of(n), exact);
    }
    assert_eq!((F8E4M3::recip_of(1023), F8E4M3::recip_of(1024)), (F8E4M3(1), F8E4M3(0)));
    assert_eq!((F8E5M2::recip_of(131_071), F8E5M2::recip_of(131_072)), (F8E5M2(1), F8E5M2(0)));
    assert_eq!((f16::recip_of(1 << 24).to_bits(), f16::recip_of(1 << 25).to_bits()), (1, 0));
    assert_eq!(f32::recip_of(0), 1.0);
}

#[test]
fn averages_multiply_floats_before_and_divide_integers_after() {
    let float = resolve(RedOp::Avg, DataType::F32, 4, 99);
    assert_eq!((float.kind, float.pre, float.post), (CombineKind::Sum, true, false));
    assert_eq!(float.arg.scalar::<f32>(), 0.25);

    let integer = resolve(RedOp::Avg, DataType::I8, 300, 99);
    assert_eq!((integer.kind, integer.pre, integer.post), (CombineKind::Sum, false, true));
    assert_eq!(integer.arg, OpArg { scalar_bits: 0, divisor: 300, reserved: 0 });

    for &dtype in DataType::ALL {
        let alone = resolve(RedOp::Avg, dtype, 1, 0);
        assert_eq!((alone.pre, alone.post), (false, false), "one rank's average is its input");
    }
}

#[test]
fn user_scalars_are_cut_to_the_element() {
    let resolved = resolve(RedOp::PreMulSum, DataType::BF16, 8, 0xdead_0000_3f80);
    assert_eq!((resolved.kind, resolved.pre, resolved.post), (CombineKind::Sum, true, false));
    assert_eq!(resolved.arg.scalar_bits, 0x3f80);
    assert_eq!(resolve(RedOp::PreMulSum, DataType::F64, 8, u64::MAX).arg.scalar_bits, u64::MAX);
}

#[test]
fn plain_operators_resolve_to_themselves() {
    let pairs = [
        (RedOp::Sum, CombineKind::Sum),
        (RedOp::Prod, CombineKind::Prod),
        (RedOp::Max, CombineKind::Max),
        (RedOp::Min, CombineKind::Min),
    ];
    for (op, kind) in pairs {
        let resolved = resolve(op, DataType::U8, 8, 5);
        assert_eq!(resolved, Resolved { kind, arg: OpArg::NONE, pre: false, post: false });
    }
}
