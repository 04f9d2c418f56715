//! Simple: a slot is plain bytes; its header lies in `ConnControl::headers`, its arrival in `ConnControl::tail`.
//!
//! One fence and one counter a slot, so it pays from the size where a slot takes longer to fill than the counter takes to
//! travel.

/// Payload granularity: every chunk of the Simple protocol starts on this many bytes, if the user's buffer does. NCCL's
/// grain.
pub const GRAIN_BYTES: usize = 512;
