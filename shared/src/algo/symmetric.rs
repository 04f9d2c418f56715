//! Symmetric kernels: collectives whose ranks reach each other's buffers, so that nothing is staged. Each rank reads operands where
//! they are and writes outcomes to where they belong.
//!
//! ```text
//! all-reduce       rank r owns block r of the elements: reads it from every rank, writes the sum to every rank
//! reduce-scatter   rank r reads block r of every rank's input, writes the sum to its own output
//! all-gather       rank r reads its own input, writes it to block r of every rank's output
//! all-to-all       rank r reads its own blocks, writes block p to block r of rank p's output, from p = r + 1 on
//! ```
//! The channels divide that among them. The blocks of a channel on all ranks meet twice: before the first access and after the last one.
//!
//! # Why it is right, in place too
//! No element of an output is written twice, and the rank that writes it is the only one that reads what lies there as an input: the
//! owner of the block in an all-reduce, the rank itself in the other functions. An all-to-all in place has no such owner and is not
//! offered. The first meeting says that every rank's buffers are ready, the second one that nobody touches them any more.
//!
//! # Why it cannot deadlock
//! Between the meetings nobody waits for another rank. In a meeting every rank tells all others before it waits for any.

use super::chunk::{ChannelCut, channel_part};
use super::wrap;
use crate::abi::{DataType, Func, Rank};
use core::ops::Range;

/// The functions that have such kernels.
pub const FUNCS: &[Func] = &[Func::AllGather, Func::ReduceScatter, Func::AllReduce, Func::AllToAll];

/// The most ranks: what a host has.
pub const RANKS_MAX: usize = 8;

/// The most ranks whose inputs threads reduce, without tiles.
pub const REDUCED_MAX: u32 = 4;

/// The same of elements of a type: more than two ranks' only where a sum takes an instruction or two. A kernel of another type would be many
/// times as long.
pub const fn reduced_max(dtype: DataType) -> u32 {
    use DataType::{BF16, F16, F32, F64, I32, I64, U32, U64};
    match dtype {
        BF16 | F16 | F32 | F64 | I32 | I64 | U32 | U64 => REDUCED_MAX,
        _ => 2,
    }
}

/// Which buffers of a rank the others touch: what it sends, what it receives. Of one of [`FUNCS`].
pub const fn touches(func: Func) -> [bool; 2] {
    match func {
        Func::AllReduce => [true, true],
        Func::ReduceScatter => [true, false],
        _ => [false, true],
    }
}

/// Whose buffers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Whose {
    /// One rank's.
    One(Rank),
    /// Every rank's: inputs are reduced in rank order, outputs are all written.
    All,
}

/// Adjacent elements that a channel of a rank moves. All offsets are in elements from where a rank's buffer begins.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stretch {
    /// Whose inputs are read.
    pub reads: Whose,
    /// Where.
    pub src: usize,
    /// Whose outputs are written.
    pub writes: Whose,
    /// Where.
    pub dst: usize,
    /// How many elements.
    pub len: usize,
}

/// Who does which part of what.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// The function, one of [`FUNCS`].
    pub func: Func,
    /// This rank.
    pub rank: Rank,
    /// Ranks.
    pub nranks: u32,
    /// Elements, as the caller gave them.
    pub count: usize,
    /// Channels.
    pub nchannels: u32,
    /// This channel.
    pub channel: u32,
    /// Borders fall on multiples of this.
    pub grain_elems: usize,
}

impl Share {
    /// What the channel moves, in order. A stretch may be empty.
    #[inline(always)]
    pub fn stretches(self) -> impl Iterator<Item = Stretch> + Clone {
        let Share { func, rank, nranks, count, .. } = self;
        let part = self.part();
        let times = if func == Func::AllToAll { nranks } else { 1 };
        (0..times).map(move |time| {
            let (len, own) = (part.len(), rank.index() * count + part.start);
            match func {
                Func::AllGather => {
                    Stretch { reads: Whose::One(rank), src: part.start, writes: Whose::All, dst: own, len }
                }
                Func::AllToAll => {
                    let peer = Rank(wrap(rank.0 + 1 + time, nranks));
                    let src = peer.index() * count + part.start;
                    Stretch { reads: Whose::One(rank), src, writes: Whose::One(peer), dst: own, len }
                }
                Func::ReduceScatter => {
                    Stretch { reads: Whose::All, src: own, writes: Whose::One(rank), dst: part.start, len }
                }
                _ => Stretch { reads: Whose::All, src: part.start, writes: Whose::All, dst: part.start, len },
            }
        })
    }

    /// What all channels of the rank move.
    #[inline(always)]
    pub fn whole(self) -> Share {
        Share { nchannels: 1, channel: 0, ..self }
    }

