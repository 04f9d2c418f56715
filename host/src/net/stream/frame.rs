//! The 16 bytes before every slot on the wire.

use super::error::FrameFault;
use oxccl_shared::abi::{ConnLayout, Protocol, SlotHeader, Step};
use oxccl_shared::proto;

/// Bytes of a frame header.
pub(super) const HEADER_BYTES: usize = 16;

/// First bytes of every frame: `Ox`.
const MAGIC: u16 = u16::from_le_bytes(*b"Ox");
const VERSION: u8 = 1;

/// What a frame says about the slot that follows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    /// Protocol under which the peer's kernel filled the slot.
    pub protocol: Protocol,
    /// The slot's step.
    pub step: Step,
    /// The slot's own header.
    pub slot: SlotHeader,
}

/// A frame header as it travels, little-endian.
#[repr(C)]
struct Wire {
    magic: [u8; 2],
    version: u8,
    protocol: u8,
    /// The low half: enough to see that the ends disagree.
    step: [u8; 4],
    tag: [u8; 4],
    len_bytes: [u8; 4],
}

const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    assert!(size_of::<Wire>() == HEADER_BYTES && align_of::<Wire>() == 1);
    assert!(offset_of!(Wire, magic) == 0);
    assert!(offset_of!(Wire, version) == 2);
    assert!(offset_of!(Wire, protocol) == 3);
    assert!(offset_of!(Wire, step) == 4);
    assert!(offset_of!(Wire, tag) == 8);
    assert!(offset_of!(Wire, len_bytes) == 12);
};

impl FrameHeader {
    /// As it travels.
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let [m0, m1] = MAGIC.to_le_bytes();
        let [s0, s1, s2, s3] = (self.step.0 as u32).to_le_bytes();
        let [t0, t1, t2, t3] = self.slot.tag.to_le_bytes();
        let [l0, l1, l2, l3] = self.slot.len_bytes.to_le_bytes();
        [m0, m1, VERSION, self.protocol as u8, s0, s1, s2, s3, t0, t1, t2, t3, l0, l1, l2, l3]
    }

    /// Reads what a peer sent when this rank awaits `expected`. What it returns fits into a slot of `layout`.
    ///
    /// # Errors
    /// The first [`FrameFault`] from the left.
    pub(super) fn decode(
        bytes: &[u8; HEADER_BYTES],
        layout: &ConnLayout,
        expected: Step,
    ) -> Result<FrameHeader, FrameFault> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let magic = u16::from_le_bytes([bytes[0], bytes[1]]);
        if magic != MAGIC {
            return Err(FrameFault::Magic { expected: MAGIC, found: magic });
        }
        if bytes[2] != VERSION {
            return Err(FrameFault::Version { expected: VERSION, found: bytes[2] });
        }
        let Ok(protocol) = Protocol::try_from(u32::from(bytes[3])) else {
            return Err(FrameFault::Protocol { found: bytes[3] });
        };
        if word(4) != expected.0 as u32 {
            return Err(FrameFault::Step { expected: expected.0 as u32, found: word(4) });
        }
        let slot = SlotHeader { tag: word(8), len_bytes: word(12) };
        let max = proto::payload_bytes(protocol, layout) as u32;
        if slot.len_bytes > max {
            return Err(FrameFault::Length { max, found: slot.len_bytes });
        }
        Ok(FrameHeader { protocol, step: expected, slot })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::stream::testing::LAYOUT;
    use proptest::prelude::*;

    fn good() -> FrameHeader {
        FrameHeader {
            protocol: Protocol::Simple,
            step: Step(0x1_2345_6789),
            slot: SlotHeader { tag: 0xa1b2_c3d4, len_bytes: 17 },
        }
    }

    fn decode_with(at: usize, value: u8) -> Result<FrameHeader, FrameFault> {
        let mut bytes = good().encode();
        bytes[at] = value;
        FrameHeader::decode(&bytes, &LAYOUT, good().step)
    }

    #[test]
    fn the_wire_form_is_fixed() {
        let bytes = *b"Ox\x01\x02\x89\x67\x45\x23\xd4\xc3\xb2\xa1\x11\0\0\0";
        assert_eq!(good().encode(), bytes);
        assert_eq!(FrameHeader::decode(&bytes, &LAYOUT, good().step), Ok(good()));
    }

    #[test]
    fn each_fault_is_named() {
        assert_eq!(decode_with(0, 0x16), Err(FrameFault::Magic { expected: 0x784f, found: 0x7816 }));
        assert_eq!(decode_with(2, 9), Err(FrameFault::Version { expected: 1, found: 9 }));
        assert_eq!(decode_with(3, 3), Err(FrameFault::Protocol { found: 3 }));
        assert_eq!(decode_with(4, 0), Err(FrameFault::Step { expected: 0x2345_6789, found: 0x2345_6700 }));
        let max = LAYOUT.simple_slot_bytes;
        assert_eq!(decode_with(15, 1), Err(FrameFault::Length { max, found: 0x0100_0011 }));
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_frame_that_does_not_fit(bytes: [u8; HEADER_BYTES], step: u64) {
            let mut bytes = bytes;
            // Three times out of four, far enough for the later fields to matter.
            if bytes[0] % 4 != 0 {
                bytes[..3].copy_from_slice(&good().encode()[..3]);
                bytes[3] %= 4;
                bytes[4..8].copy_from_slice(&(step as u32).to_le_bytes());
                bytes[14..].fill(0);
            }
            if let Ok(frame) = FrameHeader::decode(&bytes, &LAYOUT, Step(step)) {
                prop_assert_eq!(frame.encode(), bytes);
                prop_assert!(frame.slot.len_bytes as usize <= proto::payload_bytes(frame.protocol, &LAYOUT));
            }
        }
    }
}
