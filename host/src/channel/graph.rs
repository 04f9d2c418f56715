//! Rings and trees over the ranks. Computed alike on every rank, from the same facts.

use oxccl_shared::abi::Rank;
use oxccl_shared::algo::tree::{TreeLinks, double_binary_tree};

/// Who is whose neighbour.
#[derive(Clone, Debug)]
pub struct Graph {
    nranks: u32,
    /// The ring: rank at each position.
    ring: Vec<u32>,
    /// Rings use channels `0..ring_channels`.
    pub ring_channels: u32,
    /// Trees use channels `0..tree_channels`, the two trees of a double tree in turn.
    pub tree_channels: u32,
}

impl Graph {
    /// For ranks on hosts: `hosts[r]` names rank r's. Ranks of a host stand together in the ring, so that it enters and
    /// leaves each host once.
    pub fn new(hosts: &[u64], ring_channels: u32, tree_channels: u32) -> Graph {
        let first_of_host = |host: u64| hosts.iter().position(|h| *h == host);
        let mut ring: Vec<u32> = (0..hosts.len() as u32).collect();
        ring.sort_by_key(|rank| (first_of_host(hosts[*rank as usize]), *rank));
        Graph { nranks: hosts.len() as u32, ring, ring_channels, tree_channels }
    }

    /// Channels that have any connection.
    pub fn channels(&self) -> u32 {
        self.ring_channels.max(self.tree_channels)
    }

    /// Rank at each position of the ring.
    pub fn ring(&self) -> &[u32] {
        &self.ring
    }

    /// A rank's position in the ring.
    pub fn position(&self, rank: u32) -> u32 {
        self.ring.iter().position(|r| *r == rank).unwrap_or(0) as u32
    }

    /// The rank `steps` positions after `rank` in the ring.
    pub fn along_ring(&self, rank: u32, steps: u32) -> u32 {
        self.ring[((self.position(rank) + steps) % self.nranks) as usize]
    }

    /// A rank's neighbours in the tree of `channel`.
    pub fn tree(&self, rank: u32, channel: u32) -> TreeLinks {
        double_binary_tree(Rank(rank), self.nranks)[channel as usize % 2]
    }

    /// From whom `rank` receives on `channel`, each once, in rank order.
    pub fn sources(&self, rank: u32, channel: u32) -> Vec<u32> {
        self.neighbours(rank, channel, self.nranks - 1)
    }

    /// To whom `rank` sends on `channel`, each once, in rank order.
    pub fn targets(&self, rank: u32, channel: u32) -> Vec<u32> {
        self.neighbours(rank, channel, 1)
    }

    fn neighbours(&self, rank: u32, channel: u32, ring_steps: u32) -> Vec<u32> {
        let mut peers = Vec::new();
        if channel < self.ring_channels {
            peers.push(self.along_ring(rank, ring_steps));
        }
        if channel < self.tree_channels {
            let links = self.tree(rank, channel);
            peers.extend(links.up.iter().chain(links.down.iter().flatten()).map(|peer| peer.0));
        }
        peers.retain(|peer| *peer != rank);
        peers.sort_unstable();
        peers.dedup();
        peers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_enters_each_host_once() {
        let hosts = [7, 9, 7, 9, 3, 7];
        let graph = Graph::new(&hosts, 1, 2);
        assert_eq!(graph.ring(), [0, 2, 5, 1, 3, 4]);
        assert_eq!(graph.along_ring(4, 1), 0);
    }

    #[test]
    fn sources_and_targets_mirror_each_other() {
        for n in 1..20u32 {
            let graph = Graph::new(&vec![1; n as usize], 1, 2);
            for channel in 0..graph.channels() {
                for rank in 0..n {
                    for peer in graph.targets(rank, channel) {
                        assert!(graph.sources(peer, channel).contains(&rank));
                    }
                    for peer in graph.sources(rank, channel) {
                        assert!(graph.targets(peer, channel).contains(&rank));
                    }
                }
            }
        }
    }
}
