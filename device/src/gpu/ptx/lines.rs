//! Lines of LL128: eight threads of a warp move one with one instruction.

use super::Ptx;
use super::barrier::{any_of_warp, converge_warp};
use crate::gpu::threads::GpuBlock;
use crate::gpu::{Block, Lines};
use oxccl_shared::proto::ll128::{LINE_WORDS, Ll128Line};
use oxccl_shared::reduce::Element;

impl<T: Element, const POSTER: bool, const SHIFTS: bool> Lines for GpuBlock<Ptx, T, POSTER, SHIFTS> {
    const LINE_THREADS: usize = 8;
    const TEAM_THREADS: usize = 32;

    #[inline(always)]
    fn store_line(&self, line: &Ll128Line, words: &[u64; LINE_WORDS], takes_part: bool) {
        let pair = line.pair(self.thread() % Self::LINE_THREADS);
        // Eight stores of one instruction are one line on the link.
        converge_warp();
        if takes_part {
            pair.store_relaxed([words[0], words[1]]);
        }
    }

    #[inline(always)]
    fn peek_line(
        &self,
        line: &Ll128Line,
        words: &mut [u64; LINE_WORDS],
        flag: u64,
        takes_part: bool,
    ) -> bool {
        let index = self.thread() % Self::LINE_THREADS;
        let pair = line.pair(index);
        converge_warp();
        if takes_part {
            [words[0], words[1]] = pair.load_relaxed();
        }
        !takes_part || index != Self::LINE_THREADS - 1 || words[1] == flag
    }

    #[inline(always)]
    fn any_of_team(&self, mine: bool) -> bool {
        any_of_warp(mine)
    }
}
