//! What the model chooses where ranks are on several hosts, pinned beside `plans.txt`; and that it is the least of what it compared.

use super::{call, hold};
use crate::plan::tuning::tests::forced;
use crate::plan::tuning::{Architecture, Candidates, Forced, Machine, NetSpeed, Reason};
use crate::plan::{Call, ChannelLimits, Facts, Nics, plan};
use crate::topology::{Agreed, Channels, HostLanes, Pairs, PathKind, Pattern, Reach};
use oxccl_shared::abi::{Algorithm, ConnLayout, DataType, Func, Rank, RedOp};
use oxccl_shared::algo::registry::spec_of;
use oxccl_shared::algo::spec::Connections;
use proptest::prelude::*;
use std::fmt::Write;

/// 400 Gbit/s, and sockets.
pub(crate) const FAST: NetSpeed = NetSpeed { gbytes: 50.0, latency_us: 5.0 };
pub(crate) const SLOW: NetSpeed = NetSpeed { gbytes: 1.25, latency_us: 20.0 };

/// Hosts of H200 whose ring `i` leaves by GPU `i`, and whose GPUs share so many devices.
fn gpus(hosts: u32, each: u32, nics: u32, speed: NetSpeed, forced: Forced) -> Facts {
    gpus_along(hosts, each, nics, speed, forced).0
}

/// The same with the channels through them, and the host of each rank.
pub(crate) fn gpus_along(
    hosts: u32,
    each: u32,
    nics: u32,
    speed: NetSpeed,
    forced: Forced,
) -> (Facts, Channels, Vec<u64>) {
    let lane = |first: u32| (0..each).map(|step| Rank((first + 1 + step) % each)).collect::<Vec<_>>();
    let lanes: Vec<Vec<Rank>> = (0..each).map(lane).collect();
    let uniform = HostLanes::uniform(lanes[0].clone());
    let host = HostLanes { rings: lanes.clone(), trees: lanes, tree_pattern: Pattern::Tree, ..uniform };
    let reach = Reach {
        channels: each,
        bw_intra: 360.0 / each as f32,
        bw_inter: speed.gbytes as f32,
        latency_inter: speed.latency_us as f32,
        type_intra: PathKind::Nvl,
        type_inter: PathKind::Pix,
    };
    let pairs = Pairs { bw: 360.0, kind: PathKind::Nvl };
    let agreed = Agreed { reach: [reach; 2], pairs, posts_slowly: false, hosts: host.repeated(hosts) };
    let channels = Channels::join(&agreed.hosts).unwrap();
    let nranks = u64::from(hosts * each);
    let group_of: Vec<u64> = (0..nranks).map(|rank| rank / u64::from(each)).collect();
    let nic_of = (0..nranks).map(|rank| rank % u64::from(each) % u64::from(nics)).collect();
    let facts = Facts::of_gpus(hosts * each, (90, 132), forced, ChannelLimits::default(), None)
        .on_hosts(group_of.iter().copied())
        .on(Machine::of_agreed(90, &agreed), &channels.rings)
        .over_nics(&Nics::new(&group_of, nic_of, speed, 1), &channels);
    (facts, channels, group_of)
}

/// Hosts of ranks on processors, which share memory, or none if a host has one.
fn cpus(hosts: u32, each: u32, forced: Forced) -> Facts {
    let layout =
        ConnLayout { ll_slot_bytes: 8 << 10, ll128_slot_bytes: 16 << 10, simple_slot_bytes: 128 << 10 };
    let architecture = if each > 1 { Architecture::Cpu } else { Architecture::CpuStreams };
    Facts::of_cpus(hosts * each, architecture, forced, [layout; 2], [1, 2])
        .on_hosts((0..u64::from(hosts * each)).map(|rank| rank / u64::from(each)))
        .with_far_ranks(true)
}

