//! Reduction in rank order, so that every rank of a communicator gets the same bits.

use super::peers::for_peers;
use crate::gpu::Fold;

/// A thread's words of all ranks: those of peers before us, ours, those of peers after us.
pub(super) struct InRankOrder<'a, const PEERS: usize, const WORDS: usize> {
    /// Ours, if we have any.
    pub own: Option<[u64; WORDS]>,
    pub arrived: &'a [[u64; WORDS]; PEERS],
    /// Number of peers, and of those with lower ranks.
    pub npeers: usize,
    pub before: usize,
    /// Words in use.
    pub count: usize,
}

impl<const PEERS: usize, const WORDS: usize> Fold for InRankOrder<'_, PEERS, WORDS> {
    type Output = [u64; WORDS];

    #[allow(clippy::needless_range_loop, reason = "the compiler unrolls these, not the iterators")]
    #[inline(always)]
    fn run(self, combine: impl Fn(&mut [u64], &[u64])) -> [u64; WORDS] {
        let (count, npeers) = (self.count, self.npeers);
        // Our own word waits for its position; the word at that position then waits for the next.
        let (mut acc, mut waits) = ([0; WORDS], self.own.unwrap_or([0; WORDS]));
        for_peers!(npeers, i => {
            let mut next = self.arrived[i];
            if self.own.is_some() && i >= self.before {
                for word in 0..count {
                    (next[word], waits[word]) = (waits[word], next[word]);
                }
            }
            if i == 0 {
                acc = next;
            } else {
                combine(&mut acc[..count], &next[..count]);
            }
        });
        if npeers == 0 {
            return waits;
        }
        if self.own.is_some() {
            combine(&mut acc[..count], &waits[..count]);
        }
        acc
    }
}
