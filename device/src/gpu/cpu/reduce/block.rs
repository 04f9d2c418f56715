//! The loops, one staging block at a time. Everything here is `inline(always)`, so that the `target_feature`
//! functions of `machine` compile it with their instructions.

use super::ops::Flags;
use super::stream;
use core::mem::MaybeUninit;
use oxccl_shared::abi::DataType;
use oxccl_shared::reduce::{Combine, CombineKind, Element, OpArg, Prod};

/// Bytes of a staging block: together with as much of each operand it fits the smallest L1 (32 KiB).
const BLOCK_BYTES: usize = 4096;

/// Vector arithmetic of a machine that the compiler does not find by itself.
pub(super) trait Lanes {
    /// `O`, a sum or a product, of `a` and `b`, with `b` multiplied by `scalar` first if there is one. Covers the
    /// first elements of `count` and returns their number (none for types without such instructions). The bits are
    /// those of the scalar functions.
    ///
    /// # Safety
    /// `a` and `b` are readable and `out` writable for `count` elements; `out` is `a` or `b` or overlaps neither;
    /// this CPU has the machine's instructions.
    #[inline(always)]
    unsafe fn arith<T: Element, O: Combine>(
        _out: *mut u8,
        _a: *const u8,
        _b: *const u8,
        _count: usize,
        _scalar: Option<T>,
    ) -> usize {
        0
    }
}

/// A block of results on the stack.
#[repr(C, align(64))]
struct Block {
    bytes: [MaybeUninit<u8>; BLOCK_BYTES],
}

impl Block {
    #[inline(always)]
    fn new() -> Self {
        Block { bytes: [MaybeUninit::uninit(); BLOCK_BYTES] }
    }

    #[inline(always)]
    fn elements<T: Element>(&mut self) -> *mut T {
        self.bytes.as_mut_ptr().cast()
    }

    /// Copies the first `len_bytes` to both destinations.
    ///
    /// # Safety
    /// They have been written, and `dst` and `dst2` (unless null) are writable for as many.
    #[inline(always)]
    unsafe fn flush(&self, dst: *mut u8, dst2: *mut u8, len_bytes: usize, flags: Flags) {
        let from = self.bytes.as_ptr().cast::<u8>();
        // SAFETY: the caller's; the stack overlaps no buffer.
        unsafe {
            if !dst2.is_null() {
                store(dst2, from, len_bytes, flags.contains(Flags::STREAM2));
            }
            store(dst, from, len_bytes, flags.contains(Flags::STREAM));
        }
    }
}

/// Copies with stores through the caches or past them, which the caller fences.
///
/// # Safety
/// `from` is readable and `to` writable for `len_bytes`, and they do not overlap.
#[inline(always)]
unsafe fn store(to: *mut u8, from: *const u8, len_bytes: usize, stream: bool) {
    // SAFETY: the caller's.
    unsafe {
        match stream {
            true => stream::copy_past_caches(to, from, len_bytes),
            false => core::ptr::copy_nonoverlapping(from, to, len_bytes),
        }
    }
}

/// Elements of the first block: fewer than in the others where that aligns them with the cache lines of `dst`, or of `dst2` where that
/// alone is streamed, so that no line is streamed in two parts.
#[inline(always)]
fn first_len<T: Element>(dst: *mut u8, dst2: *mut u8, flags: Flags) -> usize {
    let ahead = match () {
        () if flags.contains(Flags::STREAM) => dst.align_offset(64),
        () if flags.contains(Flags::STREAM2) => dst2.align_offset(64),
        () => 0,
    };
    (BLOCK_BYTES - 64 + ahead) / size_of::<T>()
}

