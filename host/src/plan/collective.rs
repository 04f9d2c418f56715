//! The plan of one collective.

use super::call::Call;
use super::choose::Facts;
use super::tuning::Candidate;
use core::ops::Range;
use oxccl_shared::abi::{Algorithm, Protocol};
use oxccl_shared::algo::{chunk, ring};
use oxccl_shared::proto::{self, simple};

/// How a collective is carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The schedule.
    pub algorithm: Algorithm,
    /// The protocol.
    pub protocol: Protocol,
    /// Channels in use, from channel 0.
    pub channels: u32,
    /// Elements of a block in one hop.
    pub chunk_elems: usize,
    /// Elements in one slot.
    pub slice_elems: usize,
    /// Borders are rounded to multiples of this.
    pub grain_elems: usize,
    /// Whether outputs bypass the caches.
    pub stream: bool,
}

/// Plans `call`. Every rank of a communicator that makes the same call gets the same plan.
pub fn plan(call: &Call, facts: &Facts) -> Plan {
    let choice = facts.choose(call);
    let Candidate { algorithm, protocol } = choice.candidate;
    let (layout, available) = match algorithm {
        Algorithm::OneShot | Algorithm::TwoShot => (&facts.mesh_layout, 1),
        Algorithm::Ring => (&facts.ring_layout, facts.ring_channels),
        Algorithm::Tree => (&facts.ring_layout, facts.tree_channels),
        // Chains are of the mesh's connections.
        Algorithm::CollnetChain => (&facts.mesh_layout, 1),
    };
    let elem_bytes = call.dtype.size_bytes();
    let slot_bytes = proto::payload_bytes(protocol, layout);
    let slot_elems = match (algorithm, facts.collnet.serves(call)) {
        (Algorithm::CollnetChain, Some(network)) => network.at_most(slot_bytes) / elem_bytes,
        _ => slot_bytes / elem_bytes,
    }
    .max(1);
    let grain_elems = chunk::grain_elems(grain_bytes(protocol), elem_bytes);
    let slice_elems = match algorithm {
        Algorithm::OneShot | Algorithm::TwoShot => even_slices(call.count as usize, slot_elems, grain_elems),
        _ => slot_elems,
    };
    let slices_per_chunk = match algorithm {
        Algorithm::Ring if protocol == Protocol::Simple => SLICES_PER_CHUNK.min(ring::SLICES_MAX),
        _ => 1,
    };
    // A channel with less than a grain would only add its start-up time.
    let available = choice.channels.unwrap_or(available).min(available);
    let channels = (call.count as usize).div_ceil(grain_elems).clamp(1, available.max(1) as usize) as u32;
    Plan {
        algorithm,
        protocol,
        channels,
        chunk_elems: slice_elems * slices_per_chunk,
        slice_elems,
        grain_elems,
        stream: call.bytes() >= facts.tuning.stream_min_bytes,
    }
}

/// Length of slices that are as few as slots of `slot_elems` allow, and of about equal length: a slice of a few
/// elements would take as long to exchange as any.
fn even_slices(count: usize, slot_elems: usize, grain_elems: usize) -> usize {
    match count.div_ceil(slot_elems) {
        0 | 1 => slot_elems,
        slices => count.div_ceil(slices).next_multiple_of(grain_elems).min(slot_elems),
    }
}

/// Slices of one hop, so that a rank may send one while it fills the next.
const SLICES_PER_CHUNK: usize = 2;

pub(super) fn grain_bytes(protocol: Protocol) -> usize {
    match protocol {
        Protocol::LL => proto::ll::DATA_BYTES,
        Protocol::LL128 => proto::ll128::DATA_BYTES,
        Protocol::Simple => simple::GRAIN_BYTES,
    }
}

impl Plan {
    /// The elements of `0..count` that `channel` works on.
    pub fn part(&self, count: u64, channel: u32) -> Range<usize> {
        chunk::channel_part(count as usize, self.channels, channel, self.grain_elems)
    }
}
