//! One-shot kernels, several on a rank's stream at a time: each starts before the one in front of it has ended.
//!
//! Each of these mistakes was put into the code, and found: no wait for the kernel before; no wait for credits; a count that claims more than
//! the peer has read; `head` believed where an exchange has told more; slots never cleaned; the header not checked; no barrier before steps are counted (a hang).

use super::machine::{BlockState, SharedMemory, Thread};
use super::{LAYOUT, Shared, connection};
use oxccl_device::gpu::SHARED_BYTES;
use oxccl_device::kernel::run;
use oxccl_device::prims::Ll;
use oxccl_shared::abi::{
    CollArgs, ConnControl, ConnEnd, Func, KERNEL_DIRECT, KernelColl, KernelLaunch, KernelMonitor, Rank,
    SlotHeader, Step, StopCause, Stopped,
};
use oxccl_shared::algo::chunk::ChannelCut;
use oxccl_shared::fifo::{ConsumerCursor, ProducerCursor};
use oxccl_shared::proto::ll::{self, LlLine};
use oxccl_shared::reduce::OpArg;
use proptest::prelude::*;
use std::ptr::null;

/// Bytes of payload of an LL slot.
const SLOT_BYTES: usize = ll::payload_bytes(LAYOUT.ll_slot_bytes as usize);

#[derive(Clone, Copy, Debug)]
struct Op {
    func: Func,
    count: usize,
    root: u32,
    tag: u32,
}

/// An operation's digest differs from that of the one before it.
fn op(func: Func, count: usize, root: u32, tag: u32) -> Op {
    Op { func, count: if func == Func::Barrier { 0 } else { count }, root, tag }
}

/// Ranks that are all connected; connection `from * n + to` leads from one to another.
struct World {
    n: usize,
    links: Vec<*mut ConnControl>,
    ranks: Vec<RankState>,
    /// Of a wait; 0 for ever.
    timeout_ns: u64,
}

struct RankState {
    send: Vec<ConnEnd>,
    recv: Vec<ConnEnd>,
    send_cursors: Vec<ProducerCursor>,
    recv_cursors: Vec<ConsumerCursor>,
    monitor: KernelMonitor,
}

/// What an operation of one rank reads and writes.
struct Buffers {
    src: Vec<u32>,
    dst: Vec<u32>,
}

fn value(rank: usize, at: usize, tag: u32) -> u32 {
    (rank * 1_000_003 + at * 7919) as u32 ^ tag.wrapping_mul(0x9e37_79b9)
}

impl World {
    fn at(n: usize, step: Step) -> World {
        let links: Vec<_> = (0..n * n).map(|_| connection()).collect();
        let rank = |rank: usize| {
            let end = |from: usize, to: usize, peer: usize| {
                ConnEnd::in_one(links[from * n + to], LAYOUT, Rank(peer as u32))
            };
            let peers = || (0..n).filter(move |peer| *peer != rank);
            RankState {
                send: peers().map(|peer| end(rank, peer, peer)).collect(),
                recv: peers().map(|peer| end(peer, rank, peer)).collect(),
                send_cursors: vec![ProducerCursor::at(step); n - 1],
                recv_cursors: vec![ConsumerCursor::at(step); n - 1],
                monitor: KernelMonitor::default(),
            }
        };
        let ranks = (0..n).map(rank).collect();
        World { n, links, ranks, timeout_ns: 0 }
    }

    fn control(&self, from: usize, to: usize) -> &ConnControl {
        // SAFETY: live, as all connections of a test.
        unsafe { &*self.links[from * self.n + to] }
    }

    /// The line of a slot.
    fn line(&self, from: usize, to: usize, step: Step, index: usize) -> &LlLine {
        let slot = LAYOUT.ll_offset() + step.slot() * LAYOUT.ll_slot_bytes as usize;
        let base = self.links[from * self.n + to].cast::<u8>();
        // SAFETY: within the connection, which is only accessed as words.
        unsafe { &*base.wrapping_add(slot + index * ll::LINE_BYTES).cast::<LlLine>() }
    }

