//! Two levels: peers agree on places and blocks, results are complete, and no number of loops fills the slots for good.

use oxccl_shared::abi::Rank;
use oxccl_shared::algo::twolevel::{Seat, all_reduce};
use proptest::prelude::*;

use super::params::{Call, calls};
use super::sim::{self, Agent, Buffers, Op, reduced};

#[test]
fn places_are_those_of_the_host_and_of_the_number() {
    for each in 1..=5 {
        for hosts in 1..=5 {
            let n = each * hosts;
            for rank in 0..n {
                let seat = Seat::new(Rank(rank), n, each);
                let peers: Vec<u32> = seat.all().map(|place| seat.peer(place).0).collect();
                let near = (0..n).filter(|peer| peer / each == rank / each && *peer != rank);
                let far = (0..n).filter(|peer| peer % each == rank % each && *peer != rank);
                assert_eq!(peers, near.chain(far).collect::<Vec<_>>(), "{seat:?}");
            }
        }
    }
}

#[test]
fn a_loop_sends_each_block_over_each_border_as_often_as_it_must() {
    for (each, hosts) in [(2, 2), (4, 2), (3, 4), (8, 3)] {
        let seat = Seat::new(Rank(1), each * hosts, each);
        let hops: Vec<_> = all_reduce(seat).collect();
        let near = each as usize - 1;
        let far = hops.iter().flat_map(|hop| hop.to.clone()).filter(|place| *place >= near).count();
        assert_eq!(far as u32, 2 * (hosts - 1));
        let written = hops.iter().filter(|hop| hop.action.dst).map(|hop| hop.block);
        let mut written: Vec<u32> = written.collect();
        written.sort_unstable();
        assert!(written.into_iter().eq(0..each * hosts), "each block is written once");
        assert_eq!(hops.iter().filter(|hop| hop.action.finish).count(), 1);
    }
}

fn run(call: &Call, host_ranks: u32) -> Buffers {
    let mut buffers = Buffers::new(call.n, call.count, call.count);
    for part in call.parts() {
        let ops = |rank| {
            let seat = Seat::new(Rank(rank), call.n, host_ranks);
            let mut ops = Vec::new();
            for one in call.loops(part.clone(), call.n) {
                for hop in all_reduce(seat) {
                    let elems = one.block_range(hop.block);
                    if elems.is_empty() {
                        continue;
                    }
                    let ranks =
                        |places: std::ops::Range<usize>| places.map(|place| seat.peer(place).0).collect();
                    let at = elems.start;
                    let (from, to) = (ranks(hop.from), ranks(hop.to));
                    ops.push(Op { action: hop.action, from, to, elems, src_at: at, dst_at: at });
                }
            }
            ops
        };
        let agents: Vec<Agent> = (0..call.n).map(|rank| Agent { rank, ops: ops(rank) }).collect();
        let ran = sim::run(call.n, &agents, &mut buffers, call);
        assert!(ran.is_ok(), "{ran:?}: {call:?}");
    }
    buffers
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(384))]

    #[test]
    fn two_levels_are_complete(call in calls(1..20, |_| 1), which in any::<usize>()) {
        let divisors: Vec<u32> = (1..=call.n).filter(|each| call.n.is_multiple_of(*each)).collect();
        let buffers = run(&call, divisors[which % divisors.len()]);
        for output in &buffers.output {
            prop_assert!(output.iter().all(|&value| value == reduced(call.n)));
        }
    }
}

/// More hosts, or ranks of one, than a connection has slots.
#[test]
fn many_hosts_and_ranks_need_no_more_slots() {
    for host_ranks in [1, 2, 9, 18] {
        let call = Call {
            n: 18,
            count: 18 * 40,
            nchannels: 1,
            grain: 1,
            chunk: 1,
            slice: 1,
            slots: oxccl_shared::fifo::STEPS,
            seed: 5,
        };
        run(&call, host_ranks);
    }
}
