//! A message that its producer writes straight into the consumer's buffer.

use super::SlotHeader;
use crate::sync::{Sys, Word};

/// What a Simple slot holds instead of a long message's first bytes, where the producer may reach the consumer's buffer.
///
/// ```text
/// producer                                   consumer
///   publish(SlotHeader::ask)                   poll(): the address at which the producer reaches its buffer, or 0;
///                                              release()
///   is_drained(): the address; not 0: writes
///   the message there, then publish(header)    poll(): the message is here; release()
///   0: the message in slots                    the message from slots
/// ```
/// Every consumer of Simple answers, so the producer need not know what the consumer knows.
#[repr(C)]
#[derive(Default)]
pub struct Ask {
    /// Of the consumer's buffer, as the producer addresses it. Writer: the consumer, before it releases the slot.
    pub address: Word<u64, Sys>,
}

impl SlotHeader {
    /// Of a slot that holds an [`Ask`]. No slot has as many bytes.
    #[inline]
    pub const fn ask(tag: u32) -> SlotHeader {
        SlotHeader { tag, len_bytes: u32::MAX }
    }
}

/// Producers ask for messages of at least so many bytes, and consumers of shorter ones look for no question.
pub const ASK_MIN_BYTES: u64 = 4 << 20;
