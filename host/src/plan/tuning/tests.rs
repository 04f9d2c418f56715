//! Properties of all models, machines and restrictions; and measured choices stay chosen.

use super::*;
use crate::plan::{Call, ChannelLimits, Collnet, CollnetFacts, Facts, Hosts, Lacks, Reduces, offered};
use crate::topology::PathKind;
use oxccl_shared::abi::{Algorithm, ConnLayout, DataType, Func, Protocol, Rank, RedOp};
use oxccl_shared::algo::registry::spec_of;
use oxccl_shared::algo::spec::{Connections, Processor};
use proptest::prelude::*;
use proptest::sample::select;

const ARCHITECTURES: &[Architecture] = &[
    Architecture::Cpu,
    Architecture::CpuStreams,
    Architecture::Volta,
    Architecture::Ampere,
    Architecture::Hopper,
    Architecture::Blackwell,
];

fn call(func: Func, count: u64) -> Call {
    Call { func, dtype: DataType::U8, op: RedOp::Sum, root: Rank(0), count }
}

fn machines() -> impl Strategy<Value = Machine> {
    let kinds = || select(&[PathKind::Nvl, PathKind::Nvb, PathKind::Pix, PathKind::Sys]);
    let speeds = || {
        (1u32..33, 0.5f64..100.0, 0.5f64..50.0, kinds()).prop_map(|(channels, intra_bw, inter_bw, intra)| {
            Speeds { channels, intra_bw, inter_bw, inter_latency_us: 2.0, intra, inter: PathKind::Pxb }
        })
    };
    (select(ARCHITECTURES), 1u32..9, 1u32..9, speeds(), speeds(), 0.5f64..400.0, kinds()).prop_map(
        |(architecture, per_host, nhosts, ring, tree, bw, kind)| Machine {
            nhosts,
            is_searched: true,
            ring,
            tree,
            tree_depth: [per_host - 1, nhosts.next_power_of_two().trailing_zeros()],
            pairs: Pairs { bw, kind },
            ..Machine::nominal(architecture, per_host * nhosts)
        },
    )
}

/// Lists as a person writes them; some exclude, some are for one function.
pub(crate) fn forced() -> impl Strategy<Value = Forced> {
    let algorithms = select(&[
        "",
        "ring",
        "^ring",
        "tree,direct",
        "direct",
        "twoshot",
        "^tree;allreduce:tree",
        "allreduce:^direct",
        "nvls,ring",
    ]);
    let protocols =
        select(&["", "LL", "^LL", "LL128,Simple", "Simple;broadcast:LL128", "^LL128;reduce:LL", "LL128"]);
    (algorithms, protocols).prop_map(|(algorithms, protocols)| {
        let mut forced = Forced::default();
        if !algorithms.is_empty() {
            forced = forced.with_algorithms(algorithms).unwrap();
        }
        if !protocols.is_empty() {
            forced = forced.with_protocols(protocols).unwrap();
        }
        forced
    })
}

pub(crate) fn tables() -> impl Strategy<Value = TuneTable> {
    let row = (
        select(TUNED.as_slice()),
        select(&Candidate::ALL[..]),
        1u64..1 << 24,
        proptest::option::of(1u16..99),
    );
    proptest::collection::vec(row, 0..20).prop_map(|mut rows| {
        rows.sort_by_key(|row| row.2);
        rows.into_iter().fold(TuneTable::default(), |table, (func, candidate, max_bytes, channels)| {
            table.with(func, TuneRow { max_bytes, candidate, channels }).unwrap_or(table)
        })
    })
}

