//! The slots of TCP connections.

use oxccl_shared::abi::ConnLayout;

/// The longest slot in memory whose stream has longer ones: a connection stays under 16 MiB.
const LENGTHENED_MAX_BYTES: u32 = 512 << 10;

/// Difference between a stream's slot and two and a half of memory's slots, so that frames of full slots fit five
/// segments of the loopback interface (65483 bytes) without a sixth, short one: every segment has its price, of
/// whatever length. It also spreads the slots over the offsets in a page (see `net::bypass`).
const SPARED_BYTES: u32 = 512;

/// Slots of a stream, given those of a connection in memory: longer, because a system call costs more than a counter.
/// Never shorter, so that slices cut for memory fit both.
pub fn stream_layout(memory: ConnLayout) -> ConnLayout {
    let slot = memory.simple_slot_bytes;
    let is_lengthened = (SPARED_BYTES..=LENGTHENED_MAX_BYTES).contains(&slot);
    let simple_slot_bytes = if is_lengthened { (slot / 2 * 5 - SPARED_BYTES) / 128 * 128 } else { slot };
    ConnLayout { simple_slot_bytes, ..memory }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(simple_slot_bytes: u32) -> ConnLayout {
        ConnLayout { ll_slot_bytes: 8 << 10, ll128_slot_bytes: 16 << 10, simple_slot_bytes }
    }

    #[test]
    fn stream_slots_are_valid_and_no_shorter() {
        for slot_bytes in (1 << 10..=1 << 20).step_by(128) {
            let stream = stream_layout(memory(slot_bytes));
            assert!(stream.is_valid(), "{slot_bytes}");
            assert!(stream.simple_slot_bytes >= slot_bytes, "{slot_bytes}");
        }
    }

    #[test]
    fn frames_of_default_slots_fill_loopback_segments() {
        let frame_bytes = 16 + stream_layout(memory(128 << 10)).simple_slot_bytes;
        assert!((5 * 65483 - 256..=5 * 65483).contains(&frame_bytes), "{frame_bytes}");
    }
}
