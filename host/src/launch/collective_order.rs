//! The order by which a proxy carries out its part of a collective.

use crate::plan::Plan;
use crate::proxy::ProxyOrder;
use oxccl_shared::abi::Rank;

/// The order of a collective that goes by `plan`. Its channels count from 0, and it has no tag.
pub(crate) fn collective_order(plan: &Plan, root: Rank) -> ProxyOrder {
    ProxyOrder {
        count: plan.count,
        chunk_elems: plan.chunk_elems,
        slice_elems: plan.slice_elems,
        grain_elems: plan.grain_elems,
        rank: root,
        nchannels: plan.channels,
        func: plan.func as u8,
        algorithm: plan.algorithm as u8,
        protocol: plan.protocol as u8,
        host_ranks: plan.host_ranks,
        ..ProxyOrder::default()
    }
}
