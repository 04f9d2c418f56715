//! The mesh: everybody meets everybody, results are complete and reduced in one order.

use std::ops::Range;

use oxccl_shared::abi::Rank;
use oxccl_shared::algo::Action;
use oxccl_shared::algo::direct::{
    DirectHop, Operand, SLICES_MAX, one_shot, operands, peers, sources, two_shot,
};
use proptest::prelude::*;

use super::params::{Call, calls};
use super::sim::{self, Agent, Buffers, Deadlock, Op, Own, reduced};

#[test]
fn peers_rotate_and_no_two_senders_meet() {
    for n in 1..=64 {
        for rank in 0..n {
            let mut seen: Vec<u32> = peers(Rank(rank), n).map(|peer| peer.0).collect();
            let turns = seen.len();
            assert!(sources(Rank(rank), n).zip(0..).all(|(source, turn)| {
                peers(source, n).nth(turn) == Some(Rank(rank)) // the source's turn-th send is to this rank
            }));
            assert_eq!(turns, n as usize - 1);
            seen.push(rank);
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..n), "every peer once");
        }
    }
}

#[test]
fn the_order_of_reduction_is_the_rank_order_everywhere() {
    for n in 1..=17 {
        for rank in 0..n {
            let order = operands(Rank(rank), n).map(|operand| match operand {
                Operand::Own => rank,
                Operand::From(peer) => {
                    assert_ne!(peer.0, rank);
                    peer.0
                }
            });
            assert!(order.eq(0..n));
        }
    }
}

fn to_op(n: u32, rank: u32, hop: DirectHop, elems: Range<usize>) -> Op {
    let others = operands(Rank(rank), n).filter_map(|operand| match operand {
        Operand::Own => None,
        Operand::From(peer) => Some(peer.0),
    });
    let (action, from, to, own) = match hop {
        DirectHop::Send { to, .. } => (Action::SEND, vec![], vec![to.0], Own::Input),
        DirectHop::Reduce { .. } if n == 1 => (Action::COPY_FINISH, vec![], vec![], Own::Input),
        DirectHop::Reduce { .. } => (Action::RECV_REDUCE_COPY, others.collect(), vec![], Own::Input),
        DirectHop::Forward { to, .. } => (Action::SEND, vec![], vec![to.0], Own::Output),
        DirectHop::Recv { from, .. } => (Action::RECV, vec![from.0], vec![], Own::Input),
    };
    let at = elems.start;
    Op { action, from, to, elems, own, src_at: at, dst_at: at }
}

fn block(hop: DirectHop) -> u32 {
    match hop {
        DirectHop::Send { block, .. }
        | DirectHop::Reduce { block }
        | DirectHop::Forward { block, .. }
        | DirectHop::Recv { block, .. } => block,
    }
}

fn all_reduce<I: Iterator<Item = DirectHop>>(
    call: &Call,
    nblocks: u32,
    schedule: impl Fn(Rank) -> I,
) -> Result<Buffers, Deadlock> {
    let mut buffers = Buffers::new(call.n, call.count, call.count);
    for part in call.parts() {
        let mut agents: Vec<Agent> = (0..call.n).map(|rank| Agent { rank, ops: Vec::new() }).collect();
        for agent in &mut agents {
            for one in call.loops(part.clone(), nblocks) {
                for hop in schedule(Rank(agent.rank)) {
                    let slices = call.slices(one.block_range(block(hop)));
                    agent.ops.extend(slices.map(|slice| to_op(call.n, agent.rank, hop, slice)));
                }
            }
        }
        sim::run(call.n, &agents, &mut buffers, call.seed)?;
    }
    Ok(buffers)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(384))]

    #[test]
    fn one_shot_is_complete(call in calls(1..18, SLICES_MAX)) {
        let buffers = all_reduce(&call, 1, |rank| one_shot(rank, call.n)).unwrap();
        for output in &buffers.output {
            prop_assert!(output.iter().all(|&value| value == reduced(call.n)));
        }
    }

    #[test]
    fn two_shot_is_complete(call in calls(1..18, SLICES_MAX)) {
        let buffers = all_reduce(&call, call.n, |rank| two_shot(rank, call.n)).unwrap();
        for output in &buffers.output {
            prop_assert!(output.iter().all(|&value| value == reduced(call.n)));
        }
    }
}

/// The bound is exact for both forms.
#[test]
fn one_slice_too_many_deadlocks_every_mesh() {
    for n in 2..=17 {
        let call = |slices: usize, nblocks: u32| Call {
            n,
            count: slices * nblocks as usize,
            nchannels: 1,
            grain: 1,
            chunk: slices,
            slice: 1,
            seed: 3,
        };
        assert!(all_reduce(&call(SLICES_MAX, 1), 1, |rank| one_shot(rank, n)).is_ok());
        assert!(all_reduce(&call(SLICES_MAX + 1, 1), 1, |rank| one_shot(rank, n)).is_err());
        assert!(all_reduce(&call(SLICES_MAX, n), n, |rank| two_shot(rank, n)).is_ok());
        assert!(all_reduce(&call(SLICES_MAX + 1, n), n, |rank| two_shot(rank, n)).is_err());
    }
}
