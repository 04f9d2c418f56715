//! One hop of a schedule, cut into slices.

use super::work::CollWork;
use crate::conn::Conns;
use crate::gpu::{Block, Stop};
use crate::prims::{Proto, Slice, run_slice};
use core::ops::Range;
use oxccl_shared::abi::SlotHeader;
use oxccl_shared::algo::Action;
use oxccl_shared::algo::chunk;

/// A hop: its action, its connections, and the offsets of its elements in the user's buffers.
#[derive(Clone, Copy)]
pub struct HopArgs<'a> {
    /// What to do with the block.
    pub action: Action,
    /// Connections received from, in reduction order.
    pub recv: &'a [u16],
    /// Connections sent to.
    pub send: &'a [u16],
    /// Position of our own input among `recv` in reduction order.
    pub src_position: usize,
    /// Elements from the start of `work.src` to element 0 of the range.
    pub src_offset: usize,
    /// Elements from the start of `work.dst` to element 0 of the range.
    pub dst_offset: usize,
}

/// Runs a hop on `range`, in elements. Both ends of every connection cut a range alike, and an empty one not at all.
///
/// # Errors
/// Whatever a slice's did.
///
/// # Safety
/// 1. `range`, moved by the offsets, lies within the user's buffers as the action uses them.
/// 2. The connection indices are those of `conns`.
#[cfg_attr(not(feature = "cpu"), inline(always))]
pub unsafe fn run_hop<B: Block, P: Proto<B>>(
    block: &B,
    conns: Conns<'_>,
    work: &CollWork,
    hop: &HopArgs<'_>,
    range: Range<usize>,
) -> Result<(), Stop> {
    let size = work.elem_bytes();
    for elems in chunk::slices(range, work.slice_elems) {
        let header = SlotHeader { tag: work.tag, len_bytes: (elems.len() * size) as u32 };
        let slice = Slice {
            action: hop.action,
            header,
            recv: hop.recv,
            send: hop.send,
            src_position: hop.src_position,
            src: work.src.wrapping_add((hop.src_offset + elems.start) * size),
            dst: work.dst.wrapping_add((hop.dst_offset + elems.start) * size),
            stream: work.stream,
        };
        // SAFETY: obligation 1: the slice is a part of the range.
        unsafe { run_slice::<B, P>(block, conns, &slice)? };
    }
    Ok(())
}