proptest! {
    #[test]
    fn more_bytes_take_more_time(
        machine in machines(),
        func in select(TUNED.as_slice()),
        candidate in select(&Candidate::ALL[..]),
        (count, more) in (0u64..1 << 32, 1u64..1 << 20),
    ) {
        let time = |count| estimate(candidate, &call(func, count), &machine);
        let (less, greater) = (time(count), time(count + more));
        prop_assert!(less.time_us.is_finite() && less.latency_us >= 0.0 && less.bandwidth > 0.0);
        prop_assert!(greater.time_us > less.time_us, "{less:?} {greater:?}");
    }

    #[test]
    fn the_model_takes_the_least_time_of_what_is_allowed(
        machine in machines(),
        func in select(TUNED.as_slice()),
        forced in forced(),
        count in 0u64..1 << 32,
        is_gpu in any::<bool>(),
    ) {
        let backend = if is_gpu { Backend::Gpu } else { Backend::Cpu };
        let call = call(func, count);
        let scope = Scope {
            call: &call,
            machine: &machine,
            offered: offered(backend, func),
            risky: Candidates::by(Protocol::LL128),
            doubtful: Candidates::NONE,
            forced: &forced,
            advice: None,
            table: None,
            measured: None,
            instead: None,
            unmeasured: Candidates::NONE,
        };
        let choice = choose(&scope);
        prop_assert!(scope.allowed().has(choice.candidate));
        let time = |candidate| estimate(candidate, &call, &machine).time_us;
        for other in scope.allowed().iter() {
            prop_assert!(time(choice.candidate) <= time(other), "{} {other}", choice.candidate);
        }
        let explained = Explanation::new(&scope, |_| Exclusion::NotThere);
        prop_assert_eq!(explained.choice, choice);
        for line in explained.lines {
            prop_assert_eq!(line.excluded.is_none(), scope.allowed().has(line.candidate));
        }
    }

    #[test]
    fn every_restriction_is_honoured_on_both_backends(
        func in select(TUNED.as_slice()),
        forced in forced(),
        table in proptest::option::of(tables()),
        sm in select(&[70u32, 80, 90, 100]),
        count in 0u64..1 << 32,
        nranks in 2u32..12,
    ) {
        let call = call(func, count);
        let gpu = Facts::of_gpus(nranks, (sm, 132), forced, ChannelLimits::default(), None).with_table(table);
        let collnet = reducing(1.0, forced).collnet;
        let cpu = cpu(nranks, Architecture::Cpu, forced, table).with_collnet(collnet);
        let [gpu, cpu] = [gpu, cpu].map(|facts| facts.on_hosts((0..nranks).map(|rank| u64::from(2 * rank / nranks))));
        let is_even = gpu.hosts.ranks_each() > 0;
        for (backend, choice) in [(Backend::Gpu, gpu.choose(&call)), (Backend::Cpu, cpu.choose(&call))] {
            let Candidate { algorithm, protocol } = choice.candidate;
            prop_assert!(offered(backend, func).has(choice.candidate), "{choice:?}");
            // A preference is honoured where the function has any of its entries.
            let of = |allowed: &dyn Fn(Candidate) -> bool| offered(backend, func).iter().any(allowed);
            let has_algorithm = of(&|c| {
                forced.allows_algorithm(func, c.algorithm)
                    && (spec_of(c.algorithm).peers_max.is_none() || backend == Backend::Cpu || nranks <= 8)
                    && (spec_of(c.algorithm).connections != Connections::Levels || is_even)
                    && (!spec_of(c.algorithm).connections.has_network() || backend == Backend::Cpu)
            });
            prop_assert!(!has_algorithm || forced.allows_algorithm(func, algorithm), "{choice:?}");
            let has_protocol = of(&|c| c.algorithm == algorithm && forced.allows_protocol(func, c.protocol));
            prop_assert!(!has_protocol || forced.allows_protocol(func, protocol), "{choice:?}");
        }
    }

    #[test]
    fn a_row_is_followed_wherever_it_may_be(table in tables(), func in select(TUNED.as_slice()), count in 0u64..1 << 25) {
        let call = call(func, count);
        let facts = Facts { table: Some(table), ..reducing(1.0, Forced::default()) };
        let facts = facts.on_hosts([1, 1, 2, 2].into_iter());
        let bytes = if matches!(func, Func::AllGather | Func::ReduceScatter) { 4 * count } else { count };
        let choice = facts.choose(&call);
        match table.row(func, bytes) {
            Some((at, row)) if offered(Backend::Cpu, func).has(row.candidate) => {
                prop_assert_eq!((choice.candidate, choice.reason), (row.candidate, Reason::Tuned { row: at }));
            }
            _ => prop_assert!(!matches!(choice.reason, Reason::Tuned { .. }), "{choice:?}"),
        }
    }
}

fn cpu(nranks: u32, architecture: Architecture, forced: Forced, table: Option<TuneTable>) -> Facts {
    let layout =
        ConnLayout { ll_slot_bytes: 8 << 10, ll128_slot_bytes: 16 << 10, simple_slot_bytes: 128 << 10 };
    Facts::of_cpus(nranks, architecture, forced, [layout; 2], [1, 2]).with_table(table)
}

