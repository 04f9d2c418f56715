//! Rings: sender and receiver agree, results are complete, eight credits suffice.

use std::ops::Range;

use oxccl_shared::algo::ring::{self, slices_max};
use oxccl_shared::algo::{Action, Hop};
use oxccl_shared::fifo::STEPS;
use proptest::prelude::*;

use super::params::{Call, calls};
use super::sim::{self, Agent, Buffers, Deadlock, Op, contribution, reduced};

/// The blocks that a position sends (or receives), in order.
fn blocks(hops: impl Iterator<Item = Hop>, which: impl Fn(Action) -> bool) -> Vec<u32> {
    hops.filter(|hop| which(hop.action)).map(|hop| hop.block).collect()
}

/// Checks every connection of a ring of `n`, and that no block number leaves `0..nblocks`.
fn check_neighbours<I: Iterator<Item = Hop>>(n: u32, nblocks: u32, schedule: impl Fn(u32) -> I) {
    for position in 0..n {
        let sent = blocks(schedule(position), |action| action.send);
        let received = blocks(schedule((position + 1) % n), |action| action.recv);
        assert_eq!(sent, received, "position {position} of {n}");
        assert!(schedule(position).all(|hop| hop.block < nblocks));
    }
}

#[test]
fn what_a_position_sends_is_what_its_successor_receives() {
    for n in 1..=64 {
        check_neighbours(n, n, |p| ring::all_reduce(p, n));
        check_neighbours(n, n, |p| ring::reduce_scatter(p, n));
        check_neighbours(n, n, |p| ring::all_gather(p, n));
        for root in 0..n {
            check_neighbours(n, 1, |p| ring::broadcast(p, root, n));
            check_neighbours(n, 1, |p| ring::reduce(p, root, n));
        }
    }
}

#[test]
fn hop_counts_are_those_the_tuning_model_assumes() {
    for n in 1..=64 {
        for position in 0..n {
            assert_eq!(ring::all_reduce(position, n).count(), 2 * n as usize - 1);
            assert_eq!(ring::reduce_scatter(position, n).count(), n as usize);
            assert_eq!(ring::all_gather(position, n).count(), n as usize);
            assert_eq!(ring::broadcast(position, 0, n).count(), 1);
            assert_eq!(ring::reduce(position, 0, n).count(), 1);
            let sends = ring::all_reduce(position, n).filter(|hop| hop.action.send).count();
            assert_eq!(sends, 2 * (n as usize - 1));
        }
    }
}

#[test]
fn results_end_at_their_owners() {
    for n in 1..=64 {
        for position in 0..n {
            let kept = ring::reduce_scatter(position, n).filter(|hop| hop.action.dst);
            assert_eq!(kept.map(|hop| hop.block).collect::<Vec<_>>(), [position]);
            let own = ring::all_gather(position, n).filter(|hop| hop.action.src);
            assert_eq!(own.map(|hop| hop.block).collect::<Vec<_>>(), [position]);
        }
    }
}

/// The programs of one ring through the ranks in a random order.
struct Ring<'a> {
    call: &'a Call,
    order: Vec<u32>,
    agents: Vec<Agent>,
}

impl<'a> Ring<'a> {
    fn new(call: &'a Call, channel: u64) -> Self {
        let order = sim::Random(call.seed ^ channel).permutation(call.n);
        let agents = order.iter().map(|&rank| Agent { rank, ops: Vec::new() }).collect();
        Ring { call, order, agents }
    }

    fn rank(&self, position: u32) -> u32 {
        self.order[position as usize]
    }

    /// Appends one hop on `elems`; a buffer that holds only part of the collective's elements starts `base` later.
    fn push(&mut self, position: u32, action: Action, elems: Range<usize>, src_base: usize, dst_base: usize) {
        let n = self.call.n;
        let peers = |wanted: bool, peer: u32| {
            if wanted { vec![self.order[peer as usize % n as usize]] } else { vec![] }
        };
        let (from, to) = (peers(action.recv, position + n - 1), peers(action.send, position + 1));
        for slice in self.call.slices(elems) {
            let (src_at, dst_at) = (slice.start.wrapping_sub(src_base), slice.start.wrapping_sub(dst_base));
            let (from, to) = (from.clone(), to.clone());
            self.agents[position as usize].ops.push(Op { action, from, to, elems: slice, src_at, dst_at });
        }
    }

    fn run(&self, buffers: &mut Buffers) -> Result<(), Deadlock> {
        sim::run(self.call.n, &self.agents, buffers, self.call)
    }
}

fn all_reduce(call: &Call) -> Result<Buffers, Deadlock> {
    let mut buffers = Buffers::new(call.n, call.count, call.count);
    for (channel, part) in call.parts().enumerate() {
        let mut ring = Ring::new(call, channel as u64);
        for position in 0..call.n {
            for one in call.loops(part.clone(), call.n) {
                for hop in ring::all_reduce(position, call.n) {
                    ring.push(position, hop.action, one.block_range(hop.block), 0, 0);
                }
            }
        }
        ring.run(&mut buffers)?;
    }
    Ok(buffers)
}

