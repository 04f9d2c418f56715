//! Surveys of machines that are described by files, by ranks that are threads.

mod pairs;
mod plans;

use super::*;
use crate::bootstrap::{BootstrapConfig, UniqueId};
use crate::topology::detect::{NvmlError, Sysfs};
use crate::topology::xml::read_graphs;
use crate::topology::{
    BusId, Dump, GraphId, Graphs, HostLanes, Paths, Summary, System, Tables, TopologySettings,
};
use oxccl_shared::abi::Rank;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/tests/fixtures/topology").join(format!("{name}.xml"))
}

fn inventory(name: &str) -> Inventory {
    read_topology(&std::fs::read_to_string(fixture(name)).unwrap()).unwrap()
}

/// A machine of which only the file is known.
fn by_file(skeleton: Inventory, own: Own) -> Result<Found, NvmlError> {
    Ok(Found::see(skeleton, &Sysfs::at("/nowhere"), own, None, Vec::new()))
}

/// The same, but rank 2 sees nothing.
fn but_for_rank_2(skeleton: Inventory, own: Own) -> Result<Found, NvmlError> {
    if own.rank == Rank(2) { Err(NvmlError::Load("no such library".into())) } else { by_file(skeleton, own) }
}

/// The same, but all ranks have parts of one GPU.
fn parts_of_one(skeleton: Inventory, own: Own) -> Result<Found, NvmlError> {
    by_file(skeleton, Own { gpu: gpus("h200x4")[0], ..own })
}

struct Scene {
    /// The machine of each host.
    machine: &'static str,
    /// The host of each rank; ranks of a host take its GPUs in order.
    hosts: Vec<u64>,
    look: fn(Inventory, Own) -> Result<Found, NvmlError>,
    /// The GPUs of a machine that is no fixture.
    gpus: Option<Vec<BusId>>,
}

impl Scene {
    fn new(machine: &'static str, hosts: Vec<u64>) -> Scene {
        Scene { machine, hosts, look: by_file, gpus: None }
    }

    fn settings(&self) -> TopologySettings {
        TopologySettings { file: Some(fixture(self.machine)), ..TopologySettings::default() }
    }

