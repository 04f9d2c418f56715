//! How much of a long operation its kernels spend waiting, and for whom. Kernels write where they wait; this reads it many times.

use crate::launch::{Idle, Slept};
use oxccl_shared::abi::{KERNEL_STANDS_MAX, Rank, Stands};
use std::time::Duration;

/// Less says nothing of an operation.
const WINDOW_MIN: Duration = Duration::from_millis(100);

/// The looks at one operation. None of its memory is there before an operation lasts.
#[derive(Debug, Default)]
pub(super) struct Samples {
    /// Calls that were done before it; none before the first look.
    call: Option<u64>,
    time: Duration,
    /// By rank: how long blocks have waited for it, all together.
    waited: Vec<Duration>,
    blocks: Vec<Block>,
    /// The wait that was written last.
    last: Option<Stands>,
}

#[derive(Clone, Copy, Default, Debug)]
struct Block {
    /// What it wrote last, on the GPU's clock.
    now_ns: u64,
    /// It has waited in this operation.
    has_waited: bool,
    /// How much was slept since it wrote last. Kernels of ranks that share a GPU take turns, and do not write in every look.
    slept: Duration,
}

impl Samples {
    /// One look at the operation behind `call` calls that are done. Returns whether a kernel of a later one waits: a program that enqueues
    /// without end has no moment at which all is done.
    pub fn look(&mut self, call: u64, slept: Slept, written: impl Iterator<Item = Option<Stands>>) -> bool {
        self.blocks.resize(KERNEL_STANDS_MAX, Block::default());
        let is_first = self.call.replace(call) != Some(call);
        if is_first {
            self.begin();
        } else {
            self.time += slept.really;
        }
        let counted = match is_first {
            true => Duration::ZERO,
            // A process that was held up keeps its own kernels waiting: its proxy's threads did not run either.
            false if slept.was_held_up() => slept.asked,
            false => slept.really,
        };
        for (block, stands) in self.blocks.iter_mut().zip(written) {
            block.slept += counted;
            let Some(stands) = stands.filter(|stands| stands.now_ns != block.now_ns) else { continue };
            let from_ns = stands.since_ns.max(block.now_ns);
            let slept = std::mem::take(&mut block.slept);
            (block.now_ns, block.has_waited) = (stands.now_ns, !is_first);
            if !is_first {
                if self.last.replace(stands).is_some_and(|last| last.launch != stands.launch) {
                    self.call = None;
                    return true;
                }
                let waited = Duration::from_nanos(stands.now_ns.saturating_sub(from_ns)).min(slept);
                add(&mut self.waited, stands.wait.peer, waited);
            }
        }
        false
    }

    /// The next look is a first one, of the operation under way too.
    pub fn begin_anew(&mut self) {
        self.call = None;
    }

    fn begin(&mut self) {
        (self.time, self.last) = (Duration::ZERO, None);
        self.waited.clear();
        for block in &mut self.blocks {
            *block = Block { now_ns: block.now_ns, ..Block::default() };
        }
    }

    /// How the operation behind `call` calls has divided its time, as the mean of the blocks that have waited in it. None before enough was
    /// seen of it.
    pub fn idle(&self, call: u64) -> Option<Idle> {
        if self.call != Some(call) || self.time < WINDOW_MIN {
            return None;
        }
        let blocks = self.blocks.iter().filter(|block| block.has_waited).count().max(1) as u128;
        let percent =
            |waited: Duration| (waited.as_nanos() * 100 / (self.time.as_nanos() * blocks)).min(100) as u8;
        let longest = (0..).map(Rank).zip(&self.waited).max_by_key(|(_, waited)| **waited);
        let (peer, waited) = longest.map_or((Rank(0), Duration::ZERO), |(peer, waited)| (peer, *waited));
        Some(Idle { peer, for_peer: percent(waited), for_all: percent(self.waited.iter().sum()) })
    }

    /// Where a kernel of it waited last.
    pub fn last(&self, call: u64) -> Option<Stands> {
        self.last.filter(|_| self.call == Some(call))
    }
}

