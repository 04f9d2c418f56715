//! Rings and trees over CPU ranks. Every rank computes the same from the same facts.

use crate::topology::{Channels, HostLanes, JoinError};
use crate::transport::PeerInfo;
use oxccl_shared::abi::Rank;
use oxccl_shared::algo::tree::TreeLinks;
use std::collections::HashMap;

/// Channels of rings: a CPU rank is one thread, so a second channel would only halve the slots.
const RING_CHANNELS: usize = 1;
/// Channels of trees: both trees of a double tree.
const TREE_CHANNELS: usize = 2;

/// The rings and trees of a communicator over CPU ranks.
#[derive(Clone, Debug)]
pub struct RankGraph {
    /// Of each channel that rings use.
    rings: Vec<Ring>,
    /// Of each channel that trees use: every rank's links.
    trees: Vec<Vec<TreeLinks>>,
    /// The ranks of each host.
    hosts: Vec<Vec<Rank>>,
}

#[derive(Clone, Debug)]
struct Ring {
    /// Rank at each position.
    order: Vec<Rank>,
    /// Position of each rank.
    positions: Vec<u32>,
}

impl Ring {
    fn new(order: Vec<Rank>) -> Ring {
        let mut positions = vec![0; order.len()];
        for (position, rank) in order.iter().enumerate() {
            positions[rank.index()] = position as u32;
        }
        Ring { order, positions }
    }
}

impl RankGraph {
    /// Builds them for the locality in `peers`. Rings go from host to host and on each from NUMA node to NUMA node,
    /// so that they enter and leave each once, independent of rank numbers. `rings`, if the user has some, each name
    /// every rank once.
    ///
    /// # Errors
    /// None that correct arguments can cause: every rank is on one host.
    pub fn new(peers: &[PeerInfo], rings: Option<&[Vec<Rank>]>) -> Result<RankGraph, JoinError> {
        let hosts = hosts(peers);
        let lanes: Vec<HostLanes> = hosts.iter().cloned().map(HostLanes::uniform).collect();
        let channels = Channels::join(&lanes)?;
        let rings = match rings {
            Some(rings) => rings.iter().cloned().map(Ring::new).collect(),
            None => (0..RING_CHANNELS).map(|channel| Ring::new(channels.ring(channel).to_vec())).collect(),
        };
        let trees = (0..TREE_CHANNELS).map(|channel| channels.tree(channel).to_vec()).collect();
        Ok(RankGraph { rings, trees, hosts })
    }

    /// Number of channels of rings, which are the first ones.
    pub fn ring_channels(&self) -> u32 {
        self.rings.len() as u32
    }

    /// Number of channels of trees, which are the first ones; the two trees of a double tree alternate.
    pub fn tree_channels(&self) -> u32 {
        self.trees.len() as u32
    }

    /// Channels that have any connection.
    pub fn channels(&self) -> u32 {
        self.ring_channels().max(self.tree_channels())
    }

    /// Rank at each position of each channel's ring.
    pub fn rings(&self) -> Vec<Vec<Rank>> {
        self.rings.iter().map(|ring| ring.order.clone()).collect()
    }

    /// Rank at each position of a channel's ring.
    pub fn ring(&self, channel: u32) -> &[Rank] {
        &self.rings[channel as usize].order
    }

    /// A rank's position in a channel's ring.
    pub fn position(&self, channel: u32, rank: Rank) -> u32 {
        self.rings[channel as usize].positions[rank.index()]
    }

    /// The rank `steps` positions after `rank` in a channel's ring.
    pub fn along_ring(&self, channel: u32, rank: Rank, steps: u32) -> Rank {
        let ring = self.ring(channel);
        ring[(self.position(channel, rank) + steps) as usize % ring.len()]
    }

    /// A rank's neighbours in the tree of `channel`.
    pub fn tree(&self, rank: Rank, channel: u32) -> TreeLinks {
        self.trees[channel as usize][rank.index()]
    }

    /// The ranks of each host in the order of its chain, with near ranks adjacent. The first of each is its head.
    pub fn hosts(&self) -> &[Vec<Rank>] {
        &self.hosts
    }

    /// A head's index among heads; none for other ranks.
    pub fn head_index(&self, rank: Rank) -> Option<u32> {
        self.hosts.iter().position(|host| host[0] == rank).map(|index| index as u32)
    }

    /// The ranks from which `rank` receives on `channel`, each once, in rank order.
    pub fn sources(&self, rank: Rank, channel: u32) -> Vec<Rank> {
        self.neighbours(rank, channel, |ring| ring.len() as u32 - 1)
    }

    /// The ranks to which `rank` sends on `channel`, each once, in rank order.
    pub fn targets(&self, rank: Rank, channel: u32) -> Vec<Rank> {
        self.neighbours(rank, channel, |_| 1)
    }

