//! This rank's host: the merged view of its ranks, and the channels through it.

use super::error::SurveyError;
use super::wanted::SurveyWanted;
use crate::os::write_within_limit;
use crate::topology::detect::Found;
use crate::topology::xml::{read_graphs, read_text, write_graphs, write_topology};
use crate::topology::{
    Dump, Graphs, Inventory, MergeError, PathPolicy, Paths, PeerAccess, Summary, System, Tables,
    TopologySettings,
};
use oxccl_shared::abi::Rank;

pub(super) enum Machine {
    /// Only the ranks are known.
    Unknown {
        ranks: Vec<Rank>,
    },
    Known(Box<Known>),
}

pub(super) struct Known {
    inventory: Inventory,
    system: System,
    paths: Paths,
    graphs: Graphs,
    /// Pairs of ranks that are too far apart to access each other's memory.
    far: Vec<(Rank, Rank)>,
}

impl Machine {
    /// Merges the views of all ranks; `ranks` are those of this host.
    pub fn new(
        rank: Rank,
        ranks: Vec<Rank>,
        found: &[Vec<u8>],
        wanted: &SurveyWanted<'_>,
    ) -> Result<Machine, SurveyError> {
        let settings = wanted.settings;
        let Some(sights) = read(&ranks, found)? else { return Ok(Machine::Unknown { ranks }) };
        let Some(inventory) = merge(&ranks, &sights)? else { return Ok(Machine::Unknown { ranks }) };
        let mut system = match (System::new(&inventory, Tables::Current), &settings.file) {
            (Ok(system), _) => system,
            (Err(source), Some(path)) => {
                return Err(SurveyError::System { rank, path: path.clone(), source: Box::new(source) });
            }
            (Err(error), None) => {
                tracing::warn!(%rank, %error, "the topology makes no sense; ranks are taken in their order");
                return Ok(Machine::Unknown { ranks });
            }
        };
        if wanted.hosts.len() == ranks.len() {
            system = system.without_network();
        }
        let policy = settings.policy(PathPolicy {
            peer_access: PeerAccess::Except(refused(&ranks, &sights, &inventory)),
            ..PathPolicy::default()
        });
        let paths = Paths::new(&system, &policy);
        let mut graphs = Graphs::search(&system, &paths, &settings.search());
        read_graph_file(rank, settings, &system, &mut graphs)?;
        let far = far(&system, policy);
        Ok(Machine::Known(Box::new(Known { inventory, system, paths, graphs, far })))
    }

    pub fn summary(&self) -> Summary {
        match self {
            Machine::Unknown { ranks } => Summary::unknown(ranks.clone()),
            Machine::Known(known) => Summary::new(&known.system, &known.paths, &known.graphs),
        }
    }

    /// The host's inventory.
    pub fn inventory(self) -> Option<Inventory> {
        match self {
            Machine::Unknown { .. } => None,
            Machine::Known(known) => Some(known.inventory),
        }
    }

    /// The name of a network device that the search gave a lane.
    pub fn net_name(&self, id: u64) -> Option<String> {
        let Machine::Known(known) = self else { return None };
        let mut nets = known.system.nets.iter().map(|net| known.system.net(*net));
        nets.find(|net| net.id == id).map(|net| net.name.clone())
    }

    /// Ranks whose GPUs are too far away for access to their memory. For an unknown machine the driver decides.
    pub fn refused(&self, rank: Rank) -> Vec<Rank> {
        match self {
            Machine::Unknown { .. } => Vec::new(),
            Machine::Known(known) => {
                let mine = known.far.iter().filter(|pair| pair.0 == rank);
                mine.map(|pair| pair.1).collect()
            }
        }
    }

