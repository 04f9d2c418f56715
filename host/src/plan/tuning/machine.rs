//! The model's facts about the machine.

use super::constants::Architecture;
use crate::topology::{Agreed, HostLanes, PathKind, Reach};
use core::fmt;

/// The ranks and their connections; equal on every rank.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Machine {
    /// What the ranks run on.
    pub architecture: Architecture,
    /// Ranks.
    pub nranks: u32,
    /// Number of hosts, with equally many ranks each.
    pub nhosts: u32,
    /// Ranks of each host, where all have equally many that follow each other; otherwise 0. Hosts that share no network of GPUs count
    /// here too, where `nhosts` is 1.
    pub host_ranks: u32,
    /// Whether speeds and path types come from a searched graph, instead of typical values.
    pub is_searched: bool,
    /// The rings' channels.
    pub ring: Speeds,
    /// The trees' channels.
    pub tree: Speeds,
    /// Steps from the farthest leaf of a tree to its root, inside a host and between hosts.
    pub tree_depth: [u32; 2],
    /// Connections of pairs, for direct algorithms.
    pub pairs: Pairs,
    /// GB/s that a rank sends to its peers inside a host, and that the ranks of a host together send to others, in two levels.
    pub level_bw: [f64; 2],
    /// CPU time of a network step, in microseconds.
    pub net_overhead_us: f64,
}

/// The channels of a graph, from the search.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Speeds {
    /// Channels.
    pub channels: u32,
    /// GB/s of each inside a host.
    pub intra_bw: f64,
    /// GB/s of each between hosts.
    pub inter_bw: f64,
    /// Latency of the network, in microseconds.
    pub inter_latency_us: f64,
    /// Farthest path type inside a host.
    pub intra: PathKind,
    /// Farthest path type to the network.
    pub inter: PathKind,
}

/// The worst pair of a host's ranks.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Pairs {
    /// GB/s of the slowest pair alone.
    pub bw: f64,
    /// Farthest kind of route.
    pub kind: PathKind,
}

/// The channels of one kind over a network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crossing {
    /// How many are connected.
    pub channels: u32,
    /// The most of them that leave a host by one device.
    pub sharing: u32,
}

impl Crossing {
    /// All by one device.
    pub fn by_one(channels: u32) -> Crossing {
        Crossing { channels, sharing: channels }
    }
}

/// Speed of a rank's network device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct NetSpeed {
    /// GB/s.
    pub gbytes: f64,
    /// Latency of one message in microseconds.
    pub latency_us: f64,
}

impl Machine {
    /// Ranks of one host with typical connections for their kind.
    pub fn nominal(architecture: Architecture, nranks: u32) -> Machine {
        let (channels, bw) = architecture.constants().nominal;
        let intra = if architecture.is_gpu() { PathKind::Nvl } else { PathKind::Loc };
        let speeds = Speeds {
            channels,
            intra_bw: bw,
            inter_bw: bw,
            inter_latency_us: 0.0,
            intra,
            inter: PathKind::Loc,
        };
        Machine {
            architecture,
            nranks,
            nhosts: 1,
            host_ranks: 0,
            is_searched: false,
            ring: speeds,
            tree: speeds,
            tree_depth: [steps_of(nranks), 0],
            pairs: Pairs { bw: f64::from(channels) * bw, kind: intra },
            level_bw: [f64::from(channels) * bw; 2],
            net_overhead_us: 1.0,
        }
    }

    /// GPUs, the oldest of this compute capability (90 is 9.0), with the agreed channels of their hosts. If a host
    /// has no topology, or a graph file has what NCCL writes where it found nothing, all speeds are typical values.
    pub fn of_agreed(sm: u32, agreed: &Agreed) -> Machine {
        let Agreed { reach: [ring, tree], pairs, posts_slowly, hosts } = agreed;
        let ranks_of = |host: &HostLanes| host.rings.first().map_or(0, Vec::len) as u32;
        let nhosts = hosts.len() as u32;
        let ranks = Machine {
            nhosts,
            tree_depth: [hosts.iter().map(HostLanes::tree_depth).max().unwrap_or(0), steps_of(nhosts)],
            net_overhead_us: if *posts_slowly { 2.0 } else { 1.0 },
            ..Machine::nominal(Architecture::of_sm(sm), hosts.iter().map(ranks_of).sum())
        };
        if ring.bw_intra <= NOTHING_FOUND || tree.bw_intra <= NOTHING_FOUND {
            return ranks;
        }
        // Rings that leave the host are no faster inside it than outside; pairs are. A host of one GPU has none.
        let near_bw = f64::from(ring.channels) * f64::from(ring.bw_intra);
        let near_bw = if pairs.bw.is_finite() { near_bw.max(f64::from(pairs.bw)) } else { near_bw };
        Machine {
            is_searched: true,
            ring: Speeds::of(ring),
            tree: Speeds::of(tree),
            pairs: Pairs { bw: f64::from(pairs.bw), kind: pairs.kind },
            level_bw: [near_bw, f64::from(ring.channels) * f64::from(ring.bw_inter)],
            ..ranks
        }
    }