/// Four ranks on as many hosts, with in-network reduction of so many GB/s.
fn reducing(gbytes: f64, forced: Forced) -> Facts {
    let collnet = Collnet::There(CollnetFacts {
        reduces: Reduces::of(|dtype, op| Ok::<_, ()>(dtype != DataType::F16 && op != RedOp::Prod)).unwrap(),
        gathers: true,
        scatters: true,
        buffer_max_bytes: 1 << 20,
        nhosts: 4,
        speed: NetSpeed { gbytes, latency_us: 2.0 },
    });
    cpu(4, Architecture::CpuStreams, forced, None).with_collnet(collnet)
}

#[test]
fn a_network_that_reduces_is_taken_by_name_or_where_the_model_finds_it_faster_than_what_was_measured() {
    let chain = Candidate::new(Algorithm::CollnetChain, Protocol::Simple);
    let named = reducing(1.0, Forced::only(Some(Algorithm::CollnetChain), None));
    for count in [1, 1 << 10, 1 << 30] {
        let choice = named.choose(&call(Func::AllReduce, count));
        assert_eq!((choice.candidate, choice.reason), (chain, Reason::Only));
    }
    // Unsupported reductions, and other functions, go as without.
    let all_reduce = call(Func::AllReduce, 1000);
    for other in [
        Call { dtype: DataType::F16, ..all_reduce },
        Call { op: RedOp::Prod, ..all_reduce },
        call(Func::Broadcast, 1000),
    ] {
        assert_ne!(named.choose(&other).candidate.algorithm, Algorithm::CollnetChain, "{other:?}");
    }
    // An average is a sum to it.
    let average = Call { op: RedOp::Avg, ..all_reduce };
    assert_eq!(named.choose(&average).candidate, chain);

    // A ring moves every byte almost twice.
    let long = call(Func::AllReduce, 1 << 30);
    let free = reducing(2.0, Forced::default()).choose(&long);
    assert_eq!((free.candidate, free.reason), (chain, Reason::Model));
    let forbidden = reducing(2.0, Forced::default().with_algorithms("^collnetchain").unwrap()).choose(&long);
    assert!(matches!(forbidden.reason, Reason::Measured { .. }), "{forbidden:?}");
    // Without in-network reduction nothing changes.
    let without = reducing(2.0, Forced::default()).with_collnet(Collnet::OneHost);
    assert!(matches!(without.choose(&long).reason, Reason::Measured { .. }));
    let explained = without.explain(&long).to_string();
    assert!(
        explained.contains("collnetchain") && explained.contains("all ranks are on one host"),
        "{explained}"
    );
}

fn no_collnet(why: &str) -> Lacks<'_> {
    Lacks { collnet: Some(why), ..Lacks::default() }
}

#[test]
fn an_order_for_two_levels_says_why_there_are_none() {
    let forced = Forced::only(Some(Algorithm::TwoLevel), None);
    assert_eq!(Facts::check(Processor::Cpu, 3, &forced, Lacks::default()), Ok(()));
    let lacks = Lacks { levels: Hosts::of([1, 1, 2].into_iter()).lack(), ..Lacks::default() };
    for (on, nranks) in [(Processor::Cpu, 3), (Processor::Gpu, 3)] {
        let error = Facts::check(on, nranks, &forced, lacks).unwrap_err().to_string();
        assert!(
            error.contains("NCCL_ALGO") && error.contains("(twolevel: not every host has equally"),
            "{error}"
        );
        // Beside others it is a preference, and hosts that are even lack nothing.
        let beside = Forced::default().with_algorithms("ring,twolevel").unwrap();
        assert_eq!(Facts::check(on, nranks, &beside, lacks), Ok(()));
    }
    assert_eq!(Hosts::of([1, 1, 2, 2].into_iter()).lack(), None);
}

/// A network that only reduces: of two functions that it does not serve, each is told its own reason.
#[test]
fn an_order_for_a_network_is_refused_for_the_functions_own_reason() {
    let facts = |gathers, scatters| match reducing(1.0, Forced::default()).collnet {
        Collnet::There(facts) => CollnetFacts { gathers, scatters, ..facts },
        other => panic!("{other}"),
    };
    let order = |text: &str| Forced::default().with_algorithms(text).unwrap();
    for (network, text, reason) in [
        (facts(false, false), "reducescatter:collnetchain", "no reduce-scatter"),
        (facts(false, false), "allgather:collnetchain", "no all-gather"),
        (facts(false, false), "allgather:ring,collnetchain;reducescatter:collnetchain", "no reduce-scatter"),
        (facts(true, false), "allgather:collnetchain;reducescatter:collnetchain", "no reduce-scatter"),
        (facts(false, true), "allgather:collnetchain;reducescatter:collnetchain", "no all-gather"),
    ] {
        let network = Collnet::There(network);
        let lacks = Lacks { unserved: network.unserved(), ..Lacks::default() };
        for on in [Processor::Cpu, Processor::Gpu] {
            let error = Facts::check(on, 4, &order(text), lacks).unwrap_err();
            let said = error.to_string();
            assert_eq!(said.contains("has no all-gather"), reason == "no all-gather", "{said}");
            assert_eq!(said.contains("has no reduce-scatter"), reason == "no reduce-scatter", "{said}");
            assert_eq!(error.func == Func::AllGather, reason == "no all-gather", "{said}");
        }
    }
}