    fn args(&mut self, rank: usize, op: &Op, buffers: &mut Buffers) -> CollArgs {
        let (nranks, timeout_ns) = (self.n as u32, self.timeout_ns);
        let state = &mut self.ranks[rank];
        state.monitor.timeout_ns.store_relaxed(timeout_ns);
        let launch = KernelLaunch {
            send: state.send.as_ptr(),
            recv: state.recv.as_ptr(),
            send_cursors: state.send_cursors.as_mut_ptr(),
            recv_cursors: state.recv_cursors.as_mut_ptr(),
            rings: null(),
            trees: null(),
            monitor: &state.monitor,
            number: 0,
            nconns: nranks - 1,
            nchannels: 1,
            rank: Rank(rank as u32),
            nranks,
            nmessages: 0,
            tile_bytes: 0,
        };
        let slice_elems = (SLOT_BYTES / size_of::<u32>()) as u64;
        let coll = KernelColl {
            src: buffers.src.as_ptr().cast(),
            dst: buffers.dst.as_mut_ptr().cast(),
            cut: ChannelCut::new(op.count, 1, 1),
            chunk_elems: slice_elems,
            slice_elems,
            arg: OpArg::NONE,
            kind: 0,
            flags: KERNEL_DIRECT,
            func: op.func as u32,
            root: Rank(op.root),
            tag: op.tag,
            host_ranks: 0,
        };
        CollArgs { launch, coll }
    }

    fn buffers(&self, rank: usize, op: &Op) -> Buffers {
        let (n, count) = (self.n, op.count);
        let (src, dst) = match op.func {
            Func::AllGather => (count, n * count),
            Func::ReduceScatter => (n * count, count),
            Func::AllToAll => (n * count, n * count),
            _ => (count, count),
        };
        Buffers { src: (0..src).map(|at| value(rank, at, op.tag)).collect(), dst: vec![0xdead_beef; dst] }
    }

    /// Runs the operations of each rank, kernels of `threads` threads. All of a rank's have started before the first has ended; each rank's
    /// `ops` of its own.
    fn run<const PEERS: usize>(&mut self, threads: usize, ops: &[&[Op]]) -> Vec<Vec<Buffers>> {
        let mut buffers: Vec<Vec<Buffers>> = Vec::new();
        let mut kernels = Vec::new();
        for (rank, ops) in ops.iter().enumerate() {
            let mut own: Vec<Buffers> = ops.iter().map(|op| self.buffers(rank, op)).collect();
            kernels.push(Vec::from_iter(
                ops.iter().zip(&mut own).map(|(op, buffers)| (op.func, self.args(rank, op, buffers))),
            ));
            buffers.push(own);
        }
        launch::<PEERS>(threads, kernels);
        buffers
    }
}

/// Runs kernels: by rank, in the order of its stream.
fn launch<const PEERS: usize>(threads: usize, kernels: Vec<Vec<(Func, CollArgs)>>) {
    let memory = || SharedMemory([0; SHARED_BYTES]);
    let mut memory: Vec<Vec<_>> = kernels.iter().map(|own| own.iter().map(|_| memory()).collect()).collect();
    let blocks: Vec<Vec<_>> = memory
        .iter_mut()
        .map(|own| own.iter_mut().map(|memory| BlockState::new(memory, threads)).collect())
        .collect();
    let (kernels, blocks) = (&Shared(kernels), &blocks);
    std::thread::scope(|scope| {
        for (rank, own) in blocks.iter().enumerate() {
            for (at, index) in (0..own.len()).flat_map(|at| (0..threads).map(move |index| (at, index))) {
                scope.spawn(move || {
                    let previous = at.checked_sub(1).map(|before| &blocks[rank][before]);
                    let machine = Thread::new(index, &blocks[rank][at], previous);
                    let (func, args) = &kernels.0[rank][at];
                    // SAFETY: the arguments are those of ranks that are all connected, with buffers for the function.
                    unsafe { run::oneshot::<_, u32, Ll<1>, false, PEERS>(machine, args, *func) };
                    blocks[rank][at].end();
                });
            }
        }
    });
}

/// What a rank's output must be; none where it has none.
fn wanted(n: usize, rank: usize, op: &Op) -> Option<Vec<u32>> {
    let Op { func, count, root, tag } = *op;
    let sum = |at: usize| (0..n).fold(0u32, |sum, rank| sum.wrapping_add(value(rank, at, tag)));
    Some(match func {
        Func::AllReduce | Func::Barrier => (0..count).map(sum).collect(),
        Func::Reduce => return (rank == root as usize).then(|| (0..count).map(sum).collect()),
        Func::ReduceScatter => (rank * count..(rank + 1) * count).map(sum).collect(),
        Func::Broadcast => (0..count).map(|at| value(root as usize, at, tag)).collect(),
        Func::AllGather => (0..n * count).map(|at| value(at / count, at % count, tag)).collect(),
        _ => (0..n * count).map(|at| value(at / count, rank * count + at % count, tag)).collect(),
    })
}

