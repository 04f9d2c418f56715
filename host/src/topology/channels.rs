//! Layer: host / topology, above the search.
//! Takes: the search results of all hosts, in the same order on every rank.
//! Gives: [`Channels`]: rings and trees over all ranks, for every channel.
//! Never: looks at links: it trusts the lanes that the search built.
//!
//! A ring follows each host's lane, then goes from the lane's last GPU to the first GPU of the next host. Between
//! hosts, a tree is a double binary tree. Inside a host, a tree is a chain along the lane, because a lane promises no
//! other links; its links to other hosts end at the lane's first GPUs, as the pattern says. Where all ranks of a host
//! reach each other equally well, the tree inside the host is binary too, and its root has the links to other hosts.

use super::search::{CHANNELS_MAX, Graphs, Pattern, TopoGraph};
use oxccl_shared::abi::Rank;
use oxccl_shared::algo::tree::{ARITY_MAX, TreeLinks, double_binary_tree};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// One host's contribution to the channels: its lanes by channel, in ranks of the communicator.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostLanes {
    /// Lanes of the ring graph.
    pub rings: Vec<Vec<Rank>>,
    /// Lanes of the tree graph.
    pub trees: Vec<Vec<Rank>>,
    /// Of each lane of the ring graph, the network devices by which it enters and leaves the host; empty where there are none.
    pub ring_nets: Vec<[u64; 2]>,
    /// How trees connect to other hosts.
    pub tree_pattern: Pattern,
    /// Consecutive ring lanes use two NICs in opposite roles.
    pub alternates: bool,
    /// Shape of the trees inside the host.
    pub inside: Inside,
}

/// Shape of a tree inside a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Inside {
    /// A chain along the lane.
    Chain,
    /// A binary tree over the lane: fewer steps, over links between any two ranks.
    Binary,
}

impl HostLanes {
    /// The lanes of a host's graphs, whose GPUs have ranks of the communicator. Trees are chains, as in NCCL.
    pub fn new(graphs: &Graphs) -> HostLanes {
        let lanes = |graph: &TopoGraph| graph.lanes.iter().map(|lane| lane.gpus.clone()).collect();
        HostLanes {
            rings: lanes(&graphs.ring),
            trees: lanes(&graphs.tree),
            ring_nets: graphs
                .ring
                .lanes
                .iter()
                .map(|lane| lane.nets)
                .collect::<Option<_>>()
                .unwrap_or_default(),
            tree_pattern: graphs.tree.pattern,
            alternates: graphs.ring.cross_nic == 2,
            inside: Inside::Chain,
        }
    }

    /// A host whose ranks reach each other and the network equally well: one lane, in the given order.
    pub fn uniform(ranks: Vec<Rank>) -> HostLanes {
        HostLanes {
            rings: vec![ranks.clone()],
            trees: vec![ranks],
            ring_nets: Vec::new(),
            tree_pattern: Pattern::Tree,
            alternates: false,
            inside: Inside::Binary,
        }
    }
}

impl HostLanes {
    /// The lanes of `hosts` hosts like this one. Ranks 0 to n - 1 are on the first host, the next n on the second,
    /// and so on.
    pub fn repeated(&self, hosts: u32) -> Vec<HostLanes> {
        let gpus = self.rings.first().map_or(0, Vec::len) as u32;
        let shifted = |lanes: &[Vec<Rank>], by: u32| -> Vec<Vec<Rank>> {
            lanes.iter().map(|lane| lane.iter().map(|rank| Rank(rank.0 + by)).collect()).collect()
        };
        let host = |host: u32| HostLanes {
            rings: shifted(&self.rings, host * gpus),
            trees: shifted(&self.trees, host * gpus),
            ..self.clone()
        };
        (0..hosts).map(host).collect()
    }

    /// Steps from the host's farthest rank to the root of its tree.
    pub fn tree_depth(&self) -> u32 {
        let ranks = self.trees.first().map_or(0, Vec::len) as u32;
        match self.inside {
            Inside::Chain => ranks.saturating_sub(1),
            Inside::Binary => ranks.max(1).next_power_of_two().trailing_zeros(),
        }
    }
}

/// Why the lanes of the hosts cannot be joined.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum JoinError {
    /// A host has no channels.
    #[error("host {host} of {hosts} has no {what} channel")]
    NoChannels {
        /// The first such host, by index.
        host: usize,
        /// Number of hosts.
        hosts: usize,
        /// Ring or tree.
        what: &'static str,
    },
    /// A rank that appears twice, or that is not in the communicator.
    #[error("rank {rank} on host {host} is claimed twice or is not below {nranks}")]
    Rank {
        /// The rank.
        rank: Rank,
        /// The host that names it, by index.
        host: usize,
        /// Ranks of the communicator.
        nranks: u32,
    },
    /// The lanes of a host do not all visit the same GPUs.
    #[error("channel {channel} of host {host} visits other ranks than channel 0 of its rings")]
    Lane {
        /// The host, by index.
        host: usize,
        /// The channel.
        channel: usize,
    },
}

