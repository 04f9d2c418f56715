//! Arguments of kernels.

use crate::launch::RawCall;
use crate::plan::Plan;
use oxccl_shared::abi::{KERNEL_POST, KERNEL_PRE, KernelColl};
use oxccl_shared::algo::chunk::ChannelCut;
use oxccl_shared::reduce::Resolved;

/// The arguments of a collective's kernel.
pub(crate) fn collective_args(raw: &RawCall, plan: &Plan, operator: &Resolved, tag: u32) -> KernelColl {
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    KernelColl {
        src: raw.send,
        dst: raw.recv,
        cut: ChannelCut::new(plan.count as usize, plan.channels, plan.grain_elems as usize),
        chunk_elems: plan.chunk_elems,
        slice_elems: plan.slice_elems,
        arg: operator.arg,
        kind: operator.kind as u32,
        flags: flag(operator.pre, KERNEL_PRE) | flag(operator.post, KERNEL_POST),
        func: plan.func as u32,
        root: raw.call.root,
        tag,
        host_ranks: plan.host_ranks,
    }
}