fn check<const PEERS: usize>(world: &mut World, threads: usize, ops: &[Op]) {
    let all = vec![ops; world.n];
    let found = world.run::<PEERS>(threads, &all);
    for (rank, own) in found.iter().enumerate() {
        assert_eq!(world.ranks[rank].monitor.stopped.read(), None);
        for (op, buffers) in ops.iter().zip(own) {
            if let Some(wanted) = wanted(world.n, rank, op) {
                assert_eq!(buffers.dst, wanted, "rank {rank} of {}: {op:?}", world.n);
            }
        }
    }
}

const FUNCS: [Func; 7] = [
    Func::AllReduce,
    Func::AllGather,
    Func::ReduceScatter,
    Func::AllToAll,
    Func::Barrier,
    Func::Broadcast,
    Func::Reduce,
];

fn ops(n: u32) -> impl Strategy<Value = Vec<Op>> {
    // Up to two slices; mostly of one.
    let count = prop_oneof![4 => 0usize..8, 2 => 0usize..SLOT_BYTES / 4 + 1, 1 => 0usize..SLOT_BYTES / 2];
    let one = (0..FUNCS.len(), count, 0..n);
    proptest::collection::vec(one, 1..6).prop_map(|all| {
        let numbered = all.into_iter().enumerate();
        numbered.map(|(at, (func, count, root))| op(FUNCS[func], count, root, 100 + at as u32)).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 24 }, failure_persistence: None, ..Default::default() })]

    #[test]
    fn kernels_of_two_ranks_follow_each_other(batches in proptest::collection::vec(ops(2), 1..4), step in 0u64..20) {
        let mut world = World::at(2, Step(step));
        batches.iter().for_each(|ops| check::<1>(&mut world, 4, ops));
    }

    #[test]
    fn kernels_of_four_ranks_follow_each_other(ops in ops(4), step in 0u64..20) {
        check::<3>(&mut World::at(4, Step(step)), 8, &ops);
    }

    #[test]
    fn kernels_of_three_ranks_with_room_for_eight_follow_each_other(ops in ops(3), step in 0u64..20) {
        check::<7>(&mut World::at(3, Step(step)), 8, &ops);
    }
}

/// Each kernel reads what the one before wrote.
#[test]
fn a_kernel_that_starts_early_waits_for_what_it_reads() {
    let (mut world, ops) = (World::at(2, Step(0)), [op(Func::AllReduce, 9, 0, 7); 5]);
    let mut buffers: Vec<Buffers> = (0..2).map(|rank| world.buffers(rank, &ops[0])).collect();
    let mut kernels = Vec::new();
    for (rank, buffers) in buffers.iter_mut().enumerate() {
        let in_place = |args: CollArgs| {
            let coll = KernelColl { src: args.coll.dst, ..args.coll };
            CollArgs { coll, ..args }
        };
        let mut own = vec![(Func::AllReduce, world.args(rank, &ops[0], buffers))];
        own.extend(ops[1..].iter().map(|op| (op.func, in_place(world.args(rank, op, buffers)))));
        kernels.push(own);
    }
    launch::<1>(4, kernels);
    let first = wanted(2, 0, &ops[0]).expect("an all-reduce has an output");
    for buffers in buffers {
        assert_eq!(buffers.dst, first.iter().map(|sum| sum.wrapping_mul(16)).collect::<Vec<_>>());
    }
}

/// No slot is given back, and no producer asks: what the peer's message says is enough. One-way messages afterwards find their credits.
#[test]
fn a_short_exchange_gives_nothing_back() {
    let mut world = World::at(2, Step(0));
    let short: Vec<Op> = (0..20).map(|tag| op(Func::AllReduce, 3, 0, tag)).collect();
    check::<1>(&mut world, 4, &short);
    for (from, to) in [(0, 1), (1, 0)] {
        assert_eq!(world.control(from, to).head.load_relaxed(), 0);
    }
    assert_eq!(world.ranks[0].send_cursors[0], ProducerCursor::after_exchange(Step(19)));
    assert_eq!(world.ranks[1].recv_cursors[0], ConsumerCursor::at(Step(20)));
    let one_way: Vec<Op> = (0..20).map(|tag| op(Func::Broadcast, 3, 0, tag)).collect();
    check::<1>(&mut world, 4, &one_way);
    assert_eq!(world.control(0, 1).head.load_relaxed(), 40);
    assert_eq!(world.control(1, 0).head.load_relaxed(), 0);
    check::<1>(&mut world, 4, &short);
}

/// A rank alone, whose peer reads nothing.
fn alone(world: &mut World, ops: &[Op]) -> Option<Stopped> {
    world.timeout_ns = 20_000_000;
    world.run::<1>(4, &[ops]);
    world.ranks[0].monitor.stopped.read()
}

