//! Every machine, type, operator, flag, length, misalignment and aliasing against the scalar functions, bit by bit.

use super::super::{Flags, Machine, copy, table};
use oxccl_shared::abi::DataType;
use oxccl_shared::reduce::*;
use proptest::prelude::*;
use std::ptr::null_mut;

/// Guard bytes around every buffer, which must survive.
const GUARD: u8 = 0xa5;
const GUARD_BYTES: usize = 128;

/// A buffer at a chosen misalignment between guards.
#[derive(Clone, PartialEq, Debug)]
struct Guarded {
    bytes: Vec<u8>,
    start: usize,
    len_bytes: usize,
}

impl Guarded {
    fn new(content: &[u8], misalignment: usize) -> Self {
        let mut bytes = vec![GUARD; content.len() + 2 * GUARD_BYTES + 128];
        let aligned = bytes.as_ptr().wrapping_add(GUARD_BYTES).align_offset(64);
        let start = GUARD_BYTES + aligned + misalignment % 64;
        bytes[start..start + content.len()].copy_from_slice(content);
        Guarded { bytes, start, len_bytes: content.len() }
    }

    fn ptr(&mut self) -> *mut u8 {
        self.bytes[self.start..].as_mut_ptr()
    }

    fn content(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len_bytes]
    }

    fn assert_guards(&self, what: &str) {
        let (before, after) = (&self.bytes[..self.start], &self.bytes[self.start + self.len_bytes..]);
        assert!(before.iter().chain(after).all(|&byte| byte == GUARD), "{what} written out of bounds");
    }
}

/// Which buffer `dst` is.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Destination {
    Own,
    A,
    B,
}

#[derive(Clone, Debug)]
struct Case {
    a: Vec<u8>,
    b: Vec<u8>,
    misalignments: [usize; 4],
    place: Destination,
    second: bool,
    flags: Flags,
    arg: OpArg,
}

/// Bytes with runs that are zeros, infinities and NaNs in some type; random bytes seldom contain them.
fn content(len_bytes: usize) -> impl Strategy<Value = Vec<u8>> {
    let special = [0x00, 0x80, 0x7f, 0xff, 0x7c, 0xfc, 0xf0, 0x01];
    let byte = prop_oneof![4 => any::<u8>(), 1 => proptest::sample::select(special.to_vec())];
    proptest::collection::vec(byte, len_bytes)
}

fn case() -> impl Strategy<Value = Case> {
    let len_bytes = prop_oneof![0usize..300, 3900usize..4300, 8000usize..17000];
    len_bytes.prop_flat_map(|len_bytes| {
        let place = proptest::sample::select(vec![
            Destination::Own,
            Destination::Own,
            Destination::A,
            Destination::B,
        ]);
        let divisor = prop_oneof![1u32..10, any::<u32>()];
        (
            (content(len_bytes), content(len_bytes), any::<[u8; 4]>()),
            (place, any::<bool>(), 0u8..8, any::<u64>(), divisor),
        )
            .prop_map(|((a, b, misalignments), (place, second, flags, scalar_bits, divisor))| Case {
                a,
                b,
                misalignments: misalignments.map(usize::from),
                place,
                second,
                flags: Flags::from_bits_truncate(flags),
                arg: OpArg { scalar_bits, divisor, reserved: 0 },
            })
    })
}

fn read<T: Element>(bytes: &[u8]) -> T {
    T::from_low_bits(bytes.iter().rev().fold(0, |bits, &byte| bits << 8 | byte as u64))
}

/// The naive version: one element after another.
fn expect<T: Element>(case: &Case, with: impl Fn(T, T) -> T, pre_a: bool) -> Vec<u8> {
    let size = size_of::<T>();
    let scaled = |x: T| if case.flags.contains(Flags::PRE) { x.premul(case.arg.scalar()) } else { x };
    let divided = |x: T| if case.flags.contains(Flags::POST) { x.post_div(case.arg.divisor) } else { x };
    let pairs =
        case.a.chunks_exact(size).zip(case.b.chunks_exact(size)).map(|(a, b)| (read::<T>(a), read::<T>(b)));
    let results = pairs.map(|(a, b)| divided(with(if pre_a { scaled(a) } else { a }, scaled(b))));
    results.flat_map(|x| x.to_low_bits().to_le_bytes()[..size].to_vec()).collect()
}

/// Runs one slice operation in guarded buffers and compares with `expected`.
fn check(case: &Case, expected: &[u8], what: &str, run: impl Fn(*mut u8, *mut u8, *const u8, *const u8)) {
    let len_bytes = expected.len();
    let mut a = Guarded::new(&case.a[..len_bytes], case.misalignments[0]);
    let mut b = Guarded::new(&case.b[..len_bytes], case.misalignments[1]);
    let mut own = Guarded::new(&vec![0xee; len_bytes], case.misalignments[2]);
    let mut second = Guarded::new(&vec![0xdd; len_bytes], case.misalignments[3]);
    let dst = match case.place {
        Destination::Own => own.ptr(),
        Destination::A => a.ptr(),
        Destination::B => b.ptr(),
    };
    run(dst, if case.second { second.ptr() } else { null_mut() }, a.ptr(), b.ptr());
    for (buffer, name) in [(&a, "a"), (&b, "b"), (&own, "dst"), (&second, "dst2")] {
        buffer.assert_guards(name);
    }
    let result = match case.place {
        Destination::Own => &own,
        Destination::A => &a,
        Destination::B => &b,
    };
    assert_bytes(result.content(), expected, what);
    if case.second {
        assert_bytes(second.content(), expected, what);
    }
    if case.place != Destination::A {
        assert_bytes(a.content(), &case.a[..len_bytes], "operand a");
    }
    if case.place != Destination::B {
        assert_bytes(b.content(), &case.b[..len_bytes], "operand b");
    }
}

