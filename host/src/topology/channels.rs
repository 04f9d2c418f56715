//! Layer: host / topology, above the search.
//! Takes: what each host's search found, of all hosts, in the same order on every rank.
//! Gives: [`Channels`]: rings over all ranks and trees over all ranks, for every channel.
//! Never: looks at links: a host's lanes are as good as the search made them.
//!
//! A ring goes along each host's lane and from its last GPU to the first of the next host. Between hosts a tree is a double
//! binary tree. Inside a host it is a chain along the lane, since that is all that a lane promises, and its links to other
//! hosts end at the lane's first GPUs as the pattern tells; or, where all ranks of the host reach each other equally well, it
//! is a binary tree as well, whose root has the links to other hosts.

use super::search::{CHANNELS_MAX, Graph, Graphs, Pattern};
use oxccl_shared::abi::Rank;
use oxccl_shared::algo::tree::{ARITY_MAX, TreeLinks, double_binary_tree};
use thiserror::Error;

/// What a rank needs to know of each host to build channels: lanes by channel, in ranks of the communicator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostLanes {
    /// Of the ring graph.
    pub rings: Vec<Vec<u32>>,
    /// Of the tree graph.
    pub trees: Vec<Vec<u32>>,
    /// How trees leave a host.
    pub tree_pattern: Pattern,
    /// Lanes of rings in pairs use two NICs in opposite roles.
    pub alternates: bool,
    /// How trees go inside the host.
    pub inside: Inside,
}

/// A tree's way inside a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inside {
    /// Along the lane.
    Chain,
    /// Binary over the lane's places: fewer steps, over links between any two ranks.
    Binary,
}

impl HostLanes {
    /// The lanes of a host's graphs, whose GPUs have ranks of the communicator; trees are NCCL's, chains.
    pub fn new(graphs: &Graphs) -> HostLanes {
        let lanes = |graph: &Graph| graph.lanes.iter().map(|lane| lane.gpus.clone()).collect();
        HostLanes {
            rings: lanes(&graphs.ring),
            trees: lanes(&graphs.tree),
            tree_pattern: graphs.tree.pattern,
            alternates: graphs.ring.cross_nic == 2,
            inside: Inside::Chain,
        }
    }

    /// A host of ranks that reach each other equally well, and the network too: one lane, in this order.
    pub fn uniform(ranks: Vec<u32>) -> HostLanes {
        HostLanes {
            rings: vec![ranks.clone()],
            trees: vec![ranks],
            tree_pattern: Pattern::Tree,
            alternates: false,
            inside: Inside::Binary,
        }
    }
}

impl HostLanes {
    /// The lanes of `hosts` hosts that are all like this one, whose ranks 0 to n - 1 are followed by those of the next.
    pub fn repeated(&self, hosts: u32) -> Vec<HostLanes> {
        let gpus = self.rings.first().map_or(0, Vec::len) as u32;
        let shifted = |lanes: &[Vec<u32>], by: u32| -> Vec<Vec<u32>> {
            lanes.iter().map(|lane| lane.iter().map(|rank| rank + by).collect()).collect()
        };
        let host = |host: u32| HostLanes {
            rings: shifted(&self.rings, host * gpus),
            trees: shifted(&self.trees, host * gpus),
            ..self.clone()
        };
        (0..hosts).map(host).collect()
    }

    /// Steps from the farthest rank of the host to the tree's root there.
    pub fn tree_depth(&self) -> u32 {
        let ranks = self.trees.first().map_or(0, Vec::len) as u32;
        match self.inside {
            Inside::Chain => ranks.saturating_sub(1),
            Inside::Binary => ranks.max(1).next_power_of_two().trailing_zeros(),
        }
    }
}

/// Why hosts' lanes do not join.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum JoinError {
    /// Nothing to join.
    #[error("host {host} of {hosts} has no {what} channel")]
    NoChannels {
        /// The first such host, by place.
        host: usize,
        /// How many there are.
        hosts: usize,
        /// Ring or tree.
        what: &'static str,
    },
    /// A rank that two hosts, or two places of a lane, claim, or that is not in the communicator.
    #[error("rank {rank} on host {host} is claimed twice or is not below {nranks}")]
    Rank {
        /// The rank.
        rank: u32,
        /// Who claims it, by place.
        host: usize,
        /// Ranks of the communicator.
        nranks: u32,
    },
    /// A host's lanes do not visit the same GPUs.
    #[error("channel {channel} of host {host} visits other ranks than channel 0 of its rings")]
    Lane {
        /// The host, by place.
        host: usize,
        /// The channel.
        channel: usize,
    },
}

