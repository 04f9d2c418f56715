//! Layer: tests.
//! Takes: made-up machines and many hosts.
//! Gives: proof that whatever the machine, rings visit each rank once and trees span, and that this scales.
//! Never: real machines; those are compared with NCCL's own answers elsewhere.

use oxccl::topology::search::{CHANNELS_MAX, Graph, Graphs, Pattern, SearchConfig};
use oxccl::topology::{
    BusId, Channels, Cpu, Device, Gpu, HostLanes, Inside, Inventory, JoinError, Net, Nic, NvLink, PathPolicy,
    Paths, Pci, System, Tables,
};
use oxccl_shared::abi::Rank;
use oxccl_shared::algo::tree::TreeLinks;
use oxccl_tests::deck::Deck;
use proptest::prelude::*;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn is_permutation(ring: &[u32], nranks: usize) -> bool {
    let mut seen = vec![false; nranks];
    ring.iter().all(|rank| seen.get_mut(*rank as usize).is_some_and(|seen| !std::mem::replace(seen, true)))
        && ring.len() == nranks
}

/// Every rank reaches one root by going up, and parents and children know each other.
fn check_tree(tree: &[TreeLinks]) {
    let roots = tree.iter().filter(|links| links.is_root()).count();
    assert_eq!(roots, 1);
    let mut children = 0;
    for (rank, links) in tree.iter().enumerate() {
        let rank = Rank(rank as u32);
        for child in links.down.iter().flatten() {
            assert_eq!(tree[child.0 as usize].up, Some(rank));
            children += 1;
        }
    }
    assert_eq!(children, tree.len() - 1, "every rank but the root is some rank's child");
    // With one parent each and one root, only a cycle could keep a rank from the root.
    let mut depth = vec![0usize; tree.len()];
    for start in 0..tree.len() {
        let (mut at, mut steps) = (start, 0);
        while let Some(up) = tree[at].up.filter(|_| depth[at] == 0) {
            at = up.0 as usize;
            steps += 1;
            assert!(steps <= tree.len(), "rank {start} is on a cycle");
        }
        depth[start] = (depth[at] + steps).max(1);
    }
}

fn host(first: u32, gpus: u32, channels: usize, pattern: Pattern) -> HostLanes {
    let lane: Vec<u32> = (first..first + gpus).collect();
    HostLanes {
        rings: vec![lane.clone(); channels],
        trees: vec![lane; channels],
        tree_pattern: pattern,
        alternates: false,
        inside: Inside::Chain,
    }
}

/// In a ring over hosts, links between them.
fn crossings(ring: &[u32], host_of: impl Fn(u32) -> usize) -> usize {
    (0..ring.len()).filter(|i| host_of(ring[*i]) != host_of(ring[(i + 1) % ring.len()])).count()
}

/// Hosts with a child on another host in both halves of a double tree. NCCL's tree, and ours, of an odd number of hosts has one
/// at most, its first, with one child in each.
fn inner_twice(trees: [&[TreeLinks]; 2], hosts: usize, host_of: impl Fn(u32) -> usize) -> Vec<usize> {
    let mut inner = vec![[false; 2]; hosts];
    for (half, tree) in trees.into_iter().enumerate() {
        for (rank, links) in tree.iter().enumerate() {
            let host = host_of(rank as u32);
            inner[host][half] |= links.down.iter().flatten().any(|child| host_of(child.0) != host);
        }
    }
    (0..hosts).filter(|host| inner[*host] == [true, true]).collect()
}

/// 2,048 hosts of 8 ranks, 12 channels found on each.
#[test]
fn sixteen_thousand_ranks() {
    for inside in [Inside::Chain, Inside::Binary] {
        let host = |h: u32| HostLanes { inside, ..host(8 * h, 8, 12, Pattern::BalancedTree) };
        let hosts: Vec<HostLanes> = (0..2048).map(host).collect();
        let start = cpu_time();
        let channels = Channels::join(&hosts).unwrap();
        println!("2,048 hosts of 8 ranks, trees {inside:?}: {:?} of one core", cpu_time() - start);
        assert_eq!((channels.rings.len(), channels.trees.len()), (24, 24));
        let host_of = |rank: u32| rank as usize / 8;
        for ring in &channels.rings {
            assert!(is_permutation(ring, 16_384));
            assert_eq!(crossings(ring, host_of), 2048, "a ring enters each host once");
        }
        channels.trees.iter().for_each(|tree| check_tree(tree));
        let twice = inner_twice([&channels.trees[0], &channels.trees[12]], 2048, host_of);
        assert!(twice.is_empty(), "{twice:?}");
    }
}