/// Two levels cost what the hosts make of them, also where no network of GPUs joins these.
#[test]
fn the_model_knows_hosts_of_cpus() {
    let here = cpu(8, Architecture::Cpu, Forced::default(), None);
    let there = here.on_hosts((0..8).map(|rank| rank / 4));
    let candidate = Candidate::new(Algorithm::TwoLevel, Protocol::Simple);
    let of = |facts: &Facts| estimate(candidate, &call(Func::AllReduce, 1 << 20), &facts.machine);
    assert_eq!(of(&there).latency_us, of(&here).latency_us);
    // The links between hosts take their time as well.
    assert!(of(&there).bandwidth < of(&here).bandwidth, "{:?} {:?}", of(&there), of(&here));
    // What comes to be known of the network leaves the hosts as they are.
    assert_eq!(there.with_collnet(Collnet::OneHost).machine.host_ranks, 4);
}

#[test]
fn an_order_for_a_network_that_reduces_says_why_there_is_none() {
    let forced = Forced::only(Some(Algorithm::CollnetChain), None);
    assert_eq!(Facts::check(Processor::Cpu, 4, &forced, Lacks::default()), Ok(()));
    let error =
        Facts::check(Processor::Cpu, 4, &forced, no_collnet("there is no plugin")).unwrap_err().to_string();
    assert!(error.contains("NCCL_ALGO") && error.contains("(collnetchain: there is no plugin)"), "{error}");
    let error =
        Facts::check(Processor::Gpu, 16, &forced, no_collnet("there is none")).unwrap_err().to_string();
    assert!(error.contains("(collnetchain: there is none)"), "{error}");
    assert_eq!(Facts::check(Processor::Gpu, 16, &forced, Lacks::default()), Ok(()));
    // Beside others it is a preference.
    let forced = Forced::default().with_algorithms("ring,collnetchain").unwrap();
    assert_eq!(Facts::check(Processor::Cpu, 4, &forced, no_collnet("there is no plugin")), Ok(()));
}

#[test]
fn what_was_measured_on_cpus_stays_chosen() {
    let chosen = |nranks, architecture, func, count| {
        let choice = cpu(nranks, architecture, Forced::default(), None).choose(&call(func, count));
        assert!(matches!(choice.reason, Reason::Measured { .. }), "{choice:?}");
        choice.candidate.to_string()
    };
    assert_eq!(chosen(2, Architecture::Cpu, Func::AllReduce, 1 << 30), "oneshot simple");
    assert_eq!(chosen(5, Architecture::Cpu, Func::AllReduce, 32 << 10), "oneshot simple");
    assert_eq!(chosen(5, Architecture::Cpu, Func::AllReduce, (32 << 10) + 1), "ring simple");
    assert_eq!(chosen(2, Architecture::CpuStreams, Func::AllReduce, 256 << 10), "oneshot simple");
    assert_eq!(chosen(2, Architecture::CpuStreams, Func::AllReduce, (256 << 10) + 1), "ring simple");
    assert_eq!(chosen(3, Architecture::Cpu, Func::Broadcast, 8), "ring simple");
}

