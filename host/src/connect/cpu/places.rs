//! Which connection of a channel leads to which neighbour: said anew whenever connections have been added.

use super::graph::RankGraph;
use crate::launch::Channel;
use crate::machine::cpu::NOT_MADE;
use oxccl_device::coll::TreeEnds;
use oxccl_shared::abi::Rank;
use oxccl_shared::algo::mesh;

/// Gives a channel its place in the ring and the tree.
pub(super) fn place(channel: &mut Channel, graph: &RankGraph, rank: Rank, index: u32) {
    if index < graph.ring_channels() {
        let nranks = graph.ring(index).len() as u32;
        channel.ring_order = graph.ring(index).to_vec();
        channel.ring_position = graph.position(index, rank);
        channel.ring_recv = recv_index(channel, graph.along_ring(index, rank, nranks - 1));
        channel.ring_send = send_index(channel, graph.along_ring(index, rank, 1));
    }
    if index < graph.tree_channels() {
        let links = graph.tree(rank, index);
        let mut tree = TreeEnds { links, ..TreeEnds::default() };
        for child in links.down.into_iter().flatten() {
            tree.child_recv[tree.children] = recv_index(channel, child);
            tree.child_send[tree.children] = send_index(channel, child);
            tree.children += 1;
        }
        if let Some(parent) = links.up {
            tree.parent_recv = [recv_index(channel, parent)];
            tree.parent_send = [send_index(channel, parent)];
        }
        channel.tree = tree;
    }
}

/// Orders the mesh's connections. Returns the index of that to each rank, and of that from each. Those to and from a network that reduces,
/// which begin at `reducing`, are of no pair.
pub(super) fn place_mesh(
    mesh: &mut Channel,
    (rank, nranks): (Rank, u32),
    reducing: Option<[u16; 2]>,
) -> (Vec<u16>, Vec<u16>) {
    let [sends, recvs] = reducing.map_or([usize::MAX; 2], |places| places.map(usize::from));
    let (mut send_to, mut recv_from) = (vec![NOT_MADE; nranks as usize], vec![NOT_MADE; nranks as usize]);
    for (index, conn) in mesh.send.iter().enumerate().take(sends) {
        send_to[conn.peer().index()] = index as u16;
    }
    for (index, conn) in mesh.recv.iter().enumerate().take(recvs) {
        recv_from[conn.peer().index()] = index as u16;
    }
    order_mesh(mesh, rank, nranks, &send_to, &recv_from);
    (send_to, recv_from)
}

/// Lists the mesh's connections in the orders of its algorithms.
pub(super) fn order_mesh(mesh: &mut Channel, rank: Rank, nranks: u32, send_to: &[u16], recv_from: &[u16]) {
    let others = (0..nranks).map(Rank).filter(|peer| *peer != rank);
    mesh.mesh_recv = others.map(|peer| recv_from[peer.index()]).collect();
    mesh.mesh_send = mesh::peers(rank, nranks).map(|peer| send_to[peer.index()]).collect();
}

/// The connection to `peer`; 0 where there is none, which is never used then.
fn send_index(channel: &Channel, peer: Rank) -> u16 {
    channel.send.iter().position(|conn| conn.peer() == peer).unwrap_or(0) as u16
}

/// The connection from `peer`; 0 where there is none, which is never used then.
fn recv_index(channel: &Channel, peer: Rank) -> u16 {
    channel.recv.iter().position(|conn| conn.peer() == peer).unwrap_or(0) as u16
}