/// Rings and trees over all ranks. Of `n` channels, `c` and `c + n/2` have the same ring and the two trees of a
/// double binary tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Channels {
    /// For each channel, the ranks in ring order, starting at rank 0.
    pub rings: Vec<Vec<Rank>>,
    /// For each channel, each rank's neighbours in the tree.
    pub trees: Vec<Vec<TreeLinks>>,
    /// For each channel, the gate of every host; none where rings leave by any device, or not at all.
    gates: Vec<Vec<Gate>>,
}

/// Where a ring enters and leaves a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gate {
    /// The first rank there.
    pub first: Rank,
    /// The last.
    pub last: Rank,
    /// The devices that the search gave its lane, to enter and to leave by.
    pub nets: [u64; 2],
}

impl Channels {
    /// Joins the lanes of all hosts. The host with the fewest channels sets the number of channels.
    ///
    /// # Errors
    /// See [`JoinError`].
    pub fn join(hosts: &[HostLanes]) -> Result<Channels, JoinError> {
        let nranks = check(hosts)?;
        let least = |count: fn(&HostLanes) -> usize| hosts.iter().map(count).min().unwrap_or(0);
        let count = least(|host| host.rings.len()).min(least(|host| host.trees.len())).min(CHANNELS_MAX / 2);
        let alternates = hosts.iter().all(|host| host.alternates) && count.is_multiple_of(2);
        let mut rings: Vec<Vec<Rank>> = (0..count).map(|channel| ring(hosts, channel, alternates)).collect();
        rings.extend_from_within(..);
        let has_gates = hosts.len() > 1 && hosts.iter().all(|host| host.ring_nets.len() == host.rings.len());
        let gated = if has_gates { 0..count } else { 0..0 };
        let gates = gated.map(|channel| gates(hosts, channel, alternates)).collect();
        let mut trees = vec![vec![TreeLinks::default(); nranks as usize]; 2 * count];
        let (first, second) = trees.split_at_mut(count);
        for (channel, (first, second)) in first.iter_mut().zip(second).enumerate() {
            join_trees(hosts, channel, [first, second]);
        }
        Ok(Channels { rings, trees, gates })
    }

    /// Channels of one host whose ranks reach each other equally well, in rank order.
    pub fn in_rank_order(nranks: u32) -> Channels {
        let one = HostLanes::uniform((0..nranks).map(Rank).collect());
        Channels::join(&[one]).expect("ranks in their order are a lane")
    }

    /// The ring of a channel. Channels beyond the last ring start again at the first.
    pub fn ring(&self, channel: usize) -> &[Rank] {
        &self.rings[channel % self.rings.len()]
    }

    /// The same with these rings, which the user orders.
    pub fn with_rings(self, rings: &[Vec<Rank>]) -> Channels {
        Channels { rings: rings.to_vec(), gates: Vec::new(), ..self }
    }

    /// Where the ring of a channel enters and leaves the hosts, if it has devices of its own there.
    pub fn gates(&self, channel: usize) -> &[Gate] {
        self.gates.get(channel % self.gates.len().max(1)).map_or(&[], Vec::as_slice)
    }

    /// The tree of a channel. The two trees alternate, so any even number of channels uses every rank's links in both
    /// directions.
    pub fn tree(&self, channel: usize) -> &[TreeLinks] {
        let pairs = self.trees.len() / 2;
        &self.trees[channel % 2 * pairs + channel / 2 % pairs]
    }
}

/// Checks that every rank is on one host and that every lane of a host visits its ranks once. Returns the number of
/// ranks.
fn check(hosts: &[HostLanes]) -> Result<u32, JoinError> {
    for (host, lanes) in hosts.iter().enumerate() {
        for (what, lanes) in [("ring", &lanes.rings), ("tree", &lanes.trees)] {
            if lanes.first().is_none_or(Vec::is_empty) {
                return Err(JoinError::NoChannels { host, hosts: hosts.len(), what });
            }
        }
    }
    let nranks = hosts.iter().map(|host| host.rings[0].len()).sum::<usize>();
    // The host of each rank, and the last lane that visited the rank.
    let mut owner: Vec<Option<usize>> = vec![None; nranks];
    let mut visited: Vec<usize> = vec![0; nranks];
    let mut visit = 0;
    for (host, lanes) in hosts.iter().enumerate() {
        for rank in &lanes.rings[0] {
            let place = owner.get_mut(rank.index()).filter(|owner| owner.is_none());
            *place.ok_or(JoinError::Rank { rank: *rank, host, nranks: nranks as u32 })? = Some(host);
        }
        for (channel, lane) in lanes.rings.iter().enumerate().chain(lanes.trees.iter().enumerate()) {
            visit += 1;
            let fits = |rank: &Rank| {
                let at = rank.index();
                owner.get(at) == Some(&Some(host)) && std::mem::replace(&mut visited[at], visit) != visit
            };
            if lane.len() != lanes.rings[0].len() || !lane.iter().all(fits) {
                return Err(JoinError::Lane { host, channel });
            }
        }
    }
    Ok(nranks as u32)
}

