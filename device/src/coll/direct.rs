//! One hop: every rank sends its whole input to every other and reduces the inputs in rank order.
//!
//! n - 1 times the bytes of a ring, and one message time instead of 2(n - 1): for messages that fit few slots.

use super::hop::{HopArgs, run_hop};
use super::work::{CollWork, Endpoints};
use crate::conn::Conns;
use crate::gpu::{Block, Stop};
use crate::prims::{Proto, Slice, run_slice};
use oxccl_shared::abi::SlotHeader;
use oxccl_shared::algo::{Action, chunk};

/// All-reduce; with no elements it is a barrier.
///
/// # Safety
/// 1. As [`super::run`].
#[cfg_attr(not(feature = "cpu"), inline(always))]
pub(crate) unsafe fn all_reduce<B: Block, P: Proto<B>>(
    block: &B,
    conns: Conns<'_>,
    ends: &Endpoints<'_>,
    work: &CollWork,
) -> Result<(), Stop> {
    let hop = |action| HopArgs {
        action,
        recv: ends.mesh_recv,
        send: ends.mesh_send,
        src_position: work.rank as usize,
        src_offset: 0,
        dst_offset: 0,
    };
    let reduce = if work.nranks == 1 { Action::COPY_FINISH } else { Action::RECV_REDUCE_COPY };
    if work.part.is_empty() {
        // SAFETY: nothing is read or written.
        return unsafe { meet::<B, P>(block, conns, ends, work) };
    }
    for range in chunk::slices(work.part.clone(), work.slice_elems) {
        if work.nranks > 1 {
            // SAFETY: obligation 1 is passed on: `range` lies within `0..count`.
            unsafe { run_hop::<B, P>(block, conns, work, &hop(Action::SEND), range.clone())? };
        }
        // SAFETY: as above. In place, `range` of the input has been sent before it is overwritten.
        unsafe { run_hop::<B, P>(block, conns, work, &hop(reduce), range)? };
    }
    Ok(())
}

/// Exchanges an empty slot with every rank.
///
/// # Safety
/// 1. The connection indices of `ends` are those of `conns`.
#[cfg_attr(not(feature = "cpu"), inline(always))]
unsafe fn meet<B: Block, P: Proto<B>>(
    block: &B,
    conns: Conns<'_>,
    ends: &Endpoints<'_>,
    work: &CollWork,
) -> Result<(), Stop> {
    for action in [Action::SEND, Action::RECV_REDUCE_COPY] {
        let slice = Slice {
            action,
            header: SlotHeader { tag: work.tag, len_bytes: 0 },
            recv: ends.mesh_recv,
            send: ends.mesh_send,
            src_position: work.rank as usize,
            src: work.src,
            dst: work.dst,
            stream: false,
        };
        // SAFETY: a slice of no bytes accesses no user memory.
        unsafe { run_slice::<B, P>(block, conns, &slice)? };
    }
    Ok(())
}
