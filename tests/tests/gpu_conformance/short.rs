//! Short operations that follow each other without a pause, each reading what the one before wrote: in graphs, where kernels may start before the
//! one in front of them has ended, on streams, and with copies of the user's between them.

use oxccl::cuda::{DeviceMemory, GraphExec};
use oxccl::{DataType, Func, ReduceOp, Untyped, device_group};
use oxccl_tests::deadline::Deadline;
use oxccl_tests::devices::{
    DeviceRank, DeviceWorld, capture_graphs, enqueue_graphs, instantiate_graphs, ranks_max,
};
use oxccl_tests::harness::Settings;
use oxccl_tests::random::Random;
use std::time::Duration;

/// 64-bit numbers of each rank: one half is operated on, the other is there for copies.
const ELEMS: usize = 1 << 16;
const HALF: usize = ELEMS / 2;

/// What changes a rank's numbers. All in place, so that each depends on those before.
#[derive(Clone, Copy, Debug)]
enum Op {
    /// With [`factor`]s.
    AllReduce {
        at: usize,
        count: usize,
    },
    /// The block of each rank, `count` long, one behind the other.
    AllGather {
        at: usize,
        count: usize,
    },
    Broadcast {
        at: usize,
        count: usize,
        root: usize,
    },
    Barrier,
    /// The user's: from one half to the other.
    Copy {
        to_upper: bool,
        count: usize,
    },
}

/// What a rank's numbers are multiplied by before they are added: in all an odd number, so that numbers stay different however often they
/// are.
fn factor(rank: usize) -> u64 {
    if rank == 0 { 3 } else { 2 }
}

/// A sequence that looks random and is the same everywhere.
struct Dice(Random);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0.below(bound as u64) as usize
    }

    fn op(&mut self, nranks: usize) -> Op {
        // Of one word, of one block and of several; and of more than one slot of the fewest channels.
        let lengths = [1, 1, 2, 17, 383, 384, 1000, 4096, 8191];
        let count = lengths[self.below(lengths.len())];
        let at = self.below(64);
        match self.below(8) {
            0..=3 => Op::AllReduce { at, count },
            4 => Op::AllGather { at, count: count.min(3000) },
            5 => Op::Broadcast { at, count, root: self.below(nranks) },
            6 => Op::Barrier,
            _ => Op::Copy { to_upper: self.below(2) == 0, count },
        }
    }

    fn ops(&mut self, nranks: usize, count: usize) -> Vec<Op> {
        (0..count).map(|_| self.op(nranks)).collect()
    }
}

struct Play {
    world: DeviceWorld,
    memories: Vec<DeviceMemory>,
    expected: Vec<Vec<u64>>,
}

impl Play {
    fn new(nranks: u32) -> Play {
        let world = DeviceWorld::new(nranks, Settings::default(), None);
        let numbers = |rank: u64| (0..ELEMS as u64).map(|at| (rank + 1) * 1_000_003 + at * 17).collect();
        let expected: Vec<Vec<u64>> = (0..u64::from(nranks)).map(numbers).collect();
        let memory = |(rank, numbers): (&DeviceRank, &Vec<u64>)| {
            let memory = DeviceMemory::zeroed(rank.comm.device(), 8 * ELEMS).expect("512 KiB");
            let stream = rank.stream.by_ref();
            // SAFETY: (1, 2) of the memory's length, and the stream is waited for.
            let copied =
                unsafe { stream.copy_to_device(memory.address(), numbers.as_ptr().cast(), 8 * ELEMS) };
            copied.and_then(|()| rank.stream.synchronize()).expect("a copy");
            memory
        };
        let memories = world.ranks.iter().zip(&expected).map(memory).collect();
        Play { world, memories, expected }
    }

    /// Puts operations on the ranks' streams, each as a group of its own.
    fn put(&self, ops: &[Op]) -> Result<(), oxccl::Error> {
        ops.iter().try_for_each(|op| self.put_one(*op))
    }

    fn put_one(&self, op: Op) -> Result<(), oxccl::Error> {
        let ranks = || self.world.ranks.iter().zip(&self.memories);
        if let Op::Copy { to_upper, count } = op {
            for (rank, memory) in ranks() {
                let [lower, upper] = [0, HALF].map(|at| memory.address() + 8 * at as u64);
                let (from, to) = if to_upper { (lower, upper) } else { (upper, lower) };
                // SAFETY: (1, 2) within the memory, which the stream alone uses.
                unsafe { rank.stream.by_ref().copy_on_device(to, from, 8 * count) }.expect("a copy");
            }
            return Ok(());
        }
        device_group(|group| {
            ranks().enumerate().try_for_each(|(index, (rank, memory))| {
                let place = |at: usize| -> *mut u8 {
                    std::ptr::without_provenance_mut(memory.address() as usize + 8 * at)
                };
                let (func, send, recv, count, root) = match op {
                    Op::AllReduce { at, count } => (Func::AllReduce, at, at, count, 0),
                    Op::AllGather { at, count } => (Func::AllGather, at + index * count, at, count, 0),
                    Op::Broadcast { at, count, root } => (Func::Broadcast, at, at, count, root),
                    Op::Barrier => return group.barrier(&rank.comm, rank.stream.by_ref()),
                    Op::Copy { .. } => unreachable!("done above"),
                };
                let untyped = Untyped::new(func, DataType::U64);
                let (send, recv, peer) = (place(send), place(recv), root as u32);
                let op = if func == Func::AllReduce {
                    ReduceOp::pre_mul_sum(factor(index))
                } else {
                    ReduceOp::SUM
                };
                let call = Untyped { send, recv, count, op, peer, ..untyped };
                // SAFETY: within this rank's memory, which its stream alone uses until it is waited for.
                unsafe { group.add_untyped(&rank.comm, &call, rank.stream.by_ref()) }
            })
        })
    }