#[test]
fn lanes_in_pairs_keep_to_their_rail() {
    let pair = |first: u32| HostLanes {
        rings: vec![vec![first, first + 1], vec![first + 1, first]],
        alternates: true,
        ..host(first, 2, 2, Pattern::Tree)
    };
    let channels = Channels::join(&[pair(0), pair(2), pair(4), pair(6)]).unwrap();
    // GPU 1 of a host sends to GPU 1 of the next, which shares its rail.
    assert_eq!(channels.rings[0], [0, 1, 3, 2, 4, 5, 7, 6]);
    assert_eq!(channels.ring_neighbours(3, 0), Some((1, 2)));
}

#[test]
fn trees_leave_hosts_as_the_pattern_tells() {
    let two = |pattern| {
        Channels::join(&[host(0, 3, 1, pattern), host(3, 3, 1, pattern), host(6, 3, 1, pattern)]).unwrap()
    };
    // In the first tree host 2 is host 0's child, and host 1 is host 2's: a root's only child counts as a second one.
    let links = |pattern, rank: usize| two(pattern).trees[0][rank];
    assert_eq!(links(Pattern::Tree, 6).down, [Some(Rank(7)), Some(Rank(3)), None]);
    assert_eq!(links(Pattern::BalancedTree, 7).down, [Some(Rank(8)), Some(Rank(3)), None]);
    assert_eq!(links(Pattern::SplitTree, 1).down, [Some(Rank(2)), Some(Rank(6)), None]);
    assert_eq!(links(Pattern::BalancedTree, 0).down, [Some(Rank(1)), Some(Rank(6)), None]);
}

/// Two hosts of four: in each half another rank of each host has the links to the other one, and no rank is inside both.
#[test]
fn binary_trees_inside_hosts() {
    let uniform = |first: u32| HostLanes::uniform((first..first + 4).collect());
    let channels = Channels::join(&[uniform(0), uniform(4)]).unwrap();
    let [first, second] = [channels.tree(0), channels.tree(1)];
    assert_eq!(first[0].down, [Some(Rank(2)), Some(Rank(4)), None]);
    assert_eq!(first[2].down, [Some(Rank(1)), Some(Rank(3)), None]);
    assert_eq!(second[7].down, [Some(Rank(5)), Some(Rank(3)), None]);
    assert!((0..8).all(|rank| first[rank].is_leaf() || second[rank].is_leaf()));
    assert_eq!((channels.tree(2), channels.ring(1)), (first, channels.ring(0)));
}

/// Channels beyond those found begin anew, and halves take turns.
#[test]
fn any_number_of_channels() {
    let channels = Channels::join(&[host(0, 3, 2, Pattern::Tree), host(3, 3, 2, Pattern::Tree)]).unwrap();
    for channel in 0..9 {
        assert_eq!(channels.ring(channel), channels.rings[channel % 4]);
        assert_eq!(channels.tree(channel), channels.trees[[0, 2, 1, 3][channel % 4]]);
    }
}

#[test]
fn hosts_that_do_not_join() {
    let good = host(0, 2, 1, Pattern::Tree);
    assert_eq!(
        Channels::join(&[good.clone(), host(1, 2, 1, Pattern::Tree)]),
        Err(JoinError::Rank { rank: 1, host: 1, nranks: 4 })
    );
    assert_eq!(
        Channels::join(&[good.clone(), host(9, 2, 1, Pattern::Tree)]),
        Err(JoinError::Rank { rank: 9, host: 1, nranks: 4 })
    );
    let empty = HostLanes { trees: vec![], ..host(2, 2, 1, Pattern::Tree) };
    assert_eq!(
        Channels::join(&[good.clone(), empty]),
        Err(JoinError::NoChannels { host: 1, hosts: 2, what: "tree" })
    );
    let odd = HostLanes { trees: vec![vec![2, 2]], ..host(2, 2, 1, Pattern::Tree) };
    assert_eq!(Channels::join(&[good, odd]), Err(JoinError::Lane { host: 1, channel: 0 }));
}

/// What a machine is made of: per GPU its socket and switch, NVLinks, NICs.
#[derive(Clone, Debug)]
struct Recipe {
    sm: u32,
    cpu: usize,
    /// Socket and switch of each GPU.
    gpus: Vec<(usize, usize)>,
    nics: Vec<(usize, usize, u32, bool)>,
    /// 0: none; 1: a switch; 2: pairs as told.
    nvlink: u32,
    pairs: Vec<u32>,
    lanes: u32,
}

