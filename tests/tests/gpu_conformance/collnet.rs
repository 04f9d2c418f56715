//! All-reduces, reduce-scatters and all-gathers of GPUs through a network that reduces: an aggregator in this process. GPUs are hosts of their own, or several are one.

use super::net::loopback;
use super::net_graphs::replayed_among_calls;
use oxccl::cuda::DeviceMemory;
use oxccl::{Algorithm, DataType, Fault, Func, Rank, RedOp, Untyped};
use oxccl_tests::case::{Case, Placement};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::deck::Deck;
use oxccl_tests::devices::{DeviceWorld, Launch};
use oxccl_tests::harness::Settings;
use oxccl_tests::net::Aggregator;
use std::time::Duration;

const HOSTS: [&[&str]; 4] = [&["a", "b"], &["a", "b", "c", "d"], &["a", "a", "b", "b"], &["a", "b", "b"]];

/// Around a slot's border, several times all slots, and what begins no slot evenly.
const COUNTS: [usize; 12] =
    [1, 2, 7, 1000, 4095, 65_536, 65_537, 131_071, 262_144, 524_289, 1_048_577, 333_333];

/// Those with several GPUs on a host, where ways differ.
const WIDE: [&[&str]; 2] = [HOSTS[2], HOSTS[3]];

/// The ways through a host to the network.
const CHAIN: Algorithm = Algorithm::CollnetChain;
const STAR: Algorithm = Algorithm::CollnetDirect;

/// What goes through it.
const THROUGH: [Func; 3] = [Func::AllReduce, Func::ReduceScatter, Func::AllGather];

fn world((hosts, way): (&[&str], Algorithm), aggregator: &Aggregator, settings: Settings) -> DeviceWorld {
    let settings = Settings { algorithm: Some(way), ..settings };
    let world = DeviceWorld::on_hosts(hosts, settings, |config| {
        loopback(config);
        config.net.coll = aggregator.config();
    });
    for rank in &world.ranks {
        for func in THROUGH {
            let explained = rank.comm.explain_with(func, DataType::F32, RedOp::Avg, 1000);
            let explained = explained.expect("a collective").expect("it is planned");
            assert_eq!(explained.choice.candidate.algorithm, way, "{explained}");
        }
    }
    world
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_collnet_every_type_and_operator() {
    let _deadline = Deadline::start("needs_gpu_collnet_every_type_and_operator", Duration::from_secs(100));
    let aggregator = Aggregator::start();
    let all = HOSTS.map(|hosts| (hosts, CHAIN)).into_iter().chain(WIDE.map(|hosts| (hosts, STAR)));
    for (nth, (hosts, way)) in all.enumerate() {
        let mut world = world((hosts, way), &aggregator, Settings::default());
        let mut deck = Deck::new(COUNTS.len() * Placement::ALL.len() * Launch::ALL.len(), nth as u64);
        for (&dtype, &op) in
            DataType::ALL.iter().flat_map(|dtype| RedOp::ALL.iter().map(move |op| (dtype, op)))
        {
            let card = deck.draw();
            let (count, card) = (COUNTS[card % COUNTS.len()], card / COUNTS.len());
            let placement = Placement::ALL[card % Placement::ALL.len()];
            let launch = Launch::ALL[card / Placement::ALL.len()];
            for func in THROUGH.into_iter().filter(|func| *func != Func::AllGather || op == RedOp::Sum) {
                let count = if func == Func::AllReduce { count } else { count.div_ceil(hosts.len()) };
                let case = Case { func, dtype, op, root: 0, count, placement, seed: card as u64 };
                doing(|| format!("{case:?} by {launch:?} of {hosts:?}"));
                world.check(&case, launch).unwrap_or_else(|failure| panic!("{failure}"));
            }
        }
    }
}

/// Functions between all-reduces go through the network too, or by rings and messages.
#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_collnet_every_length_among_other_functions() {
    let _deadline =
        Deadline::start("needs_gpu_collnet_every_length_among_other_functions", Duration::from_secs(100));
    let aggregator = Aggregator::start();
    for (hosts, way) in [(HOSTS[0], CHAIN), (HOSTS[2], CHAIN), (HOSTS[2], STAR)] {
        let mut world = world((hosts, way), &aggregator, Settings::default());
        let others = [Func::AllGather, Func::Broadcast, Func::AllToAll, Func::Barrier, Func::ReduceScatter];
        for (nth, count) in COUNTS.into_iter().chain([0, 2_500_001]).enumerate() {
            let others = [others[nth % others.len()], others[(nth + 2) % others.len()]];
            for (func, count) in
                [(Func::AllReduce, count), (others[0], 5000), (Func::AllReduce, 3), (others[1], 9)]
            {
                let (dtype, op, placement) =
                    (DataType::F32, RedOp::Sum, Placement::ALL[nth % Placement::ALL.len()]);
                let count = if func == Func::Barrier { 0 } else { count };
                let case = Case { func, dtype, op, root: 0, count, placement, seed: nth as u64 };
                let launch = Launch::ALL[nth % Launch::ALL.len()];
                doing(|| format!("{case:?} by {launch:?} of {hosts:?}"));
                world.check(&case, launch).unwrap_or_else(|failure| panic!("{failure}"));
            }
        }
    }
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_collnet_graphs_replayed_among_calls() {
    let _deadline =
        Deadline::start("needs_gpu_collnet_graphs_replayed_among_calls", Duration::from_secs(100));
    let aggregator = Aggregator::start();
    for on in [(HOSTS[0], CHAIN), (HOSTS[2], CHAIN), (HOSTS[3], STAR)] {
        replayed_among_calls(world(on, &aggregator, Settings::default()));
    }
}

/// A server that ends, then ranks of which one does not call: an error on every rank that waits, in time, with the one at fault.
#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_collnet_what_fails_is_named() {
    let _deadline = Deadline::start("needs_gpu_collnet_what_fails_is_named", Duration::from_secs(100));
    for (stops, timeout) in [(true, Duration::from_secs(60)), (false, Duration::from_secs(2))] {
        let aggregator = Aggregator::start();
        let world = world((&["a", "b"], CHAIN), &aggregator, Settings { timeout, ..Settings::default() });
        if stops {
            drop(aggregator);
        }
        let callers = &world.ranks[..if stops { 2 } else { 1 }];
        let memories: Vec<DeviceMemory> = callers
            .iter()
            .map(|rank| DeviceMemory::zeroed(rank.comm.device(), 4 << 20).expect("4 MiB"))
            .collect();
        for (rank, memory) in callers.iter().zip(&memories) {
            let buffer: *mut u8 = std::ptr::without_provenance_mut(memory.address() as usize);
            let untyped = Untyped::new(Func::AllReduce, DataType::F32);
            let call = Untyped { send: buffer, recv: buffer, count: memory.len() / 4, ..untyped };
            // SAFETY: in place, of the whole memory, which lives until the stream has been waited for.
            let put = unsafe { rank.comm.enqueue_untyped(&call, rank.stream.by_ref()) };
            assert!(stops || put.is_ok(), "{put:?}");
        }
        for rank in callers {
            let reported = rank.comm.synchronize(rank.stream.by_ref()).unwrap_err();
            println!("rank {}: {reported}", rank.comm.rank());
            let fault = reported.fault();
            let is_named = match stops {
                true => {
                    matches!(fault, Some(Fault::Link { .. } | Fault::PeerAborted { .. }))
                }
                false => matches!(fault, Some(Fault::Timeout { rank: Rank(1), .. })),
            };
            assert!(is_named, "{fault:?}");
        }
    }
}