/// Names the first difference instead of printing both buffers.
fn assert_bytes(got: &[u8], expected: &[u8], what: &str) {
    if let Some(at) = (0..expected.len()).find(|&i| got[i] != expected[i]) {
        panic!("{what}: byte {at} of {} is {:#x}, not {:#x}", expected.len(), got[at], expected[at]);
    }
}

fn check_combine<T: Element, O: Combine>(case: &Case) {
    let expected = expect::<T>(case, O::apply, false);
    for machine in Machine::available() {
        let table = machine.table(T::DTYPE, O::KIND);
        let what = format!("{} {} {:?} {:?}", machine.name(), T::DTYPE, O::KIND, case.flags);
        check(case, &expected, &what, |dst, dst2, a, b| {
            let count = expected.len() / size_of::<T>();
            // SAFETY: guarded buffers of `count` elements, distinct but for `dst`.
            unsafe { (table.combine)(dst, dst2, a, b, count, &case.arg, case.flags) }
        });
    }
}

fn check_map<T: Element>(case: &Case) {
    // A copy keeps the bits of NaNs, which no arithmetic does.
    let plain = !case.flags.intersects(Flags::PRE | Flags::POST);
    let len_bytes = case.a.len() / size_of::<T>() * size_of::<T>();
    let expected = if plain { case.a[..len_bytes].to_vec() } else { expect::<T>(case, |a, _| a, true) };
    for machine in Machine::available() {
        let table = machine.table(T::DTYPE, CombineKind::Sum);
        let what = format!("{} {} map {:?}", machine.name(), T::DTYPE, case.flags);
        check(case, &expected, &what, |dst, dst2, a, _| {
            let count = expected.len() / size_of::<T>();
            // SAFETY: guarded buffers of `count` elements, distinct but for `dst`.
            unsafe { (table.map)(dst, dst2, a, count, &case.arg, case.flags) }
        });
    }
}

macro_rules! for_every_type {
    ($check:ident, $case:expr) => {
        for_every_type!(@each $check, $case, i8, u8, i32, u32, i64, u64, f16, bf16, f32, f64, F8E4M3, F8E5M2)
    };
    (@each $check:ident, $case:expr, $($t:ty),+) => { $($check::<$t>($case);)+ };
}

fn check_operators<T: Element>(case: &Case) {
    check_combine::<T, Sum>(case);
    check_combine::<T, Prod>(case);
    check_combine::<T, Max>(case);
    check_combine::<T, Min>(case);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn combine_is_the_scalar_functions(case in case()) {
        for_every_type!(check_operators, &case);
    }

    #[test]
    fn map_is_the_scalar_functions(case in case()) {
        for_every_type!(check_map, &case);
    }

    #[test]
    fn copy_moves_bytes_and_no_others(case in case(), stream in any::<bool>()) {
        check(&Case { second: false, ..case.clone() }, &case.a, "copy", |dst, _, a, _| {
            // SAFETY: guarded buffers of that length; `dst` is `a` or distinct.
            unsafe { copy(dst, a, case.a.len(), stream) }
        });
    }
}

/// Some machines round 8-bit floats twice: all pairs show that it makes no difference.
#[test]
fn all_pairs_of_8_bit_floats() {
    let scalars = (0..=255u64).step_by(15).map(|scalar_bits| (Flags::PRE, scalar_bits));
    for (flags, scalar_bits) in scalars.chain([(Flags::empty(), 0)]) {
        let case = Case {
            a: (0..=u16::MAX).map(|pair| pair as u8).collect(),
            b: (0..=u16::MAX).map(|pair| (pair >> 8) as u8).collect(),
            misalignments: [0; 4],
            place: Destination::Own,
            second: false,
            flags,
            arg: OpArg { scalar_bits, ..OpArg::NONE },
        };
        check_operators::<F8E4M3>(&case);
        check_operators::<F8E5M2>(&case);
    }
}

/// Integer averages are divided as floats: quotients next to whole numbers are the critical ones.
#[test]
fn division_truncates_at_every_edge() {
    let divisors =
        [1u32, 2, 3, 5, 7, 10, 127, 128, 255, 256, 641, 65_537, 6_700_417, (1 << 24) + 1, 1 << 31, u32::MAX];
    for divisor in divisors {
        let near = |multiple: u32| [-1i64, 0, 1].map(|d| (divisor as i64 * multiple as i64 + d) as u32);
        let top = u32::MAX / divisor;
        let values: Vec<u32> = (0..40)
            .chain([top / 2, top - top / 7, top])
            .flat_map(near)
            .chain([0, 1 << 31, u32::MAX])
            .collect();
        check_division::<u32>(&values, divisor);
        check_division::<i32>(&values, divisor);
        check_division::<i8>(&values, divisor);
        check_division::<u8>(&values, divisor);
    }
}

fn check_division<T: Element>(values: &[u32], divisor: u32) {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()[..size_of::<T>()].to_vec()).collect();
    check_map::<T>(&Case {
        b: bytes.clone(),
        a: bytes,
        misalignments: [0; 4],
        place: Destination::Own,
        second: false,
        flags: Flags::POST,
        arg: OpArg { divisor, ..OpArg::NONE },
    });
}

#[test]
fn the_best_machine_is_used() {
    let best = Machine::available().last().expect("the baseline is always there");
    for &dtype in DataType::ALL {
        for kind in CombineKind::ALL {
            assert!(std::ptr::eq(table(dtype, kind), best.table(dtype, kind)));
        }
    }
}
