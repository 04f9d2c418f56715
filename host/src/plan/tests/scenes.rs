//! Facts of communicators of many kinds.

use super::digest;
use crate::plan::numbers::NET_MESSAGES;
use crate::plan::tuning::{
    Architecture, Candidate, Forced, Machine, NetSpeed, Pairs, Reason, Speeds, TuneRow, TuneTable,
};
use crate::plan::{
    Call, ChannelLimits, Collnet, CollnetFacts, Facts, Lacks, Plan, Reduces, message_kernels, plan,
};
use crate::topology::PathKind;
use oxccl_shared::abi::{Algorithm, ConnLayout, DataType, Func, Protocol, RedOp};
use oxccl_shared::algo::kernels::Kernel;
use oxccl_shared::algo::spec::Processor;

/// What a communicator knows.
pub(super) struct Scene(pub(super) Facts);

impl Scene {
    fn has_gpus(&self) -> bool {
        self.0.processor() == Processor::Gpu
    }

    /// Whether it has plans of such calls that are not messages.
    pub(super) fn plans(&self, func: Func) -> bool {
        func != Func::AllToAll || self.has_gpus()
    }

    pub(super) fn plan(&self, call: &Call) -> String {
        if self.0.goes_as_messages(call) {
            return "messages".into();
        }
        let reason = short(self.0.choose(call).reason);
        let plan = plan(call, &self.0);
        let Plan { func, algorithm, protocol, channels, threads, count, .. } = plan;
        let Plan { chunk_elems, slice_elems, grain_elems, stream, .. } = plan;
        let sizes = format!("{chunk_elems} {slice_elems} {grain_elems}");
        if self.has_gpus() {
            assert!(!stream);
            let kernel = plan.kernel();
            return format!(
                "{func} {algorithm} {protocol} {channels} of {threads} for {count} by {sizes} in {kernel}, {reason}"
            );
        }
        assert_eq!((func, count, threads, plan.dtype), (call.func, call.count, 1, Some(call.dtype)));
        let flag = if stream { " stream" } else { "" };
        format!("{algorithm} {protocol} {channels} of {sizes}{flag}, {reason}")
    }

    pub(super) fn explain(&self, call: &Call) -> String {
        self.0.explain(call).to_string()
    }

    /// What is planned of messages, and which kernels there are.
    pub(super) fn others(&self, lengths: impl Iterator<Item = u64>) -> Vec<String> {
        let facts = &self.0;
        if !self.has_gpus() {
            let mut protocols: Vec<String> =
                lengths.map(|bytes| facts.message_protocol(bytes).to_string()).collect();
            protocols.dedup();
            return vec![format!("messages: {}", protocols.join(", "))];
        }
        let far = NET_MESSAGES.iter().map(|class| ("far messages", *class));
        let near = facts.tuning.messages.iter().map(|class| ("messages", *class));
        let exchanges = facts.tuning.exchanges(facts.nranks).map(|class| ("exchanges", class));
        let classes = near.chain(exchanges).chain(far).zip(message_kernels(facts));
        let classes = classes.map(|((name, class), (kernel, threads))| {
            format!("{name} to {}: {kernel} {} of {threads}", class.max_bytes, class.channels)
        });
        let name = |(kernel, threads): (Kernel, u32)| format!("{kernel} {threads}");
        let kernels = facts.kernel_set();
        let counted = format!("kernels: {}", kernels.len());
        let connected = format!(
            "connected: {} {} {} ({} far) in {:?} {:?} {:?}",
            facts.ring_channels,
            facts.tree_channels,
            facts.mesh_channels,
            facts.far_channels,
            facts.ring_layout,
            facts.tree_layout,
            facts.mesh_layout
        );
        let kernels = format!("{counted}, {:016x}", digest(kernels.into_iter().map(name)));
        classes.chain([kernels, connected]).collect()
    }
}

/// Who decided.
fn short(reason: Reason) -> String {
    match reason {
        Reason::Only => "only".into(),
        Reason::Advised => "advised".into(),
        Reason::Tuned { row } => format!("row {row}"),
        Reason::Measured { .. } => "measured".into(),
        Reason::Model => "model".into(),
    }
}