/// Runs `fill(out, start, len)` for consecutive runs of elements. `out` is a block that is copied out afterwards, or
/// the destination itself where `in_place` is false and one plain store suffices: `fill`'s loops check that `out`
/// overlaps no operand, as the compiler makes every loop over raw pointers do, and are still vectorised.
///
/// # Safety
/// `dst` and `dst2` (unless null) are writable for `count` elements; `fill` writes `len` elements from `out` on,
/// which may be unaligned.
#[inline(always)]
unsafe fn staged<T: Element>(
    dst: *mut u8,
    dst2: *mut u8,
    count: usize,
    flags: Flags,
    in_place: bool,
    mut fill: impl FnMut(*mut T, usize, usize),
) {
    let direct = !in_place && dst2.is_null() && !flags.contains(Flags::STREAM);
    let mut block = Block::new();
    let mut start = 0;
    let mut len = first_len::<T>(dst, dst2, flags).min(count);
    while start < count {
        let at = start * size_of::<T>();
        // SAFETY: start < count.
        let to = unsafe { dst.add(at) };
        fill(if direct { to.cast() } else { block.elements() }, start, len);
        if !direct {
            let second = if dst2.is_null() { dst2 } else { dst2.wrapping_add(at) };
            // SAFETY: `fill` wrote `len` elements of the block, and start + len <= count.
            unsafe { block.flush(to, second, len * size_of::<T>(), flags) };
        }
        start += len;
        len = (BLOCK_BYTES / size_of::<T>()).min(count - start);
    }
    if flags.intersects(Flags::STREAM | Flags::STREAM2) {
        stream::fence();
    }
}

/// Element `i` from `base`.
///
/// # Safety
/// It is readable.
#[inline(always)]
unsafe fn load<T: Element>(base: *const u8, i: usize) -> T {
    // SAFETY: the caller's; every bit pattern is an element.
    unsafe { base.cast::<T>().add(i).read_unaligned() }
}

/// See [`super::CombineFn`].
///
/// # Safety
/// As there, and this CPU has the instructions of `M`.
#[inline(always)]
pub(super) unsafe fn combine<M: Lanes, T: Element, O: Combine>(
    dst: *mut u8,
    dst2: *mut u8,
    a: *const u8,
    b: *const u8,
    count: usize,
    arg: &OpArg,
    flags: Flags,
) {
    let scalar = flags.contains(Flags::PRE).then(|| arg.scalar::<T>());
    let in_place = dst.cast_const() == a || dst.cast_const() == b;
    if in_place && dst2.is_null() && !flags.intersects(Flags::POST | Flags::STREAM | Flags::STREAM2) {
        // SAFETY: the caller's.
        return unsafe { combine_in_place::<M, T, O>(dst.cast(), a, b, count, scalar) };
    }
    let fill = |out: *mut T, start: usize, len: usize| {
        let at = start * size_of::<T>();
        // SAFETY: start + len <= count, for which the caller answers; `out` holds a block.
        unsafe {
            fill_combined::<M, T, O>(out, a.add(at), b.add(at), len, scalar);
            if flags.contains(Flags::POST) {
                divide(out, len, arg.divisor);
            }
        }
    };
    // SAFETY: the caller's.
    unsafe { staged(dst, dst2, count, flags, in_place, fill) }
}

/// A tile of results: few enough to stay in registers.
#[repr(C, align(64))]
struct Tile([MaybeUninit<u8>; TILE_BYTES]);

const TILE_BYTES: usize = 256;

/// `dst = op(a, pre(b))`, where `dst` is one of them: a tile is written when all of it has been read. Through a whole staging block it takes
/// another copy in L1.
///
/// # Safety
/// `a` and `b` are readable and `dst` writable for `count` elements; `dst` is `a` or `b`, or overlaps neither.
#[inline(always)]
unsafe fn combine_in_place<M: Lanes, T: Element, O: Combine>(
    dst: *mut T,
    a: *const u8,
    b: *const u8,
    count: usize,
    scalar: Option<T>,
) {
    let tile_elems = TILE_BYTES / size_of::<T>();
    let mut tile = Tile([MaybeUninit::uninit(); TILE_BYTES]);
    let out: *mut T = tile.0.as_mut_ptr().cast();
    let whole = count / tile_elems * tile_elems;
    let mut start = 0;
    while start < whole {
        let at = start * size_of::<T>();
        // SAFETY: the caller's: the tile ends within all; the stack overlaps no buffer.
        unsafe {
            fill_combined::<M, T, O>(out, a.add(at), b.add(at), tile_elems, scalar);
            core::ptr::copy_nonoverlapping(out.cast::<u8>(), dst.cast::<u8>().add(at), TILE_BYTES);
        }
        start += tile_elems;
    }
    let (at, len) = (start * size_of::<T>(), count - start);
    // SAFETY: the caller's: what is left is less than a tile.
    unsafe {
        fill_combined::<M, T, O>(out, a.wrapping_add(at), b.wrapping_add(at), len, scalar);
        core::ptr::copy_nonoverlapping(
            out.cast::<u8>(),
            dst.cast::<u8>().wrapping_add(at),
            len * size_of::<T>(),
        );
    }
}