    fn neighbours(&self, rank: Rank, channel: u32, ring_steps: fn(&[Rank]) -> u32) -> Vec<Rank> {
        let mut peers = Vec::new();
        if channel < self.ring_channels() {
            peers.push(self.along_ring(channel, rank, ring_steps(self.ring(channel))));
        }
        if channel < self.tree_channels() {
            let links = self.tree(rank, channel);
            peers.extend(links.up.iter().chain(links.down.iter().flatten()));
        }
        peers.retain(|peer| *peer != rank);
        peers.sort_unstable();
        peers.dedup();
        peers
    }
}

/// The ranks of each host, hosts by their first rank; on a host those of each NUMA node together, ranks without a
/// node last.
fn hosts(peers: &[PeerInfo]) -> Vec<Vec<Rank>> {
    let mut index: HashMap<u64, usize> = HashMap::new();
    let mut hosts: Vec<Vec<Rank>> = Vec::new();
    for (rank, peer) in (0..).map(Rank).zip(peers) {
        let at = *index.entry(peer.host).or_insert(hosts.len());
        if at == hosts.len() {
            hosts.push(Vec::new());
        }
        hosts[at].push(rank);
    }
    for ranks in &mut hosts {
        ranks.sort_by_key(|rank| peers[rank.index()].numa_node.unwrap_or(u32::MAX));
    }
    hosts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn peer(host: u64, numa_node: Option<u32>) -> PeerInfo {
        PeerInfo { host, numa_node, ..PeerInfo::default() }
    }

    fn graph(peers: &[PeerInfo]) -> RankGraph {
        RankGraph::new(peers, None).unwrap()
    }

    /// Number of borders between groups that a ring crosses.
    fn borders<T: PartialEq>(graph: &RankGraph, of: impl Fn(Rank) -> T) -> usize {
        let ring = graph.ring(0);
        (0..ring.len()).filter(|i| of(ring[*i]) != of(ring[(*i + 1) % ring.len()])).count()
    }

    #[test]
    fn a_ring_enters_each_host_once() {
        let peers = [7, 9, 7, 9, 3, 7].map(|host| peer(host, None));
        let graph = graph(&peers);
        assert_eq!(graph.ring(0), [0, 2, 5, 1, 3, 4].map(Rank));
        assert_eq!(graph.along_ring(0, Rank(4), 1), Rank(0));
        assert_eq!(borders(&graph, |rank| peers[rank.index()].host), 3);
    }

    #[test]
    fn and_each_numa_node_of_a_host() {
        let nodes = [Some(1), Some(0), None, Some(1), Some(0), Some(1)];
        let graph = graph(&nodes.map(|node| peer(1, node)));
        assert_eq!(graph.ring(0), [0, 3, 5, 2, 1, 4].map(Rank));
    }

    #[test]
    fn the_users_rings_are_taken_as_they_are() {
        let rings = [[2, 0, 1], [0, 1, 2], [1, 0, 2]].map(|ring| ring.map(Rank).to_vec());
        let graph = RankGraph::new(&[1, 2, 1].map(|host| peer(host, None)), Some(&rings)).unwrap();
        assert_eq!((graph.ring_channels(), graph.channels()), (3, 3));
        assert_eq!(graph.ring(2), [1, 0, 2].map(Rank));
        assert_eq!((graph.position(0, Rank(1)), graph.along_ring(0, Rank(1), 1)), (2, Rank(2)));
    }

    proptest! {
        #[test]
        fn sources_and_targets_mirror_each_other(
            places in proptest::collection::vec((0u64..5, proptest::option::of(0u32..3)), 1..24),
        ) {
            let peers: Vec<PeerInfo> = places.iter().map(|(host, node)| peer(*host, *node)).collect();
            let graph = graph(&peers);
            let count = peers.len() as u32;
            let hosts = hosts(&peers).len();
            prop_assert_eq!(borders(&graph, |rank| peers[rank.index()].host), if hosts > 1 { hosts } else { 0 });
            for channel in 0..graph.channels() {
                for rank in (0..count).map(Rank) {
                    for peer in graph.targets(rank, channel) {
                        prop_assert!(graph.sources(peer, channel).contains(&rank));
                    }
                    for peer in graph.sources(rank, channel) {
                        prop_assert!(graph.targets(peer, channel).contains(&rank));
                    }
                }
                // Each host but the root's has one link up to another host.
                let away = |rank: &Rank| {
                    let up = graph.tree(*rank, channel).up;
                    up.is_some_and(|up| peers[up.index()].host != peers[rank.index()].host)
                };
                prop_assert_eq!((0..count).map(Rank).filter(away).count(), hosts - 1);
            }
        }
    }
}