/// After eight one-way messages the producer knows of no empty slot: it waits for one, and leaves the consumer's oldest as it is.
#[test]
fn a_short_exchange_waits_for_a_credit_that_it_lacks() {
    let one_way: Vec<Op> = (0..8).map(|tag| op(Func::Broadcast, 5, 0, tag)).collect();
    let mut world = World::at(2, Step(0));
    assert_eq!(alone(&mut world, &one_way), None);
    let stopped = alone(&mut world, &[op(Func::AllReduce, 5, 0, 9)]).expect("it has stopped");
    assert_eq!((stopped.cause, stopped.peer), (StopCause::NoCredit, Rank(1)));
    let oldest = world.line(0, 1, Step(0), 0).load_header(ll::flag(Step(0)));
    assert_eq!(oldest, Some(SlotHeader { tag: 0, len_bytes: 20 }));
    // With a consumer it goes on.
    let mut ops = one_way;
    ops.push(op(Func::AllReduce, 5, 0, 9));
    let mut world = World::at(2, Step(0));
    check::<1>(&mut world, 4, &ops);
    assert_eq!(world.ranks[0].send_cursors[0].step(), Step(9));
}

/// `head` lags behind what exchanges have told: a producer that reads it must not believe that less has been read.
#[test]
fn what_an_exchange_told_is_not_forgotten() {
    let mut world = World::at(2, Step(0));
    let short: Vec<Op> = (0..20).map(|tag| op(Func::AllReduce, 3, 0, tag)).collect();
    check::<1>(&mut world, 4, &short);
    let one_way: Vec<Op> = (0..7).map(|tag| op(Func::Broadcast, 3, 0, tag)).collect();
    assert_eq!(alone(&mut world, &one_way), None, "the last seven slots are empty");
    let stopped = alone(&mut world, &one_way[..1]).expect("it has stopped");
    assert_eq!(stopped.cause, StopCause::NoCredit);
}

/// A producer that lacks one peer's credit waits for that peer alone. Exchanges do not write `head`, so a wait for the `head` of a peer that only
/// took part in exchanges never ended.
#[test]
fn who_lacks_one_credit_waits_for_no_other() {
    let mut world = World::at(3, Step(0));
    let short: Vec<Op> = (0..10).map(|tag| op(Func::AllReduce, 3, 0, tag)).collect();
    check::<2>(&mut world, 4, &short);
    let to_last: Vec<Op> = (20..27).map(|tag| op(Func::Reduce, 3, 2, tag)).collect();
    world.run::<2>(4, &[&to_last, &to_last]);
    let together = [op(Func::AllReduce, 3, 0, 30)];
    let of_last: Vec<Op> = to_last.iter().chain(&together).copied().collect();
    world.timeout_ns = 5_000_000_000;
    let found = world.run::<2>(4, &[&together, &together, &of_last]);
    for (rank, own) in found.iter().enumerate() {
        assert_eq!(world.ranks[rank].monitor.stopped.read(), None, "rank {rank}");
        assert_eq!(own.last().map(|buffers| buffers.dst.clone()), wanted(3, rank, &together[0]));
    }
}

/// Once in 2^30 steps every line of a slot is written, so that none is mistaken for a new one when flags repeat.
#[test]
fn old_messages_are_overwritten_in_time() {
    let step = Step(1 << 30);
    let mut world = World::at(2, step);
    check::<1>(&mut world, 4, &[op(Func::AllReduce, 2, 0, 5)]);
    let lines = LAYOUT.ll_slot_bytes as usize / ll::LINE_BYTES;
    for index in 2..lines {
        assert_eq!(world.line(0, 1, step, index).load(ll::flag(step)), Some(0), "line {index}");
    }
}

#[test]
fn ranks_in_different_operations_stop() {
    let mut world = World::at(2, Step(0));
    let (theirs, ours) = ([op(Func::AllReduce, 2, 0, 5)], [op(Func::AllReduce, 40, 0, 6)]);
    world.run::<1>(4, &[&theirs, &ours]);
    let header = world.line(0, 1, Step(0), 0).load_header(ll::flag(Step(0)));
    assert_eq!(header, Some(SlotHeader { tag: 5, len_bytes: 8 }));
    for (rank, state) in world.ranks.iter().enumerate() {
        let stopped = state.monitor.stopped.read().expect("it has stopped");
        assert_eq!((stopped.cause, stopped.peer), (StopCause::Mismatch, Rank(1 - rank as u32)));
        assert_eq!(state.send_cursors[0], ProducerCursor::at(Step(0)), "of rank {rank}");
    }
}
