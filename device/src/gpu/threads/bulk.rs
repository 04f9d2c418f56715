//! Bulk operations of a thread block: which loop, with which operator. Slots are aligned; other operands are the user's.

use super::arith::{self, POST, PRE_ALL, PRE_OTHERS};
use super::sweep::{Places, Share, alike, packs, units, whole_packs};
use crate::gpu::{KernelMachine, Pack};
use oxccl_shared::reduce::{CombineKind, Element, OpArg};

/// Of a copy between places that are not aligned to packs.
const UNIT_BYTES: usize = 4;

/// What to compute.
#[derive(Clone, Copy)]
pub struct Variant {
    pub kind: CombineKind,
    pub pre: bool,
    pub post: bool,
}

/// # Safety
/// 1. As [`crate::gpu::Block::map_bulk`]; addresses are aligned to elements.
#[inline(always)]
pub unsafe fn map<M: KernelMachine, T: Element, const SHIFTS: bool>(
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
        (false, false) => unsafe {
            match SHIFTS {
                true => {
                    copy::<M, PACKS_FAR, SHIFTS, PACKS_FAR>(share, outputs[0], outputs[1], src, len_bytes)
                }
                false => copy::<M, PACKS, SHIFTS, 0>(share, outputs[0], outputs[1], src, len_bytes),
            }
        },
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

/// From so many bytes on, places that are not aligned to packs are worth packs all the same.
const SHIFTED_MIN_BYTES: usize = 1 << 10;

/// Packs in flight of a thread in a loop that is called for each slice.
const PACKS: usize = 4;
/// The same in a kernel that copies and does little else, and of each of two inputs in one that reduces them.
const PACKS_FAR: usize = 8;
/// The same of three inputs and of four: together as many.
const PACKS_OF_3: usize = 5;
const PACKS_OF_4: usize = 4;
/// The same where outputs lie otherwise. Results are kept until the next lane's arrive; more of them spill.
const HANDED_OF_2: usize = 8;
const HANDED_OF_3: usize = 5;
const HANDED_OF_4: usize = 3;
/// The same of packs that are each made from two.
const SHIFTED_OF_2: usize = 4;
const SHIFTED_OF_MORE: usize = 2;

/// # Safety
/// 1. As [`crate::gpu::AmongBlocks::copy_among`].
#[inline(always)]
pub unsafe fn copy_far<M: KernelMachine>(
    share: Share,
    dst: *mut u8,
    dst2: *mut u8,
    src: *const u8,
    len_bytes: usize,
) {
    // SAFETY: obligation 1.
    unsafe { copy::<M, PACKS_FAR, true, 0>(share, dst.addr(), dst2.addr(), src.addr(), len_bytes) }
}

/// `HANDED`: see [`alike`]. In kernels of messages, whose loops have registers to spare, it is faster, in others not.
///
/// # Safety
/// 1. As [`crate::gpu::Block::map_bulk`].
#[inline(never)]
unsafe fn copy<M: KernelMachine, const IN_FLIGHT: usize, const SHIFTS: bool, const HANDED: usize>(
    share: Share,
    dst: usize,
    dst2: usize,
    src: usize,
    len_bytes: usize,
) {
    let places = Places { operands: [src], outputs: [dst, dst2], len_bytes };
    // SAFETY: obligation 1 in every arm; addresses are aligned as the condition says.
    unsafe {
        if places.is_aligned(size_of::<Pack>()) {
            packs::<M, 1, 2, IN_FLIGHT, false>(share, places, |[pack]| pack);
            units::<M, u8, 1, 2, 1>(share, places, whole_packs(len_bytes), |[byte]| byte);
        } else if SHIFTS && len_bytes >= SHIFTED_MIN_BYTES {
            copy_anywhere::<M, IN_FLIGHT, HANDED>(share, places);
        } else if places.is_aligned(UNIT_BYTES) && len_bytes.is_multiple_of(UNIT_BYTES) {
            units::<M, u32, 1, 2, 16>(share, places, 0, |[unit]| unit);
        } else if len_bytes >= SHIFTED_MIN_BYTES {
            // Of elements of a byte or two, which would take as many accesses as there are.
            copy_anywhere::<M, IN_FLIGHT, HANDED>(share, places);
        } else {
            units::<M, u8, 1, 2, 16>(share, places, 0, |[byte]| byte);
        }
    }
}

/// By packs of the outputs: of both at once if they lie alike.
///
/// # Safety
/// 1. As [`crate::gpu::Block::map_bulk`].
#[inline(always)]
unsafe fn copy_anywhere<M: KernelMachine, const IN_FLIGHT: usize, const HANDED: usize>(
    share: Share,
    places: Places<1>,
) {
    let src = places.operands[0];
    let is_at_once = places.lie_alike() && !places.outputs.contains(&src);
    // A loop, so that the code is there once.
    let (mut outputs, mut other) =
        if is_at_once { (places.outputs, 0) } else { ([places.outputs[0], 0], places.outputs[1]) };
    loop {
        if outputs[0] != src {
            // SAFETY: obligation 1; one output lies like itself.
            unsafe {
                let places = Places { outputs, ..places };
                alike::<M, u8, 1, 2, IN_FLIGHT, PACKS, HANDED>(share, places, |[pack]| pack, |[byte]| byte);
            }
        }
        if other == 0 {
            break;
        }
        (outputs, other) = ([other, 0], 0);
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
    let word = arith::change::<M, T, PRE>(by);
    let places = Places { operands: [src], outputs: [dst, dst2], len_bytes };
    let is_aligned = places.is_aligned(size_of::<Pack>());
    // SAFETY: obligation 1.
    unsafe {
        if is_aligned {
            packs::<M, 1, 2, PACKS, false>(share, places, |[pack]| pack.map(&word));
        }
        let done = whole_packs(len_bytes);
        let rest = |[x]: [T; 1]| T::from_low_bits(word(x.to_low_bits()));
        match is_aligned {
            true => units::<M, T, 1, 2, 1>(share, places, done, rest),
            false => units::<M, T, 1, 2, 8>(share, places, 0, rest),
        }
    }
}

/// # Safety
/// 1. As [`crate::gpu::Block::combine_bulk`]; addresses are aligned to elements.
#[inline(always)]
pub unsafe fn combine<M: KernelMachine, T: Element>(
    share: Share,
    places: Places<2>,
    variant: Variant,
    arg: &OpArg,
) {
    // SAFETY: obligation 1.
    unsafe { combine_with::<M, T, PRE_OTHERS, PACKS, 0, 0, 2, 2>(share, places, variant, arg) }
}

/// # Safety
/// 1. As [`crate::gpu::AmongBlocks::reduce_among`]; addresses are aligned to elements.
#[inline(always)]
pub unsafe fn reduce_inputs<M: KernelMachine, T: Element, const N: usize>(
    share: Share,
    places: Places<N, N>,
    variant: Variant,
    arg: &OpArg,
) {
    // SAFETY: obligation 1 in every arm.
    unsafe {
        match N {
            2 => combine_with::<M, T, PRE_ALL, PACKS_FAR, SHIFTED_OF_2, HANDED_OF_2, N, N>(
                share, places, variant, arg,
            ),
            3 => combine_with::<M, T, PRE_ALL, PACKS_OF_3, SHIFTED_OF_MORE, HANDED_OF_3, N, N>(
                share, places, variant, arg,
            ),
            _ => combine_with::<M, T, PRE_ALL, PACKS_OF_4, SHIFTED_OF_MORE, HANDED_OF_4, N, N>(
                share, places, variant, arg,
            ),
        }
    }
}

/// # Safety
/// 1. As [`combine`].
#[inline(always)]
unsafe fn combine_with<
    M: KernelMachine,
    T: Element,
    const PRE: u8,
    const IN_FLIGHT: usize,
    const SHIFTED: usize,
    const HANDED: usize,
    const N: usize,
    const OUTPUTS: usize,
>(
    share: Share,
    places: Places<N, OUTPUTS>,
    variant: Variant,
    arg: &OpArg,
) {
    const SUM: u8 = CombineKind::Sum as u8;
    const PROD: u8 = CombineKind::Prod as u8;
    const MAX: u8 = CombineKind::Max as u8;
    const MIN: u8 = CombineKind::Min as u8;
    let (scalar, divisor) = (arg.scalar_bits, u64::from(arg.divisor));
    // Only sums: for them alone the handed loops are half as much code again, for all operators twice as much.
    // SAFETY: obligation 1 in every arm.
    unsafe {
        match (variant.kind, variant.pre, variant.post) {
            (CombineKind::Sum, false, false) => {
                reduce::<M, T, SUM, 0, IN_FLIGHT, SHIFTED, HANDED, N, OUTPUTS>(share, places, 0)
            }
            (CombineKind::Sum, true, _) => {
                reduce::<M, T, SUM, PRE, IN_FLIGHT, SHIFTED, HANDED, N, OUTPUTS>(share, places, scalar)
            }
            (CombineKind::Sum, false, true) => {
                reduce::<M, T, SUM, POST, IN_FLIGHT, SHIFTED, HANDED, N, OUTPUTS>(share, places, divisor)
            }
            (CombineKind::Prod, ..) => {
                reduce::<M, T, PROD, 0, IN_FLIGHT, SHIFTED, 0, N, OUTPUTS>(share, places, 0)
            }
            (CombineKind::Max, ..) => {
                reduce::<M, T, MAX, 0, IN_FLIGHT, SHIFTED, 0, N, OUTPUTS>(share, places, 0)
            }
            (CombineKind::Min, ..) => {
                reduce::<M, T, MIN, 0, IN_FLIGHT, SHIFTED, 0, N, OUTPUTS>(share, places, 0)
            }
        }
    }
}

/// `EXTRA`: what [`arith::reduction`] does besides, by `by`. `IN_FLIGHT` packs of each operand, `SHIFTED` where each comes from two, or
/// `HANDED`; with none of these, places that are not aligned go by units.
///
/// # Safety
/// 1. As [`combine`].
#[inline(never)]
unsafe fn reduce<
    M: KernelMachine,
    T: Element,
    const KIND: u8,
    const EXTRA: u8,
    const IN_FLIGHT: usize,
    const SHIFTED: usize,
    const HANDED: usize,
    const N: usize,
    const OUTPUTS: usize,
>(
    share: Share,
    places: Places<N, OUTPUTS>,
    by: u64,
) {
    let word = arith::reduction::<M, T, KIND, EXTRA, N>(by);
    let element = arith::of_elements::<T, N>(word);
    let done = whole_packs(places.len_bytes);
    // SAFETY: obligation 1 in every arm; addresses are aligned as the condition says.
    unsafe {
        if SHIFTED > 0 && places.lie_alike() {
            let pack = arith::of_packs(word);
            alike::<M, T, N, OUTPUTS, IN_FLIGHT, SHIFTED, HANDED>(share, places, pack, element);
        } else if SHIFTED > 0 {
            // Nobody asks for it: symmetric windows lie alike.
            units::<M, T, N, OUTPUTS, 1>(share, places, 0, element);
        } else if places.is_aligned(size_of::<Pack>()) {
            packs::<M, N, OUTPUTS, IN_FLIGHT, false>(share, places, arith::of_packs(word));
            units::<M, T, N, OUTPUTS, 1>(share, places, done, element);
        } else if size_of::<T>() <= UNIT_BYTES
            && places.is_aligned(UNIT_BYTES)
            && places.len_bytes.is_multiple_of(UNIT_BYTES)
        {
            let unit = |units: [u32; N]| word(units.map(u64::from)) as u32;
            match size_of::<T>() {
                // Of four elements an operator may take many instructions and registers.
                1 => units::<M, u32, N, OUTPUTS, 8>(share, places, 0, unit),
                _ => units::<M, u32, N, OUTPUTS, 16>(share, places, 0, unit),
            }
        } else if size_of::<T>() == 2 && N == 2 {
            units::<M, T, N, OUTPUTS, 16>(share, places, 0, element);
        } else if size_of::<T>() == 2 {
            units::<M, T, N, OUTPUTS, 8>(share, places, 0, element);
        } else {
            units::<M, T, N, OUTPUTS, 4>(share, places, 0, element);
        }
    }
}