    /// The same if rings, trees or pairs use host memory, whatever links their GPUs.
    pub fn through_host(mut self, [rings, trees, pairs]: [bool; 3]) -> Machine {
        let kinds =
            [(rings, &mut self.ring.intra), (trees, &mut self.tree.intra), (pairs, &mut self.pairs.kind)];
        for (is_through, kind) in kinds {
            *kind = if is_through { (*kind).max(PathKind::Phb) } else { *kind };
        }
        self
    }

    /// The same ranks in `nhosts` groups with a network between them. A channel of rings or trees is as fast as its share of the device
    /// that most channels leave by, and no faster than inside a host.
    pub fn over_network(self, nhosts: u32, network: NetSpeed, [rings, trees]: [Crossing; 2]) -> Machine {
        let speeds = |inside: Speeds, Crossing { channels, sharing }: Crossing| {
            // Unconnected channels are still estimated, for explanations.
            let channels = channels.max(1);
            let share = network.gbytes / f64::from(sharing.max(1));
            let bw = share.min(f64::from(inside.channels) * inside.intra_bw / f64::from(channels));
            let inter_latency_us = network.latency_us;
            Speeds { channels, intra_bw: bw, inter_bw: bw, inter_latency_us, inter: PathKind::Phb, ..inside }
        };
        let inside = self.nranks.div_ceil(nhosts.max(1));
        // Ranks of an unknown host are in a binary tree.
        let is_known = nhosts > 1 && self.nhosts == nhosts;
        let tree_depth = if is_known { self.tree_depth } else { [steps_of(inside), steps_of(nhosts)] };
        Machine {
            nhosts,
            ring: speeds(self.ring, rings),
            tree: speeds(self.tree, trees),
            tree_depth,
            level_bw: [self.level_bw[0], network.gbytes],
            ..self
        }
    }

    /// The place of this number of hosts in tables.
    pub(super) fn hosts_index(&self) -> usize {
        match self.nhosts {
            0 | 1 => 0,
            2 => 1,
            _ => 2,
        }
    }

    /// GB/s that a rank sends and receives on all channels of its rings together.
    pub fn rank_bw(&self) -> f64 {
        self.ring.total_bw(self.nhosts)
    }

    /// GB/s that a rank sends to all others at once: over a network its share of the host's devices.
    pub(super) fn hops_bw(&self) -> f64 {
        let each = f64::from(self.nranks) / f64::from(self.nhosts.max(1));
        if self.nhosts > 1 { self.rank_bw().min(self.level_bw[1] / each) } else { self.rank_bw() }
    }
}

/// GB/s that NCCL writes of a graph that it did not find: a mark, and no speed.
const NOTHING_FOUND: f32 = 0.1;

/// Steps until all ranks are reached if every reached rank reaches one more per step.
fn steps_of(n: u32) -> u32 {
    n.max(1).next_power_of_two().trailing_zeros()
}

impl Speeds {
    /// Those that all hosts have.
    pub fn of(reach: &Reach) -> Speeds {
        Speeds {
            channels: reach.channels,
            intra_bw: f64::from(reach.bw_intra),
            inter_bw: f64::from(reach.bw_inter),
            inter_latency_us: f64::from(reach.latency_inter),
            intra: reach.type_intra,
            inter: reach.type_inter,
        }
    }

    /// GB/s of all channels together. Between two hosts each channel has the NICs of both to itself, so the speed
    /// inside a host decides.
    pub(super) fn total_bw(&self, nhosts: u32) -> f64 {
        f64::from(self.channels) * if nhosts <= 2 { self.intra_bw } else { self.inter_bw }
    }
}

/// As a headline: `8 ranks on 1 host (GPUs, Hopper)`.
impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = |n: u32| if n == 1 { "" } else { "s" };
        let Machine { nranks, nhosts, architecture, .. } = self;
        write!(f, "{nranks} rank{} on {nhosts} host{} ({architecture})", s(*nranks), s(*nhosts))
    }
}

/// `12 channels of 30.0 GB/s, NVL`
impl fmt::Display for Speeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Speeds { channels, intra_bw, intra, .. } = self;
        write!(
            f,
            "{channels} channel{} of {intra_bw:.1} GB/s, {intra}",
            if *channels == 1 { "" } else { "s" }
        )
    }
}
