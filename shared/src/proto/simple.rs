//! Simple: a slot is plain bytes; its header is in `ConnControl::headers`, and `ConnControl::tail` announces it.
//!
//! One fence and one counter a slot: it pays from the size at which filling a slot takes longer than the counter's
//! transfer.

use crate::abi::ConnLayout;

/// Where a slot begins within a connection.
#[inline]
pub const fn slot_offset(layout: &ConnLayout, slot: usize) -> usize {
    layout.simple_offset() + slot * layout.simple_slot_bytes as usize
}

/// Payload granularity: every chunk of the Simple protocol starts on this many bytes, if the user's buffer does. NCCL's
/// grain.
pub const GRAIN_BYTES: usize = 512;
