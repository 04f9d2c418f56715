//! The operation header: one message before an operation's slots if neither the slots nor the network's messages carry tags.
//!
//! Simple slots travel as plain bytes. A slot's length is the message's; the operation header states the tag once: 24
//! bytes for an operation instead of some for each slot, and slots stay aligned and contiguous. The two proxies
//! compare their views of an operation before they publish a byte of it to a kernel.

use oxccl_shared::abi::{Protocol, Step};
use std::fmt;

/// Bytes of an operation header.
pub(super) const OP_HEADER_BYTES: usize = 24;

const MAGIC: [u8; 2] = *b"OP";
const VERSION: u8 = 1;

/// An operation, as far as both ends of a connection must agree on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpHeader {
    /// Digest of the call.
    pub tag: u32,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its first step.
    pub first: Step,
    /// Number of steps.
    pub steps: u64,
}

/// The wire format, little-endian.
#[repr(C)]
struct Wire {
    magic: [u8; 2],
    version: u8,
    protocol: u8,
    tag: [u8; 4],
    first: [u8; 8],
    steps: [u8; 8],
}

const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    assert!(size_of::<Wire>() == OP_HEADER_BYTES && align_of::<Wire>() == 1);
    assert!(offset_of!(Wire, protocol) == 3);
    assert!(offset_of!(Wire, tag) == 4);
    assert!(offset_of!(Wire, first) == 8);
    assert!(offset_of!(Wire, steps) == 16);
};

impl OpHeader {
    pub(super) fn encode(&self) -> [u8; OP_HEADER_BYTES] {
        let mut bytes = [0; OP_HEADER_BYTES];
        bytes[..2].copy_from_slice(&MAGIC);
        bytes[2..4].copy_from_slice(&[VERSION, self.protocol as u8]);
        bytes[4..8].copy_from_slice(&self.tag.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.first.0.to_le_bytes());
        bytes[16..].copy_from_slice(&self.steps.to_le_bytes());
        bytes
    }

    /// Decodes a peer's message, if it is an operation header.
    pub(super) fn decode(bytes: &[u8]) -> Option<OpHeader> {
        let bytes: &[u8; OP_HEADER_BYTES] = bytes.try_into().ok()?;
        let [m0, m1, version, protocol, t0, t1, t2, t3, rest @ ..] = bytes;
        let (first, steps) = rest.split_first_chunk::<8>()?;
        let steps: &[u8; 8] = steps.try_into().ok()?;
        if [*m0, *m1] != MAGIC || *version != VERSION {
            return None;
        }
        Some(OpHeader {
            tag: u32::from_le_bytes([*t0, *t1, *t2, *t3]),
            protocol: Protocol::try_from(u32::from(*protocol)).ok()?,
            first: Step(u64::from_le_bytes(*first)),
            steps: u64::from_le_bytes(*steps),
        })
    }
}

impl fmt::Display for OpHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OpHeader { tag, protocol, first, steps } = self;
        write!(f, "operation {tag:#010x} of {steps} {protocol} steps from step {}", first.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_reads_as_a_header_writes_back_the_same(bytes: [u8; OP_HEADER_BYTES], plausible: bool) {
            let mut bytes = bytes;
            if plausible {
                bytes[..3].copy_from_slice(b"OP\x01");
                bytes[3] %= 4;
            }
            if let Some(op_header) = OpHeader::decode(&bytes) {
                prop_assert_eq!(op_header.encode(), bytes);
            }
            prop_assert_eq!(OpHeader::decode(&bytes[1..]), None);
        }
    }

    #[test]
    fn the_wire_form_is_fixed() {
        let op_header = OpHeader { tag: 0xa1b2_c3d4, protocol: Protocol::ALL[2], first: Step(5), steps: 258 };
        let bytes = *b"OP\x01\x02\xd4\xc3\xb2\xa1\x05\0\0\0\0\0\0\0\x02\x01\0\0\0\0\0\0";
        assert_eq!(op_header.encode(), bytes);
        assert_eq!(OpHeader::decode(&bytes), Some(op_header));
    }
}
