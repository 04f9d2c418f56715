//! Launches symmetric kernels: each rank's buffers are mapped by all.

use super::driver::StreamRef;
use super::kernels::Forms;
use super::state::Cuda;
use super::tiles::Tiles;
use crate::launch::{RawCall, RunError};
use crate::machine::{ConnKind, collective_args};
use crate::plan::{CallPlan, Placement, SymmetricPlan};
use oxccl_shared::abi::{KernelColl, KernelLaunch, Protocol, RankBuffers, SymmetricArgs};
use oxccl_shared::algo::symmetric::RANKS_MAX;
use std::ffi::c_void;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

impl Cuda {
    /// Whether a call goes by a symmetric kernel if its buffers are placed for that: the same on every rank.
    pub(super) fn may_be_symmetric(&self, raw: &RawCall) -> bool {
        self.copies.is_some()
            && self.parts.custom.is_empty()
            && self.parts.facts.takes_symmetric(&raw.call, raw.forced)
    }

    /// The plan of a call by a symmetric kernel, if its buffers lie as they must.
    pub(super) fn symmetric_plan(&self, raw: &RawCall) -> Option<CallPlan> {
        let windows = self.copies.as_ref()?.windows();
        let addresses = [raw.send.addr() as u64, raw.recv.addr() as u64];
        let place = |address, len_bytes| windows.place_aligned(self.parts.rank, address, len_bytes);
        self.parts.facts.plan_symmetric(&raw.call, addresses, place).map(CallPlan::Symmetric)
    }

    /// Loads the symmetric kernels that are there as machine code; calls load the others.
    pub(super) fn load_symmetric(&self) {
        self.parts.kernels.load_all(&self.parts.facts.symmetric_kernels(), Forms::MachineCode);
    }

    /// # Safety
    /// 1. As [`Machine::symmetric`](crate::launch::Machine::symmetric).
    pub(super) unsafe fn launch_symmetric(
        &mut self,
        raw: &RawCall,
        plan: &SymmetricPlan,
        tag: u32,
        stream: StreamRef<'_>,
    ) -> Result<(), RunError> {
        let operator = self.parts.operator(&raw.call, raw.scalar_bits);
        let coll = collective_args(raw, &plan.as_collective(), &operator, tag);
        let lists = self.parts.tables.of(ConnKind::Mesh, Protocol::LL);
        // Where bulk copies do not reach the plan has no tiles, and the user's do not count.
        let wanted = self.parts.tile_bytes.filter(|_| plan.is_aligned);
        let tiles = wanted.map(|wanted| Tiles::on(&self.parts.device, wanted));
        let tiles = tiles.filter(|tiles| tiles.suffice(self.parts.facts.nranks, plan.dtype));
        let tiles = tiles.unwrap_or_else(|| Tiles::on(&self.parts.device, plan.tile_bytes));
        let launch = KernelLaunch { tile_bytes: tiles.tile_bytes, ..self.parts.launch(lists, plan.channels) };
        // With tiles, which the user may want in their place, the channels' blocks copy all.
        let own_blocks = if tiles.tile_bytes > 0 { 0 } else { plan.own_blocks };
        let ranks = self.buffers(&coll, plan);
        let mut args = SymmetricArgs { launch, coll, ranks, own_blocks };
        let clusters = self.parts.clusters;
        let function = self.function(plan.kernel(), plan.threads)?;
        let mut params = [(&raw mut args).cast::<c_void>()];
        let shape = clusters.shape(function.sm(), plan.channels + own_blocks, plan.threads, tiles);
        // SAFETY: the entry takes one `SymmetricArgs`; this rank's buffers are valid by obligation 1, the other ranks' while those are in
        // the same call, which the kernel's meetings see to; lists and monitor as for every kernel.
        let launched = unsafe { function.launch(shape, stream, &mut params) };
        launched.map_err(|error| error.in_kernel(function.name()).into())
    }

    /// By rank, where this GPU reaches the buffers: this rank's as they were given.
    fn buffers(&self, coll: &KernelColl, plan: &SymmetricPlan) -> [RankBuffers; RANKS_MAX] {
        let mut ranks = [RankBuffers::NONE; RANKS_MAX];
        let windows = self.copies.as_ref().map(|copies| copies.windows());
        let address = |placement: Option<Placement>, rank: usize| {
            let Placement { window, offset } = placement?;
            Some((windows?.addresses(window)?.get(rank)? + offset) as usize)
        };
        for (rank, buffers) in ranks.iter_mut().enumerate().take(self.parts.facts.nranks as usize) {
            let [send, recv] = plan.touched.map(|placement| address(placement, rank).unwrap_or_default());
            *buffers =
                RankBuffers { src: with_exposed_provenance(send), dst: with_exposed_provenance_mut(recv) };
        }
        ranks[self.parts.rank.index()] = RankBuffers { src: coll.src, dst: coll.dst };
        ranks
    }
}