fn forced(algorithms: &str, protocols: &str) -> Forced {
    let forced = Forced::default();
    let forced = if algorithms.is_empty() { forced } else { forced.with_algorithms(algorithms).unwrap() };
    if protocols.is_empty() { forced } else { forced.with_protocols(protocols).unwrap() }
}

/// Rows of every function, some of which cannot be followed on some scenes.
fn table() -> TuneTable {
    use Algorithm::{OneShot, Ring, Tree, TwoShot};
    use Protocol::{LL, LL128, Simple};
    let row = |max_bytes, algorithm, protocol, channels| TuneRow {
        max_bytes,
        candidate: Candidate::new(algorithm, protocol),
        channels,
    };
    let rows = [
        (Func::AllReduce, row(1 << 10, Tree, LL, None)),
        (Func::AllReduce, row(1 << 16, TwoShot, LL128, Some(3))),
        (Func::AllReduce, row(1 << 20, OneShot, Simple, Some(2))),
        (Func::AllReduce, row(1 << 24, Ring, LL128, Some(70))),
        (Func::AllReduce, row(1 << 28, Ring, Simple, Some(5))),
        (Func::AllGather, row(1 << 18, OneShot, LL, None)),
        (Func::AllGather, row(u64::MAX, Ring, LL, Some(1))),
        (Func::Reduce, row(1 << 14, OneShot, LL, Some(9))),
        (Func::Broadcast, row(1 << 22, Ring, LL128, None)),
    ];
    rows.into_iter().fold(TuneTable::default(), |table, (func, row)| table.with(func, row).unwrap())
}

/// All scenes, by name.
pub(super) fn all() -> Vec<(String, Scene)> {
    let mut scenes = Vec::new();
    cpu_scenes(&mut |name, facts| scenes.push((name.to_owned(), Scene(facts))));
    gpu_scenes(&mut |name, facts| scenes.push((name.to_owned(), Scene(facts))));
    scenes
}

fn cpu(nranks: u32, architecture: Architecture, forced: Forced, collnet: Collnet) -> Facts {
    let layout = |simple_slot_bytes| ConnLayout {
        ll_slot_bytes: 8 << 10,
        ll128_slot_bytes: 16 << 10,
        simple_slot_bytes,
    };
    let layouts = [layout(512 << 10), layout(128 << 10)];
    Facts::of_cpus(nranks, architecture, forced, layouts, [1, 2]).with_collnet(collnet)
}

fn reducing(nhosts: u32, gbytes: f64, buffer_max_bytes: u64) -> Collnet {
    let has = |dtype, op| Ok::<_, ()>(dtype != DataType::F64 && op != RedOp::Max);
    let speed = NetSpeed { gbytes, latency_us: 2.5 };
    Collnet::There(CollnetFacts {
        reduces: Reduces::of(has).unwrap(),
        gathers: true,
        scatters: true,
        buffer_max_bytes,
        nhosts,
        speed,
    })
}

