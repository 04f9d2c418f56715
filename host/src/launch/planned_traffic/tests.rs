//! Traffic of calls that move no slots, and what is kept of those that do; the rest is in `connect::gpu::channel_places::tests`.

use super::*;
use crate::plan::{ChannelLimits, Facts, Forced, Placement};
use oxccl_shared::abi::{Algorithm, Func, RedOp};
use oxccl_shared::algo::symmetric::FUNCS;
use std::ptr::{null, null_mut};

fn places(nranks: u32) -> ChannelPlaces {
    let ring = ProxyChannel { ring: (0..nranks).map(Rank).collect(), ..ProxyChannel::default() };
    let mesh = ProxyChannel::default();
    ChannelPlaces { rings: vec![ring; 64].into(), mesh: vec![mesh; 64].into(), ..ChannelPlaces::default() }
}

/// Every rank's.
fn all(nranks: u32) -> Vec<PlannedTraffic> {
    (0..nranks).map(|rank| PlannedTraffic::new(Rank(rank), nranks, places(nranks))).collect()
}

fn call(func: Func, count: u64) -> Call {
    Call { func, dtype: DataType::U32, op: RedOp::Sum, root: Rank(0), count }
}

fn raw(call: Call) -> RawCall {
    RawCall { call, send: null(), recv: null_mut(), scalar_bits: 0, forced: None }
}

fn run(traffic: &PlannedTraffic, calls: &[(Call, CallPlan)], times: usize) {
    let (calls, plans): (Vec<RawCall>, Vec<CallPlan>) =
        calls.iter().map(|(call, plan)| (raw(*call), *plan)).unzip();
    traffic.begin(&calls, &plans, |_| true);
    (0..times).for_each(|_| traffic.count());
}

/// Bytes from each rank to each, once both ends have been found to say the same.
fn between(all: &[PlannedTraffic]) -> Vec<Vec<u64>> {
    let read: Vec<_> = all.iter().map(PlannedTraffic::read).collect();
    for (from, to) in (0..all.len()).flat_map(|from| (0..all.len()).map(move |to| (from, to))) {
        assert_eq!(read[from][to].bytes[0], read[to][from].bytes[1], "from {from} to {to}");
        assert_eq!(read[from][to].operations, read[to][from].operations, "from {from} to {to}");
    }
    read.iter().map(|peers| peers.iter().map(|peer| peer.bytes[0]).collect()).collect()
}

#[test]
fn symmetric_kernels_move_what_their_functions_must() {
    for (func, nranks) in FUNCS.iter().flat_map(|func| (2..9).map(move |nranks| (*func, nranks))) {
        let (dtype, count) = (func.is_reduction().then_some(DataType::U32), 1_000_000);
        let plan = SymmetricPlan {
            func,
            dtype,
            touched: [None; 2],
            channels: 8,
            own_blocks: 0,
            threads: 320,
            tile_bytes: 8192,
            is_aligned: true,
            count,
            grain_elems: 128,
        };
        let all = all(nranks);
        all.iter().for_each(|traffic| run(traffic, &[(call(func, count), CallPlan::Symmetric(plan))], 3));
        let (sent, each) = (between(&all), 3 * count * if dtype.is_some() { 4 } else { 1 });
        let total: u64 = sent.iter().flatten().sum();
        let n = u64::from(nranks);
        if func == Func::AllReduce {
            assert_eq!(total, 2 * (n - 1) * each, "{nranks} ranks");
            continue;
        }
        assert_eq!(total, n * (n - 1) * each, "{func}, {nranks} ranks");
        assert!(sent.iter().flatten().all(|bytes| [0, each].contains(bytes)), "{func}: {sent:?}");
    }
}

