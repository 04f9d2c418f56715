//! Layer: host / topology / search.
//! Takes: a [`System`], its [`Paths`] and a [`SearchConfig`].
//! Gives: [`Graphs`]: for each algorithm, the channels that use the machine best.
//! Never: runs long: it counts steps against a budget, so that every rank on every machine gets the same answer.
//!
//! The search tries what NCCL tries, in the same order: users know NCCL's answers and tune for them. A channel takes
//! its bandwidth from each link that it crosses. `walk` finds as many channels as the links carry at one bandwidth
//! and under one set of constraints, depth first. `relax` loosens constraints and lowers the bandwidth until a walk
//! succeeds, then raises the bandwidth as far as possible. `settle` ends a search that has found nothing within its budget.

mod config;
mod graph;
mod bounds;
mod choices;
mod machine;
mod capacity;
mod candidates;
mod moves;
mod walk;
mod relax;
mod settle;

pub use config::SearchConfig;
pub use graph::{CHANNELS_MAX, GraphId, Lane, Pattern, TopoGraph};

use super::{Paths, System};
use bounds::Bounds;
use choices::Choices;
use machine::Machine;
use relax::Request;
use std::ops::RangeInclusive;

/// A machine whose graphs can be searched one at a time.
pub struct Search<'a> {
    machine: Machine<'a>,
    config: &'a SearchConfig,
}

impl<'a> Search<'a> {
    /// Prepares the searches. Without network devices in `system`, no rank is on another host.
    pub fn new(system: &'a System, paths: &'a Paths, config: &'a SearchConfig) -> Search<'a> {
        let (bounds, choices) = (Bounds::new(system, paths), Choices::new(system, paths));
        Search { machine: Machine { system, paths, bounds, choices }, config }
    }

    /// Searches for useful channels, as many as `channels` allows, of a `pattern`; a single GPU has chains only. If
    /// the budget ends without a result, GPUs are visited in the order of the lanes `along` of another graph.
    pub fn graph(
        &self,
        id: GraphId,
        pattern: Pattern,
        channels: RangeInclusive<usize>,
        along: &[Lane],
    ) -> TopoGraph {
        let (channels_min, channels_max) = (*channels.start(), *channels.end());
        let request = Request { id, pattern, channels_min, channels_max, along };
        relax::search(&self.machine, self.config, request)
    }
}

/// The search results.
#[derive(Clone, PartialEq, Debug)]
pub struct Graphs {
    /// Rings.
    pub ring: TopoGraph,
    /// Trees; as many channels as rings.
    pub tree: TopoGraph,
    /// Chains to a NIC with in-network reduction; empty if there is none.
    pub collnet_chain: TopoGraph,
    /// GPUs that each send directly to a NIC with in-network reduction; empty if there is none.
    pub collnet_direct: TopoGraph,
    /// GPUs that each reduce their share in NVSwitches; empty if there are none.
    pub nvls: TopoGraph,
}

impl Graphs {
    /// Searches all graphs. Without network devices in `system`, no rank is on another host.
    pub fn search(system: &System, paths: &Paths, config: &SearchConfig) -> Graphs {
        let search = Search::new(system, paths, config);
        let gpus = system.gpus.len();
        let ring = search.graph(GraphId::Ring, Pattern::Ring, 1..=CHANNELS_MAX / 2, &[]);
        let channels = ring.lanes.len();
        let tree = search.graph(GraphId::Tree, Pattern::BalancedTree, channels..=channels, &ring.lanes);
        let mut graphs = Graphs {
            ring,
            tree,
            collnet_chain: TopoGraph::none(GraphId::CollnetChain, Pattern::Tree),
            collnet_direct: TopoGraph::none(GraphId::CollnetDirect, Pattern::CollnetDirect),
            nvls: TopoGraph::none(GraphId::Nvls, Pattern::Nvls),
        };
        if config.collnet {
            let direct_max = gpus.min(DIRECT_HEADS_MAX);
            graphs.collnet_chain =
                search.graph(GraphId::CollnetChain, Pattern::Tree, channels..=channels, &graphs.ring.lanes);
            graphs.collnet_direct =
                search.graph(GraphId::CollnetDirect, Pattern::CollnetDirect, 1..=direct_max, &[]);
        }
        if config.nvls && system.nv_switch.is_some() && system.sm_min() >= 90 {
            let max = gpus.min(CHANNELS_MAX / 2);
            // On a single host, all GPUs are to use the same number of channels.
            let min = if system.nets.is_empty() { max } else { 1 };
            graphs.nvls = search.graph(GraphId::Nvls, Pattern::Nvls, min..=max, &[]);
        }
        graphs
    }

    /// Replaces the graph of the same kind.
    pub fn replace(&mut self, graph: TopoGraph) {
        let place = match graph.id {
            GraphId::Ring => &mut self.ring,
            GraphId::Tree => &mut self.tree,
            GraphId::CollnetChain => &mut self.collnet_chain,
            GraphId::CollnetDirect => &mut self.collnet_direct,
            GraphId::Nvls => &mut self.nvls,
        };
        *place = graph;
    }

    /// All graphs, in the order of NCCL's dumps.
    pub fn all(&self) -> [&TopoGraph; 5] {
        [&self.ring, &self.tree, &self.collnet_direct, &self.collnet_chain, &self.nvls]
    }
}

/// Most peers of a rank in CollNet direct, including itself.
const DIRECT_HEADS_MAX: usize = 8;