    /// Whether it moves what this rank sends to itself.
    #[inline(always)]
    pub fn is_own(&self, stretch: &Stretch) -> bool {
        stretch.writes == Whose::One(self.rank) && stretch.reads == stretch.writes
    }

    /// Elements of each stretch: all are equally long.
    #[inline(always)]
    pub fn stretch_len(&self) -> usize {
        self.part().len()
    }

    /// The elements of a rank's block that the channel moves; of an all-reduce, those of the buffer.
    #[inline(always)]
    fn part(&self) -> Range<usize> {
        let Share { rank, nranks, count, nchannels, channel, grain_elems, .. } = *self;
        if self.func != Func::AllReduce {
            return channel_part(count, nchannels, channel, grain_elems);
        }
        let own = ChannelCut::new(count, nranks, grain_elems).part(rank.0);
        let part = channel_part(own.len(), nchannels, channel, grain_elems);
        own.start + part.start..own.start + part.end
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;
    use std::{format, vec};

    /// Elements of a rank's input and output.
    fn lengths(func: Func, n: usize, count: usize) -> (usize, usize) {
        match func {
            Func::AllGather => (count, n * count),
            Func::ReduceScatter => (n * count, count),
            Func::AllToAll => (n * count, n * count),
            _ => (count, count),
        }
    }

    fn input(rank: usize, at: usize) -> u64 {
        (rank as u64 + 1) << 32 | at as u64
    }

    /// What rank `rank` receives at `at`.
    fn expected(func: Func, n: usize, count: usize, rank: usize, at: usize) -> u64 {
        let sum = |at: usize| (0..n).map(|from| input(from, at)).sum();
        match func {
            Func::AllGather => input(at / count, at % count),
            Func::AllToAll => input(at / count, rank * count + at % count),
            Func::ReduceScatter => sum(rank * count + at),
            _ => sum(at),
        }
    }

    /// Where a rank's buffers begin in one memory: apart, or the shorter inside the longer one.
    fn begins(func: Func, in_place: bool, rank: usize, n: usize, count: usize) -> (usize, usize) {
        match func {
            _ if !in_place => (0, lengths(func, n, count).0),
            Func::AllGather => (rank * count, 0),
            Func::ReduceScatter => (0, rank * count),
            _ => (0, 0),
        }
    }

    proptest! {
        /// Elements move one at a time, in any order among ranks and channels: the result is right, so no order matters.
        #[test]
        fn every_order_gives_the_result(
            func in prop::sample::select(FUNCS),
            n in 1usize..6,
            count in 0usize..70,
            nchannels in 1u32..5,
            grain_elems in 1usize..9,
            in_place: bool,
            order: u64,
        ) {
            prop_assume!(!(in_place && func == Func::AllToAll));
            let (src_len, dst_len) = lengths(func, n, count);
            let begin = |rank| begins(func, in_place, rank, n, count);
            let mut memory = vec![vec![u64::MAX; src_len + dst_len]; n];
            for (rank, memory) in memory.iter_mut().enumerate() {
                (0..src_len).for_each(|at| memory[begin(rank).0 + at] = input(rank, at));
            }
            let mut moves: Vec<(usize, Stretch, usize)> = Vec::new();
            for (rank, channel) in (0..n).flat_map(|rank| (0..nchannels).map(move |channel| (rank, channel))) {
                let (at, nranks) = (Rank(rank as u32), n as u32);
                let share = Share { func, rank: at, nranks, count, nchannels, channel, grain_elems };
                for stretch in share.stretches() {
                    prop_assert_eq!(stretch.len, share.stretch_len());
                    moves.extend((0..stretch.len).map(|at| (rank, stretch, at)));
                }
            }
            // In the order of random keys.
            let key = |at: &usize| (order ^ *at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mut shuffled: Vec<usize> = (0..moves.len()).collect();
            shuffled.sort_by_key(key);
            for (rank, stretch, at) in shuffled.into_iter().map(|at| moves[at]) {
                let ranks = |whose| match whose {
                    Whose::One(rank) => rank.index()..rank.index() + 1,
                    Whose::All => 0..n,
                };
                if let Whose::One(of) = stretch.reads {
                    prop_assert_eq!(of.index(), rank, "a rank reads its own input, or all");
                }
                let sum = ranks(stretch.reads).map(|of| memory[of][begin(of).0 + stretch.src + at]).sum::<u64>();
                ranks(stretch.writes).for_each(|of| memory[of][begin(of).1 + stretch.dst + at] = sum);
            }
            for (rank, memory) in memory.iter().enumerate() {
                for at in 0..dst_len {
                    let found = memory[begin(rank).1 + at];
                    prop_assert_eq!(found, expected(func, n, count, rank, at), "{}", format!("rank {rank}, {at}"));
                }
            }
        }
    }
}
