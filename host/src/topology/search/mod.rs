//! Layer: host / topology / search.
//! Takes: a [`System`], its [`Paths`] and a [`SearchConfig`].
//! Gives: [`Graphs`]: for each algorithm, the channels that use the machine best.
//! Never: runs long: steps are counted and bounded, so that the answer is the same on every rank and every machine.
//!
//! The search is NCCL's in what it tries and in which order, since its answers are what users know and tune for. A channel
//! carries some speed; it takes that from each link it crosses. `walk` finds as many channels as the links carry at one
//! speed and one set of allowances, depth first; `relax` loosens allowances and lowers speed until something is found, then
//! raises speed again as far as it goes.

mod graph;
mod bounds;
mod capacity;
mod candidates;
mod moves;
mod walk;
mod relax;

pub use graph::{CHANNELS_MAX, Graph, GraphId, Lane, Pattern};

use super::{Paths, System, Tables};
use bounds::Bounds;
use candidates::Choices;
use relax::Request;
use std::ops::RangeInclusive;

/// What the user sets. The default is that of an empty environment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SearchConfig {
    /// Numbers of which release.
    pub tables: Tables,
    /// Whether a ring may enter a host by another NIC than it leaves by (`NCCL_CROSS_NIC`): 0 never, 1 always, 2 if better.
    pub cross_nic: u32,
    /// Whether to look for channels that reduce in the network (`NCCL_COLLNET_ENABLE`).
    pub collnet: bool,
    /// Whether to look for channels that reduce in NVSwitches (`NCCL_NVLS_ENABLE`).
    pub nvls: bool,
}

impl Default for SearchConfig {
    fn default() -> Self {
        SearchConfig { tables: Tables::Current, cross_nic: 2, collnet: false, nvls: true }
    }
}

/// Everything that searches need to know of the machine.
pub(crate) struct Machine<'a> {
    pub system: &'a System,
    pub paths: &'a Paths,
    pub bounds: Bounds,
    pub choices: Choices,
}

/// A machine whose graphs can be searched one by one.
pub struct Search<'a> {
    machine: Machine<'a>,
    config: &'a SearchConfig,
}

impl<'a> Search<'a> {
    /// Looks at the machine. Without network devices in `system`, no rank is on another host.
    pub fn new(system: &'a System, paths: &'a Paths, config: &'a SearchConfig) -> Search<'a> {
        let (bounds, choices) = (Bounds::new(system, paths), Choices::new(system, paths));
        Search { machine: Machine { system, paths, bounds, choices }, config }
    }

    /// As many channels as are of use, from and to so many, to be used as `pattern` tells; a single GPU has chains only. Where none
    /// are found in time, GPUs are visited as in the lanes `along`, which another graph has.
    pub fn graph(
        &self,
        id: GraphId,
        pattern: Pattern,
        channels: RangeInclusive<usize>,
        along: &[Lane],
    ) -> Graph {
        let (channels_min, channels_max) = (*channels.start(), *channels.end());
        let request = Request { id, pattern, channels_min, channels_max, along };
        relax::search(&self.machine, self.config, request)
    }
}

/// The answers.
#[derive(Clone, PartialEq, Debug)]
pub struct Graphs {
    /// Rings.
    pub ring: Graph,
    /// Trees; as many channels as rings.
    pub tree: Graph,
    /// Chains to a NIC that reduces; empty if there is none.
    pub collnet_chain: Graph,
    /// GPUs that each send straight to a NIC that reduces; empty if there is none.
    pub collnet_direct: Graph,
    /// GPUs that each have their share reduced in NVSwitches; empty if there are none.
    pub nvls: Graph,
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
            collnet_chain: Graph::none(GraphId::CollnetChain, Pattern::Tree),
            collnet_direct: Graph::none(GraphId::CollnetDirect, Pattern::CollnetDirect),
            nvls: Graph::none(GraphId::Nvls, Pattern::Nvls),
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
            // Alone, all GPUs are to pull evenly.
            let min = if system.nets.is_empty() { max } else { 1 };
            graphs.nvls = search.graph(GraphId::Nvls, Pattern::Nvls, min..=max, &[]);
        }
        graphs
    }

    /// Puts a graph in the place of the one of its kind.
    pub fn replace(&mut self, graph: Graph) {
        let place = match graph.id {
            GraphId::Ring => &mut self.ring,
            GraphId::Tree => &mut self.tree,
            GraphId::CollnetChain => &mut self.collnet_chain,
            GraphId::CollnetDirect => &mut self.collnet_direct,
            GraphId::Nvls => &mut self.nvls,
        };
        *place = graph;
    }

    /// In the order in which NCCL dumps them.
    pub fn all(&self) -> [&Graph; 5] {
        [&self.ring, &self.tree, &self.collnet_direct, &self.collnet_chain, &self.nvls]
    }
}

/// Peers of a rank in collnet direct, itself included.
const DIRECT_HEADS_MAX: usize = 8;
