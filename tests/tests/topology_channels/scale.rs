//! What each rank of many computes by itself when a communicator is made.

use super::checks::cpu_time;
use oxccl::plan::tuning::{Forced, Machine, NetSpeed};
use oxccl::plan::{Call, ChannelLimits, Facts, Nics, plan};
use oxccl::topology::xml::read_topology;
use oxccl::topology::{Channels, Graphs, PathPolicy, Paths, SearchConfig, Summary, System, Tables};
use oxccl::{DataType, Func, Rank, RedOp};
use oxccl_shared::algo::registry::spec_of;
use std::collections::BTreeSet;

/// 2,048 hosts of 8 H200: lanes joined, plans made, and the neighbours of a rank in all its rings and trees. The time is printed.
#[test]
fn plans_and_neighbours_of_sixteen_thousand_ranks() {
    let inventory = read_topology(include_str!("../fixtures/topology/h200x8.xml")).unwrap();
    let system = System::new(&inventory, Tables::Current).unwrap();
    let paths = Paths::new(&system, &PathPolicy::default());
    let summary = Summary::new(&system, &paths, &Graphs::search(&system, &paths, &SearchConfig::default()));
    for hosts in [2, 128, 2048] {
        let agreed = summary.clone().of_hosts(hosts);
        let start = cpu_time();
        let channels = Channels::join(&agreed.hosts).unwrap();
        let joined = cpu_time() - start;
        let network = NetSpeed { gbytes: 50.0, latency_us: 5.0 };
        let group_of: Vec<u64> = (0..u64::from(8 * hosts)).map(|rank| rank / 8).collect();
        let nic_of = (0..u64::from(8 * hosts)).map(|rank| rank % 8).collect();
        let nics = Nics::new(&group_of, nic_of, network, 1);
        let facts = Facts::of_gpus(8 * hosts, (90, 132), Forced::default(), ChannelLimits::default(), None)
            .on(Machine::of_agreed(90, &agreed), &channels.rings)
            .over_nics(&nics, &channels);
        let mut plans = 0;
        for func in [Func::AllReduce, Func::AllGather, Func::ReduceScatter, Func::Broadcast, Func::Barrier] {
            for bits in 0..30 {
                let count = if func == Func::Barrier { 0 } else { 1 << bits };
                let call = Call { func, dtype: DataType::F32, op: RedOp::Sum, root: Rank(0), count };
                let plan = plan(&call, &facts);
                let (_, connected) = facts.connections(spec_of(plan.algorithm).connections);
                assert!(plan.channels <= connected, "{call:?}: {plan:?}");
                plans += 1;
            }
        }
        let planned = cpu_time() - start - joined;
        let degrees = (0..8 * hosts).step_by(97).map(|rank| neighbours(&channels, Rank(rank)).len());
        let (count, most) = degrees.fold((0, 0), |(count, most), degree| (count + 1, most.max(degree)));
        let tables = (cpu_time() - start - joined - planned) / count;
        println!(
            "{:6} ranks: lanes joined in {joined:?}, {plans} plans in {planned:?}, a rank's neighbours in {tables:?}: at most {most}",
            8 * hosts
        );
        assert!(most <= 16, "a rank has {most} neighbours in rings and trees");
    }
}

/// The ranks with which a rank shares a ring's or a tree's connection.
fn neighbours(channels: &Channels, rank: Rank) -> BTreeSet<Rank> {
    let mut found = BTreeSet::new();
    for ring in &channels.rings {
        let at = ring.iter().position(|other| *other == rank).unwrap();
        found.extend([ring[(at + 1) % ring.len()], ring[(at + ring.len() - 1) % ring.len()]]);
    }
    for tree in &channels.trees {
        let links = tree[rank.index()];
        found.extend(links.up.into_iter().chain(links.down.into_iter().flatten()));
    }
    found
}
