//! A message that its producer writes straight into the consumer's buffer.

use super::SlotHeader;
use crate::sync::{Sys, Word};

/// Where a message goes, in the producer's memory: said by the consumer of a long message as soon as it begins, if the producer may reach its
/// buffer, or else when the producer asks.
///
/// ```text
/// producer                                   consumer
///                                              answer: the address at which the producer reaches its buffer, if it does
///   publish(SlotHeader::ask)                   poll(): a question; no answer yet: answer 0; release()
///   the address; not 0: writes the message
///   there, then publish(header)                poll(): the message is here; release()
///   0: the message in slots                    the message from slots
/// ```
/// Every consumer of Simple answers, so the producer need not know what the consumer knows, and a consumer need not know whether it is asked.
/// Each word carries its step, so that they may come in any order (`crate::fifo`, answer.rs).
#[repr(C)]
#[derive(Default)]
pub struct Answer {
    /// The lower half of the address, above the flag. Writer: the consumer, of all of them.
    pub low: Word<u64, Sys>,
    /// The upper half.
    pub high: Word<u64, Sys>,
    /// The message's tag.
    pub tag: Word<u64, Sys>,
}

impl SlotHeader {
    /// Of a question: the slot is empty. No slot has as many bytes.
    #[inline]
    pub const fn ask(tag: u32) -> SlotHeader {
        SlotHeader { tag, len_bytes: u32::MAX }
    }
}

/// Producers ask for messages of at least so many bytes.
pub const ASK_MIN_BYTES: u64 = 2 << 20;

/// Whether the producer of a message of so many bytes may ask. Consumers of shorter ones look for no question.
#[inline(always)]
pub const fn may_ask(len_bytes: u64) -> bool {
    len_bytes >= ASK_MIN_BYTES
}
