//! Made-up machines, searched and joined.

use super::checks::{check_tree, cpu_time, crossings, is_permutation};
use super::recipe::recipe;
use oxccl::topology::detect::{Found, Own, Sysfs};
use oxccl::topology::search::{CHANNELS_MAX, Graphs, SearchConfig, TopoGraph};
use oxccl::topology::{Channels, HostLanes, Inventory, PathPolicy, Paths, System, Tables};
use oxccl_shared::abi::Rank;
use proptest::prelude::*;
use std::time::Duration;

fn check_graph(graph: &TopoGraph, gpus: usize, nets: usize) {
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
        // Not a speed, as in `times`: a search within its budget is far below.
        prop_assert!(took < Duration::from_secs(20), "{took:?} for {recipe:?}");
        prop_assert!(!graphs.ring.lanes.is_empty());
        prop_assert_eq!(graphs.tree.lanes.len(), graphs.ring.lanes.len());
        for graph in graphs.all() {
            check_graph(graph, system.gpus.len(), system.nets.len());
        }
        // The same question has the same answer.
        prop_assert_eq!(&Graphs::search(&system, &paths, &config), &graphs);
        let channels = Channels::join(&[HostLanes::new(&graphs)]).unwrap();
        channels.rings.iter().for_each(|ring| assert!(is_permutation(ring, system.gpus.len())));
        channels.trees.iter().for_each(|tree| check_tree(tree));
    }

    /// Each rank sees its own GPU, and the first one the network devices; together they find what one finds that sees all.
    #[test]
    fn a_machine_seen_in_parts_is_the_whole(recipe in recipe(), is_alone: bool) {
        let whole = recipe.inventory();
        let mut merged = Inventory::new();
        for (rank, gpu) in (0..).map(Rank).zip(recipe.gpu_buses()) {
            let own = Own { rank, gpu, tells_nets: rank == Rank(0) };
            let found = Found::see(whole.clone(), &Sysfs::at("/nowhere"), own, None, Vec::new());
            prop_assert_eq!(found.inventory.gpus().len(), 1);
            prop_assert_eq!(Found::from_bytes(&found.to_bytes()), Some(found.clone()));
            merged.merge(found.inventory).unwrap();
        }
        let graphs = |inventory| {
            let system = System::new(inventory, Tables::Current).unwrap();
            let system = if is_alone { system.without_network() } else { system };
            let paths = Paths::new(&system, &PathPolicy::default());
            Graphs::search(&system, &paths, &SearchConfig::default())
        };
        prop_assert_eq!(graphs(&merged), graphs(&whole));
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
            lanes.rings.iter_mut().chain(&mut lanes.trees).flatten().for_each(|rank| rank.0 += first);
            first += system.gpus.len() as u32;
            hosts.push(lanes);
        }
        let ends: Vec<u32> = hosts.iter().map(|host| host.rings[0].iter().max().unwrap().0 + 1).collect();
        let host_of = |rank: Rank| ends.iter().position(|end| rank.0 < *end).unwrap();
        let joined = Channels::join(&hosts).unwrap();
        for ring in &joined.rings {
            prop_assert!(is_permutation(ring, first as usize));
            prop_assert_eq!(crossings(ring, host_of), hosts.len());
        }
        joined.trees.iter().for_each(|tree| check_tree(tree));
    }
}