fn scenes() -> Vec<(&'static str, Facts)> {
    let free = Forced::default();
    vec![
        ("2 hosts of 8 GPUs, 8 devices of 50 GB/s", gpus(2, 8, 8, FAST, free)),
        ("16 hosts of 8 GPUs, 8 devices of 50 GB/s", gpus(16, 8, 8, FAST, free)),
        ("16 hosts of 8 GPUs, 1 device of 1.25 GB/s", gpus(16, 8, 1, SLOW, free)),
        ("2 hosts of 1 GPU, 1 device of 50 GB/s", gpus(2, 1, 1, FAST, free)),
        ("4 hosts of 2 GPUs, 2 devices of 50 GB/s", gpus(4, 2, 2, FAST, free)),
        ("4 hosts of 2 GPUs, 1 device of 1.25 GB/s", gpus(4, 2, 1, SLOW, free)),
        ("16 hosts of 8 GPUs, rings", gpus(16, 8, 8, FAST, Forced::only(Some(Algorithm::Ring), None))),
        ("2 hosts of 6 processors", cpus(2, 6, free)),
        ("4 hosts of 2 processors", cpus(4, 2, free)),
        ("12 hosts of 1 processor", cpus(12, 1, free)),
        ("8 hosts of 1 processor", cpus(8, 1, free)),
        ("16 hosts of 8 processors", cpus(16, 8, free)),
    ]
}

#[test]
fn choices_over_hosts_stay_as_they_are() {
    let mut found =
        String::from("# What is chosen over hosts, by bytes, and the microseconds that the model gives.\n");
    for (name, facts) in scenes() {
        let Facts { ring_channels, tree_channels, mesh_channels, far_channels, .. } = facts;
        let _ = writeln!(
            found,
            "\n[{name}]\nchannels: {ring_channels} of rings, {tree_channels} of trees, {mesh_channels} of pairs, {far_channels} of far ones"
        );
        for bytes in (3..=30).step_by(3).map(|power| 1u64 << power) {
            let explained = facts.explain(&call(Func::AllReduce, DataType::U8, RedOp::Sum, bytes));
            let by = match explained.choice.reason {
                Reason::Model => "model",
                Reason::Measured { .. } => "measured",
                _ => "only",
            };
            let times =
                explained.compared().into_iter().map(|(algorithm, us)| format!("{algorithm} {us:.1}"));
            let _ = writeln!(
                found,
                "{bytes}: {} on {}, {by}: {}",
                explained.choice.candidate,
                explained.channels,
                times.collect::<Vec<_>>().join(", ")
            );
        }
    }
    hold("over_hosts.txt", &found);
}

/// The case that asked for it: along rings 4 MiB took 240 steps, most of them inside hosts.
#[test]
fn many_hosts_reduce_along_trees() {
    let facts = gpus(16, 8, 8, FAST, Forced::default());
    let explained = facts.explain(&call(Func::AllReduce, DataType::F32, RedOp::Sum, 1 << 20));
    assert_eq!(
        (explained.choice.candidate.algorithm, explained.choice.reason),
        (Algorithm::Tree, Reason::Model)
    );
    let said = explained.to_string();
    assert!(
        said.contains("because the model finds it fastest: tree ") && said.contains(" us, ring "),
        "{said}"
    );
}

/// Two levels where hosts have several ranks, on both kinds of processors.
#[test]
fn hosts_of_several_ranks_reduce_in_two_levels() {
    for facts in [gpus(4, 2, 2, FAST, Forced::default()), cpus(2, 6, Forced::default())] {
        let chosen = facts.choose(&call(Func::AllReduce, DataType::F32, RedOp::Sum, 1 << 18));
        assert_eq!((chosen.candidate.algorithm, chosen.reason), (Algorithm::TwoLevel, Reason::Model));
    }
}