/// Rings and trees over all ranks. Channel `c` and channel `c + n/2` of `n` have the same ring and the two halves of a
/// double tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Channels {
    /// For each channel, the ranks in the order of the ring, from rank 0 on.
    pub rings: Vec<Vec<u32>>,
    /// For each channel, each rank's neighbours in the tree.
    pub trees: Vec<Vec<TreeLinks>>,
}

impl Channels {
    /// Joins hosts. All get as many channels as the host with the fewest.
    ///
    /// # Errors
    /// See [`JoinError`].
    pub fn join(hosts: &[HostLanes]) -> Result<Channels, JoinError> {
        let nranks = check(hosts)?;
        let least = |count: fn(&HostLanes) -> usize| hosts.iter().map(count).min().unwrap_or(0);
        let count = least(|host| host.rings.len()).min(least(|host| host.trees.len())).min(CHANNELS_MAX / 2);
        let alternates = hosts.iter().all(|host| host.alternates) && count.is_multiple_of(2);
        let mut rings: Vec<Vec<u32>> = (0..count).map(|channel| ring(hosts, channel, alternates)).collect();
        rings.extend_from_within(..);
        let mut trees = vec![vec![TreeLinks::default(); nranks as usize]; 2 * count];
        let (first, second) = trees.split_at_mut(count);
        for (channel, (first, second)) in first.iter_mut().zip(second).enumerate() {
            join_trees(hosts, channel, [first, second]);
        }
        Ok(Channels { rings, trees })
    }

    /// One host of ranks that reach each other equally well, in their order.
    pub fn in_rank_order(nranks: u32) -> Channels {
        let one = HostLanes::uniform((0..nranks).collect());
        Channels::join(&[one]).expect("ranks in their order are a lane")
    }

    /// The ring of a channel. There may be more channels than rings were found: these begin anew then.
    pub fn ring(&self, channel: usize) -> &[u32] {
        &self.rings[channel % self.rings.len()]
    }

    /// The tree of a channel. Halves take turns, so that any even number of channels uses every rank's links both ways.
    pub fn tree(&self, channel: usize) -> &[TreeLinks] {
        let pairs = self.trees.len() / 2;
        &self.trees[channel % 2 * pairs + channel / 2 % pairs]
    }

    /// A rank's neighbours in the ring of a channel: whom it receives from, whom it sends to.
    pub fn ring_neighbours(&self, rank: u32, channel: usize) -> Option<(u32, u32)> {
        let ring = self.rings.get(channel)?;
        let at = ring.iter().position(|other| *other == rank)?;
        Some((ring[(at + ring.len() - 1) % ring.len()], ring[(at + 1) % ring.len()]))
    }
}

/// Every rank is on one host, and every lane of a host visits its ranks once. Returns how many there are.
fn check(hosts: &[HostLanes]) -> Result<u32, JoinError> {
    for (host, lanes) in hosts.iter().enumerate() {
        for (what, lanes) in [("ring", &lanes.rings), ("tree", &lanes.trees)] {
            if lanes.first().is_none_or(Vec::is_empty) {
                return Err(JoinError::NoChannels { host, hosts: hosts.len(), what });
            }
        }
    }
    let nranks = hosts.iter().map(|host| host.rings[0].len()).sum::<usize>();
    // Which host has a rank, and the last lane that visited it.
    let mut owner: Vec<Option<usize>> = vec![None; nranks];
    let mut visited: Vec<usize> = vec![0; nranks];
    let mut visit = 0;
    for (host, lanes) in hosts.iter().enumerate() {
        for rank in &lanes.rings[0] {
            let place = owner.get_mut(*rank as usize).filter(|owner| owner.is_none());
            *place.ok_or(JoinError::Rank { rank: *rank, host, nranks: nranks as u32 })? = Some(host);
        }
        for (channel, lane) in lanes.rings.iter().enumerate().chain(lanes.trees.iter().enumerate()) {
            visit += 1;
            let fits = |rank: &u32| {
                let at = *rank as usize;
                owner.get(at) == Some(&Some(host)) && std::mem::replace(&mut visited[at], visit) != visit
            };
            if lane.len() != lanes.rings[0].len() || !lane.iter().all(fits) {
                return Err(JoinError::Lane { host, channel });
            }
        }
    }
    Ok(nranks as u32)
}