fn cpu_scenes(add: &mut dyn FnMut(&str, Facts)) {
    let free = Forced::default();
    let (cpu_only, streams) = (Architecture::Cpu, Architecture::CpuStreams);
    for nranks in [2, 3, 5, 40] {
        add(&format!("{nranks} ranks, memory"), cpu(nranks, cpu_only, free, Collnet::OneHost));
        add(&format!("{nranks} ranks, streams"), cpu(nranks, streams, free, Collnet::Disabled));
    }
    for nranks in [3, 4, 6, 16] {
        let memory = cpu(nranks, cpu_only, free, Collnet::OneHost);
        for (processors, crowded) in [("a processor each", false), ("fewer processors", true)] {
            add(&format!("{nranks} ranks, memory, {processors}"), memory.sharing_processors(crowded));
            let read = memory.reading_from(Some(8 << 10)).sharing_processors(crowded);
            add(&format!("{nranks} ranks, memory that is read, {processors}"), read);
        }
    }
    for (algorithms, protocols) in [
        ("ring", ""),
        ("tree", ""),
        ("tree", "LL"),
        ("oneshot", "LL128"),
        ("direct", ""),
        ("^oneshot;broadcast:ring", "LL"),
        ("", "LL"),
        ("", "LL128"),
        ("", "^Simple;allreduce:LL,Simple"),
    ] {
        let facts = cpu(4, cpu_only, forced(algorithms, protocols), Collnet::Lacking);
        add(&format!("4 ranks, memory, algo {algorithms} proto {protocols}"), facts);
    }
    let several = Facts { ring_channels: 5, ..cpu(6, cpu_only, free, Collnet::Disabled) };
    add("6 ranks, memory, 5 rings", several);
    add("6 ranks, memory, 5 rings, LL", Facts { forced: forced("", "LL"), ..several });
    add("6 ranks, memory, tuned", Facts { table: Some(table()), ..several });
    for (gbytes, buffer) in [(0.1, 1 << 30), (2.0, 1 << 30), (2.0, 10_000)] {
        let facts = cpu(8, streams, free, reducing(4, gbytes, buffer));
        add(&format!("8 ranks, streams, a network that reduces {gbytes} GB/s by {buffer}"), facts);
        let tuned = Facts { table: Some(table()), ..facts };
        add(&format!("8 ranks, streams, a network that reduces {gbytes} GB/s by {buffer}, tuned"), tuned);
        for algorithms in ["collnetchain", "^collnetchain", "ring,collnetchain"] {
            let facts = Facts { forced: forced(algorithms, ""), ..facts };
            add(&format!("8 ranks, streams, {algorithms}, reducing {gbytes} GB/s by {buffer}"), facts);
        }
    }
    add("2 ranks, memory, reducing", cpu(2, cpu_only, free, reducing(2, 3.0, 1 << 20)));
}

fn gpu(nranks: u32, sm: u32, forced: Forced) -> Facts {
    Facts::of_gpus(nranks, (sm, 132), forced, ChannelLimits::default(), None)
}

fn searched(facts: Facts) -> Facts {
    Facts { machine: Machine { is_searched: true, ..facts.machine }, ..facts }
}

fn over_network(facts: Facts, groups: u32, threads: u32) -> Facts {
    let speed = NetSpeed { gbytes: 1.25, latency_us: 20.0 };
    facts.over_network(groups, speed, threads)
}

/// GPUs whose routes go over PCI.
fn over_pci(facts: Facts) -> Facts {
    let slow = |speeds: Speeds| Speeds { intra: PathKind::Sys, intra_bw: 10.0, channels: 1, ..speeds };
    let Machine { ring, tree, .. } = facts.machine;
    let pairs = Pairs { bw: 10.0, kind: PathKind::Sys };
    let machine = Machine { is_searched: true, ring: slow(ring), tree: slow(tree), pairs, ..facts.machine };
    Facts { machine, ..facts }.with_links().with_slots()
}