fn recipe() -> impl Strategy<Value = Recipe> {
    let place = (0usize..3, 0usize..3);
    (
        proptest::sample::select(vec![60u32, 70, 80, 86, 90, 100]),
        0usize..5,
        proptest::collection::vec(place, 1..10),
        proptest::collection::vec((0usize..3, 0usize..3, 1u32..400_000, any::<bool>()), 0..6),
        0u32..3,
        proptest::collection::vec(0u32..5, 45),
        1u32..17,
    )
        .prop_map(|(sm, cpu, gpus, nics, nvlink, pairs, lanes)| Recipe {
            sm,
            cpu,
            gpus,
            nics,
            nvlink,
            pairs,
            lanes,
        })
}

const CPUS: [(&str, &str, u32, u32); 5] = [
    ("x86_64", "GenuineIntel", 6, 79),
    ("x86_64", "GenuineIntel", 6, 207),
    ("x86_64", "AuthenticAMD", 25, 1),
    ("arm64", "", 0, 0),
    ("ppc64", "", 0, 0),
];

impl Recipe {
    fn bus(socket: usize, switch: usize, device: usize) -> BusId {
        BusId((socket as u64) << 20 | (switch as u64) << 12 | (device as u64) << 4)
    }

    fn nvlinks(&self, own: usize) -> Vec<NvLink> {
        let link = |target, count, class| NvLink { target, count, target_class: Some(class) };
        match self.nvlink {
            1 => vec![link(BusId(0xffff_fff0), 18, 0x06_8000)],
            2 => (0..self.gpus.len())
                .filter(|peer| *peer != own)
                .map(|peer| {
                    let (a, b) = (own.min(peer), own.max(peer));
                    link(
                        self.gpu_bus(peer),
                        self.pairs[(a * 7 + b * 3) % self.pairs.len()].saturating_sub(2),
                        0x03_0200,
                    )
                })
                .collect(),
            _ => Vec::new(),
        }
    }

    fn gpu_bus(&self, gpu: usize) -> BusId {
        Recipe::bus(self.gpus[gpu].0, self.gpus[gpu].1, gpu + 1)
    }

    fn inventory(&self) -> Inventory {
        let (arch, vendor, family, model) = CPUS[self.cpu];
        let pci = |bus_id, class| Pci {
            class: Some(class),
            link_speed: Some("16.0 GT/s PCIe".into()),
            link_width: Some(self.lanes),
            ..Pci::new(bus_id)
        };
        let sockets = (0..3).map(|socket| {
            let switches = (0..3).map(|switch| {
                let mut devices = Vec::new();
                for gpu in (0..self.gpus.len()).filter(|gpu| self.gpus[*gpu] == (socket, switch)) {
                    let facts = Gpu {
                        dev: Some(gpu as u32),
                        rank: Some(gpu as u32),
                        sm: Some(self.sm),
                        gdr: Some(true),
                        nvlinks: self.nvlinks(gpu),
                        c2c: vec![],
                    };
                    devices.push(Device::Pci(Pci {
                        devices: vec![Device::Gpu(facts)],
                        ..pci(self.gpu_bus(gpu), 0x03_0200)
                    }));
                }
                for (i, nic) in
                    self.nics.iter().enumerate().filter(|(_, nic)| (nic.0, nic.1) == (socket, switch))
                {
                    let net = Net {
                        dev: Some(i as u32),
                        speed_mbits: Some(nic.2),
                        gdr: Some(nic.3),
                        ..Net::default()
                    };
                    let bus_id = Recipe::bus(socket, switch, 64 + i);
                    devices.push(Device::Pci(Pci {
                        devices: vec![Device::Nic(Nic { nets: vec![net] })],
                        ..pci(bus_id, 0x02_0700)
                    }));
                }
                Device::Pci(Pci { devices, ..pci(Recipe::bus(socket, switch, 0), 0x06_0400) })
            });
            Cpu {
                numa_id: socket as i32,
                arch: Some(arch.into()),
                vendor: Some(vendor.into()),
                family_id: Some(family),
                model_id: Some(model),
                devices: switches.collect(),
                ..Cpu::default()
            }
        });
        Inventory { version: 1, cpus: sockets.collect() }
    }
}

