//! Trees: both span, no rank is inner in both, and the two halves never wait for each other in a circle.

use oxccl_shared::abi::Rank;
use oxccl_shared::algo::tree::{
    self, TreeHop, TreeLinks, Turn, all_reduce_down, all_reduce_up, depth, double_binary_tree, lag_max,
    pipeline,
};
use oxccl_shared::fifo::STEPS;
use proptest::prelude::*;

use super::params::{Call, calls};
use super::sim::{self, Agent, Buffers, Deadlock, Op, reduced};

fn children(links: &TreeLinks) -> impl Iterator<Item = Rank> + '_ {
    links.down.iter().flatten().copied()
}

/// One tree's links of all ranks: parents and children agree, one root, which every rank reaches, of the stated
/// depth.
fn check_spanning(tree: &[TreeLinks], root: u32) {
    let n = tree.len() as u32;
    let mut deepest = 0;
    for (rank, links) in tree.iter().enumerate() {
        let rank = Rank(rank as u32);
        assert_eq!(links.is_root(), rank.0 == root, "rank {rank} of {n}");
        assert_eq!(links.is_leaf(), children(links).count() == 0);
        for child in children(links) {
            assert_eq!(tree[child.index()].up, Some(rank), "rank {child} of {n} must know its parent");
        }
        let (mut at, mut steps) = (*links, 0);
        let mut below = rank;
        while let Some(parent) = at.up {
            at = tree[parent.index()];
            assert!(
                children(&at).any(|child| child == below),
                "rank {parent} of {n} must know its child {below}"
            );
            below = parent;
            steps += 1;
            assert!(steps <= depth(n), "rank {rank} of {n} is too deep or in a cycle");
        }
        deepest = deepest.max(steps);
    }
    assert_eq!(deepest, depth(n), "{n} ranks");
}

#[test]
fn both_trees_span_up_to_2000_ranks() {
    for n in 1..=2000 {
        let both: Vec<_> = (0..n).map(|rank| double_binary_tree(Rank(rank), n)).collect();
        let second_root = if n % 2 == 0 { n - 1 } else { 1 % n };
        check_spanning(&both.iter().map(|trees| trees[0]).collect::<Vec<_>>(), 0);
        check_spanning(&both.iter().map(|trees| trees[1]).collect::<Vec<_>>(), second_root);
        for (rank, trees) in both.iter().enumerate().filter(|_| n > 1) {
            let inner = trees.iter().filter(|links| !links.is_leaf()).count();
            let expected = if n % 2 == 1 && rank == 0 { 2 } else { 1 };
            assert_eq!(inner, expected, "rank {rank} of {n}: trees in which it has children");
            let total: usize = trees.iter().map(|links| children(links).count()).sum();
            assert!((1..=2).contains(&total), "rank {rank} of {n}: {total} children");
        }
    }
}

/// Drawn by hand: a full tree of eight, and one of six whose right edge is cut off.
#[test]
fn known_trees() {
    let first = |rank, n| double_binary_tree(Rank(rank), n)[0];
    let links = |up: Option<u32>, down: [Option<u32>; 3]| TreeLinks {
        up: up.map(Rank),
        down: down.map(|d| d.map(Rank)),
    };
    assert_eq!(first(0, 1), links(None, [None; 3]));
    assert_eq!(first(0, 8), links(None, [Some(4), None, None]));
    assert_eq!(first(4, 8), links(Some(0), [Some(2), Some(6), None]));
    assert_eq!(first(6, 8), links(Some(4), [Some(5), Some(7), None]));
    assert_eq!(first(7, 8), links(Some(6), [None; 3]));
    assert_eq!(first(4, 6), links(Some(0), [Some(2), Some(5), None]));
    assert_eq!(first(5, 6), links(Some(4), [None; 3]));
}

#[test]
fn the_pipeline_runs_every_chunk_up_then_down_in_order() {
    for nchunks in 0..40 {
        for lag in 0..12 {
            let (mut up, mut down) = (0, 0);
            for turn in pipeline(nchunks, lag) {
                match turn {
                    Turn::Up(c) => {
                        assert_eq!(c, up);
                        up += 1;
                    }
                    Turn::Down(c) => {
                        assert_eq!(c, down);
                        assert_eq!(
                            up,
                            nchunks.min(c + lag.max(1)),
                            "Down({c}) comes right after Up(c + lag - 1)"
                        );
                        down += 1;
                    }
                }
            }
            assert_eq!((up, down), (nchunks, nchunks));
        }
    }
}

/// How a rank executes its two halves.
#[derive(Clone, Copy, Debug)]
enum Executor {
    /// One after the other, with this lag.
    Sequential(usize),
    /// In two agents, as two groups of warps.
    Concurrent,
}

