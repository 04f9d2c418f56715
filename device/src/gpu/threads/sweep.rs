//! The loops under bulk operations: several accesses in flight before the first use.
//!
//! ```text
//! packs:  16 bytes for each thread and access, where all places are aligned to them: a warp of 32 reads 512 bytes in a row
//! shifted packs: where outputs are and operands are not: each pack from the two of an operand that it lies in
//! handed packs: the same for sums: a pack of an output is joined from the sums of two packs of the operands, of which the next lane hands one on
//! units:  an element, or 4 bytes, for each: 128 bytes in a row
//! ```
//! Where operands lie alike and outputs do ([`alike`]), there is a head up to where a line of the first output begins.
//! A multiprocessor of H200 stores at most 50 GB/s, by 4 bytes a thread as by 16, and loads more than twice as much
//! (docs/measurements/2026-11-23-few-blocks.md): what counts is bytes in flight, and where units are short, instructions: a condition for each
//! tripled those of a turn (docs/measurements/2026-11-29-any-place.md). But a loop that is called must not need so many registers that
//! it has to save its caller's, for each slice.

use crate::gpu::{Among, KernelMachine, LINE_BYTES, Pack};
use core::mem::MaybeUninit;

const PACK_BYTES: usize = 16;

/// Repeats a body, with a number as a constant. The compiler unrolls a loop of few instructions itself, but not one with as many as these,
/// and what a loop indexes is in local memory instead of registers.
macro_rules! repeat {
    ($count:ident, $i:ident => $body:block) => {
        repeat!(@ $count, $i, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ $count:ident, $i:ident, $body:block, $($n:literal)+) => {{
        const { assert!($count <= 16) };
        $(
            if $n < $count {
                let $i: usize = $n;
                $body
            }
        )+
    }};
}

pub(super) use repeat;

/// This thread's share of a loop.
#[derive(Clone, Copy)]
pub struct Share {
    pub thread: u32,
    pub threads: u32,
}

impl Share {
    /// Of a loop that several blocks have together: their first warps, then their second ones. So they go through memory side by side. With an
    /// equal stretch for each, reductions took an eighth longer (docs/measurements/2026-11-28-four-ranks.md).
    #[inline(always)]
    pub fn among(self, Among { index, count }: Among, warp_threads: u32) -> Share {
        let (warp, lane) = (self.thread / warp_threads, self.thread % warp_threads);
        Share { thread: (warp * count + index) * warp_threads + lane, threads: self.threads * count }
    }
}

/// What a loop reads and writes: addresses, aligned to elements. Outputs behind the first may be 0, for none.
#[derive(Clone, Copy)]
pub struct Places<const N: usize, const OUTPUTS: usize = 2> {
    pub operands: [usize; N],
    pub outputs: [usize; OUTPUTS],
    pub len_bytes: usize,
}

impl<const N: usize, const OUTPUTS: usize> Places<N, OUTPUTS> {
    #[inline(always)]
    pub fn of(operands: [*const u8; N], outputs: [*mut u8; OUTPUTS], len_bytes: usize) -> Self {
        Places { operands: operands.map(|at| at.addr()), outputs: outputs.map(|at| at.addr()), len_bytes }
    }

    /// For each output that there is: which.
    #[inline(always)]
    fn each_output(&self, mut f: impl FnMut(usize)) {
        for n in 0..OUTPUTS {
            if n == 0 || self.outputs[n] != 0 {
                f(n);
            }
        }
    }

    /// Whether all of it begins at multiples of so many bytes.
    #[inline(always)]
    pub fn is_aligned(&self, to: usize) -> bool {
        self.operands.iter().chain(&self.outputs).fold(0, |all, address| all | address).is_multiple_of(to)
    }

    /// Whether all operands begin equally far behind a pack's place, and all outputs.
    #[inline(always)]
    pub fn lie_alike(&self) -> bool {
        let mut differs = self.operands.iter().fold(0, |differs, at| differs | (at ^ self.operands[0]));
        self.each_output(|n| differs |= self.outputs[n] ^ self.outputs[0]);
        differs.is_multiple_of(PACK_BYTES)
    }

    /// A head, and the rest, whose outputs are aligned to packs: rows of the first output begin with lines, or where operands of a reduction lie
    /// otherwise, the rows of these, most of which are read over a link.
    #[inline(always)]
    fn split(self) -> [Self; 2] {
        let shift = self.operands[0].wrapping_sub(self.outputs[0]) % PACK_BYTES;
        let rows = if N > 1 && shift != 0 { self.operands[0].wrapping_sub(shift) } else { self.outputs[0] };
        let head = (rows.wrapping_neg() % LINE_BYTES).min(self.len_bytes);
        let behind = |at: usize| if at == 0 { 0 } else { at + head };
        let rest = Places {
            operands: self.operands.map(behind),
            outputs: self.outputs.map(behind),
            len_bytes: self.len_bytes - head,
        };
        [Places { len_bytes: head, ..self }, rest]
    }
}

/// The bytes of packs among so many.
#[inline(always)]
pub fn whole_packs(len_bytes: usize) -> usize {
    len_bytes / PACK_BYTES * PACK_BYTES
}

/// A thread's first access of a turn, of `size` bytes, and the bytes from turn to turn.
#[inline(always)]
fn turns<M: KernelMachine>(share: Share, size: usize, in_flight: usize) -> (usize, usize) {
    let (warp, lane) = (share.thread / M::WARP_THREADS, share.thread % M::WARP_THREADS);
    let hunk = in_flight * M::WARP_THREADS as usize * size;
    (warp as usize * hunk + lane as usize * size, (share.threads / M::WARP_THREADS) as usize * hunk)
}

/// Bytes up to the end, as many as matter.
#[inline(always)]
fn bytes_left(at: usize, end: usize) -> u32 {
    const ENOUGH: usize = 1 << 30;
    (end - at).min(ENOUGH) as u32
}

/// Runs `pack` on all whole packs: a warp takes some rows of 512 bytes that follow each other, then comes the block's next
/// turn. All of a thread's packs are loaded before any is used.
///
/// # Safety
/// 1. Operands are readable and outputs are writable for the length, by this thread alone where it writes.
/// 2. All addresses are aligned to packs; `SHIFTED`, outputs are, and operands all begin equally far behind a pack's place. Whole packs of them
///    are read, and bytes that are not asked for lie in the same 16 as some that are: others may be writing these.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the compiler unrolls these, not the iterators")]
pub unsafe fn packs<
    M: KernelMachine,
    const N: usize,
    const OUTPUTS: usize,
    const COUNT: usize,
    const SHIFTED: bool,
>(
    share: Share,
    places: Places<N, OUTPUTS>,
    pack: impl Fn([Pack; N]) -> Pack,
) {
    let row = M::WARP_THREADS as usize * PACK_BYTES;
    let end = whole_packs(places.len_bytes);
    let shift = if SHIFTED { places.operands[0] % PACK_BYTES } else { 0 };
    let (mut at, turn) = turns::<M>(share, PACK_BYTES, COUNT);
    while at < end {
        let left = bytes_left(at, end);
        let mut loaded = [[[0; 2]; N]; COUNT];
        let mut behind = [[[0; 2]; N]; COUNT];
        repeat!(COUNT, i => {
            if ((i * row) as u32) < left {
                for n in 0..N {
                    let from = places.operands[n] + at + i * row - shift;
                    // SAFETY: it lies before `end`; obligations 1 and 2. Shifted, some bytes of the pack behind are asked for.
                    unsafe {
                        if SHIFTED {
                            loaded[i][n] = M::load_pack_for_two(from);
                            behind[i][n] = M::load_pack_for_two(from + PACK_BYTES);
                        } else {
                            loaded[i][n] = M::load_pack(from);
                        }
                    }
                }
            }
        });
        repeat!(COUNT, i => {
            if ((i * row) as u32) < left {
                if SHIFTED {
                    for n in 0..N {
                        loaded[i][n] = joined([loaded[i][n], behind[i][n]], shift);
                    }
                }
                let value = pack(loaded[i]);
                // SAFETY: as above.
                places.each_output(|n| unsafe { M::store_pack(places.outputs[n] + at + i * row, value) });
            }
        });
        at += turn;
    }
}

/// Runs `pack` on all whole packs of the outputs where operands lie otherwise: on packs of the operands, each of which is loaded once but for the
/// first one behind a warp's rows. A pack of an output is joined from two results, the thread's own and what the next lane hands on; the last
/// lane's next is the first one's of the row behind.
///
/// ```text
/// operands   |   0   |   1   |  ...  |  31   |  32        lane 0 has 0, 32 and so on, and the first pack behind its warp's last row
/// outputs        |   0   |   1   |  ...  |  31   |
/// ```
///
/// # Safety
/// 1. As [`packs`], shifted; all threads of a warp call it. The machine [hands on](KernelMachine::HANDS_ON).
#[inline(always)]
unsafe fn handed_packs<M: KernelMachine, const N: usize, const OUTPUTS: usize, const COUNT: usize>(
    share: Share,
    places: Places<N, OUTPUTS>,
    pack: impl Fn([Pack; N]) -> Pack,
) {
    const LAST: usize = 2;
    let row = M::WARP_THREADS as usize * PACK_BYTES;
    let end = whole_packs(places.len_bytes);
    let lane = share.thread % M::WARP_THREADS;
    let (first, turn) = turns::<M>(share, PACK_BYTES, COUNT);
    // Where the warp's first lane is: all go on together.
    let mut at = first - lane as usize * PACK_BYTES;
    while at < end {
        // SAFETY: obligation 1; a turn is whole if it ends at `end` or before.
        unsafe {
            if COUNT * row <= end - at {
                handed_turn::<M, N, OUTPUTS, COUNT, true>(places, lane, at, &pack);
            } else {
                let mut at = at;
                while at < end {
                    handed_turn::<M, N, OUTPUTS, LAST, false>(places, lane, at, &pack);
                    at += LAST * row;
                }
            }
        }
        at += turn;
    }
}

/// So many rows of a warp from `at` on, all of them whole or not.
///
/// # Safety
/// 1. As [`handed_packs`]; a whole turn's rows lie before the end.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the compiler unrolls these, not the iterators")]
unsafe fn handed_turn<
    M: KernelMachine,
    const N: usize,
    const OUTPUTS: usize,
    const COUNT: usize,
    const WHOLE: bool,
>(
    places: Places<N, OUTPUTS>,
    lane: u32,
    at: usize,
    pack: impl Fn([Pack; N]) -> Pack,
) {
    let row = M::WARP_THREADS as usize * PACK_BYTES;
    let shift = places.operands[0] % PACK_BYTES;
    let at = at + lane as usize * PACK_BYTES;
    // Operands have one pack more, of which the last of the outputs has some bytes.
    let end = whole_packs(places.len_bytes) + PACK_BYTES;
    // Of a whole turn a constant: no condition is left.
    let left = if WHOLE { u32::MAX } else { bytes_left(at.min(end), end) };
    let load = |from: usize| {
        // SAFETY: it lies before `end`; obligation 1.
        places.operands.map(|operand| unsafe { M::load_pack(operand + from - shift) })
    };
    let mut loaded = [[[0; 2]; N]; COUNT];
    repeat!(COUNT, i => {
        if ((i * row) as u32) < left {
            loaded[i] = load(at + i * row);
        }
    });
    let mut behind = [[0; 2]; N];
    if lane == 0 && ((COUNT * row) as u32) < left {
        behind = load(at + COUNT * row);
    }
    let mut results = [[0; 2]; COUNT];
    repeat!(COUNT, i => {
        results[i] = pack(loaded[i]);
    });
    let behind = pack(behind);
    repeat!(COUNT, i => {
        let below = if i + 1 < COUNT { results[(i + 1) % COUNT] } else { behind };
        let next = M::of_next_lane(if lane == 0 { below } else { results[i] });
        if ((i * row + PACK_BYTES) as u32) < left {
            let value = joined([results[i], next], shift);
            // SAFETY: it lies before `end`; obligation 1.
            places.each_output(|n| unsafe { M::store_pack(places.outputs[n] + at + i * row, value) });
        }
    });
}

/// Runs `pack` on all packs of the outputs, of which each thread has `COUNT` of every operand in flight. Where outputs lie otherwise, `SHIFTED` of
/// them, each from two, or `HANDED`, unless that is 0 or the machine cannot. What lies before and behind goes by `unit`.
///
/// # Safety
/// 1. As [`packs`].
/// 2. The places [lie alike](Places::lie_alike), are aligned to units, and the length is a whole number of them.
#[inline(always)]
pub unsafe fn alike<
    M: KernelMachine,
    T: Copy,
    const N: usize,
    const OUTPUTS: usize,
    const COUNT: usize,
    const SHIFTED: usize,
    const HANDED: usize,
>(
    share: Share,
    places: Places<N, OUTPUTS>,
    pack: impl Fn([Pack; N]) -> Pack,
    unit: impl Fn([T; N]) -> T,
) {
    let [head, rest] = places.split();
    // SAFETY: obligations 1 and 2 in every call; the rest's outputs are aligned.
    unsafe {
        units::<M, T, N, OUTPUTS, 1>(share, head, 0, &unit);
        match rest.operands[0].is_multiple_of(PACK_BYTES) {
            true => packs::<M, N, OUTPUTS, COUNT, false>(share, rest, pack),
            false if HANDED > 0 && M::HANDS_ON => handed_packs::<M, N, OUTPUTS, HANDED>(share, rest, pack),
            false => packs::<M, N, OUTPUTS, SHIFTED, true>(share, rest, pack),
        }
        units::<M, T, N, OUTPUTS, 1>(share, rest, whole_packs(rest.len_bytes), &unit);
    }
}

/// The 16 bytes that begin so many bytes, fewer than 16, behind the begin of two packs.
#[inline(always)]
fn joined([[a, b], [c, d]]: [Pack; 2], shift: usize) -> Pack {
    let bits = shift as u32 % 8 * 8;
    let (first, second, third) = if shift < 8 { (a, b, c) } else { (b, c, d) };
    // In two steps: there is no shift by 64.
    let join = |low: u64, high: u64| low >> bits | high << 1 << (63 - bits);
    [join(first, second), join(second, third)]
}

/// Runs `f` on every unit from `start` on, of which each thread has so many of every operand in flight.
///
/// # Safety
/// 1. As [`packs`].
/// 2. All addresses are aligned to units, and the length is a whole number of them.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the compiler unrolls these, not the iterators")]
pub unsafe fn units<
    M: KernelMachine,
    T: Copy,
    const N: usize,
    const OUTPUTS: usize,
    const IN_FLIGHT: usize,
>(
    share: Share,
    places: Places<N, OUTPUTS>,
    start: usize,
    f: impl Fn([T; N]) -> T,
) {
    let size = size_of::<T>();
    let (first, turn) = turns::<M>(share, size, IN_FLIGHT);
    let mut at = start + first;
    while at < places.len_bytes {
        let left = bytes_left(at, places.len_bytes);
        let from = places.operands.map(|operand| M::hidden(operand.wrapping_add(at)));
        let to = places.outputs.map(|output| M::hidden(if output == 0 { 0 } else { output + at }));
        let row = M::WARP_THREADS as usize * size;
        if IN_FLIGHT == 1 || left as usize > (IN_FLIGHT - 1) * row {
            // Without conditions, which would be most of the loop's instructions.
            let mut loaded = [const { MaybeUninit::<[T; N]>::uninit() }; IN_FLIGHT];
            repeat!(IN_FLIGHT, i => {
                // SAFETY: obligations 1 and 2.
                loaded[i].write(from.map(|from| unsafe { M::load_unit::<T>(from + i * row) }));
            });
            repeat!(IN_FLIGHT, i => {
                // SAFETY: it was loaded.
                let value = f(unsafe { loaded[i].assume_init() });
                // SAFETY: obligations 1 and 2.
                places.each_output(|n| unsafe { M::store_unit::<T>(to[n] + i * row, value) });
            });
        } else {
            // SAFETY: obligations 1 and 2 in both arms.
            unsafe {
                match IN_FLIGHT {
                    16 => last_units::<M, T, N, OUTPUTS, 4>(from, to, left, &f),
                    _ => last_units::<M, T, N, OUTPUTS, 2>(from, to, left, &f),
                }
            };
        }
        at += turn;
    }
}

/// The units of a thread's last turn, with so many bytes left from its first one on: so many at a time. Of a slice one warp has such a turn, of most
/// none.
///
/// # Safety
/// 1. As [`units`].
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the compiler unrolls these, not the iterators")]
unsafe fn last_units<
    M: KernelMachine,
    T: Copy,
    const N: usize,
    const OUTPUTS: usize,
    const IN_FLIGHT: usize,
>(
    from: [usize; N],
    to: [usize; OUTPUTS],
    left: u32,
    f: impl Fn([T; N]) -> T,
) {
    let row = M::WARP_THREADS as usize * size_of::<T>();
    let mut done = 0;
    while (done as u32) < left {
        // Not filled with anything: a load into what another load has filled waits for that one.
        let mut loaded = [const { MaybeUninit::<[T; N]>::uninit() }; IN_FLIGHT];
        repeat!(IN_FLIGHT, i => {
            let ahead = done + i * row;
            if (ahead as u32) < left {
                // SAFETY: obligation 1.
                loaded[i].write(from.map(|from| unsafe { M::load_unit::<T>(from + ahead) }));
            }
        });
        repeat!(IN_FLIGHT, i => {
            let ahead = done + i * row;
            if (ahead as u32) < left {
                // SAFETY: it was loaded: the condition is the same.
                let value = f(unsafe { loaded[i].assume_init() });
                for n in 0..OUTPUTS {
                    if n == 0 || to[n] != 0 {
                        // SAFETY: obligation 1.
                        unsafe { M::store_unit::<T>(to[n] + ahead, value) };
                    }
                }
            }
        });
        done += IN_FLIGHT * row;
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn blocks_that_share_a_loop_have_each_place_once_and_whole_warps() {
        for (count, warps, warp_threads) in [(1, 15, 32), (3, 4, 32), (24, 15, 32), (5, 2, 64), (4, 3, 1)] {
            let threads = warps * warp_threads;
            let share = |index, thread| Share { thread, threads }.among(Among { index, count }, warp_threads);
            let places: BTreeSet<u32> =
                (0..count).flat_map(|index| (0..threads).map(move |t| share(index, t).thread)).collect();
            assert!(places.iter().copied().eq(0..threads * count), "{count} blocks of {warps} warps");
            for index in 0..count {
                assert_eq!(share(index, 0).threads, threads * count);
                let lanes = (0..warp_threads).map(|lane| share(index, lane).thread);
                assert!(lanes.eq(index * warp_threads..(index + 1) * warp_threads), "side by side");
            }
        }
    }
}
