//! Bulk loops of a thread block: 16 bytes per thread and access, several accesses in flight before the first use.
//!
//! ```text
//! pass:     pack i of thread t of n lies at (i * n + t) * 16: a warp of 32 reads 512 bytes in a row
//! unrolled: IN_FLIGHT packs of every operand are loaded before any is used
//! ```
//! Buffers that are not 16-byte aligned are processed element by element. Slots are aligned; other operands are the
//! user's.

use super::arith;
use crate::gpu::{KernelMachine, Pack};
use oxccl_shared::reduce::{CombineKind, Element, OpArg};

const PACK_BYTES: usize = 16;
/// Packs of one operand that a thread keeps in flight.
const IN_FLIGHT: usize = 4;

/// This thread's share of a loop.
#[derive(Clone, Copy)]
pub struct Share {
    pub thread: u32,
    pub threads: u32,
}

/// What to compute.
#[derive(Clone, Copy)]
pub struct Variant {
    pub kind: CombineKind,
    pub pre: bool,
    pub post: bool,
}

/// Runs `pack` on every whole pack, then `element` on the rest.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the compiler unrolls these, not the iterators")]
fn sweep<M: KernelMachine, const N: usize>(
    share: Share,
    operands: [usize; N],
    outputs: [usize; 2],
    len_bytes: usize,
    f: impl Fn([Pack; N]) -> Pack,
) -> usize {
    let (step, packs) = (share.threads as usize * PACK_BYTES, len_bytes / PACK_BYTES * PACK_BYTES);
    let mut at = share.thread as usize * PACK_BYTES;
    let put = |at: usize, value: Pack| {
        // SAFETY: `at` lies before `packs`; the caller's outputs are writable so far and aligned.
        unsafe { M::store_pack(outputs[0] + at, value) };
        if outputs[1] != 0 {
            // SAFETY: as above.
            unsafe { M::store_pack(outputs[1] + at, value) };
        }
    };
    while at + (IN_FLIGHT - 1) * step < packs {
        let mut loaded = [[[0; 2]; N]; IN_FLIGHT];
        // By index: these loops must be unrolled, or `loaded` is in local memory instead of registers.
        for i in 0..IN_FLIGHT {
            for n in 0..N {
                // SAFETY: the last of these lies before `packs`; the caller's operands are readable so far and aligned.
                loaded[i][n] = unsafe { M::load_pack(operands[n] + at + i * step) };
            }
        }
        for i in 0..IN_FLIGHT {
            put(at + i * step, f(loaded[i]));
        }
        at += IN_FLIGHT * step;
    }
    while at < packs {
        // SAFETY: as above.
        put(at, f(core::array::from_fn(|n| unsafe { M::load_pack(operands[n] + at) })));
        at += step;
    }
    packs
}

/// Runs `f` on every element from `from_bytes` on.
#[inline(always)]
unsafe fn sweep_elements<T: Copy, const N: usize>(
    share: Share,
    operands: [usize; N],
    outputs: [usize; 2],
    bytes: core::ops::Range<usize>,
    f: impl Fn([T; N]) -> T,
) {
    let size = size_of::<T>();
    let mut at = bytes.start + share.thread as usize * size;
    while at < bytes.end {
        // SAFETY: the caller's operands are valid for `bytes` and aligned to elements.
        let value = f(core::array::from_fn(|n| unsafe { ((operands[n] + at) as *const T).read() }));
        // SAFETY: as above.
        unsafe { ((outputs[0] + at) as *mut T).write(value) };
        if outputs[1] != 0 {
            // SAFETY: as above.
            unsafe { ((outputs[1] + at) as *mut T).write(value) };
        }
        at += share.threads as usize * size;
    }
}

fn is_aligned(addresses: &[usize], to: usize) -> bool {
    addresses.iter().fold(0, |all, address| all | address) % to == 0
}

/// # Safety
/// 1. As [`crate::gpu::Block::map_bulk`]; addresses are aligned to elements.
#[inline(always)]
pub unsafe fn map<M: KernelMachine, T: Element>(
    share: Share,
    dst: *mut u8,
    dst2: *mut u8,
    src: *const u8,
    len_bytes: usize,
    variant: Variant,
    arg: &OpArg,
) {
    let (src, outputs) = (src.addr(), [dst.addr(), dst2.addr()]);
    match (variant.pre, variant.post) {
        // SAFETY: obligation 1 in every arm.
        (false, false) => unsafe { copy::<M>(share, outputs[0], outputs[1], src, len_bytes) },
        // SAFETY: as above.
        (true, _) => unsafe {
            transform::<M, T, true>(share, outputs[0], outputs[1], src, len_bytes, arg.scalar_bits)
        },
        // SAFETY: as above.
        (false, true) => unsafe {
            transform::<M, T, false>(share, outputs[0], outputs[1], src, len_bytes, u64::from(arg.divisor))
        },
    }
}