fn gpu_scenes(add: &mut dyn FnMut(&str, Facts)) {
    let free = Forced::default();
    for sm in [70, 80, 90, 100] {
        for nranks in [2, 4, 7, 8, 9, 16] {
            add(&format!("{nranks} GPUs of {sm}"), gpu(nranks, sm, free));
        }
        add(&format!("4 GPUs of {sm}, searched"), searched(gpu(4, sm, free)));
        add(
            &format!("8 GPUs of {sm}, searched, tuned"),
            searched(gpu(8, sm, free)).with_table(Some(table())),
        );
        add(&format!("4 GPUs of {sm}, PCI"), over_pci(gpu(4, sm, free)));
        add(&format!("4 GPUs of {sm}, PCI, LL128"), over_pci(gpu(4, sm, forced("", "LL128"))));
        for (nranks, groups, threads) in [(2, 2, 1), (4, 2, 4), (8, 4, 2), (16, 2, 4)] {
            let facts = over_network(gpu(nranks, sm, free), groups, threads);
            add(&format!("{nranks} GPUs of {sm} in {groups} groups by {threads} threads"), facts);
        }
    }
    for (algorithms, protocols) in [
        ("ring", ""),
        ("tree", ""),
        ("tree", "LL128"),
        ("oneshot", ""),
        ("oneshot", "LL128"),
        ("twoshot", "Simple"),
        ("direct", ""),
        ("^ring", ""),
        ("^direct;broadcast:ring", "LL"),
        ("", "LL"),
        ("", "LL128"),
        ("", "Simple"),
        ("", "^LL;allreduce:LL,Simple"),
    ] {
        let name = format!("algo {algorithms} proto {protocols}");
        let facts = gpu(4, 90, forced(algorithms, protocols));
        add(&format!("4 GPUs, {name}"), facts);
        add(&format!("4 GPUs, searched, {name}"), searched(facts));
        add(&format!("4 GPUs, two groups, {name}"), over_network(facts, 2, 1));
        add(&format!("8 GPUs of 80, {name}"), gpu(8, 80, forced(algorithms, protocols)));
    }
    add("4 GPUs, tuned", gpu(4, 90, free).with_table(Some(table())));
    add("4 GPUs, two groups, tuned", over_network(gpu(4, 90, free).with_table(Some(table())), 2, 1));
    let limits = |min, max, threads| ChannelLimits { min, max, threads };
    for (name, limits) in [
        ("at least 40", limits(Some(40), None, None)),
        ("at most 3", limits(None, Some(3), None)),
        ("128 threads", limits(None, None, Some(128))),
    ] {
        for sm in [80, 90] {
            let facts = Facts::of_gpus(4, (sm, 24), free, limits, Some(1 << 20));
            add(&format!("4 small GPUs of {sm}, {name}"), facts);
            add(&format!("4 small GPUs of {sm}, two groups, {name}"), over_network(facts, 2, 4));
        }
    }
    for algorithms in ["", "collnetchain", "ring,collnetchain", "collnetdirect"] {
        for buffer in [1 << 30, 10_000] {
            let facts = over_network(gpu(8, 90, forced(algorithms, "")), 4, 1);
            let facts = facts.with_hosts_of_gpus(2).with_collnet_of_gpus(reducing(4, 2.0, buffer));
            add(&format!("8 GPUs, 4 groups, {algorithms}, a network that reduces by {buffer}"), facts);
        }
    }
    add("1 GPU", gpu(1, 90, free));
    add("1 GPU, oneshot simple", gpu(1, 90, Forced::only(Some(Algorithm::OneShot), Some(Protocol::Simple))));
}

fn no_collnet(why: &str) -> Lacks<'_> {
    Lacks { collnet: Some(why), ..Lacks::default() }
}

/// What orders are refused, and in which words.
pub(super) fn checks() -> Vec<String> {
    let orders = [
        ("", ""),
        ("tree", "LL"),
        ("collnetchain", ""),
        ("collnetchain", "LL"),
        ("twoshot", "Simple"),
        ("oneshot", "Simple"),
        ("direct", ""),
        ("allreduce:collnetchain;broadcast:tree", ""),
        ("reduce:ring", "LL128"),
        ("ring,collnetchain", "^Simple"),
    ];
    let mut lines = vec!["\n[orders]".to_owned()];
    for (algorithms, protocols) in orders {
        let forced = forced(algorithms, protocols);
        let said = |checked: Result<(), crate::plan::tuning::Impossible>| {
            checked.map_or_else(|error| error.to_string(), |()| "ok".to_owned())
        };
        lines.push(format!("algo {algorithms} proto {protocols}"));
        lines.push(format!("  CPUs: {}", said(Facts::check(Processor::Cpu, 4, &forced, Lacks::default()))));
        lines.push(format!(
            "  CPUs, no network: {}",
            said(Facts::check(Processor::Cpu, 4, &forced, no_collnet("there is none")))
        ));
        lines.push(format!("  8 GPUs: {}", said(Facts::check(Processor::Gpu, 8, &forced, Lacks::default()))));
        lines.push(format!("  9 GPUs: {}", said(Facts::check(Processor::Gpu, 9, &forced, Lacks::default()))));
    }
    lines
}