    /// Writes the user's dumps, if this rank is to write them.
    pub fn dump(&self, rank: Rank, settings: &TopologySettings) -> Result<(), SurveyError> {
        let Machine::Known(known) = self else {
            let asked = [&settings.dump, &settings.graph_dump];
            if asked.into_iter().flatten().any(|dump| dump.rank == rank) {
                tracing::warn!(%rank, "nothing is dumped: the topology is unknown");
            }
            return Ok(());
        };
        let write = |variable, dump: &Option<Dump>, text: &dyn Fn() -> String| match dump {
            Some(dump) if dump.rank == rank => write_within_limit(|| std::fs::write(&dump.path, text()))
                .map_err(|error| SurveyError::file(rank, variable, &dump.path, error.into())),
            _ => Ok(()),
        };
        write("NCCL_TOPO_DUMP_FILE", &settings.dump, &|| {
            let mut inventory = known.inventory.clone();
            inventory.sort_by_rank();
            write_topology(&inventory)
        })?;
        // Such a file names GPUs by their numbers alone: nobody could read it.
        let graph_dump = settings.graph_dump.as_ref().filter(|dump| dump.rank == rank);
        if let (Some(dump), Some([first, second])) = (graph_dump, known.system.one_dev_of_two()) {
            let path = dump.path.display();
            tracing::warn!(%rank, "NCCL_GRAPH_DUMP_FILE={path} is not written: the GPUs of ranks {first} and {second} have one number (dev), by which it would name both");
            return Ok(());
        }
        write("NCCL_GRAPH_DUMP_FILE", &settings.graph_dump, &|| {
            write_graphs(known.graphs.all(), &known.system)
        })
    }
}

/// Decodes each rank's view of the host; none if one of them has no view.
fn read(ranks: &[Rank], found: &[Vec<u8>]) -> Result<Option<Vec<Found>>, SurveyError> {
    let blocks = ranks.iter().map(|rank| (*rank, &found[rank.index()]));
    if blocks.clone().any(|(_, block)| block.is_empty()) {
        return Ok(None);
    }
    let sight =
        |(peer, block): (Rank, &Vec<u8>)| Found::from_bytes(block).ok_or(SurveyError::Malformed { peer });
    blocks.map(sight).collect::<Result<_, _>>().map(Some)
}

/// Merges the views of the host's ranks, in their order. None if two use parts of one GPU: graphs have whole ones
/// only.
fn merge(ranks: &[Rank], sights: &[Found]) -> Result<Option<Inventory>, SurveyError> {
    let mut all = Inventory::new();
    for (peer, sight) in ranks.iter().zip(sights) {
        match all.merge(sight.inventory.clone()) {
            Ok(()) => {}
            Err(MergeError::SharedGpu { .. }) => return Ok(None),
            Err(source) => {
                return Err(SurveyError::Contradiction { first: ranks[0], peer: *peer, source });
            }
        }
    }
    Ok(Some(all))
}

/// Pairs of ranks whose GPUs may not access each other's memory.
fn refused(ranks: &[Rank], sights: &[Found], inventory: &Inventory) -> Vec<(Rank, Rank)> {
    let gpus = inventory.gpus();
    let rank_of = |bus_id| gpus.iter().find(|(pci, _)| pci.bus_id == bus_id).and_then(|(_, gpu)| gpu.rank);
    let pairs = ranks.iter().zip(sights).flat_map(|(rank, sight)| {
        sight.refused.iter().filter_map(move |other| rank_of(*other)).map(|other| (*rank, other))
    });
    pairs.collect()
}

/// Pairs of ranks that may not access each other's memory, in both orders. Kernels access it directly, not through a
/// third GPU.
fn far(system: &System, policy: PathPolicy) -> Vec<(Rank, Rank)> {
    let policy = PathPolicy { nvb: false, ..policy };
    let paths = Paths::new(system, &policy);
    let gpus = &system.gpus;
    let pairs = gpus.iter().flat_map(|a| gpus.iter().map(move |b| (*a, *b))).filter(|(a, b)| a != b);
    let far = pairs.filter(|(a, b)| !policy.allows_p2p(system, &paths, *a, *b));
    far.map(|(a, b)| (system.gpu(a).rank, system.gpu(b).rank)).collect()
}

fn read_graph_file(
    rank: Rank,
    settings: &TopologySettings,
    system: &System,
    graphs: &mut Graphs,
) -> Result<(), SurveyError> {
    let Some(path) = &settings.graph_file else { return Ok(()) };
    let failed = |why| SurveyError::file(rank, "NCCL_GRAPH_FILE", path, why);
    let text = read_text(path).map_err(|error| failed(error.into()))?;
    let read = read_graphs(&text, system).map_err(|error| failed(error.into()))?;
    for graph in read.into_iter().filter(|graph| !graph.lanes.is_empty()) {
        graphs.replace(graph);
    }
    Ok(())
}
