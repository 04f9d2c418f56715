//! Collectives of two ranks of a host that are one brief message each way at most, without what only other calls need.

use super::state::{Cpu, CpuParts};
use crate::launch::RawCall;
use crate::plan::Plan;
use oxccl_device::coll::pair::{self, PairWork};
use oxccl_device::gpu::Stop;
use oxccl_device::gpu::cpu::CpuBlock;
use oxccl_device::prims::brief::is_brief;
use oxccl_shared::abi::{Algorithm, Protocol, RedOp};
use oxccl_shared::reduce;

impl Cpu {
    /// Whether a call is carried out so. Both ranks say the same, though the messages are those of the plan's algorithm anyway.
    #[inline]
    pub(super) fn is_brief_pair(&self, raw: &RawCall, plan: &Plan) -> bool {
        self.parts.facts.nranks == 2
            && is_brief(raw.call.bytes() as usize)
            && plan.protocol == Protocol::Simple
            && plan.channels == 1
            && plan.count <= plan.slice_elems
            && plan.func == raw.call.func
            && pair::is_one_hop(plan.algorithm, plan.func)
            && self.may_pass_the_walk(raw)
    }

    /// Whether a call of two ranks need not go by the general walk over actions and connections: its operator changes neither inputs nor
    /// results, as averages and pre-multiplied sums do, no custom algorithm is registered, and no network is driven beside it.
    #[inline]
    pub(super) fn may_pass_the_walk(&self, raw: &RawCall) -> bool {
        let CpuParts { custom, wait, .. } = &self.parts;
        !matches!(raw.call.op, RedOp::Avg | RedOp::PreMulSum) && custom.is_empty() && wait.drives().is_empty()
    }

    /// Carries it out.
    ///
    /// # Safety
    /// 1. As [`Machine::collective`](crate::launch::Machine::collective)'s second.
    /// 2. [`Self::is_brief_pair`].
    #[inline]
    pub(super) unsafe fn run_brief_pair(&mut self, raw: &RawCall, plan: &Plan, tag: u32) -> Result<(), Stop> {
        let CpuParts { rank, channels, mesh, wait, .. } = &self.parts;
        let call = &raw.call;
        let by_rank = plan.algorithm == Algorithm::OneShot;
        let (send, recv) = match by_rank {
            true => (&mesh.send[mesh.mesh_send[0] as usize], &mesh.recv[mesh.mesh_recv[0] as usize]),
            false => {
                let ring = &channels[0];
                (&ring.send[ring.ring_send as usize], &ring.recv[ring.ring_recv as usize])
            }
        };
        let work = PairWork {
            func: call.func,
            src: raw.send,
            dst: raw.recv,
            len_bytes: call.bytes() as usize,
            rank: *rank,
            root: call.root,
            tag,
            by_rank,
        };
        let operator = reduce::resolve(call.op, call.dtype, 2, 0);
        let block = CpuBlock::new(wait, call.dtype, &operator);
        // SAFETY: obligation 1; a block of the caller's thread, and obligation 2.
        unsafe { pair::run(&block, (send, recv), &work) }
    }
}
