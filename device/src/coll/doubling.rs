//! All-reduce and barrier by recursive doubling, by one thread, for ranks on CPUs.

use super::work::{CollWork, MeshEnds};
use crate::gpu::{Block, How, Stop};
use crate::prims::brief::{self, Brief};
use core::ptr::null_mut;
use oxccl_shared::abi::Func;
use oxccl_shared::algo::chunk;
use oxccl_shared::algo::doubling::{self as schedule, Use};

/// Runs `work`, an all-reduce or a barrier over Simple.
///
/// # Panics
/// If another thread works or announces beside this one.
///
/// # Safety
/// 1. As [`super::run`].
pub(super) unsafe fn all_reduce<B: Block>(
    block: &B,
    ends: &MeshEnds<'_>,
    work: &CollWork,
) -> Result<(), Stop> {
    assert!(
        block.threads() == 1 && block.leads() && block.posts(),
        "recursive doubling is for blocks of one thread"
    );
    let size = work.elem_bytes();
    if work.func == Func::Barrier && work.part.is_empty() {
        // SAFETY: no memory is accessed.
        return unsafe {
            one_slice(block, ends, work, Brief { tag: work.tag, len_bytes: 0 }, (work.src, work.dst))
        };
    }
    for range in chunk::slices(work.part.clone(), work.slice_elems) {
        let (at, len_bytes) = (range.start * size, range.len() * size);
        let (src, dst) = (work.src.wrapping_add(at), work.dst.wrapping_add(at));
        // SAFETY: obligation 1: the range lies within the part.
        unsafe { one_slice(block, ends, work, Brief { tag: work.tag, len_bytes }, (src, dst))? };
    }
    Ok(())
}

/// # Safety
/// 1. As [`all_reduce`], for a message as long as the slice, which fits a slot.
unsafe fn one_slice<B: Block>(
    block: &B,
    ends: &MeshEnds<'_>,
    work: &CollWork,
    message: Brief,
    (src, dst): (*const u8, *mut u8),
) -> Result<(), Stop> {
    if work.nranks == 1 {
        let how = How { pre: true, post: true, ..How::default() };
        // SAFETY: obligation 1: `dst` is `src` or disjoint from it.
        unsafe { block.map_bulk(dst, null_mut(), src, message.len_bytes, how) };
        return Ok(());
    }
    let mut value = src;
    if block.has_pre() {
        let how = How { pre: true, ..How::default() };
        // SAFETY: obligation 1: `dst` is `src` or disjoint from it.
        unsafe { block.map_bulk(dst, null_mut(), src, message.len_bytes, how) };
        value = dst;
    }
    for step in schedule::all_reduce(work.rank, work.nranks) {
        if step.sends {
            // SAFETY: obligation 1.
            unsafe { brief::send(block, ends.to(work.rank, step.peer, work.nranks), message, value)? };
        }
        let Some(used) = step.received else { continue };
        let conn = ends.from(work.rank, step.peer);
        match used {
            // SAFETY: obligation 1.
            Use::Outcome => unsafe { brief::recv(block, conn, message, dst)? },
            Use::Reduced { own_first, is_last } => {
                let how = How { post: is_last, ..How::default() };
                // SAFETY: obligation 1: `value` is the input or the output.
                unsafe { brief::reduce(block, conn, message, (value, dst), own_first, how)? };
            }
        }
        value = dst;
    }
    Ok(())
}
