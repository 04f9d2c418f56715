//! Floats whose sums are rounded, and NaN, infinities and zeros of both signs: the result then depends on the order, so what
//! is promised is that all ranks get the same bits, every time.

use super::dims::{ops, settings};
use oxccl::{Algorithm, DataType, Func, RedOp, ReduceOp, Untyped};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::guarded::Guarded;
use oxccl_tests::harness::World;
use oxccl_tests::model::mix;
use std::time::Duration;

const COUNT: usize = 1021;
const FLOATS: [DataType; 6] =
    [DataType::F16, DataType::F32, DataType::F64, DataType::BF16, DataType::F8E4M3, DataType::F8E5M2];

/// Any bits at all, half of them with an exponent close to that of one, so that sums round.
fn noise(dtype: DataType, rank: usize) -> Vec<u8> {
    let size = dtype.size_bytes();
    let (one, mantissa_bits): (u64, u32) = match dtype {
        DataType::F16 => (0x3c00, 10),
        DataType::F32 => (0x3f80_0000, 23),
        DataType::F64 => (0x3ff0_0000_0000_0000, 52),
        DataType::BF16 => (0x3f80, 7),
        DataType::F8E4M3 => (0x38, 3),
        _ => (0x3c, 2),
    };
    let elem = |i: usize| {
        let random = mix((rank * COUNT + i) as u64);
        let sign = (random >> 63) << (8 * size - 1);
        match i % 8 {
            0..4 => one | random & ((1 << mantissa_bits) - 1) | sign,
            // All exponent bits: infinity, or E4M3's NaN and 448.
            4 => sign | !0 >> (65 - 8 * size) & !((1 << mantissa_bits) - 1),
            5 => sign,
            _ => random,
        }
    };
    (0..COUNT).flat_map(|i| elem(i).to_le_bytes()[..size].to_vec()).collect()
}

/// What every rank gets from an all-reduce of its noise at `offset` bytes from alignment.
fn all_reduce(world: &World, dtype: DataType, op: ReduceOp, offset: usize) -> Vec<Vec<u8>> {
    let mut buffers: Vec<Guarded> = (0..world.size())
        .map(|rank| {
            let mut buffer = Guarded::new(COUNT * dtype.size_bytes(), offset);
            buffer.bytes_mut().copy_from_slice(&noise(dtype, rank));
            buffer
        })
        .collect();
    let result = oxccl::group(|group| {
        world.ranks.iter().zip(&mut buffers).try_for_each(|(rank, buffer)| {
            let recv = buffer.bytes_mut().as_mut_ptr();
            let call = Untyped { recv, send: recv, count: COUNT, op, ..Untyped::new(Func::AllReduce, dtype) };
            // SAFETY: the buffer holds `COUNT` elements, input and output are the same, and it outlives the group.
            unsafe { group.add_untyped(rank, &call) }
        })
    });
    result.unwrap();
    buffers.iter().map(|buffer| buffer.bytes().to_vec()).collect()
}

fn operator(op: RedOp, dtype: DataType) -> ReduceOp {
    // Any bits are a scalar; these are some finite ones of every type.
    ReduceOp::of_kind(op, dtype, 0x3535_3535_3535_3535)
}

fn all_bits_agree(name: &'static str, nranks: u32) {
    let _deadline = Deadline::start(name, Duration::from_secs(240));
    for setting in settings() {
        let (world, again) = (World::new(nranks, setting), World::new(nranks, setting));
        for dtype in FLOATS {
            for &op in ops(Func::AllReduce) {
                let context = || format!("{op} of {dtype} by {nranks} ranks with {setting:?}");
                doing(context);
                let op = operator(op, dtype);
                let first = all_reduce(&world, dtype, op, 0);
                assert!(first.iter().all(|bits| *bits == first[0]), "ranks differ: {}", context());
                assert!(first == all_reduce(&world, dtype, op, 0), "runs differ: {}", context());
                assert!(first == all_reduce(&again, dtype, op, 0), "communicators differ: {}", context());
                assert!(first == all_reduce(&world, dtype, op, 3), "alignments differ: {}", context());
            }
        }
    }
}

#[test]
fn bits_of_2_ranks() {
    all_bits_agree("bits_of_2_ranks", 2);
}

#[test]
fn bits_of_3_ranks() {
    all_bits_agree("bits_of_3_ranks", 3);
}

#[test]
fn bits_of_8_ranks() {
    all_bits_agree("bits_of_8_ranks", 8);
}

/// The data is such that order shows: else the tests above would prove nothing.
#[test]
fn the_noise_rounds() {
    let setting = |algorithm| settings().into_iter().find(|s| s.algorithm == Some(algorithm)).unwrap();
    let sum = |algorithm| {
        let world = World::new(5, setting(algorithm));
        all_reduce(&world, DataType::F32, ReduceOp::SUM, 0).swap_remove(0)
    };
    assert!(sum(Algorithm::Ring) != sum(Algorithm::Tree));
}