fn check_graph(graph: &Graph, gpus: usize, nets: usize) {
    assert!(graph.lanes.len() <= CHANNELS_MAX);
    for lane in &graph.lanes {
        assert!(is_permutation(&lane.gpus, gpus), "{graph}: {lane:?}");
        assert_eq!(lane.nets.is_some(), nets > 0);
    }
    assert!(graph.lanes.is_empty() || (graph.bw_intra > 0.0 && graph.bw_inter > 0.0), "{graph}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_machine_has_rings_and_trees(recipe in recipe(), is_alone: bool, cross_nic in 0u32..3) {
        let mut system = System::new(&recipe.inventory(), Tables::Current).unwrap();
        if is_alone {
            system = system.without_network();
        }
        let paths = Paths::new(&system, &PathPolicy::default());
        let config = SearchConfig { cross_nic, collnet: true, ..SearchConfig::default() };
        let start = cpu_time();
        let graphs = Graphs::search(&system, &paths, &config);
        let took = cpu_time() - start;
        prop_assert!(took < Duration::from_secs(1), "{took:?} for {recipe:?}");
        prop_assert!(!graphs.ring.lanes.is_empty() && !graphs.tree.lanes.is_empty());
        for graph in graphs.all() {
            check_graph(graph, system.gpus.len(), system.nets.len());
        }
        // The same question has the same answer.
        prop_assert_eq!(&Graphs::search(&system, &paths, &config), &graphs);
        let channels = Channels::join(&[HostLanes::new(&graphs)]).unwrap();
        channels.rings.iter().for_each(|ring| assert!(is_permutation(ring, system.gpus.len())));
        channels.trees.iter().for_each(|tree| check_tree(tree));
    }

    #[test]
    fn any_hosts_join(
        sizes in proptest::collection::vec((1u32..5, 0usize..3, any::<bool>()), 1..20),
        channels in 1usize..5,
        seed: u64,
    ) {
        let patterns = [Pattern::BalancedTree, Pattern::SplitTree, Pattern::Tree];
        let nranks = sizes.iter().map(|size| size.0).sum::<u32>();
        // Ranks in any order over hosts.
        let mut deck = Deck::new(nranks as usize, seed);
        let mut host_of = vec![0; nranks as usize];
        let hosts: Vec<HostLanes> = sizes.iter().enumerate().map(|(at, (gpus, pattern, is_uniform))| {
            let mut lane: Vec<u32> = (0..*gpus).map(|_| deck.draw() as u32).collect();
            lane.iter().for_each(|rank| host_of[*rank as usize] = at);
            let mut lanes = host(0, *gpus, channels, patterns[*pattern]);
            lanes.rings.iter_mut().zip(&mut lanes.trees).for_each(|(ring, tree)| {
                lane.rotate_left(1);
                ring.clone_from(&lane);
                tree.clone_from(&lane);
            });
            lanes.inside = if *is_uniform { Inside::Binary } else { Inside::Chain };
            lanes
        }).collect();
        let joined = Channels::join(&hosts).unwrap();
        let host_of = |rank: u32| host_of[rank as usize];
        prop_assert_eq!(joined.rings.len(), 2 * channels);
        for ring in &joined.rings {
            prop_assert!(is_permutation(ring, nranks as usize));
            prop_assert_eq!(crossings(ring, host_of), if hosts.len() > 1 { hosts.len() } else { 0 });
        }
        joined.trees.iter().for_each(|tree| check_tree(tree));
        for channel in 0..channels {
            let halves = [&joined.trees[channel][..], &joined.trees[channel + channels]];
            let twice = inner_twice(halves, hosts.len(), host_of);
            prop_assert!(twice.is_empty() || (hosts.len() % 2 == 1 && twice == [0]), "{:?}", twice);
        }
    }

    /// Machines of all kinds, each searched by itself, then joined.
    #[test]
    fn any_machines_join(recipes in proptest::collection::vec(recipe(), 2..5), cross_nic in 0u32..3) {
        let mut first = 0;
        let mut hosts = Vec::new();
        for recipe in &recipes {
            let system = System::new(&recipe.inventory(), Tables::Current).unwrap();
            let paths = Paths::new(&system, &PathPolicy::default());
            let config = SearchConfig { cross_nic, ..SearchConfig::default() };
            let mut lanes = HostLanes::new(&Graphs::search(&system, &paths, &config));
            lanes.rings.iter_mut().chain(&mut lanes.trees).flatten().for_each(|rank| *rank += first);
            first += system.gpus.len() as u32;
            hosts.push(lanes);
        }
        let ends: Vec<u32> = hosts.iter().map(|host| host.rings[0].iter().max().unwrap() + 1).collect();
        let host_of = |rank: u32| ends.iter().position(|end| rank < *end).unwrap();
        let joined = Channels::join(&hosts).unwrap();
        for ring in &joined.rings {
            prop_assert!(is_permutation(ring, first as usize));
            prop_assert_eq!(crossings(ring, host_of), hosts.len());
        }
        joined.trees.iter().for_each(|tree| check_tree(tree));
    }
}
