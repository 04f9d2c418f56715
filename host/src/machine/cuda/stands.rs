//! What kernels that wait have written of where they stand, from one look to the next.

use oxccl_shared::abi::{KERNEL_STANDS_MAX, Rank, Stands};
use std::time::{Duration, Instant};

/// A block that has written nothing for so long, and not since the look before, waits no more. Kernels of ranks that share a GPU take turns.
const SILENT_MAX: Duration = Duration::from_millis(100);

/// What was seen so far.
#[derive(Debug)]
pub(super) struct Looks {
    blocks: Box<[Block]>,
    /// And the ticks of the communicator's clock.
    looked_at: Option<(Instant, u64)>,
}

#[derive(Clone, Copy, Default, Debug)]
struct Block {
    /// What it wrote last, on the GPU's clock.
    now_ns: u64,
    /// When that was seen first.
    seen_at: Option<Instant>,
}

/// The blocks that wait, as one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Found {
    /// The block that has waited longest.
    pub block: u32,
    /// Where it stands.
    pub stands: Stands,
    /// For how long none of them has gone on.
    pub waited: Duration,
    /// How much of the time since the look before the longest wait has taken, in ticks.
    pub ticks: u64,
}

impl Default for Looks {
    fn default() -> Looks {
        Looks { blocks: vec![Block::default(); KERNEL_STANDS_MAX].into(), looked_at: None }
    }
}

impl Looks {
    /// What is found now, of what each block has written last.
    pub fn look(
        &mut self,
        written: impl Iterator<Item = Option<Stands>>,
        (at, ticks): (Instant, u64),
    ) -> Option<Found> {
        let before = self.looked_at.replace((at, ticks));
        let (mut longest, mut shortest): (Option<(u32, Stands, Duration)>, _) = (None, Duration::MAX);
        for ((index, block), stands) in (0..).zip(&mut self.blocks).zip(written) {
            let Some(stands) = stands.filter(|stands| block.is_waiting(stands, at)) else { continue };
            let waited = Duration::from_nanos(stands.now_ns.saturating_sub(stands.since_ns));
            shortest = shortest.min(waited);
            if longest.is_none_or(|(.., longest)| waited > longest) {
                longest = Some((index, stands, waited));
            }
        }
        let (block, stands, longest) = longest?;
        let counted = before.map_or(0, |(before, ticks_before)| {
            let (time, ticks) = ((at - before).as_nanos(), u128::from(ticks.saturating_sub(ticks_before)));
            ticks * longest.as_nanos().min(time) / time.max(1)
        });
        Some(Found { block, stands, waited: shortest, ticks: counted as u64 })
    }
}

impl Block {
    /// Notes what the block wrote last. Whether it waits.
    fn is_waiting(&mut self, stands: &Stands, at: Instant) -> bool {
        if stands.now_ns != self.now_ns {
            *self = Block { now_ns: stands.now_ns, seen_at: Some(at) };
            return true;
        }
        self.seen_at.is_some_and(|seen| at - seen < SILENT_MAX)
    }
}

impl Found {
    /// For whom.
    pub fn peer(&self) -> Rank {
        self.stands.wait.peer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_shared::abi::KernelWait;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(peer: u32, since: u64, now: u64) -> Option<Stands> {
        let wait = KernelWait { peer: Rank(peer), is_credit: false, step: 5 };
        let [since_ns, now_ns] = [since, now].map(|seconds| seconds * 1_000_000_000);
        Some(Stands { wait, launch: 3, since_ns, now_ns })
    }

    #[test]
    fn the_longest_wait_says_for_whom_and_the_shortest_how_long() {
        let (mut looks, start) = (Looks::default(), Instant::now());
        assert_eq!(looks.look([None, None].into_iter(), (start, 500)), None);
        let found =
            looks.look([at(1, 9, 12), None, at(2, 4, 12)].into_iter(), (start + SECOND, 700)).unwrap();
        assert_eq!((found.block, found.peer(), found.waited), (2, Rank(2), SECOND * 3));
        assert_eq!(found.ticks, 200, "the wait is longer than the time between the looks");
        let later = [at(1, 13, 14), None, at(2, 13, 14)].into_iter();
        assert_eq!(looks.look(later, (start + SECOND * 3, 1100)).unwrap().ticks, 200, "it takes half of it");
    }

    #[test]
    fn a_block_that_writes_no_more_waits_no_more() {
        let (mut looks, start) = (Looks::default(), Instant::now());
        let words = || [at(1, 9, 12), at(2, 4, 12)].into_iter();
        assert_eq!(looks.look(words(), (start, 0)).unwrap().peer(), Rank(2));
        let shortly = start + SILENT_MAX / 2;
        assert!(looks.look(words(), (shortly, 0)).is_some(), "it may have been away for a moment");
        assert_eq!(looks.look(words(), (start + SECOND, 0)), None);
        let one_goes_on = [at(1, 9, 13), at(2, 4, 12)].into_iter();
        let found = looks.look(one_goes_on, (start + SECOND * 2, 0)).unwrap();
        assert_eq!((found.peer(), found.waited), (Rank(1), SECOND * 4));
    }
}
