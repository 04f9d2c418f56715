//! Work descriptors: one channel's part of one operation.

use crate::conn::Conns;
#[cfg(feature = "cpu")]
use crate::conn::{RecvConn, SendConn};
use core::ops::Range;
use oxccl_shared::abi::{Algorithm, DataType, Func, Protocol, Rank};
use oxccl_shared::algo::collnet::{HostLinks, Owner};
#[cfg(feature = "cpu")]
use oxccl_shared::algo::mesh;
use oxccl_shared::algo::tree::{ARITY_MAX, TreeLinks};

/// One channel's part of a collective.
///
/// Buffers, in elements, with `n` ranks and `count` as the caller gave it:
///
/// | function | `src` holds | `dst` receives |
/// |---|---|---|
/// | all-reduce, broadcast (root), reduce | count | count |
/// | all-gather | count | n * count, block r from rank r |
/// | reduce-scatter | n * count | count, block `rank` |
/// | all-to-all | n * count, block r for rank r | n * count, block r from rank r |
///
/// `dst` may be `src` (for all-gather `src` may be block `rank` of `dst`, for reduce-scatter `dst` block `rank` of `src`),
/// otherwise they do not overlap. Neither needs any alignment.
#[derive(Clone, Debug)]
pub struct CollWork {
    /// The function.
    pub func: Func,
    /// The schedule.
    pub algorithm: Algorithm,
    /// The protocol.
    pub protocol: Protocol,
    /// Element type.
    pub dtype: DataType,
    /// The caller's input.
    pub src: *const u8,
    /// The caller's output.
    pub dst: *mut u8,
    /// Elements, as the caller gave it.
    pub count: usize,
    /// The elements (of `0..count`) that this channel works on.
    pub part: Range<usize>,
    /// Elements of a block in one hop; a whole number of slices except at the end.
    pub chunk_elems: usize,
    /// Elements in one slot.
    pub slice_elems: usize,
    /// Borders between chunks and blocks fall on multiples of this, where the count allows.
    pub grain_elems: usize,
    /// This rank.
    pub rank: Rank,
    /// Ranks in the communicator.
    pub nranks: u32,
    /// The root of a rooted operation.
    pub root: Rank,
    /// Ranks of each host, where all have equally many that follow each other; otherwise 0.
    pub host_ranks: u32,
    /// Digest of the call; both ends of a connection must have the same.
    pub tag: u32,
    /// Whether the output is too large for the caches.
    pub stream: bool,
    /// Whether kernels are at the other ends of all connections, and no proxy (`KERNEL_DIRECT`). CPU ranks do not say so.
    pub is_direct: bool,
}

/// One direction of one exchange with a peer.
#[derive(Clone, Copy, Debug)]
pub struct P2pWork {
    /// The connection: an index into `Conns::send` or `Conns::recv`.
    pub conn: u16,
    /// Whether we send.
    pub is_send: bool,
    /// The protocol.
    pub protocol: Protocol,
    /// The buffer; only read when sending.
    pub buffer: *mut u8,
    /// Its length.
    pub len_bytes: usize,
    /// Bytes already transferred.
    pub done_bytes: usize,
    /// Digest of the call; both ends must have the same.
    pub tag: u32,
    /// Set when a message of zero bytes, which is one empty slot, has been transferred.
    pub finished: bool,
    /// Where its receiver reads it from the sender's memory: how far that is.
    pub offered: Offered,
    /// What is done with it when it is received.
    pub received: Received,
}

impl P2pWork {
    /// A message of `len_bytes` at `buffer` of which nothing has been transferred, and which is [kept](Received::Kept).
    #[inline]
    pub const fn new(
        is_send: bool,
        conn: u16,
        protocol: Protocol,
        (buffer, len_bytes): (*mut u8, usize),
        tag: u32,
    ) -> P2pWork {
        P2pWork {
            conn,
            is_send,
            protocol,
            buffer,
            len_bytes,
            done_bytes: 0,
            tag,
            finished: false,
            offered: Offered::NotYet,
            received: Received::Kept,
        }
    }
}

