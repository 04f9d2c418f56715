//! Simple: a slot is plain bytes; its header is in `ConnControl::headers`, and `ConnControl::tail` announces it.
//!
//! One fence and one counter a slot: it pays from the size at which filling a slot takes longer than the counter's
//! transfer.

/// Payload granularity: every chunk of the Simple protocol starts on this many bytes, if the user's buffer does. NCCL's
/// grain.
pub const GRAIN_BYTES: usize = 512;
