//! How a buffer is divided: among channels, then into loops of blocks, then into slices. All lengths are in elements.
//!
//! A *grain* is the least length worth cutting at, for alignment: borders inside a buffer fall on multiples of it,
//! measured from the start of the range that is cut; only the last piece of the buffer is ragged.

use core::ops::Range;

/// The elements of a grain of `grain_bytes`; at least one.
pub const fn grain_elems(grain_bytes: usize, elem_bytes: usize) -> usize {
    at_least_one(grain_bytes / at_least_one(elem_bytes))
}

/// The part of `count` elements that `channel` (of `0..nchannels`) carries.
///
/// The parts follow each other in channel order, cover `0..count` exactly, start on grains, and differ by at most one
/// grain. They are empty for the last channels when there are fewer grains than channels.
#[inline]
pub const fn channel_part(count: usize, nchannels: u32, channel: u32, grain_elems: usize) -> Range<usize> {
    if nchannels == 1 && channel == 0 {
        return 0..count;
    }
    ChannelCut::new(count, nchannels, grain_elems).part(channel)
}

/// How elements are divided among channels: what takes a division, to be done once for all channels. Kernels get it ready.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChannelCut {
    /// Elements.
    pub count: u64,
    /// Elements of a grain, at least one.
    pub grain_elems: u64,
    /// Grains of every channel.
    pub each: u64,
    /// So many channels, the first ones, have one more.
    pub longer: u64,
}

impl ChannelCut {
    /// `count` elements among `nchannels` channels.
    pub const fn new(count: usize, nchannels: u32, grain_elems: usize) -> Self {
        let (grain, channels) = (at_least_one(grain_elems), at_least_one(nchannels as usize));
        let grains = count.div_ceil(grain);
        let each = grains / channels;
        let longer = grains - each * channels;
        ChannelCut {
            count: count as u64,
            grain_elems: grain as u64,
            each: each as u64,
            longer: longer as u64,
        }
    }

    /// The part of a channel.
    #[inline(always)]
    pub const fn part(&self, channel: u32) -> Range<usize> {
        let (count, grain, channel) = (self.count as usize, self.grain_elems as usize, channel as usize);
        let first = channel * self.each as usize + min(channel, self.longer as usize);
        let end = first + self.each as usize + (channel < self.longer as usize) as usize;
        // `first * grain < count + grain`, so it overflows no sooner than `div_ceil` rounded up past the buffer's end.
        min(first.saturating_mul(grain), count)..min(end.saturating_mul(grain), count)
    }
}

/// One pass over `nblocks` adjacent blocks of `chunk` elements, beginning at `base`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Loop {
    /// Where block 0 starts.
    pub base: usize,
    /// Elements per block, before clipping.
    pub chunk: usize,
    /// Where the part ends; blocks are clipped to it.
    pub end: usize,
}

impl Loop {
    /// The elements of `block`; empty if it lies wholly beyond the part's end.
    #[inline]
    pub const fn block_range(&self, block: u32) -> Range<usize> {
        let start = min(self.base.saturating_add(self.chunk.saturating_mul(block as usize)), self.end);
        start..min(start.saturating_add(self.chunk), self.end)
    }
}

/// Cuts a channel's part into loops of `nblocks` blocks each.
///
/// All loops but the last have full chunks. The last shrinks its chunk to an `nblocks`-th of what remains, rounded up to
/// a grain, so that its blocks are about equal instead of some full and the rest empty.
#[derive(Clone, Copy, Debug)]
pub struct Loops {
    base: usize,
    end: usize,
    nblocks: usize,
    chunk_max: usize,
    grain: usize,
}

impl Loops {
    /// The loops over `part`, with at most `chunk_max_elems` to a block: a multiple of `grain_elems` (made one if not).
    pub const fn new(part: Range<usize>, nblocks: u32, chunk_max_elems: usize, grain_elems: usize) -> Self {
        let grain = at_least_one(grain_elems);
        let chunk_max = at_least_one(chunk_max_elems / grain) * grain;
        Loops { base: part.start, end: part.end, nblocks: at_least_one(nblocks as usize), chunk_max, grain }
    }
}

impl Iterator for Loops {
    type Item = Loop;

    #[inline]
    fn next(&mut self) -> Option<Loop> {
        if self.base >= self.end {
            return None;
        }
        let remaining = self.end - self.base;
        let share = remaining.div_ceil(self.nblocks).div_ceil(self.grain).saturating_mul(self.grain);
        let chunk = min(share, self.chunk_max);
        let item = Loop { base: self.base, chunk, end: self.end };
        self.base = self.base.saturating_add(chunk.saturating_mul(self.nblocks));
        Some(item)
    }
}

/// Cuts `0..count` into ranges of `chunk` elements, the last shorter: for schedules whose blocks are whole buffers of
/// ranks (all-gather, reduce-scatter) and so are walked chunk by chunk alike.
pub const fn chunks(count: usize, chunk: usize) -> Slices {
    slices(0..count, chunk)
}

/// Cuts `range` into ranges of `max_elems` elements, the last shorter; none if it is empty.
pub const fn slices(range: Range<usize>, max_elems: usize) -> Slices {
    Slices { next: range.start, end: range.end, max: at_least_one(max_elems) }
}

/// The iterator of [`slices`] and [`chunks`].
#[derive(Clone, Copy, Debug)]
pub struct Slices {
    next: usize,
    end: usize,
    max: usize,
}

impl Iterator for Slices {
    type Item = Range<usize>;

    #[inline]
    fn next(&mut self) -> Option<Range<usize>> {
        if self.next >= self.end {
            return None;
        }
        let start = self.next;
        self.next = min(start.saturating_add(self.max), self.end);
        Some(start..self.next)
    }
}

/// Divisors and lengths of zero would divide by zero or never end; device code has no one to report them to.
const fn at_least_one(value: usize) -> usize {
    if value == 0 { 1 } else { value }
}

const fn min(a: usize, b: usize) -> usize {
    if a < b { a } else { b }
}