/// The use of a message that is received.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Received {
    /// It is written to the buffer.
    #[default]
    Kept,
    /// It is reduced with our own input into the buffer.
    Reduced {
        /// The input.
        own: *const u8,
        /// Where it stands in the reduction order: before the message, or behind it.
        place: usize,
        /// What is before has been reduced already, when the sender begins again: where its offer was declined halfway.
        from_bytes: usize,
    },
}

/// What has become of the offer of a long message ([`oxccl_shared::abi::Offer`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Offered {
    /// It has not been made, or not been seen.
    #[default]
    NotYet,
    /// The sender waits for the answer.
    Made,
    /// The receiver cannot read the memory: the message goes through slots.
    Declined,
}

/// The connections of a channel that each algorithm uses.
#[derive(Clone, Debug)]
pub struct Endpoints<'a> {
    /// The ring.
    pub ring: RingEnds<'a>,
    /// The tree of this channel.
    pub tree: &'a TreeEnds,
    /// The host's chain to in-network reduction.
    pub chain: HostEnds<'a>,
    /// The host's star to in-network reduction.
    pub star: HostEnds<'a>,
    /// Mesh: receive connections by rank order, ourselves left out.
    pub mesh_recv: &'a [u16],
    /// Mesh: send connections in the order of `algo::mesh::peers`.
    pub mesh_send: &'a [u16],
}

impl<'a> Endpoints<'a> {
    /// Those of a mesh, whose connections are among `conns`.
    #[inline]
    pub(super) fn mesh(&self, conns: Conns<'a>) -> MeshEnds<'a> {
        MeshEnds { conns, send: self.mesh_send, recv: self.mesh_recv }
    }
}

/// A rank's position in a ring.
#[derive(Clone, Debug, Default)]
pub struct RingEnds<'a> {
    /// Rank at each position.
    pub order: &'a [Rank],
    /// Our position.
    pub position: u32,
    /// From the previous rank.
    pub recv: [u16; 1],
    /// To the next rank.
    pub send: [u16; 1],
}

/// A rank's position in a tree: its links and their connections.
#[derive(Clone, Debug, Default)]
pub struct TreeEnds {
    /// Parent and children.
    pub links: TreeLinks,
    /// Number of children: the used length of the lists below.
    pub children: usize,
    /// From the children, in the order of `links.down`.
    pub child_recv: [u16; ARITY_MAX],
    /// To the children, in the order of `links.down`.
    pub child_send: [u16; ARITY_MAX],
    /// From the parent.
    pub parent_recv: [u16; 1],
    /// To the parent.
    pub parent_send: [u16; 1],
}

/// A rank's connections in its host's chain or star. Above the head is the network.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostEnds<'a> {
    /// Whom it has above and below.
    pub links: HostLinks,
    /// From the ranks below.
    pub below_recv: &'a [u16],
    /// To the ranks below.
    pub below_send: &'a [u16],
    /// From above.
    pub above_recv: [u16; 1],
    /// To above.
    pub above_send: [u16; 1],
    /// Where each rank is, seen from this one; empty without in-network reduction.
    pub owners: &'a [Owner],
}

/// The connections of a mesh.
#[derive(Clone, Copy)]
pub struct MeshEnds<'a> {
    /// With all peers at once: those to and from all others, in rank order. Otherwise a channel's, which the lists below name.
    pub conns: Conns<'a>,
    /// By place in `algo::mesh::peers`.
    pub send: &'a [u16],
    /// By place in rank order, ourselves left out.
    pub recv: &'a [u16],
}

#[cfg(feature = "cpu")]
impl MeshEnds<'_> {
    /// The connection of `rank` among `n` to a peer.
    #[inline(always)]
    pub(super) fn to(&self, rank: Rank, peer: Rank, n: u32) -> &SendConn {
        &self.conns.send[self.send[mesh::place_to(rank, peer, n)] as usize]
    }

    /// The one from a peer.
    #[inline(always)]
    pub(super) fn from(&self, rank: Rank, peer: Rank) -> &RecvConn {
        &self.conns.recv[self.recv[mesh::place_from(rank, peer)] as usize]
    }
}

impl CollWork {
    /// Bytes of one element.
    #[inline]
    pub fn elem_bytes(&self) -> usize {
        self.dtype.size_bytes()
    }
}
