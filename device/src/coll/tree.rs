//! All-reduce up a tree and down again; channels alternate between the two trees of a double binary tree.

use super::hop::{HopArgs, run_hop};
use super::work::{CollWork, TreeEnds};
use crate::conn::Conns;
use crate::gpu::{Block, Stop};
use crate::prims::Proto;
use core::ops::Range;
use oxccl_shared::algo::tree::{self as schedule, Turn};

/// Runs `work` along the tree.
///
/// One block does both directions in turn, `lag` chunks of the way up ahead of the way down; `algo::tree` shows that the
/// credits suffice.
///
/// # Safety
/// 1. As [`super::run`].
#[cfg_attr(not(feature = "cpu"), inline(always))]
pub(crate) unsafe fn all_reduce<B: Block, P: Proto<B>>(
    block: &B,
    conns: Conns<'_>,
    tree: &TreeEnds,
    work: &CollWork,
) -> Result<(), Stop> {
    let (children, parent) = (tree.children, tree.links.up.is_some() as usize);
    let up_to = if parent == 1 { &tree.parent_send[..1] } else { &tree.child_send[..children] };
    let up = HopArgs {
        action: schedule::all_reduce_up(&tree.links).action,
        recv: &tree.child_recv[..children],
        send: up_to,
        src_position: children,
        src_offset: 0,
        dst_offset: 0,
    };
    let down = schedule::all_reduce_down(&tree.links).map(|hop| HopArgs {
        action: hop.action,
        recv: &tree.parent_recv[..1],
        send: &tree.child_send[..children],
        ..up
    });
    let chunk = |index: usize| -> Range<usize> {
        let start = work.part.start + index * work.chunk_elems;
        start..(start + work.chunk_elems).min(work.part.end)
    };
    let nchunks = work.part.len().div_ceil(work.chunk_elems);
    let lag = schedule::lag_max(work.chunk_elems.div_ceil(work.slice_elems), P::PROTOCOL.slots());
    for turn in schedule::pipeline(nchunks, lag) {
        let (hop, index) = match (turn, &down) {
            (Turn::Up(index), _) => (&up, index),
            (Turn::Down(index), Some(down)) => (down, index),
            (Turn::Down(_), None) => continue,
        };
        // SAFETY: obligation 1 is passed on: a chunk lies within the part.
        unsafe { run_hop::<B, P>(block, conns, work, hop, chunk(index))? };
    }
    Ok(())
}