fn add(waited: &mut Vec<Duration>, peer: Rank, time: Duration) {
    let len = waited.len().max(peer.index() + 1);
    waited.resize(len, Duration::ZERO);
    waited[peer.index()] += time;
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_shared::abi::KernelWait;

    const MS: Duration = Duration::from_millis(1);
    const ASLEEP: Slept = Slept { asked: Duration::from_millis(10), really: Duration::from_millis(10) };

    fn wrote(peer: u32, since_ms: u64, now_ms: u64) -> Option<Stands> {
        let wait = KernelWait { peer: Rank(peer), is_credit: false, step: 5 };
        let [since_ns, now_ns] = [since_ms, now_ms].map(|ms| ms * 1_000_000);
        Some(Stands { wait, launch: 3, since_ns, now_ns })
    }

    /// Looks at call 7 each 10 ms, for 200 ms, in which two blocks wait for rank 1 as long as this says, after some milliseconds of work.
    fn looked(slept: Slept, waited_ms: u64) -> Samples {
        let mut samples = Samples::default();
        samples.look(7, slept, [wrote(1, 400, 900), wrote(1, 500, 900)].into_iter());
        for at in 0..20 {
            let end = 1000 + 10 * at;
            let block = (waited_ms > 0).then(|| wrote(1, end - waited_ms, end)).flatten();
            samples.look(7, slept, [block, block].into_iter());
        }
        samples
    }

    #[test]
    fn time_is_divided_by_the_blocks_that_wait() {
        let idle = |waited_ms| looked(ASLEEP, waited_ms).idle(7);
        assert_eq!(idle(9), Some(Idle { peer: Rank(1), for_peer: 90, for_all: 90 }));
        assert_eq!(
            idle(0),
            Some(Idle { peer: Rank(0), for_peer: 0, for_all: 0 }),
            "what waited before it is over"
        );
        assert_eq!(idle(50).map(|idle| idle.for_peer), Some(100), "what was counted is not counted again");
        assert_eq!(looked(ASLEEP, 9).idle(8), None, "another call");
        let last = |waited_ms| looked(ASLEEP, waited_ms).last(7).map(|stands| stands.launch);
        assert_eq!((last(9), last(0)), (Some(3), None));
    }

    #[test]
    fn a_process_that_is_held_up_does_not_wait_for_others() {
        let held_up = Slept { really: MS * 100, ..ASLEEP };
        assert_eq!(looked(held_up, 100).idle(7).map(|idle| idle.for_all), Some(10));
        let a_little = Slept { really: MS * 30, ..ASLEEP };
        assert_eq!(looked(a_little, 30).idle(7).map(|idle| idle.for_all), Some(36), "as much as was written");
    }

    #[test]
    fn a_block_that_has_the_gpu_now_and_then_waits_all_the_while() {
        let mut samples = looked(ASLEEP, 9);
        samples.look(8, ASLEEP, [wrote(1, 1200, 1210)].into_iter());
        for at in 0..30 {
            let turn = 1210 + 30 * (1 + at / 3);
            samples.look(8, ASLEEP, [wrote(1, 1200, if at % 3 == 2 { turn } else { turn - 30 })].into_iter());
        }
        assert_eq!(samples.idle(8).map(|idle| idle.for_peer), Some(100));
    }

    #[test]
    fn a_later_launch_is_another_operation() {
        let mut samples = looked(ASLEEP, 9);
        let later = |now_ms| wrote(1, 1200, now_ms).map(|stands| Stands { launch: 4, ..stands });
        assert!(samples.look(7, ASLEEP, [later(1205)].into_iter()));
        assert_eq!((samples.idle(7), samples.last(7)), (None, None));
        for at in 0..20 {
            assert!(!samples.look(7, ASLEEP, [later(1210 + 10 * at)].into_iter()));
        }
        assert_eq!(samples.last(7).map(|stands| stands.launch), Some(4));
        assert_eq!(samples.idle(7).map(|idle| idle.for_peer), Some(100));
    }

    #[test]
    fn what_was_waited_before_counting_began_anew_says_nothing() {
        let mut samples = looked(ASLEEP, 9);
        samples.begin_anew();
        assert_eq!(samples.idle(7), None);
        for at in 0..20 {
            samples.look(7, ASLEEP, [wrote(1, 300, 1200 + at)].into_iter());
        }
        assert_eq!(samples.idle(7).map(|idle| idle.for_peer), Some(10), "1 of 10 ms, from the first look on");
    }

    #[test]
    fn each_call_begins_anew_and_a_moment_says_nothing() {
        let mut samples = looked(ASLEEP, 9);
        samples.look(8, ASLEEP, [wrote(2, 1300, 1310)].into_iter());
        assert_eq!(samples.idle(8), None);
        for at in 1..=5 {
            samples.look(8, ASLEEP, [wrote(2, 1300, 1310 + 10 * at)].into_iter());
        }
        assert_eq!(samples.idle(8), None, "50 ms");
        for at in 6..=10 {
            samples.look(8, ASLEEP, [wrote(2, 1300, 1310 + 10 * at), wrote(3, 1300, 1300 + at)].into_iter());
        }
        let idle = samples.idle(8).unwrap();
        assert_eq!((idle.peer, idle.for_peer), (Rank(2), 50), "of two blocks");
    }
}