/// `out = op(a, pre(b))`
///
/// # Safety
/// `a` and `b` are readable and `out` writable for `len` elements, and `out` overlaps neither.
#[inline(always)]
unsafe fn fill_combined<M: Lanes, T: Element, O: Combine>(
    out: *mut T,
    a: *const u8,
    b: *const u8,
    len: usize,
    scalar: Option<T>,
) {
    // SAFETY: every index is below `len`.
    unsafe {
        let mut done = 0;
        if is_arithmetic::<O>() {
            done = M::arith::<T, O>(out.cast(), a, b, len, scalar);
        }
        if is_arithmetic::<O>() && matches!(T::DTYPE, DataType::BF16) {
            done = match scalar {
                None => fill_words::<T>(out, a, b, len, |x, y| O::apply(x, y)),
                Some(s) => fill_words::<T>(out, a, b, len, |x, y| O::apply(x, y.premul(s))),
            };
        }
        match scalar {
            None => (done..len).for_each(|i| out.add(i).write_unaligned(O::apply(load(a, i), load(b, i)))),
            Some(s) => (done..len)
                .for_each(|i| out.add(i).write_unaligned(O::apply(load(a, i), load::<T>(b, i).premul(s)))),
        }
    }
}

/// Whether `O` on floats rounds; minimum and maximum only select.
#[inline(always)]
fn is_arithmetic<O: Combine>() -> bool {
    matches!(O::KIND, CombineKind::Sum | CombineKind::Prod)
}

/// `out = f(a, b)` on whole 32-bit words; returns the number of elements in them. Shifts unpack and pack a word's
/// elements. In a loop over elements the compiler would widen and narrow whole vectors, which is most of the work for
/// `bf16`, whose conversion *is* a shift.
///
/// # Safety
/// `a` and `b` are readable and `out` writable for `len` elements, and `out` overlaps neither.
#[inline(always)]
unsafe fn fill_words<T: Element>(
    out: *mut T,
    a: *const u8,
    b: *const u8,
    len: usize,
    f: impl Fn(T, T) -> T,
) -> usize {
    let bits = 8 * size_of::<T>() as u32;
    let words = len * size_of::<T>() / 4;
    for i in 0..words {
        // SAFETY: word `i` lies within the first `len` elements.
        let (x, y) = unsafe { (load::<u32>(a, i), load::<u32>(b, i)) };
        let mut word = 0;
        let mut shift = 0;
        while shift < 32 {
            let (x, y) = (T::from_low_bits((x >> shift) as u64), T::from_low_bits((y >> shift) as u64));
            word |= (f(x, y).to_low_bits() as u32) << shift;
            shift += bits;
        }
        // SAFETY: as above.
        unsafe { out.cast::<u32>().add(i).write_unaligned(word) };
    }
    words * 4 / size_of::<T>()
}