/// Walks the blocks of all ranks chunk by chunk; `count` is the length of one rank's block.
fn blockwise<I: Iterator<Item = Hop>>(
    call: &Call,
    buffers: &mut Buffers,
    schedule: impl Fn(u32) -> I,
    bases: impl Fn(usize) -> (usize, usize),
) -> Result<(), Deadlock> {
    for (channel, part) in call.parts().enumerate() {
        let mut ring = Ring::new(call, channel as u64);
        for position in 0..call.n {
            for chunk in oxccl_shared::algo::chunk::slices(part.clone(), call.chunk) {
                for hop in schedule(position) {
                    let block_at = ring.rank(hop.block) as usize * call.count;
                    let (src_base, dst_base) = bases(block_at);
                    ring.push(
                        position,
                        hop.action,
                        block_at + chunk.start..block_at + chunk.end,
                        src_base,
                        dst_base,
                    );
                }
            }
        }
        ring.run(buffers)?;
    }
    Ok(())
}

/// One hop per chunk, for broadcast and reduce.
fn chain<I: Iterator<Item = Hop>>(
    call: &Call,
    root: u32,
    schedule: impl Fn(u32, u32) -> I,
) -> Result<Buffers, Deadlock> {
    let mut buffers = Buffers::new(call.n, call.count, call.count);
    for (channel, part) in call.parts().enumerate() {
        let mut ring = Ring::new(call, channel as u64);
        let root_position = ring.order.iter().position(|&rank| rank == root).unwrap() as u32;
        for position in 0..call.n {
            for one in call.loops(part.clone(), 1) {
                for hop in schedule(position, root_position) {
                    ring.push(position, hop.action, one.block_range(hop.block), 0, 0);
                }
            }
        }
        ring.run(&mut buffers)?;
    }
    Ok(buffers)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(384))]

    #[test]
    fn all_reduce_is_complete(call in calls(1..18, slices_max)) {
        let buffers = all_reduce(&call).unwrap();
        for output in &buffers.output {
            prop_assert!(output.iter().all(|&value| value == reduced(call.n)));
        }
    }

    #[test]
    fn reduce_scatter_is_complete(call in calls(1..18, slices_max)) {
        let mut buffers = Buffers::new(call.n, call.n as usize * call.count, call.count);
        blockwise(&call, &mut buffers, |p| ring::reduce_scatter(p, call.n), |block_at| (0, block_at)).unwrap();
        for output in &buffers.output {
            prop_assert!(output.iter().all(|&value| value == reduced(call.n)));
        }
    }

    #[test]
    fn all_gather_is_complete(call in calls(1..18, slices_max)) {
        let mut buffers = Buffers::new(call.n, call.count, call.n as usize * call.count);
        blockwise(&call, &mut buffers, |p| ring::all_gather(p, call.n), |block_at| (block_at, 0)).unwrap();
        let expected: Vec<u64> = (0..call.n).flat_map(|r| vec![contribution(r); call.count]).collect();
        for output in &buffers.output {
            prop_assert_eq!(output, &expected);
        }
    }

    /// Chains bear more slices per chunk than a connection has slots.
    #[test]
    fn broadcast_is_complete(call in calls(1..18, |slots| 3 * slots), root in any::<prop::sample::Index>()) {
        let root = root.index(call.n as usize) as u32;
        let buffers = chain(&call, root, |p, root| ring::broadcast(p, root, call.n)).unwrap();
        for output in &buffers.output {
            prop_assert!(output.iter().all(|&value| value == contribution(root)));
        }
    }

    #[test]
    fn reduce_is_complete_at_the_root_alone(call in calls(1..18, |slots| 3 * slots), root in any::<prop::sample::Index>()) {
        let root = root.index(call.n as usize) as u32;
        let buffers = chain(&call, root, |p, root| ring::reduce(p, root, call.n)).unwrap();
        for (rank, output) in buffers.output.iter().enumerate() {
            let expected = if rank as u32 == root { reduced(call.n) } else { 0 };
            prop_assert!(output.iter().all(|&value| value == expected));
        }
    }
}

/// The bound is exact: it is not caution, and the simulator does see a deadlock.
#[test]
fn one_slice_too_many_deadlocks_every_ring() {
    for (n, slots) in (2..=17).flat_map(|n| [(n, 4), (n, STEPS)]) {
        let call = |slices: usize| Call {
            n,
            count: n as usize * slices,
            nchannels: 1,
            grain: 1,
            chunk: slices,
            slice: 1,
            slots,
            seed: u64::from(n),
        };
        assert!(all_reduce(&call(slices_max(slots))).is_ok());
        let Err(Deadlock(stuck)) = all_reduce(&call(slices_max(slots) + 1)) else {
            panic!("{n} ranks ran through")
        };
        assert_eq!(stuck.len(), n as usize, "all ranks wait");
        assert!(
            stuck.iter().all(|&(_, op)| op == slots),
            "after filling the slots of the first hop: {stuck:?}"
        );
    }
}