#[test]
fn copy_engines_move_what_their_functions_must() {
    let placement = Placement { window: 0, offset: 0 };
    let of_all = [Func::AllGather, Func::AllToAll];
    let of_root = [Func::Broadcast, Func::Scatter, Func::Gather];
    for (func, nranks) in of_all.into_iter().chain(of_root).flat_map(|func| [2, 3, 8].map(|n| (func, n))) {
        let (all, count) = (all(nranks), 3 << 20);
        let call = Call { root: Rank(if of_root.contains(&func) { 1 } else { 0 }), ..call(func, count) };
        all.iter().for_each(|traffic| run(traffic, &[(call, CallPlan::CopyEngines(placement))], 2));
        let (sent, each, n) = (between(&all), 2 * call.bytes(), u64::from(nranks));
        let pairs = if of_all.contains(&func) { n * (n - 1) } else { n - 1 };
        assert_eq!(sent.iter().flatten().sum::<u64>(), pairs * each, "{func}, {nranks} ranks");
        assert!(sent.iter().flatten().all(|bytes| [0, each].contains(bytes)), "{func}: {sent:?}");
        let next = all[1].read()[2 % nranks as usize];
        assert_eq!(next.operations, 2, "{func}: in however many pieces");
    }
}

/// A group's messages with a peer are one operation, as on CPUs; an all-gather is one of its own.
#[test]
fn messages_count_by_their_lengths() {
    let n = 4;
    let all = all(n);
    let messages = |func, count| (call(func, count), CallPlan::Messages);
    for (rank, traffic) in all.iter().enumerate() {
        let next = (Call { root: Rank((rank as u32 + 1) % n), ..call(Func::Send, 5) }, CallPlan::Messages);
        let last = (Call { root: Rank((rank as u32 + 3) % n), ..call(Func::Recv, 5) }, CallPlan::Messages);
        run(traffic, &[next, messages(Func::AllToAll, 100), messages(Func::AllGather, 7), last], 2);
    }
    let sent = between(&all);
    for (from, to) in (0..4).flat_map(|from| (0..4).map(move |to| (from, to))) {
        let expected = match (to + 4 - from) % 4 {
            0 => 0,
            1 => 2 * 4 * (5 + 100 + 7),
            _ => 2 * 4 * (100 + 7),
        };
        assert_eq!(sent[from][to], expected, "from {from} to {to}");
        assert_eq!(all[from].read()[to].operations, if from == to { 0 } else { 4 });
    }
}

/// Whether all are called again and again or once, and however many there are.
#[test]
fn more_calls_than_are_kept_are_all_counted() {
    let forced = Forced::only(Some(Algorithm::Ring), None);
    let facts = Facts::of_gpus(3, (90, 132), forced, ChannelLimits::default(), None);
    let plan = |count| {
        let call = Call { root: Rank(count as u32 % 3), ..call(Func::Broadcast, count) };
        (call, facts.plan(&call))
    };
    let of = |rank| PlannedTraffic::new(Rank(rank), 3, places(3));
    let (many, mut expected) = (of(0), [PeerTraffic::default(); 3]);
    for round in 0..3 {
        for count in 1..=3 * KEPT as u64 {
            let calls = [plan(count * 1000), plan(count * 1000 + 1)];
            run(&many, &calls, round);
            for (call, round) in calls.into_iter().zip([round; 2]) {
                let one = of(0);
                run(&one, &[call], round);
                for (sum, one) in expected.iter_mut().zip(one.read()) {
                    sum.operations += one.operations;
                    sum.bytes = [0, 1].map(|way| sum.bytes[way] + one.bytes[way]);
                }
            }
            if count % 40 == 0 {
                assert_eq!(many.read(), expected);
            }
        }
    }
    assert_eq!(many.read(), expected);
    assert!(expected[1].bytes[0] > 0 && expected[2].bytes[1] > 0 && expected[1].bytes[1] == 0);
}

#[test]
fn what_nobody_knows_is_not_counted() {
    let traffic = &all(2)[0];
    let all_to_all = call(Func::AllToAll, 10);
    traffic.begin(&[raw(all_to_all)], &[CallPlan::Messages], |_| false);
    traffic.count();
    assert_eq!(traffic.read(), [PeerTraffic::default(); 2]);
}