/// What must reduce by rank has nothing but hops to all peers there: the longer calls go in two.
#[test]
fn by_rank_over_hosts_in_two_hops() {
    let chosen = |forced, count| {
        let facts = cpus(2, 6, forced);
        facts.choose(&call(Func::AllReduce, DataType::F32, RedOp::Sum, count)).candidate.to_string()
    };
    let by_rank = Forced::default().deterministic(true);
    assert_eq!([2, 1 << 20].map(|count| chosen(by_rank, count)), ["oneshot simple", "twoshot simple"]);
    let named = Forced::only(Some(Algorithm::TwoShot), None);
    assert_eq!([2, 1 << 20].map(|count| chosen(named, count)), ["twoshot simple"; 2]);
}

#[test]
fn links_have_the_channels_that_they_are_worth() {
    let channels =
        |facts: Facts| [facts.ring_channels, facts.tree_channels, facts.mesh_channels, facts.far_channels];
    let free = Forced::default();
    // What 8 devices carry is what the GPUs' links do; a device that GPUs share is not worth more for it.
    assert_eq!(channels(gpus(2, 8, 8, FAST, free)), [64, 8, 4, 4]);
    assert_eq!(channels(gpus(2, 8, 1, FAST, free)), [16, 8, 4, 2]);
    assert_eq!(channels(gpus(2, 8, 1, SLOW, free)), [8, 4, 4, 2]);
    // Messages between GPUs of a host have theirs, whatever leads out of it.
    assert_eq!(channels(gpus(2, 2, 1, SLOW, free)), [4, 4, 22, 2]);
    assert_eq!(channels(gpus(2, 2, 2, FAST, free)), [18, 8, 22, 8]);
    // Two ranks need no tree, and who excludes trees gets none.
    assert_eq!(gpus(2, 1, 1, FAST, free).tree_channels, 0);
    assert_eq!(gpus(2, 8, 8, FAST, Forced::only(Some(Algorithm::Ring), None)).tree_channels, 0);
}

proptest! {
    #[test]
    fn over_hosts_the_choice_is_the_least_of_what_is_allowed(
        (hosts, each) in (2u32..12, 1u32..9),
        nics in 1u32..9,
        is_fast: bool,
        is_gpu: bool,
        forced in forced(),
        func in proptest::sample::select(&[Func::AllReduce, Func::AllGather, Func::ReduceScatter, Func::Broadcast, Func::Reduce][..]),
        count in 0u64..1 << 30,
    ) {
        let speed = if is_fast { FAST } else { SLOW };
        let facts = if is_gpu { gpus(hosts, each, nics.min(each), speed, forced) } else { cpus(hosts, each, forced) };
        let call = Call { func, dtype: DataType::F32, op: RedOp::Sum, root: Rank(0), count };
        let choice = facts.choose(&call);
        let allowed = facts.allowed_times(&call);
        let time = |candidate| allowed.iter().find(|(other, _)| *other == candidate).map(|(_, us)| *us);
        prop_assert!(time(choice.candidate).is_some(), "{choice:?} is none of {allowed:?}");
        if choice.reason == Reason::Model {
            let least = allowed.iter().map(|(_, us)| *us).fold(f64::INFINITY, f64::min);
            // Which of both hops it is, is measured.
            let is_hop = spec_of(choice.candidate.algorithm).connections == Connections::Mesh;
            prop_assert!(is_hop || time(choice.candidate) == Some(least), "{choice:?} of {allowed:?}");
        }
        let is_measured = matches!(choice.reason, Reason::Measured { .. });
        prop_assert!(!is_measured || facts.nranks <= 8, "nothing was measured for {} ranks", facts.nranks);
        // Lists that leave anything leave it.
        let possible = facts.possible(&call);
        let is_named = |c: &crate::plan::tuning::Candidate| forced.allows_algorithm(func, c.algorithm);
        if possible.iter().any(|candidate| is_named(&candidate)) {
            prop_assert!(is_named(&choice.candidate), "{choice:?}");
        }
        prop_assert!(possible.and(Candidates::along(plan(&call, &facts).algorithm)) != Candidates::NONE);
        let plan = plan(&call, &facts);
        let (_, connected) = facts.connections(spec_of(plan.algorithm).connections);
        prop_assert!(plan.channels <= connected, "{plan:?}");
    }
}