/// See [`super::MapFn`].
///
/// # Safety
/// As there, and this CPU has the instructions of `M`.
#[inline(always)]
pub(super) unsafe fn map<M: Lanes, T: Element>(
    dst: *mut u8,
    dst2: *mut u8,
    src: *const u8,
    count: usize,
    arg: &OpArg,
    flags: Flags,
) {
    if !flags.intersects(Flags::PRE | Flags::POST) {
        let len_bytes = count * size_of::<T>();
        // SAFETY: the caller's. `dst2` is written first, while `src` still has its old content if it is `dst`.
        unsafe { copy_twice(dst, dst2, src, len_bytes, flags) };
        return;
    }
    let scalar = arg.scalar::<T>();
    let fill = |out: *mut T, start: usize, len: usize| {
        // SAFETY: start + len <= count, for which the caller answers; `out` holds a block.
        unsafe {
            let src = src.add(start * size_of::<T>());
            if flags.contains(Flags::PRE) {
                fill_scaled::<M, T>(out, src, len, scalar);
            } else {
                core::ptr::copy_nonoverlapping(src, out.cast(), len * size_of::<T>());
            }
            if flags.contains(Flags::POST) {
                divide(out, len, arg.divisor);
            }
        }
    };
    // SAFETY: the caller's.
    unsafe { staged(dst, dst2, count, flags, dst.cast_const() == src, fill) }
}

/// `out = src * scalar`
///
/// # Safety
/// `src` is readable and `out` writable for `len` elements, and they do not overlap.
#[inline(always)]
unsafe fn fill_scaled<M: Lanes, T: Element>(out: *mut T, src: *const u8, len: usize, scalar: T) {
    let mut done = 0;
    // SAFETY: every index is below `len`.
    unsafe {
        if matches!(T::DTYPE, DataType::F16 | DataType::F8E4M3 | DataType::F8E5M2) {
            (0..len).for_each(|i| out.add(i).write_unaligned(scalar));
            done = M::arith::<T, Prod>(out.cast(), src, out.cast_const().cast(), len, None);
        }
        (done..len).for_each(|i| out.add(i).write_unaligned(load::<T>(src, i).premul(scalar)));
    }
}

/// Copies to both destinations, reading `src` from memory once.
///
/// # Safety
/// Those of [`super::MapFn`], in bytes.
unsafe fn copy_twice(dst: *mut u8, dst2: *mut u8, src: *const u8, len_bytes: usize, flags: Flags) {
    /// Small enough that the second copy reads from L1 or L2.
    const PIECE_BYTES: usize = 16 << 10;
    let [stream, stream2] = [Flags::STREAM, Flags::STREAM2].map(|flag| flags.contains(flag));
    if dst2.is_null() {
        // SAFETY: the caller's.
        return unsafe { stream::copy(dst, src, len_bytes, stream) };
    }
    let mut at = 0;
    while at < len_bytes {
        let len = PIECE_BYTES.min(len_bytes - at);
        // SAFETY: at + len <= len_bytes.
        unsafe {
            stream::copy(dst2.add(at), src.add(at), len, stream2);
            stream::copy(dst.add(at), src.add(at), len, stream);
        }
        at += len;
    }
}

/// `out[i] = out[i].post_div(divisor)`. Integers of up to 32 bits are divided as floats, which vectorise where
/// integer division has no instruction. A quotient that is no integer is at least 1/divisor away from the next
/// integer, far more than half an ulp, so it never rounds up to it.
///
/// # Safety
/// `out` is readable and writable for `len` elements.
#[inline(always)]
unsafe fn divide<T: Element>(out: *mut T, len: usize, divisor: u32) {
    macro_rules! as_float {
        ($int:ty, $float:ty, $through:ty) => {{
            let (out, n) = (out.cast::<$int>(), divisor.max(1) as $float);
            // SAFETY: `T` is `$int`; indices are below `len`; the quotient's magnitude is at most the dividend's.
            (0..len).for_each(|i| unsafe {
                let quotient = out.add(i).read_unaligned() as $float / n;
                out.add(i).write_unaligned(quotient.to_int_unchecked::<$through>() as $int);
            })
        }};
    }
    match T::DTYPE {
        DataType::I8 => as_float!(i8, f32, i32),
        DataType::U8 => as_float!(u8, f32, i32),
        DataType::I32 => as_float!(i32, f64, i32),
        DataType::U32 => as_float!(u32, f64, u32),
        // SAFETY: indices are below `len`.
        _ => (0..len).for_each(|i| unsafe {
            out.add(i).write_unaligned(out.add(i).read_unaligned().post_div(divisor));
        }),
    }
}
