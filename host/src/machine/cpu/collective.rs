//! Collectives as kernels on the caller's thread.

use super::outputs::bypasses_caches;
use super::state::{Cpu, CpuParts};
use crate::launch::{Collective, CustomAlgorithm, CustomCut, LendingBlock, RawCall};
use crate::plan::{Call, Plan};
use oxccl_device::coll::{self, CollWork};
use oxccl_device::custom::Mesh;
use oxccl_device::gpu::Stop;
use oxccl_shared::abi::{Algorithm, RedOp};
use oxccl_shared::algo::registry::spec_of;
use oxccl_shared::reduce::{self, Resolved};

impl Cpu {
    /// # Safety
    /// 1. As [`Machine::collective`](crate::launch::Machine::collective)'s second.
    #[inline]
    pub(super) unsafe fn run_read_or_collective(
        &mut self,
        raw: &RawCall,
        plan: &Plan,
        tag: u32,
    ) -> Result<(), Stop> {
        // SAFETY: (1) obligation 1; (2) as asked.
        if self.is_read_pair(raw, plan) && unsafe { self.run_read_pair(raw, tag)? } {
            return Ok(());
        }
        // SAFETY: obligation 1.
        unsafe { self.run_collective(raw, plan, tag) }
    }

    /// # Safety
    /// 1. As [`Machine::collective`](crate::launch::Machine::collective)'s second.
    #[inline]
    pub(super) unsafe fn run_collective(&mut self, raw: &RawCall, plan: &Plan, tag: u32) -> Result<(), Stop> {
        let facts = &self.parts.facts;
        let plan_of = |custom: &CustomAlgorithm| custom.plan(&raw.call, facts.nranks, &facts.forced, true);
        let customs = if raw.forced.is_some() { &[] } else { &self.parts.custom[..] };
        let custom = customs.iter().position(|custom| plan_of(custom).is_some());
        if let Some(index) = custom {
            // SAFETY: obligation 1.
            return unsafe { self.run_custom(index, raw, tag) };
        }
        let mut stand_in = [0u8; 2];
        let raw = &standing_for(raw, plan, &mut stand_in);
        let Call { func, dtype, op, root, count } = raw.call;
        let nranks = self.parts.facts.nranks;
        let op = if func.is_reduction() { op } else { RedOp::Sum };
        let operator = reduce::resolve(op, dtype, nranks, raw.scalar_bits);
        let mut work = CollWork {
            func,
            algorithm: plan.algorithm,
            protocol: plan.protocol,
            dtype,
            src: raw.send,
            dst: raw.recv,
            count: count as usize,
            part: 0..0,
            chunk_elems: plan.chunk_elems as usize,
            slice_elems: plan.slice_elems as usize,
            grain_elems: plan.grain_elems as usize,
            rank: self.parts.rank,
            nranks,
            root,
            host_ranks: plan.host_ranks,
            tag,
            stream: bypasses_caches(plan, raw, self.parts.rank),
            is_direct: false,
        };
        let drives = self.parts.wait.drives();
        let collective = Collective { call: &raw.call, plan, operator: &operator, tag };
        drives.each(|drive| drive.begin_collective(&collective));
        let over_mesh = spec_of(plan.algorithm).connections.is_of_pairs();
        for channel in 0..plan.channels {
            work.part = plan.part(channel);
            let channel = (!over_mesh).then_some(channel);
            // SAFETY: obligation 1.
            unsafe { self.run_channel(channel, &work, &operator)? };
            self.flush(channel)?;
        }
        self.parts.wait.drives().each(|drive| drive.end());
        Ok(())
    }

    /// Runs a call by the algorithm of this index, which offers it.
    ///
    /// # Safety
    /// 1. As [`Machine::collective`](crate::launch::Machine::collective)'s second.
    #[cold]
    unsafe fn run_custom(&mut self, index: usize, raw: &RawCall, tag: u32) -> Result<(), Stop> {
        let CpuParts { rank, facts, custom, mesh, send_to, recv_from, wait, memory, .. } = &self.parts;
        let Call { func, dtype, op, root, count } = raw.call;
        let Some(protocol) = custom[index].plan(&raw.call, facts.nranks, &facts.forced, true) else {
            return Ok(());
        };
        let cut = CustomCut::new(&raw.call, protocol, &facts.mesh_layout, false);
        let operator = reduce::resolve(
            if func.is_reduction() { op } else { RedOp::Sum },
            dtype,
            facts.nranks,
            raw.scalar_bits,
        );
        let work = CollWork {
            func,
            algorithm: Algorithm::OneShot,
            protocol,
            dtype,
            src: raw.send,
            dst: raw.recv,
            count: count as usize,
            part: 0..count as usize,
            chunk_elems: cut.slice_elems,
            slice_elems: cut.slice_elems,
            grain_elems: cut.grain_elems,
            rank: *rank,
            nranks: facts.nranks,
            root,
            host_ranks: facts.hosts.ranks_each(),
            tag,
            stream: false,
            is_direct: false,
        };
        let block = LendingBlock::new(wait, memory, dtype, &operator);
        let ways = Mesh::by_rank(*rank, send_to, recv_from);
        // SAFETY: obligation 1; the tables name connections of the mesh.
        unsafe { custom[index].run(&block, mesh.view().0, &ways, &work) }
    }

    /// # Safety
    /// 1. As [`Machine::collective`](crate::launch::Machine::collective)'s second, for the call that `work` came from.
    #[inline]
    unsafe fn run_channel(
        &mut self,
        channel: Option<u32>,
        work: &CollWork,
        operator: &Resolved,
    ) -> Result<(), Stop> {
        let CpuParts { channels, mesh, wait, memory, .. } = &mut self.parts;
        let block = LendingBlock::new(wait, memory, work.dtype, operator);
        let channel = channel.map_or(mesh, |channel| &mut channels[channel as usize]);
        let (conns, ends) = channel.view();
        // SAFETY: obligation 1, and `ends` was built for `conns`.
        unsafe { coll::run(&block, conns, &ends, work) }
    }
}

/// The call, or the all-reduce of one byte that is run instead of a barrier.
fn standing_for(raw: &RawCall, plan: &Plan, [send, recv]: &mut [u8; 2]) -> RawCall {
    let is_replaced = plan.func != raw.call.func;
    if is_replaced { RawCall { call: Call::ONE_BYTE, send, recv, ..*raw } } else { *raw }
}
