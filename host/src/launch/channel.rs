//! The connections of a channel's kernels, owned by the host.

use oxccl_device::coll::{ChainEnds, Endpoints, RingEnds, TreeEnds};
use oxccl_device::conn::{Conns, RecvConn, SendConn};
use oxccl_shared::abi::Rank;
use oxccl_shared::algo::collnet::Owner;

/// One channel: its connections and its position in ring, tree or mesh.
#[derive(Default)]
pub struct Channel {
    /// To consumers.
    pub send: Vec<SendConn>,
    /// From producers.
    pub recv: Vec<RecvConn>,
    /// The ring: rank at each position.
    pub ring_order: Vec<Rank>,
    /// Our position in the ring.
    pub ring_position: u32,
    /// Index into `recv` of the rank before us.
    pub ring_recv: u16,
    /// Index into `send` of the rank after us.
    pub ring_send: u16,
    /// The tree.
    pub tree: TreeEnds,
    /// The chain to in-network reduction.
    pub chain: ChainEnds,
    /// Where each rank is, seen from this one's place in the chain.
    pub chain_owners: Vec<Owner>,
    /// The mesh: indices into `recv` by rank order, ourselves left out.
    pub mesh_recv: Vec<u16>,
    /// The mesh: indices into `send` in the order of `algo::mesh::peers`.
    pub mesh_send: Vec<u16>,
}

impl Channel {
    /// The view for kernels.
    #[inline]
    pub fn view(&self) -> (Conns<'_>, Endpoints<'_>) {
        let ring = RingEnds {
            order: &self.ring_order,
            position: self.ring_position,
            recv: [self.ring_recv],
            send: [self.ring_send],
        };
        let Channel { tree, chain, chain_owners, mesh_recv, mesh_send, .. } = self;
        let ends = Endpoints { ring, tree, chain, chain_owners, mesh_recv, mesh_send };
        (Conns { send: &self.send, recv: &self.recv }, ends)
    }
}