fn ring(hosts: &[HostLanes], channel: usize, alternates: bool) -> Vec<u32> {
    let mut ring = Vec::new();
    for (host, lanes) in hosts.iter().enumerate() {
        // With lanes in pairs, every second host takes the other one: what leaves by a NIC here enters by the same one there,
        // so that traffic stays on one rail of the network.
        let lane = if alternates && host % 2 == 1 { channel ^ 1 } else { channel };
        ring.extend_from_slice(&lanes.rings[lane]);
    }
    let start = ring.iter().position(|rank| *rank == 0).unwrap_or(0);
    ring.rotate_left(start);
    ring
}

/// GPUs of a host, by place in the lane, where a tree's links between hosts end.
struct Doors {
    up: usize,
    down: [usize; 2],
}

impl HostLanes {
    /// The doors of one half of a double tree.
    fn doors(&self, ranks: usize, half: usize) -> Doors {
        if self.inside == Inside::Binary {
            // The root has one child at most, and so room for two on other hosts.
            let is_root = |place: &usize| place_in_tree(*place, ranks, half).is_root();
            let root = (0..ranks).find(is_root).unwrap_or(0);
            return Doors { up: root, down: [root, root] };
        }
        let second = 1.min(ranks - 1);
        match self.tree_pattern {
            Pattern::SplitTree => Doors { up: 0, down: [second, second] },
            Pattern::BalancedTree => Doors { up: 0, down: [second, 0] },
            _ => Doors { up: 0, down: [0, 0] },
        }
    }

    /// Links the ranks of a lane.
    fn link(&self, lane: &[u32], half: usize, tree: &mut [TreeLinks]) {
        let rank = |place: Rank| Rank(lane[place.index()]);
        for (place, own) in lane.iter().enumerate() {
            let links = match self.inside {
                Inside::Binary => place_in_tree(place, lane.len(), half),
                Inside::Chain => place_in_chain(place, lane.len()),
            };
            tree[*own as usize] =
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

/// Links one channel of each of the two trees.
fn join_trees(hosts: &[HostLanes], channel: usize, trees: [&mut Vec<TreeLinks>; 2]) {
    let count = hosts.len() as u32;
    for (half, tree) in trees.into_iter().enumerate() {
        let door = |host: Rank, place: fn(&Doors) -> usize| {
            let lanes = &hosts[host.index()];
            let lane = &lanes.trees[channel];
            lane[place(&lanes.doors(lane.len(), half))]
        };
        for lanes in hosts {
            lanes.link(&lanes.trees[channel], half, tree);
        }
        for host in (0..count).map(Rank) {
            let links = double_binary_tree(host, count)[half];
            for (i, child) in links.down.iter().enumerate() {
                let Some(child) = child else { continue };
                // A root's only child counts as its second: the first GPU of a host has no parent elsewhere then.
                let is_first = i == 0 && !links.is_root();
                let own = door(host, if is_first { |doors| doors.down[0] } else { |doors| doors.down[1] });
                let theirs = door(*child, |doors| doors.up);
                tree[theirs as usize].up = Some(Rank(own));
                add_child(&mut tree[own as usize], theirs);
            }
        }
    }
}

/// A child on the same host stays first; children on other hosts follow.
fn add_child(links: &mut TreeLinks, child: u32) {
    debug_assert!(links.down[ARITY_MAX - 1].is_none(), "a door has one child on its host and two on others");
    let place = links.down.iter().skip(1).position(Option::is_none).map_or(0, |place| place + 1);
    links.down[if links.down[0].is_none() { 0 } else { place }] = Some(Rank(child));
}