#[test]
fn ranks_that_share_processors_take_few_dependent_waits() {
    let facts = |nranks, architecture, reads: bool| {
        let facts = cpu(nranks, architecture, Forced::default(), None);
        facts.reading_from(reads.then_some(32 << 10)).sharing_processors(true)
    };
    let chosen = |nranks, reads, func, count| {
        facts(nranks, Architecture::Cpu, reads).choose(&call(func, count)).candidate.to_string()
    };
    let block = 8 << 10;
    for func in [Func::AllGather, Func::ReduceScatter, Func::Reduce] {
        for reads in [false, true] {
            assert_eq!(chosen(4, reads, func, block - 1), "oneshot simple", "{func}");
            let is_direct = !reads && func != Func::Reduce;
            let longer = if is_direct { "oneshot simple" } else { "ring simple" };
            assert_eq!(chosen(4, reads, func, block), longer, "{func}");
            assert_eq!(chosen(4, reads, func, 64 << 20), longer, "{func}");
        }
    }
    for reads in [false, true] {
        assert_eq!(chosen(4, reads, Func::AllReduce, (12 << 10) - 1), "oneshot simple");
        assert_eq!(chosen(8, reads, Func::AllReduce, 12 << 10), "twoshot simple");
        for nranks in [3, 4, 8, 128] {
            let by_messages = (block - 1) * u64::from(nranks);
            let longest = if reads { by_messages } else { by_messages.max(512 << 10) };
            assert_eq!(chosen(nranks, reads, Func::AllReduce, longest), "twoshot simple", "{nranks} ranks");
            assert_eq!(chosen(nranks, reads, Func::AllReduce, longest + 1), "ring simple", "{nranks} ranks");
        }
    }
    // Nothing changes between two, and over streams.
    for (nranks, architecture) in [(2, Architecture::Cpu), (4, Architecture::CpuStreams)] {
        let before = cpu(nranks, architecture, Forced::default(), None);
        for they_do in [false, true] {
            let tuning = before.sharing_processors(they_do).tuning;
            assert_eq!(tuning, before.tuning, "{nranks} {architecture:?}");
        }
    }
}

/// docs/measurements/2026-11-29-cpu-many-ranks.md
#[test]
fn ranks_with_a_processor_each_go_to_all_peers_at_once() {
    let facts = |nranks, reads: bool| {
        let facts = cpu(nranks, Architecture::Cpu, Forced::default(), None);
        facts.reading_from(reads.then_some(8 << 10)).sharing_processors(false)
    };
    let chosen = |nranks, func, count| {
        let chosen = [false, true].map(|reads| facts(nranks, reads).choose(&call(func, count)).candidate);
        assert_eq!(chosen[0], chosen[1], "{nranks} ranks: {func}");
        chosen[0].to_string()
    };
    for nranks in [3, 4, 8, 16, 128] {
        let barrier = if nranks == 3 { "oneshot simple" } else { "doubling simple" };
        assert_eq!(chosen(nranks, Func::Barrier, 0), barrier);
        assert_eq!(chosen(nranks, Func::AllGather, 1), "oneshot simple");
        assert_eq!(chosen(nranks, Func::AllGather, 64 << 20), "oneshot simple");
        assert_eq!(chosen(nranks, Func::ReduceScatter, 8 << 10), "oneshot simple");
        assert_eq!(chosen(nranks, Func::ReduceScatter, (8 << 10) + 1), "ring simple");
        assert_eq!(chosen(nranks, Func::Reduce, 1), "ring simple");
    }
    for (nranks, two_shot) in [(4, 192 << 10), (9, 192 << 10), (10, 768 << 10), (128, 768 << 10)] {
        assert_eq!(chosen(nranks, Func::AllReduce, two_shot), "twoshot simple");
        assert_eq!(chosen(nranks, Func::AllReduce, two_shot + 1), "ring simple");
    }
    assert_eq!(chosen(3, Func::AllReduce, 1 << 30), "twoshot simple");
    for (nranks, one_shot, doubling) in
        [(3, 2730, 0), (4, 0, 16 << 10), (5, 1638, 0), (6, 0, 2 << 10), (12, 0, 2 << 10), (16, 0, 16 << 10)]
    {
        let expected = |bytes| match bytes {
            _ if bytes <= doubling => "doubling simple",
            _ if bytes < one_shot => "oneshot simple",
            _ => "twoshot simple",
        };
        for bytes in [1, doubling.max(1), doubling + 1, one_shot.max(2) - 1, one_shot.max(1)] {
            assert_eq!(
                chosen(nranks, Func::AllReduce, bytes),
                expected(bytes),
                "{nranks} ranks: {bytes} bytes"
            );
        }
    }
    let is_read = |nranks, bytes| facts(nranks, true).goes_as_messages(&call(Func::AllGather, bytes));
    assert!(!is_read(3, 1 << 30) && !is_read(4, 1 << 30));
}