fn push(call: &Call, ops: &mut Vec<Op>, hop: &TreeHop, chunk: std::ops::Range<usize>) {
    let ranks =
        |links: &[Option<Rank>; tree::ARITY_MAX]| links.iter().flatten().map(|r| r.0).collect::<Vec<_>>();
    for slice in call.slices(chunk) {
        let (from, to, at) = (ranks(&hop.from), ranks(&hop.to), slice.start);
        ops.push(Op { action: hop.action, from, to, elems: slice, src_at: at, dst_at: at });
    }
}

fn agents(
    call: &Call,
    part: std::ops::Range<usize>,
    rank: u32,
    links: &TreeLinks,
    executor: Executor,
) -> Vec<Agent> {
    let chunks: Vec<_> = call.loops(part, 1).map(|one| one.block_range(0)).collect();
    let (up, down) = (all_reduce_up(links), all_reduce_down(links));
    let (mut first, mut second) = (Vec::new(), Vec::new());
    match executor {
        Executor::Sequential(lag) => {
            for turn in pipeline(chunks.len(), lag) {
                match (turn, &down) {
                    (Turn::Up(c), _) => push(call, &mut first, &up, chunks[c].clone()),
                    (Turn::Down(c), Some(down)) => push(call, &mut first, down, chunks[c].clone()),
                    (Turn::Down(_), None) => {}
                }
            }
        }
        Executor::Concurrent => {
            for chunk in chunks {
                push(call, &mut first, &up, chunk.clone());
                if let Some(down) = &down {
                    push(call, &mut second, down, chunk);
                }
            }
        }
    }
    vec![Agent { rank, ops: first }, Agent { rank, ops: second }]
}

/// Channels take the two trees in turn.
fn all_reduce(call: &Call, executor: impl Fn(u32) -> Executor) -> Result<Buffers, Deadlock> {
    let mut buffers = Buffers::new(call.n, call.count, call.count);
    for (channel, part) in call.parts().enumerate() {
        let program = |rank| {
            let links = double_binary_tree(Rank(rank), call.n)[channel % 2];
            agents(call, part.clone(), rank, &links, executor(rank))
        };
        let all: Vec<Agent> = (0..call.n).flat_map(program).collect();
        sim::run(call.n, &all, &mut buffers, call)?;
    }
    Ok(buffers)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Any mixture of CPU ranks (one lag for all) and GPU ranks, up to as many slices per chunk as there are slots.
    #[test]
    fn all_reduce_is_complete(call in calls(1..18, |slots| slots), lag in any::<prop::sample::Index>(), gpus in any::<u32>()) {
        let lag = 1 + lag.index(lag_max(call.chunk.div_ceil(call.slice), call.slots));
        let executor = |rank| if gpus >> rank & 1 == 1 { Executor::Concurrent } else { Executor::Sequential(lag) };
        let buffers = all_reduce(&call, executor).unwrap();
        for output in &buffers.output {
            prop_assert!(output.iter().all(|&value| value == reduced(call.n)));
        }
    }
}

fn forty_chunks_of_one_slice(n: u32) -> Call {
    Call { n, count: 40, nchannels: 1, grain: 1, chunk: 1, slice: 1, slots: STEPS, seed: 7 }
}

/// Why the lag belongs to the plan: ranks 0 -> 2 -> 1 are a chain, and the parent is further ahead than its child.
#[test]
fn different_lags_deadlock() {
    let call = forty_chunks_of_one_slice(3);
    let lags = |middle| move |rank| Executor::Sequential(if rank == 2 { middle } else { 1 });
    assert!(all_reduce(&call, lags(1)).is_ok());
    assert!(matches!(all_reduce(&call, lags(3)), Err(Deadlock(stuck)) if stuck.len() == 3));
}

/// A leaf that sends up more than both directions' slots hold before it takes anything down blocks the root.
#[test]
fn a_lag_beyond_all_slots_deadlocks() {
    let call = forty_chunks_of_one_slice(2);
    assert!(all_reduce(&call, |_| Executor::Sequential(lag_max(1, STEPS))).is_ok());
    assert!(all_reduce(&call, |_| Executor::Sequential(2 * STEPS + 1)).is_err());
    assert!(all_reduce(&call, |_| Executor::Concurrent).is_ok());
}

#[test]
fn lags_fill_the_slots_and_no_more() {
    for slots in [4, STEPS] {
        for slices in 1..=slots {
            let lag = lag_max(slices, slots);
            assert!(lag * slices <= slots && (lag + 1) * slices > slots);
        }
    }
}
