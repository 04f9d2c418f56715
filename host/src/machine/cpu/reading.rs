//! Long reductions of two ranks that read each other's memory.

use super::state::{Cpu, CpuParts};
use crate::launch::{LendingBlock, RawCall};
use crate::plan::Plan;
use oxccl_device::coll::reading::{self, PairReduction};
use oxccl_device::gpu::Stop;
use oxccl_shared::abi::Rank;
use oxccl_shared::reduce;

impl Cpu {
    /// Whether a call is carried out so, if its buffers allow it. Both ranks say the same.
    #[inline]
    pub(super) fn is_read_pair(&self, raw: &RawCall, plan: &Plan) -> bool {
        self.parts.facts.is_reduced_by_reading(&raw.call)
            // Slots let outputs that no cache holds bypass them.
            && !plan.stream
            && raw.forced.is_none()
            && self.may_pass_the_walk(raw)
    }

    /// Carries it out, or returns that it cannot be: both ranks return the same.
    ///
    /// # Safety
    /// 1. As [`Machine::collective`](crate::launch::Machine::collective)'s second.
    /// 2. [`Self::is_read_pair`].
    pub(super) unsafe fn run_read_pair(&mut self, raw: &RawCall, tag: u32) -> Result<bool, Stop> {
        let CpuParts { rank, send_to, recv_from, mesh, wait, memory, .. } = &self.parts;
        let (call, peer) = (&raw.call, Rank(1 - rank.0));
        let work = PairReduction {
            func: call.func,
            src: raw.send,
            dst: raw.recv,
            len_bytes: call.bytes() as usize,
            rank: *rank,
            tag,
            send: send_to[peer.index()],
            recv: recv_from[peer.index()],
        };
        let operator = reduce::resolve(call.op, call.dtype, 2, 0);
        let block = LendingBlock::new(wait, memory, call.dtype, &operator);
        // SAFETY: obligations 1 and 2; the indices are those of the mesh.
        unsafe { reading::run(&block, mesh.view().0, &work) }
    }
}