#[test]
fn what_was_measured_on_h200_stays_chosen() {
    let facts = Facts::of_gpus(8, (90, 132), Forced::default(), ChannelLimits::default(), None);
    let chosen = |func, count| {
        let choice = facts.choose(&call(func, count));
        assert!(matches!(choice.reason, Reason::Measured { .. }), "{choice:?}");
        choice.candidate.to_string()
    };
    assert_eq!(chosen(Func::AllReduce, (192 << 10) - 1), "oneshot ll");
    assert_eq!(chosen(Func::AllReduce, 192 << 10), "twoshot ll");
    assert_eq!(chosen(Func::AllReduce, 512 << 10), "twoshot ll");
    assert_eq!(chosen(Func::AllReduce, (512 << 10) + 1), "ring simple");
    assert_eq!(chosen(Func::AllGather, 128 << 10), "oneshot ll");
    assert_eq!(chosen(Func::Broadcast, 192 << 10), "ring ll");
    assert_eq!(chosen(Func::Broadcast, (192 << 10) + 1), "ring simple");
    assert_eq!(chosen(Func::ReduceScatter, 1 << 20), "ring simple");
    assert_eq!(facts.choose(&call(Func::Barrier, 0)).reason, Reason::Only);
}

#[test]
fn without_measurements_the_model_decides_and_keeps_off_ll128_where_routes_are_unknown() {
    for sm in [70, 80, 100] {
        let facts = Facts::of_gpus(8, (sm, 80), Forced::default(), ChannelLimits::default(), None);
        for count in (0..34).map(|power| 1 << power) {
            let choice = facts.choose(&call(Func::AllReduce, count));
            assert_eq!(choice.reason, Reason::Model);
            assert_ne!(choice.candidate.protocol, Protocol::LL128);
        }
        assert_eq!(facts.choose(&call(Func::AllReduce, 8)).candidate.to_string(), "oneshot ll");
        let known = Facts { machine: Machine { is_searched: true, ..facts.machine }, ..facts };
        let all = |facts: Facts| {
            (0..34).map(move |power| facts.choose(&call(Func::AllGather, 1 << power)).candidate.protocol)
        };
        assert!(all(known).any(|protocol| protocol == Protocol::LL128), "{sm}");
        assert!(offered(Backend::Gpu, Func::AllGather).has(Candidate::new(Algorithm::Ring, Protocol::LL128)));
    }
}

#[test]
fn the_model_knows_nccls_latencies_on_8_h200() {
    // What NCCL 2.28.9 took for 1 KiB, captured, in microseconds: 14.7 by whichever of these it chose.
    let machine = Machine { tree_depth: [7, 0], ..Machine::nominal(Architecture::Hopper, 8) };
    let time = |algorithm| {
        estimate(Candidate::new(algorithm, Protocol::LL), &call(Func::AllReduce, 1024), &machine).time_us
    };
    assert!((14.0..16.0).contains(&time(Algorithm::Ring)), "{}", time(Algorithm::Ring));
    assert!((14.0..16.0).contains(&time(Algorithm::Tree)), "{}", time(Algorithm::Tree));
    // And for 1 GiB 5209 us, which only a Simple ring does.
    let ring = estimate(
        Candidate::new(Algorithm::Ring, Protocol::Simple),
        &call(Func::AllReduce, 1 << 30),
        &machine,
    );
    assert!((5200.0..5320.0).contains(&ring.time_us), "{ring:?}");
}

#[test]
fn the_model_knows_what_oxccl_took_on_4_h200() {
    // 4 H200, 2026-11-21, commit 808786a, microseconds; what was chosen there.
    let machine = Machine::nominal(Architecture::Hopper, 4);
    let (one_shot, ring) =
        (Candidate::new(Algorithm::OneShot, Protocol::LL), Candidate::new(Algorithm::Ring, Protocol::Simple));
    for (candidate, func, bytes, measured) in [
        (one_shot, Func::AllReduce, 8, 6.63),
        (one_shot, Func::AllReduce, 64 << 10, 8.54),
        (one_shot, Func::AllGather, 256 << 10, 8.48),
        (ring, Func::AllReduce, 1 << 20, 30.78),
        (ring, Func::AllReduce, 4 << 20, 45.89),
        (ring, Func::AllReduce, 16 << 20, 99.84),
        (ring, Func::AllReduce, 64 << 20, 305.0),
        (ring, Func::AllReduce, 1 << 30, 4603.0),
        (ring, Func::AllGather, 1 << 30, 2329.0),
    ] {
        let count = if func == Func::AllGather { bytes / 4 } else { bytes };
        let modelled = estimate(candidate, &call(func, count), &machine).time_us;
        assert!(
            (modelled / measured - 1.0).abs() < 0.1,
            "{candidate} {func} {bytes}: {modelled} for {measured}"
        );
    }
}
