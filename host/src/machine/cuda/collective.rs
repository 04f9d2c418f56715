//! Collectives as kernels, the library's and those from outside it.

use super::custom::{CustomFacts, CustomLaunch};
use super::driver::{Shape, StreamRef};
use super::state::Cuda;
use crate::launch::{RawCall, RunError};
use crate::machine::{ConnKind, collective_args};
use crate::plan::{Call, CallPlan, Plan};
use oxccl_shared::abi::{CollArgs, KERNEL_DIRECT, KernelColl, KernelLaunch};
use oxccl_shared::algo::registry::spec_of;
use std::ffi::c_void;

/// The first generation with programmatic dependent launch.
const EARLY_SM_MIN: u32 = 90;

impl Cuda {
    /// The plan of a rank that is alone: its own input is its result, unless the operator changes it.
    pub(super) fn plan_alone(&self, call: &Call) -> CallPlan {
        // Whether there is a multiplier does not depend on which.
        let operator = self.parts.operator(call, 0);
        if !operator.pre && !operator.post {
            return CallPlan::Local;
        }
        CallPlan::Collective(self.parts.facts.plan_alone(call))
    }

    /// # Safety
    /// 1. As [`Machine::collective`](crate::launch::Machine::collective)'s second.
    pub(super) unsafe fn launch_collective(
        &mut self,
        raw: &RawCall,
        plan: &Plan,
        tag: u32,
        stream: StreamRef<'_>,
    ) -> Result<(), RunError> {
        // SAFETY: obligation 1.
        if let Some(launched) = unsafe { self.launch_custom(raw, tag, stream) } {
            return launched;
        }
        let mut coll = collective_args(raw, plan, &self.parts.operator(&raw.call, raw.scalar_bits), tag);
        if !raw.call.func.has_buffers() {
            let scratch: *mut u8 = std::ptr::without_provenance_mut(self.parts.tables.scratch as usize);
            coll = KernelColl { src: scratch, dst: scratch, ..coll };
        }
        if self.parts.net.is_none() {
            coll.flags |= KERNEL_DIRECT;
        }
        let kind = ConnKind::of(spec_of(plan.algorithm).connections);
        let lists = self.parts.tables.of(kind, plan.protocol);
        let tiles = self.parts.tiles.of(plan.kernel());
        let launch = KernelLaunch { tile_bytes: tiles.tile_bytes, ..self.parts.launch(lists, plan.channels) };
        let mut args = CollArgs { launch, coll };
        if let Some(net) = &mut self.parts.net {
            net.collective(&coll, plan);
        }
        let has_orders = self.issue_orders(stream)?;
        let clusters = self.parts.clusters;
        let may_start_early = self.parts.starts_early && plan.kernel().starts_early();
        let function = self.function(plan.kernel(), plan.threads)?;
        let mut params = [(&raw mut args).cast::<c_void>()];
        let shape = clusters.shape(function.sm(), plan.channels, plan.threads, tiles);
        // Only what was compiled for a generation that has programmatic dependent launch waits by itself.
        let launched = if may_start_early && function.sm() >= EARLY_SM_MIN {
            // SAFETY: as below; such a kernel waits for those before it (`starts_early`).
            unsafe { function.launch_early(shape, stream, &mut params) }
        } else {
            // SAFETY: the entry takes one `CollArgs`; its buffers are valid by obligation 1, and the lists, the monitor and what they
            // point to live until `close` has seen every operation end.
            unsafe { function.launch(shape, stream, &mut params) }
        };
        let launched = launched.map_err(|error| error.in_kernel(function.name()));
        launched.map_err(|error| self.launch_refused(error, has_orders, stream))
    }

    /// A call that an algorithm from outside the library carries out; none if there is no such algorithm.
    ///
    /// # Safety
    /// 1. As [`Machine::collective`](crate::launch::Machine::collective)'s second.
    unsafe fn launch_custom(
        &self,
        raw: &RawCall,
        tag: u32,
        stream: StreamRef<'_>,
    ) -> Option<Result<(), RunError>> {
        let CustomLaunch { function, channels, threads, protocol, coll } = self.custom(raw, tag)?;
        let lists = self.parts.tables.of(ConnKind::Mesh, protocol);
        let mut args = CollArgs { launch: self.parts.launch(lists, channels), coll };
        let mut params = [(&raw mut args).cast::<c_void>()];
        // SAFETY: as in `launch_collective`: the entry was made for one `CollArgs`.
        let launched = unsafe { function.launch(Shape::new(channels, threads), stream, &mut params) };
        Some(launched.map_err(|error| error.in_kernel(function.name()).into()))
    }

    /// The launch of an algorithm from outside the library, if one carries out the call.
    pub(super) fn custom(&self, raw: &RawCall, tag: u32) -> Option<CustomLaunch<'_>> {
        let facts = &self.parts.facts;
        if self.parts.custom.is_empty() || facts.crosses_network() || raw.forced.is_some() {
            return None;
        }
        let (nranks, layout, channels) = (facts.nranks, &facts.mesh_layout, facts.mesh_channels);
        let host_ranks = facts.hosts.ranks_each();
        let facts = CustomFacts {
            nranks,
            host_ranks,
            layout,
            channels,
            forced: &facts.forced,
            lines: facts.has_mesh_of_lines(),
        };
        let operator = self.parts.operator(&raw.call, raw.scalar_bits);
        let launches =
            self.parts.custom.iter().filter_map(|custom| custom.launch(raw, &facts, &operator, tag));
        { launches }.next()
    }
}