    /// What every rank gets; `adapt` changes a rank's settings.
    fn survey(&self, adapt: impl Fn(u32, &mut TopologySettings) + Sync) -> Vec<Result<Survey, ConnectError>> {
        let gpus = self.gpus.clone().unwrap_or_else(|| gpus(self.machine));
        let bind_addr = Some("127.0.0.1".parse().unwrap());
        let config =
            BootstrapConfig { timeout: Duration::from_secs(60), bind_addr, ..BootstrapConfig::default() };
        let id = UniqueId::create_by(&config).unwrap();
        let nranks = self.hosts.len() as u32;
        let one = |rank: Rank| {
            let host = self.hosts[rank.index()];
            let place = self.hosts[..rank.index()].iter().filter(|other| **other == host).count();
            let mut settings = self.settings();
            adapt(rank.0, &mut settings);
            let bootstrap = Bootstrap::connect(&id, rank, nranks, &config).unwrap();
            let wanted =
                SurveyWanted { gpu: gpus[place], hosts: &self.hosts, settings: &settings, look: self.look };
            let found = survey(&bootstrap, &wanted);
            bootstrap.close();
            found
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..nranks).map(Rank).map(|rank| scope.spawn(move || one(rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    /// The one answer that all ranks have; each refuses ranks of its own, and has gates of its own.
    fn agreed(&self, adapt: impl Fn(u32, &mut TopologySettings) + Sync) -> Survey {
        let mut all = self.survey(adapt).into_iter().map(|found| Survey {
            ring_nics: Vec::new(),
            refused: Vec::new(),
            machine: None,
            ..found.unwrap()
        });
        let first = all.next().unwrap();
        assert!(all.all(|other| other == first));
        first
    }

    /// What each rank says.
    fn refused(&self, adapt: impl Fn(u32, &mut TopologySettings) + Sync) -> Vec<String> {
        self.survey(adapt).into_iter().map(|found| found.unwrap_err().to_string()).collect()
    }
}

/// Addresses of a machine's GPUs, in the order of the ranks that the file gives, if it does.
fn gpus(machine: &str) -> Vec<BusId> {
    let mut inventory = inventory(machine);
    inventory.number_ranks();
    let mut gpus: Vec<_> = inventory.gpus().iter().map(|(pci, gpu)| (gpu.rank, pci.bus_id)).collect();
    gpus.sort();
    gpus.into_iter().map(|(_, bus_id)| bus_id).collect()
}

/// What one process that sees the whole machine finds, alone.
fn whole(machine: &str) -> (System, Paths, Graphs) {
    search(system(machine).without_network())
}

/// The same of one of several such hosts.
fn of_several(machine: &str) -> (System, Paths, Graphs) {
    search(system(machine))
}

fn system(machine: &str) -> System {
    let mut inventory = inventory(machine);
    inventory.number_ranks();
    System::new(&inventory, Tables::Current).unwrap()
}

fn search(system: System) -> (System, Paths, Graphs) {
    let settings = TopologySettings::default();
    let paths = Paths::new(&system, &settings.policy(Default::default()));
    let graphs = Graphs::search(&system, &paths, &settings.search());
    (system, paths, graphs)
}

#[test]
fn ranks_that_see_a_gpu_each_find_what_one_finds_that_sees_all() {
    for (machine, gpus) in [("dgx1v", 8), ("h200x4", 4), ("h200x8", 8), ("made-up-20", 4)] {
        let start = Instant::now();
        let found = Scene::new(machine, vec![1; gpus]).agreed(|_, _| {});
        println!("{machine}: {gpus} ranks met, looked and agreed in {:?}", start.elapsed());
        let (system, paths, graphs) = whole(machine);
        let summary = Summary::new(&system, &paths, &graphs);
        assert_eq!(
            found.channels,
            Channels::join(std::slice::from_ref(&summary.lanes)).unwrap(),
            "{machine}"
        );
        assert_eq!(found.agreed, summary.of_hosts(1), "{machine}");
    }
}

/// Some GPUs of a machine: the others are somebody else's.
#[test]
fn gpus_without_a_rank_are_left_out() {
    let found = Scene::new("dgx1v", vec![1; 3]).agreed(|_, _| {});
    assert!(found.channels.rings.iter().all(|ring| ring.len() == 3));
}

/// Two hosts whose ranks are numbered in turn: a ring crosses from one to the other twice.
#[test]
fn hosts_whose_ranks_are_numbered_in_turn() {
    let hosts: Vec<u64> = (0..16).map(|rank| rank % 2).collect();
    let found = Scene::new("rtx3090x8", hosts).agreed(|_, _| {});
    for ring in &found.channels.rings {
        let crossings = (0..16).filter(|i| ring[*i].0 % 2 != ring[(i + 1) % 16].0 % 2).count();
        assert_eq!(crossings, 2, "{ring:?}");
    }
}

/// Of two hosts one has half of the GPUs, and links of its own kind; all ranks agree on the least.
#[test]
fn the_least_of_all_hosts_counts() {
    let found = Scene::new("dgx1v", vec![1, 1, 1, 1, 1, 1, 1, 1, 2, 2]).agreed(|_, _| {});
    assert!(found.channels.rings.iter().all(|ring| ring.len() == 10));
    let alone = Scene::new("dgx1v", vec![2, 2]).agreed(|_, _| {});
    assert!(found.agreed.reach[0].bw_intra <= alone.agreed.reach[0].bw_intra);
    assert_eq!(found.channels.rings.len(), 2 * found.agreed.reach[0].channels as usize);
}

#[test]
fn a_rank_that_sees_nothing_leaves_its_host_in_rank_order() {
    let scene = Scene { look: but_for_rank_2, ..Scene::new("dgx1v", vec![1; 4]) };
    let found = scene.agreed(|_, _| {});
    assert_eq!(found.channels, Channels::in_rank_order(4));
    assert_eq!(found.agreed.reach[0].bw_intra, 0.0);
}

/// Graphs know whole GPUs only.
#[test]
fn ranks_with_parts_of_one_gpu_are_taken_in_rank_order() {
    let scene = Scene { look: parts_of_one, ..Scene::new("h200x4", vec![1; 3]) };
    assert_eq!(scene.agreed(|_, _| {}).channels, Channels::in_rank_order(3));
}

/// The channels that NCCL dumped on this machine, as `NCCL_GRAPH_FILE`.
#[test]
fn a_graph_file_is_taken_instead_of_the_search() {
    let found = Scene::new("dgx1v", vec![1; 8]).agreed(|_, settings| {
        settings.graph_file = Some(fixture("dgx1v-graph"));
    });
    let text = std::fs::read_to_string(fixture("dgx1v-graph")).unwrap();
    let answer = read_graphs(&text, &whole("dgx1v").0).unwrap();
    let ring = answer.iter().find(|graph| graph.id == GraphId::Ring).unwrap();
    let lanes: Vec<Vec<Rank>> = ring.lanes.iter().map(|lane| lane.gpus.clone()).collect();
    let from_rank_0 = |lane: &Vec<Rank>| {
        let start = lane.iter().position(|rank| *rank == Rank(0)).unwrap();
        [&lane[start..], &lane[..start]].concat()
    };
    assert_eq!(found.channels.rings[..6], lanes.iter().map(from_rank_0).collect::<Vec<_>>());
    assert_eq!(found.agreed.reach[0].bw_intra, ring.bw_intra);
}

#[test]
fn what_one_rank_dumps_the_others_can_read() {
    let directory = tempfile::tempdir().unwrap();
    let (topology, graphs) = (directory.path().join("topology.xml"), directory.path().join("graphs.xml"));
    let scene = Scene::new("dgx1v", vec![1; 4]);
    let found = scene.agreed(|_, settings| {
        settings.dump = Some(Dump { path: topology.clone(), rank: Rank(1) });
        settings.graph_dump = Some(Dump { path: graphs.clone(), rank: Rank(3) });
    });
    let again = scene.agreed(|_, settings| {
        settings.file = Some(topology.clone());
        settings.graph_file = Some(graphs.clone());
    });
    assert_eq!(found, again);
    let dumped = read_topology(&std::fs::read_to_string(&topology).unwrap()).unwrap();
    let ranks: Vec<_> = dumped.gpus().iter().map(|(_, gpu)| gpu.rank).collect();
    assert_eq!(ranks, [0, 1, 2, 3].map(|rank| Some(Rank(rank))));
    let nowhere = scene.refused(|_, settings| {
        settings.dump = Some(Dump { path: directory.path().join("no/such"), rank: Rank(1) });
    });
    assert!(nowhere.iter().all(|said| said.contains("rank 1: NCCL_TOPO_DUMP_FILE=")), "{nowhere:?}");
}

/// The library wrote such a file, and then refused to read it.
#[test]
fn a_graph_file_that_would_name_two_gpus_by_one_number_is_not_written() {
    let directory = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(fixture("h200x4")).unwrap();
    let one = (1..4).fold(text, |text, dev| text.replace(&format!("<gpu dev=\"{dev}\""), "<gpu dev=\"0\""));
    let one = written(&directory, "one.xml", &one);
    for (file, is_written) in [(fixture("h200x4"), true), (one, false)] {
        let graphs = directory.path().join("graphs.xml");
        let found = Scene::new("h200x4", vec![1; 4]).survey(|_, settings| {
            settings.file = Some(file.clone());
            settings.graph_dump = Some(Dump { path: graphs.clone(), rank: Rank(3) });
        });
        assert!(found.iter().all(Result::is_ok), "{:?}", found.iter().find_map(|found| found.as_ref().err()));
        assert_eq!(graphs.exists(), is_written, "{}", file.display());
        let _ = std::fs::remove_file(&graphs);
    }
}

#[test]
fn the_users_rings_win() {
    let rings = vec![[2, 0, 3, 1].map(Rank).to_vec()];
    let found = Scene::new("h200x4", vec![1; 4]).agreed(|_, settings| settings.rings = Some(rings.clone()));
    assert_eq!(found.channels.rings, rings);
}

/// Writes a file and gives its path.
fn written(directory: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let path = directory.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn files_that_do_not_fit_are_named_with_their_line() {
    let directory = tempfile::tempdir().unwrap();
    let scene = Scene::new("h200x4", vec![1; 4]);
    let broken = written(&directory, "broken.xml", "<system version=\"1\">\n<cpu numaid=\"x\"/>\n</system>");
    let said = scene.refused(|rank, settings| {
        if rank == 2 {
            settings.file = Some(broken.clone());
        }
    });
    for (rank, said) in said.iter().enumerate() {
        let what = "NCCL_TOPO_FILE=";
        let is_told = said.contains("rank 2") && said.contains(what) && said.contains("broken.xml: line 2");
        assert!(is_told, "rank {rank}: {said}");
    }
    let graph = |gpus: &str| {
        let lane = gpus.split(' ').map(|dev| format!("<gpu dev=\"{dev}\"/>")).collect::<String>();
        format!(
            "<graphs version=\"1\">\n<graph id=\"0\" pattern=\"4\" nchannels=\"1\" speedintra=\"20\" speedinter=\"20\">\n\
             <channel>{lane}</channel>\n</graph>\n</graphs>"
        )
    };
    for (name, gpus) in [("few.xml", "0 1 2"), ("twice.xml", "0 1 2 2"), ("other.xml", "0 1 2 9")] {
        let path = written(&directory, name, &graph(gpus));
        let said = scene.refused(|_, settings| settings.graph_file = Some(path.clone()));
        let is_told =
            |said: &String| said.contains("NCCL_GRAPH_FILE=") && said.contains(&format!("{name}: line 3"));
        assert!(said.iter().all(is_told), "{said:?}");
    }
    let missing = scene.refused(|_, settings| settings.graph_file = Some("/no/such/file".into()));
    assert!(missing.iter().all(|said| said.contains("/no/such/file: No such file")), "{missing:?}");
    let endless = scene.refused(|_, settings| settings.file = Some("/dev/zero".into()));
    assert!(
        endless.iter().all(|said| said.contains("NCCL_TOPO_FILE=/dev/zero: not a regular")),
        "{endless:?}"
    );
    let pipe = directory.path().join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
    let silent = scene.refused(|_, settings| settings.graph_file = Some(pipe.clone()));
    let is_told =
        |said: &String| said.contains("NCCL_GRAPH_FILE=") && said.contains("pipe: not a regular file");
    assert!(silent.iter().all(is_told), "{silent:?}");
    // One rank has another file, which is right in itself.
    let other = written(&directory, "own.xml", &graph("3 1 0 2"));
    let said = scene.refused(|rank, settings| {
        if rank == 3 {
            settings.graph_file = Some(other.clone());
        }
    });
    assert!(
        said.iter().all(|said| said.contains("rank 3 found other channels") && said.contains("rank 0")),
        "{said:?}"
    );
}

#[test]
fn ranks_that_see_different_machines_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(fixture("dgx1v")).unwrap();
    let moved = written(&directory, "moved.xml", &text.replace("numaid=\"0\"", "numaid=\"77\""));
    let said = Scene::new("dgx1v", vec![1; 4]).refused(|rank, settings| {
        if rank == 1 {
            settings.file = Some(moved.clone());
        }
    });
    let is_told = |said: &String| said.contains("rank 1 sees another machine than rank 0");
    assert!(said.iter().all(is_told), "{said:?}");
}

#[test]
fn summaries_round_trip_and_nothing_else_is_one() {
    let (system, paths, graphs) = whole("dgx1v");
    let summary = Summary::new(&system, &paths, &graphs);
    let (first, other) = (summary.to_bytes(true), summary.to_bytes(false));
    let agreed = agree_on(&[first.clone(), other.clone()], &[5, 5]).unwrap();
    assert_eq!((agreed.reach, agreed.hosts), (summary.reach, vec![summary.lanes.clone()]));
    for cut in 0..first.len() {
        assert!(agree_on(&[first[..cut].to_vec()], &[5]).is_err(), "{cut}");
    }
    assert!(agree_on(&[first.clone(), first], &[5, 5]).is_err(), "lanes told twice");
    assert!(agree_on(&[other], &[5]).is_err(), "lanes not told");
    let unknown = Summary::unknown(vec![Rank(0), Rank(1)]);
    assert_eq!(unknown.lanes, HostLanes::uniform(vec![Rank(0), Rank(1)]));
}
