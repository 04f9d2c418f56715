//! Random shapes of a collective call.

use std::ops::Range;

use oxccl_shared::abi::Protocol;
use oxccl_shared::algo::chunk::{self, Loops, Slices};
use proptest::prelude::*;

/// One call: sizes in elements.
#[derive(Clone, Debug)]
pub struct Call {
    pub n: u32,
    pub count: usize,
    pub nchannels: u32,
    pub grain: usize,
    pub chunk: usize,
    pub slice: usize,
    /// Slots of a connection.
    pub slots: usize,
    pub seed: u64,
}

impl Call {
    pub fn parts(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        (0..self.nchannels)
            .map(|channel| chunk::channel_part(self.count, self.nchannels, channel, self.grain))
    }

    pub fn loops(&self, part: Range<usize>, nblocks: u32) -> Loops {
        Loops::new(part, nblocks, self.chunk, self.grain)
    }

    pub fn slices(&self, block: Range<usize>) -> Slices {
        chunk::slices(block, self.slice)
    }
}

/// Nothing, one, primes, anything.
fn counts() -> impl Strategy<Value = usize> {
    prop_oneof![
        1 => Just(0),
        1 => Just(1),
        3 => prop::sample::select(vec![2, 3, 7, 17, 31, 127, 509, 1021, 1999, 2503]),
        5 => 0usize..2500,
    ]
}

/// Calls of `n` ranks (of `ranks`) over connections with as many slots as some protocol has, whose blocks have at most `slices_max` slices
/// with so many slots.
pub fn calls(ranks: Range<u32>, slices_max: fn(usize) -> usize) -> impl Strategy<Value = Call> {
    let slots = prop::sample::select(Protocol::ALL).prop_map(Protocol::slots);
    let slices = slots.prop_flat_map(move |slots| (Just(slots), 1..=slices_max(slots)));
    let shape = (ranks, counts(), 1u32..5, 1usize..17, 1usize..33, slices, any::<u64>());
    shape.prop_map(|(n, count, nchannels, grain, grains, (slots, slices_per_chunk), seed)| {
        let chunk = grain * grains;
        Call { n, count, nchannels, grain, chunk, slice: chunk.div_ceil(slices_per_chunk), slots, seed }
    })
}
