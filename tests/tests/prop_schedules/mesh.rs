//! The mesh, one-shot and two-shot: everybody meets everybody, results are complete and reduced in one order, no bound on the slices.

use std::ops::Range;

use oxccl_shared::abi::{Func, Rank};
use oxccl_shared::algo::mesh::{Keep, MeshHop, Others, Part, Sent, peers, place_from, place_to, sources};
use oxccl_shared::algo::{Action, chunk, oneshot, twoshot};
use proptest::prelude::*;

use super::params::{Call, calls};
use super::sim::{self, Agent, Buffers, Op, contribution, reduced};

#[test]
fn peers_rotate_and_no_two_senders_meet() {
    for n in 1..=64 {
        for rank in (0..n).map(Rank) {
            let mut seen: Vec<u32> = peers(rank, n).map(|peer| peer.0).collect();
            let turns = seen.len();
            assert!(sources(rank, n).zip(0..).all(|(source, turn)| {
                peers(source, n).nth(turn) == Some(rank) // the source's turn-th send is to this rank
            }));
            assert_eq!(turns, n as usize - 1);
            seen.push(rank.0);
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..n), "every peer once");
        }
    }
}

#[test]
fn a_peer_has_one_place_in_each_list() {
    for n in 1..=17 {
        for rank in (0..n).map(Rank) {
            assert!(peers(rank, n).map(|peer| place_to(rank, peer, n)).eq(0..n as usize - 1));
            let others = (0..n).map(Rank).filter(|peer| *peer != rank);
            assert!(others.map(|peer| place_from(rank, peer)).eq(0..n as usize - 1));
        }
    }
}

/// What a rank does to one round of hops, as the strictest walk does it: one message after the other, a result sent as it is reduced.
struct Walk {
    n: u32,
    rank: Rank,
    /// The elements that each rank's block stands for, and where they are in a buffer of all blocks.
    blocks: Vec<(Range<usize>, usize)>,
    ops: Vec<Op>,
}

impl Walk {
    /// Elements and place of a message, of the whole or of `whose` block. Messages of whole buffers are named by `owner`.
    fn part(&self, part: Part, whose: Rank, owner: Rank) -> (Range<usize>, usize) {
        let (elems, at) = self.blocks[whose.index()].clone();
        match part {
            Part::Block => (elems, at),
            Part::Whole => (self.blocks[owner.index()].0.clone(), self.blocks[0].1),
        }
    }

    fn push(&mut self, action: Action, from: Vec<u32>, to: Vec<u32>, elems: Range<usize>, at: [usize; 2]) {
        let [src_at, dst_at] = at;
        self.ops.push(Op { action, from, to, elems, src_at, dst_at });
    }

    fn hops(&mut self, hops: &[MeshHop]) {
        let (me, n) = (self.rank, self.n);
        for (index, hop) in hops.iter().enumerate() {
            let shares = hops.get(index + 1).is_some_and(|next| next.send == Sent::Result);
            if let Sent::Input(part) = hop.send {
                for peer in hop.to.ranks(me, n) {
                    let (elems, at) = self.part(part, peer, me);
                    self.push(Action::SEND, vec![], vec![peer.0], elems, [at, 0]);
                }
            }
            let input = match hop.send {
                Sent::Input(part) => self.part(part, me, me).1,
                Sent::Result => 0,
            };
            match hop.keep {
                Keep::Reduced if hop.takes_own => {
                    let from: Vec<u32> = hop.from.ranks(me, n).map(|peer| peer.0).collect();
                    let to = if shares { peers(me, n).map(|peer| peer.0).collect() } else { vec![] };
                    let action = Action { recv: n > 1, send: !to.is_empty(), ..Action::RECV_REDUCE_COPY };
                    let (elems, at) = self.part(hop.dst, me, me);
                    self.push(action, from, to, elems, [input, at]);
                }
                Keep::Reduced => assert_eq!(hop.from, Others::None),
                Keep::Each => {
                    if hop.takes_own {
                        let (elems, at) = self.part(hop.dst, me, me);
                        self.push(Action::COPY, vec![], vec![], elems, [input, at]);
                    }
                    for peer in hop.from.ranks(me, n) {
                        let (elems, at) = self.part(hop.dst, peer, peer);
                        self.push(Action::RECV, vec![peer.0], vec![], elems, [0, at]);
                    }
                }
            }
        }
    }
}

