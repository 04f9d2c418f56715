//! Where the blocks of a kernel that waits have come to: words that they write while they wait, and the host reads at any time.

use super::Rank;
use crate::sync::{Sys, Word};

/// Blocks of a launch that can say where they stand; of a larger one the first ones do.
pub const KERNEL_STANDS_MAX: usize = 256;

/// Where one block stands. Its threads write it each half a millisecond or so of a wait, and not at all while nothing is waited for: what a
/// reader finds is where the block waits now if `now_ns` has grown since it looked before.
///
/// ```text
/// at:  bits 63 .. 36   35                          34 .. 0
///      peer            1 for a credit, 0 for data  step of the connection
/// ```
#[repr(C)]
#[derive(Default)]
pub struct KernelStand {
    at: Word<u64, Sys>,
    /// The number of the launch, of those that the communicator's rank has made.
    launch: Word<u64, Sys>,
    /// When the wait began, on the GPU's clock.
    since_ns: Word<u64, Sys>,
    /// When it was written.
    now_ns: Word<u64, Sys>,
}

const STEP_BITS: u32 = 35;
const PEER_AT: u32 = STEP_BITS + 1;
const PEER_BITS: u32 = u64::BITS - PEER_AT;

/// What a block waits for. In one word, so that it belongs together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KernelWait {
    /// Who has to act.
    pub peer: Rank,
    /// Whether it has to empty a slot; otherwise it has to fill one.
    pub is_credit: bool,
    /// The step of the connection: so many slots have gone over it before.
    pub step: u64,
}

impl KernelWait {
    /// As one word. Steps and ranks are cut to what it holds: a step after 2^35 begins again at 0, and a rank after 2^28.
    #[inline(always)]
    pub fn to_word(self) -> u64 {
        let peer = (self.peer.0 as u64 & mask(PEER_BITS)) << PEER_AT;
        peer | (self.is_credit as u64) << STEP_BITS | self.step & mask(STEP_BITS)
    }

    /// The inverse.
    #[inline(always)]
    pub fn from_word(word: u64) -> KernelWait {
        KernelWait {
            peer: Rank((word >> PEER_AT) as u32),
            is_credit: word >> STEP_BITS & 1 != 0,
            step: word & mask(STEP_BITS),
        }
    }
}

const fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// A block's words as the host reads them. Where several threads of a block wait for several peers, `wait` is one thread's and the times may
/// be another's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stands {
    /// What it waits for.
    pub wait: KernelWait,
    /// In which launch.
    pub launch: u64,
    /// Since when.
    pub since_ns: u64,
    /// When it said so.
    pub now_ns: u64,
}

impl KernelStand {
    /// Says where a block stands.
    #[inline(always)]
    pub fn write(&self, at: u64, launch: u64, since_ns: u64, now_ns: u64) {
        // Relaxed: a reader that meets two writes finds a wait and a time that were both true within a millisecond.
        self.at.store_relaxed(at);
        self.launch.store_relaxed(launch);
        self.since_ns.store_relaxed(since_ns);
        self.now_ns.store_relaxed(now_ns);
    }

    /// What the block said last, if it has ever waited.
    pub fn read(&self) -> Option<Stands> {
        let now_ns = self.now_ns.load_relaxed();
        let wait = KernelWait::from_word(self.at.load_relaxed());
        let (launch, since_ns) = (self.launch.load_relaxed(), self.since_ns.load_relaxed());
        (now_ns != 0).then_some(Stands { wait, launch, since_ns, now_ns })
    }
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    assert!(size_of::<KernelStand>() == 32 && align_of::<KernelStand>() == 8);
    assert!(offset_of!(KernelStand, launch) == 8 && offset_of!(KernelStand, now_ns) == 24);
};

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore = "proptest looks for its folder, which miri hides")]
        fn a_stand_is_read_as_it_was_written(
            peer in 0u32..1 << PEER_BITS,
            is_credit: bool,
            step in 0u64..1 << STEP_BITS,
            now_ns in 1u64..,
        ) {
            let stand = KernelStand::default();
            prop_assert_eq!(stand.read(), None);
            let wait = KernelWait { peer: Rank(peer), is_credit, step };
            stand.write(wait.to_word(), 7, now_ns / 2, now_ns);
            prop_assert_eq!(stand.read(), Some(Stands { wait, launch: 7, since_ns: now_ns / 2, now_ns }));
        }
    }

    #[test]
    fn a_step_too_large_harms_no_neighbour() {
        let wait = KernelWait { peer: Rank(3), is_credit: false, step: (5 << STEP_BITS) + 9 };
        assert_eq!(KernelWait::from_word(wait.to_word()), KernelWait { step: 9, ..wait });
    }
}
