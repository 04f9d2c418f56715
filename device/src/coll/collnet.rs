//! All-reduce up a chain of a host's ranks, through a network that reduces, and down again.

use super::hop::HopArgs;
use super::tree;
use super::work::{ChainEnds, CollWork};
use crate::conn::Conns;
use crate::gpu::{Block, Stop};
use crate::prims::Proto;
use oxccl_shared::algo::collnet as schedule;

/// Runs `work` along the chain. The protocol is one whose slots hold nothing but elements, which the network can add.
///
/// # Safety
/// 1. As [`super::run`].
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub(crate) unsafe fn all_reduce<B: Block, P: Proto>(
    block: &B,
    conns: Conns<'_>,
    chain: &ChainEnds,
    work: &CollWork,
) -> Result<(), Stop> {
    let below = chain.links.has_below as usize;
    let up = HopArgs {
        action: schedule::all_reduce_up(&chain.links),
        recv: &chain.below_recv[..below],
        send: &chain.above_send,
        src_position: below,
        src_offset: 0,
        dst_offset: 0,
    };
    let down = HopArgs {
        action: schedule::all_reduce_down(&chain.links),
        recv: &chain.above_recv,
        send: &chain.below_send[..below],
        ..up
    };
    // SAFETY: obligation 1 is passed on.
    unsafe { tree::walk::<B, P>(block, conns, work, &up, Some(&down)) }
}
