//! Layer: host / topology, above the search.
//! Takes: the search result of each rank.
//! Gives: [`Summary`], its encoding for the other ranks, and [`agree`]: the lanes of every host, and the minimum over
//! all ranks.
//! Never: decides between ranks: if ranks of a host found different channels, the error names them.

use super::channels::{HostLanes, Inside};
use super::search::{CHANNELS_MAX, Graphs, TopoGraph};
use super::system::{CpuModel, GPUS_MAX};
use super::{PathKind, Paths, System};
use crate::wire::{Message, digest};
use oxccl_shared::abi::Rank;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// One rank's description of its host's channels.
#[derive(Clone, PartialEq, Debug)]
pub struct Summary {
    /// Bandwidth and distance of rings, then of trees.
    pub reach: [Reach; 2],
    /// The slowest pair of GPUs.
    pub pairs: Pairs,
    /// Whether its CPUs are slow at posting to a network: AMD's are, by NCCL's rule.
    pub posts_slowly: bool,
    /// The channels. Only a host's first rank sends them.
    pub lanes: HostLanes,
}

/// Properties of a graph's channels.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Reach {
    /// Number of channels.
    pub channels: u32,
    /// GB/s of a channel between GPUs; 0 if unknown.
    pub bw_intra: f32,
    /// GB/s of a channel to the network; 0 if unknown.
    pub bw_inter: f32,
    /// Latency of the network, in microseconds.
    pub latency_inter: f32,
    /// Farthest path type between GPUs.
    pub type_intra: PathKind,
    /// Farthest path type to the network.
    pub type_inter: PathKind,
}

impl Reach {
    fn of(graph: &TopoGraph) -> Reach {
        let TopoGraph { bw_intra, bw_inter, latency_inter, type_intra, type_inter, .. } = *graph;
        let channels = graph.lanes.len() as u32;
        Reach { channels, bw_intra, bw_inter, latency_inter, type_intra, type_inter }
    }

    /// The minimum of both.
    fn least(self, other: Reach) -> Reach {
        Reach {
            channels: self.channels.min(other.channels),
            bw_intra: self.bw_intra.min(other.bw_intra),
            bw_inter: self.bw_inter.min(other.bw_inter),
            latency_inter: self.latency_inter.max(other.latency_inter),
            type_intra: self.type_intra.max(other.type_intra),
            type_inter: self.type_inter.max(other.type_inter),
        }
    }
}

/// The slowest pair of a host's GPUs.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Pairs {
    /// GB/s of the slowest pair alone; infinite if there is no pair.
    pub bw: f32,
    /// Farthest path type of a pair.
    pub kind: PathKind,
}

impl Pairs {
    fn of(system: &System, paths: &Paths) -> Pairs {
        let gpus = &system.gpus;
        let pairs = gpus.iter().flat_map(|from| gpus.iter().map(move |to| (*from, *to)));
        let routes = pairs.filter(|(from, to)| from != to).map(|(from, to)| paths.between(from, to));
        routes.map(|route| Pairs { bw: route.bw, kind: route.kind }).fold(Pairs::NONE, Pairs::worst)
    }

    /// The identity of the minimum.
    const NONE: Pairs = Pairs { bw: f32::INFINITY, kind: PathKind::Loc };

    fn worst(self, other: Pairs) -> Pairs {
        Pairs { bw: self.bw.min(other.bw), kind: self.kind.max(other.kind) }
    }
}

/// What all ranks agree on.
#[derive(Clone, PartialEq, Debug)]
pub struct Agreed {
    /// The minimum over all ranks: of rings, then of trees.
    pub reach: [Reach; 2],
    /// The slowest pair of any host.
    pub pairs: Pairs,
    /// Whether any host's CPUs are slow at posting to a network.
    pub posts_slowly: bool,
    /// The lanes of each host, in the order of the hosts' first ranks.
    pub hosts: Vec<HostLanes>,
}

/// Why the ranks cannot agree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum AgreeError {
    /// A block that is no summary.
    #[error("rank {rank} sent no description of its channels; do all ranks run the same OxCCL?")]
    Malformed {
        /// Its sender.
        rank: Rank,
    },
    /// Ranks of a host found different channels.
    #[error(
        "rank {rank} found other channels through its host than rank {first}, which is on the same one; do both have the same \
         NCCL_TOPO_FILE, NCCL_GRAPH_FILE and OxCCL?"
    )]
    Differ {
        /// The host's first rank.
        first: Rank,
        /// The first rank there that differs from it.
        rank: Rank,
    },
}

impl Summary {
    /// The summary of a searched host.
    pub fn new(system: &System, paths: &Paths, graphs: &Graphs) -> Summary {
        let inside = if is_uniform(system, paths) { Inside::Binary } else { Inside::Chain };
        Summary {
            reach: [Reach::of(&graphs.ring), Reach::of(&graphs.tree)],
            pairs: Pairs::of(system, paths),
            posts_slowly: system.cpus.iter().any(|cpu| system.cpu_model(*cpu) == CpuModel::Amd),
            lanes: HostLanes { inside, ..HostLanes::new(graphs) },
        }
    }