    fn expect(&mut self, ops: &[Op]) {
        for op in ops {
            let all = &mut self.expected;
            match *op {
                Op::AllReduce { at, count } => {
                    for i in at..at + count {
                        let part = |(index, rank): (usize, &Vec<u64>)| rank[i].wrapping_mul(factor(index));
                        let sum = all.iter().enumerate().map(part).fold(0, u64::wrapping_add);
                        all.iter_mut().for_each(|rank| rank[i] = sum);
                    }
                }
                Op::AllGather { at, count } => {
                    for i in 0..all.len() * count {
                        let number = all[i / count][at + i];
                        all.iter_mut().for_each(|rank| rank[at + i] = number);
                    }
                }
                Op::Broadcast { at, count, root } => {
                    let sent = all[root][at..at + count].to_vec();
                    all.iter_mut().for_each(|rank| rank[at..at + count].copy_from_slice(&sent));
                }
                Op::Barrier => {}
                Op::Copy { to_upper, count } => {
                    let (from, to) = if to_upper { (0, HALF) } else { (HALF, 0) };
                    all.iter_mut().for_each(|rank| rank.copy_within(from..from + count, to));
                }
            }
        }
    }

    fn call(&mut self, ops: &[Op]) {
        self.put(ops).unwrap_or_else(|error| panic!("{error}"));
        self.expect(ops);
    }

    fn graphs(&self, ops: &[Op]) -> Vec<GraphExec> {
        let graphs = capture_graphs(&self.world.ranks, || self.put(ops));
        instantiate_graphs(&graphs.unwrap_or_else(|error| panic!("{error}")))
    }

    fn launch(&mut self, graphs: &[GraphExec], ops: &[Op]) {
        enqueue_graphs(&self.world.ranks, graphs);
        self.expect(ops);
    }

    /// Waits for all streams, and compares every number.
    fn compare(&self, after: &str) {
        for ((rank, memory), numbers) in self.world.ranks.iter().zip(&self.memories).zip(&self.expected) {
            rank.comm.synchronize(rank.stream.by_ref()).unwrap_or_else(|error| panic!("{after}: {error}"));
            let mut found = vec![0u64; ELEMS];
            let stream = rank.stream.by_ref();
            // SAFETY: (1, 2) of the memory's length, and the stream is waited for.
            let copied =
                unsafe { stream.copy_to_host(found.as_mut_ptr().cast(), memory.address(), 8 * ELEMS) };
            copied.and_then(|()| rank.stream.synchronize()).expect("a copy");
            let wrong = found.iter().zip(numbers).position(|(found, expected)| found != expected);
            assert_eq!(wrong, None, "{after}: rank {}, by element", rank.comm.rank());
        }
    }
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_short_operations_follow_each_other() {
    let _deadline = Deadline::start("needs_gpu_short_operations_follow_each_other", Duration::from_secs(120));
    let sizes: Vec<u32> = [2, 3, 4].into_iter().filter(|nranks| *nranks <= ranks_max()).collect();
    if sizes.is_empty() {
        return println!("skipped: this machine has one GPU, and OXCCL_DUPLICATE_GPUS=1 is not set");
    }
    for nranks in sizes {
        let (mut play, mut dice) = (Play::new(nranks), Dice(Random(u64::from(nranks))));
        let calls = dice.ops(nranks as usize, 300);
        play.call(&calls);
        play.compare("calls");
        // The same one again and again: each kernel is behind one of its own kind, and reuses the slots of eight before.
        let chain = [Op::AllReduce { at: 0, count: 5 }; 64];
        let graphs = play.graphs(&chain);
        for _ in 0..50 {
            play.launch(&graphs, &chain);
        }
        play.compare("a chain");
        for round in 0..3 {
            let (first, second) = (dice.ops(nranks as usize, 60), dice.ops(nranks as usize, 31));
            let (of_first, of_second) = (play.graphs(&first), play.graphs(&second));
            for _ in 0..30 {
                play.launch(&of_first, &first);
                play.call(&second[..7]);
                play.launch(&of_second, &second);
                play.launch(&of_second, &second);
            }
            play.compare(&format!("graphs, round {round}"));
        }
    }
}
