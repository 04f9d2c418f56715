//! The connections of a channel's kernels, owned by the host.

use oxccl_device::coll::{Endpoints, HostEnds, RingEnds, TreeEnds};
use oxccl_device::conn::{Conns, RecvConn, SendConn};
use oxccl_shared::abi::Rank;
use oxccl_shared::algo::collnet::{HostLinks, Owner};

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
    /// The host's chain to in-network reduction.
    pub chain: HostPlaces,
    /// The host's star to in-network reduction.
    pub star: HostPlaces,
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
        let Channel { tree, chain, star, mesh_recv, mesh_send, .. } = self;
        let (chain, star) = (chain.view(), star.view());
        let ends = Endpoints { ring, tree, chain, star, mesh_recv, mesh_send };
        (Conns { send: &self.send, recv: &self.recv }, ends)
    }
}

/// The connections to the ranks of a host, and of a head to the network that reduces: indices into `recv` and `send`.
#[derive(Default)]
pub struct HostPlaces {
    /// Whom this rank has above and below.
    pub links: HostLinks,
    /// From the ranks below.
    pub below_recv: Vec<u16>,
    /// To the ranks below.
    pub below_send: Vec<u16>,
    /// From above.
    pub above_recv: u16,
    /// To above.
    pub above_send: u16,
    /// Where each rank is, seen from this one.
    pub owners: Vec<Owner>,
}

impl HostPlaces {
    fn view(&self) -> HostEnds<'_> {
        HostEnds {
            links: self.links,
            below_recv: &self.below_recv,
            below_send: &self.below_send,
            above_recv: [self.above_recv],
            above_send: [self.above_send],
            owners: &self.owners,
        }
    }
}