/// Runs a schedule: `rounds` gives the blocks of each round of a part.
fn run<const HOPS: usize>(
    call: &Call,
    [input_elems, output_elems]: [usize; 2],
    schedule: impl Fn(Rank) -> [MeshHop; HOPS],
    rounds: impl Fn(Range<usize>) -> Vec<Vec<(Range<usize>, usize)>>,
) -> Buffers {
    let mut buffers = Buffers::new(call.n, input_elems, output_elems);
    for part in call.parts() {
        let agents: Vec<Agent> = (0..call.n)
            .map(|rank| {
                let mut walk = Walk { n: call.n, rank: Rank(rank), blocks: vec![], ops: vec![] };
                for blocks in rounds(part.clone()) {
                    walk.blocks = blocks;
                    walk.hops(&schedule(Rank(rank)));
                }
                Agent { rank, ops: walk.ops }
            })
            .collect();
        let ran = sim::run(call.n, &agents, &mut buffers, call);
        assert!(ran.is_ok(), "{ran:?}: {call:?}");
    }
    buffers
}

/// One-shot, each rank's block being `count` long in a buffer of all blocks.
fn one_shot(call: &Call, func: Func, root: u32) -> Buffers {
    let (n, count) = (call.n as usize, call.count);
    let lengths = match func {
        Func::AllGather => [count, n * count],
        Func::ReduceScatter => [n * count, count],
        Func::AllToAll => [n * count, n * count],
        _ => [count, count],
    };
    run(
        call,
        lengths,
        |rank| oneshot::hops(func, rank, Rank(root)),
        |part| {
            chunk::slices(part, call.slice)
                .map(|range| {
                    let block = |rank: usize| {
                        // What is reduced is named alike on every rank; what is only moved, by where it is in the sender's view.
                        let named = match func {
                            Func::AllReduce | Func::Reduce | Func::Broadcast | Func::AllToAll => {
                                range.clone()
                            }
                            _ => rank * count + range.start..rank * count + range.end,
                        };
                        (named, rank * count + range.start)
                    };
                    (0..n).map(block).collect()
                })
                .collect()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn one_shot_is_complete(call in calls(1..18, |_| 40), root in 0u32..18) {
        let (n, root) = (call.n, root % call.n);
        let is_all = |buffer: &[u64], value: u64| buffer.iter().all(|&found| found == value);
        for output in one_shot(&call, Func::AllReduce, 0).output {
            prop_assert!(is_all(&output, reduced(n)));
        }
        for output in one_shot(&call, Func::ReduceScatter, 0).output {
            prop_assert!(is_all(&output, reduced(n)));
        }
        for (rank, output) in one_shot(&call, Func::Reduce, root).output.iter().enumerate() {
            let expected = if rank as u32 == root { reduced(n) } else { 0 };
            prop_assert!(is_all(output, expected));
        }
        for output in one_shot(&call, Func::Broadcast, root).output {
            prop_assert!(is_all(&output, contribution(root)));
        }
        for func in [Func::AllGather, Func::AllToAll] {
            for output in one_shot(&call, func, 0).output {
                let by_rank = |(i, &value): (usize, &u64)| value == contribution((i / call.count) as u32);
                prop_assert!(output.iter().enumerate().all(by_rank));
            }
        }
    }

    #[test]
    fn two_shot_is_complete(call in calls(1..18, |_| 40)) {
        let buffers = run(&call, [call.count; 2], |_| twoshot::all_reduce(), |part| {
            let block = |range: Range<usize>| (range.clone(), range.start);
            let blocks = |one: chunk::Loop| (0..call.n).map(|rank| block(one.block_range(rank))).collect();
            call.loops(part, call.n).map(blocks).collect()
        });
        for output in &buffers.output {
            prop_assert!(output.iter().all(|&value| value == reduced(call.n)));
        }
    }
}

/// A rank that only sends, or the ranks that do, are ahead by as many messages as there are slots, and no hop waits for a later one.
#[test]
fn many_slices_of_every_function_end() {
    for n in 2..=5 {
        let call = Call {
            n,
            count: 61,
            nchannels: 1,
            grain: 1,
            chunk: 1,
            slice: 1,
            slots: oxccl_shared::fifo::STEPS,
            seed: 3,
        };
        for func in [Func::AllReduce, Func::AllGather, Func::ReduceScatter, Func::AllToAll] {
            one_shot(&call, func, 0);
        }
        for func in [Func::Broadcast, Func::Reduce] {
            (0..n).for_each(|root| drop(one_shot(&call, func, root)));
        }
    }
}
