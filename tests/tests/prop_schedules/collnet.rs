//! Chains and stars of a host's ranks, and between hosts a network that adds: here one more rank, which only adds.

use super::params::{Call, calls};
use super::sim::{self, Agent, Buffers, Deadlock, Op, contribution, reduced};
use oxccl_shared::abi::{Func, Rank};
use oxccl_shared::algo::Action;
use oxccl_shared::algo::collnet::{
    BlockStep, Blocks, HostLinks, Owner, Shape, all_gather_down, all_gather_up, all_reduce_down,
    all_reduce_up, branches, reduce_scatter_down, reduce_scatter_up,
};
use oxccl_shared::algo::tree::{Turn, lag_max, pipeline};
use oxccl_shared::fifo::STEPS;
use proptest::prelude::*;
use std::ops::Range;

/// Adds what all heads send and sends it to all: a root's part of a tree.
const ADD: Action = Action { recv: true, src: false, send: true, dst: false, finish: false };

/// Ranks `0..n` on hosts, cut before those that `cuts` has a bit for; the network is rank `n`.
fn hosts(n: u32, cuts: u32) -> Vec<Range<u32>> {
    let starts: Vec<u32> = (0..n).filter(|rank| *rank == 0 || cuts >> rank & 1 == 1).collect();
    let ends = starts.iter().skip(1).copied().chain([n]);
    starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect()
}

fn push(call: &Call, ops: &mut Vec<Op>, action: Action, from: &[u32], to: &[u32], chunk: Range<usize>) {
    for slice in call.slices(chunk) {
        let (from, to, at) = (from.to_vec(), to.to_vec(), slice.start);
        ops.push(Op { action, from, to, elems: slice, src_at: at, dst_at: at });
    }
}

/// A rank among the ranks of its host.
struct Member {
    rank: u32,
    links: HostLinks,
    above: [u32; 1],
    below: Vec<u32>,
    shape: Shape,
    host: Vec<Rank>,
}

impl Member {
    fn of(call: &Call, shape: Shape, host: &Range<u32>, rank: u32) -> Member {
        let host: Vec<Rank> = host.clone().map(Rank).collect();
        let place = shape.place(&host, Rank(rank)).unwrap();
        let (links, below) = (place.links(), place.below.iter().map(|below| below.0).collect());
        let above = [place.above.map_or(call.n, |above| above.0)];
        Member { rank, links, above, below, shape, host }
    }

    fn all(call: &Call, shape: Shape, hosts: &[Range<u32>]) -> Vec<Member> {
        let of = |host: &Range<u32>| {
            host.clone().map(|rank| Member::of(call, shape, host, rank)).collect::<Vec<_>>()
        };
        hosts.iter().flat_map(of).collect()
    }
}

fn all_reduce_of(call: &Call, part: Range<usize>, member: &Member, lag: usize) -> Agent {
    let Member { rank, links, above, below, .. } = member;
    let chunks: Vec<_> = call.loops(part, 1).map(|one| one.block_range(0)).collect();
    let mut ops = Vec::new();
    for turn in pipeline(chunks.len(), lag) {
        match turn {
            Turn::Up(c) => push(call, &mut ops, all_reduce_up(links), below, above, chunks[c].clone()),
            Turn::Down(c) => push(call, &mut ops, all_reduce_down(links), above, below, chunks[c].clone()),
        }
    }
    Agent { rank: *rank, ops }
}

fn network(call: &Call, part: Range<usize>, hosts: &[Range<u32>]) -> Agent {
    let heads: Vec<u32> = hosts.iter().map(|host| host.start).collect();
    let mut ops = Vec::new();
    for chunk in call.loops(part, 1).map(|one| one.block_range(0)) {
        push(call, &mut ops, ADD, &heads, &heads, chunk);
    }
    Agent { rank: call.n, ops }
}

fn all_reduce(
    call: &Call,
    (shape, cuts): (Shape, u32),
    lag: impl Fn(u32) -> usize,
) -> Result<Buffers, Deadlock> {
    let hosts = hosts(call.n, cuts);
    let mut buffers = Buffers::new(call.n + 1, call.count, call.count);
    for part in call.parts() {
        let members = Member::all(call, shape, &hosts);
        let members =
            members.iter().map(|member| all_reduce_of(call, part.clone(), member, lag(member.rank)));
        let all: Vec<Agent> = members.chain([network(call, part.clone(), &hosts)]).collect();
        sim::run(call.n + 1, &all, &mut buffers, call)?;
    }
    Ok(buffers)
}

/// A step of blocks, whose elements are named by their places in all blocks.
fn block_op(call: &Call, func: Func, action: Action, from: &[u32], to: &[u32], step: &BlockStep) -> Op {
    let (at, all) = (step.elems.start, step.owner.index() * call.count + step.elems.start);
    let (src_at, dst_at) = if func == Func::ReduceScatter { (all, at) } else { (at, all) };
    let from = if action.recv { from.to_vec() } else { Vec::new() };
    let to = if action.send { to.to_vec() } else { Vec::new() };
    Op { action, from, to, elems: all..all + step.elems.len(), src_at, dst_at }
}