/// The lane of a channel on a host. Where lanes alternate NICs, every second host takes the other lane of the pair. Traffic that leaves by a
/// NIC here then enters by the same NIC there, and stays on one rail of the network.
fn lane_of(host: usize, channel: usize, alternates: bool) -> usize {
    if alternates && host % 2 == 1 { channel ^ 1 } else { channel }
}

fn gates(hosts: &[HostLanes], channel: usize, alternates: bool) -> Vec<Gate> {
    let gate = |(host, lanes): (usize, &HostLanes)| {
        let lane = lane_of(host, channel, alternates);
        let ring = &lanes.rings[lane];
        Gate { first: ring[0], last: ring[ring.len() - 1], nets: lanes.ring_nets[lane] }
    };
    hosts.iter().enumerate().map(gate).collect()
}

fn ring(hosts: &[HostLanes], channel: usize, alternates: bool) -> Vec<Rank> {
    let mut ring = Vec::new();
    for (host, lanes) in hosts.iter().enumerate() {
        ring.extend_from_slice(&lanes.rings[lane_of(host, channel, alternates)]);
    }
    let start = ring.iter().position(|rank| *rank == Rank(0)).unwrap_or(0);
    ring.rotate_left(start);
    ring
}

/// The GPUs of a host, by index in the lane, that hold a tree's links to other hosts.
struct Gateways {
    up: usize,
    down: [usize; 2],
}

impl HostLanes {
    /// The gateways of one of the two trees.
    fn gateways(&self, ranks: usize, half: usize) -> Gateways {
        if self.inside == Inside::Binary {
            // The root has at most one child in its host, so it has room for two on other hosts.
            let is_root = |place: &usize| place_in_tree(*place, ranks, half).is_root();
            let root = (0..ranks).find(is_root).unwrap_or(0);
            return Gateways { up: root, down: [root, root] };
        }
        let second = 1.min(ranks - 1);
        match self.tree_pattern {
            Pattern::SplitTree => Gateways { up: 0, down: [second, second] },
            Pattern::BalancedTree => Gateways { up: 0, down: [second, 0] },
            _ => Gateways { up: 0, down: [0, 0] },
        }
    }

    /// Links the ranks of one lane.
    fn link(&self, lane: &[Rank], half: usize, tree: &mut [TreeLinks]) {
        let rank = |place: Rank| lane[place.index()];
        for (place, own) in lane.iter().enumerate() {
            let links = match self.inside {
                Inside::Binary => place_in_tree(place, lane.len(), half),
                Inside::Chain => place_in_chain(place, lane.len()),
            };
            tree[own.index()] =
                TreeLinks { up: links.up.map(rank), down: links.down.map(|child| child.map(rank)) };
        }
    }
}

fn place_in_tree(place: usize, ranks: usize, half: usize) -> TreeLinks {
    double_binary_tree(Rank(place as u32), ranks as u32)[half]
}

fn place_in_chain(place: usize, ranks: usize) -> TreeLinks {
    let down = (place + 1 < ranks).then_some(Rank(place as u32 + 1));
    TreeLinks { up: place.checked_sub(1).map(|up| Rank(up as u32)), down: [down, None, None] }
}

/// Links one channel of both trees across hosts.
fn join_trees(hosts: &[HostLanes], channel: usize, trees: [&mut Vec<TreeLinks>; 2]) {
    let count = hosts.len() as u32;
    for (half, tree) in trees.into_iter().enumerate() {
        let gateway = |host: Rank, place: fn(&Gateways) -> usize| {
            let lanes = &hosts[host.index()];
            let lane = &lanes.trees[channel];
            lane[place(&lanes.gateways(lane.len(), half))]
        };
        for lanes in hosts {
            lanes.link(&lanes.trees[channel], half, tree);
        }
        for host in (0..count).map(Rank) {
            let links = double_binary_tree(host, count)[half];
            for (i, child) in links.down.iter().enumerate() {
                let Some(child) = child else { continue };
                // A root's only child becomes its second child: the first GPU of that host has no parent elsewhere
                // then.
                let is_first = i == 0 && !links.is_root();
                let own = gateway(
                    host,
                    if is_first { |gateways| gateways.down[0] } else { |gateways| gateways.down[1] },
                );
                let theirs = gateway(*child, |gateways| gateways.up);
                tree[theirs.index()].up = Some(own);
                add_child(&mut tree[own.index()], theirs);
            }
        }
    }
}

/// Adds a child. The child on the same host stays first; children on other hosts follow.
fn add_child(links: &mut TreeLinks, child: Rank) {
    debug_assert!(
        links.down[ARITY_MAX - 1].is_none(),
        "a gateway has one child on its host and two on others"
    );
    let place = links.down.iter().skip(1).position(Option::is_none).map_or(0, |place| place + 1);
    links.down[if links.down[0].is_none() { 0 } else { place }] = Some(child);
}