    /// What the ranks of `hosts` hosts like this one agree on, if ranks are numbered host by host.
    pub fn of_hosts(self, hosts: u32) -> Agreed {
        let Summary { reach, pairs, posts_slowly, lanes } = self;
        Agreed { reach, pairs, posts_slowly, hosts: lanes.repeated(hosts) }
    }

    /// The summary of a host of which only the ranks are known.
    pub fn unknown(ranks: Vec<Rank>) -> Summary {
        let reach = Reach {
            channels: 1,
            bw_intra: 0.0,
            bw_inter: 0.0,
            latency_inter: 0.0,
            type_intra: PathKind::Sys,
            type_inter: PathKind::Sys,
        };
        let pairs = Pairs { bw: 0.0, kind: PathKind::Sys };
        Summary { reach: [reach; 2], pairs, posts_slowly: false, lanes: HostLanes::uniform(ranks) }
    }

    /// Encodes it for the wire. Only a host's first rank sends its lanes; the others send a digest of them.
    pub fn to_bytes(&self, is_first: bool) -> Vec<u8> {
        let Summary { reach, pairs, posts_slowly, lanes } = self;
        let digest = digest(lanes);
        let lanes = is_first.then(|| lanes.clone());
        SummaryBlock { digest, reach: *reach, pairs: *pairs, posts_slowly: *posts_slowly, lanes }.to_bytes()
    }
}

/// A [`Summary`] as it travels.
#[derive(Serialize, Deserialize)]
struct SummaryBlock {
    /// Of the lanes.
    digest: u64,
    reach: [Reach; 2],
    pairs: Pairs,
    posts_slowly: bool,
    lanes: Option<HostLanes>,
}

impl Message for SummaryBlock {
    const VERSION: u8 = 2;
    const BYTES_MAX: usize = 128 + 2 * CHANNELS_MAX * (2 + 5 * GPUS_MAX + 10);

    /// Speeds and times are numbers; ranks in lanes are checked where lanes are joined.
    fn is_sound(&self) -> bool {
        let is_number = |number: f32| number.is_finite() && number >= 0.0;
        let is_sound =
            |reach: &Reach| [reach.bw_intra, reach.bw_inter, reach.latency_inter].into_iter().all(is_number);
        // Infinite where a host has one GPU.
        self.reach.iter().all(is_sound) && self.pairs.bw >= 0.0 && self.lanes.as_ref().is_none_or(has_room)
    }
}

/// Whether there are no more lanes than channels, none longer than a host, and all as long as the first.
fn has_room(lanes: &HostLanes) -> bool {
    let nets = lanes.ring_nets.len();
    (nets == 0 || nets == lanes.rings.len())
        && [&lanes.rings, &lanes.trees].into_iter().all(|lanes| {
            let len = lanes.first().map_or(0, Vec::len);
            lanes.len() <= CHANNELS_MAX && len <= GPUS_MAX && lanes.iter().all(|lane| lane.len() == len)
        })
}

/// Whether NVSwitches join any two GPUs, so that a tree may use links that are on no lane.
fn is_uniform(system: &System, paths: &Paths) -> bool {
    let farthest = paths.kinds(system, &system.gpus).map_or(PathKind::Loc, |(_, farthest)| farthest);
    system.nv_switch.is_some() && farthest <= PathKind::Nvl
}

/// Combines the summaries of all ranks, in rank order. `hosts` has the host of each rank.
///
/// # Errors
/// [`AgreeError`], the same on all ranks.
pub fn agree(blocks: &[Vec<u8>], hosts: &[u64]) -> Result<Agreed, AgreeError> {
    let mut all: Option<[Reach; 2]> = None;
    let (mut pairs, mut posts_slowly) = (Pairs::NONE, false);
    // The first rank of each host, and the digest of its lanes.
    let mut firsts: Vec<(u64, Rank, u64)> = Vec::new();
    let mut lanes = Vec::new();
    for (rank, (block, host)) in (0..).map(Rank).zip(blocks.iter().zip(hosts)) {
        let malformed = AgreeError::Malformed { rank };
        let said = SummaryBlock::from_bytes(block).map_err(|_| malformed)?;
        let SummaryBlock { digest, reach, .. } = said;
        all = Some(all.map_or(reach, |all| [all[0].least(reach[0]), all[1].least(reach[1])]));
        pairs = pairs.worst(said.pairs);
        posts_slowly |= said.posts_slowly;
        match (firsts.iter().find(|first| first.0 == *host).copied(), said.lanes) {
            (Some((_, first, theirs)), _) if theirs != digest => {
                return Err(AgreeError::Differ { first, rank });
            }
            (Some(_), None) => {}
            (None, Some(found)) => {
                firsts.push((*host, rank, digest));
                lanes.push(found);
            }
            (Some(_), Some(_)) | (None, None) => return Err(malformed),
        }
    }
    let agreed = all.map(|reach| Agreed { reach, pairs, posts_slowly, hosts: lanes });
    agreed.ok_or(AgreeError::Malformed { rank: Rank(0) })
}
