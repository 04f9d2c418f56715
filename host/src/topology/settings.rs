//! Layer: host / topology, a leaf.
//! Takes: nothing.
//! Gives: [`TopologySettings`]: the user's options for topology.
//! Never: reads the environment: the owner of the settings fills them.

use super::{PathKind, PathPolicy, SearchConfig};
use oxccl_shared::abi::Rank;
use std::path::PathBuf;

/// The user's options. The default is that of an empty environment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopologySettings {
    /// Devices that detection would not see (`NCCL_TOPO_FILE`): a skeleton that detection completes.
    pub file: Option<PathBuf>,
    /// Where to write the detected topology (`NCCL_TOPO_DUMP_FILE`, `NCCL_TOPO_DUMP_FILE_RANK`).
    pub dump: Option<Dump>,
    /// Channels to use instead of searching (`NCCL_GRAPH_FILE`).
    pub graph_file: Option<PathBuf>,
    /// Where to write the channels in use (`NCCL_GRAPH_DUMP_FILE`, `NCCL_GRAPH_DUMP_FILE_RANK`).
    pub graph_dump: Option<Dump>,
    /// Farthest path type for peer-to-peer access between GPUs (`NCCL_P2P_LEVEL`).
    pub p2p_level: Option<PathKind>,
    /// Farthest path type for GPUDirect RDMA (`NCCL_NET_GDR_LEVEL`).
    pub gdr_level: Option<PathKind>,
    /// Whether rings may enter a host by another NIC than they leave by (`NCCL_CROSS_NIC`): 0 never, 1 always, 2 if
    /// better.
    pub cross_nic: u32,
    /// Ignore the process's CPU affinity when locating it (`NCCL_IGNORE_CPU_AFFINITY`).
    pub ignore_cpu_affinity: bool,
    /// Rings to use instead of searching, each a list of ranks in order (`NCCL_RINGS`).
    pub rings: Option<Vec<Vec<Rank>>>,
}

/// A file and the rank that writes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dump {
    /// The file.
    pub path: PathBuf,
    /// The one rank that writes.
    pub rank: Rank,
}

impl Default for TopologySettings {
    fn default() -> Self {
        TopologySettings {
            file: None,
            dump: None,
            graph_file: None,
            graph_dump: None,
            p2p_level: None,
            gdr_level: None,
            cross_nic: SearchConfig::default().cross_nic,
            ignore_cpu_affinity: false,
            rings: None,
        }
    }
}

impl TopologySettings {
    /// The policy: the user's options, and `detected` where the user sets none.
    pub fn policy(&self, detected: PathPolicy) -> PathPolicy {
        PathPolicy {
            p2p_level: self.p2p_level.or(detected.p2p_level),
            gdr_level: self.gdr_level.or(detected.gdr_level),
            ..detected
        }
    }

    /// The settings for a subset of the ranks: without rings, graph files and dumps, which concern all ranks.
    pub fn for_some_ranks(self) -> TopologySettings {
        TopologySettings { rings: None, graph_file: None, dump: None, graph_dump: None, ..self }
    }

    /// Options of the search. No schedule reduces in NVSwitches yet, so the search skips NVLS channels.
    pub fn search(&self) -> SearchConfig {
        SearchConfig { cross_nic: self.cross_nic, nvls: false, ..SearchConfig::default() }
    }

    /// Whether a communicator of one rank must detect its topology although it needs no channels.
    pub fn wants_files(&self) -> bool {
        [&self.file, &self.graph_file].into_iter().any(Option::is_some)
            || self.dump.is_some()
            || self.graph_dump.is_some()
    }

    /// Whether each of the user's rings, if any, visits all ranks of a communicator once.
    pub fn rings_fit(&self, nranks: u32) -> bool {
        self.rings.iter().flatten().all(|ring| is_permutation(ring, nranks))
    }
}

fn is_permutation(ring: &[Rank], nranks: u32) -> bool {
    let mut seen = vec![false; nranks as usize];
    let mut visit =
        |rank: &Rank| seen.get_mut(rank.index()).is_some_and(|seen| !std::mem::replace(seen, true));
    ring.len() == nranks as usize && ring.iter().all(&mut visit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_all_ranks_does_not_hold_for_some() {
        let dump = || Some(Dump { path: "dump.xml".into(), rank: Rank(0) });
        let machine = TopologySettings {
            file: Some("machine.xml".into()),
            p2p_level: Some(PathKind::Pix),
            cross_nic: 1,
            ..TopologySettings::default()
        };
        let ranks = TopologySettings {
            rings: Some(vec![vec![Rank(1), Rank(0)]]),
            graph_file: Some("graph.xml".into()),
            dump: dump(),
            graph_dump: dump(),
            ..machine.clone()
        };
        assert_eq!(ranks.for_some_ranks(), machine);
    }

    #[test]
    fn rings_visit_each_rank_once() {
        let fits = |rings: &[&[u32]], nranks| {
            let rings = rings.iter().map(|ring| ring.iter().copied().map(Rank).collect()).collect();
            TopologySettings { rings: Some(rings), ..TopologySettings::default() }.rings_fit(nranks)
        };
        assert!(fits(&[&[2, 0, 1], &[0, 1, 2]], 3));
        for wrong in [&[0u32, 1][..], &[0, 1, 1], &[0, 1, 3], &[0, 1, 2, 2]] {
            assert!(!fits(&[&[0, 1, 2], wrong], 3), "{wrong:?}");
        }
        assert!(TopologySettings::default().rings_fit(7));
    }
}