/// Here a slot without elements has as many of them as others, and all of them are zero.
fn blocks_of(call: &Call, func: Func, part: Range<usize>, member: &Member) -> Agent {
    let Member { rank, links, above, below, shape, host } = member;
    let steps: Vec<BlockStep> = Blocks::new(part, call.slice, call.n).collect();
    let mut ops = Vec::new();
    for turn in pipeline(steps.len(), lag_max(1, call.slots)) {
        let (is_up, step) = match turn {
            Turn::Up(step) => (true, &steps[step]),
            Turn::Down(step) => (false, &steps[step]),
        };
        let owner = Owner::of(*shape, host, Rank(*rank), step.owner);
        let hop = match (is_up, func) {
            (true, Func::ReduceScatter) => reduce_scatter_up(links),
            (true, _) => all_gather_up(links, owner),
            (false, Func::ReduceScatter) => reduce_scatter_down(links, owner),
            (false, _) => all_gather_down(links),
        };
        let Some(hop) = hop else { continue };
        let action = if hop.is_full { hop.action } else { Action { src: false, ..hop.action } };
        let below = &below[branches(func, is_up, owner, below.len())];
        let (from, to) = if is_up { (below, &above[..]) } else { (&above[..], below) };
        ops.push(block_op(call, func, action, from, to, step));
    }
    Agent { rank: *rank, ops }
}

/// Every head's step, and a slot for every head.
fn network_of_blocks(call: &Call, func: Func, part: Range<usize>, hosts: &[Range<u32>]) -> Agent {
    let heads: Vec<u32> = hosts.iter().map(|host| host.start).collect();
    let steps = Blocks::new(part, call.slice, call.n);
    let ops = steps.map(|step| block_op(call, func, ADD, &heads, &heads, &step)).collect();
    Agent { rank: call.n, ops }
}

fn blocks(call: &Call, func: Func, (shape, cuts): (Shape, u32)) -> Result<Buffers, Deadlock> {
    let (hosts, all) = (hosts(call.n, cuts), call.n as usize * call.count);
    let (input, output) = if func == Func::ReduceScatter { (all, call.count) } else { (call.count, all) };
    let mut buffers = Buffers::new(call.n + 1, input, output);
    for part in call.parts() {
        let members = Member::all(call, shape, &hosts);
        let members = members.iter().map(|member| blocks_of(call, func, part.clone(), member));
        let network = network_of_blocks(call, func, part.clone(), &hosts);
        let steps = Blocks::count(part.len(), call.slice, call.n);
        assert_eq!(network.ops.len(), steps, "as many steps as are counted");
        let all: Vec<Agent> = members.chain([network]).collect();
        sim::run(call.n + 1, &all, &mut buffers, call)?;
    }
    Ok(buffers)
}

fn shapes() -> impl Strategy<Value = Shape> {
    prop_oneof![Just(Shape::Chain), Just(Shape::Star)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Any number of hosts with any number of ranks.
    #[test]
    fn reduce_scatter_is_complete(call in calls(1..18, |slots| slots), shape in shapes(), cuts in any::<u32>()) {
        let buffers = blocks(&call, Func::ReduceScatter, (shape, cuts)).unwrap();
        for output in &buffers.output[..call.n as usize] {
            prop_assert!(output.iter().all(|&value| value == reduced(call.n)));
        }
    }

    #[test]
    fn all_gather_is_complete(call in calls(1..18, |slots| slots), shape in shapes(), cuts in any::<u32>()) {
        let buffers = blocks(&call, Func::AllGather, (shape, cuts)).unwrap();
        for output in &buffers.output[..call.n as usize] {
            for (rank, block) in (0..call.n).zip(output.chunks(call.count.max(1))) {
                prop_assert!(block.iter().all(|&value| value == contribution(rank)));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Any number of hosts with any number of ranks, up to as many slices per chunk as there are slots.
    #[test]
    fn all_reduce_is_complete(call in calls(1..18, |slots| slots), shape in shapes(), cuts in any::<u32>(), lag in any::<prop::sample::Index>()) {
        let lag = 1 + lag.index(lag_max(call.chunk.div_ceil(call.slice), call.slots));
        let buffers = all_reduce(&call, (shape, cuts), |_| lag).unwrap();
        for output in &buffers.output[..call.n as usize] {
            prop_assert!(output.iter().all(|&value| value == reduced(call.n)));
        }
        // The network keeps nothing.
        prop_assert!(buffers.output[call.n as usize].iter().all(|&value| value == 0));
    }
}

/// As in a tree: a rank that sends up more than all slots on the way hold, before it receives, blocks the network.
#[test]
fn a_lag_beyond_all_slots_deadlocks() {
    let call = Call { n: 2, count: 40, nchannels: 1, grain: 1, chunk: 1, slice: 1, slots: STEPS, seed: 7 };
    assert!(all_reduce(&call, (Shape::Chain, 0b10), |_| lag_max(1, STEPS)).is_ok());
    assert!(all_reduce(&call, (Shape::Chain, 0b10), |_| 2 * STEPS + 1).is_err());
}