/// # Safety
/// 1. As [`crate::gpu::Block::map_bulk`].
#[inline(never)]
unsafe fn copy<M: KernelMachine>(share: Share, dst: usize, dst2: usize, src: usize, len_bytes: usize) {
    let outputs = [dst, dst2];
    if is_aligned(&[dst, dst2, src], PACK_BYTES) {
        let done = sweep::<M, _>(share, [src], outputs, len_bytes, |[pack]| pack);
        // SAFETY: obligation 1.
        unsafe { sweep_elements::<u8, 1>(share, [src], outputs, done..len_bytes, |[byte]| byte) };
    } else if is_aligned(&[dst, dst2, src, len_bytes], 4) {
        // SAFETY: obligation 1, and everything is a multiple of 4.
        unsafe { sweep_elements::<u32, 1>(share, [src], outputs, 0..len_bytes, |[word]| word) };
    } else {
        // SAFETY: obligation 1.
        unsafe { sweep_elements::<u8, 1>(share, [src], outputs, 0..len_bytes, |[byte]| byte) };
    }
}

/// Pre-multiplies (`PRE`) or divides by `by`.
///
/// # Safety
/// 1. As [`crate::gpu::Block::map_bulk`].
#[inline(never)]
unsafe fn transform<M: KernelMachine, T: Element, const PRE: bool>(
    share: Share,
    dst: usize,
    dst2: usize,
    src: usize,
    len_bytes: usize,
    by: u64,
) {
    let arg = OpArg { scalar_bits: by, divisor: by as u32, ..OpArg::NONE };
    let word =
        |word: u64| if PRE { arith::pre_word::<M, T>(word, &arg) } else { arith::post_word::<T>(word, &arg) };
    let element = |[x]: [T; 1]| if PRE { x.premul(arg.scalar()) } else { x.post_div(arg.divisor) };
    let mut done = 0;
    if is_aligned(&[dst, dst2, src], PACK_BYTES) {
        done = sweep::<M, _>(share, [src], [dst, dst2], len_bytes, |[pack]| pack.map(word));
    }
    // SAFETY: obligation 1.
    unsafe { sweep_elements(share, [src], [dst, dst2], done..len_bytes, element) };
}

/// # Safety
/// 1. As [`crate::gpu::Block::combine_bulk`]; addresses are aligned to elements.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "the operands of `Block::combine_bulk`")]
pub unsafe fn combine<M: KernelMachine, T: Element>(
    share: Share,
    dst: *mut u8,
    dst2: *mut u8,
    a: *const u8,
    b: *const u8,
    len_bytes: usize,
    variant: Variant,
    arg: &OpArg,
) {
    let operands = Operands { dst: dst.addr(), dst2: dst2.addr(), a: a.addr(), b: b.addr(), len_bytes };
    const SUM: u8 = CombineKind::Sum as u8;
    // SAFETY: obligation 1 in every arm.
    unsafe {
        match (variant.kind, variant.pre, variant.post) {
            (CombineKind::Sum, false, false) => reduce::<M, T, SUM, 0>(share, operands, 0),
            (CombineKind::Sum, true, _) => reduce::<M, T, SUM, 1>(share, operands, arg.scalar_bits),
            (CombineKind::Sum, false, true) => {
                reduce::<M, T, SUM, 2>(share, operands, u64::from(arg.divisor))
            }
            (CombineKind::Prod, ..) => reduce::<M, T, { CombineKind::Prod as u8 }, 0>(share, operands, 0),
            (CombineKind::Max, ..) => reduce::<M, T, { CombineKind::Max as u8 }, 0>(share, operands, 0),
            (CombineKind::Min, ..) => reduce::<M, T, { CombineKind::Min as u8 }, 0>(share, operands, 0),
        }
    }
}

#[derive(Clone, Copy)]
struct Operands {
    dst: usize,
    dst2: usize,
    a: usize,
    b: usize,
    len_bytes: usize,
}

/// `EXTRA`: 1 pre-multiplies `b` by `by`, 2 divides the result by it.
///
/// # Safety
/// 1. As [`combine`].
#[inline(never)]
unsafe fn reduce<M: KernelMachine, T: Element, const KIND: u8, const EXTRA: u8>(
    share: Share,
    operands: Operands,
    by: u64,
) {
    let Operands { dst, dst2, a, b, len_bytes } = operands;
    let arg = OpArg { scalar_bits: by, divisor: by as u32, ..OpArg::NONE };
    let kind = match KIND {
        0 => CombineKind::Sum,
        1 => CombineKind::Prod,
        2 => CombineKind::Max,
        _ => CombineKind::Min,
    };
    let word = |a: u64, b: u64| {
        let b = if EXTRA == 1 { arith::pre_word::<M, T>(b, &arg) } else { b };
        let value = arith::combine_word::<M, T>(kind, a, b);
        if EXTRA == 2 { arith::post_word::<T>(value, &arg) } else { value }
    };
    let mut done = 0;
    if is_aligned(&[dst, dst2, a, b], PACK_BYTES) {
        let pack = |[a, b]: [Pack; 2]| [word(a[0], b[0]), word(a[1], b[1])];
        done = sweep::<M, _>(share, [a, b], [dst, dst2], len_bytes, pack);
    }
    let element = |[a, b]: [T; 2]| T::from_low_bits(word(a.to_low_bits(), b.to_low_bits()));
    // SAFETY: obligation 1.
    unsafe { sweep_elements(share, [a, b], [dst, dst2], done..len_bytes, element) };
}
