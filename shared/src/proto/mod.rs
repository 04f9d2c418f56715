//! Layer: shared / proto.
//! Takes: the bytes of one slot (`abi`) and a step number (`fifo`).
//! Gives: the memory format of one step under each protocol, how to publish it and how to detect its arrival.
//! Never: waits, moves user data in bulk (the kernels do), knows the peer.
//!
//! | protocol | header of a slot | payload | published by | efficiency |
//! |---|---|---|---|---|
//! | LL | line 0 | 8 of every 16 bytes | each line's two flags | 50 % |
//! | LL128 | line 0 | 120 of every 128 bytes | each line's flag | 94 % |
//! | Simple | `ConnControl::headers`, or the slot's line | all | `ConnControl::tail`, or the slot's line | 100 % |

pub mod ll;
pub mod ll128;
pub mod simple;
mod probe;
mod unpack;

pub use probe::{publish, ready, travel_bytes};
pub use unpack::unpack;

use crate::abi::{ConnLayout, Protocol};

/// Payload bytes of one slot under `protocol`. A multiple of 8.
#[inline]
pub const fn payload_bytes(protocol: Protocol, layout: &ConnLayout) -> usize {
    match protocol {
        Protocol::LL => ll::payload_bytes(layout.ll_slot_bytes as usize),
        Protocol::LL128 => ll128::payload_bytes(layout.ll128_slot_bytes as usize),
        Protocol::Simple => layout.simple_slot_bytes as usize,
    }
}

/// Parts of a buffer that different threads or channels work on begin at multiples of so many bytes.
#[inline]
pub const fn grain_bytes(protocol: Protocol) -> usize {
    match protocol {
        Protocol::LL => ll::DATA_BYTES,
        Protocol::LL128 => ll128::DATA_BYTES,
        Protocol::Simple => simple::GRAIN_BYTES,
    }
}

/// Bytes of one slot under `protocol`, header lines included.
#[inline]
pub const fn slot_bytes(protocol: Protocol, layout: &ConnLayout) -> usize {
    slot_offset(protocol, layout, 1) - slot_offset(protocol, layout, 0)
}

/// Slot bytes of a message of `len_bytes` payload, header lines included: what a proxy moves.
#[inline]
pub const fn wire_bytes(protocol: Protocol, len_bytes: usize) -> usize {
    match protocol {
        Protocol::LL => ll::wire_bytes(len_bytes),
        Protocol::LL128 => ll128::wire_bytes(len_bytes),
        Protocol::Simple => len_bytes,
    }
}

/// The byte range of slot `slot` within a connection.
#[inline]
pub const fn slot_offset(protocol: Protocol, layout: &ConnLayout, slot: usize) -> usize {
    match protocol {
        Protocol::LL => layout.ll_offset() + slot * layout.ll_slot_bytes as usize,
        Protocol::LL128 => layout.ll128_offset() + slot * layout.ll128_slot_bytes as usize,
        Protocol::Simple => simple::slot_offset(layout, slot),
    }
}
