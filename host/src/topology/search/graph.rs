//! Layer: host / topology / search, its result.
//! Takes: nothing.
//! Gives: [`TopoGraph`]: the channels of one algorithm on one host, each a [`Lane`] through its GPUs, with the bandwidth
//! of each.
//! Never: other hosts: `channels` joins lanes over hosts.

use crate::topology::PathKind;
use oxccl_shared::abi::Rank;
use std::fmt;

/// Most channels of a graph.
pub const CHANNELS_MAX: usize = 64;

/// Which algorithm a graph is for, with NCCL's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum GraphId {
    /// Rings.
    Ring = 0,
    /// Trees.
    Tree = 1,
    /// Chains to a NIC with in-network reduction.
    CollnetChain = 2,
    /// Reduction in NVSwitches.
    Nvls = 3,
    /// GPUs that send directly to a NIC with in-network reduction.
    CollnetDirect = 4,
}

impl GraphId {
    /// From NCCL's number.
    pub fn from_number(number: u32) -> Option<GraphId> {
        use GraphId::*;
        [Ring, Tree, CollnetChain, Nvls, CollnetDirect].into_iter().find(|id| *id as u32 == number)
    }

    /// Whether it needs network devices with in-network reduction.
    pub(super) fn is_collnet(self) -> bool {
        matches!(self, GraphId::CollnetChain | GraphId::CollnetDirect)
    }

    /// Name for messages.
    pub fn name(self) -> &'static str {
        match self {
            GraphId::Ring => "ring",
            GraphId::Tree => "tree",
            GraphId::CollnetChain => "collnet chain",
            GraphId::Nvls => "NVLS",
            GraphId::CollnetDirect => "collnet direct",
        }
    }
}

/// How a lane uses GPUs and NICs, with NCCL's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[repr(u32)]
pub enum Pattern {
    /// A chain whose first two GPUs share the traffic to the network.
    BalancedTree = 1,
    /// A chain whose first GPU receives from the network and whose second sends to it.
    SplitTree = 2,
    /// A chain whose first GPU does both.
    Tree = 3,
    /// A ring, or a chain from NIC to NIC.
    Ring = 4,
    /// A GPU that reduces for all others through NVSwitches.
    Nvls = 5,
    /// A GPU to which all others send directly.
    CollnetDirect = 6,
}

impl Pattern {
    /// From NCCL's number.
    pub fn from_number(number: u32) -> Option<Pattern> {
        use Pattern::*;
        [BalancedTree, SplitTree, Tree, Ring, Nvls, CollnetDirect].into_iter().find(|p| *p as u32 == number)
    }

    pub(super) fn is_tree(self) -> bool {
        matches!(self, Pattern::BalancedTree | Pattern::SplitTree | Pattern::Tree)
    }

    /// Whether a lane is one head that others send to, instead of an order of all GPUs.
    pub(in crate::topology) fn is_heads(self) -> bool {
        matches!(self, Pattern::Nvls | Pattern::CollnetDirect)
    }
}

/// The part of one channel inside one host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lane {
    /// Ranks in order, each once. In NVLS and CollNet direct the first is the head.
    pub gpus: Vec<Rank>,
    /// Ids of the network devices by which it enters and leaves the host, if there are other hosts.
    pub nets: Option<[u64; 2]>,
}

/// The channels of one algorithm.
#[derive(Clone, PartialEq, Debug)]
pub struct TopoGraph {
    /// Which algorithm.
    pub id: GraphId,
    /// How lanes use GPUs and NICs.
    pub pattern: Pattern,
    /// 0: a lane uses one NIC; 1: it may use two; 2: lanes 2i and 2i+1 use two NICs in opposite roles.
    pub cross_nic: u32,
    /// GB/s of a channel between GPUs.
    pub bw_intra: f32,
    /// GB/s of a channel to the network.
    pub bw_inter: f32,
    /// Latency of the network, in microseconds.
    pub latency_inter: f32,
    /// Farthest path type between GPUs.
    pub type_intra: PathKind,
    /// Farthest path type to the network.
    pub type_inter: PathKind,
    /// Whether all lanes are equal.
    pub same_channels: bool,
    /// Links that all lanes together cross; not in files.
    pub hops: u32,
    /// The channels.
    pub lanes: Vec<Lane>,
}

impl TopoGraph {
    /// No channels.
    pub fn none(id: GraphId, pattern: Pattern) -> TopoGraph {
        TopoGraph {
            id,
            pattern,
            cross_nic: 0,
            bw_intra: 0.0,
            bw_inter: 0.0,
            latency_inter: 0.0,
            type_intra: PathKind::Loc,
            type_inter: PathKind::Loc,
            same_channels: false,
            hops: 0,
            lanes: Vec::new(),
        }
    }
}

/// The form of NCCL's log.
impl fmt::Display for TopoGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Pattern {}, crossNic {}, nChannels {}, bw {:.6}/{:.6}, type {}/{}, sameChannels {}",
            self.pattern as u32,
            self.cross_nic,
            self.lanes.len(),
            self.bw_intra,
            self.bw_inter,
            self.type_intra,
            self.type_inter,
            u8::from(self.same_channels)
        )
    }
}
